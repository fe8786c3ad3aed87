"""Trees of branches, recorded in any interleaving, replay in any other; a changed tree is refused."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.errors import Diverged
from holdfast.core.stepkey import branch_path, counted_key, set_path
from holdfast.journal import replay as r
from tests.unit.facts import DIGEST, LEAST, completed
from tests.unit.test_fold import placed

Program = Sequence[Any]
"""What a branch does in turn: a name is a step, a list is a set of branches, each a program."""

programs = st.recursive(
    st.lists(st.sampled_from("abc"), max_size=3),
    lambda inner: st.lists(st.sampled_from("abc") | st.lists(inner, min_size=1, max_size=3), max_size=3),
    max_leaves=8,
)
chances = st.randoms(use_true_random=False)


class Task:
    """A branch's code under way, and the set that it waits for."""

    def __init__(self, path: str, program: Program, parent: "Task | None" = None) -> None:
        self.path, self.parent, self.open = path, parent, 0
        self.moves = self._run(program)

    def _run(self, program: Program) -> Iterator[str | tuple[str, Program]]:
        counts: Counter[str] = Counter()
        for item in program:
            name = item if isinstance(item, str) else "gather"
            counts[name] += 1
            yield counted_key(self.path, name, counts[name]) if isinstance(item, str) else (
                set_path(self.path, name, counts[name]), item,
            )  # fmt: skip


def play(
    program: Program,
    chance: Random,
    ask: Callable[[str, str], None],
    begin: Callable[[str, list[str]], None] = lambda branch_set, paths: None,
    end: Callable[[str], None] = lambda path: None,
) -> None:
    """Let a program's branches go on beside each other as chance will have it."""
    ready = [Task("0", program)]
    while ready:
        task = ready[chance.randrange(len(ready))]
        move = next(task.moves, None)
        if isinstance(move, str):
            ask(task.path, move)
        elif move is not None:
            paths = [branch_path(move[0], place) for place in range(1, len(move[1]) + 1)]
            begin(move[0], paths)
            task.open = len(paths)
            if paths:
                ready.remove(task)
            ready += [Task(path, inner, task) for path, inner in zip(paths, move[1], strict=True)]
        else:
            ready.remove(task)
            if task.parent is not None:
                end(task.path)
                task.parent.open -= 1
                if not task.parent.open:
                    ready.append(task.parent)


def recorded(program: Program, chance: Random) -> list[e.Entry]:
    """Return the journal of a program, each step's value being its own key."""
    keys: list[str] = []
    play(program, chance, lambda path, key: keys.append(key))
    steps = (completed(key, f'"{key}"'.encode()) for key in keys)
    return [placed(entry, seq) for seq, entry in enumerate((LEAST[0], *steps), start=1)]


@given(programs, chances, chances, st.integers(0, 40))
def test_branches_recorded_in_any_interleaving_replay_in_any_order(
    program: Program, first: Random, second: Random, cut: int
) -> None:
    """Wherever the journal was cut: every record is given to its own step, the rest is fresh, and nothing is left."""
    journal = recorded(program, first)[: cut + 1]
    replay, given_out, fresh = r.replay_of(journal), list[str](), list[str]()

    def ask(path: str, key: str) -> None:
        answer = replay.ask(path, key, DIGEST, "a step")
        if answer is r.FRESH:
            fresh.append(key)
        else:
            assert answer == r.Recorded(Raw(f'"{key}"'.encode()), None)
            given_out.append(key)
        assert replay.replaying == (len(given_out) < len(journal) - 1)

    play(program, second, ask, replay.begin, replay.end)
    replay.finish()
    assert sorted(given_out) == sorted(entry.step for entry in journal[1:] if isinstance(entry, e.StepCompleted))
    assert len(given_out) + len(fresh) == len(recorded(program, first)) - 1


def changes(program: Program) -> Iterator[Program]:
    """Return every program that is one change away: a step taken away, added or renamed, a branch taken or added."""
    for place, item in enumerate(program):
        before, after = list(program[:place]), list(program[place + 1 :])
        if isinstance(item, str):
            yield [*before, *after]
            yield [*before, "new", item, *after]
            yield [*before, "new", *after]
            yield [*before, [[item]], *after]
        else:
            yield [*before, [*item, ["new"]], *after]
            yield [*before, *(step for branch in item for step in branch), *after]
            for branch in range(len(item)):
                yield [*before, [*item[:branch], *item[branch + 1 :]], *after]
                for changed in changes(item[branch]):
                    yield [*before, [*item[:branch], changed, *item[branch + 1 :]], *after]
    yield [*program, "new"]


def shape(program: Program) -> list[str]:
    """Return all that a journal can know of a program: its keys."""
    return sorted(entry.step for entry in recorded(program, Random(0)) if isinstance(entry, e.StepCompleted))


@given(programs, chances, chances)
def test_a_changed_tree_is_refused_before_anything_new_wherever_it_changed(
    program: Program, first: Random, second: Random
) -> None:
    """A step behind the tree was recorded, so that all in front of it had ended: nothing there can be fresh."""
    journal = recorded([*program, "last"], first)
    for changed in changes(program):
        if shape(changed) == shape(program):
            continue  # it does the same under the same keys
        replay = r.replay_of(journal)

        def ask(path: str, key: str, replay: r.Replay = replay) -> None:
            assert replay.ask(path, key, DIGEST, "a step") is not r.FRESH

        with pytest.raises(Diverged):
            play([*changed, "last", "fresh"], second, ask, replay.begin, replay.end)
