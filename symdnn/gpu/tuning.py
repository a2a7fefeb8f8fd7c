"""Measured choices, kept on disk: a file for each key, so that no process measures twice.

A key is a flat dict of everything that a measurement depends on: the card, the versions of the
driver and of the libraries, and what was measured. Its file is named by the key's hash and holds
key, record and a checksum. The first record that is written stays: processes that measured at the
same time all take that one. A file appears whole or not at all; one that is damaged is dropped with
a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from symdnn.config import config

__all__ = ["folder", "forget", "recall", "remember"]

_FORMAT = 1


def folder() -> Path | None:
    """Where records are kept (flag ``dnn.conv.tuning_cache``); None where none are."""
    wanted = str(config.dnn.conv.tuning_cache)
    if wanted == "off":
        return None
    return Path(str(config.base_compiledir)) / "tuning" if wanted == "auto" else Path(wanted)


def recall(key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a key; None where there is none."""
    path = _path(key)
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    except UnicodeDecodeError:
        text = ""
    record = _record(text, key)
    if record is None:
        warnings.warn(
            f"the measured choice in {path} is damaged: dropped", RuntimeWarning, stacklevel=2
        )
        with contextlib.suppress(OSError):
            path.unlink()
    return record


def remember(key: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Keep a record unless the key has one; the one that is kept, None where nothing can be."""
    path = _path(key)
    if path is None:
        return None
    try:
        _write(path, _text(key, record))
    except OSError as error:
        _say_once(str(path.parent.parent), str(error))
        return None
    return recall(key)


def forget(key: Mapping[str, Any]) -> None:
    """Drop the record of a key, which turned out to be of no use."""
    path = _path(key)
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def _path(key: Mapping[str, Any]) -> Path | None:
    base = folder()
    if base is None:
        return None
    name = hashlib.sha256(_canonical(key).encode()).hexdigest()
    return base / name[:2] / f"{name}.json"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _text(key: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    content = {"format": _FORMAT, "key": key, "record": record}
    checksum = hashlib.sha256(_canonical(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": checksum}, sort_keys=True, indent=1) + "\n"


def _record(text: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record in a file's text; None where it is damaged or another key's."""
    try:
        content = json.loads(text)
        checksum = content.pop("sha256")
        record = content["record"]
    except (ValueError, AttributeError, TypeError, KeyError):
        return None
    whole = hashlib.sha256(_canonical(content).encode()).hexdigest() == checksum
    same = _canonical(content.get("key")) == _canonical(key)
    return record if whole and same and isinstance(record, dict) else None


def _write(path: Path, text: str) -> None:
    """Write beside the place, then link there: an existing file is left alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _place(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _place(temporary: str, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not path.exists():
            os.replace(temporary, path)


@cache
def _say_once(where: str, reason: str) -> None:
    warnings.warn(
        f"measured choices cannot be kept in {where} ({reason}); set the flag "
        "dnn.conv.tuning_cache to a folder that can be written to, or to off",
        RuntimeWarning,
        stacklevel=4,
    )
