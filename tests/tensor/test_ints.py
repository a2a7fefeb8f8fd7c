"""Functions of ints that give floats."""

import inspect

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.errors import SymdnnError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def functions_of_one_array():
    """Public functions of one array that make floats of ints."""
    found = {}
    for place in (T, T.nnet):
        for name, f in sorted(vars(place).items()):
            if name.startswith("_") or not inspect.isfunction(f):
                continue
            try:
                out = f(TensorType("int8", (None,))("x"))
            except (SymdnnError, TypeError, ValueError, AttributeError):
                continue
            if isinstance(out, Variable) and out.type.dtype.startswith("float"):
                found[name] = f
    return found


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "bool"])
def test_functions_of_ints_compute_in_floats(dtype):
    """Nothing inside of them is rounded to the ints' dtype, nor wraps around in it."""
    functions = functions_of_one_array()
    assert len(functions) > 60
    ends = np.iinfo(dtype) if dtype != "bool" else None
    low, high = (ends.min, ends.max) if ends is not None else (0, 1)
    a = np.array(sorted({low, low + 1, 0, 1, high - 1, high}), dtype)
    wrong = []
    for name, f in functions.items():
        x, y = TensorType(dtype, (None,))("x"), TensorType("float64", (None,))("y")
        out = f(x)
        (got,), (want,) = evaluate([out], {x: a}), evaluate([f(y)], {y: a.astype("float64")})
        rtol = 3e-3 if out.type.dtype == "float16" else 1e-5
        with np.errstate(all="ignore"):
            want = want.astype(out.type.dtype)
            close = np.isclose(got, want, rtol=rtol, atol=1e-5, equal_nan=True)
        if not close[np.isfinite(want)].all():
            wrong.append(f"{name}: {got}, of floats {want}")
    assert not wrong
