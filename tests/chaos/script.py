"""What is said in a conversation of ten turns: every line of the model follows from what was said before it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.rigs.provider import Answer, Call, Provider, Turn
from tests.rigs.provider.server import Heard

DESK: Final = "desk"
CLERK: Final = "clerk"
WORDS: Final = (
    "good morning", "look it up, hold it and pay it", "give the money back", "first look, then pay and write",
    "take your time", "let the clerk stamp it", "make a mistake", "give the money back again", "do five things",
    "that is all, tell me everything",
)  # fmt: skip
"""What the user says, turn by turn."""
TURNS: Final = tuple(range(1, len(WORDS) + 1))
STEERED: Final = 5
STEERING: Final = "and hurry"
ANSWERS: Final[Mapping[int, tuple[bool, Mapping[str, Any] | None]]] = {
    3: (True, {"what": "3b", "cents": 300}),
    8: (False, None),
}
"""What a person says to the question of a turn, and with which other arguments."""
QUEUED: Final = 10
"""The turn that is sent while the one before it is under way."""
_SLOW: Final = {(DESK, 1), (DESK, 4), (CLERK, 6), (DESK, 10)}
"""Where the model takes its time between two pieces, so that all of them are shown."""
_PAUSE_SECONDS: Final = 0.004
_NUMBERED: Final = re.compile(r"(\d+): ")


@dataclass(frozen=True, slots=True)
class _Line:
    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def _line(*calls: tuple[str, str], text: str = "") -> _Line:
    return _Line(text, tuple((tool, {"what": what}) for tool, what in calls))


_LINES: Final[Mapping[tuple[str, int], Sequence[_Line]]] = {
    (DESK, 1): [_Line("Good morning. What is it?")],
    (DESK, 2): [_line(("look", "2a"), ("hold", "2b"), ("pay", "2c"), text="One moment."), _Line("All three are done.")],
    (DESK, 3): [_Line("", (("refund", {"what": "3b", "cents": 500}), ("look", {"what": "3a"}))), _Line("Given back.")],
    (DESK, 4): [_line(("look", "4a")), _line(("pay", "4b"), ("write", "4c")), _Line("Looked, paid, written.")],
    (DESK, 5): [_line(("dawdle", "5a"), ("pay", "5b")), _Line("It took a while.")],
    (DESK, 6): [_Line("", (("clerk", {"message": "6: stamp it"}), ("hold", {"what": "6b"}))), _Line("Stamped.")],
    (CLERK, 6): [_line(("stamp", "6c"), ("look", "6d")), _Line("The stamp is on it.")],
    (DESK, 7): [
        _Line("", (("pay", {"price": 7}), ("nothing", {"what": "7b"}), ("hold", {"what": "7c"}))),
        _Line("Two of them were mistakes."),
    ],
    (DESK, 8): [_Line("", (("refund", {"what": "8a", "cents": 800}), ("pay", {"what": "8b"}))), _Line("Not this one.")],
    (DESK, 9): [
        _line(("look", "9a"), ("pay", "9b"), ("hold", "9c"), ("write", "9d"), ("look", "9e")),
        _Line("Five things."),
    ],
    (DESK, 10): [_Line("Everything that there is to be told has been told by now, but for this.")],
}  # fmt: skip


def said(turn: int) -> str:
    """Return what the user says in a turn."""
    return f"{turn}: {WORDS[turn - 1]}"


def reply(model: str, messages: Sequence[Mapping[str, Any]]) -> Answer:
    """Return what a model says next; it counts what it was told, so that nothing can be lost or told twice unnoticed.

    Raises:
        LookupError: nothing comes next.
    """
    begun = max(at for at, message in enumerate(messages) if _number(message))
    since = messages[begun + 1 :]
    turn, place = _number(messages[begun]), sum(message["role"] == "assistant" for message in since)
    line = _LINES[model, turn][place]
    heard = "".join(f" I heard: {message['content']}." for message in since if message["role"] == "user")
    text = f"{line.text} ({len(messages)} so far){heard}" if line.text else ""
    calls = [
        Call(f"{model}-{turn}-{place}-{number}", tool, json.dumps(arguments))
        for number, (tool, arguments) in enumerate(line.calls)
    ]
    return Answer(tokens=re.findall(r"\S+\s*", text), calls=calls)


def _number(message: Mapping[str, Any]) -> int:
    found = _NUMBERED.match(str(message["content"])) if message["role"] == "user" else None
    return int(found[1]) if found else 0


class Prompter(Provider):
    """A provider on a real socket whose models say their lines, piece by piece."""

    def next_turn(self, heard: Heard, model: str) -> Turn:
        """Return the line that follows from what was sent."""
        messages = heard.json["messages"]
        slow = (model, max(map(_number, messages))) in _SLOW
        return Turn(reply(model, messages), pause_seconds=_PAUSE_SECONDS if slow else 0.0)
