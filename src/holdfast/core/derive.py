"""What is derived from a run's seed instead of being recorded: idempotency keys, ids and chance."""

from hashlib import blake2b
from random import Random
from uuid import UUID


def _derive(seed: str, purpose: str, step: str, size: int) -> bytes:
    # The key makes purposes independent; the step key holds the generation, so no value comes again after it is raised.
    return blake2b(step.encode(), digest_size=size, key=bytes.fromhex(seed), person=purpose.encode()).digest()


def idempotency_key(seed: str, step: str) -> str:
    """Return the key to send with a step's request: the same at every attempt, on every machine."""
    return "hf_" + _derive(seed, "idempotency", step, 20).hex()


def derived_uuid(seed: str, step: str) -> UUID:
    """Return a version 4 UUID that replays as itself."""
    return UUID(bytes=_derive(seed, "uuid", step, 16), version=4)


def derived_random(seed: str, branch: str) -> Random:
    """Return a generator that gives a branch the same numbers on every replay."""
    return Random(_derive(seed, "random", branch, 32))
