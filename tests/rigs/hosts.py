"""Machines of our own: each with its network, behind a cable that can be cut and mended; needs root."""

import contextlib
import os
import random
import subprocess
from collections.abc import Sequence
from typing import Any, Final, Self

_COMMAND_SECONDS: Final = 30.0
_TRIES: Final = 20


class Network:
    """A switch that this machine is plugged into as `gateway`; hosts are plugged in by name. Usable in `with`."""

    def __init__(self) -> None:
        self._token = os.urandom(3).hex()
        self._switch = f"hf{self._token}"
        self._hosts: list[Host] = []
        self._third = 0

    def __enter__(self) -> Self:
        # With an address of its own: a bridge takes that of one of its ports, and is then reached over a cut cable.
        _ip("link", "add", self._switch, "address", "02:00:00:00:00:01", "type", "bridge")
        try:
            self._third = self._free_subnet()
            _ip("address", "add", f"{self.gateway}/24", "dev", self._switch)
            _ip("link", "set", self._switch, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self._hosts:
            host.close()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self._switch)

    @property
    def gateway(self) -> str:
        """This machine's address, as the hosts reach it."""
        return f"10.213.{self._third}.1"

    def host(self) -> "Host":
        """Plug another host in."""
        number = len(self._hosts) + 2
        host = Host(f"{self._switch}-{number}", self._switch, f"10.213.{self._third}.{number}")
        self._hosts.append(host)
        host.open()
        return host

    def _free_subnet(self) -> int:
        """Choose a subnet that no network like this one has."""
        taken = _ip("-4", "-brief", "address")
        for _ in range(_TRIES):
            third = random.randrange(256)
            if f" 10.213.{third}." not in taken:
                return third
        raise RuntimeError("there are too many networks already")


class Host:
    """A machine as far as its network goes: processes in it have their own interfaces, ports and routes."""

    def __init__(self, name: str, switch: str, address: str) -> None:
        self._name, self._switch, self.address = name, switch, address

    def open(self) -> None:
        """Build it and plug it in."""
        _ip("netns", "add", self._name)
        _ip("link", "add", self._name, "type", "veth", "peer", "name", "eth0", "netns", self._name)
        _ip("link", "set", self._name, "up")
        _ip("-netns", self._name, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-netns", self._name, "link", "set", device, "up")
        self.mend()

    def close(self) -> None:
        """Take it down; processes that still run in it lose their network."""
        for command in (["link", "delete", self._name], ["netns", "delete", self._name]):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*command)

    def cut(self) -> None:
        """Pull the cable in the middle: both ends stay up, and every packet is lost without a word."""
        _ip("link", "set", self._name, "nomaster")

    def mend(self) -> None:
        """Plug the cable in again."""
        _ip("link", "set", self._name, "master", self._switch)

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on this host; its process id is the same."""
        return ["ip", "netns", "exec", self._name, *command]


def container(command: Sequence[str], *, hostname: str) -> list[str]:
    """Return the command that runs `command` as process 1 of a container of this name.

    Two containers with one name have one host name and equal process ids, and see nothing of each other's processes.
    They share files and network with this machine. What runs in one ends with the process that was started.
    """
    unshare = ["unshare", "--fork", "--pid", "--mount-proc", "--uts", "--kill-child"]
    return [*unshare, "sh", "-c", 'hostname "$0" && exec "$@"', hostname, *command]


def _ip(*arguments: str) -> str:
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _COMMAND_SECONDS}
    return subprocess.run(["ip", *arguments], check=True, **options).stdout
