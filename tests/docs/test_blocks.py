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
    for block in page.blocks:
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, "utf-8")
        elif block.language == "console":
            for command, printed in commands(block.text):
                run_command(command, printed, tmp_path)


@every_page
def test_a_file_that_a_page_shows_is_used_on_it(page: Page) -> None:
    """A file is run by a command or imported by another file, so it is not there untried."""
    files = [block for block in page.blocks if block.file is not None]
    for block in files:
        others = [other.text for other in page.blocks if other is not block and other.language in ("python", "console")]
        assert any(Path(block.file or "").stem in other for other in others), block.file
