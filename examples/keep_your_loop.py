"""A loop of your own that survives: `python keep_your_loop.py ticket-42`; kill it before its answer, run it again."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import holdfast as hf

Message = dict[str, Any]
PLAN = ("look", "refund", "mail")


def ask_model(messages: list[Message]) -> Message:
    """Stand in for any provider: call one tool after the other, then answer."""
    time.sleep(float(os.environ.get("PAUSE", "0.5")))
    turns = sum(message["role"] == "assistant" for message in messages)
    if turns < len(PLAN):
        return {"role": "assistant", "call": {"id": f"call-{turns}", "tool": PLAN[turns]}}
    return {"role": "assistant", "content": "The order is refunded, and the customer knows."}


def act(tool: str) -> str:
    """Do something that must not be done twice."""
    with Path("done.txt").open("a") as done:
        done.write(f"{tool}\n")
    return f"{tool}: done"


def work_on(ticket: str, question: str) -> str:
    """Ask, act and append until there is an answer; goes on where it was left."""
    with hf.checkpoint.open(ticket) as saved:
        messages: list[Message] = saved.load() or [{"role": "user", "content": question}]
        print(f"attempt {saved.attempt}, {len(messages)} messages", flush=True)
        while "content" not in messages[-1] or messages[-1]["role"] != "assistant":
            if "call" not in messages[-1]:
                messages.append(ask_model(messages))
            if call := messages[-1].get("call"):
                saved.save(messages, phase="tool")
                for key in saved.doubts:
                    print(f"nobody knows whether {key} happened: ask the customer", flush=True)
                    saved.resolve(key, "unknown")
                messages.append({"role": "tool", "text": saved.effect(call["id"], act, call["tool"])})
            saved.save(messages, iteration=len(messages), phase="model")
            print(f"saved {len(messages)} messages", flush=True)
        return str(messages[-1]["content"])


if __name__ == "__main__":
    for left in hf.checkpoint.interrupted():
        print(f"{left.id} was left by process {left.pid} after {left.messages} messages", flush=True)
    print(work_on(sys.argv[1] if len(sys.argv) > 1 else "ticket-42", "Order 42 arrived broken."))
