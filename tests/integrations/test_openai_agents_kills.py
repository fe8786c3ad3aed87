"""An agent of the OpenAI Agents SDK that is killed inside its tools goes on elsewhere, and so does its session."""

from pathlib import Path

from holdfast.testing.killer import Killer
from tests.integrations.ledger import Ledger
from tests.integrations.sdk_clerk import live
from tests.rigs.provider import Answer, Call, Provider

_SCRIPT = (
    Answer(calls=(Call("c1", "look", '{"order": "42"}'),)),
    Answer(calls=(Call("c2", "note", '{"text": "broken"}'),)),
    Answer(calls=(Call("c3", "refund", '{"order": "42"}'),)),
    Answer(tokens=("all ", "done")),
)


def test_killed_inside_each_tool_the_run_resumes_without_a_second_model_call(
    address: str, provider: Provider, sdk_killer: Killer, tmp_path: Path
) -> None:
    """Deaths in three tools and in a session: four generations, one refund, and everything once in the session."""
    provider.says("clerk", *_SCRIPT)
    ledger = tmp_path / "ledger"
    for place in ("sent", "look", "note", "refund"):
        assert sdk_killer.run(live, address, provider.openai_url, str(ledger), place).killed
    answer, items = sdk_killer.run(live, address, provider.openai_url, str(ledger)).result()
    assert len(provider.made("clerk")) == len(_SCRIPT)
    looked, looked_again, noted, noted_again, *paid = [line for line in Ledger(ledger).read() if line != "sent"]
    assert (looked, looked_again, paid) == ("look", "look", ["refund"])
    assert noted == noted_again
    assert answer == "all done"
    outputs = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
    assert (outputs["c1"], outputs["c2"]) == ("order 42: broken", "noted")
    assert outputs["c3"].startswith("The outcome is unknown (the process died")
    kinds = [item.get("type") or item["role"] for item in items]
    assert kinds == ["user", *["function_call", "function_call_output"] * 3, "message"]
    asked = provider.heard["clerk"][-1].json["input"]
    assert asked[-1]["output"] == outputs["c3"]
