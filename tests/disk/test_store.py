"""Entries kept on disk: found again under their own name, and only whole."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from symdnn.disk import atomic
from symdnn.disk.store import Store

THINGS = Store("things", ".o", b"test-1\n")
KEY, OTHER = "a" * 64, "b" * 64


def test_what_is_kept_is_found_again(tmp_path):
    THINGS.put(KEY, b"code", tmp_path / "new")
    assert THINGS.get(KEY, tmp_path / "new") == b"code"
    assert [n for n in os.listdir(tmp_path / "new") if not n.startswith(".")] == [f"{KEY}.o"]
    assert THINGS.get(OTHER, tmp_path / "new") is None
    THINGS.drop(KEY, tmp_path / "new")
    assert THINGS.get(KEY, tmp_path / "new") is None


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077, 0o777])
def test_folders_and_files_are_the_users_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        THINGS.put(KEY, b"code", tmp_path / "one" / "two")
    finally:
        os.umask(before)
    for folder in (tmp_path / "one", tmp_path / "one" / "two"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in (tmp_path / "one" / "two").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert THINGS.get(KEY, tmp_path / "one" / "two") == b"code"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_half_written_is_left(tmp_path, monkeypatch, error):
    """Every warning is an error here: the one that an entry cannot be written too."""

    def fails(*_):
        raise error("no")

    monkeypatch.setattr(atomic.os, "replace", fails)
    with pytest.raises((KeyboardInterrupt, RuntimeWarning)):
        THINGS.put(KEY, b"code", tmp_path)
    assert os.listdir(tmp_path) == []


def _swapped(entry: Path) -> None:
    entry.write_bytes(entry.with_name(f"{OTHER}.o").read_bytes())


def _changed(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)


def _linked(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to(entry.with_name("elsewhere"))


def _pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry, 0o600)


DAMAGES = {
    "cut": lambda e: e.write_bytes(e.read_bytes()[:-1]),
    "emptied": lambda e: e.write_bytes(b""),
    "changed": _changed,
    "longer": lambda e: e.write_bytes(e.read_bytes() + b"\0"),
    "another's": _swapped,
    "a link": _linked,
    "a pipe": _pipe,
    "for others to write": lambda e: e.chmod(0o666),
    "for a group to write": lambda e: e.chmod(0o660),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_believed_is_dropped_though_the_warning_is_an_error(tmp_path, damage):
    THINGS.put(KEY, b"code", tmp_path)
    THINGS.put(OTHER, b"other", tmp_path)
    DAMAGES[damage](tmp_path / f"{KEY}.o")
    with pytest.raises(RuntimeWarning, match=": dropped, compiled anew"):
        THINGS.get(KEY, tmp_path)
    assert THINGS.get(KEY, tmp_path) is None  # and nothing is said any more
    THINGS.put(KEY, b"again", tmp_path)
    assert THINGS.get(KEY, tmp_path) == b"again"
    assert THINGS.get(OTHER, tmp_path) == b"other"


def test_a_content_that_cannot_be_is_dropped(tmp_path):
    THINGS.put(KEY, b"code", tmp_path)
    with pytest.warns(RuntimeWarning, match=r"is damaged \(too short\): dropped"):
        assert THINGS.get(KEY, tmp_path, lambda body: "too short") is None
    assert THINGS.get(KEY, tmp_path) is None


def test_a_file_that_others_may_read_is_closed(tmp_path):
    THINGS.put(KEY, b"code", tmp_path)
    (tmp_path / f"{KEY}.o").chmod(0o644)
    assert THINGS.get(KEY, tmp_path) == b"code"
    assert stat.S_IMODE((tmp_path / f"{KEY}.o").stat().st_mode) == 0o600


def test_an_entry_that_is_used_is_young_again(tmp_path):
    THINGS.put(KEY, b"code", tmp_path)
    file = tmp_path / f"{KEY}.o"
    os.utime(file, (1e9, 1e9))
    THINGS.get(KEY, tmp_path)
    assert file.stat().st_mtime > 1.6e9


PARALLEL = """
import os, sys, traceback, warnings
warnings.simplefilter("error")
from pathlib import Path
from symdnn.config import config
from symdnn.disk import space
from symdnn.disk.store import Store
things, folder = Store("things", ".o", b"test-1\\n"), Path(sys.argv[1])
keys = [f"{k:064x}" for k in range(40)]

def work():
    for turn in range(30):
        for key in keys:
            body = things.get(key, folder)
            assert body in (None, key.encode() * 100), body
            if body is None:
                things.put(key, key.encode() * 100, folder)
        space.bound(folder, 100_000)

children = []
for _ in range(16):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_processes_that_write_read_and_make_room_at_once(tmp_path):
    """40 entries of 6.4 KB where 100 KB are allowed."""
    done = subprocess.run(
        [sys.executable, "-c", PARALLEL, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == str([0] * 16), done.stderr
    assert not [n for n in os.listdir(tmp_path) if n.endswith(".part")]


def test_the_first_entry_stays_in_a_branch_of_its_folder(tmp_path):
    first = Store("things", ".o", b"test-1\n", branches=True, first_stays=True)
    assert first.put(KEY, b"code", tmp_path)
    assert first.put(KEY, b"other", tmp_path)
    assert first.get(KEY, tmp_path) == b"code"
    assert [p.relative_to(tmp_path) for p in tmp_path.rglob("*.o")] == [Path(KEY[:2], f"{KEY}.o")]
