"""What the models of these tests say, and what a watcher of one attempt saw."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.agent.model import CallPiece, Model, ModelError, Piece, Reply, Request, TextPiece
from holdfast.core.message import Message, Text
from tests.rigs.provider import Answer, Call

FIFTY = Answer(tokens=[f"wörd{number} 🙂 " for number in range(50)])
CALLING = Answer(tokens=["I ", "look."], calls=[Call("c1", "look", '{"at": "the é sea"}'), Call("c2", "wait")])
HELLO = Request(instructions="Be brief.", messages=[Message("user", (Text("Hello?"),))])


@dataclass
class Attempt:
    """One request and all that came of it."""

    pieces: list[Piece] = field(default_factory=list)
    reply: Reply | None = None
    error: ModelError | None = None

    @property
    def said(self) -> str:
        """What was told of the text."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))

    @property
    def called(self) -> str:
        """What was told of the calls' arguments."""
        return "".join(piece.arguments for piece in self.pieces if isinstance(piece, CallPiece))


async def attempt(model: Model, request: Request = HELLO) -> Attempt:
    """Ask once, within ten seconds."""
    made = Attempt()
    try:
        async with asyncio.timeout(10):
            made.reply = await model.ask(request, made.pieces.append)
    except ModelError as error:
        made.error = error
    return made


async def attempts(models: Sequence[Model]) -> list[Attempt]:
    """Ask all of them at once."""
    return list(await asyncio.gather(*map(attempt, models)))
