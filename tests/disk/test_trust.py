"""Which folders and files are believed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from symdnn.config import config
from symdnn.disk import trust
from symdnn.disk.store import Store
from symdnn.tuning import store
from tests.environment import environment

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users")

THINGS = Store("things", ".o", b"test-1\n")
KEY = "a" * 64
NOBODY = 65534


@pytest.fixture(autouse=True)
def afresh(monkeypatch, tmp_path):
    """No results and no warnings so far; private folders are in a folder of their own."""
    monkeypatch.setattr(trust, "_resolved", {})
    monkeypatch.setattr(trust, "_said", set())
    monkeypatch.setattr(trust, "_process_folder", None)
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(trust.tempfile, "gettempdir", lambda: str(place))
    monkeypatch.setattr(trust, "_TEMPORARY_FOLDERS", ())


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "home" / "cache" / "symdnn"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def another(monkeypatch, folder):
    """From now on ``folder`` is another user's: really where root runs this, else it seems so."""

    def change():
        if os.geteuid() == 0:
            trust._resolved.clear()
            for path in (folder, *folder.rglob("*")):
                os.chown(path, 4711, 4711)
        else:
            me = os.geteuid() + 12345
            monkeypatch.setattr(trust.os, "geteuid", lambda: me)

    return change


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_of_the_users_own_is_believed(folder):
    assert trust.usable(folder) == folder


@pytest.mark.parametrize("open_to", [0o777, 0o775, 0o755, 0o710, 0o1777])
def test_folders_of_ours_that_are_open_to_others_are_closed(folder, open_to):
    folder.chmod(open_to)
    (folder / "object").mkdir()
    (folder / "object").chmod(open_to)
    assert trust.usable(folder / "object", own_levels=2) == folder / "object"
    assert (mode(folder), mode(folder / "object")) == (0o700, 0o700)


def test_a_folder_in_which_the_user_has_other_files_is_let_be(tmp_path):
    home = tmp_path / "mine"
    home.mkdir(mode=0o755)
    (home / "thesis.tex").touch()
    assert trust.usable(home / "object", own_levels=2) == home / "object"
    assert mode(home) == 0o755


def test_a_folder_above_that_others_may_write_to_is_not_believed(folder):
    folder.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="cache can be written to by other users"):
        found = trust.usable(folder)
    assert found is not None
    assert found != folder
    assert mode(folder.parent) == 0o777  # it is not ours to close
    assert trust.usable(folder) == found  # and there is no second warning


def test_a_sticky_folder_above_is_believed(folder):
    folder.parent.chmod(0o1777)
    assert trust.usable(folder) == folder


def test_above_a_sticky_folder_nobody_looks(folder, monkeypatch):
    folder.parent.chmod(0o1777)
    folder.parent.parent.chmod(0o777)
    if os.geteuid() == 0:
        pytest.skip("root is not the owner of others' sticky folders")
    assert trust.usable(folder) == folder


def test_another_users_folder_is_not_believed_and_another_one_is_used(folder, another):
    THINGS.put(KEY, b"theirs", folder)
    another()
    with pytest.warns(RuntimeWarning, match=r"belongs to user \d+, not to user \d+"):
        assert THINGS.get(KEY, folder) is None
    THINGS.get("b" * 64, folder / "other")  # one warning, whatever the folder
    assert trust.usable(folder) != folder
    assert next(iter(folder.iterdir())).read_bytes().endswith(b"theirs")  # nothing was changed


def test_the_user_as_whom_unknown_ones_are_shown_is_nobody(folder, monkeypatch):
    """In a container without a map of users everything seems to be this process's own."""
    monkeypatch.setattr(trust, "_overflow_user", os.geteuid)
    with pytest.warns(RuntimeWarning, match="as which all unknown users are shown"):
        THINGS.put(KEY, b"code", folder)
    assert list(folder.iterdir()) == []
    assert THINGS.get(KEY, folder) == b"code"  # in a folder of this process
    private = trust.usable(folder)
    assert mode(private.parent) == mode(private) == 0o700


def test_measured_choices_of_others_are_not_believed(folder, another):
    key, record = {"card": "none"}, {"ms": 1.0}
    with config.change_flags({"dnn.conv.tuning_cache": str(folder / "tuning")}):
        assert store.remember(key, record) == record
        assert store.recall(key) == record
        files = [p for p in folder.rglob("*") if p.is_file() and p.suffix == ".json"]
        assert [mode(p) for p in files] == [0o600]
        files[0].chmod(0o666)
        with pytest.warns(RuntimeWarning, match="could be written to by other users: dropped"):
            assert store.recall(key) is None
        store.remember(key, record)
        another()
        trust._resolved.clear()
        with pytest.warns(RuntimeWarning, match="is not to be trusted"):
            assert store.recall(key) is None
    assert files[0].exists()


def test_root_with_another_users_home_makes_nothing_there(folder, another):
    """The folder is not there yet: it would be made where its owner may move it."""
    another()
    with pytest.warns(RuntimeWarning, match="is not to be trusted"):
        THINGS.put(KEY, b"code", folder / "object")
    assert list(folder.iterdir()) == []


def test_the_private_folder_is_the_users_and_others_find_nothing_in_it(folder, tmp_path):
    folder.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="Instead"):
        THINGS.put(KEY, b"code", folder)
    assert THINGS.get(KEY, folder) == b"code"
    private = tmp_path / "tmp" / f"symdnn-{os.geteuid()}"
    assert mode(private) == 0o700
    trust._resolved.clear()
    with pytest.MonkeyPatch.context() as m:
        m.setattr(trust, "_said", {os.geteuid()})
        assert THINGS.get(KEY, folder) == b"code"  # another process finds it again


def test_a_private_folder_that_somebody_else_made_is_not_used(folder, tmp_path):
    folder.parent.chmod(0o777)
    planted = tmp_path / "tmp" / f"symdnn-{os.geteuid()}"
    (tmp_path / "real").mkdir()
    (tmp_path / "tmp").chmod(0o777)  # whoever may write there could have made it
    planted.symlink_to(tmp_path / "real")
    with pytest.warns(RuntimeWarning, match="Instead"):
        found = trust.usable(folder)
    assert found is None or tmp_path / "tmp" / planted.name not in (found, *found.parents)
    assert list((tmp_path / "real").iterdir()) == []


def test_a_link_to_a_folder_is_as_good_as_the_folders_that_hold_both(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "real").mkdir(mode=0o700)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b" / "real")
    assert trust.why_not(tmp_path / "a" / "link") == ""
    (tmp_path / "a").chmod(0o777)
    assert "can be written to by other users" in trust.why_not(tmp_path / "a" / "link")
    (tmp_path / "a").chmod(0o755)
    (tmp_path / "b").chmod(0o777)
    assert "can be written to by other users" in trust.why_not(tmp_path / "a" / "link")


def test_roots_files_are_read_and_others_are_not(folder, monkeypatch):
    """A cache that an administrator filled; the files here seem to be whose one says."""
    THINGS.put(KEY, b"code", folder)
    real, owner = os.fstat, [0]

    def told(handle):
        found = list(real(handle))
        found[4] = owner[0]
        return os.stat_result(found)

    monkeypatch.setattr(trust.os, "fstat", told)
    assert THINGS.get(KEY, folder) == b"code"
    owner[0] = NOBODY  # as NFS and containers map owners that they do not know
    with pytest.warns(RuntimeWarning, match="belongs to user 65534"):
        assert THINGS.get(KEY, folder) is None


def test_nothing_is_opened_that_waits_for_somebody(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        with pytest.raises(trust.Untrusted):
            trust.read(tmp_path / name)
    with pytest.raises((trust.Untrusted, OSError)):
        trust.read(tmp_path)


PROGRAM = """
import grp, os, pwd, sys, tempfile, warnings
from pathlib import Path
from symdnn.disk import trust
os.setgid(65534); os.setuid(65534)  # who may not read this Python, perhaps
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    print(trust.usable(Path(sys.argv[1])), len(said))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_indeed():
    """Others may read root's folder; a third user's folder is not used."""
    base = Path("/tmp") / f"symdnn-test-{os.getpid()}"
    (base / "site").mkdir(parents=True)
    (base / "third").mkdir()
    os.chown(base / "third", 4711, 4711)
    child = environment(PYTHONDONTWRITEBYTECODE="1")
    try:
        for name, same, warnings in (("site", True, 0), ("third", False, 1)):
            done = subprocess.run([sys.executable, "-c", PROGRAM, str(base / name)], check=False,
                                  capture_output=True, text=True, env=child)  # fmt: skip
            assert done.returncode == 0, done.stderr
            found, said = done.stdout.rsplit(" ", 1)
            assert (found == str(base / name), int(said)) == (same, warnings), done.stderr
    finally:
        for each in (base / "site", base / "third", base):
            each.rmdir()
