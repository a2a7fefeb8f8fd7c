"""Recurrent networks by compiled kernels: values, gradients, threads, and what is refused."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm import gemm_ir
from symdnn.cpu.ir.builder import DECLARED, WIDTH, Builder
from symdnn.cpu.ir.vector_activations_ir import activation_declarations, sigmoid, tanh
from symdnn.cpu.rnn import recurrent, recurrent_layers
from symdnn.cpu.rnn.recurrent import RecurrentGradKernel, RecurrentKernel
from symdnn.cpu.threads import threads
from symdnn.ops.nn.rnn import RNNBlock, RNNForward, RNNGrad
from tests.cpu.harness import called, launched
from tests.seeded import new_rng

missing = jit.problem() or threads.problem()
pytestmark = pytest.mark.skipif(bool(missing) or jit.vector_width() < 8, reason=missing or "no AVX")
MODES = ["lstm", "gru", "rnn_tanh", "rnn_relu"]
#: (steps, batch, inputs, hidden, layers, directions)
SIZES = [
    (1, 1, 1, 1, 1, 1), (1, 3, 5, 16, 1, 1), (7, 1, 4, 17, 2, 1), (6, 9, 33, 50, 1, 2),
    (5, 4, 3, 6, 3, 2), (11, 40, 20, 32, 1, 1), (9, 33, 150, 100, 2, 2), (70, 5, 8, 24, 1, 1),
    (45, 2, 9, 20, 1, 2),  # three chunks of steps, the last one shorter, in both directions
]  # fmt: skip


@pytest.fixture
def forms(monkeypatch):
    """What the forward kernels that are made depend on, beside their plan and inputs."""
    found, kernel = list[tuple[bool, ...]](), threads.kernel

    def noted(made, *given):
        if made is recurrent.forward_ir:
            found.append(given[3:])
        return kernel(made, *given)

    monkeypatch.setattr(threads, "kernel", noted)
    return found


@pytest.fixture(params=[16, 8])
def width(request, monkeypatch):
    """Vectors of AVX-512 and of AVX2."""
    if jit.vector_width() < request.param:
        pytest.skip("the processor's vectors are shorter")
    monkeypatch.setattr(jit, "vector_width", lambda: request.param)
    return request.param


class Case:
    """A network, its inputs, and the reference's results in float64."""

    def __init__(self, mode, steps, batch, features, hidden, layers, directions):
        rng = new_rng()
        direction = "bidirectional" if directions == 2 else "unidirectional"
        fields = (mode, hidden, layers, "linear", direction)
        self.op, self.grad = RNNForward(*fields), RNNGrad(*fields)
        size, depth = int(self.op.layout.size(features)), layers * directions

        def normal(*shape, scale=1.0):
            return (rng.normal(size=shape) * scale).astype("f4")

        self.w = normal(size, scale=0.7 / np.sqrt(hidden))
        self.x = normal(steps, batch, features)
        self.states = [normal(depth, batch, hidden) for _ in range(1 + self.op.has_cell)]
        self.given = [self.w, self.x, *self.states]
        self.dy = normal(steps, batch, directions * hidden)
        self.dstates = [normal(*s.shape) for s in self.states]

    def is_smooth(self):
        """Whether rounding turns no unit of a relu on or off: gradients jump there."""
        rng, (_, gradients) = new_rng(), self.expected()
        for _ in range(4 if self.op.rnn_mode == "rnn_relu" else 0):
            given = [a * (1 + 2.0**-20 * rng.uniform(-1, 1, a.shape)) for a in self.given]
            for a, b in zip(self.expected(given)[1], gradients, strict=True):
                if not np.allclose(a, b, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(b).max())):
                    return False
        return True

    def expected(self, given=None):
        """Results and gradients."""
        wide = [a.astype("f8") for a in given or self.given]
        *found, kept = self.op.compute(*wide)
        rest = [a.astype("f8") for a in (self.dy, *self.dstates)]
        return found, self.grad.compute(*wide, found[0], *rest, kept)

    def forward(self, keeps=True):
        """(results, reserve)"""
        op = replace(self.op, keeps_reserve=keeps)
        *found, last = launched(RecurrentKernel(), called(op, self.given), self.given)
        return (found, last) if keeps else ([*found, last], None)

    def backward(self, y, reserve):
        """Gradients of the parameters, the input and the first states."""
        given = [*self.given, y, self.dy, *self.dstates, reserve]
        return launched(RecurrentGradKernel(), called(self.grad, given), given)

    def both(self):
        """Results and gradients of the kernels."""
        found, reserve = self.forward()
        return found, self.backward(found[0], reserve)


def close(found, wanted, scale=1e-5):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=scale, atol=scale * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_values_and_all_gradients(mode, sizes, width):
    case = next(c for c in (Case(mode, *sizes) for _ in range(20)) if c.is_smooth())
    wanted, gradients = case.expected()
    for count in (1, 2):
        with config.change_flags({"openmp.threads": count}):
            found, made = case.both()
        close(found, wanted)
        close(made, gradients)


@pytest.mark.parametrize("mode", MODES)
def test_large_matrices_are_read_for_many_sequences(mode, width, monkeypatch):
    case = Case(mode, 4, 37, 70, 100, 1, 2)
    wanted, gradients = case.expected()
    monkeypatch.setattr(recurrent_layers, "_CACHED_BYTES", 0)
    found = []
    for rows in (1, 24):
        monkeypatch.setattr(recurrent_layers, "_MOST_TILE_ROWS", rows)
        results, made = case.both()
        close(results, wanted)
        close(made, gradients)
        found.append([*results, *made])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_inference_gives_the_same_bits(mode, width):
    case = Case(mode, 6, 5, 10, 40, 2, 2)
    for a, b in zip(case.forward()[0], case.forward(keeps=False)[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_threads_gives_the_same_bits(mode):
    case, found = Case(mode, 12, 33, 70, 100, 1, 2), []
    for count in (1, 2, 3):
        with config.change_flags({"openmp.threads": count}):
            results, gradients = case.both()
        found.append([*results, *gradients])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_plan_for_more_threads_runs_in_one():
    case = Case("lstm", 9, 20, 40, 64, 1, 1)
    op = case.op
    with config.change_flags({"openmp.threads": 2}):
        launch = RecurrentKernel().bind(called(op, case.given))
    wanted = case.expected()[0]
    for count in (1, 4, 2):
        outputs = [np.full(a.shape, np.nan, "f4") for a in wanted]
        with config.change_flags({"openmp.threads": count}):
            launch(case.given, [*outputs, None])
        close(outputs, wanted)


def test_sizes_of_layers_are_worked_out_once(monkeypatch):
    case = Case("lstm", 7, 2, 4, 17, 2, 2)
    x = [T.TensorType("float32", a.shape)() for a in case.given]
    f = symdnn.function(x, case.op(*x), mode=symdnn.Mode(target="cpu"))
    first = f(*case.given)[:-1]  # the last one is the reserve
    monkeypatch.setattr(recurrent.RecurrentLayer, "sizes", None)
    for found, wanted in zip(f(*case.given), first, strict=False):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("hidden", [48, 70])
def test_parameters_stay_packed_until_they_change(hidden):
    block, rng = RNNBlock("float32", hidden, 2, "lstm"), new_rng()
    w = symdnn.shared(rng.normal(size=block.get_param_size(20)).astype("f4") / 8)
    x, h = T.ftensor3("x"), np.zeros((2, 3, hidden), "f4")
    y = block.apply(w, x, h, h)[0]
    f = symdnn.function([x], y, mode=symdnn.Mode(target="cpu"))
    data = rng.normal(size=(9, 3, 20)).astype("f4")
    for factor in (1, -1):
        w.set_value(factor * w.get_value())
        first = f(data)  # packs in scratch memory
        for count in (2, 2, 1, 2, 3):
            with config.change_flags({"openmp.threads": count}):
                np.testing.assert_array_equal(f(data), first)
        anew = symdnn.function([x], y, mode=symdnn.Mode(target="cpu"))
        np.testing.assert_array_equal(first, anew(data))


@pytest.mark.parametrize("sizes", [
    (7, 1, 4, 18, 2, 1), (45, 1, 10, 20, 1, 2), (9, 33, 50, 70, 2, 2), (5, 3, 6, 7, 1, 1),
    (3, 1, 5, 17, 1, 1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
def test_parameters_of_bfloat16_are_kept_so(mode, sizes, width, forms):
    """Results have the digits of float32, for inputs of bfloat16 and for others."""
    _, batch, features, hidden, *_ = sizes
    case = Case(mode, *sizes)
    given = [T.tensor("float32", a.shape) for a in case.given[1:]]
    w = symdnn.shared(case.w.astype("bfloat16"))
    op = replace(case.op, keeps_reserve=False)
    outputs = op(T.cast(w, "float32"), *given)
    f = symdnn.function(given, outputs, mode=symdnn.Mode(target="cpu"))
    wide = w.get_value().astype("f4")
    rounded = case.x.astype("bfloat16").astype("f4")
    odd = rounded.copy()
    odd[-1, -1, -1] += 2.0**-14
    for x in (rounded, case.x, odd):
        found = []
        for count in (1, 2, 2):
            with config.change_flags({"openmp.threads": count}):
                found.append(f(x, *case.states))
        wanted = case.expected([wide, x, *case.states])[0]
        close(found[0], wanted)
        for others in found[1:]:
            for a, b in zip(others, found[0], strict=True):
                np.testing.assert_array_equal(a, b)
    one = batch == 1 and hidden % 2 == 0
    pairs = width == 16 and jit.has("avx512bf16")
    assert all(form[0] == one for form in forms)
    assert (features % 2 == 0 and pairs) in [form[1] for form in forms]


@pytest.mark.parametrize("sizes", [
    (1, 33, 6, 50, 1, 2), (45, 2, 9, 20, 1, 2), (9, 33, 50, 70, 2, 2), (5, 3, 6, 7, 1, 1),
    (6, 1, 6, 20, 1, 1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
def test_states_that_may_be_rounded_are_multiplied_in_pairs(mode, sizes, forms):
    steps, batch, _, hidden, *_ = sizes
    case = Case(mode, *sizes)
    given = [T.tensor("float32", a.shape) for a in case.given[1:]]
    w = symdnn.shared(case.w.astype("bfloat16"))
    op = replace(case.op, keeps_reserve=False, rounds_states=True)
    f = symdnn.function(given, op(T.cast(w, "float32"), *given), mode=symdnn.Mode(target="cpu"))
    x = case.x.astype("bfloat16").astype("f4")
    found = []
    for count in (1, 2):
        with config.change_flags({"openmp.threads": count}):
            found.append(f(x, *case.states))
    rounds = jit.vector_width() == 16 and jit.has("avx512bf16") and batch > 1 and hidden % 2 == 0
    assert {form[2] for form in forms} == {rounds}
    first, *more = case.states
    if rounds and steps == 1 and mode != "gru":  # whose state is not only multiplied
        first = first.astype("bfloat16").astype("f4")
    wanted = case.expected([w.get_value().astype("f4"), x, first, *more])[0]
    close(found[0], wanted, 2e-2 if rounds and (steps > 1 or mode == "gru") else 1e-5)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_operands_that_are_not_contiguous():
    case = Case("gru", 6, 5, 7, 20, 1, 1)
    wanted, gradients = case.expected()
    case.given = [np.repeat(a, 2, axis=-1)[..., ::2] for a in case.given]
    case.dy = np.asfortranarray(case.dy)
    found, made = case.both()
    close(found, wanted)
    close(made, gradients)


def test_a_reserve_may_be_read_twice_and_is_used_again_when_it_is_gone():
    case = Case("lstm", 6, 5, 7, 20, 2, 1)
    op = case.op
    launch = RecurrentKernel().bind(called(op, case.given))

    def run():
        outputs = [np.empty(a.shape, "f4") for a in case.expected()[0]]
        return launch(case.given, [*outputs, None])

    (y, *_, first), (*_, second) = run(), run()
    memory = [id(r.memory[0][0]) for r in (first, second)]
    assert memory[0] != memory[1]
    once, again = case.backward(y, first), case.backward(y, first)
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)
    del first
    *_, third = run()
    assert id(third.memory[0][0]) == memory[0]


def test_nan_and_infinity_go_their_way():
    case = Case("lstm", 4, 3, 5, 20, 1, 1)
    case.x[1, 1, 2], case.x[2, 2, 0] = np.nan, np.inf
    y = case.forward()[0][0]
    assert np.isfinite(y[:, 0]).all()
    assert np.isfinite(y[:1]).all()
    assert np.isnan(y[1:, 1]).all()
    assert np.isfinite(y[:, 2]).all()


@pytest.mark.parametrize(
    ("function", "wanted"),
    [(sigmoid, lambda x: 1 / (1 + np.exp(-x))), (tanh, np.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_functions_of_vectors(function, wanted, width):
    x = np.concatenate([
        new_rng().normal(size=20000) * 10.0 ** np.arange(-7, 3)[:, None],
    ], axis=None).astype("f4")  # fmt: skip
    x = np.append(x, [0, -0.0, 1e-40, 87, -86, 9.5, 200, -200, np.inf, -np.inf, np.nan] + [1] * 5)
    x = x.astype("f4")
    y = applied(function, x, width)
    exact = wanted(x.astype("f8"))
    normal = np.abs(exact) > 1e-37
    apart = np.abs(y - exact)[normal] / np.spacing(np.abs(exact[normal]).astype("f4"))
    assert apart.max() < 4
    np.testing.assert_allclose(y, exact, atol=2e-38, rtol=1e-6)


def applied(function, x, width):
    """A function of vectors on an array of whole ones."""
    s = Builder()
    s.lines += ["define void @kernel(ptr %x, ptr %y) #0 {", "entry:"]

    with s.each("vector", 0, str(x.size // WIDTH)) as i:
        at = s.affine(i, WIDTH)
        s.store(function(s, s.load(s.at("%x", at)), width), s.at("%y", at))
    s.lines += ["ret void", "}", gemm_ir.attributes(gemm_ir.shape_of(width))]
    lines = [*dict.fromkeys([*DECLARED, *activation_declarations(width)]), *s.lines]
    run = jit.compile_function("\n".join(lines) + "\n", "kernel", *[ctypes.c_void_p] * 2)
    y = np.empty_like(x)
    assert x.size % WIDTH == 0
    run(x.ctypes.data, y.ctypes.data)
    return y


# -- what is taken --------------------------------------------------------------------------------


def kernels_of(hidden, flags=(), mode="rnn_tanh"):
    """The names of the kernels of a network and of its gradient."""
    block = RNNBlock("float32", hidden, 1, mode)
    w = symdnn.shared(np.zeros(block.get_param_size(8), "f4"))
    x, h = T.ftensor3("x"), np.zeros((1, 3, hidden), "f4")
    loss = block.apply(w, x, h, h if mode == "lstm" else None)[0].sum()
    with config.change_flags(dict(flags)):
        f = symdnn.function([x], T.grad(loss, w), mode=symdnn.Mode(target="cpu"))
        f(np.zeros((4, 3, 8), "f4"))
        return set(f.lowering_report().kernels())


def test_the_report_says_which_one_runs():
    assert "llvm.recurrent" in kernels_of(32)
    assert "llvm.recurrent" not in kernels_of(32, {"cpu.compile": "never"})


def test_two_reserves_are_kept_apart():
    """Of the kernels, and of the reference."""
    x, rng = T.ftensor3("x"), new_rng()
    block = RNNBlock("float32", 5, 1, "lstm")
    w = symdnn.shared(rng.normal(size=block.get_param_size(4)).astype("float32"))
    h, c = (np.zeros((1, 3, 5), "float32") for _ in range(2))
    loss = (block.apply(w, x, h, c)[0] ** 2).sum() + (block.apply(w, 2 * x, h, c)[0] ** 3).sum()
    value, found = rng.normal(size=(6, 3, 4)).astype("float32"), []
    for compiles in ("auto", "never"):
        with config.change_flags({"cpu.compile": compiles}):
            mode = symdnn.Mode(target="cpu")
            found.append(symdnn.function([x], T.grad(loss, [w, x]), mode=mode)(value))
    close(*found)


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"lengths": True}, "lengths"), ({"dropout": 0.5, "num_layers": 2}, "dropout"),
     ({"input_mode": "skip"}, "skipped")],
)  # fmt: skip
def test_what_it_has_not_is_refused(fields, word):
    case = Case("lstm", 4, 3, 5, 20, 1, 1)
    call = called(case.op, case.given)
    odd = replace(call, op=replace(case.op, **fields))
    assert RecurrentKernel().refuses(call) is None
    assert word in RecurrentKernel().refuses(odd)


@pytest.mark.parametrize("sizes", [(0, 3, 5), (4, 0, 5)])
def test_nothing_to_do_is_refused(sizes):
    case = Case("lstm", *sizes, 6, 1, 1)
    assert "empty" in RecurrentKernel().refuses(called(case.op, case.given))


def test_other_numbers_are_refused():
    case = Case("gru", 4, 3, 5, 20, 1, 1)
    call = called(case.op, [a.astype("f8") for a in case.given])
    assert "float32" in RecurrentKernel().refuses(call)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_each_lane_are_those_of_its_sequences(mode):
    lanes, examples, steps = 3, 2, 140  # two blocks of steps
    case = Case(mode, steps, lanes * examples, 5, 20, 2, 2)
    layout = case.op.layout
    block = RNNBlock("float32", 20, 2, mode, direction_mode="bidirectional")
    split = [a.reshape(a.shape[0], lanes, examples, -1) for a in case.given[1:]]
    w, stacked = T.fvector(), [T.TensorType("float32", (None,) * 4)() for _ in split]

    def of(*given):
        return grad((block.apply(w, *given)[0] ** 2).sum(), [w, *given])

    f = symdnn.function([w, *stacked], symdnn.vmap(of, in_axes=1)(*stacked))
    one = [T.TensorType("float32", (None,) * 3)() for _ in split]
    g = symdnn.function([w, *one], of(*one))
    got = f(case.w, *split)
    assert got[0].shape == (lanes, layout.size(5))
    for lane in range(lanes):
        want = g(case.w, *(a[:, lane] for a in split))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a[lane], b, rtol=2e-3, atol=2e-4 * np.abs(b).max())
