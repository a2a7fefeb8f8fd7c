"""Products with parameters that became one, on a device: numbers, and parameters that change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.graph.type import numpy_dtype

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

#: Largest error beside the largest value.
TOLERANCE = {"bfloat16": 3e-2, "float32": 1e-4}


class Net(nn.Module):
    """Attention with separate projections, then a gated layer (Shazeer 2020)."""

    def __init__(self, width: int = 128, heads: int = 2) -> None:
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        q, k, v = (
            p(x).reshape((*x.shape[:2], self.heads, -1)).dimshuffle(0, 2, 1, 3)
            for p in (self.q, self.k, self.v)
        )
        y = T.nnet.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.dimshuffle(0, 2, 1, 3).reshape(x.shape, ndim=3)
        return T.nnet.silu(self.gate(y)) * self.up(y)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_numbers(rng: Any, dtype: str) -> None:
    nn.init.seed(3)
    net = Net()
    x = T.TensorType("float32", (None, None, 128))("x")
    with config.change_flags(device="cpu"):
        plain = symdnn.function([x], net(x))
    net = net.astype(dtype) if dtype != "float32" else net
    x = T.TensorType(dtype, (None, None, 128))("x")
    with config.change_flags(device="cuda"):
        f = symdnn.function([x], net(x))
        apart = symdnn.function([x], net(x), mode=symdnn.Mode().excluding("joined_products"))
    for change in range(2):
        for batch, time in ((2, 64), (2, 64), (2, 64), (1, 5)):
            a = rng.standard_normal((batch, time, 128)).astype(numpy_dtype(dtype))
            found, other = (np.asarray(g(a)).astype("f8") for g in (f, apart))
            largest = np.abs(other).max()
            assert np.abs(found - other).max() <= TOLERANCE[dtype] * largest
            if not change:
                wanted = plain(a.astype("float32"))
                assert np.abs(found - wanted).max() <= TOLERANCE[dtype] * largest
        weight = net.k.weight  # what is joined follows a parameter that changes
        weight.set_value(weight.get_value() * weight.get_value().dtype.type(2))
    rows = [[r.how for r in g.lowering_report().rows if r.plan is not None] for g in (f, apart)]
    gemms = [sum("cublaslt" in how for how in found) for found in rows]
    assert gemms[0] < gemms[1]
