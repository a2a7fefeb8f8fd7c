"""Products of integers by our kernel, in the emulator, against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.ops.linalg.dot import BatchedDot, Dot
from tests.gpu import emulator
from tests.gpu.recorder import generated_kernels
from tests.gpu.table import concrete
from tests.seeded import new_rng, sampled

needs_compiler = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 4)), ((3, 5), (5, 4)), ((40, 70), (70, 96)),
    ((3, 0), (0, 4)), ((0, 5), (5, 4)), ((2, 3, 5), (2, 5, 4)), ((3, 17, 9), (3, 9, 8)),
]  # fmt: skip


def drawn(shape: tuple[int, ...], dtype: str, turned: bool) -> Any:
    """Numbers of all sizes, so that sums wrap."""
    info = np.iinfo(dtype)
    size = shape[:-2] + shape[-2:][::-1] if turned else shape
    found = new_rng().integers(info.min, info.max, size, dtype, endpoint=True)
    return found.swapaxes(-1, -2) if turned and len(shape) > 1 else found


@needs_compiler
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("turned", sampled(["", "x", "y"], every=3))
def test_integers_wrap_as_those_of_numpy(
    dtype: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], turned: str
) -> None:
    x, y = (drawn(s, dtype, t == turned and len(s) > 1) for s, t in zip(shapes, "xy"))
    op: Any = BatchedDot() if x.ndim == 3 else Dot()
    call = concrete(op, [x, y])
    (kernel,) = generated_kernels(call)
    (found,), _ = emulator.run(kernel, call, [x, y])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, x @ y)


def test_products_of_integers_stay_on_the_device() -> None:
    x, y = T.lmatrix("x"), T.imatrix("y")
    with config.change_flags(assert_lowered="raise"):
        outs = [T.dot(x, x.T), T.dot(y, y[:, 0])]
        symdnn.function([x, y], outs, mode=symdnn.Mode(target="cuda:sm_90"))
