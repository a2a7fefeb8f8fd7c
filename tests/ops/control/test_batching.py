"""Each op's answer for a batch of calls: what it gives is what the calls give one by one.

The records of the op table are batched over each input alone and over all inputs. The ops that
answer "a loop" are named here.
"""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

from symdnn.autodiff import Lop, Rop, grad
from symdnn.compile.function import function
from symdnn.errors import ShapeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.origin import Hints
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.array.getitem import nonzero
from symdnn.ops.array.sort import unique
from symdnn.ops.control.batching import Operand, batch_graph
from symdnn.ops.control.from_graph import OpFromGraph
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_builder import scan, until
from symdnn.ops.elementwise.math import Exp
from symdnn.ops.random.random import STATE_TYPE, random_bernoulli
from tests import op_table, seeded
from tests.op_table.record import OpCase
from tests.test_op_table import outputs, variables

LANES = 3
CASES = op_table.load()
#: Of a library, which a rewrite puts in place of neutral ones: they are not asked when it matters.
LATE = (".vendor.", ".lowered.")
VENDOR = {c.id for c in CASES if all(any(r in op.__module__ for r in LATE) for op in c.ops)}


def subsets(count: int) -> list[tuple[int, ...]]:
    alone = [(i,) for i in range(count)]
    return alone if count < 2 else [*alone, tuple(range(count))]


def draws(case: OpCase, lane: int) -> list[np.ndarray]:
    rng = np.random.default_rng([zlib.crc32(case.id.encode()), lane, *seeded.seeds()])
    return [d(rng) for d in case.draws]


def wide(v: Variable, lanes: int | None = None) -> Variable:
    return TensorType(v.type.dtype, (lanes, *v.type.shape))(v.name)


def batched(outs, vs, chosen, lanes=None):
    """Outputs of the batched graph, and its inputs."""
    ins = [wide(v, lanes) if i in chosen else v for i, v in enumerate(vs)]
    known = {v: Operand(x, True) for v, x in zip(vs, ins) if x is not v}
    return batch_graph(outs, known), ins


def is_state(v: Variable) -> bool:
    return getattr(v.type, "dtype", "") == "uint64" and STATE_TYPE.accepts(v.type)


def one_by_one(outs, vs, chosen, arrays):
    """The outputs of each lane; lanes that share a generator's state draw one after the other."""
    found = []
    at = next((i for i, v in enumerate(vs) if is_state(v) and i not in chosen), None)
    values = list(arrays[0])
    for lane in range(LANES):
        for i in chosen:
            values[i] = arrays[lane][i]
        results = evaluate(outs, dict(zip(vs, values)))
        found.append(results)
        if at is not None:
            values[at] = next(r for r, o in zip(results, outs) if is_state(o))
    return found


def same(got, want, rtol):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    size = np.max(np.abs(want), initial=1, where=np.isfinite(want))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * float(size))


def equal_shapes(outs, vs, chosen, arrays):
    """Whether all that is computed has one shape in all lanes: loops cannot collect others."""
    inside = [v for n in toposort(outs) for v in n.outputs]
    shapes = []
    for lane in arrays:
        values = [lane[i] if i in chosen else arrays[0][i] for i in range(len(vs))]
        shapes.append([np.shape(a) for a in evaluate(inside, dict(zip(vs, values)))])
    return all(s == shapes[0] for s in shapes)


# cuDNN's dropout has a state of its own, in which the lanes of a loop draw the same.
BATCHED = [c for c in CASES if c.id != "gpudnn_dropout"]
PAIRS = [(c, s) for c in BATCHED for s in subsets(len(c.draws))]


@op_table.of_each(BATCHED, every=4)
def test_a_batch_gives_what_calls_give_one_by_one(case: OpCase) -> None:
    arrays = [draws(case, lane) for lane in range(LANES)]
    vs = variables(case, arrays[0])
    outs = outputs(case, vs)
    for chosen in subsets(len(vs)):
        try:
            a_batch_gives_what_calls_give(outs, vs, chosen, arrays)
        except Exception as error:
            error.add_note(f"batched over the inputs {chosen}")
            raise


def a_batch_gives_what_calls_give(outs, vs, chosen, arrays):
    if not equal_shapes(outs, vs, chosen, arrays):
        arrays = [arrays[0]] * LANES
    wanted = one_by_one(outs, vs, chosen, arrays)
    tensors = [k for k, o in enumerate(outs) if isinstance(o.type, TensorType)]
    values = [
        np.stack([a[i] for a in arrays]) if i in chosen else arrays[0][i] for i in range(len(vs))
    ]
    for lanes in (None, LANES):
        found, ins = batched(outs, vs, chosen, lanes)
        results = evaluate([found[k].value for k in tensors], dict(zip(ins, values)))
        for k, got in zip(tensors, results):
            lane_by_lane = [np.asarray(w[k]) for w in wanted]
            last = lane_by_lane[-1]
            same(got, np.stack(lane_by_lane) if found[k].stacked else last, 1e-6)


def loops(found):
    """The names of the loops that the walker made."""
    nodes = toposort([o.value for o in found])
    names = [n.op.name or "" for n in nodes if isinstance(n.op, Scan)]
    return {n.removeprefix("batch of ") for n in names if n.startswith("batch of ")}


#: Ops that answer "a loop", and where.
A_STATE = "a state of the generator for each lane"
A_SIZE = "sizes or bounds for each lane"
THE_DATA = "the data decides how many"
HALVES = "halves of collectives are made behind batches"
LOOPS = {
    "ARange": A_SIZE,
    "AdvancedSubtensor": A_SIZE,
    "Alloc": A_SIZE,
    "Attention": A_STATE,
    "BincountLength": THE_DATA,
    "BinomialSchedule": A_SIZE,
    "Dropout": A_STATE,
    "IncSubtensor": A_SIZE,
    "IsIn": "a set of tests for each lane",
    "LinearFilter": "its coefficients are the same for all lines",
    "MoveWait": HALVES,
    "MrgUniform": A_STATE,
    "StreamStart": HALVES,
    "StreamWait": HALVES,
    "NonMaxSuppression": THE_DATA,
    "Nonzero": THE_DATA,
    "OneHot": A_SIZE,
    "Pad": A_SIZE,
    "RandomBernoulli": A_STATE,
    "RandomCategorical": A_STATE,
    "RandomIntegers": A_STATE,
    "RandomLogGamma": A_STATE,
    "RandomMultinomial": A_STATE,
    "RandomNormal": A_STATE,
    "RandomPermutation": A_STATE,
    "RandomPoisson": A_STATE,
    "RandomSubset": A_STATE,
    "RandomUniform": A_STATE,
    "RandomVonMises": A_STATE,
    "Recv": "a transfer for each lane",
    "RepeatIndex": THE_DATA,
    "Reshape": A_SIZE,
    "SampledDot": "rows or columns for each lane",
    "Scan": "a number of steps, or a condition that ends the loop, for each lane",
    "SearchSorted": "a table for each lane",
    "Send": "a transfer for each lane",
    "SparseDot": "a matrix for each lane",
    "SparseMatMul": THE_DATA,
    "SpecifyShape": A_SIZE,
    "Split": A_SIZE,
    "Subtensor": A_SIZE,
    "QuantizedProduct": "products of codes are made behind batches",
    "TopK": A_SIZE,
    "Unique": THE_DATA,
}


def test_the_ops_that_answer_a_loop() -> None:
    found: set[str] = set()
    neutral = [(c, s) for c, s in PAIRS if c.id not in VENDOR]
    for case, chosen in neutral:
        vs = variables(case, draws(case, 0))
        found |= loops(batched(outputs(case, vs), vs, chosen, LANES)[0])
    for case in CASES:
        if case.id.startswith("rnn_gru"):
            vs = variables(case, draws(case, 0))
            known = {v: Operand(wide(v), True) for v in vs}
            found |= loops(batch_graph(gradients(case, vs)[1], known))
    new, gone = found - set(LOOPS), set(LOOPS) - found
    assert not new, f"{new} run in a loop over lanes: write Op.batch, or say why in LOOPS"
    assert not gone, f"{gone} run in no loop any more: take them out of LOOPS"


HAS_GRAD = [c for c in CASES if c.grad and not c.stateful and c.id not in VENDOR]


def gradients(case, vs):
    """Gradients of a sum of the outputs by what has them, with the variables."""
    outs = [o for o in outputs(case, vs) if getattr(o.type, "is_float", False)]
    wrt = [v for v in vs if v.type.is_float]
    if not outs or not wrt:
        return None
    cost = sum(((o.astype("float64") ** 2).sum() for o in outs[1:]), (outs[0] ** 2).sum())
    return wrt, grad(cost, wrt, disconnected_inputs="ignore")


@op_table.of_each(HAS_GRAD, every=4)
def test_gradients_of_calls_one_by_one(case: OpCase) -> None:
    """A batch of gradients is each call's own gradient; the gradient of a batch is that, too."""
    arrays = [draws(case, lane) for lane in range(LANES)]
    vs = variables(case, arrays[0])
    everyone = tuple(range(len(vs)))
    if (made := gradients(case, vs)) is None:
        pytest.skip("nothing has a gradient")
    wrt, grads = made
    if not equal_shapes(grads, vs, everyone, arrays):
        arrays = [arrays[0]] * LANES
    wanted = [evaluate(grads, dict(zip(vs, a))) for a in arrays]
    ins = [wide(v) for v in vs]
    values = dict(zip(ins, (np.stack([a[i] for a in arrays]) for i in range(len(vs)))))
    of_grad = batch_graph(grads, {v: Operand(x, True) for v, x in zip(vs, ins)})
    for k, got in enumerate(evaluate([o.value for o in of_grad], values)):
        want = np.stack([w[k] for w in wanted])
        same(got if of_grad[k].stacked else np.stack([got] * LANES), want, 1e-6)
    found, ins = batched(outputs(case, vs), vs, everyone)
    outs = [o.value for o in found if getattr(o.value.type, "is_float", False)]
    cost = sum(((o.astype("float64") ** 2).sum() for o in outs[1:]), (outs[0] ** 2).sum())
    own = [x for v, x in zip(vs, ins) if v in wrt]
    through = grad(cost, own, disconnected_inputs="ignore")
    for k, got in enumerate(evaluate(through, dict(zip(ins, values.values())))):
        same(got, np.stack([w[k] for w in wanted]), 1e-6)


# -- graphs ---------------------------------------------------------------------------------------

VECTOR = TensorType("float64", (None,))
MATRIX = TensorType("float64", (None, None))
RNG = np.random.default_rng(4)


def test_what_no_lane_changes_stays_as_it_is() -> None:
    x, y = VECTOR("x"), VECTOR("y")
    shared = y * 2
    found = batch_graph([x + shared, shared], {x: Operand(wide(x), True)})
    assert [o.stacked for o in found] == [True, False]
    assert found[1].value is shared


def test_a_variable_in_between_may_be_given() -> None:
    x = VECTOR("x")
    middle = x * 3
    z = wide(middle)
    (found,) = batch_graph([middle.sum()], {middle: Operand(z, True)})
    a = RNG.standard_normal((4, 2))
    np.testing.assert_allclose(evaluate([found.value], {z: a})[0], a.sum(1))


def test_hints_and_lines_stay() -> None:
    x = VECTOR("x")
    y = Exp()(x, hints=Hints(name="the one"))
    (found,) = batch_graph([y], {x: Operand(wide(x), True)})
    assert found.value.owner.hints.name == "the one"
    assert str(found.value.owner.origin) == str(y.owner.origin)


@pytest.mark.parametrize("lanes", [0, 1])
def test_no_lane_and_one(lanes: int) -> None:
    x, w = VECTOR("x"), MATRIX("w")
    outs = [(x * 2).dot(w).sum(), x[1], x.reshape((-1, 2)), unique(x)]
    for static in (None, lanes):
        z = wide(x, static)
        found = batch_graph(outs, {x: Operand(z, True)})
        a, b = RNG.standard_normal((lanes, 4)), RNG.standard_normal((4, 3))
        got = evaluate([o.value for o in found], {z: a, w: b})
        np.testing.assert_allclose(got[0], (2 * a @ b).sum(1))
        np.testing.assert_array_equal(got[1], a[:, 1])
        np.testing.assert_array_equal(got[2], a.reshape(lanes, 2, 2))
        assert got[3].shape[0] == lanes


def test_numbers_of_lanes_must_agree() -> None:
    x, y = VECTOR("x"), VECTOR("y")
    with pytest.raises(ShapeMismatch, match="equal first dimensions"):
        batch_graph([x + y], {x: Operand(wide(x, 2), True), y: Operand(wide(y, 3), True)})
    one, more = wide(x, 1), wide(y)
    (found,) = batch_graph([x + y], {x: Operand(one, True), y: Operand(more, True)})
    with pytest.raises(ShapeMismatch):
        evaluate([found.value], {one: np.ones((1, 2)), more: np.ones((3, 2))})


def test_lanes_of_other_lengths_are_an_error_of_the_loop() -> None:
    x = VECTOR("x")
    z = wide(x)
    (found,) = batch_graph([nonzero(x)[0]], {x: Operand(z, True)})
    with pytest.raises(ShapeMismatch, match="batch of Nonzero"):
        evaluate([found.value], {z: np.array([[1.0, 0.0], [1.0, 1.0]])})


def test_a_loop_whose_lanes_end_alone_is_a_loop_of_loops() -> None:
    x, s = VECTOR("x"), TensorType("float64", ())("s")
    y, _ = scan(lambda v, a: (a + v, until(a + v > 2)), x, s)
    z = wide(s)
    (found,) = batch_graph([y[-1]], {s: Operand(z, True)})
    starts = np.array([0.0, 0.5, 2.75])
    got = evaluate([found.value], {x: np.ones(3), z: np.array([0.5, 0.75, 0.875])})[0]
    np.testing.assert_array_equal(got, [2.5, 2.75, 2.875])
    with pytest.raises(ShapeMismatch):  # what each step gave is kept, read or not
        evaluate([found.value], {x: np.ones(3), z: starts})


def test_gradients_that_the_user_gave_are_those_of_the_lanes() -> None:
    x, w = VECTOR("x"), VECTOR("w")

    def lop(inputs, outputs, cotangents):
        return [cotangents[0] * 10 * inputs[1], cotangents[0] * 100 * inputs[0]]

    def rop(inputs, tangents):
        return [sum(t * 7 for t in tangents if t is not None)]

    op = OpFromGraph([x, w], [x * w], lop_overrides=lop, rop_overrides=rop)
    z = wide(x)
    (found,) = batch_graph([op(x, w)], {x: Operand(z, True)})
    a, b, t = RNG.standard_normal((3, 4)), RNG.standard_normal(4), RNG.standard_normal((3, 4))
    dz, dw = grad(found.value.sum(), [z, w])
    tangent = Rop(found.value, z, t)
    got = evaluate([found.value, dz, dw, tangent], {z: a, w: b})
    for g, want in zip(got, [a * b, np.tile(10 * b, (3, 1)), 100 * a.sum(0), 7 * t]):
        np.testing.assert_allclose(g, want)


@pytest.mark.parametrize("which", ["x", "w", "cotangent"])
def test_gradients_of_a_recurrent_net_compile(which: str) -> None:
    """The reserve between the two ops neither enters nor leaves a loop."""
    case = next(c for c in CASES if c.id == "rnn_lstm_2_float32")
    arrays = [draws(case, lane) for lane in range(LANES)]
    vs = variables(case, arrays[0])
    (out, *_) = outputs(case, vs)
    c = out.type("c")
    by = dict(zip(["w", "x"], vs), cotangent=c)[which]
    slopes = Lop(out, vs[:3], c)
    z = wide(by)
    found = [o.value for o in batch_graph(slopes, {by: Operand(z, True)})]
    (like,) = evaluate([out], dict(zip(vs, arrays[0])))
    values = dict(zip(vs, arrays[0])) | {c: RNG.standard_normal(like.shape).astype("float32")}
    lanes = [values[by] * np.float32(k) for k in (1, 0.5, 2)]
    ins = [v for v in (*vs, c) if v is not by]
    got = function([*ins, z], found)(*(values[v] for v in ins), np.stack(lanes))
    for k, lane in enumerate(lanes):
        for a, b in zip(got, evaluate(slopes, values | {by: lane})):
            same(a[k], b, 1e-5)


def test_draws_of_lanes_are_their_own() -> None:
    state, p = STATE_TYPE("state"), TensorType("float64", (None,))("p")
    z = wide(p)
    drawn, new = random_bernoulli(state, p, (64,))
    found = batch_graph([drawn, new], {p: Operand(z, True)})
    start = np.array([5, 0], np.uint64)
    got, after = evaluate([o.value for o in found], {state: start, z: np.full((3, 64), 0.5)})
    assert len({tuple(row) for row in got}) == 3
    assert after.tolist() == [5, 3 * 64]


SAMPLE = [(c, s) for c, s in PAIRS[::9] if not c.stateful and c.id not in VENDOR]


@pytest.mark.parametrize(
    ("case", "chosen"),
    seeded.sampled(SAMPLE, every=3),
    ids=lambda p: p.id if isinstance(p, OpCase) else "".join(map(str, p)),
)
def test_a_batch_compiles(case: OpCase, chosen: tuple[int, ...]) -> None:
    if case.id == "stream_halves" and os.environ["SYMDNN_TESTS_DEVICE"] == "emulated":
        pytest.skip("there its first half is computed by the reference, beside the stream")
    arrays = [draws(case, lane) for lane in range(LANES)]
    vs = variables(case, arrays[0])
    made = outputs(case, vs)
    if not equal_shapes(made, vs, chosen, arrays):
        arrays = [arrays[0]] * LANES
    found, ins = batched(made, vs, chosen)
    outs = [o.value for o in found if isinstance(o.value.type, TensorType)]
    values = [
        np.stack([a[i] for a in arrays]) if i in chosen else arrays[0][i] for i in range(len(vs))
    ]
    f = function(ins, outs, on_unused_input="ignore")
    for got, want in zip(f(*values), evaluate(outs, dict(zip(ins, values))), strict=True):
        same(got, want, max(case.rtol, 1e-6))


def test_the_report_counts_loops_left() -> None:
    x = MATRIX("x")
    z = wide(x)
    (found,) = batch_graph([unique(x)], {x: Operand(z, True)})
    f = function([z], found.value)
    (line,) = f.lowering_report().loops
    assert "batch of Unique" in line
    assert "loops left: 1" in str(f.lowering_report())
    assert function([z], z + 1).lowering_report().loops == ()
