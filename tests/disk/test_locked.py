"""A lock that processes hold while they make an entry of a cache."""

import subprocess
import sys
import time

from symdnn.disk.atomic import locked
from symdnn.disk.store import Store

HELD = """
import sys, time
from pathlib import Path
from symdnn.disk.atomic import locked
with locked(Path(sys.argv[1]), 5.0) as held:
    print(held, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def held_elsewhere(path, seconds):
    command = [sys.executable, "-c", HELD, str(path), str(seconds)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "True\n"
    return other


def test_another_process_waits_until_it_is_released(tmp_path):
    path = tmp_path / ".entry.lock"
    with held_elsewhere(path, 0.4) as other, locked(path, 20.0) as held:
        assert held
        assert other.wait(5) == 0
        assert path.exists()
    assert not path.exists()


def test_the_lock_of_a_process_that_dies_is_free(tmp_path):
    path = tmp_path / ".entry.lock"
    with held_elsewhere(path, 60) as other:
        other.kill()
        start = time.monotonic()
        with locked(path, 20.0) as held:
            assert held
        assert time.monotonic() - start < 10


def test_after_the_limit_the_block_runs_without_it(tmp_path):
    path = tmp_path / ".entry.lock"
    with held_elsewhere(path, 60) as other:
        with locked(path, 0.1) as held:
            assert not held
        assert path.exists()  # the other one's
        other.kill()
    with locked(tmp_path / "no folder" / ".entry.lock", 1.0) as held:
        assert not held


def test_an_entry_that_is_made_has_no_lock_left(tmp_path):
    store = Store("things", ".thing", b"a thing\n")
    with store.making("ab", tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == [".ab.lock"]
        assert store.put("ab", b"content", tmp_path)
    assert not list(tmp_path.glob(".*.lock"))
    assert store.get("ab", tmp_path) == b"content"
