"""`holdfast preflight`, and a deploy as it really goes: old and new workers side by side on one store."""

import asyncio
import importlib.util
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from tests.rigs.waiting import wait_until
from tests.surface.command import SECONDS, Shell, Started
from tests.surface.deploy_1 import GO, ON

REFUSED = r"would be refused\n    recorded  entry \d: 0/gather#1\n    asked     0/act#1"
BENIGN = [f"benign {number}" for number in range(6)]
HARMFUL = [f"harmful {number}" for number in range(3)]
PINNED = [f"pinned {number}" for number in range(3)]


class Deploy:
    """A store, a program in two versions, and the workers that serve it."""

    def __init__(self, shell: Shell, store: str) -> None:
        self.shell, self.store, self.living = shell, store, list[Started]()

    def launch(self, version: int) -> Started:
        """Start a worker of a version, and wait until it serves."""
        worker = self.shell.start("worker", f"deploy_{version}.py", "--store", self.store)
        self.living.append(worker)
        worker.wait_for("serving benign")
        return worker

    def stop(self, worker: Started) -> None:
        """Let a worker leave."""
        self.living.remove(worker)
        assert worker.end(signal.SIGTERM).status == 0

    def preflight(self, version: int) -> dict[str, str]:
        """Return what a preflight of a version says of every run, by its key."""
        ran = self.shell("preflight", f"deploy_{version}.py", "--store", self.store, "--json")
        assert ran.status == int(any(line["verdict"] == "refused" for line in ran.values))
        return {line["key"]: line["verdict"] for line in ran.values}

    def reasons(self) -> dict[str, str]:
        """Return why each run that has not ended rests, as it is listed."""
        listed = self.shell("ls", "--store", self.store, "--json", "--limit", 100).values
        return {line["key"]: line["reason"] for line in listed if line["status"] in ("waiting", "queued")}

    def has_refused(self) -> bool:
        """Say whether every run that new code harms rests because of that."""
        waiting = self.reasons()
        return all(waiting.get(key, "").startswith("diverged: entry ") for key in HARMFUL)

    def acts(self) -> list[tuple[str, ...]]:
        """Return what was really done: for whom, what, and by which version."""
        path = self.shell.folder / "acts.txt"
        return [tuple(line.rsplit(" ", 2)) for line in path.read_text().splitlines()] if path.exists() else []


def write_programs(folder: Path) -> None:
    """Put the program there as it was and as it will be: serial where it was parallel, else the same."""
    old = Path(__file__).with_name("deploy_1.py").read_text()
    new = old.replace('{what} 1\\n"', '{what} 2\\n"').replace('version="1"', 'version="2"')
    apart = 'await ctx.step(act, who, "first")\n    await ctx.step(act, who, "second")'
    new = new.replace('await ctx.gather(ctx.step(act, who, "first"), ctx.step(act, who, "second"))', apart)
    (folder / "deploy_1.py").write_text(old)
    (folder / "deploy_2.py").write_text(new)


@pytest.fixture(params=["sqlite", "postgresql"])
def deploy(shell: Shell, request: pytest.FixtureRequest) -> Iterator[Deploy]:
    """The program as it was and as it will be, and nobody at work yet."""
    on_file = request.param == "sqlite"
    store = f"sqlite:///{shell.folder}/holdfast.db" if on_file else request.getfixturevalue("postgres_address")
    write_programs(shell.folder)
    deploy = Deploy(shell, store)
    yield deploy
    for worker in deploy.living:
        worker.end(signal.SIGKILL)


async def rests(run: hf.Run[Any], times: int = 1) -> None:
    """Wait until a run has come to rest so often."""
    async with asyncio.timeout(SECONDS):
        async for event in run.events():
            times -= isinstance(event, events.RunParked)
            if times == 0:
                return


def program_in(folder: Path) -> Any:
    """Import the program as it was from a folder of its own, beside which it notes what it does."""
    spec = importlib.util.spec_from_file_location("deploy_here", folder / "deploy_1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def begin(store: str, folder: Path, *, working: bool = False) -> None:
    """Start every run, and wait until it was brought to its first rest, by a worker or here."""
    program = program_in(folder)
    async with hf.open(store, work=False) as runtime:
        runs: list[hf.Run[Any]] = []
        for function, keys in ((program.benign, BENIGN), (program.harmful, HARMFUL), (program.benign, PINNED)):
            app = hf.App(function, version="1")
            async with hf.open(store, app, work=working) as client:
                for key in keys:
                    started: Any = await client.start(function, key, key=key, pin=keys is PINNED)
                    runs.append(await runtime.get(started.id))
                for run in runs if working else []:
                    await rests(run)
        for run in runs:
            await rests(run)


async def send(store: str, signal: hf.Signal[str], keys: list[str]) -> None:
    """Send a signal to runs."""
    async with hf.open(store, work=False) as runtime:
        for key in keys:
            await (await runtime.get(key=key)).signal(signal, "x")


async def drivers_of(store: str, keys: list[str]) -> dict[str, list[str]]:
    """Return who drove each run, in order, as its journal tells: who took it up, and who took it over."""
    found: dict[str, list[str]] = {}
    async with hf.open(store, work=False) as runtime:
        for key in keys:
            told = [event async for event in (await runtime.get(key=key)).events(follow=False)]
            who = [event for event in told if isinstance(event, events.RunResumed | events.SpecAdopted)]
            found[key] = [f"{event.type} {event.code}" for event in who]
    return found


async def results(store: str, keys: list[str]) -> set[Any]:
    """Return what runs come to."""
    async with hf.open(store, work=False) as runtime:
        return {await (await runtime.get(key=key)).result(timeout=2 * SECONDS) for key in keys}


async def taken_over(store: str, keys: list[str]) -> None:
    """Wait until every one of these runs waits for its second signal."""
    async with hf.open(store, work=False) as runtime:
        for key in keys:
            await rests(await runtime.get(key=key), 2)


def test_old_and_new_workers_side_by_side_finish_everything_as_the_preflight_said(deploy: Deploy) -> None:
    """What is pinned or refused is for the old, what the new have is not dragged back, and nothing is done twice."""
    old = deploy.launch(1)
    asyncio.run(begin(deploy.store, deploy.shell.folder))
    said = deploy.preflight(2)
    assert said == dict.fromkeys(BENIGN, "goes_on") | dict.fromkeys(HARMFUL, "refused") | dict.fromkeys(
        PINNED, "pinned"
    )
    deploy.stop(old)
    new = deploy.launch(2)
    asyncio.run(send(deploy.store, GO, [*BENIGN, *HARMFUL, *PINNED]))
    asyncio.run(taken_over(deploy.store, BENIGN))
    wait_until(deploy.has_refused, seconds=SECONDS, what="that the new one refuses what has diverged")
    waiting = deploy.reasons()
    assert {waiting[key] for key in PINNED} == {
        "code: it was started with version 1 and is pinned to it; the workers of 'benign' have 2"
    }
    assert {version for who, what, version in deploy.acts() if who in (*HARMFUL, *PINNED)} == {"1"}
    # The old one comes back beside the new: it finishes what is its own, and nothing else.
    deploy.launch(1)
    asyncio.run(send(deploy.store, ON, [*BENIGN, *PINNED]))
    assert asyncio.run(results(deploy.store, [*BENIGN, *HARMFUL, *PINNED])) == {"third"}
    drivers = asyncio.run(drivers_of(deploy.store, [*BENIGN, *HARMFUL, *PINNED]))
    for key, drove in drivers.items():
        assert ("SpecAdopted 2" in drove) == (key in BENIGN), (key, drove)
        later = drove[drove.index("SpecAdopted 2") :] if key in BENIGN else []
        assert not [entry for entry in later if entry.endswith(" 1")], (key, drove)
    acts = Counter((who, what) for who, what, _ in deploy.acts())
    assert set(acts.values()) == {1}
    assert len(acts) == 3 * len(said)
    assert new.process.poll() is None


def test_a_preflight_names_what_is_refused_and_counts_the_rest(shell: Shell) -> None:
    """Recorded stands against asked, the ways out are told, and what goes on is named only if that is asked for."""
    write_programs(shell.folder)
    store = f"sqlite:///{shell.folder}/holdfast.db"
    asyncio.run(begin(store, shell.folder, working=True))
    assert len((shell.folder / "acts.txt").read_text().splitlines()) == 15, "it acted in its own folder"
    ran = shell("preflight", "deploy_2.py", "--store", store)
    assert ran.status == 1
    assert len(re.findall(REFUSED, ran.out)) == 3
    assert "benign   6 go on, 3 pinned to another version\nharmful  3 would be refused\n" in ran.out
    assert "`ctx.patched` for another path" in ran.err
    assert "goes on" not in ran.out
    every = shell("preflight", "deploy_2.py", "--store", store, "--all", "--name", "benign")
    assert every.status == 0
    assert every.out.count("goes on  next receive#1") == 6
    assert "harmful" not in every.out
    same = shell("preflight", "deploy_1.py", "--store", store)
    assert (same.status, same.out) == (0, "benign   9 go on\nharmful  3 go on\n")
    partly = shell("preflight", "deploy_1.py:harmful", "--store", store)
    assert partly.status == 0
    assert "the program has no 'benign'" in partly.out
    assert "benign   9 need code that is not here\nharmful  3 go on\n" in partly.out
    none = shell("preflight", "deploy_1.py", "--store", store, "--name", "nobody")
    assert (none.status, none.out, none.err) == (0, "", "no open runs\n")
    assert shell("preflight", "deploy_2.py", "--store", store, "--json").status == 1


def test_a_preflight_of_code_that_waits_outside_says_that_nobody_can_tell(shell: Shell, monkeypatch: Any) -> None:
    """It is given up in bounded time, counts as a failure, and does not keep the others from being told."""
    monkeypatch.setattr("holdfast.engine.rehearsal._OUTSIDE_SECONDS", 0.05)
    write_programs(shell.folder)
    store = f"sqlite:///{shell.folder}/holdfast.db"
    asyncio.run(begin(store, shell.folder, working=True))
    program = (shell.folder / "deploy_1.py").read_text()
    stuck = program.replace(
        '    """Act twice, wait, act."""\n', "    await asyncio.get_running_loop().create_future()\n"
    )
    (shell.folder / "stuck.py").write_text(f"import asyncio\n{stuck}")
    ran = shell("preflight", "stuck.py", "--store", store)
    assert ran.status == 1
    assert ran.out.count("cannot be told  the code waits for something outside the run") == 3
    assert "benign   9 go on\nharmful  3 cannot be told\n" in ran.out


def test_a_preflight_wants_a_program_that_can_be_loaded_and_a_store_that_is_there(shell: Shell) -> None:
    """It makes neither: what is not there is said, with the exit status that says so to a script."""
    assert shell("preflight").status == 2
    assert shell("preflight", "nothing.py").status == 2
    assert shell("preflight", "program.py", "--store", "sqlite:///absent.db").status == 5
    assert not (shell.folder / "absent.db").exists()
