"""Who has the word in a turn: the agent, or the phase that it is in, with what it is told and what it may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from holdfast.agent.answering import Answering
from holdfast.agent.exchanging import Exchanging
from holdfast.agent.generating import Generating
from holdfast.agent.harness import Start
from holdfast.agent.phases import enter_phase
from holdfast.agent.tool import FoundTool, Tool
from holdfast.core.transcript import ENTER_PHASE
from holdfast.engine.context import Context
from holdfast.engine.talk import Next, Talk

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

_TOOLS: Final = "tools "
"""How the names of steps begin that ask a toolset for its tools."""
_INSTRUCTIONS: Final = "instructions"


@dataclass(frozen=True, slots=True)
class Voice:
    """What stays the same while one has the word."""

    phase: str
    """Nothing where the agent has no phases."""
    generating: Generating | Exchanging
    answering: Answering


class Voices:
    """Those who may have the word in a turn; each is made when it first has it, and once."""

    def __init__(self, agent: "Agent[Any]", context: Context, talk: Talk) -> None:
        self._agent, self._context, self._talk = agent, context, talk
        self._found: Mapping[str, Sequence[Tool[..., Any]]] | None = None
        self._instructions = ""
        self._made: dict[str, Voice] = {}

    async def of(self, phase: str) -> Voice:
        """Return the voice of a phase; of the first one where there is none of that name."""
        agent = self._agent
        if agent.phases and phase not in agent.phases:
            if phase:
                self._context.log.warning("the agent has no such phase any more", agent=agent.name, phase=phase)
            phase = next(iter(agent.phases))
        known = self._made.get(phase)
        if known is None:
            known = self._made[phase] = await self._make(phase)
        return known

    async def close(self) -> None:
        """Let go of what this process holds for the turn; what was begun elsewhere goes on."""
        for voice in self._made.values():
            if isinstance(voice.generating, Exchanging):
                await voice.generating.close()

    async def _make(self, phase: str) -> Voice:
        agent = self._agent
        if self._found is None:
            self._found = await self._find_tools()
            self._instructions = await agent.instructions_for(self._context, self._talk, _INSTRUCTIONS)
        tools = self._tools(phase)
        generating = await self._prepare(phase, tools)
        return Voice(phase, generating, Answering(self._context, self._talk, tools, agent.approval_expires))

    async def _find_tools(self) -> Mapping[str, Sequence[Tool[..., Any]]]:
        """Return the tools that toolsets had when they were asked.

        A toolset is asked once in a run, before anything else. One that came to the agent later is not asked any more.
        """
        agent, talk = self._agent, self._talk
        found: dict[str, Sequence[Tool[..., Any]]] = {}
        missing = {name: one for each in (agent, *agent.phases.values()) for name, one in each.toolsets.items()}
        while missing or _is_toolset(talk.next()):
            following = talk.next()
            if following is not None and not _is_toolset(following):
                break
            name = next(iter(missing)) if following is None else unquote(following.name).removeprefix(_TOOLS)
            toolset = missing.pop(name, None)
            listed = await self._context.step(
                _nothing if toolset is None else toolset.find, name=f"{_TOOLS}{name}", returns=list[FoundTool],
                retry=agent.retry, on_input_change="keep",
            )  # fmt: skip
            if toolset is not None:
                found[name] = [toolset.make(one) for one in listed]
        return found

    def _tools(self, phase: str) -> Mapping[str, Tool[..., Any]]:
        """Return what may be called: the agent's own tools and its phase's, those of toolsets behind them."""
        agent = self._agent
        speakers = [agent, *([agent.phases[phase]] if phase else [])]
        tools = {name: one for each in speakers for name, one in each.tools.items()}
        for each in speakers:
            for name in each.toolsets:
                for one in (self._found or {}).get(name, ()):
                    tools.setdefault(one.name, one)
        if phase:
            tools[ENTER_PHASE] = enter_phase(agent.phases, phase)
        return tools

    async def _prepare(self, phase: str, tools: Mapping[str, Tool[..., Any]]) -> Generating | Exchanging:
        agent, specs = self._agent, [tool.spec for tool in tools.values()]
        if agent.harness is not None:
            row = self._talk.drive.lease.row
            start = Start(
                instructions=self._instructions, tools=specs, output=agent.output.schema, settings=agent.settings,
                workspace=agent.workspace, run=row.run, conversation=row.conversation,
            )  # fmt: skip
            return Exchanging(self._talk, agent.harness, start, agent.retry)
        speaker, instructions = agent, self._instructions
        if phase:
            speaker = agent.phases[phase]
            own = await speaker.instructions_for(self._context, self._talk, f"{_INSTRUCTIONS} {phase}")
            instructions = "\n\n".join(text for text in (instructions, own) if text)
        return Generating(
            model=await speaker.find_model(), instructions=instructions, tools=specs, output=agent.output.schema,
            settings={**agent.settings, **(speaker.settings if phase else {})}, retry=agent.retry,
        )  # fmt: skip


def _is_toolset(following: Next | None) -> bool:
    return following is not None and unquote(following.name).startswith(_TOOLS)


async def _nothing() -> list[FoundTool]:
    """Stand for a toolset that the agent has no more; what it had is recorded."""
    return []
