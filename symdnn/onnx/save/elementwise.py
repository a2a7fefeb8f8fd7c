"""Elementwise ops as nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.onnx.save.writer import Writer

Emitter = Callable[[Writer, Apply], Any]

#: Ops of symdnn with one node of the same meaning.
_SAME = {
    "Abs": "Abs", "ArcCos": "Acos", "ArcCosh": "Acosh", "ArcSin": "Asin",
    "ArcSinh": "Asinh", "ArcTan": "Atan", "ArcTanh": "Atanh", "Ceil": "Ceil", "Cos": "Cos",
    "Cosh": "Cosh", "Erf": "Erf", "Exp": "Exp", "Floor": "Floor", "Inv": "Reciprocal",
    "IsInf": "IsInf", "IsNan": "IsNaN", "Log": "Log", "Mul": "Mul", "Neg": "Neg",
    "RoundHalfToEven": "Round", "Sgn": "Sign", "Sigmoid": "Sigmoid", "Sin": "Sin", "Sinh": "Sinh",
    "Softplus": "Softplus", "Sqrt": "Sqrt", "Sub": "Sub", "Tan": "Tan", "Tanh": "Tanh",
    "TrueDiv": "Div", "Eq": "Equal", "Ge": "GreaterOrEqual", "Gt": "Greater",
    "Le": "LessOrEqual", "Lt": "Less", "Relu": "Relu", "Maximum": "Max", "Minimum": "Min",
}  # fmt: skip
_COMPARED = {"Eq", "Neq", "Ge", "Gt", "Le", "Lt"}


def operands(w: Writer, node: Apply) -> list[str]:
    """The inputs in the dtype in which the op computes."""
    name = type(node.op).__name__
    types = [v.type.dtype for v in node.inputs]
    if name in _COMPARED:
        wanted = (
            np.result_type(*(v.type.numpy for v in node.inputs)).name
            if len(set(types)) > 1
            else types[0]
        )
        wanted = "int32" if wanted == "bool" and name != "Eq" and name != "Neq" else wanted
    else:
        wanted = node.outputs[0].type.dtype
    return [
        n if t == wanted else w.cast(n, wanted) for n, t in zip(map(w.name, node.inputs), types)
    ]


def _same(w: Writer, node: Apply) -> Any:
    op = _SAME[type(node.op).__name__]
    if op in ("IsInf", "IsNaN"):
        return w.add(op, _as_float(w, node.inputs[0]))
    return w.add(op, *operands(w, node))


def _as_float(w: Writer, v: Variable) -> str:
    """The name of ``v``, integers as float32, for tests that are of floats only."""
    return w.name(v) if v.type.is_float else w.cast(w.name(v), "float32")


def _of(*steps: Any) -> Emitter:
    """``(op, operand, ...)`` in turn; "x" and "y" are the inputs, "-" the last result, numbers
    constants."""

    def emit(w: Writer, node: Apply) -> Any:
        given = dict(zip("xyz", operands(w, node)))
        out = node.outputs[0]
        found = given["x"]
        for op, *args in steps:
            names = [
                found if a == "-" else given[a] if isinstance(a, str) else w.like(out, a)
                for a in args
            ]
            found = w.add(op, *names)
        return found

    return emit


def _logic(of_bool: str, of_int: str) -> Emitter:
    def emit(w: Writer, node: Apply) -> Any:
        op = of_bool if node.outputs[0].type.dtype == "bool" else of_int
        return w.add(op, *operands(w, node))

    return emit


def _cast(w: Writer, node: Apply) -> Any:
    (x,), out = node.inputs, node.outputs[0]
    return w.cast(w.name(x), out.type.dtype)


def _switch(w: Writer, node: Apply) -> Any:
    condition, yes, no = node.inputs
    c = w.name(condition)
    c = c if condition.type.dtype == "bool" else w.cast(c, "bool")
    out = node.outputs[0].type.dtype
    pair = [w.name(v) if v.type.dtype == out else w.cast(w.name(v), out) for v in (yes, no)]
    if out == "bool":  # ONNX Runtime has no Where of these
        return w.add("Or", w.add("And", c, pair[0]), w.add("And", w.add("Not", c), pair[1]))
    return w.add("Where", c, *pair)


def _neq(w: Writer, node: Apply) -> Any:
    return w.add("Not", w.add("Equal", *operands(w, node)))


def _clip(w: Writer, node: Apply) -> Any:
    """``low`` wins below it, also where the bounds are in the wrong order."""
    x, low, high = operands(w, node)
    bounds = [v.data for v in node.inputs[1:] if isinstance(v, Constant)]
    if len(bounds) == 2 and np.all(bounds[0] <= bounds[1]):
        return w.add("Min", w.add("Max", x, low), high)
    return w.add("Where", w.add("Less", x, low), low, w.add("Min", x, high))


def _add(w: Writer, node: Apply) -> Any:
    return w.add("Or" if node.outputs[0].type.dtype == "bool" else "Add", *operands(w, node))


def _pow(w: Writer, node: Apply) -> Any:
    return w.add("Pow", *operands(w, node))


def _int_div(w: Writer, node: Apply) -> Any:
    """Rounded down: ONNX rounds the quotient of ints towards 0."""
    x, y = operands(w, node)
    out = node.outputs[0].type
    if out.is_float:
        return w.add("Floor", w.add("Div", x, y))
    if out.dtype.startswith("uint"):
        return w.add("Div", x, y)
    return w.add("Div", w.add("Sub", x, w.add("Mod", x, y)), y)


def _shift(direction: str) -> Emitter:
    """ONNX shifts unsigned integers only; of others it is a product, or a quotient rounded down."""

    def emit(w: Writer, node: Apply) -> Any:
        x, n = operands(w, node)
        dtype = node.outputs[0].type.dtype
        if dtype.startswith("uint"):
            return w.add("BitShift", x, n, direction=direction)
        x, n = (v if dtype == "int64" else w.cast(v, "int64") for v in (x, n))
        power = w.add("Pow", w.constant(2, np.int64), n)
        found = w.add("Mul", x, power) if direction == "LEFT" else w.add(
            "Div", w.add("Sub", x, w.add("Mod", x, power)), power)  # fmt: skip
        return found if dtype == "int64" else w.cast(found, dtype)

    return emit


def _mod(w: Writer, node: Apply) -> Any:
    x, y = operands(w, node)
    if not node.outputs[0].type.is_float:
        return w.add("Mod", x, y)
    return w.add("Sub", x, w.add("Mul", w.add("Floor", w.add("Div", x, y)), y))


def _negative_part(curve: Callable[[Writer, str, str], str]) -> Emitter:
    """``x`` above 0, and a function of ``x`` and alpha below."""

    def emit(w: Writer, node: Apply) -> Any:
        x, alpha = operands(w, node)
        positive = w.add("Greater", x, w.like(node.outputs[0], 0))
        return w.add("Where", positive, x, curve(w, x, alpha))

    return emit


def _elu_below(w: Writer, x: str, alpha: str) -> str:
    return w.add("Mul", alpha, w.add("Elu", x))


def _leaky_below(w: Writer, x: str, alpha: str) -> str:
    return w.add("Mul", alpha, x)


def _gelu(approximate: str) -> Emitter:
    def emit(w: Writer, node: Apply) -> Any:
        (x,) = operands(w, node)
        if w.opset >= 20:
            return w.add("Gelu", x, approximate=approximate)
        return _gelu_by_parts(w, x, node.outputs[0], approximate)

    return emit


def _gelu_by_parts(w: Writer, x: str, out: Variable, approximate: str) -> str:
    half, one = w.like(out, 0.5), w.like(out, 1)
    if approximate == "none":
        inner = w.add("Erf", w.add("Mul", x, w.like(out, 0.5**0.5)))
    else:
        cube = w.add("Mul", w.add("Mul", x, x), x)
        bent = w.add("Add", x, w.add("Mul", cube, w.like(out, 0.044715)))
        inner = w.add("Tanh", w.add("Mul", bent, w.like(out, (2 / np.pi) ** 0.5)))
    return w.add("Mul", w.add("Mul", x, half), w.add("Add", inner, one))


def _finite(w: Writer, node: Apply) -> Any:
    x = _as_float(w, node.inputs[0])
    return w.add("Not", w.add("Or", w.add("IsNaN", x), w.add("IsInf", x)))


def _log_add_exp(w: Writer, node: Apply) -> Any:
    x, y = operands(w, node)
    most, least = w.add("Max", x, y), w.add("Min", x, y)
    return w.add("Add", most, w.add("Softplus", w.add("Sub", least, most)))


def _trunc(w: Writer, node: Apply) -> Any:
    (x,) = operands(w, node)
    return w.add("Mul", w.add("Sign", x), w.add("Floor", w.add("Abs", x)))


def _expm1(w: Writer, node: Apply) -> Any:
    """``2 t / (1 - t)`` with ``t = tanh(x / 2)`` near 0, where ``exp(x) - 1`` loses its digits."""
    (x,) = operands(w, node)
    v = node.outputs[0]
    one, half = w.like(v, 1), w.like(v, 0.5)
    t = w.add("Tanh", w.add("Mul", x, half))
    near = w.add("Div", w.add("Add", t, t), w.add("Sub", one, t))
    far = w.add("Sub", w.add("Exp", x), one)
    return w.add("Where", w.add("Less", w.add("Abs", x), one), near, far)


def _log1p(w: Writer, node: Apply) -> Any:
    """``log(u) x / (u - 1)`` with the rounded ``u = 1 + x`` near 0 (Kahan), ``x`` for ``u = 1``."""
    (x,) = operands(w, node)
    v = node.outputs[0]
    one = w.like(v, 1)
    u = w.add("Add", x, one)
    log = w.add("Log", u)
    near = w.add("Mul", log, w.add("Div", x, w.add("Sub", u, one)))
    small = w.add("Less", w.add("Abs", x), w.like(v, 0.5))
    return w.add(
        "Where", w.add("Equal", u, one), x, w.add("Where", small, near, log)
    )  # fmt: skip


_LN2, _LN10 = float(np.log(2)), float(np.log(10))

EMITTERS: dict[str, Emitter] = {
    **dict.fromkeys(_SAME, _same), "Add": _add,
    "Neq": _neq, "Switch": _switch, "Cast": _cast, "Clip": _clip, "Pow": _pow,
    "IntDiv": _int_div, "Mod": _mod, "And": _logic("And", "BitwiseAnd"),
    "Or": _logic("Or", "BitwiseOr"), "Xor": _logic("Xor", "BitwiseXor"),
    "Invert": _logic("Not", "BitwiseNot"), "Sqr": _of(("Mul", "x", "x")),
    "LeftShift": _shift("LEFT"), "RightShift": _shift("RIGHT"), "Expm1": _expm1, "Log1p": _log1p,
    "Exp2": _of(("Mul", "x", _LN2), ("Exp", "-")), "Log2": _of(("Log", "x"), ("Div", "-", _LN2)),
    "Log10": _of(("Log", "x"), ("Div", "-", _LN10)),
    "Erfc": _of(("Erf", "x"), ("Sub", 1, "-")), "Deg2Rad": _of(("Mul", "x", np.pi / 180)),
    "Rad2Deg": _of(("Mul", "x", 180 / np.pi)), "Elu": _negative_part(_elu_below),
    "LeakyRelu": _negative_part(_leaky_below), "Gelu": _gelu("none"), "GeluTanh": _gelu("tanh"),
    "IsFinite": _finite, "LogAddExp": _log_add_exp,
    "Trunc": _trunc,
}  # fmt: skip
