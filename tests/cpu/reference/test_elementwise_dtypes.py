"""Every elementwise function of ``T`` in every dtype: NumPy's kernels give what references do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import symdnn
from symdnn.errors import SymdnnError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.graph.type import DTYPES, TensorType
from symdnn.graph.variable import Variable
from symdnn.tensor import elementwise
from tests.fuzz.catalogue import public_functions, required
from tests.seeded import sampled

BY_NAME = {
    p.split(".")[-1]: f for p, f in public_functions().items() if "linalg" not in p.split(".")
}  # ``T.inv`` is 1/x, ``T.linalg.inv`` the inverse of a matrix
UNARY = [n for n in elementwise.__all__ if n in BY_NAME and len(required(BY_NAME[n])) == 1]
BINARY = [
    n for n in elementwise.__all__
    if n in BY_NAME and len(required(BY_NAME[n])) == 2 and n != "cast"
]  # fmt: skip
SOME = ("bool", "int8", "int64", "uint8", "uint64", "float16", "float32", "complex64")


def applied(name, dtypes):
    """Inputs, outputs and values, or nothing where the function does not take the dtypes."""
    inputs = [TensorType(d, (None,))() for d in dtypes]
    try:
        out = BY_NAME[name](*inputs)
    except SymdnnError:
        return [], [], []
    outs = [out] if isinstance(out, Variable) else list(out)
    return inputs, outs, [np.array([1, 0, 3]).astype(v.type.numpy) for v in inputs]


SMALL = [n for n in (*UNARY, *BINARY) if n not in ("clip", "largest", "smallest")]


@pytest.mark.parametrize("name", sampled(SMALL, every=3))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_small_calls_agree_with_the_references(name):
    count = len(required(BY_NAME[name]))
    drawn = [applied(name, d) for d in itertools.product(DTYPES if count == 1 else SOME,
                                                         repeat=count)]  # fmt: skip
    inputs, outs, values = (list(itertools.chain(*part)) for part in zip(*drawn))
    assert outs
    narrowed = 2e-2 if name == "log_ndtr" else 1e-2  # at 3 it has ten times its argument's error
    got = symdnn.function(inputs, outs, on_unused_input="ignore")(*values)
    for a, b, o in zip(got, evaluate(outs, dict(zip(inputs, values))), outs):
        text = f"{name}: {o}, {o.owner and [v.type.dtype for v in o.owner.inputs]}"
        assert a.dtype == b.dtype == o.type.numpy, text
        # Inside of a chain nothing is rounded to 16 bits, which the references do at each op.
        dtypes = {v.type.dtype for n in toposort([o]) for v in (*n.inputs, *n.outputs)}
        narrow = bool(dtypes & {"float16", "bfloat16"})
        np.testing.assert_allclose(
            a.astype("c16"), b.astype("c16"), rtol=narrowed if narrow else 2e-6, err_msg=text
        )


@pytest.mark.parametrize("name", ["leaky_relu", "elu"])
@pytest.mark.parametrize("dtype", ["int64", "uint32", "int8"])
def test_a_slope_is_exact_beside_whole_numbers(name, dtype):
    """A float64 result has no slope that was rounded to float32."""
    v = TensorType(dtype, (None,))("v")
    x = np.array([0, 4] if dtype[0] == "u" else [-2, 4], dtype)
    out = getattr(elementwise, name)(v, 0.01)
    below = x * 0.01 if name == "leaky_relu" else 0.01 * np.expm1(np.minimum(x.astype("f8"), 0))
    want = np.where(x > 0, x, below)
    rtol = 1e-15 if name == "leaky_relu" and out.dtype == "float64" else 1e-6
    np.testing.assert_allclose(symdnn.function([v], out)(x), want, rtol=rtol)
