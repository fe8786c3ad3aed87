"""The real Claude Code and Codex, killed with their worker in mid-turn and resumed with their session.

They are installed from the package index into a folder of their own, and speak to a model's server on this machine that
follows a script. Where the system lets it, all of this runs in a network that has nothing but the loopback interface.
"""

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from demos.coding_twins import TWINS
from tests.rigs.provider import Answer, Call, Fault, Provider, Turn
from tests.rigs.provider.server import Heard
from tests.rigs.waiting import wait_until

PACKAGES: Final = {"claude": "@anthropic-ai/claude-code@2.1.326", "codex": "@openai/codex@0.169.0"}
_FOLDER: Final = Path(__file__).parents[1] / "build" / "coding"
_MODELS: Final = {"claude": "claude-sonnet-4-5", "codex": "gpt-5"}
_PATIENCE_SECONDS: Final = 300.0
_ALONE: Final = "HOLDFAST_DEMO_ALONE"
_TOOL: Final = "echo x >> count; "
_SLOW: Final = "sleep 300 & echo $! > shell; wait"
"""What is left of it, where anything is, is what its shell had started."""
_QUIET: Final = {
    "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "1",
}  # fmt: skip
_CONFIG: Final = """
model = "gpt-5"
model_provider = "local"
check_for_update_on_startup = false
sandbox_mode = "danger-full-access"
approval_policy = "never"
[analytics]
enabled = false
[model_providers.local]
name = "local"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
"""


class Server(Provider):
    """A model's server that also looks, at each request, whether a shell of an earlier life is still at work."""

    def __init__(self, shell: Path) -> None:
        super().__init__()
        self._shell = shell
        self.overlaps = 0
        self.lives = 1
        """How many workers there were; a shell is told apart by the life that it was started in."""
        self.shells: dict[int, int] = {}
        """Which shells were seen at work, and in which life first."""

    def next_turn(self, heard: Heard, model: str) -> Turn:
        self.look()
        return super().next_turn(heard, model)

    def look(self) -> None:
        """Note which shell is at work in which life, and whether one of an earlier life is."""
        if self._shell.exists() and (text := self._shell.read_text().strip()):
            self.shells.setdefault(int(text), self.lives)
        self.overlaps += sum(life < self.lives and _lives(pid) for pid, life in self.shells.items())


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Wrong(Exception):
    """Something that must be true is not."""


def expect(true: object, what: str) -> None:
    """Refuse to go on where something is not as it must be."""
    if not true:
        raise Wrong(what)


class Scene:
    """One program, one death, and what must be true after it."""

    def __init__(self, kind: str, folder: Path, server: Server, twin: str) -> None:
        self.kind, self.folder, self.server, self.twin = kind, folder, server, twin
        self.workspace = folder / "workspace"
        self.model = _MODELS[kind]
        self.key = f"turn-{time.monotonic_ns()}"
        self._turn = 1

    def call(self, command: str) -> Call:
        """Return a command that the model asks for."""
        if self.kind == "claude":
            arguments = {"command": command, "description": "work"}
            return Call(f"toolu_{time.monotonic_ns()}", "Bash", json.dumps(arguments))
        return Call(f"call_{time.monotonic_ns()}", "exec_command", json.dumps({"cmd": command, "yield_time_ms": 60000}))

    def worker(self, text: str, *, turn: int = 1) -> "subprocess.Popen[str]":
        """Start a worker that takes a turn."""
        home = self.folder / "home"
        keys = {"ANTHROPIC_API_KEY": "sk-demo", "ANTHROPIC_BASE_URL": self.server.url, "OPENAI_API_KEY": "sk-demo"}
        env = {**_QUIET, **keys, "HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / "claude"),
               "CODEX_HOME": str(home / "codex")}  # fmt: skip
        options = {"program": str(_FOLDER / "node_modules" / ".bin" / self.kind), "env": env, "model": self.model,
                   "state": str(self.folder / "state"), "grace_seconds": 2.0,
                   "arguments": ["--allowedTools", "Bash"] if self.kind == "claude" else []}  # fmt: skip
        given = {
            "kind": self.kind, "options": options, "workspace": str(self.workspace), "text": text, "twin": self.twin,
            "key": f"{self.key}-{turn}", "conversation": "demo", "store": f"sqlite:///{self.folder / 'store.db'}",
        }  # fmt: skip
        command = [sys.executable, "-m", "demos.coder", json.dumps(given)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, text: str, *, turn: int = 1) -> str:
        """Take a turn to its end, and return the answer."""
        worker = self.worker(text, turn=turn)
        out, err = worker.communicate(timeout=_PATIENCE_SECONDS)
        if worker.returncode != 0:
            raise Wrong(f"the worker failed: {err[-1500:]}")
        answer: str = json.loads(out)
        return answer

    def requests(self) -> list[Heard]:
        """Return what the model was asked, in order."""
        return list(self.server.heard[self.model])

    def sessions(self) -> int:
        """Return how many sessions the program keeps."""
        pattern = "claude/projects/*/*.jsonl" if self.kind == "claude" else "codex/sessions/**/*.jsonl"
        return len(list((self.folder / "home").glob(pattern)))

    def count(self) -> int:
        """Return how often the first command was executed."""
        file = self.workspace / "count"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def kill(self, worker: "subprocess.Popen[str]") -> None:
        """Kill a worker, as `kill -9` does."""
        self.server.look()
        worker.send_signal(signal.SIGKILL)
        worker.communicate(timeout=30)
        self.server.lives += 1


def in_a_command(scene: Scene) -> "subprocess.Popen[str]":
    """Die while a command of the program's is under way."""
    scene.server.says(scene.model, Answer(tokens=("I look.",), calls=(scene.call(_TOOL + _SLOW),)))
    worker = scene.worker("Make a file.")
    wait_until(
        lambda: scene.count() > 0 and (scene.workspace / "shell").exists(),
        seconds=_PATIENCE_SECONDS,
        what="the command",
    )
    return worker


def in_the_first_answer(scene: Scene) -> "subprocess.Popen[str]":
    """Die while the model's first answer comes."""
    scene.server.says(scene.model, Turn(Answer(tokens=("I ", "look.")), Fault(cut="stall", after=1)))
    worker = scene.worker("Make a file.")
    wait_until(lambda: len(scene.requests()) > 0, seconds=_PATIENCE_SECONDS, what="the first request")
    return worker


def in_the_second_answer(scene: Scene) -> "subprocess.Popen[str]":
    """Die after a command was executed, while the model says what follows from it."""
    stalled = Turn(Answer(tokens=("So ", "far.")), Fault(cut="stall", after=1))
    scene.server.says(scene.model, Answer(tokens=("I look.",), calls=(scene.call(_TOOL),)), stalled)
    worker = scene.worker("Make a file.")
    wait_until(lambda: len(scene.requests()) > 1, seconds=_PATIENCE_SECONDS, what="the second request")
    return worker


def at_the_start(scene: Scene) -> "subprocess.Popen[str]":
    """Die as soon as the program is there, before it can have asked anything."""
    worker = scene.worker("Make a file.")
    wait_until(lambda: any((scene.folder / "state").glob("*.jsonl")), seconds=_PATIENCE_SECONDS, what="the program")
    return worker


DEATHS: Final[Sequence[Callable[[Scene], "subprocess.Popen[str]"]]] = (
    in_a_command, in_the_first_answer, in_the_second_answer, at_the_start,
)  # fmt: skip


def judge(scene: Scene, death: str) -> None:
    """See what must be true after a death and a resumption, and in the turn after that."""
    before = len(scene.requests())
    scene.server._turns[scene.model].clear()
    scene.server.says(scene.model, Answer(tokens=("All done.",)), Answer(tokens=("Of course.",)))
    expect(scene.finish("Make a file.") == "All done.", "the turn has another answer")
    expect(scene.server.overlaps == 0, "a command of the dead worker's was at work beside its successor")
    expect(scene.sessions() == 1, f"there are {scene.sessions()} sessions and not one")
    executed = 0 if death in ("in_the_first_answer", "at_the_start") else 1
    expect(scene.count() == executed, f"the command was executed {scene.count()} times")
    asked = scene.requests()[before].body.decode()
    if before:
        expect("You were stopped before" in asked, "the resumed program was not told that it was stopped")
    expect(asked.count("Make a file.") == (2 if before else 1), "the session has lost or doubled the request")
    if executed:
        expect("echo x >> count" in asked, "the resumed session does not know of its command")
    expect(len(scene.requests()) == before + 1, "the model was asked more often than once after the death")
    expect(scene.finish("And now?", turn=2) == "Of course.", "the next turn has another answer")
    expect("All done." in scene.requests()[-1].body.decode(), "the next turn has forgotten the one before")
    expect(scene.sessions() == 1, "the next turn is in another session")


@contextmanager
def scene_of(kind: str, twin: str) -> Iterator[Scene]:
    """Make a scene in a folder that is gone afterwards."""
    # Not in /tmp: Codex keeps its helpers out of there.
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "workspace").mkdir()
        (folder / "home" / "codex").mkdir(parents=True)
        with Server(folder / "workspace" / "shell") as server:
            (folder / "home" / "codex" / "config.toml").write_text(_CONFIG.format(url=server.openai_url))
            scene = Scene(kind, folder, server, twin)
            yield scene
        for pid in server.shells:
            if _lives(pid):
                os.kill(pid, signal.SIGKILL)


def play(kind: str, death: Callable[[Scene], "subprocess.Popen[str]"], twin: str) -> str | None:
    """Play one death; return what was wrong after it, if anything."""
    with scene_of(kind, twin) as scene:
        worker = death(scene)
        try:
            scene.kill(worker)
            judge(scene, death.__name__)
        except (Wrong, TimeoutError) as wrong:
            return str(wrong)
        finally:
            worker.kill()
    return None


def install(kinds: Sequence[str]) -> Mapping[str, str]:
    """Install what is missing, in the stated versions; return what each program says that it is."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is not here: install Node.js")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (_FOLDER / "package.json").write_text('{"private": true}')
    packages = [PACKAGES[kind] for kind in PACKAGES]
    if not all((_FOLDER / "node_modules" / ".bin" / kind).exists() for kind in kinds):
        print("Installing", *packages, "with npm", flush=True)
        words = ["install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run([npm, *words, *packages], cwd=_FOLDER, check=True)
    return {kind: _version(kind) for kind in kinds}


def _version(kind: str) -> str:
    command = [str(_FOLDER / "node_modules" / ".bin" / kind), "--version"]
    env = {**os.environ, **_QUIET, "HOME": str(_FOLDER), "CODEX_HOME": str(_FOLDER)}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def alone() -> bool:
    """Go on in a network without any interface but loopback; False where the system does not allow it."""
    if os.environ.get(_ALONE):
        with socket.socket() as any_socket:
            up = struct.pack("16sH14x", b"lo", 0x1 | 0x40)
            fcntl.ioctl(any_socket, 0x8914, up)
        return True
    unshare = shutil.which("unshare")
    own = ["--net"] if os.geteuid() == 0 else ["--net", "--map-root-user"]
    if unshare is None or subprocess.run([unshare, *own, "true"], check=False, capture_output=True).returncode != 0:
        return False
    os.environ[_ALONE] = "1"
    os.execv(unshare, [unshare, *own, sys.executable, "-m", "demos.coding", *sys.argv[1:]])


def main() -> int:
    """Return 0 when every death was survived; of a twin, when each was noticed."""
    parser = argparse.ArgumentParser(prog="python -m demos.coding", description=__doc__)
    parser.add_argument("--only", choices=PACKAGES, help="one program instead of both")
    parser.add_argument("--death", choices=[death.__name__ for death in DEATHS], help="one death instead of all")
    parser.add_argument("--rounds", type=int, default=1, help="how often each death is died (%(default)s)")
    parser.add_argument("--twin", choices=TWINS, default="", help="break something on purpose")
    options: Any = parser.parse_args()
    kinds = [options.only] if options.only else list(PACKAGES)
    versions = install(kinds) if not os.environ.get(_ALONE) else {kind: _version(kind) for kind in kinds}
    cut = alone()
    print("The network is cut but for loopback." if cut else "The network is not cut: the system does not allow it.")
    found = 0
    for kind in kinds:
        print(f"{kind}: {versions[kind]}")
        for death in [one for one in DEATHS if options.death in (None, one.__name__)]:
            begun = time.monotonic()
            wrong = [text for _ in range(options.rounds) if (text := play(kind, death, options.twin)) is not None]
            found += len(wrong)
            seconds = (time.monotonic() - begun) / options.rounds
            told = f"{len(wrong)} of {options.rounds} wrong: {wrong[0]}" if wrong else f"{options.rounds} survived"
            print(f"  killed {death.__name__.replace('_', ' ')}: {told} ({seconds:.1f} s each)", flush=True)
    return int(found == 0) if options.twin else int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
