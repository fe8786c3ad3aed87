"""A conversation that Google keeps: the harness of Gemini's Interactions."""

from collections.abc import Mapping

from holdfast.agent.harness import InDoubt
from holdfast.agent.harnesses.interactions import Interactions
from holdfast.agent.harnesses.stateful import REST_SECONDS, Asking, Stateful
from holdfast.agent.providers import web


class GeminiInteractions(Stateful):
    """A model of Google whose conversation stays at the provider, each interaction run in the background.

    `key` and `base_url` are those of `GEMINI_API_KEY` (or `GOOGLE_API_KEY`) and `GOOGLE_GEMINI_BASE_URL` where they are
    not given. `first_seconds` is how long it may think before its first byte, `stall_seconds` how long a stream may be
    silent before it is looked after, and `rest_seconds` how long a run rests while there is nothing to hear. `in_doubt`
    says what follows a creation of which nobody knows whether it happened: another one, both charged, or an error, or a
    person's word.
    """

    wire = Interactions()
    provider = "gemini"
    default_url = "https://generativelanguage.googleapis.com"
    key_variables = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    url_variable = "GOOGLE_GEMINI_BASE_URL"

    def __init__(
        self,
        model: str,
        *,
        key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        first_seconds: float = web.FIRST_SECONDS,
        stall_seconds: float = web.STALL_SECONDS,
        rest_seconds: float = REST_SECONDS,
        in_doubt: InDoubt = "again",
    ) -> None:
        asking = Asking(
            key=key, base_url=base_url, headers=headers or {}, first_seconds=first_seconds,
            stall_seconds=stall_seconds, rest_seconds=rest_seconds, in_doubt=in_doubt,
        )  # fmt: skip
        super().__init__(model, asking)
