"""The pytest plugin: fixtures that are there when asked for, and cost nothing when not."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.project import ROOT

PROGRAM = """
from datetime import timedelta

import pytest

import holdfast as hf

tries = []


def flaky() -> str:
    tries.append("try")
    if len(tries) % 2:
        raise ConnectionError("not now")
    return "done"


@hf.durable
async def patient(ctx: hf.Context) -> str:
    return await ctx.step(flaky, retry=hf.Retry(first=timedelta(days=3), most=timedelta(days=3)))
"""
ASYNC = "anyio_mode = auto"


def run(folder: Path, tests: str, *options: str, settings: str = ASYNC) -> subprocess.CompletedProcess[str]:
    """Run tests of a user's, in a process and a folder of their own."""
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = --strict-markers -W error\n{settings}\n")
    backend = "\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    (folder / "test_theirs.py").write_text(PROGRAM + backend + tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_holdfast", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def passes(done: subprocess.CompletedProcess[str], count: int) -> None:
    """Fail, with pytest's own words, unless so many tests passed."""
    assert (done.returncode, f"{count} passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_an_async_and_a_plain_test_get_a_runtime_whose_clock_jumps(tmp_path: Path) -> None:
    """The first test that a user writes needs no set-up."""
    tests = """
async def test_async(holdfast_runtime, holdfast_clock):
    began = holdfast_clock()
    assert await holdfast_runtime.run(patient) == "done"
    assert holdfast_runtime.clock is holdfast_clock
    assert holdfast_clock() - began >= timedelta(days=1.5) / timedelta(microseconds=1)


def test_plain(holdfast_plain_runtime):
    assert holdfast_plain_runtime.wait(holdfast_plain_runtime.run(patient)) == "done"
"""
    passes(run(tmp_path, tests), 2)


def test_the_app_is_the_one_that_a_fixture_gives(tmp_path: Path) -> None:
    """A project says once what its tests drive."""
    tests = """
@pytest.fixture
def holdfast_app():
    return hf.App(patient, version="of the fixture")


async def test_async(holdfast_runtime):
    run = await holdfast_runtime.start(patient)
    async for event in run.events(follow=False):
        assert event.code == "of the fixture"
        break
"""
    passes(run(tmp_path, tests), 1)


MOVED_BY_HAND = """
async def test_async(holdfast_runtime, holdfast_clock):
    began = holdfast_clock()
    run = await holdfast_runtime.start(patient, delay=timedelta(days=1))
    with pytest.raises(TimeoutError):
        await run.result(timeout=0)
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.05)
    assert holdfast_clock() == began
"""


@pytest.mark.parametrize(
    ("mark", "settings"), [("@pytest.mark.holdfast(jumps=False)", ""), ("", "holdfast_jumps = false")]
)
def test_a_marker_or_a_setting_lets_the_clock_stand(tmp_path: Path, mark: str, settings: str) -> None:
    """For one test, or for all of a project."""
    passes(run(tmp_path, mark + MOVED_BY_HAND, settings=f"{ASYNC}\n{settings}"), 1)


def test_without_either_the_clock_of_that_test_would_have_jumped(tmp_path: Path) -> None:
    """The test above can fail."""
    done = run(tmp_path, MOVED_BY_HAND)
    assert "1 failed" in done.stdout, done.stdout + done.stderr


def test_the_marker_takes_precedence_over_the_setting(tmp_path: Path) -> None:
    """What is nearer to the test is heard last."""
    tests = """
@pytest.mark.holdfast(jumps=True)
async def test_async(holdfast_runtime):
    assert await holdfast_runtime.run(patient) == "done"
"""
    passes(run(tmp_path, tests, settings=f"{ASYNC}\nholdfast_jumps = false"), 1)


def test_nothing_of_holdfast_is_imported_until_a_fixture_is_used(tmp_path: Path) -> None:
    """Whoever has Holdfast installed does not wait for it in every run of pytest."""
    seen = "[name for name in sys.modules if name.split('.')[0] == 'holdfast']"
    (tmp_path / "test_other.py").write_text(f"import sys\n\ndef test_other():\n    assert not {seen}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_holdfast", "-p", "no:cacheprovider"]
    passes(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False), 1)


def test_pytest_finds_the_plugin_where_holdfast_is_installed() -> None:
    """The entry point names the module, by the name that `-p no:` takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_holdfast": "pytest_holdfast"}
    assert "src/pytest_holdfast.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]


def test_an_async_test_that_no_plugin_runs_is_told_what_to_set(tmp_path: Path) -> None:
    """The fixture is nobody's but ours, so what it needs is ours to say."""
    tests = """
async def test_async(holdfast_runtime):
    assert await holdfast_runtime.run(patient) == "done"
"""
    done = run(tmp_path, tests, settings="")
    assert done.returncode == 1
    assert 'holdfast_runtime is for async tests, which nothing runs here: set anyio_mode = "auto"' in done.stdout
