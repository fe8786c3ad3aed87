"""A real small model, killed in mid-stream and resumed: what was watched, what was kept, and what was asked twice."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2

import holdfast as hf
from holdfast import events as ev

_HERE: Final = Path(__file__).parent
_KEY: Final = "story-1"
_PROMPT: Final = "Tell me a story of a lighthouse keeper, in five sentences."
_WORDS_BEFORE_DEATH: Final = 20
_PATIENCE_SECONDS: Final = 300.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _serve(port: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, str(_HERE / "llama.py"), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@asynccontextmanager
async def served_model() -> AsyncIterator[str]:
    """Serve the model in a process of its own and yield its address, once it answers."""
    port = _free_port()
    process = _serve(port)
    address = f"http://127.0.0.1:{port}"
    try:
        async with httpx2.AsyncClient() as client:
            while True:
                if process.poll() is not None:
                    raise SystemExit(f"the model's server ended with status {process.returncode}")
                try:
                    if (await client.get(f"{address}/health")).status_code == httpx2.codes.OK:
                        break
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.1)
        yield f"{address}/v1"
    finally:
        process.kill()
        process.wait()


def start_worker(store: str, model: str) -> "subprocess.Popen[bytes]":
    """Start a process that drives whatever is due, and dies with its group."""
    command = [sys.executable, "-m", "holdfast", "worker", str(_HERE / "storyteller.py"), "--store", store, "--quiet"]
    return subprocess.Popen(command, env={**os.environ, "LOCAL_MODEL": model}, start_new_session=True)


async def watch(run: "hf.Run[str]", after: str | None, words: int | None) -> tuple[str | None, str | None]:
    """Print what is said; return the last event's id, and the whole message once its entry has come.

    With `words`, look away after that many chunks.
    """
    seen = 0
    async for event in run.events(after=after):
        match event:
            case ev.Chunk():
                seen += 1
                print(event.value.get("text", ""), end="", flush=True)
                if words is not None and seen >= words:
                    return event.id, None
            case ev.RunResumed() | ev.PreviewReset():
                print("[another worker goes on, and asks anew]\n", flush=True)
            case ev.MessageAdded(role="assistant"):
                return event.id, "".join(part.get("text", "") for part in event.value)
            case ev.RunFinished():
                break
            case _:
                pass
        after = event.id or after
    return after, None


async def play(folder: Path) -> int:
    """Play every act and hold the claims against the journal."""
    store = f"sqlite:///{folder / 'local.db'}"
    workers = []
    async with served_model() as model, hf.open(store, work=False) as runtime:
        os.environ["LOCAL_MODEL"] = model
        sys.path.insert(0, str(_HERE))
        from storyteller import storyteller  # its model's address is known only now

        run = await runtime.start(storyteller, _PROMPT, key=_KEY)
        try:
            print(f"run {run.id}\n1. A worker asks the model:\n", flush=True)
            workers.append(start_worker(store, model))
            seen, _ = await watch(run, None, _WORDS_BEFORE_DEATH)
            os.killpg(workers[0].pid, signal.SIGKILL)
            print(
                f"\n\n2. kill -9 of worker {workers[0].pid} in mid-stream; the last event seen is {seen}\n", flush=True
            )
            workers.append(start_worker(store, model))
            _, message = await watch(run, seen, None)
            result = await run.result(timeout=60)
            entries = [event async for event in run.events(follow=False)]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    kept = [one for one in entries if isinstance(one, ev.MessageAdded)]
    print("\n\n3. The journal:", ", ".join(one.type for one in entries))
    claims = {
        "one message is kept": len(kept) == 1,
        "it is the result": result == message != "",
        "the run was taken up again": any(isinstance(one, ev.RunResumed) for one in entries),
    }
    for claim, holds in claims.items():
        print(f"   {'yes' if holds else 'NO '}  {claim}")
    return 0 if all(claims.values()) else 1


def main() -> int:
    """Play in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-local-") as folder:
        return asyncio.run(asyncio.wait_for(play(Path(folder)), _PATIENCE_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
