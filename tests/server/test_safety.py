"""Who gets an answer, and how much anybody may send or leave unread."""

import re
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.core import errors, limits
from holdfast.server.app import ENDPOINTS, SAFE
from holdfast.server.auth import Scope
from holdfast.server.errors import status_of
from tests.rigs.waiting import wait_until
from tests.server.program import app
from tests.server.serving import SECONDS, TOKEN, Asking, Served

READER = "a-token-that-only-reads"
OPEN = {"/healthz", "/readyz", "/", "/v1/questions/{question}"}
"""Routes without a scope: two tell nothing, one looks for the token itself, and one takes a callback token."""


def _address(path: str) -> str:
    return path.replace("{run}", "0" * 36).replace("{name}", "n").replace("{step:path}", "s").replace("{question}", "q")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_a_route_declares_its_scope_and_answers_nobody_without_a_token(served: Served, endpoint: Any) -> None:
    """A route that is added is closed until somebody says who may use it."""
    if endpoint.path in {"/healthz", "/readyz"}:
        assert endpoint.scope is None
        return
    assert (endpoint.scope is None) == (endpoint.path in OPEN)
    answer = httpx2.request(endpoint.method, served.url + _address(endpoint.path), verify=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_allows_what_its_scopes_say(tmp_path: Path) -> None:
    """One that reads starts nothing; one that may do everything may."""
    tokens = {READER: ["read"], TOKEN: [Scope.ADMIN]}
    with Served(tmp_path / "runs.db", app, token=tokens) as served, served.client(READER) as reader:
        assert reader.get("/v1/runs").status_code == 200
        refused = reader.post("/v1/runs", json={"name": "double", "input": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert reader.post("/v1/runs", json={"name": "double"}, headers=bearer(TOKEN)).status_code == 400
        assert reader.get("/v1/runs", headers=bearer(f"{TOKEN}x")).status_code == 401
        assert reader.get("/v1/runs", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries a token."""
    return {"Authorization": f"Bearer {token}"}


def test_a_link_carries_the_token_and_becomes_a_cookie(served: Served) -> None:
    """What EventSource and links cannot send in a header, they send in the address or as a cookie, to read only."""
    with served.client(token=None) as browser:
        assert browser.get(f"/v1/runs?token={TOKEN}").status_code == 200
        assert browser.get("/v1/runs").status_code == 401
        assert browser.post(f"/v1/runs?token={TOKEN}", json={"name": "double", "input": 1}).status_code == 401
        link = browser.get(f"/?token={TOKEN}")
        assert (link.status_code, link.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(link.headers["set-cookie"].split("; "))
        assert "runs" in browser.get("/").text
        assert browser.get("/v1/runs").status_code == 200
        assert browser.post("/v1/runs", json={"name": "double", "input": 1}).status_code == 401
        assert TOKEN not in link.headers["set-cookie"]


def test_a_guessed_callback_token_is_refused_before_its_body_is_read(served: Served) -> None:
    """Anybody may send one, so nobody gets memory for it."""
    with served.client(token=None) as client:
        answer = client.post("/v1/questions/hfc_guessed", content=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_page_whose_name_cannot_be_read_gets_nothing(ask: Asking) -> None:
    """It is another place's, and no fault of the server."""
    answer = ask.http.get("/v1/runs", headers={"Origin": "http://["})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8700", "127.0.0.1.evil.example", ""])
def test_a_host_that_somebody_else_points_here_gets_nothing(ask: Asking, host: str) -> None:
    """The name in the request must be one that this server goes by."""
    answer = ask.http.get("/v1/runs", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_pages_of_other_places_get_nothing_unless_they_are_named(ask: Asking, served: Served, tmp_path: Path) -> None:
    """Without `origins` there is no CORS at all; with them, exactly for those."""
    ours, theirs = {"Origin": served.url}, {"Origin": "https://evil.example"}
    assert ask.http.get("/v1/runs", headers=ours).status_code == 200
    refused = ask.http.get("/v1/runs", headers=theirs)
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers
    page = {"Origin": "https://app.example"}
    with Served(tmp_path / "runs.db", app, origins=["https://app.example"]) as other, other.client() as client:
        assert client.get("/v1/runs", headers=page).headers["access-control-allow-origin"] == "https://app.example"
        asked = {**page, "Access-Control-Request-Method": "POST"}
        assert client.options("/v1/runs", headers=asked).headers["access-control-allow-methods"] == "GET, POST, DELETE"
        assert client.get("/v1/runs", headers=theirs).status_code == 403


@pytest.mark.parametrize("path", ["/v1/runs", "/nothing", "/healthz", "/"])
def test_every_answer_says_what_a_browser_may_do_with_it(ask: Asking, path: str) -> None:
    """Nothing runs, nothing is framed, nothing is kept."""
    answer = ask.http.get(path)
    assert {name: answer.headers[name] for name in SAFE} == SAFE
    assert answer.headers["cache-control"] == "no-store"


def test_a_wrong_address_and_a_wrong_method_are_told(ask: Asking) -> None:
    """Both in the one form that errors have."""
    assert ask.http.get("/v2/runs").json()["error"]["code"] == "no_route"
    wrong = ask.http.put("/v1/runs", json={})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"] or "GET" in wrong.headers["allow"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"name": "double", "odd": 1}', "application/json", 400),
        (b'{"name": "double", "input": ' + b"[" * 250 + b"]" * 250 + b"}", "application/json", 400),
        (b'{"name": "\xff"}', "application/json", 400),
        (b'{"name": "double"}', "text/plain", 415),
        (b'{"name": "double"}', "application/x-www-form-urlencoded", 415),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(ask: Asking, body: bytes, kind: str, status: int) -> None:
    """Not JSON, another form, too deep, not text, or sent as a form of some page."""
    answer = ask.http.post("/v1/runs", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) >= {"code", "message", "hint"}


def test_what_is_too_large_is_refused_before_it_is_read(ask: Asking, served: Served) -> None:
    """A body, headers, an address, a page and a key have bounds."""
    huge = ask.http.post(
        "/v1/runs", content=b" " * (limits.REQUEST_BYTES + 1), headers={"Content-Type": "application/json"}
    )
    assert (huge.status_code, huge.json()["error"]["code"]) == (413, "payload_too_large")
    many = ask.http.get("/v1/runs", headers={"X-Much": "x" * limits.HEADER_BYTES})
    assert (many.status_code, many.json()["error"]["code"]) == (431, "headers_too_large")
    assert ask.http.get(f"/v1/runs?name={'x' * limits.HEADER_BYTES}").status_code == 431
    assert ask.http.get("/v1/runs?limit=1001").status_code == 400
    body = {"name": "double", "input": 1}
    assert ask.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k" * 513}).status_code == 400
    two = {"Idempotency-Key": "a", "X-Execution-ID": "b"}
    assert ask.http.post("/v1/runs", json=body, headers=two).status_code == 400


def test_a_reader_that_does_not_read_is_cut_and_loses_nothing(tmp_path: Path) -> None:
    """It costs a bounded buffer for a bounded time; then it connects again with the last id it has."""
    with Served(tmp_path / "runs.db", app, slow_seconds=0.2) as served, served.client() as client:
        ask = Asking(client)
        run = ask.start("talks", {"lines": 40, "size": 60_000})
        ask.events(run)
        address = served.url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1])), SECONDS) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            slow.sendall(
                f"GET /v1/runs/{run}/events?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "Accept: application/x-ndjson\r\n\r\n".encode()
            )
            head = slow.recv(200)
            assert b"200 OK" in head
            wait_until(lambda: not served.streams.open, seconds=SECONDS, what="the cut")
            read = b"".join(iter(lambda: slow.recv(65536), b""))
        assert not (head + read).endswith(b"0\r\n\r\n")
        assert len(read) < 40 * 60_000
        last = re.findall(rb'{"id":"(\d+)"', read)[-2].decode()  # the last one may be cut
        assert [event["seq"] for event in ask.events(run, last)] == list(range(int(last) + 1, 43))


def test_more_streams_than_there_may_be_are_refused(tmp_path: Path) -> None:
    """The bound is told, and room comes back when a reader leaves."""
    with Served(tmp_path / "runs.db", app, streams=1, alive_seconds=0.05) as served, served.client() as client:
        ask = Asking(client)
        run = ask.start("waits")
        with ask.stream(run) as answer:
            lines = answer.iter_lines()  # kept: one that is let go closes the stream
            assert next(lines)
            refused = client.get(f"/v1/runs/{run}/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_streams")
            assert refused.headers["retry-after"] == "1"
        wait_until(lambda: not served.streams.open, seconds=SECONDS, what="the leave")
        with ask.stream(run) as answer:
            alive = [line for line, _ in zip(answer.iter_lines(), range(8), strict=False) if not line]
            assert alive  # an empty line, without an id, is a sign of life


STATUSES: dict[type[errors.HoldfastError], int] = {
    errors.InvalidInput: 400,
    errors.BadCursor: 400,
    errors.Misuse: 400,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.ConversationBusy: 409,
    errors.CheckpointOwned: 409,
    errors.AlreadyAnswered: 409,
    errors.RunError: 409,
    errors.Expired: 410,
    errors.PayloadTooLarge: 413,
    errors.Damaged: 500,
    errors.Diverged: 500,
    errors.StoreRefused: 500,
    errors.StoreUnavailable: 503,
    errors.NoStore: 503,
}


@pytest.mark.parametrize("kind", STATUSES, ids=lambda kind: kind.__name__)
def test_an_error_has_its_status(kind: type[errors.HoldfastError]) -> None:
    """A client tells by the number whose fault it is, and whether to ask again."""
    assert status_of(kind.__new__(kind)) == STATUSES[kind]
