from __future__ import annotations

import numpy as np

from symdnn.ops.elementwise import rounding as R
from tests.op_table.record import OpCase, integers, uniform

X = uniform(-5, 5, 3, 4)


def halves(*shape):
    return lambda rng: rng.integers(-9, 9, shape) / 2


CASES = [
    OpCase("floor", (R.Floor,), R.floor, (X,), lambda x: x // 1),
    OpCase("ceil", (R.Ceil,), R.ceil, (X,), lambda x: -(-x // 1)),
    OpCase("trunc", (R.Trunc,), R.trunc, (X,), lambda x: np.sign(x) * (np.abs(x) // 1)),
    OpCase("round", (R.RoundHalfToEven,), R.round, (X,), np.round),
    OpCase("round_halves", (R.RoundHalfToEven,), R.round, (halves(20),), np.round, grad=False),
    OpCase("round_away", (R.RoundHalfAwayFromZero,), R.round_half_away_from_zero, (X,), np.round),
    OpCase(
        "round_away_halves", (R.RoundHalfAwayFromZero,),
        lambda x: R.round(x, mode="half_away_from_zero"), (halves(20),),
        lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), grad=False,
    ),
    OpCase("floor_int", (R.Floor,), lambda x: R.floor(x) + 0, (integers(-9, 9, 3),), lambda x: x),
    OpCase("iround", (R.RoundHalfToEven,), R.iround, (X,), lambda x: np.round(x).astype(int)),
    OpCase(
        "floor_float16", (R.Floor,), R.floor, (uniform(-5, 5, 9, dtype="float16"),), np.floor,
        grad=False,
    ),
]  # fmt: skip
