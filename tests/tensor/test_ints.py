"""Functions of ints that give floats."""

import inspect
import itertools

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


TWO = ["hypot", "copysign", "fmod", "logaddexp", "lerp", "float_power", "xlogy0", "arctan2",
       "sigmoid_binary_crossentropy", "true_div", "add", "mul"]  # fmt: skip
ENDS = {"int8": [-128, 127, 1, 126, -127, 3], "uint8": [0, 255, 1, 254, 1, 3],
        "float32": [0.5, -0.25, 0.75, 1.5, 0.125, 2.0]}  # fmt: skip


@pytest.mark.parametrize("name", TWO)
def test_functions_of_ints_beside_floats(name, rng):
    """Operands are taken in the result's dtype before anything is computed of them."""
    f = getattr(T, name, None) or getattr(T.nnet, name)
    count = 3 if name in ("lerp", "add", "mul") else 2
    for dtypes in itertools.product(ENDS, repeat=count):
        vs = [TensorType(d, (None,))() for d in dtypes]
        ws = [TensorType("float64", (None,))() for _ in dtypes]
        if not (out := f(*vs)).type.dtype.startswith("float"):
            continue
        arrays = [np.array(ENDS[d], d)[rng.permutation(6)] for d in dtypes]
        (got,) = evaluate([out], dict(zip(vs, arrays)))
        wide = [a.astype("float64") for a in arrays]
        (want,) = evaluate([f(*ws)], dict(zip(ws, wide)))
        with np.errstate(all="ignore"):
            want = want.astype(out.type.dtype)
        finite = np.isfinite(want)
        rtol = 5e-3 if out.type.dtype == "float16" else 1e-5
        np.testing.assert_allclose(got[finite], want[finite], rtol, rtol * 10, err_msg=str(dtypes))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64", "uint8"])
def test_fmod_of_the_ends_of_ints(dtype):
    ends = np.iinfo(dtype)
    numbers = sorted(
        {ends.min, ends.min + 1, ends.max, 0, 1, 2, 5} | ({-1, -5} if ends.min else set())
    )
    a, b = (np.array(m, dtype).ravel() for m in np.meshgrid(numbers, numbers))
    x, y = T.TensorType(dtype, (None,))(), T.TensorType(dtype, (None,))()
    (got,) = evaluate([T.fmod(x, y)], {x: a, y: b})
    exact = [
        0 if n == 0 else abs(m) % abs(n) * (-1 if m < 0 else 1)
        for m, n in zip(a.tolist(), b.tolist())
    ]
    assert got.tolist() == exact
