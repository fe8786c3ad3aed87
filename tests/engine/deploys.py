"""Runs that rest in every way, and the ways in which their code may change meanwhile."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import holdfast as hf
from holdfast.engine.preflight import Verdict

GO = hf.Signal("go", str)
RESTS = ("signal", "ask", "sleep", "child", "branches")
performed: list[tuple[str, str]] = []
"""What was really done: for whom, and what."""
Part = Callable[[hf.Context, str], Awaitable[Any]]


async def a(who: str) -> str:
    performed.append((who, "a"))
    return "a"


async def b(who: str) -> str:
    performed.append((who, "b"))
    return "b"


async def c(who: str) -> str:
    performed.append((who, "c"))
    return "c"


@hf.step(name="a")
async def a_anew(who: str) -> str:
    """Do what `a` does, otherwise."""
    performed.append((who, "a anew"))
    return "another result"


@hf.step(name="a")
async def a_number(who: str) -> int:
    """Be `a` with a result that what it recorded is not."""
    performed.append((who, "a number"))
    return 7


@hf.step(name="a")
async def a_maybe(who: str) -> str | None:
    """Be `a` with a result that what it recorded is, too."""
    performed.append((who, "a maybe"))
    return None


@hf.step(aliases=["a"])
async def alpha(who: str) -> str:
    """Be `a` under another name."""
    performed.append((who, "alpha"))
    return "alpha"


async def last(who: str) -> str:
    performed.append((who, "last"))
    return "done"


@hf.durable
async def lull(ctx: hf.Context) -> str:
    """Wait, as somebody's child."""
    return await ctx.receive(GO)


async def rest(ctx: hf.Context, how: str) -> None:
    """Wait in one of the ways that there are."""
    match how:
        case "signal":
            await ctx.receive(GO)
        case "ask":
            await ctx.ask("Go on?")
        case "sleep":
            await ctx.sleep(3600)
        case "child":
            await ctx.run(lull)
        case _:
            await ctx.gather(ctx.receive(GO), ctx.sleep(3600))


# What the code did before it came to rest, in its versions


async def serial(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who)
    await ctx.step(b, who)


async def spaced(ctx: hf.Context, who: str) -> None:
    """Do the same, with a word about it."""

    await ctx.step(a, who)  # first this

    await ctx.step(b, who)  # and then that


async def swapped(ctx: hf.Context, who: str) -> None:
    await ctx.step(b, who)
    await ctx.step(a, who)


async def renamed(ctx: hf.Context, who: str) -> None:
    await ctx.step(c, who)
    await ctx.step(b, who)


async def aliased(ctx: hf.Context, who: str) -> None:
    await ctx.step(alpha, who)
    await ctx.step(b, who)


async def inserted(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who)
    await ctx.step(c, who)
    await ctx.step(b, who)


async def patched(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who)
    if ctx.patched("c"):
        await ctx.step(c, who)
    await ctx.step(b, who)


async def shorter(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who)


async def parallel(ctx: hf.Context, who: str) -> None:
    await ctx.gather(ctx.step(a, who), ctx.step(b, who))


async def wider(ctx: hf.Context, who: str) -> None:
    await ctx.gather(ctx.step(a, who), ctx.step(b, who), ctx.step(c, who))


async def shouting(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who.upper())
    await ctx.step(b, who)


async def keeping(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who.upper(), on_input_change="keep")
    await ctx.step(b, who)


async def careful(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who, effect="once")
    await ctx.step(b, who, effect="keyed")


async def anew(ctx: hf.Context, who: str) -> None:
    await ctx.step(a_anew, who)
    await ctx.step(b, who)


async def counting(ctx: hf.Context, who: str) -> None:
    await ctx.step(a_number, who)
    await ctx.step(b, who)


async def doubtful(ctx: hf.Context, who: str) -> None:
    await ctx.step(a_maybe, who)
    await ctx.step(b, who)


async def fails(ctx: hf.Context, who: str) -> None:
    await ctx.step(a, who)
    raise LookupError("a slip of the new release")


async def child_instead(ctx: hf.Context, who: str) -> None:
    await ctx.spawn(lull)
    await ctx.step(b, who)


def tale(name: str, before: Part, *, aliases: tuple[str, ...] = (), extra: bool = False) -> Any:
    """Return a durable function that does its part, rests, and does one thing more."""

    async def code(ctx: hf.Context, who: str, how: str) -> str:
        await before(ctx, who)
        await rest(ctx, how)
        if extra:
            await ctx.step(c, who)
        return await ctx.step(last, who)

    return hf.durable(name=name, aliases=aliases)(code)


def begun_anew(name: str, before: Part) -> Any:
    """Return one that has forgotten what it did before it came to rest."""

    async def code(ctx: hf.Context, who: str, how: str, round: int = 0) -> str:
        await (serial if round == 0 else before)(ctx, who)
        if round == 0:
            await ctx.continue_as(who, how, 1)
        await rest(ctx, how)
        return await ctx.step(last, who)

    return hf.durable(name=name)(code)


def with_number(name: str) -> Any:
    """Return one whose input is not what the runs under way have."""

    async def code(ctx: hf.Context, who: int, how: str) -> str:
        await rest(ctx, how)
        return str(who)

    return hf.durable(name=name)(code)


def with_default(name: str) -> Any:
    """Return one with a parameter more, which need not be given."""

    async def code(ctx: hf.Context, who: str, how: str, tone: str = "kind") -> str:
        await serial(ctx, who)
        await rest(ctx, how)
        return await ctx.step(last, who)

    return hf.durable(name=name)(code)


@dataclass(frozen=True)
class Change:
    """One way in which code changes under its runs, and what it comes to."""

    name: str
    verdict: Verdict
    old: Any
    new: Any
    pin: bool = False


def _change(name: str, verdict: Verdict, new: Part, old: Part = serial, *, pin: bool = False) -> Change:
    return Change(name, verdict, tale(name, old), tale(name, new), pin)


GOES_ON, REFUSED, PINNED = Verdict.GOES_ON, Verdict.REFUSED, Verdict.PINNED
CHANGES = [
    _change("white space", GOES_ON, spaced),
    _change("step renamed", REFUSED, renamed),
    _change("step renamed with alias", GOES_ON, aliased),
    _change("reordered", REFUSED, swapped),
    _change("inserted", REFUSED, inserted),
    _change("inserted by patched", GOES_ON, patched),
    _change("deleted", REFUSED, shorter),
    _change("arguments changed", REFUSED, shouting),
    _change("arguments changed and kept", GOES_ON, keeping),
    _change("effect changed", GOES_ON, careful),
    _change("serial to parallel", REFUSED, parallel),
    _change("parallel to serial", REFUSED, serial, parallel),
    _change("a branch more", REFUSED, wider, parallel),
    _change("body of a step", GOES_ON, anew),
    _change("return type to another", REFUSED, counting),
    _change("return type to a wider", GOES_ON, doubtful),
    _change("fails early", REFUSED, fails),
    _change("step to child", REFUSED, child_instead),
    _change("pinned", PINNED, renamed, pin=True),
    Change("appended", GOES_ON, tale("appended", serial), tale("appended", serial, extra=True)),
    Change("function renamed", Verdict.UNSERVED, tale("function renamed", serial), tale("otherwise", serial)),
    Change(
        "function renamed with alias", GOES_ON, tale("function renamed with alias", serial),
        tale("called otherwise", serial, aliases=("function renamed with alias",)),
    ),
    Change("parameter changed", REFUSED, tale("parameter changed", serial), with_number("parameter changed")),
    Change("parameter added", GOES_ON, tale("parameter added", serial), with_default("parameter added")),
    Change("before a new beginning", GOES_ON, begun_anew("before a new beginning", serial),
           begun_anew("before a new beginning", spaced)),
    Change("after a new beginning", REFUSED, begun_anew("after a new beginning", serial),
           begun_anew("after a new beginning", swapped)),
]  # fmt: skip
