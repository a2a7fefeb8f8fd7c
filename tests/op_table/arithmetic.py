from __future__ import annotations

import numpy as np

from symdnn.ops.elementwise import arithmetic as A
from symdnn.ops.elementwise import comparison as C
from symdnn.ops.elementwise.complexes import complex as cplx
from symdnn.ops.elementwise.complexes import imag, real
from symdnn.ops.elementwise.natural_power import NaturalPow
from symdnn.ops.elementwise.rounding import ceil_intdiv, divmod
from tests.op_table.record import OpCase, away_from, distinct, integers, normal, uniform


def parts(f):
    """A complex function of two real operands, as (real, imag) of its result."""

    def build(a, b, *more):
        z = f(cplx(a, b), *more)
        return real(z) + 2 * imag(z) if z.type.is_complex else z

    return build


def parts_numpy(f):
    def expected(a, b, *more):
        z = f(a + 1j * b, *more)
        return z.real + 2 * z.imag if np.iscomplexobj(z) else z

    return expected


X, Y = normal(2, 3), uniform(1, 2, 2, 3)
F32, F16 = normal(2, 3, dtype="float32"), normal(2, 3, dtype="float16")
I32, I8 = integers(1, 9, 2, 3, dtype="int32"), integers(1, 9, 2, 3, dtype="int8")
BOOL = integers(0, 2, 2, 3, dtype="bool")
EMPTY = normal(0, 3)


def clip(x, low, high):
    return np.where(x < low, low, np.where(x > high, high, x))


CASES = [
    OpCase("add", (A.Add,), A.add, (X, X), np.add),
    OpCase("add_row", (A.Add,), A.add, (X, normal(1, 3)), np.add),
    OpCase("add_vector", (A.Add,), A.add, (X, normal(3)), np.add),
    OpCase("add_empty", (A.Add,), A.add, (EMPTY, EMPTY), np.add, grad=False),
    OpCase("add_bool", (A.Add,), A.add, (BOOL, BOOL), np.add),
    OpCase("add_float32_int32", (A.Add,), A.add, (F32, I32), np.add),
    OpCase("sub", (A.Sub,), A.sub, (X, normal(2, 1)), np.subtract),
    OpCase("sub_int", (A.Sub,), A.sub, (I32, I8), np.subtract),
    OpCase("mul", (A.Mul,), A.mul, (X, normal(3)), np.multiply),
    OpCase("mul_float16", (A.Mul,), A.mul, (F16, F16), np.multiply, grad=False, rtol=1e-3),
    OpCase(
        "mul_complex", (A.Mul,), parts(lambda z, c: z * (z + c)), (X, X, Y),
        parts_numpy(lambda z, c: z * (z + c)),
    ),
    OpCase("true_div", (A.TrueDiv,), A.true_div, (X, Y), np.divide),
    OpCase("true_div_float32_int8", (A.TrueDiv,), A.true_div, (F32, I8), np.divide),
    OpCase(
        "true_div_complex", (A.TrueDiv,), parts(lambda z, c: c / z), (Y, X, Y),
        parts_numpy(lambda z, c: c / z),
    ),
    OpCase("int_div", (A.IntDiv,), A.int_div, (uniform(0.1, 0.9, 2, 3), uniform(2, 3, 2, 3)),
           np.floor_divide),
    OpCase("int_div_int", (A.IntDiv,), A.int_div, (integers(-9, 9, 2, 3), I32), np.floor_divide),
    OpCase("mod", (A.Mod,), A.mod, (uniform(2.2, 2.8, 2, 3), uniform(-1.09, -1.01, 2, 3)),
           lambda x, y: x - np.floor(x / y) * y),
    OpCase("mod_int", (A.Mod,), A.mod, (integers(-9, 9, 2, 3), I32), np.mod),
    OpCase("pow", (A.Pow,), A.pow, (uniform(0.5, 2, 2, 3), X), np.power),
    OpCase("pow_negative_base", (A.Pow,), lambda x: x**3, (X,), lambda x: x * x * x),
    OpCase("pow_two", (A.Pow,), lambda x: A.pow(x, 2), (X,), np.square),
    OpCase("pow_half", (A.Pow,), lambda x: x**0.5, (Y,), np.sqrt),
    OpCase("pow_zero", (A.Pow,), lambda x: x**0 + x, (X,), lambda x: 1 + x),
    OpCase("pow_int_exponents", (A.Pow,), A.pow, (X, integers(0, 4, 2, 3)), np.power),
    OpCase("pow_int", (A.Pow,), A.pow, (I32, integers(0, 4, 2, 3)), np.power),
    OpCase(
        "pow_natural", (NaturalPow,), NaturalPow(), (I32, integers(-1, 4, 2, 3)),
        lambda x, y: np.where(y < 0, 0, np.power(x, abs(y))),
    ),
    OpCase(
        "pow_complex", (A.Pow,), parts(lambda z, c: z**c), (Y, X, Y),
        parts_numpy(lambda z, c: z**c),
    ),
    OpCase("neg", (A.Neg,), A.neg, (X,), np.negative),
    OpCase("neg_int", (A.Neg,), A.neg, (I8,), np.negative),
    OpCase("abs", (A.Abs,), A.abs, (away_from((0.0,), 2, 3),), np.abs),
    OpCase("abs_complex", (A.Abs,), parts(A.abs), (X, Y), np.hypot),
    OpCase("sgn", (A.Sgn,), A.sgn, (away_from((0.0,), 2, 3),), np.sign),
    OpCase("sgn_int", (A.Sgn,), A.sgn, (integers(-3, 3, 2, 3),), np.sign),
    OpCase("sqr", (A.Sqr,), A.sqr, (X,), lambda x: x * x),
    OpCase("sqr_complex", (A.Sqr,), parts(A.sqr), (X, X), parts_numpy(lambda z: z * z)),
    OpCase("sqrt", (A.Sqrt,), A.sqrt, (Y,), lambda x: x**0.5),
    OpCase("sqrt_int", (A.Sqrt,), A.sqrt, (I32,), lambda x: (x**0.5).astype("float32")),
    OpCase("sqrt_complex", (A.Sqrt,), parts(A.sqrt), (X, Y), parts_numpy(np.sqrt)),
    OpCase("inv", (A.Inv,), A.inv, (Y,), lambda x: 1 / x),
    OpCase("inv_complex", (A.Inv,), parts(A.inv), (X, Y), parts_numpy(lambda z: 1 / z)),
    OpCase("maximum", (A.Maximum,), A.maximum, (distinct(2, 3), normal(3)), np.maximum),
    OpCase("maximum_int", (A.Maximum,), A.maximum, (I8, I32), np.maximum),
    OpCase("minimum", (A.Minimum,), A.minimum, (distinct(2, 3), normal(2, 1)), np.minimum),
    OpCase("largest", (A.Maximum,), A.largest, (X, X, Y), lambda *a: np.max(a, axis=0)),
    OpCase("smallest", (A.Minimum,), A.smallest, (X, X, Y), lambda *a: np.min(a, axis=0)),
    OpCase("clip", (A.Clip,), A.clip, (normal(4, 5), normal(1, 1), normal(1, 1)), clip),
    OpCase("clip_crossed", (A.Clip,), lambda x: A.clip(x, 1, -1), (normal(4, 5, scale=3.0),),
           lambda x: np.where(x < 1, 1, -1.0)),
    OpCase("clip_by_arrays", (A.Clip,), A.clip, (normal(4, 5), normal(4, 5), normal(4, 5)), clip),
    OpCase("clip_int_by_float", (A.Clip,), lambda x: A.clip(x, 1.5, -0.5),
           (normal(20, scale=4.0, dtype="int32"),), lambda x: np.where(x < 1.5, 1.5, -0.5)),
    OpCase("clip_numbers", (A.Clip,), lambda x: A.clip(x, -1, 0.5),
           (away_from((-1.0, 0.5), 3, 4),), lambda x: np.clip(x, -1, 0.5)),
    OpCase("cast", (A.Cast,), lambda x: A.cast(x, "float32").astype("float64"), (X,),
           lambda x: x.astype("float32"), grad=False),
    OpCase("cast_int", (A.Cast,), lambda x: A.cast(x, "int8"), (X,), lambda x: x.astype("int8")),
    OpCase("cast_bfloat16", (A.Cast,), lambda x: A.cast(x, "bfloat16").astype("float32"), (F32,),
           lambda x: x, grad=False, rtol=1e-2),
    OpCase("cast_complex", (A.Cast,), lambda x: A.abs(A.cast(x, "complex128") * 1j), (Y,),
           lambda x: np.abs(x.astype("complex128") * 1j)),
    OpCase("ceil_intdiv", (A.IntDiv,), ceil_intdiv, (integers(0, 20, 2, 3), I32),
           lambda a, b: -(-a // b)),
    OpCase("divmod", (A.IntDiv, A.Mod), divmod, (integers(0, 20, 2, 3), I32), np.divmod),
    OpCase("switch", (C.Switch,), C.switch, (BOOL, X, normal(3)), np.where),
    OpCase("switch_int_condition", (C.Switch,), C.switch, (integers(0, 2, 3), X, normal(1, 3)),
           lambda c, x, y: np.where(c != 0, x, y)),
]  # fmt: skip
