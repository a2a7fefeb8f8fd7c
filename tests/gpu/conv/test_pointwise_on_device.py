"""Convolutions with 1x1 filters as products of matrices on a device: numbers of all directions."""

from __future__ import annotations

from typing import Any

import pytest

from symdnn.gpu.conv.bench import Bench
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv_table import conv
from symdnn.gpu.device.context import context

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("card")]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize(
    ("x", "kernels"), [((8, 128, 14, 14), 192), ((6, 600, 7, 7), 64), ((2, 64, 56, 56), 1030)]
)
def test_results_are_those_of_a_trusted_algorithm(
    layout: str, direction: str, x: tuple[int, ...], kernels: int
) -> None:
    s = conv(x, (kernels, x[1], 1, 1), direction=direction, layout=layout, tf32=False)
    ctx: Any = context()
    with ctx.current(), Bench(ctx, s) as bench:
        bench.compute_reference()
        error, _ = bench.check(Candidate.of_ours(s, 0))
    assert error < 4e-6


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("x", "kernels", "size", "pad"),
    [((16, 32, 27, 27), 48, (5, 5), 2), ((5, 16, 28, 30), 16, (3, 3), (1, 2)),
     ((8, 16, 32, 20), 32, (7, 2), 0), ((8, 48, 13, 13), 16, (11, 11), 5)],
)  # fmt: skip
def test_gradients_of_filters_by_transforms(
    x: tuple[int, ...], kernels: int, size: tuple[int, int], pad: Any, flip: bool
) -> None:
    w = (kernels, x[1], *size)
    s = conv(x, w, pad, direction="bwd_filter", tf32=False, flip=flip)
    ctx: Any = context()
    with ctx.current(), Bench(ctx, s) as bench:
        bench.compute_reference()
        error, _ = bench.check(Candidate.of_ours(s, 1))
    assert error < 2e-6
