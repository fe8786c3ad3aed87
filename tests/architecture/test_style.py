"""What a reader may expect of every module."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.project import PACKAGE, ROOT

MODULES = sorted(PACKAGE.rglob("*.py"))
every_module = pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))


def imports_inside_functions(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield each import that runs only when a function is called."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))


def test_there_are_modules_to_look_at() -> None:
    """The tests below would pass on an empty list, so the list is never empty."""
    assert PACKAGE / "core" / "__init__.py" in MODULES


@every_module
def test_a_module_opens_with_one_sentence(module: Path) -> None:
    """A module has one idea, and its docstring says it in one sentence; below it stands at most a drawing."""
    docstring = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    sentence, _, drawing = docstring.partition("\n\n")
    assert sentence.endswith(".")
    assert not re.search(r"[.!?]\s+[A-Z]", sentence), "more than one sentence"
    assert not drawing or re.search("[│├└]", drawing), "more than one sentence"


@every_module
def test_imports_stand_at_the_top(module: Path) -> None:
    """What a module needs is seen in its first lines; `# lazy: why` on the line names an exception."""
    text = module.read_text("utf-8")
    lines = text.splitlines()
    hidden = [
        f"{module.relative_to(ROOT)}:{node.lineno} {lines[node.lineno - 1].strip()}"
        for node in imports_inside_functions(ast.parse(text))
        if not re.search(r"# lazy: \w", lines[node.lineno - 1])
    ]
    assert not hidden


def test_nothing_is_left_for_later() -> None:
    """The package holds no note of work undone: it is done, or it is written where plans are."""
    left = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in {".py", ".sql", ".html", ".css", ".js"}
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME|XXX)\b", line)
    ]
    assert not left
