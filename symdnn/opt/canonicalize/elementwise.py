"""Elementwise ops that cancel or repeat each other: casts, extremes, switches, exp and log."""

from __future__ import annotations

import numpy as np

from symdnn.graph.pattern import Match, pattern_vars
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.elementwise.activations import relu
from symdnn.ops.elementwise.arithmetic import (
    Cast,
    abs,
    cast,
    clip,
    maximum,
    minimum,
    sgn,
    sqr,
    sqrt,
)
from symdnn.ops.elementwise.comparison import Switch, invert, switch
from symdnn.ops.elementwise.math import cos, cosh, exp, expm1, log, log1p
from symdnn.rewriting.facts import (
    floating,
    is_constant,
    is_nonnegative,
    is_symbolic,
    number,
    one_dtype,
    signed,
)
from symdnn.rewriting.rewrite import Context, Family

FAMILY = Family("canonicalize", ("algebra", "fast_compile"))
rule, on = FAMILY.rule, FAMILY.on
x, y, z = pattern_vars("x y z")
a, b = pattern_vars("a b")
c, d = pattern_vars("c d", when=is_constant)
(u,) = pattern_vars("u", when=is_symbolic)
(positive,) = pattern_vars("positive", when=is_nonnegative)


# -- casts ----------------------------------------------------------------------------------------


def lossless(source: str, target: str) -> bool:
    """Whether every value of dtype ``source`` is a value of dtype ``target``."""
    if source == target or source == "bool":
        return True
    if "bfloat16" in (source, target):
        return source == "bfloat16" and target in ("float32", "float64", "complex64", "complex128")
    old, new = TensorType(source).numpy, TensorType(target).numpy
    # NumPy calls int64 to float64 safe, which it is up to 2**53 only.
    rounds = old.kind in "iu" and old.itemsize == 8 and new.kind in "fc"
    return bool(np.can_cast(old, new, "safe")) and not rounds


@on(
    Cast,
    names=(
        "local_cast_cast",
        "local_useless_cast",
    ),
)
def cast_to_own_dtype(node: Apply, context: Context) -> Variable | None:
    """A cast to the same dtype is its input."""
    (v,) = node.inputs
    return v if v.type.dtype == node.outputs[0].type.dtype else None


@on(Cast, names=("local_cast_cast",))
def cast_of_cast(node: Apply, context: Context) -> Variable | None:
    """``cast(cast(x, wide), t) -> cast(x, t)`` where ``wide`` holds every value of ``x``."""
    (v,) = node.inputs
    if v.owner is None or not isinstance(v.owner.op, Cast):
        return None
    (inner,) = v.owner.inputs
    if not lossless(inner.type.dtype, v.type.dtype):
        return None
    return cast(inner, node.outputs[0].type.dtype)


# -- extremes -------------------------------------------------------------------------------------


def in_order(m: Match) -> bool:
    """Whether the lower bound is at most the upper one: a clip is idempotent then."""
    return bool(np.all(m.c.data <= m.d.data))


EXTREMES = [
    rule("max_of_same", maximum(x, x), x),
    rule("min_of_same", minimum(x, x), x),
    rule("max_of_max", maximum(y, maximum(x, y)), maximum(x, y)),
    rule("min_of_min", minimum(y, minimum(x, y)), minimum(x, y)),
    rule("max_of_constants", maximum(c, maximum(d, u)), maximum(maximum(c, d), u), when=one_dtype),
    rule("min_of_constants", minimum(c, minimum(d, u)), minimum(minimum(c, d), u), when=one_dtype),
    rule("clip_of_clip", clip(clip(x, c, d), c, d), clip(x, c, d), when=in_order),
    rule("max_with_zero", maximum(x, 0), relu(x), when=floating),
    rule("relu_of_nonnegative", relu(positive), positive),
    rule("abs_of_nonnegative", abs(positive), positive, "local_abs_lift"),
]  # fmt: skip


# -- choices --------------------------------------------------------------------------------------


@on(Switch, names=("local_useless_switch",))
def switch_by_constant(node: Apply, context: Context) -> Variable | None:
    """A switch by a constant condition, all true or all false, is one of the two operands."""
    condition, yes, no = node.inputs
    truth = number(condition)
    if truth is None:
        return None
    if not context.shapes.no_clash([yes, no]):
        return None
    return yes if truth else no


def condition_is_bool(m: Match) -> bool:
    """``x`` is a bool."""
    return bool(m.x.type.dtype == "bool")


CHOICES = [
    switch_by_constant,
    rule("switch_of_equals", switch(x, y, y), y, "local_useless_switch"),
    rule("switch_in_then", switch(x, switch(x, y, a), z), switch(x, y, z)),
    rule("switch_in_else", switch(x, y, switch(x, a, z)), switch(x, y, z)),
    rule("switch_of_not", switch(invert(x), y, z), switch(x, z, y), when=condition_is_bool),
    rule("double_invert", invert(invert(x)), x, "local_invert_invert"),
]  # fmt: skip


# -- functions and their inverses -----------------------------------------------------------------


def x_is_real(m: Match) -> bool:
    """``x`` is not complex."""
    return not m.x.type.is_complex


INVERSES = [
    rule("log_of_exp", log(exp(x)), x, "local_log_exp", when=floating),
    rule("log1p_of_expm1", log1p(expm1(x)), x, when=floating),
    rule("exp_of_log", exp(log(positive)), positive, "local_exp_log"),
    rule("expm1_of_log1p", expm1(log1p(positive)), positive),
    rule("sqrt_of_sqr", sqrt(sqr(x)), abs(x), when=floating),
    rule("sqr_of_sqrt", sqr(sqrt(positive)), positive),
    rule("sqr_of_abs", sqr(abs(x)), sqr(x), when=x_is_real),
    rule("sqr_of_neg", sqr(-x), sqr(x)),
    rule("abs_of_neg", abs(-x), abs(x), when=signed),
    rule("abs_by_sign", x * sgn(x), abs(x), when=signed),
    rule("max_with_neg", maximum(x, -x), abs(x), when=signed),
    rule("min_with_neg", minimum(x, -x), -abs(x), when=signed),
    rule("cos_of_neg", cos(-x), cos(x), when=floating),
    rule("cosh_of_neg", cosh(-x), cosh(x), when=floating),
]

RULES = [cast_to_own_dtype, cast_of_cast, *EXTREMES, *CHOICES, *INVERSES]
