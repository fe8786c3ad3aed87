"""One life of a worker: it drives a turn of an agent whose turns a coding program takes, and prints the answer."""

import json
import sys
from typing import Any

import holdfast as hf
from demos.coding_twins import TWINS
from holdfast import harness


def agent_of(kind: str, options: dict[str, Any], workspace: str) -> hf.Agent[str]:
    """Return an agent whose turns Claude Code or Codex takes."""
    coding = harness.ClaudeCode(**options) if kind == "claude" else harness.Codex(**options)
    return hf.Agent("coder", harness=coding, workspace=workspace, retry=hf.Retry(attempts=8, first=0.1, most=1.0))


def main() -> None:
    """Take the turn that the first word describes; the same key is the same turn."""
    given = json.loads(sys.argv[1])
    if given["twin"]:
        TWINS[given["twin"]]()
    agent = agent_of(given["kind"], given["options"], given["workspace"])
    with hf.open(given["store"], hf.App(agent)) as runtime:
        run = runtime.wait(runtime.start(agent, given["text"], key=given["key"], conversation=given["conversation"]))
        print(json.dumps(runtime.wait(run.result(timeout=300))))


if __name__ == "__main__":
    main()
