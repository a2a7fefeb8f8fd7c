"""Need 24: sequences of unsorted lengths give what each gives alone, with gradients."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
from symdnn.graph.type import TensorType
from symdnn.ops.nn.rnn import RNNBlock
from symdnn.ops.nn.rnn_params import GATES
from tests.gpu import agreement
from tests.needs.on_each_device import device  # noqa: F401
from tests.ops.nn.test_rnn import arrays

LENGTHS = np.array([3, 5, 1, 4], "int32")


def program(block, count, lengths):
    """A function: outputs, final states, and the gradients of the sum of their squares."""
    vs = [TensorType("float32", (None,) * n)(name) for n, name in zip((1, 3, 3, 3)[:count], "wxhc")]
    outputs = block.apply(*vs, lengths=lengths)
    cost = sum((v * v).sum() for v in outputs)
    every = [*outputs, *symdnn.grad(cost, vs)]
    return symdnn.function(vs, every, mode=symdnn.Mode(target=agreement.TARGET))


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", list(GATES))
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_each_sequence_alone(device, layers, direction, mode):  # noqa: F811
    block = RNNBlock("float32", 3, layers, mode, direction_mode=direction)
    given = [a.astype("float32") for a in arrays(block, steps=5, batch=4, features=2)]
    w, x, *states = given
    count = 2 + (mode == "lstm")
    together = [np.asarray(v) for v in program(block, len(given), LENGTHS)(*given)]
    y, *final, dw, dx = together[: count + 2]
    dstates, alone, summed = together[count + 2 :], program(block, len(given), None), 0
    for b, n in enumerate(LENGTHS):
        one = slice(b, b + 1)
        got = [np.asarray(v) for v in alone(w, x[:n, one].copy(), *(s[:, one] for s in states))]
        close(y[:n, b], got[0][:, 0])
        close(dx[:n, b], got[count + 1][:, 0])
        assert not y[n:, b].any()
        assert not dx[n:, b].any()
        for a, c in zip([*final, *dstates], [*got[1:count], *got[count + 2 :]], strict=True):
            close(a[:, b], c[:, 0])
        summed = summed + got[count]
    close(dw, summed)
