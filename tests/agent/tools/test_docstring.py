"""What a docstring says, whichever manner it is written in."""

import pytest

from holdfast.agent.docstring import read_docstring

GOOGLE = """
Pay money back.

It takes a day.

Args:
    order (str): The order's number,
        as printed.
    cents: How much: in cents.
    *rest: Ignored.

Returns:
    A receipt.

Note:
    Never twice.
"""
NUMPY = """
Pay money back.

It takes a day.

Parameters
----------
order : str
    The order's number,
    as printed.
cents, rest : int, optional
    How much: in cents.

Returns
-------
str
    A receipt.
"""
REST = """
Pay money back.

It takes a day.

:param str order: The order's number,
    as printed.
:param cents: How much: in cents.
:type cents: int
:returns: A receipt.
:raises ValueError: if it is too much
"""


@pytest.mark.parametrize(("text", "note"), [(GOOGLE, "\n\nNote:\n    Never twice."), (NUMPY, ""), (REST, "")])
def test_each_manner_gives_the_same_description_and_texts(text: str, note: str) -> None:
    """Sections that a model has no use for are left out; parameters' texts flow in one line."""
    doc = read_docstring(text)
    assert doc.description == "Pay money back.\n\nIt takes a day." + note
    assert doc.parameters["order"] == "The order's number, as printed."
    assert doc.parameters["cents"] == "How much: in cents."


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Only a line.",
        "Args: are what it is about.\n\nMore.",
        "Returns:\nnothing indented",
        "Ratio a:b: c",
        ":) smile",
    ],
)
def test_a_docstring_of_no_manner_is_all_description(text: str) -> None:
    """Nothing is lost of a text that only looks like a section."""
    assert read_docstring(text) == type(read_docstring(""))(text, {})
