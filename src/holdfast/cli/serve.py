"""`holdfast serve`: a program's runs over HTTP, and a worker for them, until told to leave."""

import asyncio
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import IO, Any, Final

import click
import uvicorn
from rich.text import Text

from holdfast.cli.completion import complete_file
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common
from holdfast.cli.surface import Surface, as_json, shown
from holdfast.cli.target import load_app
from holdfast.cli.wording import duration
from holdfast.cli.worker import Signals
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.engine.app import App
from holdfast.engine.starting import startable
from holdfast.runtime import Opening, Runtime
from holdfast.server import create_app

_PORT: Final = 8700
_CLOSING_SECONDS: Final = 5
"""How long answers that are under way may take when the server leaves."""
_BESIDE_STREAMS: Final = 200
"""Connections beside those of the streams."""


@dataclass(frozen=True)
class Place:
    """Where a server listens, and whom it answers."""

    host: str
    port: int
    hosts: tuple[str, ...]
    origins: tuple[str, ...]

    def listen(self) -> socket.socket:
        """Return a socket that listens.

        Raises:
            InvalidInput: the place is taken, or is not on this machine.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.listen(2048)
        except OSError as error:
            sock.close()
            refused = InvalidInput(f"nothing can listen at {self.host}, port {self.port}: {error.strerror or error}")
            refused.hint = "Give another --port; 0 takes any that is free."
            raise refused from error
        return sock


@click.command("serve")
@click.argument("targets", metavar="TARGET...", nargs=-1, shell_complete=complete_file)
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="On which port; 0 takes any that is free.",
)
@click.option("--expose", is_flag=True, help="Listen where other machines can reach it.")
@click.option("--allow-host", "hosts", metavar="HOST", multiple=True, help="Answer for this name too; may be repeated.")
@click.option("--origin", "origins", metavar="URL", multiple=True, help="Let pages of this place ask; may be repeated.")
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1), default=64, show_default=True, help="Runs driven at once."
)
@click.option("--no-work", is_flag=True, help="Drive no run here: leave that to workers.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=limits.GRACE_SECONDS,
    show_default=True,
    help="How long runs may take to their next entry when the server is told to leave.",
)
@common()
def serve(
    surface: Surface, *, targets: tuple[str, ...], host: str, port: int, expose: bool, hosts: tuple[str, ...],
    origins: tuple[str, ...], concurrency: int, no_work: bool, grace: float,
) -> int:  # fmt: skip
    """Serve the runs of a program over HTTP, and drive them, until told to leave.

    TARGET is file.py, file.py:name, module or module:name; several may be given.

    Every request needs a token: HOLDFAST_TOKEN, or one that is made here and printed in a link. SIGTERM and Ctrl-C
    drain: streams are cut, whose readers lose nothing, and each run is handed over at its next entry. A second signal
    ends at once.
    """
    if not targets:
        raise click.UsageError("name the program to serve, for example: holdfast serve app.py")
    if not expose and not _is_loopback(host):
        raise click.UsageError(f"{host} can be reached by other machines: say --expose if that is meant")
    out = sys.stdout
    place = Place(host, port, (*hosts, *([] if _is_any(host) else [_as_url(host)])), origins)
    with redirect_stdout(sys.stderr):
        app = load_app(targets)
        token = os.environ.get("HOLDFAST_TOKEN")
        made = not token
        return asyncio.run(
            Server(surface, app, place, token or secrets.token_urlsafe(24), made, out).serve(
                0 if no_work else concurrency, grace
            )
        )  # fmt: skip


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _as_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True)
class Server:
    """One server from its first answer to its last."""

    surface: Surface
    app: App
    place: Place
    token: str
    made: bool
    """True when the token was made here, and nobody knows it yet."""
    out: IO[str]

    async def serve(self, concurrency: int, grace: float) -> int:
        """Serve until a signal comes, and return the exit status; with no concurrency, drive nothing."""
        sock = self.place.listen()
        opening = Opening(self.surface.store, self.app, work=concurrency > 0, concurrency=concurrency or 1)
        with Signals().heard() as signals:
            async with opening as runtime:
                app = create_app(runtime, token=self.token, hosts=self.place.hosts, origins=self.place.origins)
                server = _uvicorn(app)
                serving = asyncio.ensure_future(server.serve(sockets=[sock]))
                self._tell_beginning(runtime, sock.getsockname()[1])
                either: set[asyncio.Future[Any]] = {serving, signals.first}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
                number = await signals.first
                self._tell("draining", {"grace_seconds": grace})
                app.state.streams.close()
                server.should_exit = True
                leaving = asyncio.gather(serving, runtime.drain(grace))
                either = {leaving, signals.second}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not leaving.done():
                    server.force_exit = True
                    leaving.cancel()
                    return self._left(Exit.INTERRUPTED)
                leaving.result()
                return self._left(Exit.FINE if number == signal.SIGTERM else Exit.INTERRUPTED)

    def _tell_beginning(self, runtime: Runtime, port: int) -> None:
        host = "127.0.0.1" if _is_any(self.place.host) else self.place.host
        url = f"http://{_as_url(host)}:{port}/"
        link = f"{url}?token={self.token}" if self.made else url
        serves = [part.name for part in startable(self.app)]
        about = {"url": url, "link": link, "serves": serves, "worker": runtime.worker_id, "store": self.surface.place}
        if not self.surface.json:
            # The one thing that nobody can go without, however quiet it shall be.
            click.echo(link, file=self.out)
        self._tell("serving", about)

    def _left(self, status: Exit) -> int:
        self._tell("left", {})
        return status

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        if self.surface.json:
            click.echo(as_json({"event": event, **data}), file=self.out)
            return
        self.surface.say(_line(event, data))


def _uvicorn(app: Any) -> _Uvicorn:
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False,
        server_header=False, h11_max_incomplete_event_size=2 * limits.HEADER_BYTES,
        limit_concurrency=limits.OPEN_STREAMS + _BESIDE_STREAMS, timeout_graceful_shutdown=_CLOSING_SECONDS,
    )  # fmt: skip
    return _Uvicorn(config)


def _line(event: str, data: dict[str, Any]) -> Text:
    """Return what to say of an event to a person."""
    match event:
        case "serving":
            names = ", ".join(shown(name) for name in data["serves"])
            how = f"as worker {data['worker']}" if data["worker"] is not None else "driving none of them"
            what = f"  at {data['url']}, on {shown(data['store'])}, {how}"
            return mark("▶", "green") + Text.assemble("serving ", (names, "bold"), (what, "dim"))
        case "draining":
            grace = duration(int(data["grace_seconds"] * 1e6))
            return mark("‖", "yellow") + Text(f"leaving: each run is handed over at its next entry, within {grace}")
        case _:
            return mark("■", "green") + Text("left")
