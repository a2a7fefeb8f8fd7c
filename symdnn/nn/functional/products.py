"""Convolutions, matrix products, tables and attention with given weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.errors import InputError, NdimMismatch, TypeMismatch, UnknownWord
from symdnn.graph.names.torch_words import advises
from symdnn.graph.typing import PerAxis, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.layers.conv_sizes import check_output_padding, output_padded
from symdnn.nn.layers.embedding_bag import bags, check_index
from symdnn.nn.modules.arguments import sizes
from symdnn.ops.array.view import of_sizes
from symdnn.ops.attention.attention import scaled_dot_product_attention
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.comparison import eq, neq, switch
from symdnn.ops.linalg.dot import dot
from symdnn.ops.linalg.einsum import einsum
from symdnn.ops.nn.conv_builders import (
    conv1d as conv1d_op,
)
from symdnn.ops.nn.conv_builders import (
    conv1d_transpose,
    conv2d_transpose,
    conv3d_transpose,
)
from symdnn.ops.nn.conv_builders import (
    conv2d as conv2d_op,
)
from symdnn.ops.nn.conv_builders import (
    conv3d as conv3d_op,
)

__all__ = [
    "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "embedding", "embedding_bag", "linear", "scaled_dot_product_attention",
]  # fmt: skip

_FORWARD: dict[int, Callable[..., Variable]] = {1: conv1d_op, 2: conv2d_op, 3: conv3d_op}
_BACK: dict[int, Callable[..., Variable]] = {
    1: conv1d_transpose, 2: conv2d_transpose, 3: conv3d_transpose,
}  # fmt: skip


@advises()
def linear(input: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Variable:
    """``input weight^T + bias``: (..., in), (out, in), (out)."""
    w = as_variable(weight)
    y = dot(input, w.dimshuffle(1, 0) if w.type.ndim == 2 else w)
    return y if bias is None else y + bias


@advises()
def bilinear(
    input1: TensorLike, input2: TensorLike, weight: TensorLike, bias: TensorLike | None = None
) -> Variable:
    """``y[k] = x1 weight[k] x2 + bias[k]``: (..., in1), (..., in2), (out, in1, in2)."""
    made: Variable = einsum("...i,kij,...j->...k", input1, weight, input2)
    return made if bias is None else made + bias


@advises()
def embedding(
    input: TensorLike, weight: TensorLike, padding_idx: int | None = None,
    max_norm: None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Variable:  # fmt: skip
    """The rows ``input`` (integers) of ``weight``; the row ``padding_idx`` gets no gradient."""
    if max_norm is not None or scale_grad_by_freq:
        raise InputError("embedding: max_norm and scale_grad_by_freq are those of nn.Embedding")
    index, table = as_variable(input), as_variable(weight)
    if not index.type.is_integer:
        raise TypeMismatch("embedding", "integers", index.type, "Cast it: x.astype('int64')")
    rows = table[index]
    if padding_idx is None:
        return rows
    padding = eq(index, padding_idx % dims_of(table)[0])
    return switch(padding.dimshuffle(*range(index.type.ndim), "x"), disconnected_grad(rows), rows)


@advises()
def embedding_bag(
    input: TensorLike, weight: TensorLike, offsets: TensorLike | None = None,
    max_norm: None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
    mode: str = "mean", sparse: bool = False, per_sample_weights: TensorLike | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Variable:  # fmt: skip
    """``nn.EmbeddingBag`` as a function: bags of the rows ``input`` (integers) of ``weight``."""
    index = as_variable(input)
    check_index(index, offsets)
    rows = embedding(index, weight, None, max_norm, norm_type, scale_grad_by_freq)
    counted = None
    if padding_idx is not None:
        counted = neq(index, padding_idx % dims_of(as_variable(weight))[0])
    return bags(rows, counted, mode, offsets, per_sample_weights, include_last_offset)


def _batch(name: str, n: int, input: TensorLike) -> tuple[Variable, bool]:
    x = as_variable(input)
    if x.type.ndim not in (n + 1, n + 2):
        raise NdimMismatch(name, f"a tensor of {n + 2} dimensions, or {n + 1} alone", x.type)
    alone = x.type.ndim == n + 1
    return (x.dimshuffle("x", *range(n + 1)) if alone else x), alone


def _finished(n: int, y: Variable, bias: TensorLike | None, alone: bool) -> Variable:
    if bias is not None:
        row = of_sizes(as_variable(bias), [dims_of(y)[1]], f"conv{n}d: bias")
        y = y + row.dimshuffle("x", 0, *["x"] * n)
    return y.dimshuffle(*range(1, n + 2)) if alone else y


def _conv(
    n: int, input: TensorLike, weight: TensorLike, bias: TensorLike | None, stride: PerAxis,
    padding: Any, dilation: PerAxis, groups: int,
) -> Variable:  # fmt: skip
    name, none = f"conv{n}d", (None,) * n
    x, alone = _batch(name, n, input)
    steps = sizes(f"{name}: stride", n, none, stride)
    spread = sizes(f"{name}: dilation", n, none, dilation)
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise UnknownWord(f"{name}: padding={padding!r}; wanted ints, 'same' or 'valid'")
        kernel = [k if padding == "same" else 1 for k in as_variable(weight).type.shape[2:]]
        if None in kernel:
            raise NdimMismatch(name, "a weight of known sizes for 'same'", as_variable(weight).type)
        around = [d * (int(k or 1) - 1) for k, d in zip(kernel, spread, strict=True)]
        border = tuple((a // 2, a - a // 2) for a in around)
    elif np.ndim(padding) == 2:
        border = tuple((int(a), int(b)) for a, b in padding)
    else:
        border = tuple((p, p) for p in sizes(f"{name}: padding", n, none, padding))
    y = _FORWARD[n](
        x, weight, border_mode=border, subsample=steps, filter_flip=False,
        filter_dilation=spread, num_groups=groups,
    )  # fmt: skip
    return _finished(n, y, bias, alone)


@advises()
def conv1d(
    input: TensorLike, weight: TensorLike, bias: TensorLike | None = None, stride: PerAxis = 1,
    padding: PerAxis = 0, dilation: PerAxis = 1, groups: int = 1,
) -> Variable:  # fmt: skip
    """Cross-correlation of (N, C, L) with (out, C / groups, k); "same" and "valid" are paddings."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


@advises()
def conv2d(
    input: TensorLike, weight: TensorLike, bias: TensorLike | None = None, stride: PerAxis = 1,
    padding: PerAxis = 0, dilation: PerAxis = 1, groups: int = 1,
) -> Variable:  # fmt: skip
    """:func:`conv1d` of (N, C, H, W) with (out, C / groups, kh, kw)."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


@advises()
def conv3d(
    input: TensorLike, weight: TensorLike, bias: TensorLike | None = None, stride: PerAxis = 1,
    padding: PerAxis = 0, dilation: PerAxis = 1, groups: int = 1,
) -> Variable:  # fmt: skip
    """:func:`conv1d` of (N, C, D, H, W) with (out, C / groups, kd, kh, kw)."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _transposed(
    n: int, input: TensorLike, weight: TensorLike, bias: TensorLike | None, stride: PerAxis,
    padding: PerAxis, output_padding: PerAxis, groups: int, dilation: PerAxis,
) -> Variable:  # fmt: skip
    name, none = f"conv_transpose{n}d", (None,) * n
    x, alone = _batch(name, n, input)
    weight = as_variable(weight)
    if weight.type.ndim != n + 2:
        raise NdimMismatch(
            name, f"a weight of {n + 2} dimensions (C, out / groups, ...)", weight.type
        )
    words = {
        "stride": sizes(f"{name}: stride", n, none, stride),
        "padding": sizes(f"{name}: padding", n, none, padding),
        "output_padding": sizes(f"{name}: output_padding", n, none, output_padding),
        "dilation": sizes(f"{name}: dilation", n, none, dilation),
    }
    check_output_padding(name, words["output_padding"], words["stride"], words["dilation"])
    found, kernel = dims_of(x)[2:], dims_of(weight)[2:]
    rows = zip(found, kernel, *words.values(), strict=True)
    wanted = [(m - 1) * s - 2 * p + d * (k - 1) + o + 1 for m, k, s, p, o, d in rows]
    padded = output_padded(x, words["output_padding"], words["stride"])
    y = _BACK[n](
        padded, weight, (None, None, *wanted), border_mode=words["padding"], filter_flip=False,
        input_dilation=words["stride"], filter_dilation=words["dilation"], num_groups=groups,
    )  # fmt: skip
    return _finished(n, y, bias, alone)


@advises()
def conv_transpose1d(
    input: TensorLike, weight: TensorLike, bias: TensorLike | None = None, stride: PerAxis = 1,
    padding: PerAxis = 0, output_padding: PerAxis = 0, groups: int = 1, dilation: PerAxis = 1,
) -> Variable:  # fmt: skip
    """The transpose of :func:`conv1d`: (N, C, L) with (C, out / groups, k)."""
    return _transposed(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@advises()
def conv_transpose2d(
    input: TensorLike, weight: TensorLike, bias: TensorLike | None = None, stride: PerAxis = 1,
    padding: PerAxis = 0, output_padding: PerAxis = 0, groups: int = 1, dilation: PerAxis = 1,
) -> Variable:  # fmt: skip
    """The transpose of :func:`conv2d`."""
    return _transposed(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@advises()
def conv_transpose3d(
    input: TensorLike, weight: TensorLike, bias: TensorLike | None = None, stride: PerAxis = 1,
    padding: PerAxis = 0, output_padding: PerAxis = 0, groups: int = 1, dilation: PerAxis = 1,
) -> Variable:  # fmt: skip
    """The transpose of :func:`conv3d`."""
    return _transposed(3, input, weight, bias, stride, padding, output_padding, groups, dilation)
