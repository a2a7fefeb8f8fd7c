from __future__ import annotations

import numpy as np

from symdnn.ops.elementwise import comparison as C
from tests.op_table.record import OpCase, integers, normal

X, Y = integers(0, 4, 3, 4, dtype="float32"), integers(0, 4, 4, dtype="int8")
INT, J = integers(-9, 9, 3, 4, dtype="int32"), integers(0, 5, 3, 1, dtype="int8")
B = integers(0, 2, 3, 4, dtype="bool")


def special(*shape):
    return lambda rng: rng.choice([0.0, 1.0, np.nan, np.inf, -np.inf], shape)


COMPARISONS = [
    ("lt", C.Lt, C.lt, np.less),
    ("le", C.Le, C.le, np.less_equal),
    ("gt", C.Gt, C.gt, np.greater),
    ("ge", C.Ge, C.ge, np.greater_equal),
    ("eq", C.Eq, C.eq, np.equal),
    ("neq", C.Neq, C.neq, np.not_equal),
]
TESTS = [
    ("isnan", C.IsNan, C.isnan, np.isnan),
    ("isinf", C.IsInf, C.isinf, np.isinf),
    ("isfinite", C.IsFinite, C.isfinite, np.isfinite),
]
BITWISE = [
    ("and", C.And, C.and_, np.bitwise_and),
    ("or", C.Or, C.or_, np.bitwise_or),
    ("xor", C.Xor, C.xor, np.bitwise_xor),
]
CASES = [
    *(OpCase(i, (op,), f, (X, Y), g) for i, op, f, g in COMPARISONS),
    *(OpCase(f"{i}_nan", (op,), f, (special(20), special(20)), g) for i, op, f, g in COMPARISONS),
    *(OpCase(i, (op,), f, (special(4, 5),), g) for i, op, f, g in TESTS),
    *(OpCase(f"{i}_int", (op,), f, (INT,), g) for i, op, f, g in TESTS),
    *(OpCase(f"{i}_int", (op,), f, (INT, J), g) for i, op, f, g in BITWISE),
    *(OpCase(f"{i}_bool", (op,), f, (B, B), g) for i, op, f, g in BITWISE),
    OpCase("invert_int", (C.Invert,), C.invert, (INT,), np.invert),
    OpCase("invert_bool", (C.Invert,), C.invert, (B,), np.logical_not),
    OpCase("left_shift", (C.LeftShift,), C.left_shift, (INT, J), np.left_shift),
    OpCase("right_shift", (C.RightShift,), C.right_shift, (INT, J), np.right_shift),
    OpCase("isclose", (C.Le,), C.isclose, (special(30), special(30)), np.isclose),
    OpCase(
        "isclose_nan", (C.Le,), lambda a, b: C.isclose(a, b, equal_nan=True),
        (special(30), special(30)), lambda a, b: np.isclose(a, b, equal_nan=True),
    ),
    OpCase(
        "isclose_tolerance", (C.Le,), lambda a, b: C.isclose(a, b, rtol=0.5, atol=0.3),
        (normal(30), normal(30)), lambda a, b: np.isclose(a, b, rtol=0.5, atol=0.3),
    ),
    OpCase("isclose_uint", (C.Le,), C.isclose, (integers(0, 3, 9, dtype="uint8"),) * 2, np.isclose),
    OpCase("allclose", (C.Le,), lambda a: C.allclose(a, a + 1e-9), (normal(3),), lambda a: True),
]  # fmt: skip
