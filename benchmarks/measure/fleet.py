"""Several processes on one store: what they do together, how soon one starts, takes over or sees another's work."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Final

from benchmarks import environment
from benchmarks.figure import Figure, of
from benchmarks.holdfast_steps import count_apart, count_on_server
from benchmarks.measure.steps import PAYLOAD_BYTES, Warn
from benchmarks.process import Participant
from benchmarks.subject import Bench, Failed, scratch
from benchmarks.workload import JOINT, Load, Sample, expected

WORKERS: Final = (1, 2, 4)
RUNS: Final = 256
"""Of all workers on PostgreSQL together."""
FILE_RUNS: Final = 64
"""Of each worker on one SQLite file."""
HELD: Final = 1_000
PROBES: Final = 400
QUICK_PROBES: Final = 150
_STEPS: Final = "benchmarks.holdfast_steps"
_ROLES: Final = "benchmarks.holdfast_fleet"


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Measure all of it; what fails is reported and spoils nothing else."""
    figures: list[Figure] = []
    for one in (_workers, _workers_on_file, _claims, _takeover, _lag, _lag_on_file):
        try:
            figures += one(bench)
        except Failed as failure:
            warn(str(failure))
            what = (one.__doc__ or "").rstrip(".")
            figures.append(Figure(f"fleet.{one.__name__.strip('_')}", what, None, "", str(failure)))
    return figures


@contextmanager
def _folder() -> Iterator[Path]:
    directory = scratch(environment.prepared())
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _together(load: Load, processes: int) -> float:
    """Return the rate of so many processes that share the load's runs on one store.

    Raises:
        Failed: one did not come to its end, or the store does not hold every step that they made.
    """
    load = Load(load.directory, runs=load.runs // processes, seconds=load.seconds, variant=JOINT, address=load.address)
    with ExitStack() as ending:
        workers = [ending.enter_context(Participant(_STEPS, load.arguments())) for _ in range(processes)]
        for worker in workers:
            worker.wait_ready()
        for worker in workers:
            worker.go()
        samples = [Sample(**worker.sample()) for worker in workers]
    stored = count_on_server(load.address) if load.address else count_apart(load.directory / "holdfast.db")
    wanted = sum(expected(load, sample) for sample in samples)
    if stored != wanted:
        raise Failed(f"{processes} processes: {stored} steps in the store, {wanted} were made")
    return sum(sample.steps for sample in samples) / max(sample.seconds for sample in samples)


def _workers(bench: Bench) -> list[Figure]:
    """Steps of several worker processes on one PostgreSQL database."""
    assert bench.server is not None
    rates: dict[int, list[float]] = {processes: [] for processes in WORKERS}
    units: dict[int, list[float]] = {processes: [] for processes in WORKERS}
    for _ in range(bench.rounds):
        for processes in WORKERS:
            with _folder() as directory, bench.server.database() as address:
                before = bench.commit_rate()
                load = Load(directory, runs=RUNS, seconds=bench.seconds, payload_bytes=PAYLOAD_BYTES, address=address)
                rates[processes].append(_together(load, processes))
                units[processes].append(rates[processes][-1] / ((before + bench.commit_rate()) / 2))
    names = {count: f"{RUNS} runs in {count} worker process{'es' if count > 1 else ''}" for count in WORKERS}
    return [
        *(of(f"workers.{count}.rate", names[count], rates[count], "/s") for count in WORKERS),
        *(of(f"workers.{count}.commits", f"{names[count]}, in A2", units[count], "A2") for count in WORKERS),
    ]


def _workers_on_file(bench: Bench) -> list[Figure]:
    """Steps of two worker processes on one SQLite file."""
    cells = ((1, FILE_RUNS), (2, 2 * FILE_RUNS), (1, 2 * FILE_RUNS))
    rates: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    for _ in range(bench.rounds):
        for processes, runs in cells:
            with _folder() as directory:
                load = Load(directory, runs=runs, seconds=bench.seconds, payload_bytes=PAYLOAD_BYTES)
                rates[processes, runs].append(_together(load, processes))
    one, two, divided = (max(rates[cell]) for cell in cells)
    name = f"two workers on one SQLite file, {FILE_RUNS} runs each, of one"
    return [
        Figure("workers.file", f"{name} alone", two / one, "x", f"{two:,.0f}/s of {one:,.0f}/s"),
        Figure("workers.file.divided", f"{name} with all", two / divided, "x", f"{two:,.0f}/s of {divided:,.0f}/s"),
    ]


def _role(role: str, address: str, count: int) -> Participant:
    return Participant(_ROLES, [f"--role={role}", f"--address={address}", f"--count={count}"])


def _probes(bench: Bench) -> int:
    return QUICK_PROBES if bench.quick else PROBES


def _claims(bench: Bench) -> list[Figure]:
    """Time from starting a run in one process to its first line in another."""
    assert bench.server is not None
    count = _probes(bench)
    with bench.server.database() as address, _role("serve", address, count) as server:
        server.wait_ready()
        server.go()
        with _role("create", address, count) as creator:
            creator.wait_ready()
            creator.go()
            asked = creator.sample()["asked"]
            entered = server.sample()["entered"]
    return _middle_and_tail("claim", "started in one process, begun in another", _gaps(asked, entered))


def _takeover(bench: Bench) -> list[Figure]:
    """Time from a worker's death to the first and the last of its runs in another."""
    assert bench.server is not None
    with bench.server.database() as address, _role("victim", address, HELD) as victim:
        victim.wait_ready()
        with _role("taker", address, HELD) as taker:
            taker.wait_ready()
            taker.go()
            killed_at = victim.kill()
            found = taker.sample()
    entered, advanced = (sorted(found[what].values()) for what in ("entered", "advanced"))
    if entered[0] < killed_at:
        raise Failed("a run was taken over from a worker that lived")
    runs = f"of {HELD:,} runs of a killed worker"
    return [
        Figure("takeover.first", f"kill to the first new entry, {runs}", advanced[0] - killed_at, "s"),
        Figure("takeover.all", f"kill to the last claim, {runs}", entered[-1] - killed_at, "s"),
        Figure("takeover.advanced", f"kill to a new entry in each, {runs}", advanced[-1] - killed_at, "s"),
    ]


def _lag(bench: Bench) -> list[Figure]:
    """Time from an entry's record to a watcher in another process, on PostgreSQL."""
    assert bench.server is not None
    with bench.server.database() as address:
        return _watched("lag.postgres", "PostgreSQL", address, _probes(bench))


def _lag_on_file(bench: Bench) -> list[Figure]:
    """Time from an entry's record to a watcher in another process, on SQLite."""
    with _folder() as directory:
        return _watched("lag.sqlite", "SQLite", f"sqlite:///{directory / 'holdfast.db'}", _probes(bench))


def _watched(key: str, where: str, address: str, count: int) -> list[Figure]:
    with _role("write", address, count) as writer:
        writer.wait_ready()
        with _role("watch", address, count) as watcher:
            watcher.wait_ready()
            watcher.go()
            writer.go()
            recorded, seen = writer.sample()["recorded"], watcher.sample()["seen"]
    # The watcher may have an entry before the writer hears that it is recorded.
    gaps = [max(0.0, gap) for gap in _gaps(recorded, seen)]
    return _middle_and_tail(key, f"recorded in one process, seen in another, {where}", gaps)


def _gaps(begun: dict[str, float], ended: dict[str, float]) -> list[float]:
    return [ended[number] - at for number, at in begun.items()]


def _middle_and_tail(key: str, name: str, gaps: list[float]) -> list[Figure]:
    cuts = quantiles(gaps, n=100, method="inclusive")
    note = f"{len(gaps)} probes, the longest {max(gaps) * 1000:.1f} ms"
    return [
        Figure(f"{key}.p50", f"{name}, median", cuts[49] * 1000, "ms"),
        Figure(f"{key}.p99", f"{name}, 99th of 100", cuts[98] * 1000, "ms", note),
    ]
