"""`docs/cli.md` tells of every command and option, and of none that is not there."""

import re
from pathlib import Path
from typing import Final

import click
import pytest

from holdfast.cli.exits import Exit
from tests.surface.command import COMMANDS

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text("utf-8")
SECTIONS: Final = dict(re.findall(r"^## `holdfast (\w+)`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
COMMON: Final = {"--store", "--json", "--quiet", "--help"}


def test_every_command_has_its_section_and_no_other_has() -> None:
    """The page is as long as the command's own list."""
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_stands_in_its_section(name: str) -> None:
    """An option that is added is described, and one that is removed is not."""
    options = {
        word for parameter in COMMANDS[name].params if isinstance(parameter, click.Option)
        for word in (*parameter.opts, *parameter.secondary_opts) if word.startswith("--")
    } - COMMON  # fmt: skip
    assert (
        set(re.findall(r"^\| `(--[a-z-]+)", SECTIONS[name], re.MULTILINE))
        | set(re.findall(r", `(--[a-z-]+)`", SECTIONS[name]))
        == options
    )
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Argument):
            assert parameter.make_metavar(click.Context(COMMANDS[name])).strip("[].") in SECTIONS[name]


def test_the_page_tells_every_exit_status() -> None:
    """The table of exit statuses is the program's own."""
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == {int(exit) for exit in Exit}


def test_the_options_that_all_have_are_told_once() -> None:
    """What every command takes stands at the top."""
    for option in COMMON:
        assert f"`{option}" in PAGE.partition("## `holdfast")[0]
