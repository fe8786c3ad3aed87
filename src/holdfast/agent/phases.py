"""The phases of an agent: one at a time has the word, and the model itself says when another shall."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from holdfast.agent.tool import Tool, tool
from holdfast.core.errors import InvalidInput
from holdfast.core.hooks import Hooks
from holdfast.core.transcript import ENTER_PHASE

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

Phases = dict[str, "Agent[Any]"]
"""By name, in order; empty for an agent that has none."""


def checked_phases(agent: "Agent[Any]", phases: Sequence[Any]) -> Phases:
    """Return the phases of an agent by name.

    Raises:
        InvalidInput: they are not agents whose instructions, tools and models could be taken.
    """
    named: Phases = {}
    for phase in phases:
        wrong = _wrong(phase)
        if wrong:
            raise InvalidInput(f"phases= takes agents: {wrong}")
        if named.setdefault(phase.name, phase) is not phase:
            raise InvalidInput(f"two phases are called {phase.name!r}")
        if twice := sorted({ENTER_PHASE, *agent.tools} & set(phase.tools)):
            raise InvalidInput(f"phase {phase.name!r} may not have a tool called {twice[0]!r} of its own")
    if len(named) == 1:
        raise InvalidInput("phases= takes at least two agents; one alone is the agent")
    if named and ENTER_PHASE in agent.tools:
        raise InvalidInput(f"a tool of an agent with phases cannot be called {ENTER_PHASE!r}: that enters a phase")
    return named


def _wrong(phase: Any) -> str:
    """Return why something cannot be a phase; of what is only for whole turns the agent has its own."""
    if not hasattr(phase, "toolsets"):
        return f"{phase!r} is none"
    if phase.harness is not None:
        return f"{phase.name!r} has a harness, which keeps a memory of its own"
    if phase.phases:
        return f"{phase.name!r} has phases itself"
    given = {
        "output": phase.output.schema,
        "hooks": phase.hooks if phase.hooks != Hooks() else None,
        "budget": phase.budget,
        "compact_after": phase.compact_after,
    }
    of_turns = [f"{name}=" for name, value in given.items() if value is not None]
    return f"{phase.name!r} has {', '.join(of_turns)} which the agent itself has for all of them" if of_turns else ""


def enter_phase(phases: Phases, current: str) -> Tool[..., Any]:
    """Return the tool by which the model enters one of the other phases."""
    others = {name: phase for name, phase in phases.items() if name != current}
    about = "\n".join(f"- {name}: {phase.description}".removesuffix(": ") for name, phase in others.items())

    def enter(phase: str) -> str:
        return f"The phase is {phase} now."

    enter.__annotations__["phase"] = Literal[tuple(others)]
    description = f"Go over to another phase of this conversation, with instructions and tools of its own:\n{about}"
    made: Tool[..., Any] = tool(name=ENTER_PHASE, description=description, effect="repeat")(enter)
    return made
