"""Group norms of activations on a GPU: the values of the CPU, in channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, 4, 32])
def test_values_on_a_device(cuda: Any, groups: int) -> None:
    """A residual block of a diffusion network, trained a step in bfloat16, beside the CPU."""
    found = []
    for device, amp in (("cpu", "off"), ("cuda", "bf16")):
        with config.change_flags(amp=amp):
            nn.init.seed(7)
            net = nn.Sequential(
                nn.Conv2d(8, 32, 3, padding=1, bias=False), nn.GroupNorm(groups, 32), nn.SiLU(),
                nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.GroupNorm(groups, 32), nn.SiLU(),
                nn.Conv2d(32, 4, 1),
            )  # fmt: skip
            x = T.tensor4("x", dtype="float32")
            loss = T.sqr(net(x)).mean()
            grads = T.grad(loss, net.parameters())
            f = symdnn.function([x], [loss, *grads], mode=symdnn.Mode(target=device))
            value = np.random.default_rng(5).standard_normal((3, 8, 16, 12)).astype("float32")
            f(value)
            found.append([np.asarray(v, np.float64) for v in f(value)])
    for a, b in zip(*found):
        assert np.linalg.norm(a - b) <= 0.03 * np.linalg.norm(a) + 1e-5
