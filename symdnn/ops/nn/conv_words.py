"""Translates Theano's arguments of convolutions: sizes, padding, strides, old keywords."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import ArgumentError, NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, known
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import BorderMode, StaticShape, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.shape import specify_type
from symdnn.ops.nn.conv import Pad, resolved_padding

# Keywords of Theano's first convolution, which chose among C loops and have no meaning any more.
_IGNORED_KEYWORDS = frozenset({
    "imshp", "kshp", "nkern", "bsize", "dx", "dy", "unroll_batch", "unroll_kern", "unroll_patch",
    "openmp", "version", "verbose", "direction_hint",
})  # fmt: skip

#: PyTorch's keywords of a convolution: those of Theano that mean the same.
OF_PYTORCH = {
    "stride": "subsample", "padding": "border_mode", "dilation": "filter_dilation",
    "groups": "num_groups", "weight": "filters",
}  # fmt: skip
#: Those of a transposed one.
TRANSPOSED_WORDS = {**OF_PYTORCH, "stride": "input_dilation", "output_padding": "output_shape"}


def static_ints(what: str, value: object, ndim: int) -> tuple[int, ...]:
    """``value`` (an int, a sequence or a constant) as ``ndim`` ints; one int is repeated."""
    if isinstance(value, Variable):
        if not isinstance(value, Constant):
            raise TypeMismatch(what, f"{ndim} constants", f"the symbolic {value.type}")
        value = value.data
    if isinstance(value, Sequence):
        value = [v.data if isinstance(v, Constant) else v for v in value]
    if any(isinstance(v, Variable) for v in (value if isinstance(value, list) else ())):
        raise TypeMismatch(what, f"{ndim} constants", "a symbolic entry")
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim > 1 or array.size not in (1, ndim):
        raise NdimMismatch(what, f"an int or {ndim} of them", repr(value))
    numbers = [int(v) for v in array.ravel()]
    return tuple(numbers * ndim if len(numbers) == 1 else numbers)


def border_padding(border_mode: BorderMode, ndim: int) -> tuple[Pad, ...]:
    """Padding from ``'valid'``, ``'half'``, ``'full'``, an int, or one entry per dimension.

    An entry is an int (both sides) or a pair ``(before, after)``.
    """
    if isinstance(border_mode, str):
        if border_mode == "valid":
            return ((0, 0),) * ndim
        if border_mode in ("half", "full"):
            return (border_mode,) * ndim
    elif isinstance(border_mode, int | np.integer):
        border_mode = (int(border_mode),) * ndim
    if not isinstance(border_mode, list | tuple | np.ndarray) or len(border_mode) != ndim:
        raise OptionError(
            f"border_mode={border_mode!r}: wanted 'valid', 'half', 'full', an int, or {ndim} ints "
            "or pairs of ints"
        )
    return tuple(_one_border(entry) for entry in border_mode)


def _one_border(entry: Any) -> Pad:
    if isinstance(entry, str) and entry in ("valid", "half", "full"):
        return (0, 0) if entry == "valid" else entry
    sides = (entry, entry) if isinstance(entry, int | np.integer) else tuple(entry)
    if len(sides) != 2 or any(not isinstance(s, int | np.integer) or s < 0 for s in sides):
        raise OptionError(f"border_mode: wanted non-negative ints or pairs of them, got {entry!r}")
    return int(sides[0]), int(sides[1])


def settled_padding(
    padding: tuple[Pad, ...], kernel: Sequence[Dim | None], dilation: Sequence[int]
) -> tuple[Pad, ...]:
    """Padding with 'half' and 'full' as numbers if the filter's size is known."""
    out: list[Pad] = []
    for mode, k, d in zip(padding, kernel, dilation, strict=True):
        size = None if k is None else known(k)
        out.append(mode if size is None else resolved_padding(mode, size, d))
    return tuple(out)


def float_operands(name: str, ndim: int, *values: TensorLike) -> list[Variable]:
    """Variables of ``ndim + 2`` dimensions and their common float dtype."""
    variables = [as_variable(v) for v in values]
    for v in variables:
        if not isinstance(v.type, TensorType) or v.type.ndim != ndim + 2:
            raise NdimMismatch(
                name, f"tensors of {ndim + 2} dimensions (batch, channels, {ndim} spatial)",
                [v.type for v in variables],
            )  # fmt: skip
    common = upcast(*(v.type.dtype for v in variables))
    if not TensorType(common).is_float:
        raise TypeMismatch(
            name, "float tensors", [v.type for v in variables], "Cast one: x.astype('float32')"
        )
    return [v if v.type.dtype == common else operator("cast")(v, common) for v in variables]


def with_sizes(name: str, v: Variable, shape: Any) -> Variable:
    """``v`` declared to have the sizes of ``shape``, which are checked in a call."""
    if shape is None:
        return v
    sizes = [static_size(d) for d in shape]
    if len(sizes) != v.type.ndim:
        raise NdimMismatch(name, f"{v.type.ndim} sizes", repr(tuple(shape)))
    for known_size, said in zip(v.type.shape, sizes, strict=True):
        if None not in (known_size, said) and known_size != said:
            raise ShapeMismatch(name, f"the declared shape {tuple(shape)}", str(v.type))
    return specify_type(v, TensorType(v.type.dtype, sizes))


def static_size(d: Dim | None) -> int | None:
    """One entry of a shape as a number, None when it is symbolic or absent."""
    if isinstance(d, Variable):
        return int(d.data) if isinstance(d, Constant) else None
    return None if d is None else int(d)


def input_shape_by_any_name(
    name: str, shape: object, image_shape: StaticShape, kwargs: dict[str, Any]
) -> Any:
    """``input_shape`` by either name; warns of keywords without meaning, refuses unknown ones."""
    unknown = set(kwargs) - _IGNORED_KEYWORDS
    if unknown:
        words = [f"{name}() got unexpected keyword arguments {sorted(unknown)}"]
        words += [f"PyTorch's {w} is {OF_PYTORCH[w]} here" for w in OF_PYTORCH if w in unknown]
        raise ArgumentError("; ".join(words))
    if kwargs:
        warnings.warn(
            f"{name}: {', '.join(sorted(kwargs))} had a meaning in early Theano only; ignored",
            DeprecationWarning, stacklevel=3,
        )  # fmt: skip
    if image_shape is None:
        return shape
    if shape is not None:
        raise ArgumentError(f"{name}: image_shape is the old name of input_shape; give one of them")
    return image_shape


def allows_tf32(precision: str | None = None) -> bool:
    """Whether float32 convolutions may round their inputs to TF32, by a hint's or the flags' word.

    ``precision`` is that of a node's hints; None means the flag ``dnn.conv.precision``.
    """
    wanted = str(config.dnn.conv.precision) if precision is None else precision
    return wanted == "tf32" or bool(config.dnn.conv.allow_tf32)
