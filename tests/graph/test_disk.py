"""Compiled code kept on disk."""

from __future__ import annotations

import os

import pytest

from symdnn.graph import disk

MAGIC = b"test-1\n"


def test_what_is_kept_is_found_again(tmp_path):
    path = tmp_path / "ab" / "entry"
    disk.keep(path, MAGIC, b"code")
    assert disk.kept(path, MAGIC) == b"code"
    assert os.listdir(path.parent) == ["entry"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_half_written_is_left(tmp_path, monkeypatch, error):
    """Every warning is an error here: the one that an entry cannot be written too."""
    path = tmp_path / "ab" / "entry"

    def fails(*_):
        raise error("no")

    monkeypatch.setattr(disk.os, "replace", fails)
    with pytest.raises((KeyboardInterrupt, RuntimeWarning)):
        disk.keep(path, MAGIC, b"code")
    assert os.listdir(path.parent) == []


def test_a_damaged_entry_is_dropped_though_the_warning_is_an_error(tmp_path):
    path = tmp_path / "ab" / "entry"
    disk.keep(path, MAGIC, b"code")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RuntimeWarning, match="is damaged: dropped"):
        disk.kept(path, MAGIC)
    assert disk.kept(path, MAGIC) is None
