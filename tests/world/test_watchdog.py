"""A section that takes too long ends its process, with its words, the stacks and the news."""

import subprocess
import sys

from symdnn.world.watchdog import Watchdog
from tests.environment import environment

PROGRAM = """
import time
from symdnn.world.watchdog import Watchdog

def told(why):
    print("TOLD", why, flush=True)
    time.sleep(1000)

dog = Watchdog(told)
with dog.during("a call", 1000):
    with dog.during("a short call", 1000):
        pass
    print("BETWEEN")  # in a buffer
    with dog.during("a library", 0.2):
        time.sleep(1000)
"""


def test_a_section_that_does_not_end():
    """Its process ends, though the news of it is not heard either."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 1
    assert "TOLD a library did not return within 0.2 s\n" in done.stdout
    assert "BETWEEN" in done.stdout
    assert 'File "<string>", line 15 in <module>' in done.stderr


def test_sections_that_end_are_forgotten():
    said = []
    dog = Watchdog(said.append)
    for _ in range(3):
        with dog.during("a call", 1000):
            pass
    assert not dog._sections
    assert not said
