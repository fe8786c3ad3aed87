"""Whether a call came whole: half a call is never given to a tool."""

from collections.abc import Sequence

import msgspec

from holdfast.agent.model import ModelCut, ModelRefused
from holdfast.core.message import ToolCall, Usage


def whole_calls(calls: Sequence[ToolCall], *, short: bool, asked: str, usage: Usage | None) -> list[ToolCall]:
    """Return the calls of a reply that ended in order, none without arguments; `short` if its length was used up.

    The calls are given with the text of their arguments as it came, empty where none did. Arguments that are wrong
    JSON are the model's to mend; those that only lack their end are half a call.

    Raises:
        ModelRefused: the length was used up within a call, as it would be the next time.
        ModelCut: a call lacks its id, its name or the end of its arguments, and the length is not why.
    """
    halves = [call for call in calls if not _is_whole(call, short=short)]
    if halves:
        named, usage = halves[0].name or "a tool without a name", usage or Usage()
        if short:
            why = "the length of its answer was used up; give it a larger max_tokens, or less to write"
            raise ModelRefused(f"{asked} sent half a call of {named}: {why}", usage=usage)
        raise ModelCut(f"{asked} sent half a call of {named} and then ended its answer", usage=usage)
    return [msgspec.structs.replace(call, arguments=call.arguments or "{}") for call in calls]


def _is_whole(call: ToolCall, *, short: bool) -> bool:
    if not call.id or not call.name:
        return False
    if not call.arguments:
        # Some providers write nothing for a call without arguments; so does one whose length ended after the name.
        return not short
    try:
        msgspec.json.decode(call.arguments)
    except msgspec.DecodeError as error:
        return "truncated" not in str(error)
    return True
