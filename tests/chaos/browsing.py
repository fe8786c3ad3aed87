"""A watcher that is Chromium: its own EventSource reads, and connects again by itself when the server dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from playwright.async_api import Page, Response, async_playwright

from holdfast import events
from tests.chaos.judge import Broken
from tests.chaos.watched import TOKEN
from tests.chaos.watcher import Watcher
from tests.rigs.chromium import launching

_SECONDS: Final = 60.0
_TYPES: Final = [*(name for name in events.__all__ if name[0].isupper()), "chunk", "preview.reset", "stream.failed"]
"""EventSource tells of a type only whom it was named to."""
_PAGE: Final = """([run, token, types, stays]) => {
  let last = "", stay = 0, source, told = [], wake = () => {};
  const tell = (...words) => { told.push(words); wake(); };
  const take = (event) => {
    last = event.lastEventId || last;  // a message without an id may be the first that a new one gets
    tell("came", event.data);
    if (--stay > 0) return;
    event.target.close();
    tell("left");
    open();
  };
  const open = () => {
    stay = 1 + Math.floor(Math.random() * stays[Math.floor(Math.random() * stays.length)]);
    const after = last && `&after=${encodeURIComponent(last)}`;
    source = new EventSource(`/v1/runs/${run}/events?token=${token}${after}`);
    for (const type of types) source.addEventListener(type, take);
    let connected = false, again = false;
    source.onopen = () => { connected = true; if (again) tell("again"); };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) return tell("closed");
      if (connected) tell("cut");
      connected = false, again = true;
    };
  };
  window.reopen = open;
  window.told = async () => {
    if (!told.length) await new Promise((resolve) => { wake = resolve; });
    return told.splice(0);
  };
  open();
}"""


@asynccontextmanager
async def browsing(port: int) -> AsyncIterator[Page]:
    """Give a page of the server at a port."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**launching())
        page = await browser.new_page(bypass_csp=True)  # the page is ours here, and its code the trial's
        page.set_default_timeout(_SECONDS * 1000)
        await page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
        yield page
        await browser.close()


@dataclass(kw_only=True)
class Browser(Watcher):
    """Watches by a page's EventSource, which is left by chance, and otherwise connects again as browsers do."""

    page: Page
    left: int = 0
    """How often a new one was made, which says in the address what it has, as it can send no header."""
    by_itself: int = 0
    """How often one connected again, which says what it has by its own header."""

    async def watch(self) -> None:
        refusals: asyncio.Queue[int] = asyncio.Queue()

        def answered(answer: Response) -> None:
            if answer.status != 200:
                refusals.put_nowait(answer.status)

        self.page.on("response", answered)
        try:
            await self.page.evaluate(_PAGE, [self.run, TOKEN, _TYPES, self.stays])
            closed = False
            while not closed:
                for what, *line in await self.page.evaluate("window.told()"):
                    closed = await self._hear(what, line, refusals)
        finally:
            self.page.remove_listener("response", answered)

    async def _hear(self, what: str, line: list[Any], refusals: "asyncio.Queue[int]") -> bool:
        """Take in what the page tells, and say whether that was the end."""
        match what:
            case "came":
                self.take(*line)
            case "left":
                self.left += 1
                self.reconnects += 1
            case "cut":
                self.cut += not self.over
            case "again":
                self.by_itself += 1
                self.reconnects += 1
            case "closed":
                return await self._end(await asyncio.wait_for(refusals.get(), _SECONDS))
        return False

    async def _end(self, status: int) -> bool:
        """Stop where the server says that nothing follows; come again where it is busy."""
        if status == 204 and self.over:
            return True
        if status != 503:
            raise Broken(f"{self} was answered {status} after {self.last!r}, {self.over=}")
        self.reconnects += 1
        await asyncio.sleep(self.chance.uniform(0.01, 0.1))
        await self.page.evaluate("window.reopen()")
        return False
