"""A store's address on PostgreSQL: what is ours in it, and what is the server's."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from holdfast.core.errors import StoreRefused

DEFAULT_SCHEMA: Final = "holdfast"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_OURS: Final = ("schema", "pool", "listen", "durability")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is."""

    conninfo: str
    """What libpq is given."""
    schema: str
    pool: int
    """How many connections may read at once."""
    listen: str
    """What libpq is given for the connection that listens: where a pooler stands between, the server itself."""
    weak: bool
    """True where losing what was acknowledged in a crash of the server was asked for by name."""

    def __str__(self) -> str:
        """Say which store it is, without the password."""
        known = conninfo_to_dict(self.conninfo)
        place = f"{known.get('host', 'localhost')}:{known.get('port', 5432)}"
        return f"postgresql://{place}/{known.get('dbname', '')}?schema={self.schema}"


def parse(address: str) -> Address:
    """Return what an address says.

    Raises:
        StoreRefused: it says something that cannot be meant.
    """
    parts = urlsplit(address)
    query = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in query if name in _OURS}
    rest = urlencode([(name, value) for name, value in query if name not in _OURS], quote_via=quote)
    conninfo = urlunsplit((parts.scheme, parts.netloc, parts.path, rest, ""))
    try:
        conninfo_to_dict(conninfo)
    except ProgrammingError as error:
        refused = StoreRefused(f"the store's address is not one of PostgreSQL's: {str(error).strip()}")
        refused.hint = (
            f"Behind ? stand {', '.join(_OURS)}, and the parameters of libpq, such as sslmode and connect_timeout."
        )
        raise refused from error
    schema = ours.get("schema", DEFAULT_SCHEMA)
    if not _NAME.fullmatch(schema) or schema.lower().startswith("pg_"):
        raise StoreRefused(f"schema={schema!r} is not a name of letters, digits and _ of at most 63 characters")
    pool = ours.get("pool", "8")
    if not pool.isdecimal() or not 1 <= int(pool) <= 1000:
        raise StoreRefused(f"pool={pool!r} is not a number of connections from 1 to 1000")
    if ours.get("durability", "full") not in ("full", "weak"):
        raise StoreRefused(f"durability={ours['durability']!r} is neither full nor weak")
    return Address(conninfo, schema, int(pool), ours.get("listen") or conninfo, ours.get("durability") == "weak")
