"""Mixed precision in loops on a GPU: training of a recurrent network beside the CPU's float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config

pytestmark = pytest.mark.gpu


def losses(device: str, amp: str) -> list[float]:
    """Of a few steps of an LSTM written by hand, with dropout in its steps."""
    width, rows, steps = 32, 8, 6
    rng = np.random.default_rng(3)
    w = symdnn.shared(rng.normal(0, 0.2, (2 * width, 4 * width)).astype("float32"), name="w")
    b = symdnn.shared(np.zeros(4 * width, "float32"), name="b")
    stream = T.random.RandomStream(5)

    def step(x: Any, h: Any, c: Any) -> Any:
        x = T.nnet.dropout(x, 0.2, stream)
        z = T.dot(T.concatenate([x, h], axis=1), w) + b
        i, f, g, o = (z[:, k * width : (k + 1) * width] for k in range(4))
        c = T.nnet.sigmoid(f) * c + T.nnet.sigmoid(i) * T.tanh(g)
        return T.nnet.sigmoid(o) * T.tanh(c), c

    x = T.tensor3("x", dtype="float32")
    zeros = T.zeros((rows, width), "float32")
    (hs, _), drawn = symdnn.scan(step, sequences=[x], outputs_info=[zeros, zeros])
    loss = T.sqr(hs - T.tanh(x)).mean()
    with config.change_flags(amp=amp):
        updates = {**dict(drawn), **dict(nn.optim.adam(loss, [w, b], lr=0.02))}
        f = symdnn.function([x], loss, updates=updates, mode=symdnn.Mode(target=device))
        values = rng.standard_normal((steps, rows, width)).astype("float32")
        return [float(f(values)) for _ in range(6)]


def test_a_hand_written_lstm_learns_as_in_float32(cuda: Any) -> None:
    want, got = losses("cpu", "off"), losses("cuda", "bf16")
    assert want[-1] < 0.95 * want[0]
    np.testing.assert_allclose(got, want, rtol=2e-2)
