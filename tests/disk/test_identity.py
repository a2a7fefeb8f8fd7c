"""What made an entry is known by its content: not by names, sizes and times of files."""

from __future__ import annotations

import os
import time

import pytest

from symdnn.disk import identity

PATHS = ["cpu/loops.py", "cpu/deep/er/tile.py", "ops/core/scalar.py", "words.py"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of four files, older than this process."""
    for name in PATHS:
        path = tmp_path / "symdnn" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\nx = 1\n")
        os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(identity, "_PACKAGE", tmp_path / "symdnn")
    monkeypatch.setattr(identity, "_IMPORTED_NS", time.time_ns() + 10**10)
    return tmp_path / "symdnn"


def digest() -> str:
    identity.sources_digest.cache_clear()
    try:
        return identity.sources_digest("cpu", "ops", "words")
    finally:
        identity.sources_digest.cache_clear()


@pytest.mark.parametrize("name", PATHS)
def test_another_content_of_equal_size_and_time_is_another(package, name):
    before = digest()
    (package / name).write_text((package / name).read_text().replace("1", "2"))
    os.utime(package / name, (1e9, 1e9))
    assert digest() != before
    (package / name).write_text((package / name).read_text().replace("2", "1"))
    assert digest() == before  # times do not matter


def test_a_file_that_is_moved_added_or_gone_is_another(package):
    found = {digest()}
    (package / "cpu/loops.py").rename(package / "cpu/rows.py")
    found.add(digest())
    (package / "cpu/more.py").touch()
    found.add(digest())
    (package / "cpu/rows.py").unlink()
    found.add(digest())
    assert len(found) == 4


def test_what_python_writes_beside_it_and_where_it_lies_do_not_matter(package, monkeypatch):
    before = digest()
    (package / "cpu/__pycache__").mkdir()
    (package / "cpu/__pycache__/loops.cpython-311.pyc").write_bytes(b"code")
    assert digest() == before
    elsewhere = package.with_name("another place")
    package.rename(elsewhere)
    monkeypatch.setattr(identity, "_PACKAGE", elsewhere)
    assert digest() == before


def test_sources_that_changed_since_they_were_imported_are_not_what_runs(package, monkeypatch):
    monkeypatch.setattr(identity, "_IMPORTED_NS", time.time_ns() - 10**10)
    assert digest() == ""


def test_without_files_it_is_not_known_what_runs(package, monkeypatch):
    monkeypatch.setattr(identity, "_PACKAGE", package / "nowhere")
    assert digest() == ""


def test_libraries_of_equal_size_and_time_are_told_apart(tmp_path):
    path = tmp_path / "lib.so"
    found = set()
    for at in (None, 10, -10):
        content = bytearray(1 << 20)
        if at is not None:
            content[at] = 1
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))
        found.add(identity.library_digest([path]))
    assert len(found) == 3
