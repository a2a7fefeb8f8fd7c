"""The block list: algorithms that gave a wrong result and are not chosen again.

An entry is for one question: the library and its version, the card's architecture, the operation
with its shapes. It has the algorithm and the relative error. Entries are records of
:mod:`symdnn.tuning.store`, so other processes read them, and ``symdnn tune --export`` writes them.
With ``dnn.conv.tuning_cache=off`` they stay in the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from symdnn.tuning import store

#: The family of these records in the store.
FAMILY = "blocked"
#: Stands for an infinite error, which JSON has no number for.
_MAX_ERROR = 1e300

Record = Mapping[str, Any]
_of_process: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}


@dataclass(frozen=True)
class Blocked:
    """An entry: ``name`` of the algorithm, relative ``error``, ``why``, and the whole ``key``."""

    name: str
    error: float
    why: str
    key: Record

    def __str__(self) -> str:
        machine = ", ".join(
            f"{word} {self.key[word]}"
            for word in ("library", "version", "arch")
            if word in self.key
        )
        asked = {k: v for k, v in self.key.items() if k not in _NOT_SHOWN}
        return f"{self.name}: {self.why} ({machine}; {_short(asked)})"


_NOT_SHOWN = ("family", "library", "version", "arch", "algorithm")
_MAX_CHARACTERS = 160


def _short(asked: Record) -> str:
    text = " ".join(f"{name}={_plain(value)}" for name, value in asked.items())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}..."


def _plain(value: object) -> str:
    return "x".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)


def add(question: Record, algorithm: object, name: str, error: float, why: str) -> None:
    """Put an algorithm on the list.

    ``question`` and ``algorithm`` are JSON values. The first entry of an algorithm stays.
    """
    key = _key(question, algorithm)
    record = {"name": name, "error": min(float(error), _MAX_ERROR), "why": why, "ms": None}
    _of_process.setdefault(_text(key), (key, record))
    store.remember(key, record)


def error_of(question: Record, algorithm: object) -> float | None:
    """The error for which an algorithm is on the list; None if it is not."""
    key = _key(question, algorithm)
    known = _of_process.get(_text(key))
    record = known[1] if known else store.recall(key) if store.may_have(key) else None
    return None if record is None else float(record.get("error", _MAX_ERROR))


def is_empty() -> bool:
    """Whether the list is certainly empty, so that no key needs to be made."""
    return not _of_process and store.is_empty()


def entries() -> Iterator[Blocked]:
    """All entries of the store and of this process."""
    found = {_text(key): (key, record) for key, record in store.records() if _is_one(key)}
    for key, record in (found | _of_process).values():
        yield Blocked(str(record["name"]), float(record["error"]), str(record["why"]), key)


def forget() -> None:
    """Drop what only this process knows; entries on disk stay, and are looked for again."""
    _of_process.clear()
    store.list_again()


def _is_one(key: Record) -> bool:
    return key.get("family") == FAMILY


def _key(question: Record, algorithm: object) -> dict[str, Any]:
    return {"family": FAMILY, **question, "algorithm": algorithm}


def _text(key: Record) -> str:
    return json.dumps(key, sort_keys=True)
