"""Methods of PyTorch's tensors that are functions of ``T``: the same values, and PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.graph.variable import constant
from symdnn.ops.torch_names.torch_methods import METHODS

RNG = np.random.default_rng(0)
FLOATS = RNG.normal(size=(4, 4))
COUNTS = RNG.integers(1, 9, (4, 4))

OF_FLOATS = """allclose isclose arctan2 atan2 logaddexp logaddexp2 copysign float_power fmax fmin
fmod heaviside hypot inner nextafter kron divide floor_divide true_divide remainder greater
greater_equal less less_equal not_equal"""
OF_INTS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm"
#: What else a method takes.
MORE = {
    **dict.fromkeys(OF_FLOATS.split(), (np.abs(FLOATS[::-1]) + 0.5,)),
    **dict.fromkeys([*OF_INTS.split(), "logical_xor", "ldexp"], (COUNTS[::-1] % 5,)),
    "matrix_power": (3,), "vsplit": (2,), "hsplit": (2,), "dsplit": (2,), "histc": (5, -1, 1),
    "masked_scatter": (FLOATS > 0, FLOATS + 9), "diagonal_scatter": (FLOATS[0],),
    "select_scatter": (FLOATS[0], 0, 1), "slice_scatter": (FLOATS[:2], 0, 1, 3),
    "split_with_sizes": ([1, 3],), "cross": (FLOATS[::-1, :3].copy(),), "nanquantile": (0.3,),
    "mvlgamma": (2,), **dict.fromkeys(["igamma", "igammac"], (np.abs(FLOATS[::-1]) + 0.5,)),
    "subtract": (FLOATS[0],), "take_along_dim": (COUNTS % 4, 1), "vdot": (FLOATS[1],),
}  # fmt: skip
OPERANDS = {
    **dict.fromkeys([*OF_INTS.split(), "bitwise_not"], COUNTS),
    **dict.fromkeys(["acosh", "logdet"], FLOATS @ FLOATS.T + 2),
    **dict.fromkeys(["acos", "asin", "atanh", "erfinv", "logit"], np.abs(np.tanh(FLOATS))),
    **dict.fromkeys(["mvlgamma", "igamma", "igammac"], np.abs(FLOATS) + 1),
    "cross": FLOATS[:, :3], "bincount": COUNTS[0],
    "dsplit": np.stack([FLOATS, FLOATS], -1), "vdot": FLOATS[0],
    "unique_consecutive": COUNTS[0], "float_power": np.abs(FLOATS),
}  # fmt: skip


#: Functions of another name.
ELSEWHERE = {
    "inverse": T.linalg.inv, "pinverse": T.linalg.pinv, "qr": T.linalg.qr, "igamma": T.gammainc,
    "igammac": T.gammaincc, "subtract": T.sub,
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_function_of_its_name(name):
    function = getattr(T, name, None) or ELSEWHERE[name]
    x, more = constant(OPERANDS.get(name, FLOATS)), MORE.get(name, ())
    both = [getattr(x, name)(*more), function(x, *more)]
    flat = [list(b) if isinstance(b, (list, tuple)) else [b] for b in both]
    for got, wanted in zip(*(evaluate(b, {}) for b in flat), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    value, more = OPERANDS.get(name, FLOATS), MORE.get(name, ())
    theirs = [torch.tensor(m) if isinstance(m, np.ndarray) else m for m in more]
    wanted = getattr(torch.tensor(value), name)(*theirs)
    found = getattr(constant(value), name)(*more)
    several = isinstance(wanted, (list, tuple))
    made = evaluate(list(found) if several else [found], {})
    for got, each in zip(made, wanted if several else [wanted], strict=True):
        np.testing.assert_allclose(got, np.asarray(each), rtol=1e-10)
