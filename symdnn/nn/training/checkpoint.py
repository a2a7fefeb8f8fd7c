"""The complete state of a training, to be resumed exactly, in one safetensors file or several.

With a path that ends in ``.safetensors.index.json`` each of several ranks writes a part of the
arrays, at the same time, and the first one the index. Arrays are named ``net/...``,
``optimiser/...``, ``random/...``, ``best/...``; the header, JSON, has counters, the order of the
data, the history. The file appears complete or not at all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.variable import Shared
from symdnn.io import index
from symdnn.io.parameters import header_of, load_parameters, save_parameters
from symdnn.nn.modules.state import set_values
from symdnn.sharding.storage import layout_of

_KIND = "symdnn training"
_VERSION = 1

Groups = Mapping[str, Mapping[str, Any]]


def save(path: str | os.PathLike[str], groups: Groups, progress: Mapping[str, Any]) -> None:
    """Write arrays and shared variables by group and name, and what JSON can hold."""
    save_parameters(_checked(path), _flat(groups), _about(progress))


@dataclass(frozen=True)
class Writers:
    """Ranks that write a checkpoint together: this is ``number`` of ``count``, or None if it only
    helps to read sharded variables. ``agreed(what, value)`` returns the values of all ranks.
    """

    count: int
    number: int | None
    agreed: Callable[[str, Any], list[Any]]


def save_together(
    path: str | os.PathLike[str], groups: Groups, progress: Mapping[str, Any], ranks: Writers
) -> None:
    """Each rank writes about as many bytes. All ranks read a sharded variable, and one of them
    writes it.

    All ranks call this with the same variables, and read sharded ones together.
    """
    target, named = _checked(path), _flat(groups)
    forms = {n: _form(v) for n, v in named.items()}
    shares = _shares({n: size for n, (_, _, size) in forms.items()}, ranks.count)
    files = index.file_names(target, ranks.count) if ranks.number == 0 else []
    told = [f for f in ranks.agreed("the names of a checkpoint's files", files) if f]
    own: dict[str, Any] = {}
    for number, share in enumerate(shares):
        for name in share:
            value = named[name]
            if number == ranks.number:
                own[name] = value.get_value() if isinstance(value, Shared) else np.asarray(value)
            elif isinstance(value, Shared) and layout_of(value) is not None:
                value.get_value()
    names: list[str] = told[0] if told else []  # none: another group has the same values
    if ranks.number is not None:
        index.write_file(target, names[ranks.number], own)
    ranks.agreed("a checkpoint's files", True)
    if ranks.number == 0:
        listed = {n: (dtype, shape) for n, (dtype, shape, _) in forms.items()}
        total = sum(size for *_, size in forms.values())
        places = dict(zip(names, shares, strict=True))
        index.write_index(target, places, total, header_of(listed, _about(progress)))
    ranks.agreed("a checkpoint's index", True)


def _form(value: object) -> tuple[str, tuple[int, ...], int]:
    """Dtype, shape and bytes, without the value."""
    held = value.storage if isinstance(value, Shared) else np.asarray(value)
    size = math.prod(held.shape) * np.dtype(held.dtype).itemsize
    return np.dtype(held.dtype).name, tuple(held.shape), size


def _shares(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Names in this many groups of about equal bytes: the largest first."""
    shares: list[list[str]] = [[] for _ in range(count)]
    totals = [0] * count
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        least = totals.index(min(totals))
        shares[least].append(name)
        totals[least] += sizes[name]
    return shares


def _flat(groups: Groups) -> dict[str, Any]:
    return {f"{group}/{n}": v for group, inside in groups.items() for n, v in inside.items()}


def _about(progress: Mapping[str, Any]) -> dict[str, Any]:
    return {"training": {"kind": _KIND, "version": _VERSION, "progress": _plain(progress)}}


def load(
    path: str | os.PathLike[str], variables: Mapping[str, Mapping[str, Shared]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Set the variables, all or none; returns the progress, and the arrays of other groups.

    Raises :class:`~symdnn.errors.FileFormatError` for another kind of file, and
    :class:`~symdnn.errors.InputError` if it belongs to another network or optimiser.
    """
    found = load_parameters(_checked(path))
    about = found.metadata.get("training")
    if not isinstance(about, dict) or about.get("kind") != _KIND:
        raise FileFormatError(f"{path} has parameters, but is no checkpoint of a training")
    if int(about["version"]) > _VERSION:
        raise FileFormatError(f"{path} is of a later version of symdnn; update symdnn")
    wanted = {f"{g}/{n}": v for g, inside in variables.items() for n, v in inside.items()}
    mine = {n: a for n, a in found.items() if n.partition("/")[0] in variables}
    set_values(f"{path} is of another net or optimiser", wanted, mine, exact=True)
    others: dict[str, dict[str, Any]] = {}
    for name, array in found.items():
        group, _, inner = name.partition("/")
        if group not in variables:
            others.setdefault(group, {})[inner] = array
    return dict(about["progress"]), others


def _checked(path: str | os.PathLike[str]) -> Path:
    found = Path(path)
    if found.suffix != ".safetensors" and not index.is_index(found):
        raise FileFormatError(
            f"checkpoint: wanted a path that ends in .safetensors or {index.SUFFIX}, got {found}"
        )
    return found


def _plain(value: object) -> Any:
    """``value`` as JSON can hold it; Python writes floats so that they are read back exactly."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
