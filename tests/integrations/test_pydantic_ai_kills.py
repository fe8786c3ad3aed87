"""A pydantic-ai agent that is killed inside its tools goes on in another process, and asks its model nothing twice."""

from pathlib import Path
from typing import Any

from holdfast.testing.killer import Killer
from tests.integrations.ledger import Ledger
from tests.integrations.pydantic_clerk import live
from tests.rigs.provider import Answer, Call, Provider

_SCRIPT = (
    Answer(calls=(Call("c1", "look", '{"order": "42"}'),)),
    Answer(calls=(Call("c2", "note", '{"text": "broken"}'),)),
    Answer(calls=(Call("c3", "refund", '{"order": "42"}'),)),
    Answer(tokens=("all ", "done")),
)


def results(messages: list[Any]) -> dict[str, Any]:
    """Return what the model was told of each of its calls."""
    return {
        part["tool_call_id"]: part["content"]
        for message in messages
        for part in message["parts"]
        if part["part_kind"] == "tool-return"
    }


def test_killed_inside_each_tool_the_agent_resumes_without_a_second_model_call(
    address: str, provider: Provider, pydantic_killer: Killer, tmp_path: Path
) -> None:
    """Three deaths in three tools: four generations for four, one refund, and a model that is told what is unknown."""
    provider.says("clerk", *_SCRIPT)
    ledger = tmp_path / "ledger"
    for tool in ("look", "note", "refund"):
        assert pydantic_killer.run(live, address, provider.openai_url, str(ledger), tool).killed
    answer, messages = pydantic_killer.run(live, address, provider.openai_url, str(ledger)).result()
    assert provider.created["clerk"] == len(_SCRIPT)
    looked, looked_again, noted, noted_again, *paid = Ledger(ledger).read()
    assert (looked, looked_again, paid) == ("look", "look", ["refund"])
    assert noted == noted_again
    assert noted.startswith("note hf_")
    told = results(messages)
    assert (answer, told["c1"], told["c2"]) == ("all done", "order 42: broken", "noted")
    assert told["c3"].startswith("The outcome is unknown (the process died")
    asked = provider.heard["clerk"][-1].json["messages"][-1]
    assert "The outcome is unknown (the process died" in asked["content"]


def test_the_history_of_a_killed_agent_is_that_of_an_unbroken_one(
    provider: Provider, pydantic_killer: Killer, tmp_path: Path
) -> None:
    """Where nothing is in doubt, the answer and every message are the same, whoever drove the run."""
    reports = []
    for name, deaths in (("unbroken", ()), ("killed", ("look", "note"))):
        provider.says("clerk", *_SCRIPT)
        place = (f"sqlite:///{tmp_path / name}.db", provider.openai_url, str(tmp_path / name))
        for tool in deaths:
            assert pydantic_killer.run(live, *place, tool).killed
        reports.append(pydantic_killer.run(live, *place).result())
    assert reports[0] == reports[1]
