"""Errors: one tree, stable codes, and a next step."""

import copy
import inspect
import subprocess
import sys
import traceback
from collections.abc import Iterator

import msgspec
import pytest

import holdfast
from holdfast.core import errors
from holdfast.engine.payload import Secrets, error_info


def tree(root: type[BaseException] = errors.HoldfastError) -> Iterator[type[BaseException]]:
    """Yield every error of ours."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from tree(kind)


ALL = list(tree())


def test_the_drawing_shows_the_tree() -> None:
    """What stands at the top of the file is what is in it, each under its parent."""
    drawn: dict[int, str] = {}
    shown = {}
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").split(" ")[0]
        if hasattr(errors, name):
            depth = line.index(name) // 4
            drawn[depth] = name
            shown[name] = drawn.get(depth - 1)
    assert shown == {
        kind.__name__: None if kind is errors.HoldfastError else kind.__bases__[0].__name__ for kind in ALL
    }


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_has_a_code_of_its_own(kind: type[errors.HoldfastError]) -> None:
    """Codes are stable names for programs; no two errors share one."""
    assert [other for other in ALL if other.code == kind.code] == [kind]  # type: ignore[attr-defined]
    assert (kind.__doc__ or "").endswith(".")


@pytest.mark.parametrize(
    "error",
    [
        errors.RunError(run="r", status="failed", reason="why"),
        errors.StepError(step="0/a#1", type="ValueError", message="no", attempts=2),
        errors.InDoubt(step="0/a#1", message="crash", attempts=2),
        errors.Diverged(seq=3, recorded="a", asked="b"),
        errors.Conflict("taken", run="r", differs=("input",)),
        errors.NotFound("run r"),
        errors.PayloadTooLarge("it", size=2, limit=1),
        errors.BadCursor("x", "is not an event id"),
        errors.Damaged(run="r", seq=3, what="bad"),
        errors.UnknownEntry(kind="K", version=2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_errors_data_is_json_and_its_hint_says_what_to_do(error: errors.HoldfastError) -> None:
    """Fields are data, so that every surface can show them."""
    data = error.data()
    assert data
    assert "hint" not in data
    assert msgspec.json.decode(msgspec.json.encode(data)) is not None
    assert error.hint.endswith(".")


def test_a_doubt_is_a_step_error_that_says_it_may_have_happened() -> None:
    """Code that handles failing steps meets doubt too, and can tell it apart."""
    doubt = errors.InDoubt(step="0/pay#1", message="crash", attempts=2)
    assert isinstance(doubt, holdfast.StepError)
    assert str(doubt) == "step 0/pay#1 may or may not have happened: crash"
    assert (doubt.step, doubt.attempts) == ("0/pay#1", 2)


def test_signals_are_not_exceptions() -> None:
    """`except Exception` in agent code cannot eat a park or a lost lease."""
    for signal in (errors.Parked, errors.Lost):
        assert issubclass(signal, BaseException)
        assert not issubclass(signal, Exception)
        assert inspect.getdoc(signal)


def test_a_message_names_what_it_is_about() -> None:
    """Recorded against asked, run and entry, cursor and why."""
    assert str(errors.Diverged(seq=3, recorded="'0/a#1'", asked="'0/b#1'")) == (
        "entry 3 recorded '0/a#1' but the code asked for '0/b#1'"
    )
    assert str(errors.Damaged(run="r", seq=3, what="bad")) == "run r, entry 3: bad"
    assert str(errors.Damaged(run="r", seq=None, what="bad")) == "run r: bad"
    assert str(errors.Damaged(run="", seq=None, what="a blob is bad")) == "a blob is bad"
    assert str(errors.BadCursor("x", "is not an event id")) == "cursor 'x' is not an event id"


def test_a_traceback_ends_with_what_to_do_next() -> None:
    """Whoever runs a program reads the hint where Python prints the error, however late it was given."""
    error = errors.InvalidInput("it cannot be taken")
    assert "".join(traceback.format_exception_only(error)) == f"{errors.__name__}.InvalidInput: it cannot be taken\n"
    error.hint = "Give something else."
    error.add_note("seen in a branch")
    assert traceback.format_exception_only(error)[1:] == ["seen in a branch\n", "Give something else.\n"]
    again = copy.copy(errors.NotFound("run r"))
    again.hint = "Look elsewhere."
    assert traceback.format_exception_only(again)[-1] == "Look elsewhere.\n"
    again.__notes__ = ["only this"]
    assert again.__notes__ == ["only this", "Look elsewhere."]


def test_python_itself_prints_the_hint() -> None:
    """Below the error that ended the program, once."""
    program = "from holdfast.core.errors import NotFound; raise NotFound('it')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.endswith(f"NotFound: it was not found\n{errors.NotFound.hint}\n")
    assert done.stderr.count(errors.NotFound.hint) == 1


def test_a_note_is_no_part_of_what_is_stored() -> None:
    """The journal keeps names and text; a hint belongs to the release that says it."""
    error = errors.NotFound("run r")
    error.add_note("a note")
    assert error.data() == {"what": "run r"}
    info = error_info(error, Secrets())
    assert (info.message, info.code) == ("run r was not found", "not_found")
