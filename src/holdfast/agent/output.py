"""What an agent's answer shall be: text, or a type that it is read and checked as."""

import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.agent.reader import Misread, Reader, reader_of
from holdfast.core.codec import Codec, digest
from holdfast.core.errors import InvalidValue
from holdfast.core.storable import refuse_unstorable

_FENCED: Final = re.compile(r"\s*```[a-zA-Z]*[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)
"""How models wrap JSON that they were asked for bare."""


class Output:
    """The form of an agent's answer."""

    def __init__(self, agent: str, kind: Any) -> None:
        refuse_unstorable(f"output= of {agent} is", kind)
        self.kind = kind
        self.codec = Codec(kind)
        self._reader: Reader | None = reader_of(kind) if kind is not str else None

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the answer; None for text."""
        if self._reader is None:
            return None
        return {**self._reader.schema, **({"$defs": self._reader.defs} if self._reader.defs else {})}

    @property
    def digest(self) -> str:
        """The same for the same form."""
        return digest(self.schema)

    def read(self, text: str) -> Any:
        """Return the answer that a text is.

        Raises:
            Misread: it has not the form; its message is for the model.
        """
        if self._reader is None:
            return text
        fenced = _FENCED.fullmatch(text)
        value = self._reader.read((fenced[1] if fenced is not None else text).encode())
        try:
            return self.codec.round_trip(value, "the answer")[1]
        except InvalidValue as error:
            raise Misread(("", str(error))) from error


def ask_again(wrong: str) -> str:
    """Return what a model is told whose answer has not the form that was asked for."""
    return (
        f"Your answer is not what was asked for: {wrong}. "
        "Answer again, with nothing but the JSON that the schema describes."
    )
