"""Recurrent networks with parameters for each lane, as one loop; and loops of a static batch."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import Rop, grad, verify_grad
from symdnn.graph.type import TensorType
from symdnn.ops.nn.rnn import RNNBlock
from symdnn.ops.nn.rnn_params import GATES
from symdnn.ops.written_out import rnn as written
from tests.ops.nn.test_rnn import BOTH, B, H, X, arrays
from tests.ops.nn.test_rnn import T as STEPS

LANES = 3
KINDS = [(1, 0, False, False), (2, 1, False, True), (2, 0, True, True)]


def variables(given):
    return [TensorType(a.dtype.name, (None,) * a.ndim)() for a in given]


@pytest.mark.parametrize("mode", list(GATES))
@pytest.mark.parametrize(("layers", "direction", "skip", "lengths"), KINDS)
@pytest.mark.parametrize("shared", ["nothing", "data"])
def test_each_lane_is_a_call(mode, layers, direction, skip, lengths, shared, monkeypatch):
    """Values, and gradients inside of vmap and outside; where lanes share data, too."""
    block = RNNBlock("float64", H, layers, mode, "skip" if skip else "linear", BOTH[direction])
    every = [arrays(block, features=H if skip else X, seed=i) for i in range(LANES)]
    if shared == "data":
        every = [[e[0], *every[0][1:]] for e in every]
    n = [np.array([2, STEPS])] * lengths

    def outs(*v):
        return block.apply(*v, **({"lengths": n[0]} if n else {}))

    def cost(*v):
        return sum((o * o * (1.0 + k) + o * 0.3).sum() for k, o in enumerate(outs(*v)))

    def all_of(*v):
        return [*outs(*v), *grad(cost(*v), list(v))]

    one = variables(every[0])
    g = symdnn.function(one, all_of(*one))
    axes = [0, *[0 if shared == "nothing" else None] * (len(one) - 1)]
    stacked = [np.stack(a) if k is not None else a[0] for a, k in zip(zip(*every), axes)]
    wide = variables(stacked)
    made = symdnn.vmap(all_of, in_axes=axes)(*wide)
    whole = symdnn.vmap(cost, in_axes=axes)(*wide).sum()
    f = symdnn.function(wide, [*made, grad(whole, wide[0])])
    assert all("RNN" not in line for line in f.lowering_report().loops)
    *got, outside = f(*stacked)
    of_parameters = len(got) - len(one)
    for lane in range(LANES):
        want = g(*every[lane])
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a[lane], b, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(outside[lane], want[of_parameters], rtol=1e-9, atol=1e-11)


def test_large_networks_are_one_after_the_other():
    block = RNNBlock("float64", written._MOST_HIDDEN + 1, 1, "gru")
    w, x, h = arrays(block)
    ws = TensorType("float64", (None, None))()
    f = symdnn.function([ws], symdnn.vmap(lambda w: block.apply(w, x, h)[0])(ws))
    assert any("RNN" in line for line in f.lowering_report().loops)
    one = symdnn.function([], block.apply(w, x, h)[0])()
    np.testing.assert_allclose(f(np.stack([w, w]))[1], one, rtol=1e-9)


@pytest.mark.parametrize("which", ["states", "data"])
def test_a_batch_of_one_that_only_a_part_declares(which):
    """Forward mode and second derivatives are of a loop, whose states have the data's batch."""
    block = RNNBlock("float64", H, 1, "lstm")
    w, x, *states = arrays(block, batch=1)
    some = (None, 1, None) if which == "data" else (None,) * 3
    v = TensorType("float64", some)()
    given = states if which == "states" else [T.unbroadcast(T.constant(s), 1) for s in states]
    y = block.apply(w, v, *given)[0]
    assert symdnn.function([v], Rop(y, v, v))(x).shape == (STEPS, 1, H)
    slope = grad((grad((y**2).sum(), v) ** 2).sum(), v)
    assert symdnn.function([v], slope)(x).shape == x.shape

    def twice(x):
        return (grad((block.apply(w, x, *states)[0] ** 2).sum(), x) ** 2).sum()

    verify_grad(twice, [x], n_tests=1, abs_tol=1e-5, rel_tol=1e-4)


def test_it_counts_lanes_of_any_number():
    block = RNNBlock("float64", H, 1, "rnn_tanh")
    w, x, h = arrays(block)
    ws = TensorType("float64", (None, None))()
    f = symdnn.function([ws], symdnn.vmap(lambda w: block.apply(w, x, h)[0])(ws))
    assert f(np.zeros((0, len(w)))).shape == (0, STEPS, B, H)
    assert f(w[None]).shape == (1, STEPS, B, H)
