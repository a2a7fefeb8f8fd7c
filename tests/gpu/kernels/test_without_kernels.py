"""Ops that ran on the host once, on a GPU: nothing of them is left there, values are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import DataError, IndexOutOfRange
from symdnn.graph.evaluate import evaluate
from symdnn.graph.target import Target
from symdnn.ops.nn.ctc import CTCLoss
from tests.gpu.kernels.without_kernels import PROGRAMS, Program
from tests.gpu.table import tolerance

by_name = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


def built(program: Program, dtype: str, size: Any) -> tuple[list[Any], list[Any], list[Any]]:
    arrays = program.arrays(size, dtype)
    vs = program.variables(arrays)
    return arrays, vs, listed(program.build(*vs))


@by_name
def test_no_node_is_on_the_host(program):
    """By the graph for a described card, with cuDNN."""
    for dtype in program.dtypes:
        _, vs, outputs = built(program, dtype, program.sizes[0])
        with config.change_flags(assert_lowered="raise"):
            symdnn.function(
                vs, outputs, mode=symdnn.Mode(target="cuda:sm_90"), on_unused_input="ignore"
            )


def assert_near(got: Any, want: Any, program: Program) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    limit = max(2 * tolerance(want.dtype.name), program.rtol, 1e-6)
    size = np.abs(want.astype(wide))
    scale = max(1.0, float(size[np.isfinite(size)].max(initial=0)))
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=limit, atol=limit * scale)


def compare(f: Any, program: Program, arrays: list[Any], wanted: list[Any], name: str) -> None:
    for _ in range(3):  # the second call is captured, the third replayed
        for got, want in zip(f(*arrays), wanted, strict=True):
            try:
                assert_near(got, want, program)
            except AssertionError as error:
                error.add_note(f"{program.name} of {name}")
                raise


@pytest.mark.gpu
@by_name
def test_values_are_those_of_the_reference(cuda, program):
    for dtype in program.dtypes:
        made: dict[Any, Any] = {}
        for size in program.sizes:
            arrays, vs, outputs = built(program, dtype, size)
            kind = tuple(a.ndim for a in arrays)
            if kind not in made:
                with config.change_flags(device="cuda"):
                    made[kind] = symdnn.function(vs, outputs, on_unused_input="ignore")
            with np.errstate(all="ignore"):
                wanted = evaluate(outputs, dict(zip(vs, arrays)))
            compare(made[kind], program, arrays, wanted, f"{dtype}, {size}")


@pytest.mark.gpu
@by_name
def test_operands_may_be_views(cuda, program):
    """Of every second element, backwards."""
    dtype = program.dtypes[-1]
    arrays, vs, outputs = built(program, dtype, program.sizes[0])
    with np.errstate(all="ignore"):
        wanted = evaluate(outputs, dict(zip(vs, arrays)))
    wide = [np.repeat(a[..., ::-1], 2, axis=-1) for a in arrays]
    seen = listed(program.build(*(v[..., ::-2] for v in vs)))
    with config.change_flags(device="cuda"):
        f = symdnn.function(vs, seen, on_unused_input="ignore")
    compare(f, program, wide, wanted, dtype)


@pytest.mark.gpu
def test_what_is_wrong_is_an_error(cuda):
    x, n = T.dvector("x"), T.lvector("n")
    labels, lengths = T.lmatrix("labels"), T.lvector("lengths")
    scores = T.dtensor3("scores")
    with config.change_flags(device="cuda"):
        repeated = symdnn.function([x, n], T.repeat(x, n))
        power = symdnn.function([n], n ** (n - 2))
        loss = symdnn.function([scores, labels, lengths], CTCLoss()(scores, labels, lengths))
    for f, arrays, error in (
        (repeated, ([1.0, 2.0], [2, -1]), DataError),
        (power, ([3, 1],), DataError),
        (loss, (np.zeros((3, 1, 4)), [[1, 0]], [3]), IndexOutOfRange),
        (loss, (np.zeros((3, 1, 4)), [[1, 4]], [3]), IndexOutOfRange),
        (loss, (np.zeros((3, 1, 4)), [[1, 2]], [4]), IndexOutOfRange),
    ):
        with pytest.raises(error):
            f(*arrays)


@pytest.mark.parametrize(
    "program",
    [p for p in PROGRAMS if p.name.startswith(("lrn", "pool", "max_pool", "ctc"))],
    ids=lambda p: p.name,
)
def test_no_node_is_on_the_host_without_cudnn(program):
    target = Target("cuda", compute_capability=(9, 0))
    for dtype in {*program.dtypes, *(["float32"] * ("float64" in program.dtypes))}:
        _, vs, outputs = built(program, dtype, program.sizes[0])
        with config.change_flags(assert_lowered="raise"):
            symdnn.function(vs, outputs, mode=symdnn.Mode(target=target))
