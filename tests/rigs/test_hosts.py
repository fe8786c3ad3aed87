"""A host of the tests has a network of its own, and loses it without a word when its cable is cut."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from tests.rigs.hosts import Network, container
from tests.rigs.server import Server

ECHO = """
import socket, sys
line = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
while data := line.recv(1):
    line.sendall(b"!")
"""
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)
except OSError:
    sys.exit(3)
"""
WHO = "import json, os, socket; print(json.dumps([os.getpid(), socket.gethostname(), os.listdir('/proc')]))"
ASK = "import psycopg, sys; print(psycopg.connect(sys.argv[1]).execute('SELECT inet_client_addr()').fetchone()[0])"


@pytest.fixture
def network() -> Iterator[Network]:
    """A switch with nothing in it yet."""
    with Network() as standing:
        yield standing


def test_what_is_sent_over_a_cut_cable_arrives_after_it_is_mended(network: Network) -> None:
    """The connection lives on both sides while the cable is cut: silence is all that either notices."""
    host = network.host()
    with socket.create_server((network.gateway, 0)) as listening:
        listening.settimeout(10)
        port = str(listening.getsockname()[1])
        worker = subprocess.Popen(host.inside([sys.executable, "-c", ECHO, network.gateway, port]))
        line, peer = listening.accept()
        with line:
            assert peer[0] == host.address
            assert answers(line, within=10)
            host.cut()
            assert not answers(line, within=0.3)
            host.mend()
            line.settimeout(10)
            assert line.recv(1) == b"!"
    assert worker.wait(10) == 0


def test_another_host_is_not_touched_by_a_cut(network: Network) -> None:
    """One machine of two is lost."""
    lost, other = network.host(), network.host()
    lost.cut()
    with socket.create_server((network.gateway, 0)) as listening:
        reach = [sys.executable, "-c", REACH, network.gateway, str(listening.getsockname()[1])]
        ends = [subprocess.run(host.inside(reach), timeout=30, check=False).returncode for host in (lost, other)]
    assert ends == [3, 0]


def test_a_server_is_reached_from_a_host_by_the_hosts_own_address(network: Network) -> None:
    """The server sees another machine."""
    host = network.host()
    with Server(listen=(network.gateway,)) as server:
        with psycopg.connect(server.address()) as here:
            assert here.execute("SELECT 1").fetchone() == (1,)
        address = server.address(host=network.gateway)
        asked = subprocess.run(
            host.inside([sys.executable, "-c", ASK, address]), capture_output=True, text=True, timeout=30, check=True
        )
    assert asked.stdout.strip() == host.address


def test_two_containers_have_one_name_and_one_process_id() -> None:
    """Host name and process id prove nothing: both are those of somebody else too."""
    command = container([sys.executable, "-c", WHO], hostname="worker")
    told = [json.loads(subprocess.run(command, capture_output=True, timeout=30, check=True).stdout) for _ in range(2)]
    assert [(pid, name) for pid, name, _ in told] == [(1, "worker"), (1, "worker")]
    assert all([entry for entry in seen if entry.isdigit()] == ["1"] for _, _, seen in told)
    assert socket.gethostname() != "worker"


def answers(line: socket.socket, *, within: float) -> bool:
    """Ask, and say whether an answer came in time."""
    line.settimeout(within)
    line.sendall(b"?")
    try:
        return line.recv(1) == b"!"
    except TimeoutError:
        return False
