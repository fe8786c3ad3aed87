"""A research agent: it searches, reads pages side by side, asks another agent for a judgement, and writes a report.

holdfast run examples/research.py:researcher "Why do durable runs help agents?" --key report-1

Kill it anywhere and run it again: no page that was read is read again. It needs no key: without MODEL its models say
the lines that are written below; with MODEL=openai:gpt-5-mini, or another, a real one is asked.
"""

import json
import os
from dataclasses import dataclass

import holdfast as hf
from holdfast.models import Model, Request
from holdfast.testing import ScriptedModel, call

PAGES = {
    "https://example.org/journals": "A journal of past-tense facts can be replayed; what was done is not done again.",
    "https://example.org/leases": "A lease with a fence keeps a worker that was thought dead from writing.",
    "https://example.org/effects": "A payment whose outcome is unknown is in doubt: never repeated in silence.",
}


@dataclass
class Report:
    """What the agent returns; an answer that has not this form is asked for again."""

    title: str
    findings: list[str]
    sources: list[str]


@hf.tool(effect="repeat")
def search(words: str) -> list[str]:
    """Return the addresses of pages about something."""
    return list(PAGES)


@hf.tool(effect="repeat", limit=hf.Limit("pages", at_once=2))
async def fetch(url: str) -> str:
    """Read a page."""
    if url not in PAGES:
        raise hf.ToolError(f"There is no page {url}.")
    return PAGES[url]


def write_report(request: Request) -> str:
    """Write what the pages said, as the scripted model's last line."""
    findings = [result.text for result in request.messages[-3].parts if hasattr(result, "text")]
    return json.dumps({"title": "Durable agents", "findings": findings, "sources": list(PAGES)})


def scripted() -> ScriptedModel:
    """Return a model that says what is written here, without a key."""
    return ScriptedModel(
        call("search", words="durable agents"),
        [call("fetch", url=url) for url in PAGES],
        call("critic", message="Journals, leases, effects: is anything missing?"),
        write_report,
    )


model: Model | str | None = os.environ.get("MODEL")
critic = hf.Agent(
    "critic",
    model=model or ScriptedModel("Nothing is missing."),
    instructions="Judge in one sentence what you are told.",
    description="Ask for a judgement on what was found.",
)
researcher = hf.Agent(
    "researcher",
    model=model or scripted(),
    instructions="Search, read the pages side by side, ask the critic, then write the report.",
    tools=[search, fetch, critic],
    output=Report,
    budget=hf.Budget(calls=20),
)
app = hf.App(researcher, critic)
