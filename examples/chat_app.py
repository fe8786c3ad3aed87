"""A chat in the browser with FastAPI: words as they come, in a conversation that survives the server.

pip install fastapi
python examples/chat_app.py            # then open http://127.0.0.1:8000

Kill it in the middle of an answer and start it again: the page asks with the same key, joins the same turn and shows
the whole answer. It needs no key: without MODEL it answers with your own words; with MODEL=openai:gpt-5-mini, or
another, a real model is asked.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

import holdfast as hf
from holdfast.models import Message, Model, Reply, Say, Text, TextPiece
from holdfast.models import Request as Asked

PAGE = """<!doctype html><title>chat</title><body style="font: 1.1em sans-serif; max-width: 40em; margin: 2em auto">
<div id="said"></div><form><input size="50" autofocus placeholder="Say something"></form>
<script>
const chat = localStorage.chat ??= crypto.randomUUID();
const add = () => document.querySelector("#said").appendChild(document.createElement("p"));
async function say(text, key, into) {
  const headers = {"content-type": "application/json", "idempotency-key": key};
  const answer = await fetch(`/chat/${chat}`, {method: "POST", headers, body: JSON.stringify({text})});
  let rest = "", words = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\\n");
    rest = lines.pop();
    for (const event of lines.filter(Boolean).map(JSON.parse)) {
      if (event.type === "chunk" && event.data.value.kind === "text") words += event.data.value.text;
      if (["preview.reset", "StepFailed", "RunResumed", "MessageAdded"].includes(event.type)) words = "";
      if (event.type === "session.run.completed") return into.textContent = event.result;
      if (event.type === "session.run.failed") return into.textContent = `(${event.reason})`;
      into.textContent = words;
    }
  }
  throw new Error("the connection was lost");
}
document.querySelector("form").onsubmit = async (event) => {
  event.preventDefault();
  const text = event.target[0].value, key = crypto.randomUUID();
  event.target.reset();
  add().textContent = text;
  for (const into = add(); ; await new Promise((done) => setTimeout(done, 1000)))
    try { return await say(text, key, into); } catch { /* the same key joins the same turn */ }
};
</script>"""


class Parrot:
    """A model that needs no key: it says what it was told, slowly."""

    name = lane = "example:parrot"

    async def ask(self, request: Asked, say: Say) -> Reply:
        """Repeat the last message, word by word."""
        words = f"You said: {request.messages[-1].text}".split(" ")
        for word in words:
            say(TextPiece(f"{word} "))
            await asyncio.sleep(float(os.environ.get("PAUSE", "0.1")))
        return Reply(Message("assistant", (Text(" ".join(words)),)))


model: Model | str = os.environ.get("MODEL") or Parrot()
friend = hf.Agent("friend", model=model, instructions="You are a kind and brief companion.")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep the store open, and a worker in it, for as long as the server lives."""
    async with hf.open(None, hf.App(friend)) as runtime:
        app.state.runtime = runtime
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def page() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(PAGE)


@app.post("/chat/{conversation}")
async def chat(conversation: str, request: Request) -> Response:
    """Take a turn; whoever comes again with the same key joins it. Who may ask is for you to say here."""
    text = (await request.json())["text"]
    return await hf.server.handle_chat_turn(
        request.app.state.runtime, friend, request, conversation=conversation, message=text
    )


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8000)
