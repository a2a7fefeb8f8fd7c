"""Measured choices on disk: a file for each key, so that nothing is measured twice.

A key is a flat dict of everything that a measurement depends on: the device, the versions of driver
and libraries, the signature. The file is named by the key's hash and has the key, the record and a
checksum. The first record that is written stays: processes that measure at the same time all use
that one. Writes are atomic. A file that is damaged, or that :mod:`symdnn.disk.trust` does not
trust, is dropped with a warning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.disk import overlay, trust
from symdnn.disk.store import Store, base

_FORMAT_VERSION = 1


def folder() -> Path | None:
    """The folder of records (flag ``dnn.conv.tuning_cache``); None if it is off."""
    wanted = str(config.dnn.conv.tuning_cache)
    if wanted == "off":
        return None
    return _below(base()) if wanted == "auto" else Path(wanted)


@cache
def _below(base: Path) -> Path:
    return base / "tuning"


@dataclass(frozen=True)
class _Records(Store):
    """Files of JSON: a key, by whose hash the file is named, the record, and a checksum."""

    def folder(self, given: Path | None = None) -> Path | None:
        """The folder of the flag."""
        wanted = folder()
        if wanted is None:
            return None
        return super().folder(None if wanted == base() / self.kind else wanted)

    def packed(self, key: str, body: bytes) -> bytes:
        """The text, which has a checksum."""
        return body

    def content(self, key: str, data: bytes) -> bytes | None:
        """The text; None if it is damaged or another key's."""
        found = _parsed(data)
        return data if found is not None and name_of(found["key"]) == key else None


RECORDS = _Records(
    "tuning", ".json", what="measured choice", made="measured", branches=True, first_stays=True,
    flag="dnn.conv.tuning_cache to off, or",
)  # fmt: skip


def recall(key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a key; None if there is none."""
    data = RECORDS.get(name_of(key))
    found = None if data is None else _parsed(data)
    return None if found is None else found["record"]


def remember(key: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Store a record unless the key has one; returns the stored one, None if that fails."""
    return recall(key) if RECORDS.put(name_of(key), _text(key, record).encode()) else None


def forget(key: Mapping[str, Any]) -> None:
    """Remove the record of a key."""
    RECORDS.drop(name_of(key))


def may_have(key: Mapping[str, Any]) -> bool:
    """Whether there may be a record of a key, by names that were listed once in this process."""
    name = name_of(key)
    return overlay.find(f"tuning/{name}.json") is not None or name in _listed(folder())


def is_empty() -> bool:
    """Whether there is no record of any key, by names that were listed once in this process."""
    return not _listed(folder()) and not overlay.has("tuning/")


@cache
def _listed(base: Path | None) -> frozenset[str]:
    """The names of all records of a folder; :func:`list_again` forgets them."""
    return frozenset(p.stem for p in base.glob("??/*.json")) if base is not None else frozenset()


list_again = _listed.cache_clear


def records() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(key, record) of all records; damaged and untrusted ones are left out."""
    base = RECORDS.folder()
    for path in () if base is None else sorted(base.glob("[0-9a-f][0-9a-f]/*.json")):
        try:
            data = RECORDS.content(path.stem, trust.read(path)[0])
        except (OSError, trust.Untrusted):
            continue
        if data is not None and (whole := _parsed(data)) is not None:
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
    found = _parsed(line.encode())
    if found is None:
        return "wrong"
    if recall(found["key"]) is not None:
        return "known"
    list_again()
    return "lost" if remember(found["key"], found["record"]) is None else "new"


def name_of(key: object) -> str:
    """The name of a key's file: a hash."""
    return hashlib.sha256(_canonical(key).encode()).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _text(key: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    content = {"format": _FORMAT_VERSION, "key": key, "record": record}
    checksum = hashlib.sha256(_canonical(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": checksum}, sort_keys=True, indent=1) + "\n"


def _parsed(content: bytes) -> dict[str, Any] | None:
    """The content of a file; None if it is damaged."""
    try:
        found = json.loads(content)
        checksum = found.pop("sha256")
        right = isinstance(found["record"], dict) and isinstance(found["key"], dict)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return None
    whole = hashlib.sha256(_canonical(found).encode()).hexdigest() == checksum
    return found if right and whole else None
