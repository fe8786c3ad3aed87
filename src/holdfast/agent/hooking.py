"""The end of a turn: its hooks as recorded steps, of which none masks how the turn came out."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from holdfast.core.codec import Codec, encode
from holdfast.core.errors import InvalidInput, InvalidValue, StepError
from holdfast.core.hooks import HOOK, HOOK_FAILED, Hooks, Outcome
from holdfast.engine.context import Context
from holdfast.engine.talk import Talk

_ANY: Final = Codec(Any)


class Hooking:
    """The hooks of one turn."""

    def __init__(self, hooks: Hooks, context: Context, talk: Talk, message: str) -> None:
        self._hooks, self._context, self._talk, self._message = hooks, context, talk, message

    @property
    def acts(self) -> bool:
        """True where there is a hook at all."""
        hooks = self._hooks
        return any(hook is not None for hook in (hooks.transform, hooks.persist, hooks.on_complete, hooks.flush))

    def follows(self) -> bool:
        """Say whether a hook is what is recorded next."""
        return self._next().startswith(HOOK)

    def has_failed(self) -> bool:
        """Say whether a hook of a turn that failed is what is recorded next: then it fails again."""
        return self._next().startswith(HOOK_FAILED)

    def _next(self) -> str:
        following = self._talk.next()
        return unquote(following.name) if following is not None else ""

    async def complete(self, value: Any, codec: Codec, wrong: Exception | None = None) -> tuple[Any, Codec]:
        """End a turn that has its answer; return the one that counts, and the type it is kept as.

        An answer is `wrong` that had its form when its hooks were called: what they recorded is passed through, and
        what they made of it counts.

        Raises:
            StepError: a hook failed, and that is to end the turn.
            Exception: `wrong`, where nothing right was made of the answer.
        """
        recorded = self.follows()
        returns = Any if recorded else codec.annotation
        changed = await self._perform("transform", self._hooks.transform, value, returns=returns, new=wrong is None)
        if changed is not None:
            value, codec = _typed(changed, codec) if recorded else (changed, codec)
            wrong = None
        outcome = self._outcome(result=value)
        await self._perform("persist", self._hooks.persist, outcome, new=wrong is None)
        await self._perform("on_complete", self._hooks.on_complete, outcome, new=wrong is None)
        await self._perform("flush", self._hooks.flush, new=wrong is None)
        if wrong is not None and (self.has_failed() or not self._next()):
            raise wrong  # unless it went on from here: it was told something before the run ended
        return value, codec

    async def fail(self, error: Exception) -> None:
        """End a turn that failed; whatever a hook does, the error stays the turn's."""
        outcome = self._outcome(error=f"{type(error).__name__}: {error}")
        await self._perform("on_complete", self._hooks.on_complete, outcome, begins=HOOK_FAILED)
        await self._perform("flush", self._hooks.flush, begins=HOOK_FAILED)

    def _outcome(self, **how: Any) -> Outcome:
        row = self._talk.drive.lease.row
        return Outcome(run=row.run, conversation=row.conversation, message=self._message, **how)

    async def _perform(
        self, name: str, hook: Callable[..., Any] | None, *args: Any, returns: Any = None, begins: str = HOOK,
        new: bool = True,
    ) -> Any:  # fmt: skip
        """Perform a hook, or return what is recorded of it; one that may not be `new` only if something is."""
        step, following = f"{begins}{name}", self._next()
        # A hook that came later does not follow what went on without it; one that is gone leaves its record.
        if following != step and (hook is None or following or not new):
            return None
        said = {"returns": returns} if returns is not None else {}
        try:
            return await self._context.step(
                hook or _gone, *args, name=step, on_input_change="keep", **said
            )  # fmt: skip
        except (StepError, InvalidInput) as error:
            # As it went on then, whatever is said of it now.
            fails = self.has_failed() if self._next() else self._hooks.on_error == "fail"
            if fails and begins == HOOK:
                raise
            self._context.log.warning("a hook failed, and the turn is as it was", hook=name, error=str(error))
            return None


def _typed(value: Any, codec: Codec) -> tuple[Any, Codec]:
    """Return plain data as what it is of a type, and that; as it is where it is not of that type."""
    try:
        return codec.decode(encode(value)), codec
    except InvalidValue:
        return value, _ANY


async def _gone(*args: Any) -> None:
    """Stand for a hook that the agent has no more."""
