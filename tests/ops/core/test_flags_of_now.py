"""A graph has the dtypes of the flags under which it was built, whatever they are later."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.elemwise import Elemwise, FloatElemwise
from tests.test_op_table import concrete_ops

FLAGS = [
    {"floatX": "float64"},
    {"cast_policy": "custom"},
    {"cast_policy": "numpy+floatX"},
    {"cast_policy": "numpy+floatX", "floatX": "float64"},
]


def elementwise(op, *inputs):
    """The result; None where the op does not take these dtypes."""
    try:
        return op(*inputs[: op.arity]) if op.arity <= len(inputs) else None
    except TypeError:
        return None


def instances():
    """Every elementwise op that has no parameters."""
    for cls in sorted(
        (o for o in concrete_ops() if issubclass(o, Elemwise)), key=lambda o: o.__name__
    ):
        try:
            yield cls()
        except TypeError:
            continue


DTYPES = [("int8", "uint8", "int8"), ("int32", "float32", "int32"), ("bool", "bool", "bool")]


def outputs_of(inputs):
    made = [elementwise(op, *inputs) for op in instances()]
    outs = [*(v for v in made if v is not None), T.logsumexp(inputs[0]), T.std(inputs[0])]
    assert len(outs) > 40
    return outs


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_built_under_other_flags(flags, dtypes, rng):
    inputs = [TensorType(d, (None,))(n) for d, n in zip(dtypes, "xyz")]
    at = {v: rng.integers(1, 2 if "bool" in dtypes else 5, 7).astype(v.dtype) for v in inputs}
    with config.change_flags(flags):
        outs = outputs_of(inputs)
        want = evaluate(outs, at)
    got = evaluate(outs, at)
    if dtypes == DTYPES[1] and "floatX" in flags:  # once each by kernels
        mode = symdnn.Mode(optimizer="fast_compile")
        got += symdnn.function(inputs, outs, mode=mode, on_unused_input="ignore")(*at.values())
    for out, a, b in zip(outs * 2, got, want * 2):
        assert a.dtype == b.dtype == out.type.numpy, str(out.owner)
        np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=str(out.owner))


@pytest.mark.parametrize(("policy", "float_x", "wanted"), [
    ("numpy2", "float32", "float32 float32 float32"),
    ("numpy2", "float64", "float64 float64 float64"),
    ("custom", "float32", "float32 float32 float64"),
    ("custom", "float64", "float32 float32 float64"),  # Theano's upgrade_to_float
])  # fmt: skip
def test_functions_of_ints(policy, float_x, wanted):
    """By Theano's rule at most 16 bits give float32, more float64; a quotient is of floatX."""
    with config.change_flags(cast_policy=policy, floatX=float_x):
        for op in instances():
            if isinstance(op, FloatElemwise) and op.arity == 1:
                found = [elementwise(op, T.vector(dtype=d)) for d in ("bool", "uint16", "int32")]
                if None not in found:
                    assert [v.dtype for v in found] == wanted.split(), str(op)
        assert (T.lvector() / T.lvector()).dtype == (T.bvector() / T.bvector()).dtype == float_x
