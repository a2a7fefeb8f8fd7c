from __future__ import annotations

from functools import partial

import numpy as np
import scipy.special

from symdnn.ops.array import argreduce as A
from symdnn.ops.array import cumulative as C
from symdnn.ops.array import filters as F
from symdnn.ops.array import moments as M
from symdnn.ops.array import norms as N
from symdnn.ops.array import reduce as R
from tests.op_table.record import OpCase, distinct, integers, normal, uniform

COEFFICIENTS, LEADING = normal(3), lambda rng: np.array([2.0, *rng.uniform(-0.5, 0.5, 2)])
X, SPREAD = normal(2, 3, 2), distinct(2, 3, 4)
BOOL = integers(0, 2, 3, 4, dtype="bool")
INT8 = integers(-100, 100, 3, 4, dtype="int8")
UINT8 = integers(0, 200, 3, 4, dtype="uint8")
F16 = normal(3, 40, dtype="float16")
BOTH = [(None, False), (0, False), (-1, True), ((0, 2), False), ((2, 0), True), ((), False)]


def over_axes(name, op, build, x, formula, axes=BOTH, **kw):
    """One case for each choice of axes and keepdims."""
    return [
        OpCase(
            f"{name}_{'all' if a is None else ''.join(map(str, np.atleast_1d(a)))}{'_keep' * keep}",
            (op,), lambda v, a=a, keep=keep: build(v, axis=a, keepdims=keep), (x,),
            lambda v, a=a, keep=keep: formula(v, axis=a, keepdims=keep), **kw,
        )
        for a, keep in axes
    ]  # fmt: skip


def zeros_at(*positions):
    def draw(rng):
        x = rng.uniform(0.5, 2, (2, 3, 2))
        for p in positions:
            x[p] = 0
        return x

    return draw


def recurrence(a, b):
    s = [b[0]]
    for k in range(1, len(b)):
        s.append(a[k] * s[-1] + b[k])
    return np.array(s)


def missing(dtype="float64"):
    """Numbers and NaN in lines of 20, of which the first is a number."""

    def draw(rng):
        x = rng.normal(size=(3, 20)).astype(dtype)
        x[:, 1:][rng.random((3, 19)) < 0.6] = np.nan
        return x

    return draw


def filled(x):
    """Along rows, one element after the other."""
    y = x.copy()
    for k in range(1, x.shape[1]):
        y[:, k] = np.where(np.isnan(x[:, k]), y[:, k - 1], x[:, k])
    return y


def filtered(b, a, x, axis):
    """By the impulse response, in which the filter runs alone."""
    n = x.shape[axis]
    response = np.zeros(n)
    for k in range(n):
        past = sum(a[i] * response[k - i] for i in range(1, min(k + 1, len(a))))
        response[k] = ((b[k] if k < len(b) else 0) - past) / a[0]
    return np.apply_along_axis(lambda line: np.convolve(line, response)[:n], axis, x)


def log_sum_exp(x, axis, keepdims):
    return np.log(np.exp(x).sum(axis=axis, keepdims=keepdims))


def p_norm(p):
    def formula(x, axis, keepdims):
        return np.sum(np.abs(x) ** p, axis=axis, keepdims=keepdims) ** (1 / p)

    return formula


SUMS = [
    *over_axes("sum", R.Sum, R.sum, X, np.sum),
    *over_axes("prod", R.Prod, R.prod, X, np.prod),
    *over_axes("max", R.Max, R.max, SPREAD, np.max, BOTH[:5]),
    *over_axes("min", R.Min, R.min, SPREAD, np.min, BOTH[:5]),
    *over_axes("any", R.AnyTrue, R.any, integers(0, 2, 2, 3, 2), np.any),
    *over_axes("all", R.AllTrue, R.all, integers(0, 2, 2, 3, 2), np.all),
    *over_axes("mean", R.Sum, M.mean, X, np.mean),
    *over_axes("var", R.Sum, M.var, X, np.var),
    *over_axes("std", R.Sum, M.std, X, np.std, BOTH[:5]),
    *over_axes("logsumexp", R.LogSumExp, R.logsumexp, X, log_sum_exp),
    *over_axes("logsumexp_scipy", R.LogSumExp, R.logsumexp, normal(2, 3, 2, scale=500.0),
               scipy.special.logsumexp, BOTH[:5], grad=False),
    OpCase("sum_int8", (R.Sum,), R.sum, (INT8,), lambda x: x.sum(dtype="int64")),
    OpCase("sum_uint8", (R.Sum,), R.sum, (UINT8,), lambda x: x.sum(dtype="uint64")),
    OpCase("sum_bool", (R.Sum,), lambda x: R.sum(x, axis=1), (BOOL,), lambda x: x.sum(1)),
    OpCase("sum_float16", (R.Sum,), lambda x: R.sum(x, axis=1), (F16,),
           lambda x: x.astype("float64").sum(1), rtol=3e-3, grad=False),
    OpCase("sum_dtype", (R.Sum,), lambda x: R.sum(x, dtype="float64"), (F16,),
           lambda x: x.astype("float64").sum(), grad=False),
    OpCase("sum_acc_dtype", (R.Sum,), lambda x: R.sum(x, acc_dtype="float64"),
           (normal(99, dtype="float32"),), lambda x: x.astype("float64").sum(), grad=False),
    OpCase("sum_empty", (R.Sum,), lambda x: R.sum(x, axis=0), (normal(0, 3),),
           lambda x: np.zeros(3), grad=False),
    OpCase("sum_scalar", (R.Sum,), R.sum, (normal(),), lambda x: x),
    OpCase("sum_complex", (R.Sum,), lambda x: abs(R.sum((x * 1j), axis=0)), (normal(2, 3),),
           lambda x: np.abs(x.sum(0))),
    OpCase("prod_one_zero", (R.Prod,), R.prod, (zeros_at((0, 1, 1)),), np.prod),
    OpCase("prod_rows_with_zeros", (R.Prod,), lambda x: R.prod(x, axis=(0, 2)),
           (zeros_at((0, 1, 1), (0, 2, 0), (1, 2, 1)),), lambda x: x.prod((0, 2))),
    OpCase("prod_no_zeros", (R.Prod,), lambda x: R.prod(x, axis=1, no_zeros_in_input=True),
           (uniform(0.5, 2, 2, 3),), lambda x: x.prod(1)),
    OpCase("prod_int8", (R.Prod,), R.prod, (integers(1, 4, 9, dtype="int8"),),
           lambda x: x.prod(dtype="int64")),
    OpCase("prod_empty", (R.Prod,), R.prod, (normal(0, 3),), lambda x: 1.0, grad=False),
    OpCase("max_int", (R.Max,), lambda x: R.max(x, axis=0), (INT8,), lambda x: x.max(0)),
    OpCase("max_bool", (R.Max,), R.max, (BOOL,), np.max),
    OpCase("max_empty_rows", (R.Max,), lambda x: R.max(x, axis=1), (normal(0, 3),),
           lambda x: np.zeros(0), grad=False),
    OpCase("min_float16", (R.Min,), lambda x: R.min(x, axis=1), (F16,), lambda x: x.min(1),
           grad=False),
    OpCase("max_bfloat16", (R.Max,),
           lambda x: R.max(x.astype("bfloat16"), axis=1).astype("float32"),
           (F16,), lambda x: x.max(1), grad=False, rtol=1e-2),
    OpCase("ptp", (R.Max, R.Min), lambda x: R.ptp(x, axis=1), (SPREAD,), lambda x: np.ptp(x, 1)),
    OpCase("any_empty", (R.AnyTrue,), R.any, (normal(0),), np.any),
    OpCase("all_float_nan", (R.AllTrue,), R.all, (lambda rng: np.array([np.nan, 1.0]),), np.all,
           grad=False),
    OpCase("logsumexp_infinite", (R.LogSumExp,), lambda x: R.logsumexp(x, axis=1),
           (lambda rng: np.array([[-np.inf, -np.inf], [np.inf, 1.0], [-np.inf, 2.0]]),),
           lambda x: np.array([-np.inf, np.inf, 2.0]), grad=False),
    OpCase("logsumexp_int", (R.LogSumExp,), R.logsumexp, (integers(0, 3, 4),),
           lambda x: np.float32(np.log(np.exp(x).sum()))),
]  # fmt: skip

MOMENTS = [
    OpCase("mean_int8", (R.Sum,), lambda x: M.mean(x, axis=0), (INT8,), lambda x: x.mean(0)),
    OpCase("mean_bool", (R.Sum,), M.mean, (BOOL,), np.mean),
    OpCase("mean_float16", (R.Sum,), M.mean, (uniform(1000, 2000, 9, 99, dtype="float16"),),
           lambda x: x.astype("float64").mean(), rtol=1e-3, grad=False),
    OpCase("mean_dtype", (R.Sum,), lambda x: M.mean(x, dtype="float64"), (F16,),
           lambda x: x.astype("float64").mean(), grad=False),
    OpCase("mean_static", (R.Sum,), lambda x: M.mean(x, axis=1), (normal(2, 3),),
           lambda x: x.mean(1), static=((2, 3),)),
    OpCase("var_ddof", (R.Sum,), lambda x: M.var(x, axis=1, ddof=1), (normal(2, 5),),
           lambda x: x.var(1, ddof=1)),
    OpCase("var_corrected", (R.Sum,), lambda x: M.var(x, axis=1, corrected=True),
           (lambda rng: 1e6 + rng.standard_normal((2, 9)),), lambda x: x.var(1), grad=False),
    OpCase("var_int", (R.Sum,), M.var, (INT8,), np.var),
    OpCase("var_float16", (R.Sum,), lambda x: M.var(x, axis=1), (F16,),
           lambda x: x.astype("float64").var(1), rtol=2e-3, grad=False),
    OpCase("var_complex", (R.Sum,), lambda x, y: M.var(x + 1j * y), (normal(4), normal(4)),
           lambda x, y: np.var(x + 1j * y)),
]  # fmt: skip

INDICES = [
    *over_axes("argmax", A.ArgMax, A.argmax, SPREAD, np.argmax,
               [(None, False), (1, False), (-1, True)]),
    *over_axes("argmin", A.ArgMin, A.argmin, SPREAD, np.argmin,
               [(None, True), (1, False), (0, True)]),
    OpCase("argmax_axes", (A.ArgMax,), lambda x: A.argmax(x, axis=(2, 0)), (SPREAD,),
           lambda x: x.transpose(1, 0, 2).reshape(3, -1).argmax(1)),
    OpCase("argmax_ties", (A.ArgMax,), lambda x: A.argmax(x, axis=1),
           (integers(0, 2, 5, 6, dtype="int8"),), lambda x: x.argmax(1)),
    OpCase("argmax_nan", (A.ArgMax,), A.argmax, (lambda rng: np.array([1.0, np.nan, 3]),),
           lambda x: x.argmax(), grad=False),
    OpCase("argmin_bool", (A.ArgMin,), lambda x: A.argmin(x, axis=0), (BOOL,),
           lambda x: x.argmin(0)),
    OpCase("max_and_argmax", (R.Max, A.ArgMax), lambda x: A.max_and_argmax(x, axis=1), (SPREAD,),
           lambda x: (x.max(1), x.argmax(1))),
]  # fmt: skip

RUNNING = [
    OpCase("cumsum", (C.CumSum,), lambda x: C.cumsum(x, axis=1), (X,), lambda x: x.cumsum(1)),
    OpCase("cumsum_flat", (C.CumSum,), C.cumsum, (normal(2, 3),), np.cumsum),
    OpCase("cumsum_int8", (C.CumSum,), lambda x: C.cumsum(x, axis=-1), (INT8,),
           lambda x: x.cumsum(1)),
    OpCase("cumsum_reverse", (C.CumSum,), lambda x: C.CumSum(0, True)(x), (X,),
           lambda x: x[::-1].cumsum(0)[::-1]),
    OpCase("cumsum_float16", (C.CumSum,), lambda x: C.cumsum(x, axis=1), (F16,),
           lambda x: x.astype("float64").cumsum(1), rtol=5e-3, grad=False),
    OpCase("cumsum_empty", (C.CumSum,), lambda x: C.cumsum(x, axis=0), (normal(0, 3),),
           lambda x: x, grad=False),
    OpCase("cumprod", (C.CumProd,), lambda x: C.cumprod(x, axis=1), (X,), lambda x: x.cumprod(1)),
    OpCase("cumprod_zeros", (C.CumProd,), lambda x: C.cumprod(x, axis=1),
           (zeros_at((0, 1, 1), (1, 0, 0)),), lambda x: x.cumprod(1)),
    OpCase("cumprod_flat", (C.CumProd,), C.cumprod, (normal(2, 3),), np.cumprod),
    OpCase("cumprod_exclusive_reverse", (C.CumProd,), lambda x: C.CumProd(0, True, True)(x),
           (normal(3, 2),), lambda x: np.array([x[1] * x[2], x[2], x[2] * 0 + 1])),
    OpCase("cumprod_reverse", (C.CumProd,), lambda x: C.CumProd(0, True)(x),
           (normal(3, 2),), lambda x: x[::-1].cumprod(0)[::-1]),
    OpCase("cumprod_empty", (C.CumProd,), lambda x: C.CumProd(0, False, True)(x), (normal(0, 3),),
           lambda x: x, grad=False),
    OpCase("logcumsumexp", (C.LinearRecurrence,), lambda x: C.logcumsumexp(x, axis=1),
           (normal(2, 9, scale=300.0),), lambda x: np.logaddexp.accumulate(x, 1), grad=False,
           rtol=1e-12),
    OpCase("logcumsumexp_near", (C.LinearRecurrence,), C.logcumsumexp, (normal(7),),
           np.logaddexp.accumulate),
    OpCase("logsumexp_weights", (R.Max,), lambda x, b: R.logsumexp(x, 1, b=b),
           (normal(3, 5, scale=300.0), uniform(0, 2, 5)),
           lambda x, b: scipy.special.logsumexp(x, 1, b=b), grad=False, rtol=1e-12),
    OpCase("logsumexp_weights_near", (R.Max,), lambda x, b: R.logsumexp(x, (0, 2), True, b),
           (X, uniform(0.5, 2, 2, 3, 2)),
           lambda x, b: scipy.special.logsumexp(x, (0, 2), keepdims=True, b=b)),
    OpCase("cummax", (C.CumMax,), lambda x: C.cummax(x, axis=1), (SPREAD,),
           lambda x: np.maximum.accumulate(x, 1)),
    OpCase("cummax_flat", (C.CumMax,), C.cummax, (distinct(2, 3),),
           lambda x: np.maximum.accumulate(x.ravel())),
    OpCase("cummax_reverse", (C.CumMax,), lambda x: C.CumMax(0, True)(x), (distinct(4, 20),),
           lambda x: np.maximum.accumulate(x[::-1])[::-1]),
    OpCase("cummax_int8", (C.CumMax,), lambda x: C.cummax(x, axis=-1), (INT8,),
           lambda x: np.maximum.accumulate(x, 1)),
    OpCase("cummax_float16", (C.CumMax,), lambda x: C.cummax(x, axis=1), (F16,),
           lambda x: np.maximum.accumulate(x, 1), grad=False),
    OpCase("cummin", (C.CumMin,), lambda x: C.cummin(x, axis=0), (SPREAD,),
           lambda x: np.minimum.accumulate(x, 0)),
    OpCase("cummin_bool", (C.CumMin,), lambda x: C.cummin(x, axis=1), (BOOL,),
           lambda x: np.minimum.accumulate(x, 1)),
    OpCase("cummin_empty", (C.CumMin,), lambda x: C.cummin(x, axis=0), (normal(0, 3),),
           lambda x: x, grad=False),
    OpCase("forward_fill", (C.ForwardFill,), lambda x: C.forward_fill(x, axis=1), (missing(),),
           filled),
    OpCase("forward_fill_columns", (C.ForwardFill,), lambda x: C.forward_fill(x.T, axis=0),
           (missing("float32"),), lambda x: filled(x).T),
    OpCase("forward_fill_reverse", (C.ForwardFill,), lambda x: C.ForwardFill(1, True)(x[:, ::-1]),
           (missing(),), lambda x: filled(x)[:, ::-1]),
    OpCase("forward_fill_leading", (C.ForwardFill,), lambda x: C.forward_fill(x[:, 1:]),
           (missing(),), lambda x: filled(x[:, 1:].reshape(1, -1))[0], grad=False),
    OpCase("forward_fill_float16", (C.ForwardFill,), lambda x: C.forward_fill(x, axis=1),
           (missing("float16"),), filled, grad=False),
    OpCase("forward_fill_empty", (C.ForwardFill,), lambda x: C.forward_fill(x, axis=0),
           (normal(0, 3),), lambda x: x, grad=False),
    OpCase("shift", (C.Shift,), lambda x: C.Shift(0)(x), (normal(3, 2),),
           lambda x: np.vstack([[0, 0], x[:-1]])),
    OpCase("shift_reverse", (C.Shift,), lambda x: C.Shift(1, True)(x), (normal(2, 3),),
           lambda x: np.hstack([x[:, 1:], [[0], [0]]])),
    OpCase("recurrence", (C.LinearRecurrence,), lambda a, b: C.LinearRecurrence(0)(a, b),
           (normal(4, 2), normal(4, 2)), recurrence),
    *[OpCase(name, (F.LinearFilter,), partial(F.lfilter, axis=axis),
             (COEFFICIENTS, LEADING, normal(3, 9)), partial(filtered, axis=axis))
      for name, axis in (("lfilter", 1), ("lfilter_across", 0))],
    OpCase("lfilter_reverse", (F.LinearFilter,), lambda x, b, a: F.LinearFilter(0, True)(x, b, a),
           (normal(9, 2), COEFFICIENTS, uniform(-0.4, 0.4, 2)),
           lambda x, b, a: filtered(b, np.append(1, a), x[::-1], axis=0)[::-1]),
    OpCase("lfilter_float32", (F.LinearFilter,), F.lfilter,
           (normal(2, dtype="float32"), uniform(0.3, 0.4, 2, dtype="float32"),
            normal(2, 30, dtype="float32")),
           lambda b, a, x: filtered(b, a, x, axis=1).astype("float32"), rtol=1e-4),
    OpCase("lfilter_float16", (F.LinearFilter,), F.lfilter,
           (normal(2, dtype="float16"), uniform(1, 2, 1, dtype="float16"),
            normal(2, 30, dtype="float16")),
           lambda b, a, x: filtered(b / a, [1], x, axis=1).astype("float16"), rtol=1e-2),
    OpCase("lfilter_empty", (F.LinearFilter,), F.lfilter,
           (COEFFICIENTS, LEADING, normal(3, 0)), lambda b, a, x: x, grad=False),
    OpCase("recurrence_reverse", (C.LinearRecurrence,),
           lambda a, b: C.LinearRecurrence(0, True)(a, b), (normal(4, 2), normal(4, 2)),
           lambda a, b: recurrence(a[::-1], b[::-1])[::-1]),
]  # fmt: skip


def norm_of(L):
    return lambda x, axis, keepdims: N.norm(x, L, axis, keepdims)


NORMS = [
    *over_axes("norm2", R.Sum, norm_of(2), X, p_norm(2), BOTH[:5]),
    *over_axes("norm1", R.Sum, norm_of(1), SPREAD, p_norm(1), BOTH[:2]),
    *over_axes("norm3", R.Sum, norm_of(3), uniform(0.5, 2, 2, 3), p_norm(3), BOTH[:2]),
    *over_axes("norm_inf", R.Max, norm_of(float("inf")), SPREAD,
               lambda x, **kw: np.abs(x).max(**kw), BOTH[1:2]),
    *over_axes("norm_minus_inf", R.Min, norm_of(-float("inf")), SPREAD,
               lambda x, **kw: np.abs(x).min(**kw), BOTH[1:2]),
    *over_axes("norm0", R.Sum, norm_of(0), integers(0, 2, 2, 3),
               lambda x, **kw: (x != 0).sum(**kw).astype("float32"), BOTH[:2]),
    OpCase("norm2_complex", (R.Sum,), lambda a, b: N.norm(a + 1j * b, 2), (normal(3), normal(3)),
           lambda a, b: np.sqrt((a * a + b * b).sum())),
]  # fmt: skip

CASES = [*SUMS, *MOMENTS, *INDICES, *RUNNING, *NORMS]
