"""The stated bounds: what is larger is refused at once, by name."""

from typing import Final

KEY_BYTES: Final = 512
NAME_BYTES: Final = 256
ADDRESS_BYTES: Final = 4096
TENANT_BYTES: Final = 128
LABEL_BYTES: Final = 4096
"""All labels of a run together, encoded."""
STEP_KEY_BYTES: Final = 1024
INLINE_BYTES: Final = 64 * 1024
"""A payload up to this size stands in its entry; a larger one becomes a blob."""
PAYLOAD_BYTES: Final = 16 * 1024 * 1024
NESTING: Final = 200
"""How deep lists and objects may nest in a payload."""
TOOL_RESULT_BYTES: Final = 32 * 1024
"""What a model is told of one result of a tool; of a larger one it is told the beginning."""
ERROR_BYTES: Final = 16 * 1024
"""An error's message is cut to this size in the journal."""
TRACE_BYTES: Final = 4 * 1024
"""Where an error was raised is cut to this size in the journal, from its beginning."""
PAGE_ENTRIES: Final = 512
PAGE_BYTES: Final = 1024 * 1024
"""A page of entries ends at whichever comes first; a single larger entry is a page of its own."""
QUESTION_BYTES: Final = 4096
"""The text of a question; what is shown beside it is a payload."""
STALLS: Final = 5
"""Claims without progress after which a run is quarantined."""
DURATION_SECONDS: Final = 100.0 * 366 * 24 * 3600
"""The longest delay, timeout or pause between attempts."""
RETRY_AFTER_SECONDS: Final = 300.0
"""The longest that an error's own wish puts off the next attempt."""
LEASE_SECONDS: Final = 10.0
"""How long a worker's pulse must have stood still before others take its runs, where its lock tells nothing."""
GRACE_SECONDS: Final = 30.0
"""How long a worker that leaves lets its runs come to their next entry."""
IN_FLIGHT_SECONDS: Final = 60.0
"""How long a request of a `once` step without a timeout may still act after its sender died."""
TRANSACTION_SECONDS: Final = 5.0
LATE_SECONDS: Final = 300.0
"""How late a schedule's tick may be started whatever is declared for missed ones; an older tick was missed."""
MISSED_TICKS: Final = 1000
"""How many ticks of a schedule are looked back on, and started at most, when nobody was there."""
SLOTS: Final = 10_000
"""How many steps a limit may let be under way at once."""
STARTS: Final = 100_000
"""How many starts a limit may count in its span of time; each is a row."""
BUDGET_STEPS: Final = 1_000_000_000
"""How many steps, or model calls, a budget may allow."""
TOKENS: Final = 1_000_000_000_000
"""How many tokens it may allow."""
USD: Final = 1_000_000
"""How many US dollars it may allow."""
PRIORITY: Final = 1_000
"""A priority lies between this number below zero and this number."""
REPLY_BYTES: Final = 64 * 1024 * 1024
"""How much one reply of a model may be on the wire; a larger one is cut."""
REQUEST_BYTES: Final = PAYLOAD_BYTES + 64 * 1024
"""The body of a request: a payload, and what is said around it."""
HEADER_BYTES: Final = 16 * 1024
"""All headers of a request, and its address, each."""
TOKEN_BYTES: Final = 16
"""The least that a server's token has."""
PAGE_RUNS: Final = 1000
"""How many runs a page of them has at most."""
OPEN_STREAMS: Final = 1000
"""How many streams a server has open at once."""
SLOW_SECONDS: Final = 30.0
"""How long a stream waits for a reader that takes nothing, before it is cut."""
ALIVE_SECONDS: Final = 15.0
"""How often a stream that has nothing to say shows that it is there."""
HISTORY_BYTES: Final = 32 * 1024 * 1024
"""How much of ended turns a process keeps in memory, so that the next turn need not read them again."""
CHANNEL_BYTES: Final = 64 * 1024 * 1024
"""How much of LangGraph's channels a saver keeps in memory, so that what they add need not be found out by reading."""
LINE_BYTES: Final = PAYLOAD_BYTES
"""How long a line may be that a coding program writes."""
PROGRAM_BYTES: Final = 256 * 1024 * 1024
"""How much a coding program may write in one turn."""
