"""Kernels with a grid of two dimensions take any number of columns: blocks go on to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import symdnn.tensor as T
from symdnn.gpu.codegen import launches
from symdnn.gpu.indexing.index import OrderedScatterKernel
from symdnn.gpu.kernels.sparse import SparseProductKernel
from symdnn.ops.sparse.products import SparseDot
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def sparse_product(columns: int) -> tuple[Any, Any, list[Any]]:
    rng = new_rng()
    a = scipy.sparse.random_array((9, 13), density=0.4, format="csr", rng=rng)
    a.sort_indices()
    x = rng.standard_normal((13, columns)).astype("float32")
    places = a.indices.astype("int32"), a.indptr.astype("int32")
    return (
        SparseProductKernel(), SparseDot(minor=13),
        [a.data.astype("float32"), *places, x, np.int64(13)],
    )  # fmt: skip


def ordered_increments(columns: int) -> tuple[Any, Any, list[Any]]:
    rng = new_rng()
    x, y, i = T.fmatrix(), T.fmatrix(), T.lvector()
    op = T.inc_subtensor(x[i], y).owner.op
    # More rows than a segment has, so that both kernels run.
    given = [rng.standard_normal((n, columns)).astype("float32") for n in (5, 80)]
    return OrderedScatterKernel(), op, [*given, rng.integers(-5, 5, 80)]


@pytest.mark.parametrize("case", [sparse_product, ordered_increments])
@pytest.mark.parametrize("columns", [1, 300, 701])
def test_blocks_go_on_to_other_columns(case, columns, monkeypatch):
    kernel, op, given = case(columns)
    call = concrete(op, given)
    (wanted,), _ = emulator.run(kernel, call, given)
    np.testing.assert_allclose(wanted, op.compute(*given)[0], 1e-4, 1e-4)
    for most in (1, 2):
        monkeypatch.setattr(launches, "MOST_BLOCKS_BESIDE", most)
        (found,), env = emulator.run(kernel, call, given)
        np.testing.assert_array_equal(found, wanted)
        assert env.error[0] == 0
