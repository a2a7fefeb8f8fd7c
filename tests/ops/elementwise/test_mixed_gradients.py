"""Gradients of ops whose operands differ in dtype: as exact as those of equal dtypes.

A derivative is computed in the dtype of the result, as the function is: an int8 beside a float64
is neither rounded to float32 on the way (``log``) nor does it wrap around (``x ** 2``, ``n - 1``).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.elementwise import (
    activations,
    arithmetic,
    bessel,
    comparison,
    incomplete,
    math,
    special,
)
from symdnn.ops.elemwise import Elemwise
from tests import seeded

DTYPES = ("float64", "float32", "bfloat16", "int64", "int8", "uint8", "bool")
MODULES = (activations, arithmetic, bessel, comparison, incomplete, math, special)
OPS = {
    name: op
    for module in MODULES
    for name, op in vars(module).items()
    if isinstance(op, type) and issubclass(op, Elemwise) and op.__module__ == module.__name__
    and 2 <= op.arity <= 3 and "abstract" not in vars(op)
    and "f" in op.kinds and not op.is_comparison
}  # fmt: skip


def derivatives(op, dtypes, values, wrt):
    """Of ``op`` by reverse and by forward mode, by the operands at ``wrt``."""
    operands = [TensorType(d, (None,))() for d in dtypes]
    out = op(*operands)
    chosen = [operands[k] for k in wrt]
    cost = (out * np.array([1.0, 2.0, 3.0])).sum()
    found = T.grad(cost, chosen, disconnected_inputs="ignore")
    ahead = T.Rop(out, chosen, [T.constant(np.array([0.3, 0.7, 1.1])) for _ in wrt],
                  disconnected_outputs="ignore")  # fmt: skip
    found = [*found, *([] if ahead is None else [ahead])]
    given = [v.astype(o.type.numpy) for v, o in zip(values, operands)]
    return out.type.dtype, evaluate(found, dict(zip(operands, given)))


@pytest.mark.parametrize("name", seeded.sampled(list(OPS), every=3))
def test_gradients_of_mixed_dtypes_are_exact(name, rng):
    op = OPS[name]()
    for dtypes in itertools.product(DTYPES[:: op.arity - 1], repeat=op.arity):
        wrt = [k for k, d in enumerate(dtypes) if d == "float64" and k >= op.first]
        if not wrt:
            continue
        values = [rng.uniform(0.5, 2, 3) if d == "float64" else _drawn(rng, d) for d in dtypes]
        dtype, found = derivatives(op, dtypes, values, wrt)
        _, wanted = derivatives(op, ("float64",) * op.arity, values, wrt)
        assert dtype == "float64"
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, err_msg=str(dtypes))


def _drawn(rng, dtype):
    """Values of which squares and neighbours lie outside of int8 and uint8."""
    among = {"bool": [0, 1], "int8": [-128, 0, 2, 100, 127], "uint8": [0, 1, 2, 200, 255]}
    return rng.choice(among.get(dtype, [0, 1, 2, 5, 100]), 3).astype("f8")


def test_a_constant_exponent_is_not_rounded():
    x = T.dscalar()
    slope = T.grad(T.pow(x, np.float32(0.1)), x)
    (found,) = evaluate([slope], {x: np.array(0.7)})
    exponent = float(np.float32(0.1))
    np.testing.assert_allclose(found, exponent * 0.7 ** (exponent - 1), rtol=1e-15)
