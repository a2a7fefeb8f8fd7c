"""Measured choices on disk: a file for each key, so that nothing is measured twice.

A key is a flat dict of everything that a measurement depends on: the device, the versions of driver
and libraries, the signature. The file is named by the key's hash and has the key, the record and a
checksum. The first record that is written stays: processes that measure at the same time all use
that one. Writes are atomic. A file that is damaged, or that :mod:`symdnn.disk.trust` does not
trust, is dropped with a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.disk import overlay, space, store, trust
from symdnn.disk.atomic import write_atomically

__all__ = [
    "exported", "folder", "forget", "imported", "list_again", "may_have", "problem", "recall",
    "records", "remember",
]  # fmt: skip

_FORMAT_VERSION = 1


def folder() -> Path | None:
    """The folder of records (flag ``dnn.conv.tuning_cache``); None if it is off."""
    wanted = str(config.dnn.conv.tuning_cache)
    if wanted == "off":
        return None
    return store.base() / "tuning" if wanted == "auto" else Path(wanted)


def recall(key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a key; None if there is none."""
    name = f"tuning/{_name(key)}.json"
    given = overlay.find(name)
    if given is not None and (found := _record(given, key)) is not None:
        overlay.note(name, given)
        return found
    path = _path(key)
    if path is None:
        return None
    try:
        content, _ = trust.read(path)
    except OSError:
        return None
    except trust.Untrusted as reason:
        _drop(path, str(reason))
        return None
    record = _record(content, key)
    if record is None:
        _drop(path, "is damaged")
    else:
        overlay.note(name, content)
    return record


def may_have(key: Mapping[str, Any]) -> bool:
    """Whether there may be a record of a key, by names that were listed once in this process."""
    name = _name(key)
    return overlay.find(f"tuning/{name}.json") is not None or name in _listed(folder())


@cache
def _listed(base: Path | None) -> frozenset[str]:
    """The names of all records of a folder; :func:`list_again` forgets them."""
    return frozenset(p.stem for p in base.glob("??/*.json")) if base is not None else frozenset()


list_again = _listed.cache_clear


def problem(name: str, content: bytes) -> str:
    """Why a file of this name is no valid record; empty if it is one."""
    found = _content(content)
    if found is None:
        return "is damaged"
    return "" if _name(found["key"]) == name else "is another's"


def _drop(path: Path, reason: str) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    warnings.warn(f"the measured choice in {path} {reason}: dropped", RuntimeWarning, stacklevel=3)


def remember(key: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Store a record unless the key has one; returns the stored one, None if that fails."""
    path = _path(key)
    if path is None:
        return None
    data = _text(key, record).encode()
    try:
        trust.make(path.parent)
        write_atomically(path, data, private=True, replace=False)
    except OSError as error:
        _say_once(str(path.parent.parent), str(error))
        return None
    kind = path.parents[1]
    space.written(len(data), kind.parent if kind.name == "tuning" else kind)
    return recall(key)


def forget(key: Mapping[str, Any]) -> None:
    """Remove the record of a key."""
    path = _path(key)
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def records() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(key, record) of all records; damaged and untrusted ones are left out."""
    base = folder()
    found = None if base is None else trust.usable(base, own_levels=_depth(base))
    for path in () if found is None else sorted(found.glob("[0-9a-f][0-9a-f]/*.json")):
        try:
            content, _ = trust.read(path)
        except (OSError, trust.Untrusted):
            continue
        if not problem(path.stem, content):
            whole = _content(content)
            assert whole is not None
            yield whole["key"], whole["record"]


def exported() -> Iterator[str]:
    """All records as lines of text, for :func:`imported` on another machine with the same card."""
    for key, record in records():
        yield json.dumps(json.loads(_text(key, record)), sort_keys=True)


def imported(line: str) -> str:
    """Store a line of :func:`exported`; returns what came of it.

    ``"new"``: stored; ``"known"``: the key has a record already; ``"wrong"``: the line is damaged;
    ``"lost"``: nothing can be stored.
    """
    found = _content(line.encode())
    if found is None:
        return "wrong"
    if recall(found["key"]) is not None:
        return "known"
    list_again()
    return "lost" if remember(found["key"], found["record"]) is None else "new"


def _depth(base: Path) -> int:
    """How many levels of the folder are symdnn's own."""
    return 2 if base == store.base() / "tuning" else 1


def _path(key: Mapping[str, Any]) -> Path | None:
    """The path of a record; None if the store is off or no folder can be used."""
    base = folder()
    if base is None:
        return None
    name = _name(key)
    found = trust.usable(base, own_levels=_depth(base))
    inner = None if found is None else trust.usable(found / name[:2])
    return None if inner is None else inner / f"{name}.json"


def _name(key: Any) -> str:
    return hashlib.sha256(_canonical(key).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _text(key: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    content = {"format": _FORMAT_VERSION, "key": key, "record": record}
    checksum = hashlib.sha256(_canonical(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": checksum}, sort_keys=True, indent=1) + "\n"


def _record(content: bytes, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record in a file; None if it is damaged or has another key."""
    found = _content(content)
    if found is None or _canonical(found["key"]) != _canonical(key):
        return None
    record: dict[str, Any] = found["record"]
    return record


def _content(content: bytes) -> dict[str, Any] | None:
    """The content of a file; None if it is damaged."""
    try:
        found = json.loads(content)
        checksum = found.pop("sha256")
        right = isinstance(found["record"], dict) and isinstance(found["key"], dict)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return None
    whole = hashlib.sha256(_canonical(found).encode()).hexdigest() == checksum
    return found if right and whole else None


@cache
def _say_once(where: str, reason: str) -> None:
    warnings.warn(
        f"measured choices cannot be kept in {where} ({reason}); set the flag "
        "dnn.conv.tuning_cache to a folder that can be written to, or to off",
        RuntimeWarning,
        stacklevel=4,
    )
