"""Functions whose values are added to parts of zeros are computed there, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.lowered.gathered import FusedPlacedSums, PlacedSums
from symdnn.opt.fuse.fuse import fuse_elementwise
from symdnn.opt.fuse.placed import fuse_placed, totals_of_placed
from symdnn.rewriting.rewrite import Context
from tests import op_table
from tests.gpu.table import assert_close
from tests.seeded import new_rng
from tests.test_op_table import draw, outputs, variables

GPU = Target.parse("cuda:sm_90")
x, y = T.fmatrix("x"), T.fmatrix("y")
EVEN = (((None, None, None), (0, 6, 2)), ((None, None, None), (1, 6, 2)))


def sums(a: Any, b: Any, factors: tuple[float, float] = (1.0, -2.0)) -> Any:
    return PlacedSums((4, 6), EVEN, factors)(a, b, T.constant(4), T.constant(6))


def programs(outputs: list[Any], target: Target = GPU) -> list[list[int]]:
    """The costs of the programs of each node that was made; the values stay."""
    graph = FunctionGraph([x, y], outputs)
    fuse_placed.function(Context(graph, target))
    check_graph(graph)
    rng = new_rng()
    arrays = [rng.standard_normal((4, 3)).astype("float32") for _ in range(2)]
    arrays[0][1, 1] = np.nan
    before = evaluate(outputs, dict(zip([x, y], arrays)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, arrays)))
    for wanted, got in zip(before, after):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    found = [n.op for n in graph.toposort() if isinstance(n.op, FusedPlacedSums)]
    return [[p.cost for p in op.programs] for op in found]


def test_functions_of_parts_join() -> None:
    (costs,) = programs([sums(T.exp(x), y)])
    assert costs[0] > costs[1]  # an exponential, and a factor alone
    (costs,) = programs([sums(x - y, T.sqr(y), (1.0, 1.0))])
    assert len(costs) == 2
    slope = T.sign(x - y)
    (costs,) = programs([sums(slope, slope)])
    assert costs[1] > costs[0]  # by the factor


def test_others_stay() -> None:
    assert programs([sums(x, y)]) == []  # nothing is computed
    shared = T.exp(x)
    assert programs([sums(shared, y), shared]) == []  # a result
    assert programs([sums(shared, y), shared.sum()]) == []  # others read it
    assert programs([sums(T.exp(x), y)], Target("cpu")) == []


def test_expensive_functions_that_repeat_along_a_part_stay() -> None:
    row = T.TensorType("float32", (1, 3))("row")
    for value, joins in ((T.exp(T.tanh(row) + T.log1p(T.exp(row))), False), (2 * row, True)):
        graph = FunctionGraph([x, row], [sums(value, x)])
        context = Context(graph, GPU, capabilities=all_capabilities())
        fuse_elementwise.function(context)
        fuse_placed.function(context)
        assert any(isinstance(n.op, FusedPlacedSums) for n in graph.toposort()) == joins


def test_functions_of_many_operands_are_computed_once() -> None:
    much = T.switch(T.lt(x, y), x, T.sqr(y))
    many = T.switch(T.isnan(x), y, x)
    for value in (much, many):
        (made,) = [value.owner]
        assert len(made.inputs) == 3
        assert programs([sums(value, value)]) == []
        assert len(programs([sums(value, y)])) == 1


def totals(cost: Any, wrt: Any, inputs: list[Any]) -> int:
    """How many totals the gradient's kernel has."""
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function(inputs, [cost, symdnn.grad(cost, wrt)], mode=mode)
    found = [n.op for n in f.fgraph.toposort() if isinstance(n.op, FusedPlacedSums)]
    return sum(len(op.totals) for op in found)


def test_losses_are_added_up_where_their_gradient_is() -> None:
    """Sums of floats over a whole part, of what it reads."""
    across, down = x[:, 1:] - x[:, :-1], x[1:] - x[:-1]
    assert totals(T.abs(across).sum(), x, [x]) == 1
    assert totals(T.abs(across).mean() + T.abs(down).mean(), x, [x]) == 2
    root = T.sqrt(T.sqr(across).sum())  # the gradient needs it first
    assert totals(root, x, [x]) == 0
    assert totals(T.abs(across).sum(0).max() + T.abs(down).sum(), x, [x]) == 1
    assert totals(T.abs(across).max() + T.abs(down).sum(), x, [x]) == 1


def test_one_of_several_kernels_adds_up_a_loss() -> None:
    """All of them read what it is a sum of."""
    graph = FunctionGraph([x, y], [sums(T.exp(x), y), sums(T.cosh(x), y), T.sum(x)])
    for rule in (fuse_placed, totals_of_placed):
        rule.function(Context(graph, GPU))
    check_graph(graph)
    found = [n.op for n in graph.toposort()]
    assert all(isinstance(op, FusedPlacedSums) for op in found)
    assert sorted(len(op.totals) for op in found) == [0, 1]


@pytest.mark.parametrize("step", [2, -2, -3])
def test_increments_of_zeros_on_a_gpu(step: int | None) -> None:
    """They are one kernel for any steps."""
    into = T.inc_subtensor(T.zeros_like(x)[:, ::step], T.exp(x)[:, ::step])
    f = symdnn.function([x], into, mode=symdnn.Mode(target="cuda:sm_90"))
    ops = [n.op for n in f.fgraph.toposort()]
    assert not any(isinstance(op, IncSubtensor) for op in ops)
    assert any(isinstance(op, FusedPlacedSums | PlacedSums) for op in ops)


def increments(out: Any) -> list[Any]:
    """Increments that stay in a function of a GPU."""
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x, y], out, mode=mode, on_unused_input="ignore")
    return [n for n in f.fgraph.toposort() if isinstance(n.op, IncSubtensor)]


def added(base: Any, *parts: Any, like: Any = x) -> Any:
    for part in parts:
        base = T.inc_subtensor(base[part], T.exp(like)[part])
    return base


def test_increments_of_a_computed_array_are_one_kernel() -> None:
    """Where as many elements are added as it has, about."""
    assert not increments(added(2 * x, np.s_[:, 1:], np.s_[:, :-1]))
    assert not increments(added(T.dot(x, y), np.s_[:, ::2], np.s_[:, 1::2]))
    fixed = TensorType("float32", (6, 8))("fixed")
    halves = added(2 * fixed, np.s_[:, :4], np.s_[:, 4:], like=fixed)
    mode = symdnn.Mode(target="cuda:sm_90")
    ops = [n.op for n in symdnn.function([fixed], halves, mode=mode).fgraph.toposort()]
    assert any(isinstance(op, FusedPlacedSums | PlacedSums) for op in ops)


def test_few_increments_of_an_array_are_where_it_lies() -> None:
    assert increments(added(2 * x, np.s_[:, ::2]))
    assert increments(added(2 * x, np.s_[:, :4], np.s_[:, :5]))  # of a size that a call knows
    s = symdnn.shared(np.zeros((6, 8), "float32"))
    new = added(s, np.s_[:, 1:], np.s_[:, :-1], like=s)
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([], [], updates=[(s, new)], mode=mode)
    assert sum(isinstance(n.op, IncSubtensor) for n in f.fgraph.toposort()) == 2
    assert not increments(added(x, np.s_[:, 1:], np.s_[:, :-1]))


@pytest.mark.parametrize("rows", [6, None])
def test_elements_that_are_known_to_be_there(rows: int | None) -> None:
    """As those of ``gradient``; a number out of range is an error of its call."""
    v = TensorType("float64", (rows, 3))("v")
    out = v.zeros_like()
    for k in (0, -1, 5, -6):
        out = T.inc_subtensor(out[k], T.exp(v[k]))
    f = symdnn.function([v], out, mode=symdnn.Mode(target="cuda:sm_90"))
    stay = [n for n in f.fgraph.toposort() if isinstance(n.op, IncSubtensor)]
    assert len(stay) == (4 if rows is None else 0)
    data = new_rng().standard_normal((6, 3))
    wanted = np.zeros((6, 3))
    for k in (0, -1, 5, -6):
        wanted[k] += np.exp(data[k])
    (got,) = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, [data])))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


#: Ops that are computed for each element, and some that are not.
FAMILIES = ("activations", "arithmetic", "comparison", "complexes", "math", "rounding", "special")


def of_elements() -> list[Any]:
    """Records of the op table, each with a value that may be computed for each element."""
    return [case for name in FAMILIES for case in op_table.families()[name]]


def placed_once(value: Any, shape: Any) -> Any:
    """The value, added to all but one row of zeros."""
    n, *rest = shape
    part = ((1, None, None), *[(None, None, None)] * len(rest))
    return PlacedSums((n + 1, *rest), (part,), (1.0,))(value, *map(T.constant, (n + 1, *rest)))


def test_every_elementwise_op_joins() -> None:
    joined = set[type]()
    for case in of_elements():
        arrays = draw(case)
        vs = variables(case, arrays)
        for value in outputs(case, vs):
            given = dict(zip(vs, arrays))
            (array,) = evaluate([value], given)
            if value.type.is_complex or value.type.dtype == "bool" or not value.type.ndim:
                continue
            sums = placed_once(value, array.shape)
            graph = FunctionGraph(list(vs), [sums])
            fuse_placed.function(Context(graph, GPU))
            check_graph(graph)
            if isinstance(graph.outputs[0].owner.op, FusedPlacedSums):
                joined.add(type(value.owner.op))
                (got,) = evaluate(graph.outputs, dict(zip(graph.inputs, arrays)))
                assert_close(got, evaluate([sums], given)[0])
    assert len(joined) > 60
