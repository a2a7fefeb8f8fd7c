"""The cache is bounded, listed and cleared, and touches nothing else."""

from __future__ import annotations

import os
import time

import pytest

from symdnn.config import config
from symdnn.disk import space
from symdnn.disk.store import Store

CODE, CUBINS = Store("object", ".o", b"code\n"), Store("cubin", ".cubin", b"cubin\n")


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(space, "_written_bytes", {})


def key(n: int) -> str:
    return f"{n:064x}"


def filled(base, counts=(10, 10)):
    """Entries of 1000 bytes and some, of which the first are the oldest."""
    now = time.time()
    for store, count in zip((CODE, CUBINS), counts):
        for n in range(count):
            store.put(key(n), bytes(1000), base / store.kind)
            path = base / store.kind / f"{key(n)}{store.suffix}"
            os.utime(path, (now - 1000 + n, now - 1000 + n))
    (base / "tuning" / "ab").mkdir(parents=True)
    record = base / "tuning" / "ab" / f"{'ab' * 32}.json"
    record.write_text("{}")
    os.utime(record, (1e9, 1e9))
    for name in ("notes.txt", "main.o", "object/main.o", "object/ab.cubin"):
        (base / name).write_bytes(bytes(5000))


def names(base):
    return sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file())


def test_what_was_used_longest_ago_goes_first_and_measured_choices_last(tmp_path):
    filled(tmp_path)
    space.bound(tmp_path, 12_000)
    left = [(e.kind, int(e.key, 16)) for e in space.entries(tmp_path) if e.kind != "tuning"]
    assert sorted(left) == [(kind, n) for kind in ("cubin", "object") for n in (5, 6, 7, 8, 9)]
    assert sum(e.kind == "tuning" for e in space.entries(tmp_path)) == 1
    assert {"notes.txt", "main.o", "object/main.o", "object/ab.cubin"} <= set(names(tmp_path))
    space.bound(tmp_path, 1)
    assert list(space.entries(tmp_path)) == []


def test_the_flag_bounds_what_a_process_writes(tmp_path):
    with config.change_flags(base_compiledir_bytes=50_000):
        for n in range(400):
            CODE.put(key(n), bytes(1000), tmp_path / "own")
            assert sum(e.nbytes for e in space.entries(tmp_path / "own")) <= 55_000
    assert CODE.get(key(399), tmp_path / "own") == bytes(1000)  # the newest are there
    with config.change_flags(base_compiledir_bytes=0):
        for n in range(100):
            CODE.put(key(n), bytes(1000), tmp_path / "all")
    assert len(list(space.entries(tmp_path / "all"))) == 100


def test_leftovers_of_killed_writers_are_removed_when_they_are_old(tmp_path):
    filled(tmp_path)
    old, young = (tmp_path / "object" / f".x.{d * 16}.part" for d in "01")
    for path in (old, young):
        path.touch()
    os.utime(old, (1e9, 1e9))
    before = set(names(tmp_path))
    assert space.clean(tmp_path) == 1
    assert before - set(names(tmp_path)) == {str(old.relative_to(tmp_path))}


def test_clearing_takes_entries_only(tmp_path):
    filled(tmp_path)
    space.clear(tmp_path)
    assert [n for n in names(tmp_path) if ".bounded" not in n] == [
        "main.o", "notes.txt", "object/ab.cubin", "object/main.o",
    ]  # fmt: skip


def test_a_kinds_folder_that_is_a_link_is_let_be(tmp_path):
    filled(tmp_path / "elsewhere")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "object").symlink_to(tmp_path / "elsewhere" / "object")
    space.clear(tmp_path / "base")
    assert len(list(space.entries(tmp_path / "elsewhere"))) == 21
