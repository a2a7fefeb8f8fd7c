"""Records of ``symdnn/opt/canonicalize/algebra.py``."""

from __future__ import annotations

import numpy as np

from symdnn.graph.variable import constant
from symdnn.ops.core.shape import Alloc
from symdnn.ops.elementwise import arithmetic as A
from symdnn.ops.elementwise.comparison import Eq, Neq, eq, neq
from symdnn.ops.elementwise.rounding import floor
from tests.opt.harness import INTS, MAT, TWO, Arg, RuleCase, boolean, f32, f64, i64, u8

FOLD = ("constant_folding",)
POSITIVE = (f64("n", "m", low=0.5, high=3.0), f64("n", "m", low=0.5, high=3.0))
INT = (i64("n", "m"),)
BOOLS = (boolean("n", "m"), boolean("n", "m"))
UNSIGNED = (u8("n", "m"), u8("n", "m"))


def C(value: float) -> object:
    return constant(value, dtype="float64")


CASES = [
    RuleCase("add_zero", MAT, lambda x: x + 0, lambda x: x, lambda x: x + 1),
    RuleCase("add_zero", MAT, lambda x: x + np.zeros((3, 4)), None, lambda x: x + np.eye(3, 4),
             gone=(A.Add,), sizes={"n": 3, "m": 4}, id="add_zero_array"),
    RuleCase("sub_zero", MAT, lambda x: x - 0, lambda x: x, lambda x: 0 - x),
    RuleCase("zero_minus", MAT, lambda x: C(0) - x, lambda x: -x, lambda x: x - C(0)),
    RuleCase("mul_one", MAT, lambda x: x * 1, lambda x: x, lambda x: x * 2),
    RuleCase("mul_one", (f32("n"),), lambda x: x * C(1), lambda x: x.astype("float64"),
             lambda x: x * 2, id="mul_one_keeps_dtype"),
    RuleCase("div_by_one", MAT, lambda x: x / 1, lambda x: x, lambda x: 1 / x),
    RuleCase("int_div_by_one", INT, lambda x: x // 1, lambda x: x, lambda x: x // 1,
             miss_args=MAT),
    RuleCase("mod_one", INT, lambda x: x % 1, None, lambda x: x % 1, miss_args=MAT, gone=(A.Mod,)),
    RuleCase("mul_zero", INT, lambda x: x * 0, None, lambda x: x * 0, miss_args=MAT,
             gone=(A.Mul,)),
    RuleCase("mul_zero_float", MAT, lambda x: x * 0, None, lambda x: x * 0, miss_args=INT,
             gone=(A.Mul,)),
    RuleCase("sub_self", INT, lambda x: x - x, None, lambda x: x - x, miss_args=MAT,
             gone=(A.Sub,)),
    RuleCase("sub_self_float", MAT, lambda x: x - x, None, lambda x: x - x, miss_args=INT,
             gone=(A.Sub,)),
    RuleCase("div_self", POSITIVE, lambda x, y: x / x + y, None, lambda x, y: x / y,
             gone=(A.TrueDiv,)),
    RuleCase("and_self", BOOLS, lambda x, y: x & x, lambda x, y: x, lambda x, y: x & y),
    RuleCase("or_self", BOOLS, lambda x, y: x | x, lambda x, y: x, lambda x, y: x | y),
    RuleCase("xor_self", INTS, lambda x, y: x ^ x, None, lambda x, y: x ^ y,
             made=(Alloc,)),
    RuleCase("eq_self", INTS, lambda x, y: eq(x, x), None, lambda x, y: eq(x, x), miss_args=TWO,
             gone=(Eq,)),
    RuleCase("neq_self", INTS, lambda x, y: neq(x, x), None, lambda x, y: neq(x, x),
             miss_args=TWO, gone=(Neq,)),
    # signs
    RuleCase("double_neg", MAT, lambda x: A.neg(-x), lambda x: x, lambda x: -x),
    RuleCase("add_of_neg", TWO, lambda x, y: (-x) + y, lambda x, y: y - x, lambda x, y: (-x) + y,
             miss_args=UNSIGNED),
    RuleCase("sub_of_neg", TWO, lambda x, y: x - (-y), lambda x, y: x + y, lambda x, y: (-x) - y),
    RuleCase("neg_minus", TWO, lambda x, y: (-x) - y, lambda x, y: -(x + y),
             lambda x, y: x - (-y)),
    RuleCase("neg_of_sub", TWO, lambda x, y: -(x - y), lambda x, y: y - x, lambda x, y: -(x + y)),
    RuleCase("mul_of_negs", TWO, lambda x, y: (-x) * (-y), lambda x, y: x * y,
             lambda x, y: (-x) * y),
    RuleCase("div_of_negs", POSITIVE, lambda x, y: (-x) / (-y), lambda x, y: x / y,
             lambda x, y: (-x) / y),
    RuleCase("mul_of_neg", TWO, lambda x, y: x * (-y), lambda x, y: -(x * y),
             lambda x, y: x * (-y), miss_args=(f64("n", "m"), f64(1, "m"))),
    RuleCase("div_of_neg", POSITIVE, lambda x, y: (-x) / y, lambda x, y: -(x / y),
             lambda x, y: x / (-y)),
    RuleCase("neg_of_constant_mul", MAT, beside=FOLD, before=lambda x: -(C(3) * x),
             after=lambda x: C(-3) * x,
             miss=lambda x: -(x * x)),
    RuleCase("neg_of_constant_div", POSITIVE[:1], beside=FOLD, before=lambda x: -(C(3) / x),
             after=lambda x: C(-3) / x, miss=lambda x: -(x / C(3))),
    RuleCase("mul_minus_one", MAT, lambda x: x * -1, lambda x: -x, lambda x: x * -2),
    # constants
    RuleCase("constant_left", MAT, lambda x: x * C(3), lambda x: C(3) * x, lambda x: C(3) * x),
    RuleCase("constant_of_result_dtype", MAT, lambda x: x + constant(3, dtype="int8"),
             lambda x: x + C(3), lambda x: x + C(3)),
    RuleCase("div_by_constant", MAT, lambda x: x / C(4), lambda x: C(0.25) * x,
             lambda x: C(4) / x),
    RuleCase("div_by_constant", MAT, lambda x: x / C(8), lambda x: C(0.125) * x,
             lambda x: x / C(1e-320), id="div_by_constant_whose_inverse_is_infinite"),
    RuleCase("div_by_constant", MAT, lambda x: x / C(49), None, lambda x: floor(x / C(49) + x),
             gone=(A.TrueDiv,), id="div_by_constant_that_decides_no_whole_number"),
    RuleCase("sub_constant", MAT, beside=FOLD, before=lambda x: x - C(3),
             after=lambda x: C(-3) + x,
             miss=lambda x: C(3) - x),
    RuleCase("add_constants", MAT, beside=FOLD, before=lambda x: C(3) + (C(4) + x),
             after=lambda x: C(7) + x,
             miss=lambda x: C(3) + (x + x)),
    RuleCase("add_minuend", MAT, beside=FOLD, before=lambda x: C(3) + (C(4) - x),
             after=lambda x: C(7) - x,
             miss=lambda x: C(3) + (x - C(4))),
    RuleCase("sub_sum", MAT, beside=FOLD, before=lambda x: C(3) - (C(4) + x),
             after=lambda x: C(-1) - x,
             miss=lambda x: (C(4) + x) - C(3)),
    RuleCase("sub_minuend", MAT, beside=FOLD, before=lambda x: C(3) - (C(4) - x),
             after=lambda x: C(-1) + x,
             miss=lambda x: (C(4) - x) - C(3)),
    RuleCase("mul_constants", MAT, beside=FOLD, before=lambda x: C(3) * (C(4) * x),
             after=lambda x: C(12) * x,
             miss=lambda x: C(3) * (x * x)),
    RuleCase("mul_dividend", POSITIVE[:1], beside=FOLD, before=lambda x: C(3) * (C(4) / x),
             after=lambda x: C(12) / x, miss=lambda x: C(3) * (x / C(4))),
    RuleCase("div_product", POSITIVE[:1], beside=FOLD, before=lambda x: C(3) / (C(4) * x),
             after=lambda x: C(0.75) / x, miss=lambda x: C(3) / (x * x)),
    RuleCase("div_quotient", POSITIVE[:1], beside=FOLD, before=lambda x: C(3) / (C(4) / x),
             after=lambda x: C(0.75) * x, miss=lambda x: C(3) / (x / C(4))),
    RuleCase("constant_out_of_mul", TWO, lambda x, y: (C(3) * x) * y, lambda x, y: C(3) * (x * y),
             lambda x, y: x * (C(3) * y), miss_args=(f64("n", "m"), f64(1, "m"))),
    RuleCase("constant_out_of_div", POSITIVE, lambda x, y: (C(3) * x) / y,
             lambda x, y: C(3) * (x / y), lambda x, y: x / (C(3) * y)),
    RuleCase("single_factors", (f64("n", "m"), f64(1, 1), f64(1, 1)),
             lambda x, s, t: s * (x * t), lambda x, s, t: (s * t) * x,
             lambda x, s, t: s * (x * t), miss_args=(f64("n", "m"), f64(1, "m"), f64(1, 1))),
    RuleCase("same_terms", MAT, lambda x: x + x, lambda x: A.mul(2, x), lambda x: x + 2,
             rtol=1e-12),
    RuleCase("multiple_of_term", TWO, beside=FOLD, before=lambda x, y: (C(3) * x) + x,
             after=lambda x, y: C(4) * x, miss=lambda x, y: (C(3) * x) + y),
    RuleCase("multiples_of_term", TWO, beside=FOLD, before=lambda x, y: (C(3) * x) + (C(4) * x),
             after=lambda x, y: C(7) * x, miss=lambda x, y: (C(3) * x) + (C(4) * y)),
    # quotients and powers
    RuleCase("one_over", POSITIVE[:1], lambda x: C(1) / x, A.inv, lambda x: C(2) / x),
    RuleCase("double_inv", POSITIVE[:1], lambda x: A.inv(A.inv(x)), lambda x: x, A.inv),
    RuleCase("inv_of_div", POSITIVE, lambda x, y: A.inv(x / y), lambda x, y: y / x,
             lambda x, y: A.inv(x * y)),
    RuleCase("inv_of_neg", POSITIVE[:1], lambda x: A.inv(-x), lambda x: -A.inv(x),
             lambda x: -A.inv(x)),
    RuleCase("mul_by_inv", POSITIVE, lambda x, y: x * A.inv(y), lambda x, y: x / y,
             lambda x, y: x * A.inv(y), miss_args=(f64("n", "m"), f64(1, 1))),
    RuleCase("div_by_inv", POSITIVE, lambda x, y: x / A.inv(y), lambda x, y: x * y,
             lambda x, y: A.inv(x) / y),
    RuleCase("mul_self", TWO, lambda x, y: x * x, lambda x, y: A.sqr(x), lambda x, y: x * y),
    RuleCase("pow_of_constant", MAT, lambda x: x**2, lambda x: A.sqr(x), lambda x: x**5),
    *(
        RuleCase("pow_of_constant", POSITIVE[:1], lambda x, e=e: x**e, after,
                 lambda x: 2**x, id=f"pow_{e}")
        for e, after in {
            0: lambda x: x.ones_like(), 1: lambda x: x, 3: lambda x: x * A.sqr(x),
            4: lambda x: A.sqr(A.sqr(x)), 0.5: A.sqrt, -1: A.inv,
            -2: lambda x: A.inv(A.sqr(x)), -0.5: lambda x: A.inv(A.sqrt(x)),
        }.items()
    ),
    *(
        RuleCase("pow_of_constant", (Arg(dtype, ("n",)),), lambda x: x**3,
                 lambda x, d=dtype: (x.astype("float32") * A.sqr(x.astype("float32"))).astype(d),
                 lambda x: x**5, id=f"pow_3_{dtype}")
        for dtype in ("float16", "bfloat16")
    ),
    *(
        RuleCase("pow_of_constant", (Arg(dtype, ("n",), low=0.5, high=3.0),), lambda x: x**-2,
                 lambda x, d=dtype: A.inv(A.sqr(x.astype("float32"))).astype(d),
                 lambda x: x**-3, id=f"pow_-2_{dtype}")
        for dtype in ("float16", "bfloat16")
    ),
    RuleCase("pow_of_constant", (i64("n", low=-100, high=100),),
             lambda x: x.astype("int8") ** 2, None, lambda x: x.astype("int8") ** -1,
             made=(A.Sqr,), id="pow_of_int8"),
]  # fmt: skip
