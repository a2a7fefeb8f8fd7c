from __future__ import annotations

from itertools import product

import numpy as np

from symdnn.ops.nn import pool as P
from tests.op_table.record import OpCase, distinct, integers, normal

REDUCE = {
    "max": np.max, "sum": np.sum, "average_inc_pad": np.mean, "average_exc_pad": np.nanmean,
}  # fmt: skip
FILL = {"max": -np.inf, "sum": 0, "average_inc_pad": 0, "average_exc_pad": np.nan}


def loop_pool(x, ws, stride=None, pad=None, mode="max", ignore_border=True) -> np.ndarray:
    """Pooling by the definition: windows start every ``stride``, as long as they belong."""
    stride, pad = stride or ws, pad or (0,) * len(ws)
    lead = x.ndim - len(ws)
    x = np.pad(
        x.astype("float64"), [(0, 0)] * lead + [(p, p) for p in pad], constant_values=FILL[mode]
    )
    starts = [
        _starts(n, w, s, ignore_border) for n, w, s in zip(x.shape[lead:], ws, stride, strict=True)
    ]
    y = np.zeros(x.shape[:lead] + tuple(len(s) for s in starts))
    for at in product(*(range(len(s)) for s in starts)):
        window = tuple(slice(s[i], s[i] + w) for s, i, w in zip(starts, at, ws, strict=True))
        axes = tuple(range(lead, x.ndim))
        y[(..., *at)] = REDUCE[mode](x[(..., *window)], axis=axes)
    return y


def _starts(n: int, w: int, s: int, ignore_border: bool) -> list[int]:
    """Where windows start: whole ones only, or until one reaches the end."""
    starts = []
    for i in range(0, n, s):
        if ignore_border and i + w > n:
            break
        starts.append(i)
        if not ignore_border and i + w >= n and s < w:
            break
    return starts


def loop_max_grad(x, dy, ws, stride) -> np.ndarray:
    dx = np.zeros_like(x)
    for n, i, j in product(*map(range, dy.shape)):
        top, left = i * stride[0], j * stride[1]
        window = x[n, top : top + ws[0], left : left + ws[1]]
        dx[n, top : top + ws[0], left : left + ws[1]] += dy[n, i, j] * (window == window.max())
    return dx


def _case(name, shape, ndim=2, draw=distinct, **options) -> OpCase:
    more = {k: options.pop(k) for k in ("rtol", "grad", "dtype") if k in options}
    builder = {1: P.pool_1d, 2: P.pool_2d, 3: P.pool_3d}[ndim]
    mode = options.get("mode", "max")
    ops = (
        (P.Pool, P.MaxPoolGrad, P.MaxPoolGradGrad) if mode == "max" else (P.Pool, P.AveragePoolGrad)
    )
    keys = {"ws": options["ws"], "mode": mode, "ignore_border": options["ignore_border"]}
    draws = (draw(*shape, **({"dtype": more.pop("dtype")} if "dtype" in more else {})),)
    return OpCase(
        f"pool_{name}",
        ops,
        lambda x: builder(x, **options),
        draws,
        lambda x: loop_pool(x, stride=options.get("stride"), pad=options.get("pad"), **keys),
        **more,
    )


def max_grad(x, dy):
    op = P.Pool((3, 2), (2, 1), (0, 0), "max", True)
    return P.MaxPoolGrad(*op.settings)(x, op(x), dy)


def max_grad_grad(x, v):
    op = P.Pool((3, 2), (2, 1), (0, 0), "max", True)
    return P.MaxPoolGradGrad(*op.settings)(x, op(x), v)


def loop_max_grad_grad(x, v) -> np.ndarray:
    out = np.zeros((2, 2, 3))
    for at in np.ndindex(*out.shape):
        impulse = np.zeros(out.shape)
        impulse[at] = 1
        out[at] = np.sum(loop_max_grad(x, impulse, (3, 2), (2, 1)) * v)
    return out


def average_grad(dy):
    op = P.AveragePoolGrad((3, 2), (2, 1), (1, 0), "average_exc_pad", True, (5, 4))
    return op(dy, np.int64(5), np.int64(4))


def loop_average_grad(dy) -> np.ndarray:
    dx = np.zeros((2, 5, 4))
    for at in np.ndindex(5, 4):
        impulse = np.zeros((1, 5, 4))
        impulse[(0, *at)] = 1
        response = loop_pool(impulse, (3, 2), (2, 1), (1, 0), "average_exc_pad")
        dx[(slice(None), *at)] = np.sum(response * dy, axis=(1, 2))
    return dx


CASES = [
    *(
        _case(
            f"{mode}_{border}",
            (2, 3, 5, 4),
            ws=(2, 3),
            mode=mode,
            ignore_border=border == "whole",
        )
        for mode in REDUCE
        for border in ("whole", "cut")
    ),
    *(
        _case(
            f"{mode}_overlap_{border}",
            (2, 6, 5),
            ws=(3, 2),
            stride=(2, 1),
            mode=mode,
            ignore_border=border == "whole",
        )
        for mode in REDUCE
        for border in ("whole", "cut")
    ),
    *(
        _case(
            f"{mode}_padded",
            (2, 5, 4),
            ws=(3, 2),
            stride=(2, 1),
            pad=(2, 1),
            mode=mode,
            ignore_border=True,
        )
        for mode in REDUCE
    ),
    *(
        _case(
            f"{mode}_gaps_{border}",
            (2, 9, 7),
            ws=(2, 2),
            stride=(4, 3),
            mode=mode,
            ignore_border=border == "whole",
        )
        for mode in ("max", "average_exc_pad")
        for border in ("whole", "cut")
    ),
    _case("1d", (2, 7), 1, ws=(3,), stride=(2,), ignore_border=False),
    _case("3d", (2, 4, 3, 5), 3, ws=(2, 2, 3), stride=(2, 1, 2), ignore_border=True),
    _case(
        "3d_average",
        (4, 3, 5),
        3,
        ws=(2, 2, 3),
        pad=(1, 0, 1),
        mode="average_inc_pad",
        ignore_border=True,
    ),
    _case("no_lead", (5, 4), ws=(2, 2), ignore_border=True),
    _case("many_lead", (2, 1, 2, 1, 4, 4), ws=(2, 2), ignore_border=True),
    _case("window_too_large", (2, 3, 3), ws=(4, 4), stride=(1, 1), ignore_border=True, grad=False),
    _case("window_too_large_cut", (2, 3, 3), ws=(4, 4), ignore_border=False),
    _case("empty", (0, 4, 4), ws=(2, 2), ignore_border=True, grad=False),
    _case("empty_rows", (2, 0, 4), ws=(2, 2), stride=(1, 1), ignore_border=False, grad=False),
    _case(
        "float32",
        (2, 5, 4),
        ws=(2, 2),
        mode="average_inc_pad",
        ignore_border=True,
        draw=normal,
        dtype="float32",
        grad=False,
        rtol=1e-5,
    ),
    _case(
        "float16",
        (2, 5, 4),
        ws=(2, 2),
        mode="average_inc_pad",
        ignore_border=True,
        draw=normal,
        dtype="float16",
        grad=False,
        rtol=2e-3,
    ),
    _case(
        "int",
        (2, 5, 4),
        ws=(2, 2),
        pad=(1, 1),
        ignore_border=True,
        dtype="int32",
        draw=lambda *shape, dtype: integers(-99, 99, *shape, dtype=dtype),
        grad=False,
    ),
    _case(
        "int_sum",
        (2, 5, 4),
        ws=(2, 2),
        mode="sum",
        ignore_border=False,
        dtype="int32",
        draw=lambda *shape, dtype: integers(-99, 99, *shape, dtype=dtype),
        grad=False,
    ),
    OpCase(
        "pool_bfloat16",
        (P.Pool,),
        lambda x: P.pool_2d(x, 2).astype("float32"),
        (normal(2, 5, 4, dtype="bfloat16"),),
        lambda x: loop_pool(x, (2, 2), ignore_border=False),
        grad=False,
    ),
    OpCase(
        "max_pool_grad",
        (P.MaxPoolGrad,),
        max_grad,
        (distinct(2, 5, 4), normal(2, 2, 3)),
        lambda x, dy: loop_max_grad(x, dy, (3, 2), (2, 1)),
    ),
    OpCase(
        "max_pool_grad_ties",
        (P.MaxPoolGrad,),
        max_grad,
        (integers(0, 2, 2, 5, 4, dtype="float64"), normal(2, 2, 3)),
        lambda x, dy: loop_max_grad(x, dy, (3, 2), (2, 1)),
        grad=False,
    ),
    OpCase(
        "max_pool_grad_grad",
        (P.MaxPoolGradGrad,),
        max_grad_grad,
        (distinct(2, 5, 4), normal(2, 5, 4)),
        loop_max_grad_grad,
    ),
    OpCase(
        "average_pool_grad",
        (P.AveragePoolGrad,),
        average_grad,
        (normal(2, 3, 3),),
        loop_average_grad,
    ),
    OpCase(
        "max_pool_2d_same_size",
        (P.MaxPoolGrad,),
        lambda x: P.max_pool_2d_same_size(x, (2, 2)),
        (distinct(2, 5, 4),),
        lambda x: np.where(
            np.pad(
                np.kron(loop_pool(x, (2, 2)), np.ones((1, 2, 2))),
                ((0, 0), (0, 1), (0, 0)),
                constant_values=np.nan,
            )
            == x,
            x,
            0,
        ),
    ),
]
