"""Top-k of lines by compiled loops, against the reference."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.nest.line_kernels import TopKKernel
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.sort import TopK
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

KERNEL = TopKKernel()


def agree(x, k, axis, index="int64"):
    """Values and indices are the reference's, with one thread and with two."""
    op = TopK(axis, index, k)
    wanted = op.reference(x, np.int64(k))
    types = [TensorType(w.dtype.name, w.shape) for w in wanted]
    for count in (1, 2):
        with config.change_flags(**{"openmp.threads": count}):
            found = launched(KERNEL, call_of(op, (x, np.int64(k)), *types), (x, np.int64(k)))
        narrow = x.dtype.name == "bfloat16"  # of which NumPy's testing does not know NaN
        pair = [v.astype("float32") if narrow else v for v in (found[0], wanted[0])]
        np.testing.assert_array_equal(*pair)
        np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("k", [1, 5, -5, 40])
@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int8", "uint16", "int64", "uint64", "bool"],
)
def test_values_and_indices(rng, dtype, k):
    x = (rng.normal(size=(7, 300)) * 20).astype(numpy_dtype(dtype))
    if TensorType(dtype).is_float:
        x[0, [7, 150]], x[1, 3], x[2] = np.nan, -np.inf, np.nan
        x[3, ::2], x[3, 1::2] = 0.0, -0.0
    agree(x, k, 1)
    agree(np.asfortranarray(x), k, 1, "int32")
    agree(x.reshape(70, 30)[:, ::-1], k, 0)


def test_lines_in_order_and_all_of_a_line(rng):
    x = np.arange(5000, dtype="float32")
    agree(x, 256, 0)
    agree(x[::-1], 256, 0)
    agree(rng.normal(size=(3, 64, 2)), 64, 1)


def test_what_it_does_not_compute_is_refused_with_the_reason():
    x = np.zeros((2, 1000))
    for op in (TopK(1, "int64", 257), TopK(1)):
        assert "at most 256" in KERNEL.refuses(call_of(op, (x, np.int64(1))))


def test_a_function_runs_it(rng):
    x = T.fmatrix("x")
    mode = symdnn.Mode(target="cpu")
    f = symdnn.function([x], T.topk_and_argtopk(x, 3, axis=1), mode=mode)
    data = rng.normal(size=(40, 400)).astype("float32")
    for _ in range(3):
        values, indices = f(data)
    np.testing.assert_array_equal(indices, np.argsort(-data, axis=1)[:, :3])
    np.testing.assert_array_equal(values, -np.sort(-data, axis=1)[:, :3])
    assert "llvm.nest" in str(f.lowering_report())
