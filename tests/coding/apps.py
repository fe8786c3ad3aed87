"""Agents of coding programs at the top of a module, for processes that are killed."""

import os
from pathlib import Path

import holdfast as hf
from tests.coding.rig import KINDS, StandIn

FOLDER = Path(os.environ.get("CODING_FOLDER", "/nonexistent"))


def agent_of(folder: Path, kind: str) -> hf.Agent[str]:
    """Return an agent whose turns a stand-in takes; the folder is made when it is there to be made."""
    standin = StandIn(folder / kind, "claude" if kind == "claude" else "codex")
    return hf.Agent(kind, harness=standin.harness(), workspace=standin.workspace, retry=hf.Retry(first=0.01, most=0.01))


if FOLDER.is_dir():
    claude, codex = (agent_of(FOLDER, kind) for kind in KINDS)
