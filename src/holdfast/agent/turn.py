"""One turn of an agent as a fold over messages: the model is asked and its calls answered, until it has said all."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.agent.binding import find_stand, moved_to, refuse_bound, stored
from holdfast.agent.compaction import COMPACT
from holdfast.agent.exchanging import Exchanging
from holdfast.agent.generating import Generating
from holdfast.agent.hooking import Hooking
from holdfast.agent.output import ask_again
from holdfast.agent.reader import Misread
from holdfast.agent.voice import Voice, Voices
from holdfast.core.errors import Misuse, OutputInvalid, StepError, TurnLimit
from holdfast.core.message import TOOL, USER, Message, Text, ToolCall
from holdfast.core.transcript import entered, summary_message
from holdfast.engine.context import Context
from holdfast.engine.speech import Said
from holdfast.engine.talk import Talk

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

_AGAIN: Final = "again"
"""The name of the message that asks for another answer."""


class Turn:
    """A turn under way: what was said so far, and what may still be asked."""

    def __init__(self, agent: "Agent[Any]", context: Context) -> None:
        self._agent, self._context, self._talk = agent, context, Talk(context)
        if self._talk.drive.function is not agent:
            raise Misuse(f"an agent's turn is a run of its own: use ctx.run({agent.name}, message)")
        self._messages: list[Message] = []
        self._voices = Voices(agent, context, self._talk)
        self._asked = 0
        """How often the model was."""
        self._failed_to_compact = False
        self._wrong = 0
        """How many answers had not the form that was asked for."""

    async def take(self, message: str) -> Any:
        """Return the agent's answer to a message.

        Raises:
            TurnLimit: the model was asked as often as it may be.
            OutputInvalid: its answers have not the form that was asked for.
            StepError: it did not answer.
        """
        self._hooking = Hooking(self._agent.hooks, self._context, self._talk, message)
        try:
            return await self._take(message)
        except Exception as error:
            await self._hooking.fail(error)
            raise
        finally:
            await self._voices.close()

    async def _take(self, message: str) -> Any:
        talk = self._talk
        earlier = await talk.earlier()
        await self._bind(earlier.messages)
        self._messages = [*earlier.messages, Message(USER, (Text(message),))]
        voice = await self._voices.of(earlier.phase)
        while True:
            await self._compact(voice)
            self._messages += [said.message for said in await talk.heard()]
            said = await self._generate(voice.generating)
            if said.message.calls:
                voice = await self._answer(voice, said.message.calls)
            elif talk.next() is not None and not self._hooking.follows():
                # It went on from here: it was asked for another answer, or told something before the run ended.
                await self._replay_again()
            else:
                done, value = await self._finish(said)
                if done:
                    return value

    async def _bind(self, earlier: list[Message]) -> None:
        """Bind the turn to the agent's harness, or see that it is bound to none, before anything is done."""
        harness = self._agent.harness
        if harness is None:
            await refuse_bound(self._talk)
            return
        stand = await find_stand(self._talk, harness, earlier)
        if stand is not None:
            await self._talk.bind(moved_to(harness.name, stand), stored(harness.name, stand))

    async def _compact(self, voice: Voice) -> None:
        """Let a summary stand for what was said, once that is too long; what is no summary changes nothing.

        Before the first generation of a turn that is what was said in earlier ones; later it is all.
        """
        agent, talk, generating = self._agent, self._talk, voice.generating
        if isinstance(generating, Exchanging):
            return  # a harness has a memory of its own
        following = talk.next()
        wanted = following is None and self._is_long(generating) and not self._failed_to_compact
        if not wanted and (following is None or following.name != COMPACT):
            return
        replaced, kept = (self._messages[:-1], self._messages[-1:]) if self._asked == 0 else (self._messages, [])
        up_to = 0 if self._asked == 0 else talk.drive.journal.seq
        try:
            summary = await generating.summarise(talk, replaced, up_to, voice.phase)
        except StepError as error:
            self._failed_to_compact = True
            self._context.log.warning("a summary was refused", agent=agent.name, why=error.message)
            return
        self._messages = [summary_message(summary), *kept]

    def _is_long(self, generating: Generating) -> bool:
        limit = self._agent.compact_after
        return limit is not None and len(self._messages) > 2 and generating.tokens(self._messages) > limit

    async def _generate(self, generating: Generating | Exchanging) -> Said:
        agent = self._agent
        if self._hooking.has_failed():
            raise TurnLimit(agent=agent.name, limit=self._asked)  # as it did, whatever the limit is now
        if self._asked >= agent.turn_limit and self._talk.next() is None:
            raise TurnLimit(agent=agent.name, limit=agent.turn_limit)
        self._asked += 1
        if isinstance(generating, Exchanging):
            said = await generating.generate(self._messages)
        else:
            said = await generating.generate(self._talk, self._messages)
        self._messages.append(said.message)
        return said

    async def _answer(self, voice: Voice, calls: Sequence[ToolCall]) -> Voice:
        """Answer every call before anything else is sent, and return who has the word then.

        The results stand in the order of the calls.
        """
        answer = voice.answering.answer
        results = await self._talk.each([partial(answer, call) for call in calls], self._agent.tool_limit)
        self._messages.append(Message(TOOL, tuple(results)))
        phases = [phase for call, result in zip(calls, results, strict=True) if (phase := entered(call, result))]
        return await self._voices.of(phases[-1]) if phases and voice.phase else voice

    async def _finish(self, said: Said) -> tuple[bool, Any]:
        """End the turn with an answer; False where another is asked for, or something came up before the end."""
        agent, wrong = self._agent, None
        try:
            value = agent.output.read(said.message.text)
        except Misread as error:
            if not self._hooking.follows():
                await self._ask_again(str(error))
                return False, None
            # It had the form that was asked for then, or was refused for good: it is not asked for again.
            value, wrong = said.message.text, self._invalid(str(error))
        if self._talk.next() is None and self._hooking.acts and await self._talk.is_told():
            return False, None  # what hooks are told is kept elsewhere: only an answer that is the last is theirs
        value, codec = await self._hooking.complete(value, agent.output.codec, wrong)
        if self._hooking.has_failed():
            raise self._invalid("it was refused")
        if self._talk.next() is not None:
            await self._replay_again()  # it was told something before the run ended
            return False, None
        return await self._talk.end(said, value, codec), value

    def _invalid(self, wrong: str) -> OutputInvalid:
        return OutputInvalid(agent=self._agent.name, wrong=wrong, asked=self._wrong + 1)

    async def _ask_again(self, wrong: str) -> None:
        agent = self._agent
        self._wrong += 1
        if self._wrong > agent.output_limit:
            raise OutputInvalid(agent=agent.name, wrong=wrong, asked=self._wrong)
        again = await self._talk.put(_AGAIN, USER, [Text(ask_again(wrong))])
        self._messages.append(again.message)

    async def _replay_again(self) -> None:
        following = self._talk.next()
        if following is not None and following.is_message(_AGAIN):
            self._wrong += 1
            again = await self._talk.recorded()
            assert again is not None
            self._messages.append(again.message)
