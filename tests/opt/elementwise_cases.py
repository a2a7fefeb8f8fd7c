"""Records of ``symdnn/opt/canonicalize/elementwise.py``."""

from __future__ import annotations

import numpy as np

from symdnn.graph.variable import constant
from symdnn.ops.core.shape import Alloc
from symdnn.ops.elementwise import arithmetic as A
from symdnn.ops.elementwise import math as M
from symdnn.ops.elementwise.activations import relu, sigmoid
from symdnn.ops.elementwise.arithmetic import Cast, cast
from symdnn.ops.elementwise.comparison import Switch, invert, switch
from tests.opt.harness import MAT, TWO, Arg, RuleCase, boolean, f32, f64, i64, u8

FOLD = ("constant_folding",)
CHOICE = (boolean("n", "m"), f64("n", "m"), f64("n", "m"), f64("n", "m"))


def C(value: float) -> object:
    return constant(value, dtype="float64")


CASES = [
    RuleCase("cast_to_own_dtype", MAT, lambda x: Cast("float64")(x), lambda x: x,
             lambda x: Cast("float32")(x)),
    RuleCase("cast_of_cast", (f32("n"),), lambda x: cast(cast(x, "float64"), "float16"),
             lambda x: cast(x, "float16"), lambda x: cast(cast(x, "float16"), "float64"),
             rtol=1e-3),
    RuleCase("cast_of_cast", (u8("n"),), lambda x: cast(cast(x, "int32"), "uint8"),
             lambda x: x, lambda x: cast(cast(x, "int8"), "int32"), beside=("cast_to_own_dtype",),
             id="cast_of_cast_back"),
    RuleCase("cast_of_cast", (Arg("bfloat16", ("n",)),),
             lambda x: cast(cast(x, "float32"), "float64"), lambda x: cast(x, "float64"),
             lambda x: cast(cast(x, "float16"), "float64"), id="cast_of_cast_bfloat16"),
    RuleCase("max_of_same", TWO, lambda x, y: A.maximum(x, x), lambda x, y: x, A.maximum),
    RuleCase("min_of_same", TWO, lambda x, y: A.minimum(x, x), lambda x, y: x, A.minimum),
    RuleCase("max_of_max", TWO, lambda x, y: A.maximum(A.maximum(x, y), y), A.maximum,
             lambda x, y: A.maximum(A.minimum(x, y), y)),
    RuleCase("min_of_min", TWO, lambda x, y: A.minimum(A.minimum(x, y), x), A.minimum,
             lambda x, y: A.minimum(A.maximum(x, y), y)),
    RuleCase("max_of_constants", MAT, lambda x: A.maximum(C(1), A.maximum(C(0.5), x)),
             lambda x: A.maximum(C(1), x), lambda x: A.maximum(C(1), A.minimum(C(2), x)),
             beside=FOLD),
    RuleCase("min_of_constants", MAT, lambda x: A.minimum(C(1), A.minimum(C(0.5), x)),
             lambda x: A.minimum(C(0.5), x), lambda x: A.minimum(C(1), A.maximum(C(0), x)),
             beside=FOLD),
    RuleCase("clip_of_clip", MAT, lambda x: A.clip(A.clip(x, C(0), C(1)), C(0), C(1)),
             lambda x: A.clip(x, C(0), C(1)), lambda x: A.clip(A.clip(x, C(0), C(1)), C(0), C(2))),
    RuleCase("clip_of_clip", MAT, lambda x: A.clip(A.clip(x, C(0), C(1)), C(0), C(1)),
             lambda x: A.clip(x, C(0), C(1)), lambda x: A.clip(A.clip(x, C(1), C(-1)), C(1), C(-1)),
             id="clip_of_crossed_clip"),
    RuleCase("max_with_zero", MAT, lambda x: A.maximum(x, 0), relu, lambda x: A.maximum(x, 1)),
    RuleCase("relu_of_nonnegative", MAT, lambda x: relu(A.sqr(x)), A.sqr, relu),
    RuleCase("abs_of_nonnegative", MAT, lambda x: A.abs(sigmoid(x)), sigmoid,
             lambda x: A.abs(M.log(x))),
    RuleCase("switch_by_constant", (f64("n"), f64(1)), lambda x, y: switch(True, x, y),
             lambda x, y: x, lambda x, y: switch(np.array([True, False, True]), x, y)),
    RuleCase("switch_by_constant", (f64("n"),), lambda x: switch(False, x, C(2)), None,
             lambda x: switch(x, x, C(2)), gone=(Switch,), made=(Alloc,), id="switch_to_scalar"),
    RuleCase("switch_of_equals", (f64("n", 1), f64("n", "m")),
             lambda x, y: switch(A.maximum(y, 2), y, y),
             lambda x, y: y, lambda c, x: switch(c, x, x),
             miss_args=(boolean("n", "m"), f64("n", "m"))),
    RuleCase("switch_in_then", CHOICE[:3],
             lambda c, x, y: switch(c, switch(c, x, x * y), y), switch,
             lambda c, x, y: switch(c, switch(invert(c), x, x * y), y)),
    RuleCase("switch_in_else", CHOICE[:3],
             lambda c, x, y: switch(c, x, switch(c, x * y, y)), switch,
             lambda c, x, y: switch(c, x, switch(invert(c), x * y, y))),
    RuleCase("switch_of_not", CHOICE[:3], lambda c, x, y: switch(invert(c), x, y),
             lambda c, x, y: switch(c, y, x), lambda c, x, y: switch(invert(c), x, y),
             miss_args=(i64("n", "m"), *CHOICE[1:3])),
    RuleCase("double_invert", (i64("n"),), lambda x: invert(invert(x)), lambda x: x, invert),
    RuleCase("log_of_exp", MAT, lambda x: M.log(M.exp(x)), lambda x: x, lambda x: M.log(M.exp(x)),
             miss_args=(Arg("complex128", ("n",)),)),
    RuleCase("log1p_of_expm1", MAT, lambda x: M.log1p(M.expm1(x)), lambda x: x,
             lambda x: M.log1p(M.exp(x))),
    RuleCase("exp_of_log", MAT, lambda x: M.exp(M.log(A.sqr(x))), A.sqr,
             lambda x: M.exp(M.log(x))),
    RuleCase("expm1_of_log1p", MAT, lambda x: M.expm1(M.log1p(A.sqr(x))), A.sqr,
             lambda x: M.expm1(M.log1p(x))),
    RuleCase("sqrt_of_sqr", MAT, lambda x: A.sqrt(A.sqr(x)), A.abs, lambda x: A.sqrt(A.sqr(x)),
             miss_args=(Arg("complex128", ("n",)),)),
    RuleCase("sqr_of_sqrt", MAT, lambda x: A.sqr(A.sqrt(A.abs(x))), A.abs,
             lambda x: A.sqr(A.sqrt(x))),
    RuleCase("sqr_of_abs", MAT, lambda x: A.sqr(A.abs(x)), A.sqr, lambda x: A.sqr(A.abs(x)),
             miss_args=(Arg("complex128", ("n",)),)),
    RuleCase("sqr_of_neg", MAT, lambda x: A.sqr(-x), A.sqr, lambda x: -A.sqr(x)),
    RuleCase("abs_of_neg", MAT, lambda x: A.abs(-x), A.abs, lambda x: A.abs(-x),
             miss_args=(u8("n"),)),
    RuleCase("abs_by_sign", TWO, lambda x, y: x * A.sgn(x) + y, lambda x, y: A.abs(x) + y,
             lambda x, y: x * A.sgn(y) + y),
    RuleCase("abs_by_sign", (i64("n"),), lambda x: A.sgn(x) * x, A.abs, lambda x: A.sgn(x) * x,
             miss_args=(u8("n"),), id="abs_by_sign_of_ints"),
    RuleCase("max_with_neg", MAT, lambda x: A.maximum(x, -x), A.abs,
             lambda x: A.maximum(x, -2 * x)),
    RuleCase("min_with_neg", MAT, lambda x: A.minimum(-x, x), lambda x: -A.abs(x),
             lambda x: A.minimum(x, x - 1)),
    RuleCase("cos_of_neg", MAT, lambda x: M.cos(-x), M.cos, lambda x: M.sin(-x)),
    RuleCase("cosh_of_neg", MAT, lambda x: M.cosh(-x), M.cosh, lambda x: M.sinh(-x)),
]  # fmt: skip
