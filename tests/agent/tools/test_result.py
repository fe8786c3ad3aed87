"""What a model is told of what a tool returned."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.agent.result import show_error
from holdfast.core import limits
from holdfast.engine.payload import Secrets


@dataclass
class Receipt:
    """A result."""

    order: str
    cents: int


@hf.tool
def anything() -> Any:
    """Return anything."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain\ntext", "plain\ntext"),
        ("", ""),
        (None, "null"),
        (Receipt("42", 5), '{"order":"42","cents":5}'),
        ([1, "ü"], '[1,"ü"]'),
        (b"bytes of text", "bytes of text"),
    ],
)
def test_text_is_told_as_it_is_and_anything_else_as_json(value: Any, text: str) -> None:
    """No quotes around what is text already."""
    shown = anything.render(value)
    assert (shown.text, shown.error, shown.blob) == (text, False, None)


@given(st.text("aé漢🙂", min_size=1), st.integers(0, 3))
def test_a_large_result_is_told_as_a_preview_and_kept_whole(some: str, shift: int) -> None:
    """The preview ends at a character's border, says how much it left out, and the blob holds the rest."""
    value = "x" * shift + some * (limits.TOOL_RESULT_BYTES // len(some.encode()) + 1)
    shown = anything.render(value)
    head, _, note = shown.text.rpartition("\n")
    assert value.startswith(head)
    assert len(shown.text.encode()) <= limits.TOOL_RESULT_BYTES
    left = len(value.encode()) - len(head.encode())
    assert note.startswith(f"[cut here: {left} of {len(value.encode())} bytes")
    assert shown.blob is not None
    assert json.loads(shown.blob.body) == value
    assert shown.ref is not None
    assert (shown.ref.digest, shown.ref.size) == (shown.blob.digest, len(shown.blob.body))


def test_bytes_that_are_no_text_are_named_and_kept() -> None:
    """A model cannot read them, and they are not lost."""
    for value in (b"\x89PNG.", b"a\0b.."):
        shown = anything.render(value)
        assert shown.text == "[5 bytes that are not text]"
        assert shown.blob is not None


def test_a_result_that_is_no_data_is_told_as_such() -> None:
    """The call has been made, so the model must hear of it, whatever came back."""
    for value in (object(), float("nan"), {"a": {1, object()}}):
        shown = anything.render(value)
        assert shown.error
        assert shown.text.startswith("anything was performed, but its result cannot be told")


def test_a_result_over_the_limit_of_payloads_is_told_as_far_as_it_goes() -> None:
    """What is too large to be kept is not kept, and the model is told that too."""
    shown = anything.render("x" * (limits.PAYLOAD_BYTES + 1))
    assert (shown.blob, shown.error) == (None, False)
    assert shown.text.endswith("the rest is too large to be kept]")
    assert anything.render(["x" * (limits.PAYLOAD_BYTES + 1)]).error


def test_a_secret_is_taken_out_before_a_result_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a secret at the end of a preview would be a secret told."""
    monkeypatch.setenv("HF_TEST_TOKEN", "sesame-open")
    secrets = Secrets(["HF_TEST_TOKEN"])
    shown = anything.render("x" * (limits.TOOL_RESULT_BYTES - 205) + "sesame-open" * 100, secrets)
    assert "ses" not in shown.text
    assert shown.blob is not None
    assert b"sesame" not in shown.blob.body
    assert anything.render(b"it was sesame-open", secrets).text == "it was [HF_TEST_TOKEN]"
    assert show_error("it was sesame-open", secrets).text == "it was [HF_TEST_TOKEN]"
