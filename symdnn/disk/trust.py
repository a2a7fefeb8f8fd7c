"""Which folders and files are trusted: cached content is run as machine code.

A folder is trusted if its owner is the user or root and nobody else may write to it, and if the
same holds for the folders above it, up to one that is root's or sticky. (For root all of them are
checked: a user can move a folder that root has made in the user's home.) A file is trusted if it is
a regular file with the same owners that others cannot write to; it is checked through the
descriptor that is then read. The user's own folders and files that are open to others are closed
(0700 and 0600). A file that others could have written to is not read.

If a folder is not trusted (another user's, or a container or NFS maps owners to others), a warning
is given once, and a private folder is used instead.
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

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HAS_USERS = hasattr(os, "geteuid")
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
#: Names of entries and their temporary files, and of subfolders.
_ENTRY = re.compile(r"[0-9a-f]{64}\.|[0-9a-f]{2}$|\.")
#: (folder, user) -> the folder to use, or None if there is none.
_resolved: dict[tuple[str, int], Path | None] = {}
_said: set[int] = set()


class Untrusted(Exception):
    """A file or folder that is not trusted; the text says why."""


def usable(folder: Path, own_levels: int = 1) -> Path | None:
    """``folder``, or a private one that is used instead; None if there is neither.

    The last ``own_levels`` parts of its path are symdnn's own folders: if they are the user's and
    open to others, they are closed. Nothing is created; see :func:`make`.
    """
    if not _HAS_USERS:
        return folder
    key = (os.path.abspath(folder), os.geteuid())
    if key not in _resolved:
        reason = why_not(folder, own_levels)
        _resolved[key] = folder if not reason else _replacement(folder, own_levels)
        if reason:
            _say_once(folder, reason, _resolved[key])
    return _resolved[key]


def make(folder: Path) -> None:
    """Create a folder, and missing folders above it, for the user alone."""
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process has created it
            path.mkdir(0o700)
            path.chmod(0o700)  # whatever the umask is
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def read(path: Path) -> tuple[bytes, os.stat_result]:
    """A file's content and its ``stat``.

    Raises :class:`Untrusted`, and ``OSError`` if it cannot be opened.
    """
    try:
        handle = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Untrusted("is a link, or no regular file") from None
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted("is no regular file")
        if _HAS_USERS:
            _check_file(handle, status)
        return _read_all(handle, status.st_size), status
    finally:
        os.close(handle)


def why_not(folder: Path, own_levels: int = 1) -> str:
    """Why a folder is not trusted; empty if it is, or would be if it were created now."""
    seen: set[str] = set()
    for start in _real_paths(folder):
        mine = {str(p) for p in (start, *start.parents)[:own_levels]}
        for path in (start, *start.parents):
            if str(path) in seen:
                break
            seen.add(str(path))
            try:
                status = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                return f"{path}: {error.strerror}"
            reason, last = _check_folder(path, status, str(path) in mine)
            if reason:
                return f"{path} {reason}"
            if last:
                break
    return ""


# -- folders --------------------------------------------------------------------------------------


def _real_paths(folder: Path) -> Iterator[Path]:
    """The real path of a folder, and the real paths of links on the way to it."""
    yield Path(os.path.realpath(folder))
    whole = Path(os.path.abspath(folder))
    for path in (whole, *whole.parents):
        if path.is_symlink():
            yield Path(os.path.realpath(path.parent))


def _check_folder(path: Path, status: os.stat_result, own: bool) -> tuple[str, bool]:
    """(why a folder is not trusted, whether the folders above it do not matter)"""
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        return f"belongs to user {status.st_uid}, not to user {user} or root", False
    if status.st_uid == _overflow_user():
        return f"belongs to user {status.st_uid}, as which all unknown users are shown", False
    if not stat.S_ISDIR(status.st_mode):
        return "", False  # creating a folder there will raise an error
    if own and status.st_uid == user and status.st_mode & _OPEN_TO_OTHERS and _is_symdnns(path):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
            status = os.lstat(path)
    if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
        by_all = status.st_mode & stat.S_IWOTH
        if by_all or status.st_uid != user or not _is_private_group(status.st_gid):
            return "can be written to by other users", False
        return "", False
    return "", bool(status.st_mode & stat.S_ISVTX) or (status.st_uid == 0 and user != 0)


#: Folders that symdnn creates in that of the flag ``base_compiledir``.
KINDS = ("object", "cubin", "tuning")


def _is_symdnns(path: Path) -> bool:
    """Whether a folder holds nothing but symdnn's files; the user's home does not."""
    if path.name in (*KINDS, "symdnn"):
        return True
    try:
        return all(name in KINDS or _ENTRY.match(name) for name in os.listdir(path))
    except OSError:
        return False


@cache
def _overflow_user() -> int:
    """The user id that the system shows for owners that a container or NFS does not know."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_bytes())
    except (OSError, ValueError):
        return 65534


def _is_private_group(group: int) -> bool:
    """Whether a group has only this user: many systems have such groups and an umask of 002."""
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


def _check_file(handle: int, status: os.stat_result) -> None:
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        raise Untrusted(f"belongs to user {status.st_uid}, not to user {user} or root")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise Untrusted("could be written to by other users")
    if status.st_uid == user and status.st_mode & _OPEN_TO_OTHERS:
        with contextlib.suppress(OSError):
            os.fchmod(handle, 0o600)


def _read_all(handle: int, size: int) -> bytes:
    parts, left = [], size
    while left and (part := os.read(handle, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# -- the private folder ---------------------------------------------------------------------------


def _replacement(folder: Path, own_levels: int) -> Path | None:
    """A private folder to use instead of ``folder``: the user's, else this process's."""
    base = _private_folder()
    if base is None:
        return None
    parts = Path(os.path.abspath(folder)).parts
    return base.joinpath(*parts[len(parts) - own_levels + 1 :]) if own_levels > 1 else base / "own"


#: Folders for a private one if that of ``tempfile`` cannot be used.
_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp")
_process_folder: tuple[int, int, Path] | None = None  # process, user, folder


def _private_folder() -> Path | None:
    for place in dict.fromkeys((tempfile.gettempdir(), *_TEMPORARY_FOLDERS)):
        base = Path(place) / f"symdnn-{os.geteuid()}"
        if Path(place).is_dir() and not why_not(base):
            with contextlib.suppress(OSError):
                make(base)
                if not why_not(base):
                    return base
    return _process_temporary()


def _process_temporary() -> Path | None:
    """A folder that is removed when the process ends."""
    global _process_folder
    if _process_folder is None or _process_folder[1] != os.geteuid():
        try:
            made = Path(tempfile.mkdtemp(prefix="symdnn-"))
        except OSError:
            return None
        above = os.lstat(made.parent)
        if above.st_uid not in (0, os.geteuid()) and not above.st_mode & stat.S_ISVTX:
            with contextlib.suppress(OSError):
                made.rmdir()
            return None
        _process_folder = (os.getpid(), os.geteuid(), made)
        atexit.register(_remove, os.getpid(), made)
    return _process_folder[2]


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
