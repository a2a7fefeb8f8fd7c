"""Fusion: which nodes are fused and which are not, and that values, lines and order stay right."""

from __future__ import annotations

import cProfile
import pickle
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.execute.targets import load_kernels
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.config import config
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import Hints
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply
from symdnn.ops.elementwise.arithmetic import Mul
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce
from symdnn.opt.fuse import fuse, groups
from symdnn.rewriting.rewrite import Context

GPU = Target.parse("cuda:sm_90")


def fused(inputs: list[Any], outputs: list[Any], target: Target = GPU) -> FunctionGraph:
    """The graph after fusion; its values must equal those before."""
    graph = FunctionGraph(inputs, outputs)
    context = Context(graph, target, capabilities=all_capabilities())
    fuse.fuse_elementwise.function(context)
    fuse.fuse_reductions.function(context)
    check_graph(graph)
    rng = np.random.default_rng(1)
    values = [
        np.asarray(rng.standard_normal([n or 4 for n in v.type.shape])).astype(v.type.numpy)
        for v in inputs
    ]
    before = evaluate(outputs, dict(zip(inputs, values)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(before, after):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    return graph


def ops(graph: FunctionGraph) -> list[str]:
    """Names of the ops in order, views and sizes left out."""
    views = {"DimShuffle", "Reshape", "ShapeI", "SpecifyType"}
    names = [type(n.op).__name__ for n in graph.toposort()]
    return [n for n in names if n not in views]


def only(graph: FunctionGraph) -> Any:
    (node,) = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise | FusedReduce)]
    return node


x, y, b = T.matrix("x", dtype="float32"), T.matrix("y", dtype="float32"), T.fvector("b")
row = b.dimshuffle("x", 0)


# -- elementwise ----------------------------------------------------------------------------------


def test_a_chain_is_one_node():
    graph = fused([x, y], [T.exp(x) * y + T.tanh(x)])
    assert ops(graph) == ["FusedElemwise"]
    assert str(only(graph).op) == "FusedElemwise{(exp(a) * b) + tanh(a)}"


def test_broadcast_operands_stay_unbroadcast():
    graph = fused([x, b], [T.nnet.relu(x + row) * row])
    assert ops(graph) == ["FusedElemwise"]
    assert [v.type.broadcastable for v in only(graph).inputs] == [(False, False), (True, False)]


def test_casts_and_constants_are_inside():
    graph = fused([x], [(x * 2 + 1).astype("float16").astype("float32") * 0.5])
    node = only(graph)
    assert ops(graph) == ["FusedElemwise"]
    assert len(node.inputs) == 1
    assert "float16" in str(node.op)  # it still rounds


def half(v: Any) -> Any:
    return v.astype("bfloat16")


def test_what_is_widened_is_not_stored():
    """A widening of 16 bits is done by each kernel that reads it, not stored for the next."""
    h = half(T.exp(x)).astype("float32")
    graph = fused([x, y], [half(T.tanh(h)), T.dot(half(T.tanh(h)), half(y)), half(h * 2), T.sqr(h)])
    widths = [(v.type.dtype, n.op) for n in graph.toposort() for v in n.outputs
              if isinstance(n.op, FusedElemwise) and v.type.dtype == "float32"]  # fmt: skip
    assert len(widths) == 1  # the square
    z = T.tensor3("z", dtype="bfloat16")
    wide = z.astype("float32")
    graph = fused([z], [half(T.nnet.relu(wide)), T.cumsum(half(wide * 3), axis=0) * half(wide + 1)])
    kernels = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert {v.type.dtype for n in kernels for v in (*n.inputs, *n.outputs)} == {"bfloat16"}


def test_a_widened_value_that_another_op_reads_is_stored():
    h = half(x).astype("float32")
    graph = fused([x], [T.cumsum(h, axis=0), T.exp(h)])
    assert [v.type.dtype for v in only(graph).outputs] == ["float32", "float32"]


def test_a_lone_node_widens_what_it_reads():
    z = T.tensor3("z", dtype="float16")
    wide = z.astype("float32")
    graph = fused([z], [T.cumsum(wide, axis=0), T.exp(T.cumsum(wide, axis=0)) * wide])
    assert "Cast" in ops(graph)  # for the sums
    (kernel,) = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert "float16" in {v.type.dtype for v in kernel.inputs}


def test_several_outputs():
    total = x + y
    graph = fused([x, y], [total, T.exp(total), total > 0])
    assert ops(graph) == ["FusedElemwise"]
    assert [v.type.dtype for v in only(graph).outputs] == ["float32", "float32", "bool"]


def test_what_reads_the_same_array_is_computed_together():
    assert ops(fused([x, y], [T.exp(x), T.sqr(x) * y])) == ["FusedElemwise"]


def test_a_lone_node_stays():
    assert ops(fused([x, y], [x + y])) == ["Add"]


def test_arrays_that_nothing_joins_stay_apart():
    graph = fused([x, y], [T.exp(x) + 1, T.exp(y) + 1])
    assert ops(graph) == ["FusedElemwise", "FusedElemwise"]


def test_nodes_of_another_broadcast_pattern_stay_apart():
    small = T.exp(row) * 2
    graph = fused([x, b], [T.tanh(x * small) + x])
    assert ops(graph) == ["FusedElemwise", "FusedElemwise"]


def test_what_a_product_separates_stays_apart():
    a = T.exp(x)
    graph = fused([x, y], [T.tanh(T.dot(a, y)) + a])
    # a feeds the product and the sum: a group of exp and tanh would wait for itself.
    assert ops(graph) == ["Exp", "Dot", "FusedElemwise"]


def test_what_only_a_later_group_reads_is_not_stored():
    gate = (x > 0) & (y > 0)
    graph = fused([x, y], [T.dot(x, y) * gate + 1])
    assert ops(graph) == ["Dot", "FusedElemwise"]


def test_a_mask_that_others_read_too_is_stored():
    gate = x > 0
    graph = fused([x, y], [T.dot(x, y) * gate + 1, gate])
    assert sorted(ops(graph)) == ["Dot", "FusedElemwise"]
    assert [v.type.dtype for v in only(graph).outputs] == ["bool", x.dtype]


def test_ways_through_two_groups_do_not_close_a_circle():
    first = T.exp(x)
    through = T.dot(first, y)
    second = T.tanh(through) * first
    third = T.dot(second, y)
    out = T.sqr(third) + first + second
    assert ops(fused([x, y], [out, first])) == [
        "Exp", "Dot", "FusedElemwise", "Dot", "FusedElemwise",
    ]  # fmt: skip


def test_cheap_scalars_are_computed_with_the_elements():
    rate = symdnn.shared(np.float32(0.5), name="rate")
    graph = fused([x], [x - (rate * 0.1) * x])
    assert ops(graph) == ["FusedElemwise"]
    assert len(only(graph).inputs) == 2


@pytest.mark.parametrize("case", ["costly", "read elsewhere"])
def test_other_scalars_stay(case):
    rate = symdnn.shared(np.float32(0.5), name="rate")
    scalar = T.exp(rate) if case == "costly" else rate * 0.1
    outputs = [x - scalar * x] + ([scalar] if case == "read elsewhere" else [])
    assert ops(fused([x], outputs)) == ["Exp" if case == "costly" else "Mul", "FusedElemwise"]


def test_integers_of_the_host_stay_on_the_host():
    n = T.lscalar("n")
    graph = FunctionGraph([n, x], [x[: (n * 2 + 1)] * 2 + 1])
    fuse.fuse_elementwise.function(Context(graph, GPU))
    assert ops(graph) == ["Mul", "Add", "Subtensor", "FusedElemwise"]


def test_what_has_no_program_stays():
    order = T.dmatrix("order")
    graph = fused([order], [T.gammaincinv(1, order) * order + order])
    assert ops(graph) == ["GammaIncInv", "FusedElemwise"]


def test_a_node_that_asks_for_another_backend_stays():
    far = Mul()(x, y, hints=Hints(backend="reference"))
    assert ops(fused([x, y], [T.exp(far + x)])) == ["Mul", "FusedElemwise"]


@pytest.mark.parametrize("backend", ["nn", "cudnn", "onednn", "cuda"])
def test_hints_that_mean_nothing_for_elementwise_ops_keep_nothing_apart(backend):
    near = Mul()(x, y, hints=Hints(backend=backend, algo_fwd="time_once", workspace_limit=0))
    assert ops(fused([x, y], [T.exp(near + x)])) == ["FusedElemwise"]
    named = Mul()(x, y, hints=Hints(name="scaled"))
    assert ops(fused([x, y], [T.exp(named + x)])) == ["Mul", "FusedElemwise"]


def test_a_cpu_fuses_what_it_can_compile():
    load_kernels(Target("cpu"))
    outputs = [T.exp(x) * y, T.tanh(T.owens_t(x + y, y))]
    assert ops(fused([x, y], outputs, Target("cpu"))) == ["FusedElemwise", "OwensT", "Tanh"]
    with config.change_flags(**{"cpu.compile": "never"}):
        graph = fused([x, y], [T.exp(x) * y], Target("cpu"))
    assert ops(graph) == ["Exp", "Mul"]


def test_sizes_are_not_fused_for_a_cpu():
    load_kernels(Target("cpu"))
    n = T.lscalar("n")
    graph = FunctionGraph([x, n], [T.alloc(x[0, 0], n + n - 1, 2 * n - n)])
    fuse.fuse_elementwise.function(Context(graph, Target("cpu"), capabilities=all_capabilities()))
    assert "FusedElemwise" not in ops(graph)


def test_branches_of_a_lazy_choice_are_not_joined():
    c = T.lscalar("c")
    out = symdnn.ifelse(c, T.exp(x) * y, T.sin(x) + y) + T.sqr(x) * y
    graph = FunctionGraph([c, x, y], [out])
    fuse.fuse_elementwise.function(Context(graph, GPU))
    groups = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert sorted(len(n.op.program.body) for n in groups) == [2, 2, 3]


def test_the_lines_of_all_are_in_the_origin():
    first = x + y
    second = T.exp(first)  # another line
    graph = FunctionGraph([x, y], [second])
    fuse.fuse_elementwise.function(Context(graph, GPU))
    (node,) = graph.toposort()
    assert [name for name, _ in node.origin.parts] == ["Add", "Exp"]
    assert node.origin.text().count(__file__) >= 3
    again = pickle.loads(pickle.dumps(node.origin))
    assert again.text() == node.origin.text()


def test_the_line_of_the_last_node_stays():
    out = T.exp(x) * y
    node = only(fused([x, y], [out]))
    assert node.origin.lines == out.owner.origin.lines


def test_shapes_that_do_not_fit_still_raise():
    graph = fused([x, y], [T.exp(x) * y])
    node = only(graph)
    types = [v.type for v in node.inputs]
    with pytest.raises(symdnn.errors.ShapeMismatch):
        node.op.shapes(types, [(3, 4), (3, 5)], {})


def test_big_groups_are_cut():
    vs = [T.matrix(f"v{i}", dtype="float32") for i in range(60)]
    total = vs[0]
    for v in vs[1:]:
        total = T.tanh(total * v)
    graph = fused(vs, [total])
    found = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert 2 < len(found) < 10
    assert all(len(n.inputs) <= groups.MAX_INPUTS for n in found)
    assert all(len(n.op.program.body) <= groups.MAX_INSTRUCTIONS for n in found)


def test_many_outputs_are_cut():
    graph = fused([x], [T.exp(x * i) for i in range(1, 31)])
    found = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert all(len(n.outputs) <= groups.MAX_OUTPUTS for n in found)
    assert ops(graph).count("FusedElemwise") >= 4


def test_work_grows_with_the_graph():
    def calls(n: int) -> int:
        v = x
        for i in range(n):
            v = T.tanh(v * (1 + i)) + x
        graph = FunctionGraph([x], [v])
        profiler = cProfile.Profile()
        profiler.runcall(fuse.fuse_elementwise.function, Context(graph, GPU))
        return sum(entry.callcount for entry in profiler.getstats())

    assert calls(1600) < 10 * calls(200)


# -- reductions -----------------------------------------------------------------------------------


def test_a_reduction_takes_in_what_it_alone_reads():
    graph = fused([x, y], [T.sqr(x - y).sum(axis=1)])
    assert ops(graph) == ["FusedReduce"]
    assert str(only(graph).op) == "FusedReduce{Sum over (1,) of t2 = a - b; t2 * t2}"


def test_a_broadcast_that_is_summed_again():
    assert ops(fused([x, b], [(x * row).max(axis=1, keepdims=True)])) == ["FusedReduce"]


def test_reductions_of_one_group_meet():
    graph = fused([x, y], [(x * y).sum(axis=0), T.sqr(x).max(axis=0)])
    assert ops(graph) == ["FusedReduce"]
    assert len(only(graph).op.reductions) == 2


def test_reductions_over_other_axes_stay():
    p = T.exp(x) * y
    assert ops(fused([x, y], [p.sum(axis=0), p.sum(axis=1)])) == ["FusedElemwise", "Sum", "Sum"]


def test_an_array_that_others_read_is_stored():
    p = T.exp(x)
    assert ops(fused([x], [p.sum(axis=1), p])) == ["Exp", "Sum"]
    assert ops(fused([x, y], [T.dot(p, y), p.sum()])) == ["Exp", "Dot", "Sum"]


def test_positions_of_extremes_take_in_their_operand():
    p = T.exp(x)
    assert ops(fused([x], [T.argmax(p, axis=1)])) == ["FusedReduce"]
    assert ops(fused([x], [T.argmax(p, axis=1), T.max(p, axis=1)])) == ["FusedReduce"]


def test_reductions_of_cudnn_take_in_their_operand():
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x, y], T.exp(x * y).sum(axis=0), mode=mode)
    names = [type(n.op).__name__ for n in f.stages.fgraph.toposort()]
    assert "FusedReduce" in names
    plain = symdnn.function([x], x.sum(axis=0), mode=mode)
    names = [type(n.op).__name__ for n in plain.stages.fgraph.toposort()]
    assert "GpuDnnReduction" in names


# -- the whole way --------------------------------------------------------------------------------


def test_an_update_with_momentum_is_one_kernel():
    w, v = (symdnn.shared(np.zeros((4, 4), np.float32)) for _ in range(2))
    grad = T.dot(x.T, x)
    step = np.float32(0.9) * v - np.float32(0.1) * grad
    mode = symdnn.Mode(target="cuda:sm_90").excluding("epilogue")
    f = symdnn.function([x], [], updates=[(v, step), (w, w + step)], mode=mode)
    found = [n for n in f.stages.fgraph.toposort() if isinstance(n.op, FusedElemwise)]
    assert len(found) == 1
    assert len(found[0].outputs) == 2


@pytest.mark.parametrize("tag", ["fusion", "fuse_elementwise"])
def test_fusion_can_be_switched_off(tag):
    mode = symdnn.Mode(target="cuda:sm_90").excluding(tag)
    f = symdnn.function([x, y], T.exp(x) * y + 1, mode=mode)
    assert not [n for n in f.stages.fgraph.toposort() if isinstance(n.op, FusedElemwise)]


def narrow_gradient(axes: list[Any]) -> tuple[list[Any], list[Any]]:
    """Values stored in 16 bits, and their sums in float32."""
    a, b = (T.tensor4(n, dtype="float16") for n in "ab")
    g = (a.astype("float32") * b.astype("float32")).astype("float16")
    return [a, b], [g, *(g.astype("float32").sum(axis=x) for x in axes)]


def test_a_reduction_widens_what_is_stored_narrow():
    graph = fused(*narrow_gradient([(0, 2, 3)]))
    assert ops(graph) == ["FusedElemwise", "FusedReduce"]
    assert [v.type.dtype for v in graph.outputs] == ["float16", "float32"]
    (reduce,) = [n for n in graph.toposort() if isinstance(n.op, FusedReduce)]
    assert list(reduce.inputs) == [graph.outputs[0]]


def test_two_reductions_over_the_same_axes_widen_it_together():
    inputs, (g, _) = narrow_gradient([1])
    wide = g.astype("float32")
    graph = fused(inputs, [g, wide.sum(axis=1), wide.max(axis=1)])
    assert ops(graph) == ["FusedElemwise", "FusedReduce"]


def test_reductions_over_other_axes_widen_it_each():
    graph = fused(*narrow_gradient([(0, 2, 3), (1,)]))
    assert ops(graph) == ["FusedElemwise", "FusedReduce", "FusedReduce"]
    (made,) = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert [v.type.dtype for v in made.outputs] == ["float16"]


def test_a_wide_result_is_stored_though_a_reduction_reads_it():
    inputs, (g, total) = narrow_gradient([(0, 1)])
    graph = fused(inputs, [g, total, g.astype("float32") + 0])
    assert [v.type.dtype for v in graph.outputs] == ["float16", "float32", "float32"]


def test_sums_read_narrow_operands_rather_than_a_wide_product():
    """A gradient in 16 bits is scaled, and summed over positions for the gradient of the scale."""
    dy, h = (TensorType("bfloat16", (None, None, None, 8))(n) for n in ("dy", "h"))
    gate = TensorType("float32", (None, 1, 1, 8))("gate")
    wide = dy.astype("float32")
    outputs = [(wide * gate).astype("bfloat16"), (wide * h.astype("float32")).sum(axis=(1, 2))]
    graph = fused([dy, h, gate], outputs)
    assert sorted(ops(graph)) == ["FusedElemwise", "FusedReduce"]
    (made,) = (n for n in graph.toposort() if isinstance(n.op, FusedElemwise))
    (total,) = (n for n in graph.toposort() if isinstance(n.op, FusedReduce))
    assert [v.type.dtype for v in made.outputs] == ["bfloat16"]
    assert set(total.inputs) == set(graph.inputs[:2])


def test_sums_of_what_costs_more_to_read_again_read_it_once():
    """A product of three float32 arrays is written and read with fewer bytes than it is read."""
    a, b, c = (TensorType("float32", (None, None, 8))(n) for n in "abc")
    product = a * b * c
    graph = fused([a, b, c], [a * 2 + b * c, product.sum(axis=1)])
    made = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert [len(n.outputs) for n in made] == [2]


def test_groups_beside_the_uses_of_one_are_not_tried(monkeypatch):
    """All steps read one array; the next step reads the result of each."""
    tried: list[int] = []
    may_join = groups.Groups._may_join

    def counted(self: groups.Groups, group: list[Apply], later: list[Apply]) -> bool:
        tried.append(1)
        return may_join(self, group, later)

    monkeypatch.setattr(groups.Groups, "_may_join", counted)
    counts = []
    for steps in (10, 40):
        x, w = T.matrix("x"), T.matrix("w")
        h = x
        for _ in range(steps):
            h = T.tanh(T.dot(h, w) + x)
        tried.clear()
        symdnn.function([x, w], symdnn.grad(h.sum(), w))
        counts.append(len(tried))
    assert counts[1] <= 4 * counts[0] + 4, counts
