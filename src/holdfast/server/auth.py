"""Who may ask: tokens and their scopes, and the hosts and pages that requests may come by."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_text
from holdfast.server.errors import Forbidden, Unauthorized

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_TOKEN_MOST: Final = 512


class Scope(StrEnum):
    """What a token allows; `admin` allows everything."""

    READ = "read"
    START = "start"
    CONTROL = "control"
    ADMIN = "admin"


Tokens = str | Mapping[str, Collection[str]]
"""One token with every scope, or each token with its own."""


@dataclass(frozen=True)
class Gate:
    """Lets requests through by their token, and only those that name this server."""

    tokens: Mapping[bytes, frozenset[Scope]] = field(repr=False)
    """By their digests, so that comparing tells nothing of their length."""
    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    """Pages of other places that may ask, as browsers name them."""
    cookies: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The name of each token's cookie; two servers of one host have two."""

    @classmethod
    def of(cls, token: Tokens, *, hosts: Collection[str], origins: Collection[str]) -> "Gate":
        """Make a gate.

        Raises:
            InvalidInput: a token is too short, or a scope is none.
        """
        given = {token: list(Scope)} if isinstance(token, str) else token
        if not given:
            raise InvalidInput("a server needs a token: token=, or HOLDFAST_TOKEN")
        for value in [origins, hosts]:
            if isinstance(value, str):
                raise InvalidInput(f"hosts= and origins= are lists of texts, not {value!r}")
        tokens = {_digest(_checked(each)): _scopes(scopes) for each, scopes in given.items()}
        named = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        cookies = {f"holdfast_{digest.hex()[:8]}": digest for digest in tokens}
        return cls(tokens, named, frozenset(origins), cookies)

    def check_place(self, headers: Headers, scheme: str) -> None:
        """Refuse a request that names another host, or comes from another place's page.

        So a name that somebody else points here, and a page that somebody else wrote, get nothing.

        Raises:
            Forbidden: it does.
        """
        host = headers.get("host", "")
        if _name_of(host) not in self.hosts and host.lower() not in self.hosts:
            error = Forbidden(f"this server does not answer for the host {host[:100]!r}")
            error.hint = "Name it when the server is made: create_app(hosts=[...]) or `holdfast serve --allow-host`."
            raise error
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and not _is_own(origin, host, scheme):
            error = Forbidden(f"pages of {origin[:100]!r} may not ask this server")
            error.hint = "Name them when the server is made: create_app(origins=[...]) or `holdfast serve --origin`."
            raise error

    def token_of(self, request: Request) -> bytes | None:
        """Return the digest of the known token that a request carries; None if it carries none that is known."""
        found: bytes | None = None
        for given in _given(request):
            digest = _digest(given)
            for known in self.tokens:
                if compare_digest(known, digest):
                    found = known
        # A cookie is sent by whatever page the browser shows: it reads, and changes nothing.
        for name, known in self.cookies.items() if request.method in ("GET", "HEAD") else ():
            if compare_digest(_pressed(known).encode(), request.cookies.get(name, "").encode("utf-8", "replace")):
                found = found or known
        return found

    def check(self, request: Request, scope: Scope) -> None:
        """Refuse a request without a token, or with one that does not allow this.

        Raises:
            Unauthorized: there is no token, or it is not known.
            Forbidden: it lacks the scope.
        """
        found = self.token_of(request)
        if found is None:
            raise Unauthorized("a token of this server is needed")
        if not {scope, Scope.ADMIN} & self.tokens[found]:
            error = Forbidden(f"this token does not allow {scope}")
            error.hint = f"Use a token with the scope {scope}."
            raise error

    def cookie(self, digest: bytes) -> tuple[str, str]:
        """Return the name of a token's cookie and what it holds, of which nobody can make the token again.

        Browsers send a cookie to every server of its host, whichever port it has.
        """
        return next(name for name, known in self.cookies.items() if known == digest), _pressed(digest)


def _given(request: Request) -> list[str]:
    """Return the tokens that a request carries in its header or, when it only reads, in its address."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = [bearer.strip()] if scheme.lower() == "bearer" else []
    # Browsers' EventSource and links can send no header.
    if request.method in ("GET", "HEAD") and "token" in request.query_params:
        given.append(request.query_params["token"])
    return given


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _pressed(digest: bytes) -> str:
    """Return what the cookie of a token holds."""
    return sha256(b"cookie" + digest).hexdigest()


def _checked(token: str) -> str:
    checked_text("the token", token, _TOKEN_MOST)
    if len(token.encode()) < limits.TOKEN_BYTES or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(f"a token is at least {limits.TOKEN_BYTES} printable ASCII characters without spaces")
    return token


def _scopes(scopes: Collection[str]) -> frozenset[Scope]:
    if isinstance(scopes, str) or any(scope not in list(Scope) for scope in scopes):
        raise InvalidInput(f"a token's scopes are some of {', '.join(Scope)}, not {scopes!r}")
    return frozenset(Scope(scope) for scope in scopes)


def _name_of(host: str) -> str:
    """Return a host's name without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _is_own(origin: str, host: str, scheme: str) -> bool:
    """Say whether a page is of this server; behind a proxy that speaks TLS it may name another scheme."""
    try:
        page = urlsplit(origin)
    except ValueError:
        return False
    return page.scheme in ("http", "https", scheme) and page.netloc.lower() == host.lower()
