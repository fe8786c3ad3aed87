"""Everything that a page shows is run."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.docs.pages import PAGES, README, Page
from tests.docs.running import commands, run_command, run_python, script_of

LANGUAGES = {"python", "console", "text", "sql", "json"}
Real = Callable[[str], str]
_numbers = itertools.count(1)
SHOWN = "postgresql://localhost/app"
"""How pages write the address of a database; where they are run it is a fresh one on a server of ours."""
every_page = pytest.mark.parametrize("page", PAGES, ids=str)


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    """What a page says, with the address of a database that is there."""
    made: list[str] = []

    def replaced(text: str) -> str:
        if SHOWN not in text:
            return text
        address, connection = request.getfixturevalue("postgres_admin")
        if not made:
            made.append(f"docs_{os.getpid()}_{next(_numbers)}")
            connection.execute(f"CREATE DATABASE {made[0]}")
        return text.replace(SHOWN, urlunsplit(urlsplit(address)._replace(path=f"/{made[0]}")))

    yield replaced
    for name in made:
        request.getfixturevalue("postgres_admin")[1].execute(f"DROP DATABASE {name} WITH (FORCE)")


@every_page
def test_a_block_says_what_it_is(page: Page) -> None:
    """A block is run unless it says that it is not to be: none is left out by a forgotten word."""
    assert {block.language for block in page.blocks} <= LANGUAGES


@pytest.mark.parametrize("page", [page for page in PAGES if page != README and script_of(page)], ids=str)
def test_the_python_of_a_page_runs(page: Page, tmp_path: Path, real: Real) -> None:
    """A page's blocks are one program from top to bottom; its line numbers are the page's."""
    program = tmp_path / f"{page.path.stem}_page.py"
    program.write_text(real(script_of(page) or ""), "utf-8")
    run_python(program)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != README and any(b.file or b.language == "console" for b in page.blocks)],
    ids=str,
)  # fmt: skip
def test_the_commands_of_a_page_print_what_it_says(page: Page, tmp_path: Path, real: Real) -> None:
    """A reader who saves the files and types the commands, in order, sees what the page shows."""
    if real(script_of(page) or "") != (script_of(page) or ""):
        # What the commands look at on a server, the page's program has made.
        (tmp_path / "page.py").write_text(real(script_of(page) or ""), "utf-8")
        run_python(tmp_path / "page.py")
    for block in page.blocks:
        if block.file is not None:
            (tmp_path / block.file).write_text(real(block.text), "utf-8")
        elif block.language == "console":
            for command, printed in commands(real(block.text)):
                run_command(command, printed, tmp_path)


@every_page
def test_a_file_that_a_page_shows_is_used_on_it(page: Page) -> None:
    """A file is run by a command or imported by another file, so it is not there untried."""
    files = [block for block in page.blocks if block.file is not None]
    for block in files:
        others = [other.text for other in page.blocks if other is not block and other.language in ("python", "console")]
        assert any(Path(block.file or "").stem in other for other in others), block.file
