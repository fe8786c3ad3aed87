"""`holdfast serve`: a process that can be killed, told to leave, and watched by a browser."""

import fcntl
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import sync_playwright

from tests.rigs.chromium import launching
from tests.server.serving import SECONDS, TOKEN, Asking, lines_of
from tests.surface.command import Shell, Started

PROGRAM = """
import fcntl
from pathlib import Path
import holdfast as hf

HERE = Path(__file__).parent

def tell(step: hf.Step[None], words: int) -> str:
    for number in range(words):
        step.emit({"kind": "text", "text": f"w{number} "})
    with (HERE / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # goes on when the test lets it
        fcntl.flock(gate, fcntl.LOCK_UN)
    return "".join(f"w{number} " for number in range(words))

@hf.durable
async def teller(ctx: hf.Context, words: int) -> str:
    await ctx.emit("begun")
    return await ctx.step(tell, words)

@hf.durable
async def waits(ctx: hf.Context) -> str:
    return await ctx.receive(hf.Signal("go", str))
"""


class Serving:
    """One `holdfast serve`, and a client of it."""

    def __init__(self, started: Started, said: dict[str, Any], client: httpx2.Client) -> None:
        self.started, self.said, self.ask = started, said, Asking(client)
        self.url: str = said["url"].rstrip("/")

    def cut_at(self, type: str, run: str, number: int) -> list[dict[str, Any]]:
        """Watch a run until an event of a type, send the server a signal then, and return what still came."""
        seen: list[dict[str, Any]] = []
        try:
            with self.ask.stream(run) as answer:
                for event in lines_of(answer):
                    seen.append(event)
                    if event["type"] == type:
                        self.started.process.send_signal(number)
        except httpx2.TransportError:
            return seen
        raise AssertionError(f"the stream came to an end as if the run had: {seen}")

    def kill(self) -> None:
        """End it as a crash does."""
        self.started.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, and the gate that its step waits at."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    (folder / "gate").touch()
    return folder


class Servers:
    """Starts servers, and ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self._shell, self._open = Shell(folder, None), list[tuple[Started, httpx2.Client]]()

    def start(self, *words: str, token: str = TOKEN) -> Serving:
        """Start one, on any port."""
        environment = {"HOLDFAST_TOKEN": token}
        started = self._shell.start(
            "serve", "program.py", "--store", "sqlite:///runs.db", "--port", "0", "--json", *words,
            environment=environment,
        )  # fmt: skip
        said = json.loads(started.read_line())
        client = httpx2.Client(
            base_url=said["url"], headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS, verify=False
        )
        self._open.append((started, client))
        return Serving(started, said, client)

    def close(self) -> None:
        """End all of them."""
        for started, client in self._open:
            client.close()
            if started.process.returncode is None:
                started.process.kill()
            if started.process.stdout is not None and not started.process.stdout.closed:
                started.end()


@pytest.fixture
def servers(folder: Path) -> Iterator[Servers]:
    """Servers of one store."""
    servers = Servers(folder)
    yield servers
    servers.close()


@pytest.fixture
def shut(folder: Path) -> Iterator[Any]:
    """The gate, closed until it is called or the test ends."""
    with (folder / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(gate, fcntl.LOCK_UN)


def test_after_a_kill_in_mid_stream_a_reconnect_gets_exactly_the_rest(servers: Servers, shut: Any) -> None:
    """The server and its worker die while words are told; the next ones go on, and the reader has all of it once."""
    first = servers.start()
    run = first.ask.start("teller", 3)
    seen = first.cut_at("chunk", run, signal.SIGKILL)
    assert [event["id"] for event in seen[:3]] == ["1", "2", "2:1:1"]
    second = servers.start()
    shut()
    rest = second.ask.events(run, seen[-1]["id"])
    assert rest[0]["type"] == "preview.reset"
    assert rest[0]["id"] is None
    entries = [event for event in [*seen, *rest] if event["type"] not in ("chunk", "preview.reset")]
    assert [event["seq"] for event in entries] == list(range(1, entries[-1]["seq"] + 1))
    assert [event["type"] for event in entries] == [
        "RunStarted",
        "Emitted",
        "RunResumed",
        "StepCompleted",
        "RunFinished",
    ]
    assert entries[-2]["data"]["value"] == "w0 w1 w2 "
    whole = second.ask.events(run)
    assert [event for event in whole if event["type"] != "chunk"] == entries


def test_told_to_leave_it_cuts_its_streams_and_hands_its_runs_over(servers: Servers) -> None:
    """SIGTERM with an open stream: it ends in good order, and the reader goes on at the next server."""
    first = servers.start()
    run = first.ask.start("waits")
    seen = first.cut_at("RunParked", run, signal.SIGTERM)
    ran = first.started.end()
    assert ran.status == 0, ran.err
    assert [json.loads(line)["event"] for line in ran.out.splitlines()] == ["serving", "draining", "left"]
    second = servers.start()
    second.ask.http.post(f"/v1/runs/{run}/signals/go", json={"value": "on"})
    rest = second.ask.events(run, seen[-1]["id"])
    assert [event["seq"] for event in rest] == list(range(seen[-1]["seq"] + 1, rest[-1]["seq"] + 1))
    assert second.ask.http.get(f"/v1/runs/{run}").json()["result"] == "on"
    assert second.started.end(signal.SIGINT).status == 130


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--expose"),
        (["--host", "192.0.2.7"], "--expose"),
        (["--host", "192.0.2.7", "--expose"], "nothing can listen"),
    ],
)
def test_it_does_not_listen_where_others_can_reach_it_unless_told_to(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    """A host that is not this machine's own needs a word of its own."""
    monkeypatch.chdir(folder)
    ran = Shell(folder, capsys)("serve", "program.py", *words)
    assert ran.status == 2
    assert said in ran.err


def test_the_link_that_it_prints_carries_the_token_that_it_made(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without HOLDFAST_TOKEN there is a token all the same; with --no-work, no worker."""
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    one = servers.start("--no-work", token="")  # set, but empty, as compose files leave it
    assert one.said["link"].startswith(f"{one.url}/?token=")
    assert one.said["worker"] is None
    assert httpx2.get(f"{one.url}/v1/runs", verify=False).status_code == 401
    assert httpx2.get(one.said["link"], verify=False).status_code == 303


PAGE = """async ([run, token]) => {
  const seen = [];
  const source = new EventSource(`/v1/runs/${run}/events?token=${token}`);
  for (const type of ["RunStarted", "StepStarted", "RunParked", "RunResumed", "SignalReceived", "RunFinished"])
    source.addEventListener(type, (event) => { seen.push(event.lastEventId); document.title = event.type; });
  source.onerror = () => { if (source.readyState === EventSource.CLOSED) document.title = "closed"; };
  window.seen = seen;
}"""


@pytest.mark.slow
def test_a_browsers_own_event_source_sees_every_event_once_and_then_stops(servers: Servers) -> None:
    """Chromium connects again by itself when its server is killed, and no more once the run has ended."""
    first = servers.start()
    run = first.ask.start("waits")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launching())
        page = browser.new_page(bypass_csp=True)  # the page is ours here, and its code the test's
        page.set_default_timeout(SECONDS * 1000)
        page.goto(f"{first.url}/?token={TOKEN}")
        page.evaluate(PAGE, [run, TOKEN])
        page.wait_for_function("document.title == 'RunParked'")
        port = first.url.rpartition(":")[2]
        first.kill()
        second = servers.start("--port", port)
        second.ask.http.post(f"/v1/runs/{run}/signals/go", json={"value": "on"})
        page.wait_for_function("document.title == 'closed'")
        seen = page.evaluate("window.seen")
        browser.close()
    assert seen == [event["id"] for event in second.ask.events(run)]
