"""Products of stacks of single rows and columns: values for any strides, what is refused."""

import numpy as np
import pytest

from symdnn.config import config
from symdnn.cpu.gemm.stacked_vectors import StackedVectorsKernel
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.dot import BatchedDot
from symdnn.ops.vendor.onednn import OneDnnMatmul
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled
KERNEL, OP = StackedVectorsKernel(), OneDnnMatmul(BatchedDot())


def product_of(x, y):
    return call_of(OP, (x, y), TensorType("float32", (x.shape[0], x.shape[1], y.shape[2])))


@pytest.mark.parametrize(
    ("stack", "m", "k", "n"),
    [(900, 1, 8, 9), (900, 9, 8, 1), (40, 1, 64, 64), (33, 50, 64, 1), (4000, 1, 2, 1)],
)
def test_values_for_any_strides_and_threads(rng, stack, m, k, n):
    x, y = (rng.normal(size=s).astype("f") for s in ((stack, m, k), (stack, k, n)))
    turned = [np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2) for a in (x, y)]
    wanted = np.matmul(x.astype("d"), y.astype("d"))
    for arrays in ((x, y), (turned[0], y), (x, turned[1]), (x[::-1], y[::-1])):
        bits = set()
        for count in (1, 3):
            with config.change_flags(**{"openmp.threads": count}):
                (found,) = launched(KERNEL, product_of(*arrays), arrays)
            right = wanted[::-1] if arrays[0].strides[0] < 0 else wanted
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
            bits.add(found.tobytes())
        assert len(bits) == 1


def test_what_is_refused(rng):
    for shapes in (
        ((900, 3, 8), (900, 8, 9)),
        ((4, 1, 80), (4, 80, 90)),
        ((9, 1, 99), (9, 99, 99)),
    ):
        assert KERNEL.refuses(product_of(*(np.ones(s, "f") for s in shapes)))
