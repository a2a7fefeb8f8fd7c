"""Algebra: neutral elements, signs, constants, products and powers.

Numbers are gathered on the left (``2 * (3 * x)`` becomes ``6 * x``), signs move outward, and
operations without effect disappear. Floats are treated as real numbers up to rounding, but no rule
loses a NaN or an infinity: ``0 * x`` and ``x - x`` become 0 for integers only (for floats with
``optimizer=unsafe``).
"""

from __future__ import annotations

import numpy as np

from symdnn.graph.pattern import Match, pattern_vars
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.elementwise.arithmetic import (
    Abs,
    Add,
    Cast,
    Clip,
    Extreme,
    IntDiv,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Neg,
    Pow,
    Sqr,
    Sub,
    TrueDiv,
    cast,
    int_div,
    inv,
    mod,
    mul,
    neg,
    sqr,
    sqrt,
    sub,
    true_div,
)
from symdnn.ops.elementwise.comparison import And, Eq, Ge, Gt, Le, Lt, Neq, Or, Switch, Xor
from symdnn.ops.elementwise.quantize import Quantize
from symdnn.ops.elementwise.rounding import Rounding
from symdnn.ops.elemwise import Elemwise
from symdnn.opt.canonicalize.elementwise import lossless
from symdnn.rewriting.facts import (
    all_ones,
    discrete,
    floating,
    is_constant,
    is_symbolic,
    is_zero,
    number,
    one_dtype,
    signed,
)
from symdnn.rewriting.magnitudes import foldable, is_moderate, limits, movable
from symdnn.rewriting.rewrite import Context, Family, reads, rewrite

FAMILY = Family("canonicalize", ("algebra", "fast_compile"))
rule, on = FAMILY.rule, FAMILY.on
x, y, z = pattern_vars("x y z")
c, d = pattern_vars("c d", when=is_constant)
(u,) = pattern_vars("u", when=is_symbolic)
s, t = pattern_vars("s t", when=all_ones)


# -- neutral elements -----------------------------------------------------------------------------


def result_float(m: Match) -> bool:
    """The result is a real or complex float."""
    return not bool(m.node.outputs[0].type.is_discrete)


NEUTRAL = [
    rule("add_zero", x + 0, x, "local_add_specialize"),
    rule("sub_zero", x - 0, x, "local_sub_zero"),
    rule("zero_minus", sub(0, x), -x, when=signed),
    rule("mul_one", x * 1, x, "local_mul_specialize"),
    rule("div_by_one", x / 1, x, "local_div_by_one"),
    rule("int_div_by_one", int_div(x, 1), x, "local_intdiv_by_one", when=discrete),
    rule("mod_one", mod(x, 1), 0, "local_remainder_by_one", when=discrete),
    rule("mul_zero", x * 0, 0, "local_mul_zero", when=discrete),
    rewrite(
        "mul_zero_float", x * 0, 0,
        phase=FAMILY.phase, tags=("algebra", "optional", "unsafe"), when=result_float,
    ),
    rule("sub_self", x - x, 0, "local_sub_self", when=discrete),
    rewrite(
        "sub_self_float", x - x, 0,
        phase=FAMILY.phase, tags=("algebra", "optional", "unsafe"), when=result_float,
    ),
    rewrite(
        "div_self", x / x, 1,
        phase=FAMILY.phase, tags=("algebra", "optional", "unsafe"), when=result_float,
    ),
    rule("and_self", And()(x, x), x),
    rule("or_self", Or()(x, x), x),
    rule("xor_self", Xor()(x, x), 0, "local_xor_self"),
    rule(
        "eq_self", Eq()(x, x), 1, "local_useless_elemwise_comparison",
        when=lambda m: m.x.type.is_discrete,
    ),
    rule(
        "neq_self", Neq()(x, x), 0, "local_useless_elemwise_comparison",
        when=lambda m: m.x.type.is_discrete,
    ),
]  # fmt: skip


# -- signs ----------------------------------------------------------------------------------------


def x_is_full(m: Match) -> bool:
    """``x`` has the result's shape: an op on ``x`` costs no more when it is moved to the result."""
    return bool(m.x.type.broadcastable == m.node.outputs[0].type.broadcastable)


SIGNS = [
    rule("double_neg", neg(neg(x)), x, "local_neg_neg"),
    rule("add_of_neg", x + (-y), x - y, when=signed),
    rule("sub_of_neg", x - (-y), x + y, when=signed),
    rule("neg_minus", neg(x) - y, -(x + y), when=signed),
    rule("neg_of_sub", -(x - y), y - x, when=signed),
    rule("mul_of_negs", (-x) * (-y), x * y, when=signed),
    rule("div_of_negs", (-x) / (-y), x / y, when=floating),
    rule("mul_of_neg", (-x) * y, -(x * y), when=(signed, x_is_full)),
    rule("div_of_neg", (-x) / y, -(x / y), when=(floating, x_is_full)),
    rule("neg_of_constant_mul", -(c * u), (-c) * u, when=signed),
    rule("neg_of_constant_div", -(c / u), (-c) / u, when=floating),
    rule("mul_minus_one", x * -1, -x, "local_mul_to_neg", when=signed),
]


# -- constants ------------------------------------------------------------------------------------


@on(Elemwise, names=("local_canonicalize_constants",), admits=reads(Constant))
def constant_left(node: Apply[Elemwise], context: Context) -> Variable | None:
    """``x + 2 -> 2 + x``: the constant is the first operand of a commutative op."""
    if len(node.inputs) != 2 or not node.op.commutative:
        return None
    a, b = node.inputs
    if isinstance(a, Constant) or not isinstance(b, Constant):
        return None
    return node.op(b, a)


@on(Add, Sub, Mul, TrueDiv, Maximum, Minimum, admits=reads(Constant))
def constant_of_result_dtype(node: Apply, context: Context) -> Variable | None:
    """``float32 x + int8 2 -> x + float32 2``, where the cast keeps the constant's value."""
    dtype = node.outputs[0].type.dtype
    new = [_recast(v, dtype) for v in node.inputs]
    if all(a is b for a, b in zip(new, node.inputs)):
        return None
    assert isinstance(node.op, Elemwise)
    if node.op.out_dtype(*(v.type.dtype for v in new)) != dtype:
        return None
    return node.op(*new)


def _recast(v: Variable, dtype: str) -> Variable:
    if not isinstance(v, Constant) or v.type.dtype == dtype or dtype == "bool":
        return v
    if not v.type.is_discrete and not lossless(v.type.dtype, dtype):
        return v  # a narrower float would round it
    with np.errstate(all="ignore"):
        new = v.data.astype(v.type.with_dtype(dtype).numpy)
        back = new.real.astype(v.data.dtype) if np.iscomplexobj(new) else new.astype(v.data.dtype)
    return Constant(new, v.name, _number(v)) if np.array_equal(back, v.data) else v


def _number(v: Constant) -> float | None:
    """The number of a real constant of one element, before it was rounded to 16 bits."""
    if v.exact is not None or v.data.size != 1 or v.type.is_complex:
        return v.exact
    return float(v.data.reshape(()))


#: What turns a rounding error into another whole number or truth, and what passes it on.
_JUMPS = (Rounding, IntDiv, Mod, Eq, Neq, Quantize)
_ORDERS = (Lt, Le, Gt, Ge)
_EXACT = (
    Add, Sub, Mul, TrueDiv, Neg, Abs, Sqr, Extreme, Clip, Switch, Cast, DimShuffle, Reshape,
    Subtensor,
)  # fmt: skip


def _decides(v: Variable, context: Context) -> bool:
    """Whether the last bit of ``v`` may decide a whole number or a truth, close by.

    A sign is no such truth: rounding leaves it, but for sums that vanish.
    """
    found = [v]
    for each in found:
        for client in (c for c, _ in context.fgraph.clients.get(each, {}) if c is not None):
            op, (made, *_) = client.op, client.outputs
            to_whole = isinstance(op, Cast) and made.type.is_discrete
            compares = isinstance(op, _ORDERS) and not any(map(is_zero, client.inputs))
            if to_whole or compares or isinstance(op, _JUMPS):
                return True
            if isinstance(op, _EXACT) and made not in found and len(found) < 16:
                found.append(made)
    return False


@on(TrueDiv, names=("local_div_to_inv",), admits=reads(Constant, at=1))
def div_by_constant(node: Apply, context: Context) -> Variable | None:
    """``x / 4 -> 0.25 * x`` where the reciprocal is a normal number of the same dtype.

    Of other numbers than powers of 2 it is rounded: ``floor(x / 49)`` is 0 at 49 by it, so
    quotients that decide whole numbers or truths stay.
    """
    a, b = node.inputs
    if isinstance(a, Constant) or not isinstance(b, Constant) or not b.type.is_float:
        return None
    if not a.type.dtype == b.type.dtype == node.outputs[0].type.dtype:
        return None
    with np.errstate(all="ignore"):
        inverse = np.asarray(1 / b.data.astype(np.float64)).astype(b.data.dtype)
    size = np.abs(inverse.astype(np.float64))
    smallest = float(limits(b.type.dtype).smallest_normal)
    if not np.all(np.isfinite(size) & (size >= smallest)):
        return None
    if np.any(np.abs(np.frexp(size)[0]) != 0.5) and _decides(node.outputs[0], context):
        return None
    number = _number(b)
    return Constant(inverse, exact=1 / number if number else None) * a


def u_is_full(m: Match) -> bool:
    """``u`` has the result's shape."""
    return bool(m.u.type.broadcastable == m.node.outputs[0].type.broadcastable)


def u_is_many(m: Match) -> bool:
    """``u`` is not known to have only one element."""
    return not all_ones(m.u)


CONSTANTS = [
    constant_left,
    constant_of_result_dtype,
    div_by_constant,
    rule("sub_constant", u - c, (-c) + u, when=signed),
    rule("add_constants", c + (d + u), (c + d) + u, when=(one_dtype, foldable(np.add))),
    rule("add_minuend", c + (d - u), (c + d) - u, when=(signed, foldable(np.add))),
    rule("sub_sum", sub(c, d + u), (c - d) - u, when=(signed, foldable(np.subtract))),
    rule("sub_minuend", sub(c, d - u), (c - d) + u, when=(signed, foldable(np.subtract))),
    rule("mul_constants", c * (d * u), (c * d) * u, when=(one_dtype, foldable(np.multiply))),
    rule("mul_dividend", c * (d / u), (c * d) / u, when=(floating, foldable(np.multiply))),
    rule("div_product", true_div(c, d * u), (c / d) / u, when=(floating, foldable(np.true_divide))),
    rule("div_quotient", true_div(c, d / u), (c / d) * u,
         when=(floating, foldable(np.true_divide))),
    rule(
        "constant_out_of_mul", (c * u) * y, c * (u * y),
        when=(one_dtype, u_is_full, lambda m: not is_constant(m.y) and is_moderate(m.c)),
    ),
    rule(
        "constant_out_of_div", (c * u) / y, c * (u / y),
        when=(floating, u_is_full, lambda m: not is_constant(m.y) and is_moderate(m.c)),
    ),
    rule(
        "single_factors", s * (t * u), (s * t) * u,
        when=(one_dtype, u_is_many, lambda m: movable(m.s) and movable(m.t)),
    ),
    rule("same_terms", u + u, mul(2, u), when=signed),
    rule("multiple_of_term", (c * u) + u, (c + 1) * u, when=signed),
    rule("multiples_of_term", (c * u) + (d * u), (c + d) * u, when=(signed, foldable(np.add))),
]  # fmt: skip


# -- quotients and powers -------------------------------------------------------------------------


def y_is_full(m: Match) -> bool:
    """``y`` has the result's shape (of a smaller ``y`` the reciprocal is cheaper to compute)."""
    return bool(m.y.type.broadcastable == m.node.outputs[0].type.broadcastable)


QUOTIENTS = [
    rule("one_over", true_div(1, x), inv(x), when=floating),
    rule("double_inv", inv(inv(x)), x, "local_inv_canon", when=floating),
    rule("inv_of_div", inv(x / y), y / x, when=floating),
    rule("mul_by_inv", x * inv(y), x / y, when=(floating, y_is_full)),
    rule("div_by_inv", x / inv(y), x * y, when=floating),
    rule("mul_self", x * x, sqr(x), "local_mul_to_sqr", when=signed),
    rule("inv_of_neg", inv(-x), -inv(x), when=floating),
]


@on(
    Pow,
    names=(
        "local_pow_specialize",
        "local_pow_canonicalize",
    ),
)
def pow_of_constant(node: Apply, context: Context) -> Variable | None:
    """``x ** c -> sqr, sqrt, inv`` and products of them, for small multiples of one half."""
    base, exponent = node.inputs
    out = node.outputs[0].type
    n = number(exponent)
    if n is None or out.is_complex or isinstance(base, Constant):
        return None
    value = float(n)
    whole = value == int(value) if np.isfinite(value) else False
    if out.is_discrete and not (whole and value >= 0):
        return None
    # Intermediate powers are not rounded to 16 bits.
    at_once = value in (-1, 0, 0.5, 1, 2)
    found = _power(cast(base, out.dtype if at_once else work_dtype(out.dtype)), value)
    return None if found is None else cast(found, out.dtype)


def _power(v: Variable, n: float) -> Variable | None:
    if n == 0:
        return v.ones_like()
    if n < 0:
        positive = _power(v, -n) if n in (-0.5, -1, -2) else None
        return None if positive is None else inv(positive)
    if n in (1, 2):
        return v if n == 1 else sqr(v)
    if n in (3, 4):
        return v * sqr(v) if n == 3 else sqr(sqr(v))
    return sqrt(v) if n == 0.5 else None


RULES = [*NEUTRAL, *SIGNS, *CONSTANTS, *QUOTIENTS, pow_of_constant]
