"""The checks of `make check` are tests too, so a green suite means a clean tree."""

import pytest

from tests.architecture.project import check_with


def test_the_tree_is_formatted() -> None:
    """One formatter decides the layout, so a diff shows only what was meant."""
    check_with("ruff", "format", "--check", ".")


def test_the_linter_finds_nothing() -> None:
    """Every rule in pyproject.toml holds everywhere, with exceptions named there or on the line."""
    check_with("ruff", "check", ".")


@pytest.mark.slow
def test_the_types_hold() -> None:
    """The package type-checks strictly, so its users' code can rely on its annotations."""
    check_with("mypy")
