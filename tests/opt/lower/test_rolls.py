"""Rolls: one gather for several axes, and when they stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.gpu import registry
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.join import Roll
from tests.opt.lowering import CPU, assert_same_values, rewritten
from tests.seeded import new_rng

registry.load()
CASES: dict[str, tuple[tuple[int, ...], Any]] = {
    "two axes": ((3, 5, 6, 2), lambda x: T.roll(x, (-2, 3), (1, 2))),
    "one of them twice": ((5, 4, 2), lambda x: T.roll(T.roll(x, (2, 7), (0, 1)), -3, 0)),
    "three axes": ((3, 5, 6, 2), lambda x: T.roll(x, (1, 2, -1), (0, 1, 2))),
    "no elements": ((0, 3, 2), lambda x: T.roll(x, (1, 1), (0, 1))),
}


def counts(fgraph: Any) -> list[int]:
    nodes = fgraph.toposort()
    return [sum(isinstance(n.op, kind) for n in nodes) for kind in (AdvancedSubtensor, Roll)]


@pytest.mark.parametrize("case", CASES)
def test_one_gather(case):
    shape, build = CASES[case]
    x, value = TensorType("float64", shape)("x"), new_rng().standard_normal(shape)
    y = build(x)
    fgraph = rewritten([x], [y])
    assert counts(fgraph) == [1, 0]
    assert_same_values(fgraph, [x], [y], [value])
    dx = grad((T.exp(y) * y).sum(), x)
    both = rewritten([x], [y, dx])
    assert counts(both) == [2, 0]
    assert not any(isinstance(n.op, AdvancedIncSubtensor) for n in both.toposort())
    assert_same_values(both, [x], [y, dx], [value])


LEFT: dict[str, Any] = {
    "the last axis": lambda x: T.roll(x, 1, 2), "axes apart": lambda x: T.roll(x, (1, 1), (0, 2)),
    "one axis": lambda x: T.roll(x, 7, 0),
    "an unknown shift": lambda x: T.roll(T.roll(x, 1, 0), T.iscalar("n"), 1),
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT)
def test_left_alone(why):
    x = TensorType("float64", (3, 4, 5))("x")
    y = LEFT[why](x)
    given = [v for v in y.owner.inputs[1:] if v.owner is None and v.name]
    given += [v.owner.inputs[0] for v in y.owner.inputs[1:] if v.owner and v.owner.inputs[0].name]
    assert counts(rewritten([x, *given], [y]))[0] == 0


def test_unknown_sizes_keep_rolls():
    x = TensorType("float64", (None, 4, 2))("x")
    for target in ({}, {"target": CPU}):
        assert counts(rewritten([x], [T.roll(x, (1, 1), (0, 1))], **target)) == [0, 2]


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int8"])
@pytest.mark.parametrize(
    ("shape", "shifts", "axes", "one"),
    [
        ((3, 4, 64), (1, 1), (0, 1), True), ((3, 4, 2), (1, 1), (0, 1), False),
        ((5, 64), (2, -4), (0, 1), True),
        ((5, 64), (2, 4 + 64), (0, 1), True), ((3, 5, 70), (-1, 2, 0), (0, 1, 2), True),
        ((5, 64), (2, 5), (0, 1), False), ((5, 63), (2, 1), (0, 1), False),
        ((5, 7, 64), (2, 1), (0, 2), False), ((5, 64), (1,), (1,), False),
    ],
)  # fmt: skip
def test_a_cpu_gathers_where_lines_have_a_long_part(shape, shifts, axes, one, dtype):
    x, value = TensorType(dtype, shape)("x"), (9 * new_rng().standard_normal(shape)).astype(dtype)
    y = T.roll(x, shifts, axes)
    fgraph = rewritten([x], [y], target=CPU)
    assert counts(fgraph) == ([1, 0] if one else [0, len(axes)])
    assert_same_values(fgraph, [x], [y], [value])


def test_a_roll_that_is_read_itself_stays_apart():
    x, value = TensorType("float64", (3, 4, 2))("x"), np.arange(24.0).reshape(3, 4, 2)
    y = T.roll(x, 1, 0)
    outputs = [y, T.roll(y, 2, 1)]
    fgraph = rewritten([x], outputs)
    assert counts(fgraph) == [0, 2]
    assert_same_values(fgraph, [x], outputs, [value])
