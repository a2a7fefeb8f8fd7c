from __future__ import annotations

import numpy as np

from symdnn.ops.elementwise import math as M
from tests.op_table.arithmetic import parts, parts_numpy
from tests.op_table.record import OpCase, away_from, integers, normal, uniform

X, POSITIVE, INSIDE = normal(2, 3), uniform(0.5, 3, 2, 3), uniform(-0.8, 0.8, 2, 3)


def _cbrt(x):
    with np.errstate(divide="ignore"):
        return np.copysign(np.exp(np.log(np.abs(x.astype("float64"))) / 3), x)


# id, op, builder, operand, independent formula, whether it takes complex operands
UNARY = [
    ("exp", M.Exp, M.exp, X, np.exp, True),
    ("exp2", M.Exp2, M.exp2, X, lambda x: 2.0**x, False),
    ("expm1", M.Expm1, M.expm1, X, lambda x: np.exp(x) - 1, True),
    ("log", M.Log, M.log, POSITIVE, np.log, True),
    ("log2", M.Log2, M.log2, POSITIVE, lambda x: np.log(x) / np.log(2), True),
    ("log10", M.Log10, M.log10, POSITIVE, lambda x: np.log(x) / np.log(10), True),
    ("log1p", M.Log1p, M.log1p, POSITIVE, lambda x: np.log(1 + x), True),
    ("cbrt", M.Cbrt, M.cbrt, away_from((0.0,), 2, 3), _cbrt, False),
    ("sin", M.Sin, M.sin, X, lambda x: (np.exp(1j * x) - np.exp(-1j * x)) / 2j, True),
    ("cos", M.Cos, M.cos, X, lambda x: (np.exp(1j * x) + np.exp(-1j * x)) / 2, True),
    ("tan", M.Tan, M.tan, INSIDE, lambda x: np.sin(x) / np.cos(x), True),
    ("arcsin", M.ArcSin, M.arcsin, INSIDE, np.arcsin, True),
    ("arccos", M.ArcCos, M.arccos, INSIDE, np.arccos, True),
    ("arctan", M.ArcTan, M.arctan, X, np.arctan, True),
    ("sinh", M.Sinh, M.sinh, X, lambda x: (np.exp(x) - np.exp(-x)) / 2, True),
    ("cosh", M.Cosh, M.cosh, X, lambda x: (np.exp(x) + np.exp(-x)) / 2, True),
    ("tanh", M.Tanh, M.tanh, X, lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1), True),
    ("arcsinh", M.ArcSinh, M.arcsinh, X, np.arcsinh, True),
    ("arccosh", M.ArcCosh, M.arccosh, uniform(1.2, 3, 2, 3), np.arccosh, True),
    ("arctanh", M.ArcTanh, M.arctanh, INSIDE, np.arctanh, True),
    ("deg2rad", M.Deg2Rad, M.deg2rad, X, lambda x: x * np.pi / 180, False),
    ("rad2deg", M.Rad2Deg, M.rad2deg, X, lambda x: x * 180 / np.pi, False),
]


def _of_all_sizes(rng):
    """float32 of all exponents, with 0, infinities and NaN."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-44, 3.4e38]
    numbers = rng.choice([-1, 1], 40) * 2 ** rng.uniform(-126, 127, 40)
    return np.array([*special, *numbers], "float32")


def single(draw):
    return lambda rng: draw(rng).astype("float32")


INTS = integers(1, 2, 2, 3, dtype="int8")
CASES = [
    *(
        OpCase(i, (op,), f, (x,), (lambda v, g=g: np.real(g(v))))
        for i, op, f, x, g, _ in UNARY
    ),
    *(
        OpCase(f"{i}_complex", (op,), parts(f), (POSITIVE, INSIDE), parts_numpy(g), grad_tol=1e-4)
        for i, op, f, _, g, takes_complex in UNARY
        if takes_complex
    ),
    *(
        OpCase(f"{i}_float32", (op,), f, (single(x),), (lambda v, g=g: np.real(g(v))), rtol=1e-5)
        for i, op, f, x, g, _ in UNARY
    ),
    OpCase("exp_int8", (M.Exp,), M.exp, (INTS,), lambda x: np.exp(x.astype("float32"))),
    OpCase("log_float16", (M.Log,), M.log, (uniform(1, 2, 3, dtype="float16"),), np.log,
           grad=False, rtol=2e-3),
    OpCase("cbrt_far", (M.Cbrt,), M.cbrt, (_of_all_sizes,), _cbrt, grad=False, rtol=3e-7),
    OpCase("exp_empty", (M.Exp,), M.exp, (normal(0, 2),), np.exp, grad=False),
    OpCase("arctan2", (M.ArcTan2,), M.arctan2, (X, normal(3)), lambda y, x: np.angle(x + 1j * y)),
    OpCase("logaddexp", (M.LogAddExp,), M.logaddexp, (X, normal(3)),
           lambda x, y: np.log(np.exp(x) + np.exp(y))),
    OpCase("logaddexp_far", (M.LogAddExp,), M.logaddexp, (normal(9, scale=900.0), normal(9)),
           lambda x, y: np.maximum(x, y) + np.log1p(np.exp(-np.abs(x - y)))),
    OpCase("logaddexp_int8", (M.LogAddExp,), M.logaddexp, (integers(-99, 99, 4, dtype="int8"),) * 2,
           lambda x, y: np.log(np.exp(x.astype("float64")) + np.exp(y.astype("float64"))),
           rtol=1e-6),
    OpCase("logaddexp_float16", (M.LogAddExp,), M.logaddexp, (normal(4, dtype="float16"),) * 2,
           lambda x, y: np.log(np.exp(x) + np.exp(y)), grad=False, rtol=4e-3),
    OpCase("logaddexp_empty", (M.LogAddExp,), M.logaddexp, (normal(0, 2), normal(2)),
           lambda x, y: x + y, grad=False),
]  # fmt: skip
