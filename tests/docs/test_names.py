"""What a page names is there: symbols, files, commands, links."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import holdfast as hf
from tests.docs.pages import DOCS, PAGES, ROOT, Page
from tests.surface.command import COMMANDS

LINKED = [*PAGES, *map(Page, sorted((DOCS / "adr").glob("*.md"))), *map(Page, sorted(ROOT.glob("*.md")))]
OBJECTS = {"ctx": hf.Context, "runtime": hf.testing.ClockedRuntime, "run": hf.Run, "step": hf.Step}
every_page = pytest.mark.parametrize("page", PAGES, ids=str)


def resolve(path: str) -> Any:
    """Return what a dotted name below `holdfast` means, importing what must be imported."""
    found: Any = importlib.import_module("holdfast")
    name = "holdfast"
    for part in path.split("."):
        name = f"{name}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(name)
    return found


@every_page
def test_a_symbol_that_a_page_names_exists(page: Page) -> None:
    """`hf.x` and `holdfast.x.y` can be used as they are written."""
    named = set(re.findall(r"\bhf((?:\.[A-Za-z_]\w*)+)", page.text))
    named |= set(re.findall(r"\bholdfast((?:\.[A-Za-z_]\w*)+)", page.text))
    for path in sorted(name[1:] for name in named if not re.fullmatch(r"\.(db|cli|core|store)", name)):
        resolve(path)


@every_page
def test_a_verb_that_a_page_names_exists(page: Page) -> None:
    """`ctx.x`, `runtime.x`, `run.x` and `step.x` are verbs of their objects."""
    for name, verb in re.findall(r"(?<![\w.])(ctx|runtime|run|step)\.([a-z_]+)\b(?!\.py)", page.text):
        if f"{name}.{verb}" in ("runtime.py", "run.py", "step.py"):
            continue
        assert hasattr(OBJECTS[name], verb), f"{name}.{verb}"


@every_page
def test_a_file_of_the_package_that_a_page_names_exists(page: Page) -> None:
    """A path between backticks leads to a file; a bare name may be a reader's own, but on the page about our files."""
    for span in page.spans:
        ours = "/" in span or page.path.name == "ARCHITECTURE.md"
        if ours and re.fullmatch(r"[\w/]+\.(py|sql|toml|md)", span):
            assert any((base / span).exists() for base in (ROOT / "src" / "holdfast", ROOT, DOCS)), span


def typed_commands(page: Page) -> Iterator[list[str]]:
    """Yield the words of each `holdfast` command on a page, in prose and in console blocks."""
    shell = "\n".join(block.text for block in page.blocks if block.language == "console")
    for text in [*page.spans, *re.findall(r"^\$ (.*)$", shell, re.MULTILINE)]:
        if match := re.match(r"holdfast ([a-z].*)", text):
            yield match[1].split("  #")[0].split()


@every_page
def test_a_command_that_a_page_names_exists_with_its_options(page: Page) -> None:
    """What a page tells its reader to type is understood."""
    for name, *words in typed_commands(page):
        assert name in COMMANDS, name
        options = {option for p in COMMANDS[name].params if isinstance(p, click.Option) for option in
                   (*p.opts, *p.secondary_opts)}  # fmt: skip
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, (name, words)


def test_every_command_is_documented() -> None:
    """A new command does not stay unknown."""
    told = {words[0] for page in PAGES for words in typed_commands(page)}
    told |= {name for page in PAGES for name in re.findall(r"^#+ `?(?:holdfast )?([a-z]+)`?", page.text, re.MULTILINE)}
    assert set(COMMANDS) <= told


def anchors(page: Page) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", dict.fromkeys(LINKED), ids=str)
def test_a_link_leads_somewhere(page: Page) -> None:
    """A relative link names a file that is there, and a heading that is in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.prose):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        path = Path(page.path.parent / place).resolve() if place else page.path
        assert path.exists(), target
        assert not anchor or anchor in anchors(Page(path)), target


def test_every_page_is_in_the_index() -> None:
    """A reader of the index finds every page and every decision."""
    index = (DOCS / "README.md").read_text("utf-8")
    assert not [path.name for path in DOCS.glob("*.md") if path.name != "README.md" and f"]({path.name})" not in index]
