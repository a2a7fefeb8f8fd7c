"""The complete state of a training, to be resumed exactly, in one safetensors file.

Arrays are named ``net/...``, ``optimiser/...``, ``random/...``, ``best/...``; the header, JSON, has
counters, the order of the data, the history. The file appears complete or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.variable import Shared
from symdnn.io.parameters import load_parameters, save_parameters
from symdnn.nn.modules.state import set_values

__all__ = ["load", "save"]

_KIND = "symdnn training"
_VERSION = 1

Groups = Mapping[str, Mapping[str, Any]]


def save(path: str | os.PathLike[str], groups: Groups, progress: Mapping[str, Any]) -> None:
    """Write arrays and shared variables by group and name, and what JSON can hold."""
    named = {f"{group}/{n}": v for group, inside in groups.items() for n, v in inside.items()}
    header = {"training": {"kind": _KIND, "version": _VERSION, "progress": _plain(progress)}}
    save_parameters(_checked(path), named, header)


def load(
    path: str | os.PathLike[str], variables: Mapping[str, Mapping[str, Shared]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Set the variables, all or none; returns the progress, and the arrays of other groups.

    Raises :class:`~symdnn.errors.FileFormatError` for another kind of file, and
    :class:`~symdnn.errors.InputError` where it belongs to another net or optimiser.
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
    if found.suffix != ".safetensors":
        raise FileFormatError(f"checkpoint: wanted a path that ends in .safetensors, got {found}")
    return found


def _plain(value: Any) -> Any:
    """``value`` as JSON can hold it; Python writes floats so that they are read back exactly."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
