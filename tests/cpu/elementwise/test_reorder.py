"""Copies into other layouts beside NumPy's, of operands however they lie."""

import numpy as np
import pytest

from symdnn.config import config
from symdnn.cpu.elementwise.reorder import ReorderKernel
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.nn.channels_last import Reorder
from tests.cpu.harness import call_of, compiled, launched
from tests.seeded import new_rng

pytestmark = [*compiled]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int8", "bool"])
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (1, 0), (0, 1), (4, 0, 3, 1, 2)])
def test_changes_of_the_order(order, dtype):
    shape = (3, 20, 5, 33, 7)[: len(order)]
    x = new_rng().integers(0, 100, shape).astype(numpy_dtype(dtype))
    wanted = x.transpose(order)
    result = TensorType(dtype, wanted.shape)
    for given in (x, np.asfortranarray(x), np.repeat(x, 2, -1)[..., ::2]):
        for count in (1, 3):
            with config.change_flags(**{"openmp.threads": count}):
                (found,) = launched(
                    ReorderKernel(), call_of(Reorder(order), (given,), result), (given,)
                )
            np.testing.assert_array_equal(found, wanted)
