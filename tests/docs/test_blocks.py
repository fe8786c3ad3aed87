"""Everything that a page shows is run."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, README, Page
from tests.docs.running import commands, run_command, run_python, script_of

LANGUAGES = {"python", "console", "text", "sql", "json"}
every_page = pytest.mark.parametrize("page", PAGES, ids=str)


@every_page
def test_a_block_says_what_it_is(page: Page) -> None:
    """A block is run unless it says that it is not to be: none is left out by a forgotten word."""
    assert {block.language for block in page.blocks} <= LANGUAGES


@pytest.mark.parametrize("page", [page for page in PAGES if page != README and script_of(page)], ids=str)
def test_the_python_of_a_page_runs(page: Page, tmp_path: Path) -> None:
    """A page's blocks are one program from top to bottom; its line numbers are the page's."""
    program = tmp_path / f"{page.path.stem}_page.py"
    program.write_text(script_of(page) or "", "utf-8")
    run_python(program)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != README and any(b.file or b.language == "console" for b in page.blocks)],
    ids=str,
)  # fmt: skip
def test_the_commands_of_a_page_print_what_it_says(page: Page, tmp_path: Path) -> None:
    """A reader who saves the files and types the commands, in order, sees what the page shows."""
    typed = ""
    for block in page.blocks:
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, "utf-8")
        elif block.language == "console":
            for command, printed in commands(block.text):
                typed += command + "\n"
                run_command(command, printed, tmp_path)
    assert not [block.file for block in page.blocks if block.file is not None and block.file not in typed]
