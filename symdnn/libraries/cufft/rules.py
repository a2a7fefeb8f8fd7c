"""Fourier transforms in the form that cuFFT takes: unscaled, along the last axes, at most three.

A scale is a product, which joins other elementwise ops; other axes become the last ones by views.
The ops stay neutral ones, which cuFFT's kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from symdnn.graph.dims import Dim, product
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.ops.core.shape import as_dim, dims_of, dimshuffle
from symdnn.ops.elementwise.arithmetic import cast, sqrt
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.fourier.transform import COMPLEX_OF, FFT, REAL_OF, InverseRealFFT, Transform
from symdnn.opt.lower.lowering import Backend, Library
from symdnn.rewriting.facts import made_by
from symdnn.rewriting.rewrite import Context, Rewrite

#: Dimensions of a transform by one call.
MOST_AXES = 3


def _problem(target: Target) -> str | None:
    return None if target.kind == "cuda" else f"the target is {target}"


BACKEND = Backend("cufft", "cuda", _problem, (None, "cufft"))


Function = Callable[[Apply[Transform], Context], Variable | None]


def _rule(name: str, *ops: type[Transform]) -> Callable[[Function], Rewrite]:
    """A decorator that makes a rewrite of transforms for CUDA."""
    tags = frozenset({"cufft", "fast_compile"})

    def wrap(function: Function) -> Rewrite:
        return Rewrite(name, "lower", ops or (Transform,), function, tags, target="cuda")

    return wrap


@_rule("fft_scale_apart")
def scale_apart(node: Apply[Transform], context: Context) -> Variable | None:
    """A scaled transform is an unscaled one times a number, or of an operand times a number."""
    op, (x, *rest) = node.op, node.inputs
    if op.norm == "none":
        return None
    sizes: list[Dim] = [dims_of(x)[a] for a in op.axes]
    if isinstance(op, InverseRealFFT):
        sizes[-1] = rest[0] if op.size is None else op.size
    dtype, total = REAL_OF.get(x.type.dtype, x.type.dtype), product(sizes)
    power = -0.5 if op.norm == "ortho" else -1.0
    whole, known = replace(op, norm="none"), isinstance(total, int)
    if known and made_by(x, Elemwise) and context.only_reader(x) and not _joins(node, context):
        return whole(x * constant(total**power, dtype=dtype), *rest)
    y = whole(x, *rest)
    if known:
        return y * constant(total**power, dtype=dtype)
    number = cast(as_dim(total), dtype)
    return y / (sqrt(number) if op.norm == "ortho" else number)


def _joins(node: Apply, context: Context) -> bool:
    """Whether an elementwise op reads the result, and can scale it."""
    return any(isinstance(u.op, Elemwise) for u in context.fgraph.user_nodes(node.outputs[0]))


@_rule("fft_of_real_as_complex", FFT)
def real_as_complex(node: Apply[Transform], context: Context) -> Variable | None:
    """The full transform of real numbers is that of complex ones."""
    (x, *_), op = node.inputs, node.op
    if x.type.is_complex:
        return None
    return op(cast(x, COMPLEX_OF[x.type.dtype]))


@_rule("fft_in_parts")
def in_parts(node: Apply[Transform], context: Context) -> Variable | None:
    """More than three axes are transformed one after the other.

    So are those of an inverse to real numbers: each line's imaginary parts that must be 0 are left
    out of it, which cuFFT does not promise for several axes.
    """
    op, (x, *rest) = node.op, node.inputs
    most = 1 if isinstance(op, InverseRealFFT) else MOST_AXES
    if len(op.axes) <= most:
        return None
    first, last = op.axes[:-most], op.axes[-most:]
    if isinstance(op, InverseRealFFT):
        return replace(op, axes=last)(FFT(first, op.norm, inverse=True)(x), *rest)
    inverse = isinstance(op, FFT) and op.inverse
    return FFT(first, op.norm, inverse)(replace(op, axes=last)(x))


@_rule("fft_along_last_axes")
def along_last_axes(node: Apply[Transform], context: Context) -> Variable | None:
    """A transform along other axes than the last ones is one between transpositions."""
    op, (x, *rest) = node.op, node.inputs
    ndim, count = x.type.ndim, len(op.axes)
    last = tuple(range(ndim - count, ndim))
    if op.axes == last:
        return None
    order = [a for a in range(ndim) if a not in op.axes] + list(op.axes)
    y = replace(op, axes=last)(dimshuffle(x, order), *rest)
    return dimshuffle(y, _inverse(order))


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda i: order[i])


CUFFT = Library(BACKEND, own_rules=(scale_apart, real_as_complex, in_parts, along_last_axes))
