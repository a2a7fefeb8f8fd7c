"""Weights of other programs in files: names and arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError, InputError
from symdnn.graph.values.value import array_from
from symdnn.io import npz, safetensors
from symdnn.io.parameters import Parameters, stated_flips
from symdnn.nn.formats.hdf5 import read_h5, read_keras_zip
from symdnn.nn.formats.t7 import read_t7
from symdnn.nn.formats.zip import ADVICE, read_torch_zip

Array = np.ndarray[Any, Any]
TORCH = (".pt", ".pth", ".bin", ".ckpt")


def read_weights(source: object, key: str | None = None) -> Parameters:
    """Arrays by name: of a file, or of a mapping as it is.

    Files are .safetensors, .npz (as ``numpy.savez`` writes it), .pt, .pth, .bin, .ckpt of
    ``torch.save``, .h5 and .keras of Keras 1 to 3 (by h5py, the extra ``keras``), and .t7 of
    Torch7; they are read without these libraries and without running their code. ``key`` names
    the state dict inside of a checkpoint that holds more, such as ``"state_dict"``. The result's
    ``filter_flip`` is what a file of :func:`symdnn.io.save_parameters` says of its filters.

    Raises :class:`~symdnn.errors.FileFormatError` for a file of another kind, one that is damaged,
    that is no regular file, or that would unpack to more than the flag ``load_limit_bytes`` allows.
    """
    if isinstance(source, Mapping):
        found: Any = source
        path = Path("the mapping")
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        found = _read(path)
    else:
        raise InputError(f"read_weights: wanted a path or a mapping, got {source!r:.80}")
    if key is not None:
        if not isinstance(found, Mapping) or key not in found:
            raise InputError(f"read_weights: {path} has no {key!r}; it has {_listed(found)}")
        found = found[key]
    flip = found.filter_flip if isinstance(found, Parameters) else None
    return Parameters(_arrays(found, path), {}, flip)


def _read(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _with_flips(*safetensors.read(path), path)
    if suffix == ".npz":
        return _with_flips(*npz.read(path), path)
    if suffix in TORCH:
        return read_torch_zip(path)
    if suffix in (".h5", ".hdf5"):
        return read_h5(path)
    if suffix == ".keras":
        return read_keras_zip(path)
    if suffix == ".t7":
        return read_t7(path)
    known = ", ".join((".safetensors", ".npz", ".h5", ".hdf5", ".keras", ".t7", *TORCH))
    raise FileFormatError(f"{path}: the suffix must be one of {known}, got {suffix!r}")


def _with_flips(arrays: dict[str, Array], header: str | None, path: Path) -> Parameters:
    """The arrays, and what a header of ours says of filters."""
    try:
        said = stated_flips(json.loads(header), arrays) if header else {}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path}: the header is damaged ({error!s:.200})") from None
    return Parameters(arrays, {}, said)


def _arrays(found: object, path: Path) -> dict[str, Array]:
    """Every entry an array; anything else is named, with what may be meant."""
    if not isinstance(found, Mapping):
        raise FileFormatError(f"{path} holds {type(found).__name__}, wanted a state dict. {ADVICE}")
    arrays, others = {}, []
    for name, value in found.items():
        if isinstance(value, Mapping | str | list | tuple) or value is None:
            others.append(str(name))
            continue
        # A PyTorch tensor in a mapping gives its numbers by NumPy's protocol.
        arrays[str(name)] = array_from(value, f"read_weights: {name!s:.80} of {path}")
        if arrays[str(name)].dtype.kind == "O":
            others.append(str(name))
    if others:
        raise InputError(
            f"read_weights: {path} has entries that are no arrays: {', '.join(others)}. "
            f"Name the state dict among them: key={others[0]!r}"
        )
    return arrays


def _listed(found: object) -> str:
    return ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
