"""Complex numbers as nodes: ONNX has them as a last dimension of real and imaginary parts.

In a writer the name of a complex variable is that of a tensor with one more dimension, of size 2,
which is also what ``DFT`` reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.onnx.save.arrays import shuffled
from symdnn.onnx.save.writer import Writer

Emitter = Callable[[Writer, Apply], Any]
Parts = tuple[str, str]


# -- pairs and parts ------------------------------------------------------------------------------


def _pairs(w: Writer, v: Variable) -> str:
    """A complex variable, with its parts along a last dimension."""
    if not isinstance(v, Constant):
        return w.name(v)
    z = np.asarray(v.data)
    return w.constant(np.stack([z.real, z.imag], axis=-1))


def _part(w: Writer, pairs: str, k: int) -> str:
    return w.add("Gather", pairs, w.constant(k, np.int64), axis=-1)


def _parts(w: Writer, v: Variable) -> Parts:
    if v.type.is_complex:
        pairs = _pairs(w, v)
        return _part(w, pairs, 0), _part(w, pairs, 1)
    return w.name(v), w.add("Sub", w.name(v), w.name(v))


def _joined(w: Writer, parts: Parts) -> str:
    return w.add("Concat", *(w.unsqueezed(p, [-1]) for p in parts), axis=-1)


def _real_type(v: Variable) -> Any:
    return np.float32 if v.type.dtype in ("complex64", "float32") else np.float64


# -- elementwise ----------------------------------------------------------------------------------


def _complex(w: Writer, node: Apply) -> Any:
    """Of two real operands, which broadcast."""
    dtype = np.dtype(_real_type(node.outputs[0])).name
    names = [w.name(v) if v.type.dtype == dtype else w.cast(w.name(v), dtype) for v in node.inputs]
    zero = w.constant(np.zeros((), dtype))
    wide = [w.add("Add", n, w.add("Mul", m, zero)) for n, m in (names, reversed(names))]
    same = node.inputs[0].type.shape == node.inputs[1].type.shape
    return _joined(w, (names[0], names[1]) if same else (wide[0], wide[1]))


def _one_part(k: int) -> Emitter:
    return lambda w, node: _part(w, _pairs(w, node.inputs[0]), k)


def _cast(w: Writer, node: Apply) -> Any:
    (x,), out = node.inputs, node.outputs[0]
    dtype = np.dtype(_real_type(out)).name
    if x.type.is_complex:
        return w.cast(_pairs(w, x), dtype)
    real = w.cast(w.name(x), dtype)
    return _joined(w, (real, w.add("Sub", real, real)))


def _conj(w: Writer, node: Apply) -> Any:
    return _conjugate(w, _pairs(w, node.inputs[0]), node.inputs[0])


def _conjugate(w: Writer, pairs: str, v: Variable) -> str:
    return w.add("Mul", pairs, w.constant(np.array([1, -1], _real_type(v))))


def _abs(w: Writer, node: Apply) -> Any:
    return w.add("ReduceL2", _pairs(w, node.inputs[0]), w.constant([-1], np.int64), keepdims=0)


def _neg(w: Writer, node: Apply) -> Any:
    return w.add("Neg", _pairs(w, node.inputs[0]))


def _linear(op: str) -> Emitter:
    """A sum or difference, part by part."""

    def emit(w: Writer, node: Apply) -> Any:
        a, b = (
            _pairs(w, v) if v.type.is_complex else _joined(w, _parts(w, v)) for v in node.inputs
        )
        return w.add(op, a, b)

    return emit


def _switch(w: Writer, node: Apply) -> Any:
    condition, *both = node.inputs
    pairs = [_pairs(w, v) if v.type.is_complex else _joined(w, _parts(w, v)) for v in both]
    return w.add("Where", w.unsqueezed(w.name(condition), [-1]), *pairs)


def _div(w: Writer, node: Apply) -> Any:
    x, y = node.inputs
    if not y.type.is_complex:
        return w.add("Div", _pairs(w, x), w.unsqueezed(w.name(y), [-1]))
    pairs = _pairs(w, y)
    squares = w.add("ReduceSumSquare", pairs, w.constant([-1], np.int64), keepdims=1)
    product = _product(w, _parts(w, x), _parts(w, y), -1)
    return w.add("Div", product, squares)


def _mul(w: Writer, node: Apply) -> Any:
    x, y = node.inputs
    if not (x.type.is_complex and y.type.is_complex):
        z, factor = (x, y) if x.type.is_complex else (y, x)
        return w.add("Mul", _pairs(w, z), w.unsqueezed(w.name(factor), [-1]))
    return _product(w, _parts(w, x), _parts(w, y), 1)


def _product(w: Writer, x: Parts, y: Parts, sign: int) -> str:
    """``x y``, or with ``sign`` -1 ``x`` and the conjugate of ``y``."""
    (a, b), (c, d) = x, y
    ops = ("Sub", "Add") if sign == 1 else ("Add", "Sub")
    real = w.add(ops[0], w.add("Mul", a, c), w.add("Mul", b, d))
    return _joined(w, (real, w.add(ops[1], w.add("Mul", b, c), w.add("Mul", a, d))))


# -- views ----------------------------------------------------------------------------------------


def _dimshuffle(w: Writer, node: Apply) -> Any:
    (x,) = node.inputs
    return shuffled(w, _pairs(w, x), node.op.pattern, x.ndim, 1)  # type: ignore[attr-defined]


def _reshape(w: Writer, node: Apply) -> Any:
    x, *dims = node.inputs
    sizes = w.add("Concat", w.vector(dims), w.constant([2], np.int64), axis=0)
    return w.add("Reshape", _pairs(w, x), sizes)


def _pad(w: Writer, node: Apply) -> Any:
    x, value, *widths = node.inputs
    pads = w.vector([*widths[0::2], *widths[1::2]])
    real, imaginary = (
        w.add("Pad", part, pads, around) for part, around in zip(_parts(w, x), _parts(w, value))
    )
    return _joined(w, (real, imaginary))


# -- transforms -----------------------------------------------------------------------------------


def _transformed(w: Writer, name: str, axis: int, inverse: bool, onesided: bool) -> str:
    """One ``DFT`` along an axis; that of the inverse has the factor 1 / n."""
    place = ["", w.constant(axis, np.int64)] if w.opset >= 20 else []  # an input since opset 20
    return w.add(
        "DFT", name, *place, axis=None if place else axis, inverse=int(inverse),
        onesided=int(onesided),
    )  # fmt: skip


def _scaled(w: Writer, name: str, op: Any, of: Variable, n: str | int, inverse: bool) -> str:
    """With the factor of ``op.norm``, of ``n`` numbers; inverse ones are divided by n already."""
    power = {"none": 0.0, "ortho": -0.5, "full": -1.0}[op.norm] + inverse
    if not power:
        return name
    if isinstance(n, int):
        factor = w.constant(np.asarray(float(n) ** power, _real_type(of)))
    else:
        number = w.cast(n, np.dtype(_real_type(of)).name)
        factor = w.add("Pow", number, w.constant(np.asarray(power, _real_type(of))))
    return w.add("Mul", name, factor)


def _count(w: Writer, name: str, v: Variable, axes: Any) -> str | int:
    """How many numbers there are along ``axes``."""
    found: str | int = 1
    for a in axes:
        size = v.type.shape[a]
        if size is not None and isinstance(found, int):
            found *= size
            continue
        left = w.constant(found, np.int64) if isinstance(found, int) else found
        found = w.add("Mul", left, w.size(name, a))
    return found


def _fft(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    (x,) = node.inputs
    name = source = _pairs(w, x) if x.type.is_complex else w.unsqueezed(w.name(x), [-1])
    for a in op.axes:
        name = _transformed(w, name, a, op.inverse, False)
    return _scaled(w, name, op, x, _count(w, source, x, op.axes), op.inverse)


def _real_fft(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    (x,) = node.inputs
    *rest, last = op.axes
    source = w.unsqueezed(w.name(x), [-1])
    name = _transformed(w, source, last, False, True)
    for a in rest:
        name = _transformed(w, name, a, False, False)
    return _scaled(w, name, op, x, _count(w, source, x, op.axes), False)


def _inverse_real_fft(w: Writer, node: Apply) -> Any:
    """The frequencies that are left out are the conjugates of others; then it is real."""
    op: Any = node.op
    z, size = node.inputs
    *rest, last = op.axes
    source = name = _pairs(w, z)
    for a in rest:
        name = _transformed(w, name, a, True, False)
    count = _count(w, source, z, rest)
    n = w.as_int64(size) if op.size is None else w.constant(op.size, np.int64)
    start = w.unsqueezed(w.add("Sub", n, w.size(name, last)), [0])
    zero, one = w.constant([0], np.int64), w.constant([-1], np.int64)
    others = w.add("Slice", name, start, zero, w.constant([last], np.int64), one)
    whole = w.add("Concat", name, _conjugate(w, others, z), axis=last)
    found = _part(w, _transformed(w, whole, last, True, False), 0)
    total: str | int = op.size * count if isinstance(count, int) and op.size is not None else w.add(
        "Mul", n, w.constant(count, np.int64) if isinstance(count, int) else count)  # fmt: skip
    return _scaled(w, found, op, z, total, True)


def _refused(w: Writer, node: Apply) -> Any:
    raise w.refuse(node, "it has no counterpart for complex numbers in ONNX")


_EMITTERS: dict[str, Emitter] = {
    "Complex": _complex, "Real": _one_part(0), "Imag": _one_part(1), "Conj": _conj, "Abs": _abs,
    "Cast": _cast, "Switch": _switch, "TrueDiv": _div, "Neg": _neg, "Add": _linear("Add"),
    "Sub": _linear("Sub"), "Mul": _mul,
    "DimShuffle": _dimshuffle, "Pad": _pad, "Reshape": _reshape, "FFT": _fft, "RealFFT": _real_fft,
    "InverseRealFFT": _inverse_real_fft,
}  # fmt: skip
#: Ops of dimensions by their numbers, which a last one does not disturb.
_AS_REAL = {"Copy", "ForgetShape", "InBounds", "Join", "MatchSizes", "ShapeI", "SpecifyShape",
            "SpecifyType", "Split", "Subtensor", "Sum"}  # fmt: skip


def emitter_of(node: Apply) -> Emitter | None:
    """How a node of complex numbers is written; None for one that is as of real numbers."""
    if not any(getattr(v.type, "is_complex", False) for v in (*node.inputs, *node.outputs)):
        return None
    name = type(node.op).__name__
    return None if name in _AS_REAL else _EMITTERS.get(name, _refused)
