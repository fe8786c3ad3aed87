"""What a reader copies from a page is accepted by a strict type checker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, page
from tests.docs.running import SECONDS, script_of

_NOT_OURS = """[mypy]
strict = True
[mypy-anthropic.*,genai_prices.*,griffe.*,mcp.*,mcp_types.*,openai.*,opentelemetry.*,pydantic_ai.*,pydantic_graph.*]
follow_imports = skip
"""
"""Most of the time would go into reading the providers' own packages."""
COPIED = ["start", "waiting", "effects", "testing"]
"""The pages whose Python is the beginning of other people's programs."""


@pytest.mark.slow
def test_the_python_of_the_pages_that_are_copied_from_type_checks(tmp_path: Path) -> None:
    """A reader whose project is checked strictly can keep what they copied as it is."""
    for name in COPIED:
        (tmp_path / f"{name}_page.py").write_text(script_of(page(name)) or "", "utf-8")
        for block in page(name).blocks:
            if block.language == "python" and block.file is not None:
                assert not (tmp_path / block.file).exists(), f"two pages show a {block.file}"
                (tmp_path / block.file).write_text("\n" * (block.line - 1) + block.text, "utf-8")
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    assert len(files) > len(COPIED)
    (tmp_path / "mypy.ini").write_text(_NOT_OURS, "utf-8")
    # One process for all: most of the time goes into reading the library.
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--no-error-summary", *files]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src"), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "pages")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=5 * SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
