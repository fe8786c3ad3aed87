"""What the shell completes: runs, keys, names and questions of the store that is named, and files."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from holdfast.cli.store import open_client
from holdfast.cli.surface import shown
from holdfast.client.protocol import Client
from holdfast.core.errors import HoldfastError
from holdfast.core.status import TERMINAL
from holdfast.runtime import DEFAULT_STORE

_COMPLETIONS: Final = 50
_OF_OPEN_RUNS: Final = {"cancel", "pause", "resume", "retry", "signal", "resolve", "raise", "steer"}
_OF_ENDED_RUNS: Final = {"delete"}
_BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" %(complete_var)s=bash_complete $1)
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("$value")
        fi
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    """Reads the line and not bash's words, which end at the colons of an address."""

    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = "" if not words or line[-1].isspace() else words[-1]
        return words[1:] if not incomplete else words[1:-1], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        # Bash replaces what stands behind the last colon only.
        _, incomplete = self.get_completion_args()
        kept = incomplete.rpartition(":")[0]
        value = str(item.value)
        return f"{item.type},{value.removeprefix(f'{kept}:') if kept else value}"


add_completion_class(_Bash)


def address_of(named: str | None) -> str:
    """Return the store that is meant: the one named, else `HOLDFAST_STORE`, else the default."""
    return named or os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE


def complete_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Leave it to the shell, which knows files."""
    return [CompletionItem(incomplete, type="file")]


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the newest runs that the command can do something to: by id, and by key once that is begun."""

    async def look(client: Client) -> list[CompletionItem[str]]:
        return [
            CompletionItem(word, help=f"{shown(run.name)} {run.status}")
            for run in await client.runs(limit=_COMPLETIONS)
            for word in (run.id, run.key if incomplete else None)
            if word is not None and word.startswith(incomplete) and _is_for(context.info_name or "", run.status)
        ]

    return _looked_up(context, look)


def _is_for(command: str, status: str) -> bool:
    if command in _OF_OPEN_RUNS:
        return status not in TERMINAL
    return command not in _OF_ENDED_RUNS or status in TERMINAL


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the keys of the newest runs."""

    async def look(client: Client) -> list[CompletionItem[str]]:
        return _once(run.key for run in await client.runs(limit=_COMPLETIONS) if run.key is not None)

    return [item for item in _looked_up(context, look) if str(item.value).startswith(incomplete)]


def complete_name(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the names of the newest runs."""

    async def look(client: Client) -> list[CompletionItem[str]]:
        return _once(run.name for run in await client.runs(limit=_COMPLETIONS))

    return [item for item in _looked_up(context, look) if str(item.value).startswith(incomplete)]


def _once(values: Iterable[str]) -> list[CompletionItem[str]]:
    return [CompletionItem(value) for value in dict.fromkeys(values)]


def complete_question(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the open questions."""

    async def look(client: Client) -> list[CompletionItem[str]]:
        found = [question for question in await client.questions() if question.id.startswith(incomplete)]
        return [CompletionItem(question.id, help=shown(question.text)) for question in found]

    return _looked_up(context, look)


def _looked_up(
    context: click.Context, look: Callable[[Client], Coroutine[Any, Any, list[CompletionItem[str]]]]
) -> list[CompletionItem[str]]:
    async def looked() -> list[CompletionItem[str]]:
        async with open_client(address_of(context.params.get("store"))) as client:
            return await look(client)

    try:
        return asyncio.run(looked())
    except HoldfastError:
        return []
