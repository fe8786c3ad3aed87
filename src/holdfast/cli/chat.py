"""`holdfast chat`: a conversation with an agent, which goes on wherever it was left."""

import sys
from contextlib import redirect_stdout
from uuid import uuid4

import click

from holdfast.agent.agent import Agent
from holdfast.cli.chatting import Chatting
from holdfast.cli.completion import complete_file
from holdfast.cli.options import by_option, common
from holdfast.cli.surface import Surface
from holdfast.cli.target import Target, load_target
from holdfast.core.errors import InvalidInput
from holdfast.runtime import Opening


@click.command("chat")
@click.argument("target", metavar="TARGET", shell_complete=complete_file)
@click.option("--conversation", "-c", metavar="ID", help="Which one; the same id goes on with it. Else a new one.")
@by_option("Who speaks")
@common()
def chat(surface: Surface, *, target: str, conversation: str | None, by: str | None) -> int:
    """Talk with an agent, turn by turn.

    TARGET is file.py, file.py:name, module or module:name. On a terminal you are asked for what to say; elsewhere each
    line of stdin is a message, and each answer goes to stdout.

    The conversation is kept by its id. An answer that was cut off by a kill goes on when the chat is taken up again.
    """
    screen = surface.out
    with redirect_stdout(sys.stderr):
        program = load_target(target)
        _check(program, target)
        program.app.add(program.function)
        which = conversation if conversation is not None else f"chat-{uuid4().hex[:12]}"
        again = surface.command("chat", target, "--conversation", which)
        with Opening(surface.store, program.app, work=True, concurrency=64, only=set(), watched=True) as runtime:
            talk = runtime.conversation(which, program.function)
            chatting = Chatting(surface, screen, runtime, talk, program.function.name, again, by)
            try:
                return chatting.go()
            except KeyboardInterrupt:
                return chatting.interrupted()


def _check(program: Target, target: str) -> None:
    """Refuse what does not take a message."""
    function = program.function
    if isinstance(function, Agent) or len(function.parameters) == 1:
        return
    error = InvalidInput(f"{function.name} takes {len(function.parameters)} arguments: it cannot be talked with")
    error.hint = f"Talk with an agent, or a durable function of one text: {target.partition(':')[0]}:NAME"
    raise error
