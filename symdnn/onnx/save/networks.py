"""Products, convolutions, pooling, normalisation and softmax as nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.onnx.save.writer import FAR, Writer
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.nn.upsample import is_multiple

Emitter = Callable[[Writer, Apply], Any]


def _dot(w: Writer, node: Apply) -> Any:
    out = node.outputs[0].type.dtype
    names = [w.name(v) if v.type.dtype == out else w.cast(w.name(v), out) for v in node.inputs]
    return w.add("MatMul", *names)


def _axis_of(op_name: str) -> Emitter:
    def emit(w: Writer, node: Apply) -> Any:
        op: Any = node.op
        return w.add(op_name, w.name(node.inputs[0]), axis=op.axis)

    return emit


# -- convolution ----------------------------------------------------------------------------------


def _filters(w: Writer, node: Apply, weights: Variable) -> str:
    """The filters, mirrored where the op mirrors them."""
    op: Any = node.op
    name = w.name(weights)
    if not op.flip:
        return name
    axes = list(range(2, weights.ndim))
    return w.sliced(name, [FAR] * len(axes), [-FAR - 1] * len(axes), axes, [-1] * len(axes))


def _conv_attributes(w: Writer, node: Apply, weights: Variable) -> dict[str, Any]:
    op: Any = node.op
    kernel = weights.type.shape[2:]
    if any(isinstance(p, str) for p in op.padding) and None in kernel:
        raise w.refuse(node, "the padding depends on filters of unknown size")
    pads = [resolved_padding(p, 0 if k is None else k, d)
            for p, k, d in zip(op.padding, kernel, op.dilation)]  # fmt: skip
    return {
        "pads": [int(b) for b, _ in pads] + [int(a) for _, a in pads],
        "strides": list(op.stride), "dilations": list(op.dilation), "group": op.groups,
        "kernel_shape": None if None in kernel else list(kernel),
    }  # fmt: skip


def _conv(w: Writer, node: Apply) -> Any:
    x, weights = node.inputs
    return w.add(
        "Conv", w.name(x), _filters(w, node, weights), **_conv_attributes(w, node, weights)
    )


def _conv_transpose(w: Writer, node: Apply) -> Any:
    """The gradient of a convolution in its input, which is the transposed convolution."""
    op: Any = node.op
    weights, dy, *sizes = node.inputs
    given = _conv_attributes(w, node, weights)
    rank = len(op.stride)
    extra, cut = [], []
    for i in range(rank):
        n, m, k = op.static[i], dy.type.shape[2 + i], weights.type.shape[2 + i]
        pads = given["pads"][i] + given["pads"][rank + i]
        if n is not None and m is not None and k is not None:
            extra.append(n + pads - (m - 1) * op.stride[i] - (k - 1) * op.dilation[i] - 1)
        else:  # the most that there may be: what is too much is cut off
            extra.append(op.stride[i] - 1)
            cut += [i] * (op.stride[i] > 1)
    y = w.add(
        "ConvTranspose", w.name(dy), _filters(w, node, weights), output_padding=extra, **given
    )
    ends = [sizes[i] for i in cut]
    return w.sliced(y, [0] * len(cut), ends, [2 + i for i in cut], [1] * len(cut)) if cut else y


# -- pooling --------------------------------------------------------------------------------------


def _pool(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x = node.inputs[0]
    lead = x.ndim - len(op.ws)
    name = w.name(x)
    shape = w.shape(name)
    if lead != 2:  # two dimensions before the pooled ones, and their own sizes again afterwards
        name = w.add("Reshape", name, _with_sizes(w, [1, -1], shape, lead, x.ndim))
    given: dict[str, Any] = {
        "kernel_shape": list(op.ws), "strides": list(op.stride), "pads": list(op.pad) * 2,
        "ceil_mode": int(not op.ignore_border),
    }  # fmt: skip
    if op.mode == "max":
        y = w.add("MaxPool", name, **given)
    else:
        if op.mode == "sum" and not op.ignore_border:
            raise w.refuse(node, "sums of windows that reach beyond the border")
        y = w.add("AveragePool", name, count_include_pad=int(op.mode != "average_exc_pad"), **given)
        if op.mode == "sum":
            y = w.add("Mul", y, w.like(x, float(np.prod(op.ws))))
    if lead == 2:
        return y
    first = w.add("Slice", shape, *(w.constant([n], np.int64) for n in (0, lead, 0)))
    last = w.add("Slice", w.add("Shape", y), *(w.constant([n], np.int64) for n in (2, FAR, 0)))
    return w.add("Reshape", y, w.add("Concat", first, last, axis=0))


def _repeated(w: Writer, node: Apply) -> Any:
    """Each element repeated in a block, as images are made larger: the gradient of a sum of blocks.

    What is behind the last whole block is 0.
    """
    op: Any = node.op
    dy, *sizes = node.inputs
    if tuple(op.stride) != tuple(op.ws) or any(op.pad) or not op.ignore_border:
        raise w.refuse(node)
    rank, lead = len(op.ws), dy.ndim - len(op.ws)
    y = _blocks(w, w.name(dy), lead, op.ws, dy.type.dtype)
    if op.mode != "sum":
        y = w.add("Div", y, w.like(dy, float(np.prod(op.ws))))
    known = zip(dims_of(dy)[lead:], sizes, op.static, op.ws)
    if all(size == m * k if size is not None else is_multiple(m, v, k) for m, v, size, k in known):
        return y
    places = w.constant(list(range(lead, lead + rank)), np.int64)
    more = w.add("Sub", w.vector(sizes), w.add("Gather", w.shape(y), places))
    none = w.constant([0] * lead, np.int64)
    return w.add("Pad", y, w.add("Concat", w.constant([0] * dy.ndim, np.int64), none, more, axis=0))


def _blocks(w: Writer, name: str, lead: int, ws: Sequence[int], dtype: str) -> str:
    """An array whose elements behind the first ``lead`` axes are repeated ``ws`` times each."""
    times = [1] * lead + list(ws)
    if dtype == "float32":  # ONNX Runtime resizes arrays of few other dtypes
        scales = w.constant([float(k) for k in times], np.float32)
        return w.add(
            "Resize", name, "", scales, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip
    wide = w.unsqueezed(name, [lead + 1 + 2 * i for i in range(len(ws))])
    inner = [n for k in ws for n in (1, k)]
    wide = w.add("Expand", wide, w.constant([1] * lead + inner, np.int64))
    return w.add("Reshape", wide, w.add("Mul", w.shape(name), w.constant(times, np.int64)))


def _with_sizes(w: Writer, numbers: list[int], shape: str, start: int, end: int) -> str:
    part = w.add("Slice", shape, *(w.constant([n], np.int64) for n in (start, end, 0)))
    return w.add("Concat", w.constant(numbers, np.int64), part, axis=0)


# -- normalisation --------------------------------------------------------------------------------


def _batch_norm(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, *params = node.inputs
    names = [w.name(p) for p in params]
    per_channel = tuple(op.axes) == tuple(i for i in range(x.ndim) if i != 1) and x.ndim > 1
    if per_channel and all(p.type.dtype == x.type.dtype for p in params):
        flat = [w.reshaped(n, [-1]) for n in names]
        return w.add("BatchNormalization", w.name(x), *flat, epsilon=op.epsilon)
    gamma, beta, mean, var = names
    root = w.add("Sqrt", w.add("Add", var, w.like(params[3], op.epsilon)))
    centred = w.add("Sub", w.name(x), mean)
    return w.add("Add", w.add("Mul", w.add("Div", centred, root), gamma), beta)


def _own_statistics(w: Writer, node: Apply) -> Any:
    """Layer, group, instance and batch normalisation by statistics of the input itself."""
    op: Any = node.op
    x, gamma, beta = node.inputs[:3]
    y, mean, invstd = node.outputs[:3]
    if getattr(op, "running", False):
        raise w.refuse(node, "running statistics are updated; save the network as it is evaluated")
    name = w.name(x)
    if mean.type.dtype != x.type.dtype:
        name = w.cast(name, mean.type.dtype)
    axes = w.constant(list(op.axes), np.int64)
    m = w.add("ReduceMean", name, axes, keepdims=1)
    centred = w.add("Sub", name, m)
    var = w.add("ReduceMean", w.add("Mul", centred, centred), axes, keepdims=1)
    root = w.add("Sqrt", w.add("Add", var, w.like(invstd, op.epsilon)))
    inverse = w.add("Reciprocal", root)
    scaled = w.add("Mul", w.add("Mul", centred, inverse), _as(w, gamma, mean.type.dtype))
    found = w.add("Add", scaled, _as(w, beta, mean.type.dtype))
    return [found if mean.type.dtype == y.type.dtype else w.cast(found, y.type.dtype), m, inverse]


def _as(w: Writer, v: Variable, dtype: str) -> str:
    return w.name(v) if v.type.dtype == dtype else w.cast(w.name(v), dtype)


def _layer_norm(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, gamma, beta = node.inputs
    first = min(op.axes)
    trailing = tuple(op.axes) == tuple(range(first, x.ndim))
    wide = [p.type.shape for p in (gamma, beta)]
    plain = all(s[:first] == (1,) * first and s[first:] == x.type.shape[first:] for s in wide)
    if w.opset < 17 or not trailing or not plain or None in x.type.shape[first:]:
        return _own_statistics(w, node)
    sizes = [int(d) for d in x.type.shape[first:] if d is not None]
    dtype = str(np.result_type(*(v.type.numpy for v in node.inputs)))  # one for all in ONNX
    params = [w.reshaped(_as(w, p, dtype), sizes) for p in (gamma, beta)]
    found: list[str] = w.add_several(
        "LayerNormalization", 3, _as(w, x, dtype), *params, axis=first, epsilon=op.epsilon
    )
    own = [dtype, *["float32" if dtype != "float64" else dtype] * 2]
    pairs = zip(found, node.outputs, own, strict=True)
    return [n if v.type.dtype == d else w.cast(n, v.type.dtype) for n, v, d in pairs]


def _lrn(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    if op.axis != 1 or op.n % 2 == 0:
        raise w.refuse(node, "a window of an even number of channels, or channels last")
    return w.add("LRN", w.name(node.inputs[0]), size=op.n, alpha=op.alpha, beta=op.beta, bias=op.k)


def _det(w: Writer, node: Apply) -> Any:
    return w.add("Det", w.name(node.inputs[0]))


EMITTERS: dict[str, Emitter] = {
    "Dot": _dot, "BatchedDot": _dot, "Softmax": _axis_of("Softmax"),
    "LogSoftmax": _axis_of("LogSoftmax"), "Conv": _conv, "ConvGradInput": _conv_transpose,
    "Pool": _pool, "AveragePoolGrad": _repeated, "BatchNormInference": _batch_norm,
    "LayerNorm": _layer_norm, "BatchNormTrain": _own_statistics, "LRN": _lrn, "Det": _det,
}  # fmt: skip
