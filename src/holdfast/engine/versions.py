"""The versions of a program's code as its store knows them: each name's own, and its place among those before it."""

import time
from typing import Final

from holdfast.core.version import CodeVersion, Served
from holdfast.engine.app import App
from holdfast.store.protocol import Store

_FORGET_SECONDS: Final = 1.0
"""How long it is taken for granted that no worker serves a version."""


class Versions:
    """What one worker serves, and with which versions; only who drives runs has a place in their order."""

    def __init__(self, store: Store, app: App) -> None:
        self._store, self._app = store, app
        self.bound = True
        """False for one that was told which runs to drive: whoever named them wants this code to, whatever had them."""
        self._serves: dict[str, Served] = {}
        self._known: dict[tuple[str, str], CodeVersion] = {}
        self._unknown: dict[tuple[str, str], float] = {}
        """Versions that no worker had served, and when that was looked for."""

    @property
    def is_complete(self) -> bool:
        """True when every name of the app has its place."""
        return len(self._serves) == len(self._app.names)

    async def enrol(self) -> None:
        """Make every version known to the store that is not yet: from now on it is the latest of its name."""
        new = [version for version in self._app.versions() if version.name not in self._serves]
        if not new:
            return
        for version in await self._store.enrol(new):
            self._known[version.name, version.code] = version
            part = self._app.get(version.name)
            assert part is not None
            self._serves[version.name] = Served(self._app.token(part), code=version.code, place=version.place)

    def serves(self) -> dict[str, Served]:
        """Return every name that has its place, with the version that it is served with."""
        if self.bound:
            return self._serves
        return {name: Served(served, code=served.code) for name, served in self._serves.items()}

    def of(self, name: str) -> Served:
        """Return the version that a name is served with; one without a place if it is not."""
        return self._serves.get(name) or Served("", place=0)

    async def find(self, name: str, code: str) -> CodeVersion | None:
        """Return what the store knows of a version; None when no worker ever served it."""
        now = time.monotonic()
        if (name, code) not in self._known and now - self._unknown.get(
            (name, code), -_FORGET_SECONDS
        ) >= _FORGET_SECONDS:
            self._unknown = {(name, code): now}
            self._known |= {(known.name, known.code): known for known in await self._store.versions(name)}
        return self._known.get((name, code))
