"""Bring a customer on board: read, fetch side by side, ask a person, wait for the payment, rest, and write a welcome.

holdfast run examples/onboard.py acme --key acme        # until it asks
holdfast answer RUN --yes --by you                      # the list of questions: holdfast answer
holdfast run examples/onboard.py acme --key acme        # goes on, and waits for the payment ...
holdfast signal RUN paid '{"cents": 4200}'              # ... which comes from another terminal
"""

from dataclasses import dataclass
from datetime import timedelta

import holdfast as hf


@dataclass
class Profile:
    """What is known of a customer."""

    name: str
    links: list[str]


@dataclass
class Payment:
    """What the payment service tells."""

    cents: int


paid = hf.Signal("paid", Payment)


def load_profile(customer: str) -> Profile:
    """Read a customer's profile; here it is made up."""
    return Profile(customer, [f"https://{customer}.example/{page}" for page in ("about", "team", "prices")])


def fetch_page(link: str) -> int:
    """Fetch a page and return its size; here the size of its address."""
    return len(link)


@hf.step(effect="keyed")
def send_mail(step: hf.Step[None], to: str, text: str) -> str:
    """Send a mail; the key keeps the mail service from sending it twice."""
    return f"to {to}: {text} [{step.idempotency_key[:6]}]"


@hf.durable
async def onboard(ctx: hf.Context, customer: str, pause: float = 0.1) -> str:
    """Go through it step by step, for as many days as it takes."""
    profile = await ctx.step(load_profile, customer)
    sizes = await ctx.map(fetch_page, profile.links, at_once=2)
    decision = await ctx.ask(
        "Send the welcome mail?",
        show={"customer": profile.name, "pages": dict(zip(profile.links, sizes, strict=True))},
        args={"text": f"Welcome, {customer}!"},
        expires=timedelta(days=2),
    )
    if not decision:
        return "nobody answered" if decision.expired else f"refused by {decision.by}"
    payment = await ctx.receive(paid, timeout=timedelta(days=3))
    if payment is None:
        return "never paid"
    await ctx.sleep(pause)
    assert decision.args is not None
    mail = await ctx.step(send_mail, customer, decision.args["text"])
    return f"{mail}, {payment.cents} cents paid"
