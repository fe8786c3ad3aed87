"""Workers that are killed while a coding program is at work: the program goes with them, and its session goes on."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.transcript import transcript
from holdfast.testing import every_crash
from tests.coding.conftest import is_there
from tests.coding.rig import AGAIN, KINDS, Kind, StandIn
from tests.rigs.waiting import wait_until

_WORKER = """
import sys
import holdfast as hf
from tests.coding import apps

print(hf.run(getattr(apps, sys.argv[1]), sys.argv[2], key=sys.argv[2], store=f"sqlite:///{apps.FOLDER / 'store.db'}"))
"""


@pytest.fixture(params=KINDS)
def standin(tmp_path: Path, request: pytest.FixtureRequest) -> StandIn:
    """A stand-in of each kind."""
    kind: Kind = request.param
    return StandIn(tmp_path / kind, kind)


class Workers:
    """Processes that each drive one run of the stand-in's agent, and die when told."""

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin
        self._started: list[subprocess.Popen] = []

    def start(self, text: str) -> subprocess.Popen:
        """Start one; the same text is the same run."""
        command = [sys.executable, "-c", _WORKER, self._standin.kind, text]
        env = {**os.environ, "CODING_FOLDER": str(self._standin.folder.parent)}
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        self._started.append(process)
        return process

    def finish(self, text: str) -> str:
        """Start one, and return what it prints."""
        return self.start(text).communicate(timeout=60)[0].strip()

    def close(self) -> None:
        """End all that are left."""
        for process in self._started:
            process.kill()
            process.communicate(timeout=30)


@pytest.fixture
def workers(standin: StandIn) -> Iterator[Workers]:
    """Workers of the stand-in's agent."""
    workers = Workers(standin)
    yield workers
    workers.close()


def test_a_killed_worker_takes_the_program_along_and_its_successor_resumes_the_session(
    standin: StandIn, workers: Workers
) -> None:
    """`kill -9` in the middle of a turn, with a command under way: no process overlaps with its successor's."""
    shell = "echo $$ > shell; trap '' TERM; while :; do sleep 0.05; echo tick >> ticks; done"
    standin.plan([["named"], ["keep"], ["text", "I look."], ["tool", shell]])
    first = workers.start("one")
    wait_until(lambda: (standin.workspace / "ticks").exists(), seconds=60)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    answer = workers.finish("one")
    begun, resumed = standin.calls
    assert not any(map(is_there, (begun["pid"], int((standin.workspace / "shell").read_text()))))
    assert resumed["alone"]
    assert standin.sessions == [standin.resumed(resumed)]
    assert AGAIN in answer
    assert standin.said(standin.sessions[0])[:2] == ["asked: one", "said: I look."]
    assert standin.ended == 1


def test_a_turn_that_ended_while_its_worker_died_is_not_taken_again(standin: StandIn, workers: Workers) -> None:
    """What the program said last was written to a file, not to a reader: the successor finds it there."""
    # It goes on for as long as it may after its worker is gone, and comes to its end then.
    standin.plan([["named"], ["keep"], ["mortal"], ["echo"], ["end"]])
    first = workers.start("one")
    wait_until(lambda: standin.hangs, seconds=60)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    assert workers.finish("one") == "you said: one"
    assert len(standin.calls) == 1


_MODULE = """
from pathlib import Path

from tests.coding.apps import agent_of

agent = agent_of(Path(__file__).parent, Path(__file__).stem.partition("_")[0])
"""


def _agent(folder: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> hf.Agent[str]:
    """Return an agent at the top of a module, where processes that are killed find it."""
    name = f"{kind}_agent"
    (folder / f"{name}.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(folder)
    agent: hf.Agent[str] = importlib.import_module(name).agent
    return agent


async def test_wherever_a_worker_dies_the_turn_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed around every write: one turn comes to its end, in one session, and the transcript is that of no death."""
    kind: Kind = "codex"
    standin, seen = StandIn(tmp_path / kind, kind), []

    def clear() -> None:
        for pattern in ("session-*", "calls*", "state/*.jsonl"):
            for path in standin.folder.glob(pattern):
                path.unlink()

    def once(ended: hf.testing.Ended) -> None:
        assert standin.ended == 1
        assert len(standin.sessions) == 1
        assert all(call["alone"] for call in standin.calls)
        seen.append([message.role for message in transcript(ended.entries)])
        assert seen[-1] == seen[0]

    agent = _agent(tmp_path, kind, monkeypatch)
    survived = await every_crash(agent, "one", setup=clear, check=once, processes=True)
    assert survived.crashes >= 10
