"""What programs written for Theano rely on: dtypes of numbers, disconnected inputs, modes.

The other rules of its semantics are tested by its own names in
``tests/compat/theano/test_semantics.py``, and where the ops are.
"""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import function, grad
from symdnn.config import config


@pytest.fixture(autouse=True)
def theanos_casting():
    """What Theano's programs set: its rule for Python numbers."""
    with config.change_flags(cast_policy="custom"):
        yield


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, "int8"),
        (300, "int16"),
        (70000, "int32"),
        (3.0, "float32"),
        ([1.0, 2.0], "float64"),
        (np.float64(1), "float64"),
        (True, "bool"),
    ],
)
def test_dtype_of_constants(value: object, dtype: str) -> None:
    with config.change_flags(floatX="float32"):
        assert T.constant(value).dtype == dtype


def test_upcasts() -> None:
    f, i8, i32, i64 = T.fvector(), T.bvector(), T.ivector(), T.lvector()
    with config.change_flags(floatX="float32"):
        assert (f + i8).dtype == "float32"
        assert (f + i32).dtype == "float64"
        assert (f * i64).dtype == "float64"
        assert (f * f.shape[0]).dtype == "float64"
        assert (i32 / i64).dtype == "float32"
        assert (i32 + 1.0).dtype == "float64"
    with config.change_flags(floatX="float64"):
        assert (i32 / i64).dtype == "float64"
        assert (f * 1.5).dtype == "float32"


def test_disconnected_raises_and_known_grads_stand_alone() -> None:
    x, y = T.dvector("x"), T.dvector("y")
    with pytest.raises(symdnn.gradient.DisconnectedInputError):
        grad(x.sum(), y)
    for word in ("None", "Disconnected"):
        assert grad(x.sum(), [y], disconnected_inputs="ignore", return_disconnected=word) == [None]
    z = 3 * x
    g = grad(None, x, known_grads={z: y})
    np.testing.assert_array_equal(function([y], g, on_unused_input="ignore")([1, 2]), [3, 6])


@pytest.mark.cpu
def test_a_mode_without_an_optimizer_rewrites_nothing() -> None:
    x = T.fvector("x")
    ops = {
        optimizer: [
            str(n.op) for n in function([x], T.log(1 + x), mode=mode).maker.fgraph.toposort()
        ]
        for optimizer, mode in [
            ("default", symdnn.Mode()),
            (None, symdnn.Mode(optimizer=None)),
            ("None", symdnn.Mode(optimizer="None").including("gpuarray")),
        ]
    }
    assert ops["default"] == ["Log1p"]
    assert ops[None] == ops["None"]
    assert "Log1p" not in ops[None]
