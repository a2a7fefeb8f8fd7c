"""On a GPU gathers and rolls are operands of loops, and scatters take in what they add."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import IndexOutOfRange
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.opt.fuse.gathers import fuse_additions, fuse_gathers, fuse_scatters
from symdnn.rewriting.rewrite import Context
from tests.seeded import new_rng

GPU = Target.parse("cuda:sm_90")
x, h = T.fmatrix("x"), T.fmatrix("h")
i, j, n = T.lvector("i"), T.lvector("j"), T.lscalar("n")
INPUTS = [x, h, i, j, n]
#: Ops of which none should be left where everything joins.
APART = ("AdvancedSubtensor", "AdvancedIncSubtensor")


def fused(outputs: list[Any], target: Target = GPU) -> tuple[int, int]:
    """How many nodes were made, and how many gathers and scatters are left; the values stay."""
    graph = FunctionGraph(INPUTS, outputs)
    for rule in (fuse_scatters, fuse_additions, fuse_gathers):
        rule.function(Context(graph, target))
        check_graph(graph)
    rng = new_rng()
    arrays = [rng.standard_normal(s).astype("float32") for s in ((5, 4), (7, 4))]
    given = [*arrays, rng.integers(-5, 5, 9), rng.integers(-7, 7, 9), np.array(2)]
    before = evaluate(outputs, dict(zip(INPUTS, given)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, given)))
    for wanted, got in zip(before, after):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    names = [type(node.op).__name__ for node in graph.toposort()]
    return names.count("FusedIndexed"), sum(name in APART for name in names)


def added(value: Any) -> Any:
    return T.inc_subtensor(x[i], value)


@pytest.mark.parametrize(
    ("outputs", "count"),
    [
        (lambda: [added(h[j])], 1),
        (lambda: [T.inc_subtensor(T.zeros_like(x)[i], h[j]) * 2], 1),
        (lambda: [T.inc_subtensor(x[i, 1:], h[j, :3])], 1),
        (lambda: [T.inc_subtensor(x[i, j % 4], h[j, i % 4])], 1),
        (lambda: [added(T.exp(h[j]))], 1),
        (lambda: [added(h[j] * 2)], 1),
        (lambda: [T.exp(h[j])], 1),
        (lambda: [h[j].sum(1)], 1),
        (lambda: [h[j].max(0), x[i].sum()], 2),
        (lambda: [added(h[j]), h[j].sum()], 2),  # rows are long enough for both to gather
        (lambda: [x[i] * h[j], T.sqr(h[j]).sum(1)], 2),
        (lambda: [T.exp(h[j].dimshuffle(0, "x", 1))], 1),
        (lambda: [h[j, i % 4] + 1], 1),
        (lambda: [(h[j].astype("bfloat16") * 2).astype("float32")], 1),
    ],
)
def test_all_joins(outputs: Any, count: int) -> None:
    """Without the rules of elementwise groups: each of the nodes has one op."""
    made, left = fused(outputs())
    assert made >= count
    assert not left


@pytest.mark.parametrize(
    ("outputs", "left"),
    [
        (lambda: [added(h[j]), h[j]], 2),  # it is a result
        (lambda: [T.set_subtensor(x[i], h[j])], 2),  # the last one stays
        (lambda: [T.inc_subtensor(x[i], x[i])], 2),  # of the array itself
        (lambda: [T.inc_subtensor(x[i, n:], h[j, 2:])], 2),  # bounds that the host reads
        (lambda: [T.dot(h[j], x.T)], 1),
        (lambda: [T.exp(h[j, 0]), h[j, 0] * 2], 1),  # numbers that are read twice
        (lambda: [h[j].dimshuffle(0, "x", 1) * x], 1),  # it repeats
        (lambda: [T.exp(h[j].T) + 0], 1),  # it is turned
        (
            lambda: [
                T.inc_subtensor(x.astype("bfloat16")[i], h.astype("bfloat16")[j]).astype("float32")
            ],
            2,
        ),
    ],
)
def test_others_stay(outputs: Any, left: int) -> None:
    assert fused(outputs()) == (0, left)


@pytest.mark.parametrize(
    "outputs",
    [
        lambda: [T.exp(h[j][:, i % 4])],
        lambda: [T.exp(h[:, i % 4][j]).sum(1)],
        lambda: [T.exp(h[j][i % 9]) + h[i % 7]],
        lambda: [T.exp(T.roll(T.specify_shape(h, (7, 4)), 2, 0)[j])],
        lambda: [added(T.roll(T.specify_shape(h, (7, 4)), 2, 1)[j])],
    ],
)
def test_what_is_selected_twice_is_stored_once(outputs: Any) -> None:
    """A loop selects of an array; the first selection makes that."""
    made, left = fused(outputs())
    assert made >= 1
    assert left <= 1


def both(first: Any, then: Any) -> Any:
    return T.inc_subtensor(T.inc_subtensor(x[i], first)[j % 5], then)


@pytest.mark.parametrize(
    ("outputs", "made"),
    [
        (lambda: [both(h[j], h[j])], 1),
        (lambda: [both(h[j] * 2, T.exp(h[j]))], 1),
        (lambda: [both(h[j] * h[i % 7], -h[j])], 1),
        (lambda: [T.inc_subtensor(both(h[j], h[j] * 2)[i], h[j] - 1)], 1),
        (lambda: [T.inc_subtensor(both(h[j], h[j] * 2)[i, 1:], h[j, :3])], 2),  # of another shape
        (lambda: [both(h[j], h[i % 7])], 2),  # they read nothing together
        (lambda: [both(h[j] + 1, h[j] * T.inc_subtensor(x[i], h[j] + 1)[0])], 2),  # it is read
        (lambda: [both(h[j], h[j]), T.inc_subtensor(x[i], h[j])], 2),  # the first is a result
    ],
)
def test_additions_that_read_the_same_are_one_loop(outputs: Any, made: int) -> None:
    assert fused(outputs())[0] == made


def _repeated(pattern: Any, sizes: Any, shape: Any) -> Any:
    """Elements of ``h`` with new axes, along which they are the same, in a shape without these."""
    known = T.specify_shape(h, (7, 4))
    return T.alloc(known.dimshuffle(*pattern), *sizes).reshape(shape)


@pytest.mark.parametrize(
    ("pattern", "sizes", "shape", "made"),
    [
        ((0, "x", 1), (7, 3, 4), (21, 4), 1),
        (("x", 0, 1), (2, 7, 4), (14, 4), 1),
        ((0, "x", 1, "x"), (7, 2, 4, 3), (14, 12), 1),
        ((0, 1, "x"), (7, 4, 5), (7, 20), 1),
        ((0, "x", 1), (7, 3, 4), (7, 12), 1),
        ((0, "x", "x", 1), (7, 3, 2, 4), (42, 4), 1),
        ((0, "x", 1, "x"), (7, 2, 4, 3), (2, 84), 0),  # no axes of the first are together
        ((0, "x", 1), (7, 1, 4), (7, 4), 0),  # nothing is repeated
    ],
)
def test_repeated_elements_are_read_where_they_are_used(
    pattern: Any, sizes: Any, shape: Any, made: int
) -> None:
    """As the gradient of means of blocks is spread: no array of all of it is stored."""
    assert fused([T.exp(_repeated(pattern, sizes, shape))])[0] == made


def _sampled(image: Any, r: Any, c: Any) -> Any:
    """Of an image at fractional places, by its four neighbours."""
    y, z = T.floor(r), T.floor(c)
    found: Any = 0.0
    for a, wy in ((y, 1 - r + y), (y + 1, r - y)):
        for b, wz in ((z, 1 - c + z), (z + 1, c - z)):
            at = T.clip(a, 0, 7).astype("int32"), T.clip(b, 0, 7).astype("int32")
            found = found + image[at] * (wy * wz)[:, None]
    return found


def test_the_gradient_of_samples_is_one_kernel_for_the_image_and_one_for_the_places() -> None:
    """What is computed for all corners is stored for none."""
    image = TensorType("float32", (8, 8, 16))("image")
    r, c, w = (TensorType("float32", s)(n) for s, n in (((50,), "r"), ((50,), "c"), ((16, 9), "w")))
    cost = T.sqr(T.dot(_sampled(image, r, c), w)).mean()
    outputs = [cost, *T.grad(cost, [image, r, c])]
    f = symdnn.function([image, r, c, w], outputs, mode=symdnn.Mode(target="cuda:sm_90"))
    ops: list[Any] = [node.op for node in f.fgraph.toposort()]
    loops = [op for op in ops if type(op).__name__ == "FusedIndexed"]
    assert sorted((len(op.adds), len(op.reductions)) for op in loops) == [(0, 0), (0, 4), (4, 0)]
    assert not any(type(op).__name__ in APART for op in ops)


def test_levels_of_a_grid_of_hashes_are_one_scatter_each() -> None:
    """Eight corners for each; what is added to a level is a term of the gradient of all levels."""
    tables, r = TensorType("float32", (3, 64, 2))("tables"), TensorType("float32", (40, 3))("r")
    found = []
    for level, size in enumerate((3, 5, 8)):
        low = T.floor(r * size)
        part, at, total = r * size - low, low.astype("int64"), 0.0
        for corner in range(8):
            bits = [corner >> k & 1 for k in range(3)]
            place = sum((at[:, k] + b) * (1, 17, 31)[k] for k, b in enumerate(bits)) % 64
            factors = [part[:, k] if b else 1 - part[:, k] for k, b in enumerate(bits)]
            total = total + tables[level][place] * (factors[0] * factors[1] * factors[2])[:, None]
        found.append(total)
    cost = T.sqr(T.concatenate(found, 1)).sum()
    f = symdnn.function(
        [tables, r], [cost, T.grad(cost, tables)], mode=symdnn.Mode(target="cuda:sm_90")
    )
    adds = [len(n.op.adds) for n in f.fgraph.toposort() if hasattr(n.op, "adds") and n.op.adds]
    assert adds == [8, 8, 8]


def test_a_processor_and_sums_in_a_fixed_order_have_all() -> None:
    assert fused([added(h[j])], Target("cpu")) == (0, 2)
    with config.change_flags(deterministic="more"):
        assert fused([added(h[j])]) == (0, 2)
        assert fused([h[j].sum(1)]) == (1, 0)


def test_updates_of_variables_are_written_in_their_memory() -> None:
    """By checked indices, and an elementwise kernel, which cannot fail."""
    table = symdnn.shared(np.ones((5, 4), "float32"), shape=(5, 4))
    for new in (T.inc_subtensor(table[i], h[j]), table[T.arange(5)] * 2):
        f = symdnn.function(
            [h, i, j], [], updates=[(table, new)], mode=symdnn.Mode(target="cuda:sm_90"),
            on_unused_input="ignore",
        )  # fmt: skip
        ops = [node.op for node in f.fgraph.toposort()]
        assert all(type(op).__name__ != "FusedIndexed" or op.never_fails for op in ops)


def _compiled(outputs: Any, inputs: Any) -> list[str]:
    f = symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cuda:sm_90"))
    return [type(node.op).__name__ for node in f.fgraph.toposort()]


def test_messages_and_their_gradient_are_one_node_each() -> None:
    sent = T.inc_subtensor(T.zeros_like(h)[i], T.tanh(h)[j])
    cost = T.sqr(sent).sum()
    names = _compiled(T.grad(cost, h), [h, i, j])
    assert names.count("FusedIndexed") == 2
    assert not any(name.startswith("Advanced") for name in names)


def test_bags_and_their_gradient_store_no_rows() -> None:
    table, bags, weights = (
        TensorType(d, s)(k)
        for d, s, k in (
            ("float32", (50, 16), "t"), ("int64", (9, 5), "b"), ("float32", (9, 5), "w"),
        )
    )  # fmt: skip
    mean = (table[bags] * weights[:, :, None]).sum(1) / weights.sum(1)[:, None]
    names = _compiled([mean, T.grad(T.sqr(mean).sum(), table)], [table, bags, weights])
    assert names.count("FusedIndexed") == 2
    assert not any(name.startswith("Advanced") for name in names)


def _laplacian(v: Any) -> Any:
    return sum(T.roll(v, k, a) for a in (0, 1) for k in (1, -1)) - 4 * v


@pytest.mark.parametrize(
    ("build", "rolls"),
    [
        (lambda v: [v + 0.1 * _laplacian(v)], 0),
        (lambda v: [T.roll(v, (2, -3), (0, 1)) * v], 0),  # one gather of both
        (lambda v: [T.exp(T.roll(v, 3, 1)).sum(1), T.roll(v, 7, 0).max()], 0),
        (lambda v: [T.roll(v, 3, 1) * 2, T.sqr(T.roll(v, 3, 1)).sum(0)], 0),  # neighbours
        (lambda v: [T.grad(T.sqr(_laplacian(v)).sum(), v)], 0),
        (lambda v: [T.roll(v, 0, 1)], 0),
        (lambda v: [T.roll(v, 3, 1)], 1),  # it is a result
        (lambda v: [T.dot(T.roll(v, 3, 1), v.T)], 1),
        (lambda v: [T.exp(T.roll(v, n, 1))], 1),  # an unknown shift
    ],
)
def test_rolls_are_read_where_they_are_used(build: Any, rolls: int) -> None:
    v = TensorType("float32", (8, 12))("v")
    outputs, own = build(v), [v, n]
    gpu = symdnn.function(
        own, outputs, on_unused_input="ignore", mode=symdnn.Mode(target="cuda:sm_90")
    )
    names = [type(node.op).__name__ for node in gpu.fgraph.toposort()]
    assert names.count("Roll") == rolls
    given = dict(zip(own, (new_rng().standard_normal((8, 12)).astype("float32"), np.array(5))))
    wanted = evaluate(outputs, given)
    found = symdnn.function(own, outputs, on_unused_input="ignore")(*given.values())
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-5, atol=1e-4)


def test_a_state_is_updated_by_its_neighbours() -> None:
    """The kernel reads rolls of the variable, so it does not write in its memory."""
    start = new_rng().standard_normal((8, 12)).astype("float32")
    state = symdnn.shared(start, shape=(8, 12))
    f = symdnn.function([], T.sum(state), updates=[(state, state + 0.1 * _laplacian(state))])
    wanted = start
    for _ in range(3):
        np.testing.assert_allclose(np.asarray(f()), wanted.sum(), rtol=1e-4, atol=1e-4)
        around = sum(np.roll(wanted, k, a) for a in (0, 1) for k in (1, -1)) - 4 * wanted
        wanted = wanted + np.float32(0.1) * around
        np.testing.assert_allclose(state.get_value(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", ["distances", "products", "penalty"])
def test_losses_of_embeddings_store_no_rows(loss: str) -> None:
    """The gradient of what is gathered twice is added by one kernel if it is the same for both."""
    table = TensorType("float32", (50, 16))("t")
    a, b = table[i], table[j]
    cost = T.sqr(a - b).mean() if loss == "distances" else T.nnet.softplus((a * b).sum(1)).mean()
    cost = cost + 0.1 * T.sqr(a).mean() if loss == "penalty" else cost
    f = symdnn.function(
        [table, i, j], [cost, T.grad(cost, table)], mode=symdnn.Mode(target="cuda:sm_90")
    )
    nodes = f.fgraph.toposort()
    names = [type(node.op).__name__ for node in nodes]
    assert names.count("FusedIndexed") == (3 if loss == "products" else 2)
    assert not any(name in APART for name in names)
    edges = [v for node in nodes for v in node.outputs if v.type.ndim == 2]
    assert all(v.type.shape == (50, 16) or any(v.type.broadcastable) for v in edges)


def test_attention_of_edges_stores_no_rows() -> None:
    h = TensorType("float32", (100, 32))("h")
    s = h.sum(1)
    e = T.exp(s[i] + s[j])
    part = e / T.inc_subtensor(T.zeros((100,), "float32")[i], e)[i]
    out = T.inc_subtensor(T.zeros((100, 32), "float32")[i], part[:, None] * h[j])
    f = symdnn.function(
        [h, i, j], T.grad(T.sqr(out).sum(), h), mode=symdnn.Mode(target="cuda:sm_90")
    )
    for node in f.fgraph.toposort():
        if type(node.op).__name__ in APART:
            assert node.outputs[0].type.ndim == 1, node


# -- values, on whatever device the tests run -----------------------------------------------------


def test_random_programs() -> None:
    """All dtypes of values and indices, ranks, sizes of 0 and 1; against a processor."""
    rng = new_rng()
    for _ in range(60):
        _random_program(rng)


_FLOATS, _OTHERS = ("float32", "float64", "float16", "bfloat16"), ("int8", "bool", "int32")
_INDICES = ("int8", "int16", "int32", "int64", "uint8")


def _random_program(rng: Any) -> None:
    dtype = str(rng.choice([*_FLOATS, *_OTHERS]))
    rows, length = int(rng.integers(1, 9)), tuple(rng.choice([1, 3, 4, 8], int(rng.integers(0, 3))))
    picked = tuple(rng.choice([0, 1, 2, 7], int(rng.integers(1, 3)), p=[0.1, 0.2, 0.3, 0.4]))
    index = str(rng.choice(_INDICES))
    table, k = T.TensorType(dtype, (rows, *length))("t"), T.TensorType(index, picked)("k")
    other = T.TensorType("float32", (*picked, *length))("o")
    low = 0 if index.startswith("u") else -rows
    values = rng.standard_normal((rows, *length)) * 3
    arrays = [
        (values > 0 if dtype == "bool" else values).astype(table.type.numpy),
        rng.integers(low, rows, picked).astype(index),
        rng.standard_normal((*picked, *length)).astype("float32"),
    ]
    got = table[k]
    wide = got.astype("float64") * other
    axis = int(rng.integers(0, wide.type.ndim))
    outputs = [wide.sum(axis), T.exp(-T.sqr(wide)), wide.mean(), T.abs(got.astype("float32")).sum()]
    if 0 not in picked:
        outputs.append(wide.max(axis))
    zeros = T.zeros((rows, *length), "float32")
    outputs.append(T.inc_subtensor(zeros[k], (wide + 1).astype("float32")))
    if dtype in ("float32", "float64"):
        outputs.append(T.grad(T.sqr(wide).sum() + got.sum(), table))
    chosen = [outputs[c] for c in rng.permutation(len(outputs))[: int(rng.integers(1, 4))]]
    inputs = [table, k, other]
    found = symdnn.function(inputs, chosen, on_unused_input="ignore")(*arrays)
    wanted = symdnn.function(
        inputs, chosen, on_unused_input="ignore",
        mode=symdnn.Mode(target="cpu").excluding("fusion"),
    )(*arrays)  # fmt: skip
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(
            np.asarray(one, "float64"), np.asarray(other, "float64"), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("wrong", [9, -10])
def test_an_index_out_of_range_is_an_error_at_the_users_line(wrong: int) -> None:
    """Wherever it is used: in an elementwise kernel, a reduction, a scatter, a gradient."""
    table, k = TensorType("float32", (9, 8))("t"), TensorType("int64", (4,))("k")
    got = table[k]
    programs = [
        T.exp(got), got.sum(1), got.sum(), T.inc_subtensor(T.zeros((9, 8), "float32")[k], got * 2),
        T.grad(T.sqr(got).sum(), table),
    ]  # fmt: skip
    for program in programs:
        f = symdnn.function([table, k], program)
        with pytest.raises(IndexOutOfRange) as caught:
            np.asarray(f(np.ones((9, 8), "float32"), np.array([0, 1, wrong, 2])))
        assert "test_gathers.py" in "".join(getattr(caught.value, "__notes__", ()))
        np.asarray(f(np.ones((9, 8), "float32"), np.array([0, 1, 8, -9])))


@pytest.mark.gpu
def test_messages_on_a_device() -> None:
    rng = new_rng()
    nodes, edges = 300, 5000
    a = rng.standard_normal((nodes, 12)).astype("float32")
    where = [rng.integers(-nodes, nodes, edges) for _ in range(2)]
    sent = T.inc_subtensor(T.zeros_like(h)[i], T.tanh(h)[j])
    outputs = [sent, T.grad(T.sqr(sent).sum(), h)]
    got = symdnn.function([h, i, j], outputs, mode=symdnn.Mode(target="cuda"))(a, *where)
    wanted = symdnn.function([h, i, j], outputs, mode=symdnn.Mode(target="cpu"))(a, *where)
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-3)
