"""PgBouncer before a server, in transaction mode: a session of a client is none of the server's."""

import shutil
import signal
from pathlib import Path
from typing import Final, Self

from tests.rigs.daemon import LOOPBACK, Daemon, Failed, free_port, own_folder
from tests.rigs.server import at_port

_CONFIGURATION: Final = """
[databases]
* = host={host} port={server_port} user=postgres
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
query_wait_timeout = 20
"""


class Bouncer:
    """A pooler whose `pool_size` connections to the server serve one transaction after another, whoever's it is."""

    def __init__(self, server_port: int, *, pool_size: int = 5) -> None:
        self._server_port, self._pool_size = server_port, pool_size
        self._folder = own_folder("holdfast-bouncer-")
        self._daemon = Daemon(folder=self._folder, ready="process up")
        self.port = free_port()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._daemon.stop(signal.SIGTERM)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def before(self, address: str) -> str:
        """Return an address of the server as one that leads through here."""
        return at_port(address, self.port)

    def _start(self) -> None:
        program = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
        if program is None:
            raise Failed("PgBouncer is not installed: apt-get install pgbouncer")
        configuration = Path(self._folder, "pgbouncer.ini")
        configuration.write_text(
            _CONFIGURATION.format(
                host=LOOPBACK, server_port=self._server_port, port=self.port, pool_size=self._pool_size
            ),
            encoding="utf-8",
        )
        self._daemon.start([program, configuration])
