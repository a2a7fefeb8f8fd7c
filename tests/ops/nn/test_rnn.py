from __future__ import annotations

import numpy as np
import pytest

import symdnn
from symdnn.autodiff import Rop, grad, verify_grad
from symdnn.autodiff_rows import jacobian
from symdnn.errors import IndexOutOfRange, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Shared
from symdnn.ops.control.scan import Scan
from symdnn.ops.nn.rnn import RNNBlock, RNNForward, RNNGrad
from symdnn.ops.nn.rnn_params import GATES
from symdnn.ops.random.random_stream import RandomStream
from tests.op_table import load
from tests.op_table.rnn import slow_rnn
from tests.seeded import sampled

T, B, X, H = 3, 2, 2, 2
BOTH = ("unidirectional", "bidirectional")


def shared(array):
    return Shared(TensorType(array.dtype.name, (None,) * array.ndim), Storage(array), "w")


def arrays(block, steps=T, batch=B, features=X, seed=0, scale=0.7):
    rng = np.random.default_rng(seed)
    s = block.layout
    depth = s.num_layers * s.directions
    shapes = [(block.get_param_size([batch, features]),), (steps, batch, features)]
    shapes += [(depth, batch, s.hidden_size)] * (1 + s.has_cell)
    return [rng.standard_normal(n) * scale for n in shapes]


@pytest.mark.parametrize("mode", list(GATES))
@pytest.mark.parametrize(
    ("layers", "direction", "skip", "lengths"),
    [(1, 0, False, False), (2, 1, False, True), (2, 0, True, False)],
)
def test_gradients_agree_with_finite_differences(mode, layers, direction, skip, lengths):
    block = RNNBlock("float64", H, layers, mode, "skip" if skip else "linear", BOTH[direction])
    n = np.array([2, 3], "int64") if lengths else None
    points = arrays(block, features=H if skip else X, seed=3)

    def total(w, x, hx, cx=None):
        out = block.apply(w, x, hx, cx, lengths=n)
        weights = [np.random.default_rng(i).standard_normal(3) for i in range(3)]
        return sum(
            (o * o * float(v[0]) + o * float(v[1])).sum()
            for o, v in zip(out, weights, strict=False)
        )

    verify_grad(total, points, n_tests=1, abs_tol=1e-6, rel_tol=1e-5)


@pytest.mark.parametrize("mode", list(GATES))
def test_gradients_through_one_output_alone(mode):
    block = RNNBlock("float64", H, 1, mode)
    points = arrays(block)
    for which in range(2 + (mode == "lstm")):
        verify_grad(lambda *a, i=which: block.apply(*a)[i], points, n_tests=1)


def test_lengths_equal_running_each_sequence_alone():
    for mode in GATES:
        block = RNNBlock("float64", H, 3, mode, direction_mode="bidirectional")
        w, x, *states = arrays(block, steps=5, batch=4)
        lengths = np.array([3, 5, 1, 4])
        out = evaluate(block.apply(w, x, *states, lengths=lengths), {})
        for b, n in enumerate(lengths):
            alone = evaluate(
                block.apply(w, x[:n, b : b + 1], *(s[:, b : b + 1] for s in states)), {}
            )
            np.testing.assert_allclose(out[0][:n, b], alone[0][:, 0])
            assert not out[0][n:, b].any()
            for got, want in zip(out[1:], alone[1:], strict=True):
                np.testing.assert_allclose(got[:, b], want[:, 0])


def test_a_length_of_zero_passes_the_state_through():
    block = RNNBlock("float64", H, 1, "gru")
    w, x, hx = arrays(block)
    y, hy = evaluate(block.apply(w, x, hx, lengths=np.array([0, T])), {})
    assert not y[:, 0].any()
    np.testing.assert_array_equal(hy[:, 0], hx[:, 0])


def test_a_length_beyond_the_steps_is_named():
    block = RNNBlock("float64", H, 1, "gru")
    with pytest.raises(IndexOutOfRange, match=r"lengths\[1\] = 9 .* 3 time steps"):
        evaluate(block.apply(*arrays(block), lengths=np.array([1, 9])), {})


@pytest.mark.parametrize("mode", list(GATES))
@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("skip", [False, True])
def test_split_and_pack_round_trip(mode, direction, skip):
    for layers in (1, 2, 3):
        block = RNNBlock("float32", 3, layers, mode, "skip" if skip else "linear", direction)
        features = 3 if skip else 4
        w = shared(np.random.default_rng(0).random(block.get_param_size([2, features]), "float32"))
        count = layers * (1 + (direction == "bidirectional"))
        lists = [block.split_params(w, i, [2, features]) for i in range(count)]
        np.testing.assert_array_equal(block.pack_params(lists, features), w.get_value())
        named = block.named_params(w, features)
        np.testing.assert_array_equal(block.pack_params(named, features), w.get_value())
        total = sum(p.size for p in block.param_parts(features))
        assert total == w.get_value().size


def test_split_params_are_views_that_write_through():
    block = RNNBlock("float32", 3, 2, "lstm")
    w = shared(np.zeros(block.get_param_size([2, 4]), "float32"))
    parts = block.split_params(w, 0, [2, 4])
    assert [p.shape for p in parts] == [(4, 3), (3,)] * 4 + [(3, 3), (3,)] * 4
    for i, p in enumerate(parts):
        p[:] = i
    again = block.split_params(w, 0, [2, 4])
    assert [float(p.ravel()[0]) for p in again] == list(range(16))
    assert w.get_value().max() == 15
    assert not any(p.any() for p in block.split_params(w, 1, [2, 4]))
    named = block.named_params(w, 4)
    assert (named["layer0.W_f"] == 2).all()
    assert (named["layer0.bR_o"] == 15).all()


def test_errors_of_the_parameters():
    block = RNNBlock("float32", 3, 1, "gru")
    w = shared(np.zeros(block.get_param_size([2, 4]), "float32"))
    with pytest.raises(TypeError, match="shared variable"):
        block.split_params(w.get_value(), 0, [2, 4])
    with pytest.raises(ValueError, match="layer=1"):
        block.split_params(w, 1, [2, 4])
    with pytest.raises(ValueError, match="vector of"):
        block.split_params(w, 0, [2, 5])
    with pytest.raises(ValueError, match="missing"):
        block.pack_params({}, 4)
    with pytest.raises(ValueError, match="wanted 1 lists"):
        block.pack_params([], 4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rnn_mode": "elman"}, "rnn_mode='elman'"),
        ({"input_mode": "none"}, "input_mode='none'"),
        ({"direction_mode": "both"}, "direction_mode='both'"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"dropout": 1.5}, "dropout=1.5"),
    ],
)
def test_bad_arguments_are_named(change, match):
    good = {"dtype": "float32", "hidden_size": 3, "num_layers": 1, "rnn_mode": "lstm"}
    with pytest.raises(ValueError, match=match):
        RNNBlock(**(good | change))


def test_misfits_are_named():
    block = RNNBlock("float64", H, 1, "gru")
    w, x, hx = arrays(block)
    with pytest.raises(ShapeMismatch, match="parameter vector of"):
        evaluate(block.apply(w[:-1], x, hx), {})
    with pytest.raises(ShapeMismatch, match="hx of shape"):
        evaluate(block.apply(w, x, hx[:, :1]), {})
    with pytest.raises(TypeMismatch, match="dtype of w"):
        block.apply(w, x.astype("float32"), hx)
    with pytest.raises(TypeMismatch, match="cx"):
        block.apply(w, x, hx, hx)
    with pytest.raises(TypeMismatch, match="cx"):
        RNNBlock("float64", H, 1, "lstm").apply(w, x, hx)
    skip = RNNBlock("float64", 5, 1, "gru", "skip")
    with pytest.raises(ShapeMismatch, match="hidden size"):
        evaluate(skip.apply(*arrays(skip, features=3)), {})


def test_symbolic_shapes():
    x = TensorType("float32", (None, None, 4))("x")
    block = RNNBlock("float32", 5, 2, "lstm", direction_mode="bidirectional")
    hx = TensorType("float32", (None, None, None))("hx")
    y, hy, cy = block.apply(TensorType("float32", (None,))("w"), x, hx, hx)
    assert y.type.shape == (None, None, 10)
    assert hy.type.shape == cy.type.shape == (4, None, 5)


@pytest.mark.parametrize("mode", sampled(list(GATES), every=4))
def test_a_gradient_penalty_compiled_is_that_of_the_references(mode):
    block = RNNBlock("float64", H, 2, mode, direction_mode=BOTH[1])
    points = arrays(block, seed=2)
    vs = [TensorType("float64", (None,) * a.ndim)() for a in points]
    y = block.apply(*vs)[0]
    first = grad((y * y).sum(), vs[1])
    penalty = grad(y.sum() + (first * first).sum(), vs)
    f = symdnn.function(vs, penalty)
    for got, want in zip(f(*points), evaluate(penalty, dict(zip(vs, points))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    (note,) = f.lowering_report().written_out
    assert "RNNGrad written out as the gradient of a loop" in note
    assert "test_rnn.py" in note
    assert note in str(f.lowering_report())


def test_the_report_of_a_first_gradient_has_nothing_written_out():
    block = RNNBlock("float64", H, 1, "gru")
    x = TensorType("float64", (None,) * 3)("x")
    w, _, hx = arrays(block)
    f = symdnn.function([x], grad(block.apply(w, x, hx)[0].sum(), x))
    assert f.lowering_report().written_out == ()


def test_second_derivatives_with_dropout_use_the_masks_of_the_value():
    block = RNNBlock("float64", H, 3, "lstm", dropout=0.5, stream=4)
    w, x, hx, cx = arrays(block, seed=1)
    v, t = (
        TensorType("float64", (None,) * 3)("v"),
        np.random.default_rng(2).standard_normal(x.shape),
    )
    y = block.apply(w, v, hx, cx)[0]
    first = grad((y * y).sum(), v)
    outs = [y, first, Rop(y, v, t), Rop(first, v, t), grad((first * t).sum(), v)]
    step = 1e-6
    up, down = (evaluate(outs[:2], {v: x + s * t}) for s in (step, -step))
    _, _, slope, forward, reverse = evaluate(outs, {v: x})
    assert np.abs(slope).max() > 0
    np.testing.assert_allclose(slope, (up[0] - down[0]) / (2 * step), rtol=1e-5, atol=1e-8)
    for found in (forward, reverse):
        np.testing.assert_allclose(found, (up[1] - down[1]) / (2 * step), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("second", [False, True])
def test_a_loop_and_the_network_draw_the_same_masks_on_a_gpu(second):
    """cuDNN's masks of dropout are its own: all that reads the state is cuDNN's, or none."""
    block = RNNBlock("float32", H, 2, "gru", dropout=0.5, stream=4)
    x = TensorType("float32", (None,) * 3)("x")
    w, _, hx = (a.astype("float32") for a in arrays(block))
    found = grad((block.apply(w, x, hx)[0] ** 2).sum(), x)
    found = grad((found**2).sum(), x) if second else found
    f = symdnn.function([x], found, mode=symdnn.Mode(target="cuda:sm_90"))
    names = {type(n.op).__name__ for n in f.fgraph.toposort()}
    assert ("GpuDnnRNNOp" in names) is not second
    assert ("RNNForward" in names) is second


def test_a_model_agnostic_step_through_a_network_trains():
    """MAML: the gradient of the loss after one step of descent inside."""
    block = RNNBlock("float64", H, 1, "lstm")
    w0, x, hx, cx = arrays(block, seed=5)

    def loss(params):
        return (block.apply(params, x, hx, cx)[0] ** 2).sum()

    verify_grad(lambda v: loss(v - 0.1 * grad(loss(v), v)), [w0], n_tests=1, rel_tol=1e-4)


def test_dropout_between_layers_repeats_with_the_seed():
    def run(seed, train=True):
        block = RNNBlock("float64", 8, 3, "lstm", direction_mode=BOTH[1], dropout=0.3, stream=seed)
        w, x, hx, cx = arrays(block)
        w = TensorType("float64", (None,))("w")
        y = block.apply(w, x, hx, cx, train=train)[0]
        point = arrays(block)[0]
        return evaluate([y, grad((y * y).sum(), w)], {w: point})

    for a, b in zip(run(4), run(4), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (run(4)[0] != run(5)[0]).any()
    plain = RNNBlock("float64", 8, 3, "lstm", direction_mode=BOTH[1])
    np.testing.assert_array_equal(
        run(4, False)[0], evaluate(plain.apply(*arrays(plain))[:1], {})[0]
    )


def test_dropout_state_advances_and_gradient_uses_the_same_masks():
    stream = RandomStream(9)
    block = RNNBlock("float64", H, 2, "rnn_tanh", dropout=0.5, stream=stream)
    y = block.apply(*arrays(block))[0]
    state, new = stream.state_updates[0]
    assert state.default_update is new
    assert evaluate([new], {})[0][1] == T * B * H
    stream2 = RandomStream(9)
    again = RNNBlock("float64", H, 2, "rnn_tanh", dropout=0.5, stream=stream2)
    verify_grad(lambda w, x, h: again.apply(w, x, h)[0], arrays(again), n_tests=1)
    assert y.type.ndim == 3


def test_half_precision_is_computed_in_float32():
    block = RNNBlock("float16", 4, 1, "lstm")
    wide = arrays(block, features=3, scale=0.3)
    half = [a.astype("float16") for a in wide]
    y = evaluate(block.apply(*half)[:1], {})[0]
    assert y.dtype == np.float16
    want = slow_rnn(block.layout, *(a.astype("f8") for a in half))[0]
    np.testing.assert_allclose(y, want, atol=2e-3)


def test_the_op_says_what_it_is():
    text = str(RNNForward("gru", 4, 2))
    assert "gru" in text
    assert "hidden_size=4" in text


@pytest.mark.parametrize("name", ["rnn_relu_2_bi", "lstm_1", "gru_2"])
def test_a_jacobian_makes_the_reserve_anew(name, rng):
    """A loop over rows takes no bytes of a kernel from outside."""
    case = next(c for c in load() if c.id.startswith(f"rnn_{name}") and c.id.endswith("float64"))
    arrays = [np.asarray(d(rng)) for d in case.draws]
    inputs = [TensorType(a.dtype.name, (None,) * a.ndim)() for a in arrays]
    out = case.build(*inputs)[0].flatten()
    compiled = symdnn.function(inputs, [out, jacobian(out, inputs[0])])
    y, rows = compiled(*arrays)
    row = symdnn.function(inputs, [grad(out[k], inputs[0]) for k in (0, len(y) // 2, len(y) - 1)])
    np.testing.assert_allclose(rows[[0, len(y) // 2, -1]], row(*arrays), rtol=1e-9, atol=1e-12)


# -- gradients of the parameters for each example -------------------------------------------------


@pytest.mark.cpu
@pytest.mark.parametrize("mode", list(GATES))
@pytest.mark.parametrize(
    ("layers", "direction", "skip", "lengths"),
    [(1, 0, False, False), (2, 1, False, True), (2, 0, True, True)],
)
def test_gradients_of_each_example_are_those_of_calls(mode, layers, direction, skip, lengths):
    block = RNNBlock("float64", H, layers, mode, "skip" if skip else "linear", BOTH[direction])
    lanes, features = 3, H if skip else X
    w, *_ = arrays(block, features=features)
    every = [arrays(block, features=features, seed=i)[1:] for i in range(lanes)]
    stacked = [np.stack(a) for a in zip(*every)]
    n = np.array([[2, 3], [0, 1], [3, 3]])
    cube = TensorType("float64", (None,) * 3)

    def of(x, *states, n=None):
        out = block.apply(w_in, x, *states, lengths=n)
        cost = sum((o * o * (1.0 + k) + o * 0.3).sum() for k, o in enumerate(out))
        return grad(cost, [w_in, x, *states])

    w_in, more = TensorType("float64", (None,))(), [TensorType("int64", (None, None))()] * lengths
    wide = [TensorType("float64", (None,) * 4)() for _ in stacked]
    made = symdnn.vmap(lambda *v: of(*v[: len(wide)], n=v[-1] if lengths else None))(*wide, *more)
    f = symdnn.function([w_in, *wide, *more], made)
    assert not f.lowering_report().loops
    one, given = [cube() for _ in stacked], [TensorType("int64", (None,))()] * lengths
    g = symdnn.function([w_in, *one, *given], of(*one, n=given[0] if lengths else None))
    got = f(w, *stacked, *[n] * lengths)
    for lane in range(lanes):
        want = g(w, *(a[lane] for a in stacked), *[n[lane]] * lengths)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a[lane], b, rtol=1e-5, atol=1e-5)


def test_gradients_of_each_example_by_the_loop_that_a_gpu_has():
    """Their derivatives are of that loop, too: its parameters' gradients are one product."""
    block, lanes = RNNBlock("float64", H, 2, "lstm"), 3
    w, *given = (np.float64(a) for a in arrays(block))
    v, x = TensorType("float64", (None,))(), TensorType("float64", (None,) * 4)()

    def of(x):
        return grad((block.apply(v, x, *given[1:])[0] ** 2).sum(), v)

    made = symdnn.vmap(of)(x)
    node = next(n for n in toposort([made]) if isinstance(n.op, RNNGrad))
    assert node.op.lanes
    values = {v: w, x: np.stack([given[0] * (1 + k) for k in range(lanes)])}
    loop = node.op.by_loop(node.inputs)
    for got, want in zip(evaluate(loop, values), evaluate(node.outputs, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    f = symdnn.function([v, x], loop[0])
    scans = [n.op for n in f.fgraph.toposort() if isinstance(n.op, Scan)]
    assert len(scans) == 4, "one for each layer and pass"
    assert all(len(o.type.shape) < 4 for s in scans for o in s.inner.outputs)
    on_gpu = symdnn.function([v, x], made, mode=symdnn.Mode(target="cuda:sm_90"))
    of_gpu = [type(n.op) for n in on_gpu.fgraph.toposort()]
    assert of_gpu.count(Scan) == 4
    assert RNNGrad not in of_gpu
    squared = grad((made**2).sum(), v)
    step, turn = 1e-6, np.random.default_rng(1).standard_normal(w.shape)
    ends = [(evaluate([made], {**values, v: w + k * step * turn})[0] ** 2).sum() for k in (1, -1)]
    (slope,) = evaluate([squared], values)
    np.testing.assert_allclose((slope * turn).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-5)


@pytest.mark.cpu
def test_lanes_inside_of_lanes_and_jacobians_share_the_parameters():
    block = RNNBlock("float64", H, 1, "gru")
    w, x, hx = arrays(block, batch=1)
    v, xs = TensorType("float64", (None,))(), TensorType("float64", (None,) * 5)()

    def of(x):
        return grad((block.apply(v, x, hx)[0] ** 2).sum(), v)

    f = symdnn.function([v, xs], symdnn.vmap(symdnn.vmap(of))(xs))
    given = np.random.default_rng(2).standard_normal((2, 3, *x.shape))
    one = TensorType("float64", (None,) * 3)()
    g = symdnn.function([v, one], of(one))
    for i, j in np.ndindex(2, 3):
        np.testing.assert_allclose(f(w, given)[i, j], g(w, given[i, j]), rtol=1e-9, atol=1e-12)

    def rows(x):
        return jacobian(block.apply(v, x, hx)[1].flatten(), v)

    every = symdnn.function([v, xs], symdnn.vmap(rows)(xs[0]))
    alone = symdnn.function([v, one], rows(one))
    assert not every.lowering_report().loops
    assert not alone.lowering_report().loops
    for k, part in enumerate(given[0]):
        np.testing.assert_allclose(every(w, given)[k], alone(w, part), rtol=1e-9, atol=1e-12)


@pytest.mark.cpu
def test_gradients_of_each_input_alone_compute_none_of_the_parameters():
    block = RNNBlock("float64", H, 1, "lstm")
    w, x, *states = arrays(block)
    xs = TensorType("float64", (None,) * 4)()

    def of(v):
        return grad((block.apply(w, v, *states)[0] ** 2).sum(), v)

    f = symdnn.function([xs], symdnn.vmap(of)(xs))
    (op,) = (n.op for n in f.fgraph.toposort() if isinstance(n.op, RNNGrad))
    assert not op.lanes
    one = TensorType("float64", (None,) * 3)()
    np.testing.assert_allclose(f(x[None])[0], symdnn.function([one], of(one))(x), rtol=1e-9)
