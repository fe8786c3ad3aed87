"""A shifted process sees another date, and the same time pass."""

import json
import subprocess
import sys
import time

import pytest

from tests.rigs.faketime import AN_HOUR_BACK, FIVE_MINUTES_ON, TEN_YEARS_ON, shifted

CLOCKS = """
import asyncio, json, threading, time

async def rest():
    await asyncio.wait_for(asyncio.Event().wait(), 0.2)

started = time.monotonic()
threading.Event().wait(0.2)
try:
    asyncio.run(rest())
except TimeoutError:
    pass
print(json.dumps([time.time(), time.monotonic(), time.monotonic() - started]))
"""


@pytest.mark.parametrize("by", [AN_HOUR_BACK, TEN_YEARS_ON, FIVE_MINUTES_ON])
def test_a_shifted_process_has_another_date_and_everybodys_monotonic_clock(by: str) -> None:
    """The calendar is off by what was asked; waits take as long as ever and count from the same beginning."""
    asked = subprocess.run(
        [sys.executable, "-c", CLOCKS], env=shifted(by), capture_output=True, text=True, timeout=60, check=True
    )
    date, monotonic, waited = json.loads(asked.stdout)
    assert date - time.time() == pytest.approx(float(by), abs=30)
    assert monotonic == pytest.approx(time.monotonic(), abs=30)
    assert 0.4 <= waited < 10
