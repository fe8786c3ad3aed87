"""Every error a user can meet, in one tree.

HoldfastError
├── RunError                 a run ended badly or rests where only a person can help
│   └── BudgetExceeded
├── UnknownPrice             a budget in dollars, and a model whose price nobody knows
├── StepError                a step failed
│   └── InDoubt              a `once` step whose outcome is unknown
├── ToolError                text for the model
├── TurnLimit                an agent asked its model as often as it may in one turn
├── OutputInvalid            an agent's answer has not the form that was asked for
├── Diverged                 the code asked for something other than the journal recorded
├── Conflict                 the same key with another input; an event id of another epoch
│   ├── AlreadyAnswered      a callback token whose wait was answered, otherwise
│   ├── Expired              a callback token whose wait is over
│   ├── ConversationBusy     a message that was not to wait for the turn under way
│   └── CheckpointOwned      a checkpoint that another loop has open
├── NotFound
├── InvalidInput             what was given cannot be taken
│   ├── InvalidValue         a value that cannot be stored exactly
│   ├── PayloadTooLarge
│   ├── BadCursor            malformed, ahead of the journal, or trimmed
│   └── Misuse               a verb called where it cannot work
└── StoreError
    ├── StoreUnavailable     locked, full, read-only, failing
    │   ├── StoreClosed      closed in this process before it was asked
    │   └── NoStore          nothing is there
    ├── StoreRefused         not ours, newer than this version, or corrupt
    ├── Damaged              one run's rows do not add up
    └── UnknownEntry         an entry that this version cannot read
"""

from typing import Any, ClassVar

from holdfast.core.plural import counted


class HoldfastError(Exception):
    """The root of Holdfast's errors: `code` is stable, `hint` says what to do next."""

    code: ClassVar[str] = "error"
    hint: str = ""

    # Python prints these below a traceback; the hint stands last, as it is by then.
    @property
    def __notes__(self) -> list[str]:
        return [*self._notes(), *([self.hint] if self.hint else [])]

    @__notes__.setter
    def __notes__(self, notes: list[str]) -> None:
        self._notes()[:] = [note for note in notes if note != self.hint]

    def add_note(self, note: str, /) -> None:
        """Add a line to what is printed of the error."""
        if not isinstance(note, str):
            raise TypeError(f"a note is text, not {type(note).__name__}")
        self._notes().append(note)

    def _notes(self) -> list[str]:
        added: list[str] = self.__dict__.setdefault("_added", [])
        return added

    def data(self) -> dict[str, Any]:
        """Return the error's own fields, for JSON."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "hint"}


class RunError(HoldfastError):
    """A run failed, was cancelled, or rests until somebody helps."""

    code = "run_error"
    hint = "`holdfast show RUN` tells what happened."

    def __init__(self, *, run: str, status: str, reason: str, error: dict[str, Any] | None = None) -> None:
        super().__init__(f"run {run} is {status}: {reason}")
        self.run, self.status, self.reason, self.error = run, status, reason, error


class BudgetExceeded(RunError):
    """A run has used up its budget, and rests until it is raised."""

    code = "budget_exceeded"
    hint = "Raise it, and the run goes on: `run.raise_budget(steps=…, usd=…)` or `holdfast raise RUN steps=…`."

    def __init__(self, *, run: str, status: str, reason: str, error: dict[str, Any] | None = None) -> None:
        super().__init__(run=run, status=status, reason=reason, error=error)
        self.channel = reason.partition(":")[0]
        """What it lacks: steps, calls, tokens, usd or deadline."""


class UnknownPrice(HoldfastError):
    """A run has a budget in dollars, and nobody knows what its model costs."""

    code = "unknown_price"
    hint = (
        "Install holdfast[prices], name the model as its provider does, or limit tokens= instead. With "
        "HOLDFAST_UNPRICED=allow it may go on: then what it costs is unknown, and no dollars are set aside."
    )

    def __init__(self, *, model: str) -> None:
        super().__init__(f"the price of {model} is unknown, and the run's budget is in dollars")
        self.model = model


class StepError(HoldfastError):
    """A step failed; the same error is raised live and on every replay."""

    code = "step_error"
    hint = "Catch hf.StepError around the step, or give it `retry=`."

    def __init__(self, *, step: str, type: str, message: str, attempts: int = 1) -> None:
        super().__init__(f"step {step} failed after {counted(attempts, 'attempt')}: {type}: {message}")
        self.step, self.type, self.message, self.attempts = step, type, message, attempts


class InDoubt(StepError):
    """A `once` step whose outcome is unknown: it may or may not have happened."""

    code = "in_doubt"
    hint = (
        'Look at the outside world. `verify=` lets the step look by itself; with `in_doubt="wait"` it waits '
        "for `holdfast resolve RUN STEP`."
    )

    def __init__(self, *, step: str = "", type: str = "InDoubt", message: str = "unknown", attempts: int = 1) -> None:
        super().__init__(step=step, type=type, message=message, attempts=attempts)
        self.args = (f"step {step} may or may not have happened: {message}",)


class ToolError(HoldfastError):
    """Raised by a tool to tell the model, in words, what went wrong."""

    code = "tool_error"


class TurnLimit(HoldfastError):
    """An agent asked its model as often as it may in one turn, and has no answer."""

    code = "turn_limit"
    hint = "Look at what it does with `holdfast show RUN`; give it `turn_limit=` and retry the run, which goes on."

    def __init__(self, *, agent: str, limit: int) -> None:
        super().__init__(f"{agent} asked its model {counted(limit, 'time')} and has no answer")
        self.agent, self.limit = agent, limit


class OutputInvalid(HoldfastError):
    """An agent's answer has not the form that `output=` asks for, and asking again did not help."""

    code = "output_invalid"
    hint = "Give the agent a simpler `output=`, say in its instructions what you want, or raise `output_limit=`."

    def __init__(self, *, agent: str, wrong: str, asked: int) -> None:
        times = counted(asked, "time")
        super().__init__(f"the answer of {agent}, asked for {times}, is not what it should be: {wrong}")
        self.agent, self.wrong, self.asked = agent, wrong, asked


class Diverged(HoldfastError):
    """The code asked for something other than what its journal recorded."""

    code = "diverged"
    hint = (
        "The code changed under a live run. Run the version that wrote it; or let the new one say what it does about "
        "old runs: `ctx.patched` for another path, `aliases=` for another name, `on_input_change=` for another input."
    )

    def __init__(self, *, seq: int, recorded: str, asked: str) -> None:
        super().__init__(f"entry {seq} recorded {recorded} but the code asked for {asked}")
        self.seq, self.recorded, self.asked = seq, recorded, asked


class Conflict(HoldfastError):
    """What was asked contradicts what is already there."""

    code = "conflict"
    hint = "Use another key, or the input that the key was first used with."

    def __init__(
        self, message: str, *, run: str | None = None, differs: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.run, self.differs = run, differs
        if hint is not None:
            self.hint = hint


class AlreadyAnswered(Conflict):
    """The wait of a callback token was answered before, and not so."""

    code = "already_answered"
    hint = "The first answer stands; `holdfast show RUN` tells what it was."


class Expired(Conflict):
    """The wait of a callback token is over: its time has passed, or its run has ended or gone on without it."""

    code = "expired"
    hint = "Nobody waits for it any more; whatever sent the token can send another."


class ConversationBusy(Conflict):
    """A turn of the conversation is open, and the message was to be rejected then."""

    code = "conversation_busy"
    hint = 'Send it again when the turn has ended, or with if_busy="queue", "steer" or "interrupt".'

    def __init__(self, *, conversation: str) -> None:
        super().__init__(f"a turn of conversation {conversation!r} is under way")
        self.conversation = conversation


class CheckpointOwned(Conflict):
    """A checkpoint is open already: one loop at a time has it."""

    code = "checkpoint_owned"
    hint = "Let that loop end, or stop its process: what it saved is there, and the next one that opens it goes on."

    def __init__(self, *, checkpoint: str, run: str, owner: str, host: str | None, pid: int | None) -> None:
        where = f"process {pid} on {host}" if host is not None and pid is not None else f"worker {owner}"
        super().__init__(f"checkpoint {checkpoint!r} is open in {where}", run=run)
        self.checkpoint, self.owner, self.host, self.pid = checkpoint, owner, host, pid


class NotFound(HoldfastError):
    """There is no such run, step, blob or worker here."""

    code = "not_found"
    hint = "`holdfast ls` lists what is here; check --store."

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was not found")
        self.what = what


class InvalidInput(HoldfastError, ValueError):
    """What was given cannot be taken; a ValueError too, as Python programs expect of a wrong value."""

    code = "invalid_input"


class InvalidValue(InvalidInput):
    """A value that cannot be stored and read back exactly."""

    code = "invalid_value"
    hint = "Pass plain data (anything msgspec or pydantic round-trips); build clients and pools in App(deps=)."


class PayloadTooLarge(InvalidInput):
    """A payload over the limit."""

    code = "payload_too_large"
    hint = "Store it elsewhere and pass a reference."

    def __init__(self, what: str, *, size: int, limit: int) -> None:
        super().__init__(f"{what} is {size:,} bytes; the limit is {limit:,}")
        self.what, self.size, self.limit = what, size, limit


class BadCursor(InvalidInput):
    """An event id that this feed cannot continue from."""

    code = "bad_cursor"
    hint = "Use an id that this run's feed sent, or none to begin at the start."

    def __init__(self, cursor: str, why: str) -> None:
        super().__init__(f"cursor {cursor!r} {why}")
        self.cursor, self.why = cursor, why


class Misuse(InvalidInput):
    """A verb called where it cannot work."""

    code = "misuse"


class StoreError(HoldfastError):
    """The store could not do what it was asked."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be reached or written now: locked, full, read-only or failing."""

    code = "store_unavailable"
    hint = "Nothing acknowledged is lost. Mend the disk or the database; runs go on when it answers again."


class StoreClosed(StoreUnavailable):
    """The store was closed in this process before it was asked."""

    code = "store_closed"
    hint = "Ask before it is closed, inside of the `with` block, or open it again; nothing that was recorded is lost."

    def __init__(self, store: object) -> None:
        super().__init__(f"{store} is closed")


class NoStore(StoreUnavailable):
    """There is nothing at the store's address, and what was asked does not make one."""

    code = "no_store"
    hint = "Check --store and HOLDFAST_STORE; the first run of a program makes its store."


class StoreRefused(StoreError):
    """The store is not ours, is newer than this version, or is corrupt as a whole."""

    code = "store_refused"
    hint = "Check the address. A newer store needs a newer Holdfast; a corrupt one, a backup."


class Damaged(StoreError):
    """One run's rows do not add up; the run is set aside and the others go on."""

    code = "damaged"
    hint = "`holdfast verify` names every damaged run; the others go on. Restore it from a backup."

    def __init__(self, *, run: str, seq: int | None, what: str) -> None:
        where = f"run {run}" + (f", entry {seq}" if seq else "")
        super().__init__(f"{where}: {what}" if run else what)
        self.run, self.seq, self.what_is_wrong = run, seq, what


class UnknownEntry(StoreError):
    """An entry of a kind or version that this Holdfast cannot read."""

    code = "unknown_entry"
    hint = "It was written by a newer Holdfast: upgrade the one that reads it."

    def __init__(self, *, kind: str, version: int) -> None:
        super().__init__(f"entry kind {kind!r} version {version} is not known here")
        self.kind, self.version = kind, version


class Unwind(BaseException):
    """Control flow, not failure. A BaseException so `except Exception` in agent code cannot eat it."""


class Parked(Unwind):
    """The run rests; its code is left here and starts from the top when it wakes."""


class Lost(Unwind):
    """The lease is gone: whatever this process does for the run from now on is not recorded."""
