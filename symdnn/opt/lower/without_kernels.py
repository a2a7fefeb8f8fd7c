"""Ops without a kernel on a GPU, in simpler ones that have kernels there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.origin import noting
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.boxes import KeptBoxes, NonMaxSuppression
from symdnn.ops.array.create import arange
from symdnn.ops.array.cumulative import cumsum
from symdnn.ops.array.getitem import getitem, nonzero
from symdnn.ops.array.join import RepeatIndex, join, stack
from symdnn.ops.array.reduce import AllTrue, AnyTrue, all, sum
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.array.sort import argsort, searchsorted
from symdnn.ops.array.take import take_along_axis
from symdnn.ops.array.view import expand_dims, of_sizes, specify_shape
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.core.shape import dims_of, shape_i
from symdnn.ops.elementwise.arithmetic import Cast, Pow, cast
from symdnn.ops.elementwise.comparison import and_, neq
from symdnn.ops.elementwise.complexes import Complex, Imag, Real
from symdnn.ops.elementwise.natural_power import NaturalPow
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.nn.ctc import CTCCosts, CTCLoss
from symdnn.ops.nn.lrn import LRN, ChannelSum, LRNGrad
from symdnn.ops.nn.softmax import LogSoftmaxGradOfLogits, softmax
from symdnn.ops.nn.spatial_transformer import TransformerSamplerTangent
from symdnn.ops.sparse.products import SampledDot, SparseDot
from symdnn.rewriting.rewrite import Context, Rewrite

Function = Callable[[Apply[Any], Context], "Variable | Sequence[Variable | None] | None"]


def _rule(*ops: type[Op], library: bool = False) -> Callable[[Function], Rewrite]:
    """A rule for ops that no library and no kernel takes.

    The report says why, where a ``library`` takes some of them.
    """

    def wrap(function: Function) -> Rewrite:
        def told(node: Apply, context: Context) -> Any:
            found = context.capabilities.not_lowered(context.fgraph, context.target, lambda _: True)
            why = f"; {found[node]}" if node in found else ""
            with noting(f"{node.op} written out{why}"):
                return function(node, context)

        text = (function.__doc__ or "").split("\n")[0]
        tags = frozenset({"fast_compile"})
        return Rewrite(
            function.__name__, "lower", ops, told if library else function, tags, text,
            target="cuda", last_resort=True,
        )  # fmt: skip

    return wrap


def _in_float32(build: Callable[..., Variable], *operands: Variable) -> Variable:
    """An expression of floats, those of 16 bits in float32; the result in their dtype."""
    dtype = operands[0].type.dtype
    wide = work_dtype(dtype)
    return cast(build(*(cast(v, wide) for v in operands)), dtype)


# -- layers ---------------------------------------------------------------------------------------


@_rule(LRN, LRNGrad, library=True)
def write_out_lrn(node: Apply[LRN | LRNGrad], context: Context) -> Variable:
    """A response normalisation that cuDNN does not take, as sums over windows of channels."""
    return _in_float32(node.op.written_out, *node.inputs)


@_rule(ChannelSum)
def write_out_channel_sum(node: Apply[ChannelSum], context: Context) -> Variable:
    """Sums over neighbouring channels without cuDNN, by symdnn's pooling."""
    return node.op.written_out(*node.inputs)


@_rule(LogSoftmaxGradOfLogits)
def write_out_log_softmax_grad(
    node: Apply[LogSoftmaxGradOfLogits], context: Context
) -> Variable | None:
    """The gradient of a log-softmax by the softmax, where no rows are fused."""
    axis = node.op.axis

    def written(x: Variable, dy: Variable) -> Variable:
        dy = of_sizes(dy, dims_of(x), str(node.op))
        return dy - softmax(x, axis) * dy.sum(axis=axis, keepdims=True)

    return _in_float32(written, *node.inputs)


@_rule(TransformerSamplerTangent)
def write_out_sampler_tangent(node: Apply[TransformerSamplerTangent], context: Context) -> Variable:
    """The tangent of a sampled image by gathers."""
    return node.op.written_out(*node.inputs)


@_rule(CTCLoss, CTCCosts, library=True)
def write_out_ctc(
    node: Apply[CTCLoss | CTCCosts], context: Context
) -> Sequence[Variable | None] | None:
    """The CTC loss in float32 by cuDNN, else by a loop and its gradient."""
    activations, labels, lengths = node.inputs
    dtype = activations.type.dtype
    op = CTCLoss()
    if is_narrow_float(dtype):
        found = type(node.op)()(cast(activations, "float32"), labels, lengths)
        many = found if isinstance(found, list | tuple) else [found]
        return [cast(v, dtype) for v in many]
    if isinstance(node.op, CTCCosts) and dtype == "float32" and context.target.has("cudnn"):
        return [op(*node.inputs)[0]]
    sizes = (activations.type.shape[1], labels.type.shape[0], lengths.type.shape[0])
    n = next((s for s in sizes if s is not None), dims_of(activations)[1])
    activations = of_sizes(activations, [n, dims_of(activations)[2]], str(op))
    labels = of_sizes(labels, [n, dims_of(labels)[1]], str(op))
    lengths = of_sizes(lengths, [n], str(op))
    steps, _, classes = dims_of(activations)
    known = all(and_(labels < classes, neq(labels, 0)))
    within = all(and_(lengths >= 0, lengths <= steps))
    wanted = f"{op}: wanted labels below {activations.type.shape[2] or 'the number of classes'} "
    wanted += "that are not 0 (condition 0), and lengths up to the number of frames (condition 1)"
    checked = Assert(wanted, "IndexOutOfRange")(activations, known, within)
    return op.written_out(checked, labels, lengths)[: len(node.outputs)]


# -- places that follow from data -----------------------------------------------------------------


@_rule(RepeatIndex)
def write_out_repeat_index(node: Apply[RepeatIndex], context: Context) -> Variable:
    """Place k belongs to the first index whose running count is above k."""
    repeats, n = node.inputs
    counts = cast(specify_shape(repeats, (n,)), "int64")
    counts = Assert("repeat: wanted counts that are not negative", "DataError")(counts, counts >= 0)
    ends = cumsum(counts, axis=0)
    return searchsorted(ends, arange(sum(counts)), side="right")


@_rule(NonMaxSuppression)
def write_out_non_max_suppression(
    node: Apply[NonMaxSuppression], context: Context
) -> Variable | None:
    """Boxes in the order of their scores in each class, those that stay, and their places."""
    boxes, scores, most, overlap, least = node.inputs
    if not isinstance(overlap, Constant):
        return None
    n, b = dims_of(boxes)[:2]
    scores = specify_shape(scores, (n, None, b))
    corners = cast(boxes, "float64")
    if node.op.centred:
        x, y, w, h = (corners[..., k] for k in range(4))
        corners = stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=-1)
    order = argsort(-cast(scores, "float64"), axis=2, kind="stable")
    ranked = take_along_axis(scores, order, 2)
    wanted = (expand_dims(corners, 1), expand_dims(order, 3))
    kept = KeptBoxes(max(float(overlap.data), 0.0))(take_along_axis(*wanted, 2))
    kept = and_(kept, ranked > cast(least, scores.type.dtype))
    kept = and_(kept, cumsum(cast(kept, "int64"), axis=2) <= most)
    places = nonzero(kept)
    return stack([*places[:2], getitem(order, places)], axis=1)


# -- dtypes ---------------------------------------------------------------------------------------


@_rule(ScatterReduce)
def write_out_narrow_scatter(node: Apply[ScatterReduce], context: Context) -> Variable | None:
    """Extremes and products of 8 bits, for which there are no atomic operations, in int32."""
    (x, y, *places), dtype = node.inputs, node.outputs[0].type.dtype
    if dtype not in ("bool", "int8", "uint8"):
        return None
    return cast(node.op(cast(x, "int32"), cast(y, "int32"), *places), dtype)


@_rule(Dot, BatchedDot)
def write_out_bool_product(node: Apply[Dot | BatchedDot], context: Context) -> Variable | None:
    """A product of bools by counts: whether any two are both true."""
    if node.outputs[0].type.dtype != "bool":
        return None
    return neq(node.op(*(cast(v, "int32") for v in node.inputs)), 0)


@_rule(AllTrue, AnyTrue)
def write_out_complex_truth(node: Apply[AllTrue | AnyTrue], context: Context) -> Variable | None:
    """Whether complex numbers are not 0, and of these answers all or any."""
    (x,) = node.inputs
    return node.op(neq(x, 0)) if x.type.is_complex else None


@_rule(Cast)
def write_out_cast_of_complex(node: Apply[Cast], context: Context) -> Variable | None:
    """Of complex numbers a real dtype has the real part."""
    (x,), out = node.inputs, node.outputs[0].type
    return cast(Real()(x), out.dtype) if x.type.is_complex and not out.is_complex else None


@_rule(Pow)
def write_out_integer_power(node: Apply[Pow], context: Context) -> Variable | None:
    """A power of integers that is checked before: an exponent may not be negative."""
    x, y = node.inputs
    if type(node.op) is not Pow or meaning(node.op, (x.type.dtype, y.type.dtype)) is not None:
        return None
    if not (x.type.is_discrete and y.type.is_discrete):
        return None
    if not (isinstance(y, Constant) and (y.data >= 0).all()):
        y = Assert("integers to negative integer powers are not allowed", "DataError")(y, y >= 0)
    return NaturalPow()(x, y)


def _parts(x: Variable) -> list[Variable]:
    return [Real()(x), Imag()(x)]


@_rule(SparseDot)
def write_out_complex_sparse_dot(node: Apply[SparseDot], context: Context) -> Variable | None:
    """A complex product by two real ones, with the parts of the dense operand side by side."""
    data, indices, indptr, x, minor = node.inputs
    if not data.type.is_complex or node.op.transposed:
        return None
    columns = x if x.type.ndim == 2 else expand_dims(x, 1)
    width = shape_i(columns, 1)
    both = join(1, *_parts(columns))
    by_re, by_im = (node.op(part, indices, indptr, both, minor) for part in _parts(data))
    re = by_re[:, :width] - by_im[:, width:]
    im = by_re[:, width:] + by_im[:, :width]
    found = Complex()(re, im)
    return found if x.type.ndim == 2 else found[:, 0]


@_rule(SampledDot)
def write_out_complex_sampled_dot(node: Apply[SampledDot], context: Context) -> Variable | None:
    """Complex samples by two real ones, with the parts of both operands side by side."""
    indices, indptr, u, v = node.inputs
    if not u.type.is_complex:
        return None
    (a, b), (c, d) = ([p if p.type.ndim == 2 else expand_dims(p, 1) for p in _parts(w)]
                      for w in (u, v))  # fmt: skip
    re = node.op(indices, indptr, join(1, a, -b), join(1, c, d))
    im = node.op(indices, indptr, join(1, a, b), join(1, d, c))
    return Complex()(re, im)


RULES = (
    write_out_lrn, write_out_channel_sum, write_out_log_softmax_grad, write_out_sampler_tangent,
    write_out_ctc, write_out_repeat_index, write_out_non_max_suppression,
    write_out_narrow_scatter, write_out_integer_power, write_out_bool_product,
    write_out_complex_truth, write_out_cast_of_complex, write_out_complex_sparse_dot,
    write_out_complex_sampled_dot,
)  # fmt: skip
