"""Which folders and files are believed: what is read from there is run as machine code.

A folder is believed whose owner is the user or root, into which nobody else may write, and so on
for every folder above it, up to one that is root's or sticky. (Root looks at all of them: what root
made in another user's home is that user's to move.) A file is believed that is a regular
one, of the same owners, and not for others to write: it is looked at through the descriptor that is
then read. Folders and files of the user's own that were left open to others are closed (0700 and
0600); a file that others could have written to is not read.

Where a folder is not believed (it is another user's, or a container or NFS maps owners to others)
that is said once, and a private one stands in for it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["KINDS", "Untrusted", "make", "read", "usable", "why_not"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HAS_USERS = hasattr(os, "geteuid")
_READ = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
#: Names of entries and of what is written beside them, and of the folders of older ones.
_ENTRY = re.compile(r"[0-9a-f]{64}\.|[0-9a-f]{2}$|\.")
#: What has been found out: folder and user -> the folder to use, or None where there is none.
_known: dict[tuple[str, int], Path | None] = {}
_said: set[int] = set()


class Untrusted(Exception):
    """A file or folder that is not believed; the text says why."""


def usable(folder: Path, ours: int = 1) -> Path | None:
    """``folder``, or the private one that stands in for it; None where there is neither.

    The last ``ours`` parts of its path are symdnn's own: if they are the user's and open to others,
    they are closed. Nothing is made; see :func:`make`.
    """
    if not _HAS_USERS:
        return folder
    key = (os.path.abspath(folder), os.geteuid())
    if key not in _known:
        reason = why_not(folder, ours)
        _known[key] = folder if not reason else _stand_in(folder, ours)
        if reason:
            _say_once(folder, reason, _known[key])
    return _known[key]


def make(folder: Path) -> None:
    """Make a folder that is believed, and what is missing above it, for the user alone."""
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.mkdir(0o700)
            path.chmod(0o700)  # whatever the umask took away
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def read(path: Path) -> tuple[bytes, os.stat_result]:
    """A file's content and what the system says of it.

    Raises :class:`Untrusted`, and ``OSError`` where it cannot be opened.
    """
    try:
        handle = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Untrusted("is a link, or no regular file") from None
        raise
    try:
        told = os.fstat(handle)
        if not stat.S_ISREG(told.st_mode):
            raise Untrusted("is no regular file")
        if _HAS_USERS:
            _check_file(handle, told)
        return _all(handle, told.st_size), told
    finally:
        os.close(handle)


def why_not(folder: Path, ours: int = 1) -> str:
    """Why a folder is not believed; empty where it is, or would be if it were made now."""
    seen: set[str] = set()
    for start in _ways(folder):
        mine = {str(p) for p in (start, *start.parents)[:ours]}
        for path in (start, *start.parents):
            if str(path) in seen:
                break
            seen.add(str(path))
            try:
                told = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                return f"{path}: {error.strerror}"
            reason, last = _of_folder(path, told, str(path) in mine)
            if reason:
                return f"{path} {reason}"
            if last:
                break
    return ""


# -- folders --------------------------------------------------------------------------------------


def _ways(folder: Path) -> Iterator[Path]:
    """Where a folder really is, and the places of the links that lead there."""
    yield Path(os.path.realpath(folder))
    whole = Path(os.path.abspath(folder))
    for path in (whole, *whole.parents):
        if path.is_symlink():
            yield Path(os.path.realpath(path.parent))


def _of_folder(path: Path, told: os.stat_result, ours: bool) -> tuple[str, bool]:
    """Why a folder is not believed, and whether those above it do not matter."""
    me = os.geteuid()
    if told.st_uid not in (me, 0):
        return f"belongs to user {told.st_uid}, not to user {me} or root", False
    if told.st_uid == _nobody():
        return f"belongs to user {told.st_uid}, as which all unknown users are shown", False
    if not stat.S_ISDIR(told.st_mode):
        return "", False  # making a folder there will say what is wrong
    if ours and told.st_uid == me and told.st_mode & _OTHERS and _only_ours(path):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
            told = os.lstat(path)
    if told.st_mode & _OTHERS_WRITE and not told.st_mode & stat.S_ISVTX:
        if told.st_mode & stat.S_IWOTH or told.st_uid != me or not _alone_in(told.st_gid):
            return "can be written to by other users", False
        return "", False
    return "", bool(told.st_mode & stat.S_ISVTX) or (told.st_uid == 0 and me != 0)


#: The folders that symdnn makes in the one of the flag ``base_compiledir``.
KINDS = ("object", "cubin", "tuning")


def _only_ours(path: Path) -> bool:
    """Whether a folder is for symdnn alone, and not, say, the user's home."""
    if path.name in (*KINDS, "symdnn"):
        return True
    try:
        return all(name in KINDS or _ENTRY.match(name) for name in os.listdir(path))
    except OSError:
        return False


@cache
def _nobody() -> int:
    """The user as whom the kernel shows all that a container or NFS does not know."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_bytes())
    except (OSError, ValueError):
        return 65534


def _alone_in(group: int) -> bool:
    """Whether a group is the user's own: many systems give each user one, and an umask of 002."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {
        user.pw_name
    }  # fmt: skip


# -- files ----------------------------------------------------------------------------------------


def _check_file(handle: int, told: os.stat_result) -> None:
    me = os.geteuid()
    if told.st_uid not in (me, 0):
        raise Untrusted(f"belongs to user {told.st_uid}, not to user {me} or root")
    if told.st_mode & _OTHERS_WRITE:
        raise Untrusted("could be written to by other users")
    if told.st_uid == me and told.st_mode & _OTHERS:
        with contextlib.suppress(OSError):
            os.fchmod(handle, 0o600)


def _all(handle: int, size: int) -> bytes:
    parts, left = [], size
    while left and (part := os.read(handle, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# -- the folder that stands in --------------------------------------------------------------------


def _stand_in(folder: Path, ours: int) -> Path | None:
    """A private folder for what was to be in ``folder``: the user's, else this process's."""
    base = _private()
    if base is None:
        return None
    whole = Path(os.path.abspath(folder))
    return base.joinpath(*whole.parts[len(whole.parts) - ours + 1 :]) if ours > 1 else base / "own"


#: Where a private folder may be if it may not be where temporary files usually are.
_PLACES = ("/tmp", "/var/tmp")
_of_process: tuple[int, int, Path] | None = None  # process, user, folder


def _private() -> Path | None:
    for place in dict.fromkeys((tempfile.gettempdir(), *_PLACES)):
        base = Path(place) / f"symdnn-{os.geteuid()}"
        if Path(place).is_dir() and not why_not(base):
            with contextlib.suppress(OSError):
                make(base)
                if not why_not(base):
                    return base
    return _temporary()


def _temporary() -> Path | None:
    """A folder that is removed when the process ends."""
    global _of_process
    if _of_process is None or _of_process[1] != os.geteuid():
        try:
            made = Path(tempfile.mkdtemp(prefix="symdnn-"))
        except OSError:
            return None
        above = os.lstat(made.parent)
        if above.st_uid not in (0, os.geteuid()) and not above.st_mode & stat.S_ISVTX:
            with contextlib.suppress(OSError):
                made.rmdir()
            return None
        _of_process = (os.getpid(), os.geteuid(), made)
        atexit.register(_remove, os.getpid(), made)
    return _of_process[2]


def _remove(owner: int, folder: Path) -> None:
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _say_once(folder: Path, reason: str, instead: Path | None) -> None:
    if os.geteuid() in _said:
        return
    _said.add(os.geteuid())
    where = f"{instead} is used" if instead is not None else "nothing is kept"
    warnings.warn(
        f"the cache folder {folder} is not to be trusted: {reason}. Instead {where}; set the flag "
        "base_compiledir to a folder of your own",
        RuntimeWarning,
        stacklevel=5,
    )
