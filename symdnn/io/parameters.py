"""Parameters in a file: named arrays and a header, as npz or safetensors. Never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError, InputError, TypeMismatch
from symdnn.graph.type import DTYPES, TensorType
from symdnn.graph.values.value import array_from, as_numpy
from symdnn.graph.variable import Shared, Variable
from symdnn.io import index, npz, safetensors
from symdnn.io.atomic import write_atomically

__all__ = [
    "VERSION", "Parameters", "load_parameters", "mirrored", "save_parameters", "stated_flips",
]  # fmt: skip

#: Version of the format. A file of a higher one is refused.
VERSION = 1
KIND = "symdnn parameters"
FORMATS: Mapping[str, Any] = {".npz": npz, ".safetensors": safetensors}

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]


class Parameters(dict[str, Array]):
    """Loaded arrays by name; ``metadata`` is the file's description of them.

    ``filter_flip`` has for each array of which the file says so whether it is a filter of a true
    convolution (True) or of a cross-correlation (False).
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        metadata: Mapping[str, Any],
        filter_flip: Mapping[str, bool] | None = None,
    ) -> None:
        super().__init__(arrays)
        self.metadata = dict(metadata)
        self.filter_flip = dict(filter_flip or {})


def save_parameters(
    path: PathLike,
    parameters: Mapping[str, Any] | Iterable[Shared],
    metadata: Mapping[str, Any] | None = None,
    *,
    filter_flip: Mapping[str, bool] | None = None,
    max_file_bytes: int = index.MAX_FILE_BYTES,
) -> None:
    """Write ``parameters`` to ``path``, whose suffix, .npz or .safetensors, is the format.

    A path that ends in ``.safetensors.index.json`` is an index as Hugging Face's libraries write
    it: the arrays are in files beside it, ``model-00001-of-00002.safetensors``, with at most
    ``max_file_bytes`` of them in each, or one larger array.

    ``parameters`` maps names to shared variables or arrays, or is a list of named shared
    variables. ``metadata`` is anything that JSON can hold. The file appears complete or not at
    all, and equal parameters give equal bytes. All dtypes are kept, bfloat16 too; safetensors has
    no complex128.

    ``filter_flip`` says by name which arrays are filters, (out, in, ...), and for what: True for a
    true convolution, as Theano's ``conv2d`` computes by default, False for the cross-correlation of
    cuDNN, PyTorch and the modules of ``symdnn.nn``. It is stored in the file.

    Raises :class:`~symdnn.errors.FileFormatError` for another suffix or a dtype that the format
    lacks, and :class:`~symdnn.errors.InputError` for values that are no arrays, for duplicate
    names, and for a filter that is none.
    """
    target = Path(path)
    arrays = {name: _array(name, value) for name, value in _named(parameters).items()}
    flips = _flips(filter_flip, arrays) if filter_flip else None
    text = header_of({n: (a.dtype.name, a.shape) for n, a in arrays.items()}, metadata, flips)
    if index.is_index(target):
        if max_file_bytes < 1:
            raise InputError(f"save_parameters: max_file_bytes={max_file_bytes}; wanted 1 or more")
        index.save(target, arrays, text, max_file_bytes)
        return
    write_atomically(target, _format(target).write(arrays, text, target))


def header_of(
    forms: Mapping[str, tuple[str, Sequence[int]]],
    metadata: Mapping[str, Any] | None,
    flips: Mapping[str, bool] | None = None,
) -> str:
    """The header of a file of arrays of these dtypes and shapes, as a text."""
    header = {
        "kind": KIND,
        "version": VERSION,
        "arrays": {n: [dtype, list(shape)] for n, (dtype, shape) in forms.items()},
        "metadata": dict(metadata or {}),
    }
    if flips:
        header["filter_flip"] = dict(flips)
    try:
        return json.dumps(header)
    except (TypeError, ValueError) as error:
        raise InputError(f"save_parameters: metadata must be what JSON can hold: {error}") from None


def load_parameters(
    path: PathLike,
    into: Mapping[str, Shared] | None = None,
    *,
    filter_flip: bool | None = None,
) -> Parameters:
    """Read what :func:`save_parameters` wrote: a dict of arrays with a ``metadata`` attribute.

    With ``into`` the shared variables of these names get the values: all of them, or none when a
    name is missing or a value does not fit. A .safetensors file of another program is read too,
    and of several files the index, ``model.safetensors.index.json``.

    With ``filter_flip`` all filters are loaded as those of true convolutions (True) or of
    cross-correlations (False): a filter of the other kind is mirrored along all dimensions but the
    first two. Without it they are loaded as saved, and ``filter_flip`` of the result says their
    kind. A file that names no filters is an error: the kind is never guessed.

    Raises :class:`~symdnn.errors.FileFormatError` for a file that is damaged, of another kind, or
    of a later version; for one that is no regular file, or would unpack to more than the flag
    ``load_limit_bytes`` allows.
    """
    source = Path(path)
    module = _format(source)
    arrays, text = module.read(source)
    found = _checked(arrays, text, source)
    if filter_flip is not None:
        _mirror(found, filter_flip, source)
    if into is not None:
        _set_all(found, into, source)
    return found


def _flips(given: Mapping[str, bool], arrays: Mapping[str, Array]) -> dict[str, bool]:
    for name, flip in given.items():
        if name not in arrays or arrays[name].ndim < 3:
            got = f"of {arrays[name].ndim} dimension(s)" if name in arrays else "unknown"
            raise InputError(
                f"save_parameters: filter_flip names {name!r:.80}, which is {got}; wanted the name "
                "of a filter, (out, in, ...)"
            )
        if not isinstance(flip, bool):
            raise InputError(f"save_parameters: filter_flip of {name!r:.80} is {flip!r:.40}")
    return dict(given)


def _mirror(found: Parameters, wanted: bool, path: Path) -> None:
    if not found.filter_flip:
        raise InputError(
            f"{path} does not say which arrays are filters, or of which convention; save it with "
            "save_parameters(..., filter_flip={name: True or False}), or load it without"
        )
    for name, flip in found.filter_flip.items():
        if flip != wanted:
            found[name] = mirrored(found[name], range(2, found[name].ndim))
        found.filter_flip[name] = wanted


def mirrored(array: Array, axes: Iterable[int]) -> Array:
    """An array turned round along some dimensions."""
    return np.ascontiguousarray(np.flip(array, tuple(axes)))


def _format(path: Path) -> Any:
    if index.is_index(path):
        return index
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        torch = path.suffix.lower() in (".pt", ".pth", ".bin", ".ckpt")
        raise FileFormatError(
            f"{path}: the suffix must be one of {', '.join([*FORMATS, index.SUFFIX])}, got "
            f"{path.suffix!r}{'. nn.load_torch(net, path) reads files of PyTorch' * torch}"
        ) from None


def _named(parameters: Any) -> dict[str, Any]:
    if isinstance(parameters, Mapping):
        named = list(parameters.items())
    else:
        named = _own_names(list(parameters))
    found: dict[str, Any] = {}
    for name, value in named:
        if not isinstance(name, str) or not name:
            raise InputError(f"save_parameters: {value!r:.60} has no name; give a dict of names")
        if name in found:
            raise InputError(f"save_parameters: two parameters are named {name!r}")
        if problem := _no_name(name):
            raise InputError(f"save_parameters: the name {name!r:.80} {problem}")
        found[name] = value
    return found


#: The longest name: zip files have at most 65535 bytes for it and their own additions.
_NAME_BYTES = 65000


def _no_name(name: str) -> str:
    """Why a file cannot give back an array of this name; empty where it can."""
    if name.startswith("__"):
        return "is reserved"
    if "\0" in name:
        return "has a NUL, at which names in files end"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which files do not take"
    return "" if len(encoded) <= _NAME_BYTES else f"is longer than {_NAME_BYTES} bytes"


def _own_names(variables: list[Variable]) -> list[tuple[Any, Any]]:
    """Variables by name: without the path of their modules, where no two are the same then.

    So they were called before there were paths.
    """
    short = [_without_path(v) for v in variables]
    names = (
        short if len(set(short)) == len(short) else [getattr(v, "name", None) for v in variables]
    )
    return list(zip(names, variables, strict=True))


def _without_path(v: Variable) -> Any:
    tag, name = getattr(v, "_tag", None), getattr(v, "name", None)
    named_by_module = name is not None and getattr(tag, "path", None) == name
    return tag.attribute if named_by_module else name  # type: ignore[union-attr]


def _array(name: str, value: Any) -> Array:
    if isinstance(value, Shared):
        value = value.get_value(borrow=True)
    if isinstance(value, Variable):
        raise InputError(
            f"save_parameters: {name!r} is a symbolic {value.type}; give a shared variable, or the "
            "value that a function returned"
        )
    array = np.asarray(array_from(value, f"save_parameters: {name!r:.80}"), order="C")
    if array.dtype.name not in DTYPES:
        raise InputError(f"save_parameters: {name!r} has dtype {array.dtype}, wanted a number's")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _checked(arrays: dict[str, Array], text: str | None, path: Path) -> Parameters:
    if text is None:
        raise FileFormatError(f"{path} holds no parameters of symdnn: it has no header")
    try:
        header = json.loads(text)
        kind, version = header["kind"], int(header["version"])
        listed, metadata = header["arrays"], dict(header["metadata"])
        wanted = {n: [str(d), list(shape)] for n, (d, shape) in listed.items()}
        flips = stated_flips(header, arrays)
    except Exception as error:  # it is any JSON, or none
        raise FileFormatError(f"{path}: the header is damaged ({error!r:.200})") from None
    if kind != KIND:
        raise FileFormatError(f"{path} holds {kind!r}, wanted {KIND!r}")
    if version > VERSION:
        raise FileFormatError(
            f"{path} is of format version {version}, this symdnn reads up to {VERSION}; "
            "update symdnn"
        )
    have = {n: [a.dtype.name, list(a.shape)] for n, a in arrays.items()}
    wrong = [n for n in sorted({*have, *wanted}) if have.get(n) != wanted.get(n)]
    if wrong:
        raise FileFormatError(f"{path} is damaged: {', '.join(wrong)} are not as its header says")
    return Parameters({n: arrays[n] for n in wanted}, metadata, flips)


def stated_flips(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, bool]:
    """The filters that a header names. Raises ``ValueError`` if it is wrong."""
    flips = dict(header.get("filter_flip", {}))
    for name, flip in flips.items():
        if not isinstance(flip, bool) or name not in arrays or arrays[name].ndim < 3:
            raise ValueError(f"{name!r:.60} is no filter")
    return flips


def _set_all(found: Parameters, into: Mapping[str, Shared], path: Path) -> None:
    if not set(into) & set(found):  # keys by variables' names, of before they had paths
        short = {_without_path(v): v for name, v in into.items() if v.name == name}
        into = short if len(short) == len(into) else into
    if missing := sorted(set(into) - set(found)):
        have = ", ".join(found) or "nothing"
        raise InputError(f"{path} has no {', '.join(missing)}; it has {have}")
    for name, variable in into.items():
        array, wanted = found[name], variable.type
        if array.dtype.name != wanted.dtype:
            got = TensorType(array.dtype.name, array.shape)
            raise TypeMismatch(f"{path}: {name}", str(wanted), got, "Cast it and use set_value")
        as_numpy(array, wanted, f"{path}: {name}")
        if array.shape != variable.storage.shape:
            have_shape = variable.storage.shape
            raise InputError(f"{path}: {name} has shape {array.shape}, the variable {have_shape}")
    for name, variable in into.items():
        variable.set_value(found[name])
