"""Files that appear whole or not at all, and what killed writers left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from symdnn.disk import atomic
from symdnn.disk.atomic import clean, write_atomically

DYING = """
import os, signal, sys
from pathlib import Path
from symdnn.disk import atomic
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
atomic.os.replace = die
atomic.write_atomically(Path(sys.argv[1]), b"half")
"""
WAITING = DYING.replace(
    "os.kill(os.getpid(), signal.SIGKILL)", "print('there', flush=True), sys.stdin.read()"
)


def names(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("name", ["w.npz", "x" * 250, "é" * 120, "a b.[0]"])
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path, name):
    done = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / name)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    assert clean(tmp_path, "another") == 0  # it may be wanted: it is young, and not another's
    assert clean(tmp_path, name) == 1
    write_atomically(tmp_path / name, b"whole")
    assert names(tmp_path) == [name]


def test_what_somebody_is_writing_is_let_be(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path / "w")],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert writer.stdout.readline() == "there\n"
    (left,) = tmp_path.iterdir()
    os.utime(left, (1e9, 1e9))  # however old
    assert clean(tmp_path, "w") == 0
    writer.kill()
    writer.communicate()
    assert clean(tmp_path, "w") == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", [".w.npz.0123456789abcdef.part", ".w.npz.01234567.tmp",
                                  ".abcd_123.part"])  # fmt: skip
def test_old_leftovers_of_any_file_are_removed(tmp_path, name):
    left = tmp_path / name
    left.write_bytes(b"half")
    assert clean(tmp_path) == 0
    old = time.time() - 2 * atomic.ABANDONED_AGE_S
    os.utime(left, (old, old))
    for other in ("w.npz", ".hidden", ".w.part", "notes.tmp"):
        (tmp_path / other).write_bytes(b"the user's")
        os.utime(tmp_path / other, (old, old))
    assert clean(tmp_path) == 1
    assert names(tmp_path) == sorted(["w.npz", ".hidden", ".w.part", "notes.tmp"])


def test_permissions_are_kept(tmp_path):
    path = tmp_path / "w"
    write_atomically(path, b"1")
    path.chmod(0o640)
    write_atomically(path, b"2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    write_atomically(path, b"3", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_first_stays_without_replacing(tmp_path):
    write_atomically(tmp_path / "w", b"1", replace=False)
    write_atomically(tmp_path / "w", b"2", replace=False)
    assert (tmp_path / "w").read_bytes() == b"1"
    assert names(tmp_path) == ["w"]


def test_without_locks_and_links_it_works_too(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("not here")

    monkeypatch.setattr(atomic.fcntl, "flock", fails)
    monkeypatch.setattr(atomic.os, "link", fails)
    for replace in (True, False):
        write_atomically(tmp_path / "w", b"1", replace=replace)
        write_atomically(tmp_path / "new", b"1", replace=replace)
    assert names(tmp_path) == ["new", "w"]
    (tmp_path / ".w.0123456789abcdef.part").touch()
    assert clean(tmp_path, "w") == 0  # somebody may be writing it
