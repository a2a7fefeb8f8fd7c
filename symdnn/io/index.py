"""Parameters in several safetensors files with an index, as Hugging Face's libraries write them.

``model.safetensors.index.json`` is JSON: ``weight_map`` has the file of each array, beside the
index, and ``metadata`` the bytes of all (``total_size``). Files are named
``model-00001-of-00003.safetensors``. Our header is ``metadata["symdnn"]``, as a text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.io import safetensors
from symdnn.io.atomic import write_atomically
from symdnn.io.reading import opened

__all__ = [
    "SUFFIX", "MAX_FILE_BYTES", "divided", "file_names", "is_index", "read", "save", "write_file",
    "write_index",
]  # fmt: skip

SUFFIX = ".safetensors.index.json"
#: The bytes of a file's arrays, as Hugging Face's libraries limit them by default.
MAX_FILE_BYTES = 5_000_000_000
_MOST_INDEX_BYTES = 100_000_000

Array = np.ndarray[Any, Any]


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of an index, by its name."""
    return os.fspath(path).lower().endswith(SUFFIX)


def read(path: Path) -> tuple[dict[str, Array], str]:
    """All arrays, in the order of the index, and the header's text; raises ``FileFormatError``."""
    with opened(path, "index of safetensors files") as (file, nbytes):
        if nbytes > _MOST_INDEX_BYTES:
            raise ValueError(f"{nbytes} bytes")
        index = json.loads(file.read().decode())
        files, metadata = dict(index["weight_map"]), dict(index.get("metadata") or {})
        for name in files.values():
            if not isinstance(name, str) or not _is_beside(name):
                raise ValueError(f"{name!r:.80} names no safetensors file beside it")
    found: dict[str, Array] = {}
    for name in dict.fromkeys(files.values()):
        arrays, _ = safetensors.read(path.with_name(name))
        wanted = [n for n, place in files.items() if place == name]
        if missing := [n for n in wanted if n not in arrays]:
            raise FileFormatError(f"{path}: {name} has no {', '.join(missing[:8])}")
        found.update((n, arrays[n]) for n in wanted)
    ordered = {n: found[n] for n in files}
    text = metadata.pop(safetensors.HEADER, None)
    if isinstance(text, str):
        return ordered, text
    listed = {n: [a.dtype.name, list(a.shape)] for n, a in ordered.items()}
    return ordered, json.dumps(
        {"kind": "symdnn parameters", "version": 0, "arrays": listed, "metadata": metadata}
    )


def _is_beside(name: str) -> bool:
    return name == os.path.basename(name) and name.endswith(".safetensors") and "\0" not in name


def file_names(path: Path, count: int) -> list[str]:
    """Names for so many files, none of which the present index of this path uses."""
    stem = path.name[: -len(SUFFIX)]
    used = _files_of(path)
    tag, number = "", 1
    while True:
        names = [f"{stem}{tag}-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        if not used & set(names):
            return names
        number += 1
        tag = f".{number}"


def _files_of(path: Path) -> set[str]:
    """The files of an index that is there; none where it can't be read."""
    try:
        found = json.loads(path.read_text())["weight_map"].values()
        return {n for n in found if isinstance(n, str) and _is_beside(n)}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return set()


def divided(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in groups of at most ``limit`` bytes (one that is larger is alone), in their order."""
    groups: list[list[str]] = []
    total = 0
    for name, size in sizes.items():
        if not groups or total + size > limit:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups or [[]]


def write_file(path: Path, name: str, arrays: Mapping[str, Array]) -> None:
    """One of the files of an index."""
    target = path.with_name(name)
    listed = {n: [a.dtype.name, list(a.shape)] for n, a in arrays.items()}
    header = {"kind": "symdnn parameters", "version": 1, "arrays": listed, "metadata": {}}
    write_atomically(target, safetensors.write(arrays, json.dumps(header), target))


def write_index(
    path: Path, files: Mapping[str, Iterable[str]], total_bytes: int, header: str
) -> None:
    """The index, once all files are there; then the files that only the old one names are removed.

    ``files`` has the arrays of each file. A reader sees the old arrays or the new ones.
    """
    old = _files_of(path)
    places = {n: name for name, inside in files.items() for n in inside}
    index = {
        "metadata": {"total_size": total_bytes, safetensors.HEADER: header}, "weight_map": places,
    }  # fmt: skip
    write_atomically(path, (json.dumps(index, indent=1) + "\n").encode())
    stem = path.name[: -len(SUFFIX)]
    for name in old - set(files):
        if name.startswith(stem):
            path.with_name(name).unlink(missing_ok=True)


def save(path: Path, arrays: Mapping[str, Array], header: str, limit: int) -> None:
    """All arrays, in files of at most ``limit`` bytes of them, and the index."""
    groups = divided({n: a.nbytes for n, a in arrays.items()}, limit)
    names: Sequence[str] = file_names(path, len(groups))
    for name, group in zip(names, groups, strict=True):
        write_file(path, name, {n: arrays[n] for n in group})
    total = sum(a.nbytes for a in arrays.values())
    write_index(path, dict(zip(names, groups, strict=True)), total, header)
