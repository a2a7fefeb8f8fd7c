"""DebugMode, MonitorMode and NanGuardMode over layers with gradients, loops, random ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.compile.modes.debug import DebugMode
from symdnn.compile.modes.monitor import MonitorMode
from symdnn.compile.modes.noise import rounded
from symdnn.compile.modes.tolerance import difference
from symdnn.compile.nanguard import NanGuardMode
from symdnn.config import config
from symdnn.errors import DebugModeError, NanDetected
from symdnn.gpu import dnn
from symdnn.graph.type import TensorType
from symdnn.ops.random.random_stream import RandomStream
from tests import op_table
from tests.op_table.record import OpCase
from tests.seeded import new_rng, sampled
from tests.test_op_table import draw, outputs, variables

SEEN: list[Any] = []


def as_theano_says(i: int, node: Any, fn: Any) -> None:
    """Theano's own ``detect_nan``, from its documentation; and a count."""
    SEEN.append(node)
    for output in fn.outputs:
        if not isinstance(output[0], np.random.RandomState) and np.isnan(output[0]).any():
            raise AssertionError(f"NaN in {node}")


def modes() -> dict[str, Any]:
    return {
        "debug": DebugMode(stability_patience=2),
        "monitor": MonitorMode(pre_func=lambda i, node, fn: None, post_func=as_theano_says),
        "nanguard": NanGuardMode(),
    }


by_mode = pytest.mark.parametrize("mode", ["debug", "monitor", "nanguard"])

#: A layer, and the shape of its input.
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "conv1": (lambda: nn.Conv1d(2, 3, 3), (2, 2, 9)),
    "conv": (lambda: nn.Conv2d(2, 8, 3, padding=1), (2, 2, 6, 6)),
    "conv_wide": (lambda: nn.Conv2d(16, 16, 3, padding=1), (2, 16, 8, 8)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 2, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 6, 6)),
    "batch_norm_1d": (lambda: nn.BatchNorm1d(5), (4, 5)),
    "batch_norm_2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "layer_norm": (lambda: nn.LayerNorm(5), (4, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3, 3)),
    "max_pool": (lambda: nn.MaxPool2d(2), (2, 2, 6, 6)),
    "avg_pool": (lambda: nn.AvgPool2d(2), (2, 2, 6, 6)),
    "dropout": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.3)), (4, 5)),
    "softmax": (lambda: nn.Sequential(nn.Linear(5, 4), nn.LogSoftmax()), (4, 5)),
    "activations": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.ELU(), nn.Sigmoid(), nn.ReLU()),
        (4, 5),
    ),
    "lstm": (lambda: nn.LSTM(5, 6, 2), (3, 4, 5)),
    "lstm_bidirectional": (lambda: nn.BLSTM(5, 6, 1), (3, 4, 5)),
    "gru": (lambda: nn.GRU(5, 6, 2), (3, 4, 5)),
    "rnn": (lambda: nn.RNNTanh(5, 6, 1), (3, 4, 5)),
    "conv_norm_relu_pool": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(72, 3),
        ),
        (4, 1, 6, 6),
    ),
}  # fmt: skip


#: Each layer with one optimiser: the updates of another one do not depend on the layer.
STEPS = [
    *((layer, "sgd") for layer in LAYERS),
    *((layer, "adam") for layer in ("linear", "conv", "batch_norm_2d", "lstm")),
]


@by_mode
@pytest.mark.parametrize(("layer", "optimiser"), sampled(STEPS, every=3))
def test_a_training_step_of_a_layer(
    layer: str, optimiser: str, mode: str, rng: np.random.Generator
) -> None:
    make, shape = LAYERS[layer]
    x = TensorType("float32", (None,) * len(shape))("x")
    module = make()
    loss = (module(x) ** 2).mean()
    if module.parameters():
        updates = getattr(nn.optim, optimiser)(loss, module, 1e-3)
    else:
        updates = []
    f = symdnn.function([x], [loss, T.grad(loss, x)], updates=updates, mode=modes()[mode])
    SEEN.clear()
    for _ in range(2):
        assert np.isfinite(f(rng.standard_normal(shape).astype("float32"))[0])
    assert bool(SEEN) == (mode == "monitor")


def looped(x: Any) -> Any:
    states, _ = symdnn.scan(lambda v, s: T.tanh(v + 0.5 * s), sequences=x, outputs_info=x[0] * 0)
    return (states**2).sum()


def nested(x: Any) -> Any:
    return symdnn.scan(lambda v: symdnn.scan(lambda u: u * v.sum(), sequences=v)[0], x)[0].sum()


def chosen(x: Any) -> Any:
    return symdnn.ifelse(T.gt(x.sum(), 0), (x[1:] ** 2).sum(), T.exp(-x).sum())


def as_an_op(x: Any) -> Any:
    v = T.fmatrix("v")
    return symdnn.OpFromGraph([v], [T.tanh(v) ** 2])(x).sum()


def drawn(x: Any) -> Any:
    stream = T.random.RandomStreams(1)
    return (x * stream.normal((4, 3)) + stream.uniform((4, 3))).sum()


@by_mode
@pytest.mark.parametrize("build", [looped, nested, chosen, as_an_op, drawn])
def test_loops_choices_graphs_and_random_numbers(
    build: Any, mode: str, rng: np.random.Generator
) -> None:
    x = T.fmatrix("x")
    cost = build(x)
    f = symdnn.function([x], [cost, T.grad(cost, x)], mode=modes()[mode])
    plain = symdnn.function([x], [cost, T.grad(cost, x)])
    for _ in range(3):
        a = rng.standard_normal((4, 3)).astype("float32")
        for got, want in zip(f(a), plain(a), strict=True):
            if build is not drawn:
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_draws_of_cudnn_are_its_own(rng: np.random.Generator) -> None:
    """Masks of cuDNN's dropout are no error, and values computed from them are not compared."""
    block = dnn.RNNBlock("float32", 4, 2, "lstm", dropout=0.5)
    x, h = T.ftensor3("x"), T.ftensor3("h")
    w = symdnn.shared(rng.standard_normal(block.get_param_size([2, 5])).astype("float32"), "w")
    y = block.apply(w, x, h, h)[0]
    x2 = T.fmatrix("x2")
    with config.change_flags(device="cuda"):
        dropped = dnn.GpuDnnDropoutOp(dropout=0.5)
        z = dropped(RandomStream(3).new_state(), x2)[0]
        f = symdnn.function([x, h], [y, T.grad(y.sum(), x)], mode=DebugMode(stability_patience=2))
        g = symdnn.function([x2], [z, T.grad(z.sum(), x2)], mode=DebugMode(stability_patience=2))
    f(*(rng.standard_normal(s).astype("float32") for s in ((3, 2, 5), (2, 2, 4))))
    g(rng.standard_normal((6, 7)).astype("float32"))


CASES = op_table.load()


def check_record(case: OpCase, mode: Any) -> None:
    arrays = draw(case, 8)
    vs = variables(case, arrays)
    outs = [o for o in outputs(case, vs) if isinstance(o.type, TensorType)]
    symdnn.function(vs, outs, mode=mode, on_unused_input="ignore")(*arrays)


@pytest.mark.parametrize("part", range(8))
def test_records_of_the_op_table(part: int, rng: np.random.Generator) -> None:
    """A few of them; the whole table is a slow test."""
    for i in rng.permutation(len(CASES))[:6]:
        nothing = MonitorMode(post_func=lambda i, node, fn: [np.shape(o[0]) for o in fn.outputs])
        guard = NanGuardMode(nan_is_error=False, inf_is_error=False, big_is_error=False)
        debug = DebugMode(stability_patience=2, check_isfinite=False)
        for mode in (nothing, guard, debug):
            check_record(CASES[i], mode)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_monitor_and_nan_guard_take_every_record(case: OpCase) -> None:
    shapes: list[Any] = []
    monitor = MonitorMode(post_func=lambda i, node, fn: shapes.extend(map(np.shape, fn.outputs)))
    check_record(case, monitor)
    guard = NanGuardMode(nan_is_error=False, inf_is_error=False, big_is_error=True)
    with config.change_flags(**{"NanGuardMode.action": "warn"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_record(case, guard)


# -- what is rounding, and what is not -------------------------------------------------------------


def samples(f: Any, x: np.ndarray) -> list[Any]:
    rng = new_rng()
    return [np.asarray(f(rounded(x, rng))) for _ in range(2)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_that_cancels_is_not_known_well(dtype: str, rng: np.random.Generator) -> None:
    a = rng.standard_normal(10_001)
    x = np.concatenate([a, -rng.permutation(a)]).astype(dtype)

    def total(v: np.ndarray) -> Any:
        return np.asarray(v.sum(), dtype) / np.abs(v).max() ** 2 * 1e6

    wanted, got = np.asarray(total(x)), np.asarray(total(x[::-1].copy()))
    assert difference(wanted, got, samples=samples(total, x)) == ""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_what_is_no_rounding_is_found(dtype: str, size: float, rng: np.random.Generator) -> None:
    if dtype == "float16" and size < 1:
        pytest.skip("float16 has no digits there")
    x = (rng.uniform(0.5, 2, 1000) * size).astype(dtype)
    off = 0.3 if dtype == "float16" else 1e-2 if dtype == "float32" else 1e-6

    def square(v: np.ndarray) -> Any:
        return v * (v / size).astype(dtype)

    wanted = square(x)
    assert difference(wanted, wanted, samples=samples(square, x)) == ""
    wrong = wanted.copy()
    wrong[np.argmax(np.abs(wrong))] *= 1 + off
    assert "difference" in difference(wanted, wrong, samples=samples(square, x))


def test_comparisons_of_what_rounding_decides(rng: np.random.Generator) -> None:
    x = np.float32(rng.uniform(0.1, 0.9, 100))
    factor = np.repeat(np.float32([0.5, 1]), 50)  # the root's rounding decides about 1

    def above(v: np.ndarray) -> Any:
        return np.sqrt(v) ** 2 > x * factor

    wanted = above(x)
    found = [above(rounded(x, rng)) for _ in range(8)]
    unsure = [k for k in range(100) if len({bool(f[k]) for f in (wanted, *found)}) == 2]
    assert unsure
    assert min(unsure) >= 50
    turned = wanted.copy()
    turned[unsure] ^= True
    assert difference(wanted, turned, samples=found) == ""
    turned[0] ^= True
    assert "1 of 100" in difference(wanted, turned, samples=found)


def test_debug_mode_still_finds_a_wrong_rewrite(monkeypatch: Any) -> None:
    from symdnn.ops.array.reduce import Sum
    from symdnn.opt import optimise, phases
    from symdnn.rewriting.rewrite import Rewrite

    done: list[Any] = []

    def wrong(node: Any, context: Any) -> Any:
        if done:
            return None
        done.append(node)
        return node.op(node.inputs[0] * np.float32(1.001))

    rule = Rewrite("wrong", "canonicalize", (Sum,), wrong)
    monkeypatch.setattr(optimise, "RULES", (rule, *phases.RULES))
    x = T.fvector("x")
    f = symdnn.function([x], x.sum(), mode=DebugMode(stability_patience=1))
    with pytest.raises(DebugModeError, match="rewrite wrong replaced"):
        f(np.linspace(0.1, 1.3, 50, dtype="float32"))


@pytest.mark.parametrize("mode", [NanGuardMode(), DebugMode(), symdnn.Mode()])
def test_a_failing_node_is_described_once(mode: Any) -> None:
    x = T.fvector("x")
    f = symdnn.function([x], [T.log(x) * 2, x[3]], mode=mode)
    with pytest.raises((NanDetected, DebugModeError, IndexError)) as caught:
        f(np.float32([-1, 2]))
    notes = caught.value.__notes__
    assert sum("test_checking_modes.py" in note for note in notes) == 1, notes


@pytest.mark.parametrize("mode", [NanGuardMode, DebugMode])
def test_an_infinity_that_the_program_writes_is_no_fault(mode: Any) -> None:
    """The maximum of no elements is where a segment's maximum begins; as a result it is one."""
    x, i = T.dvector(), T.lvector()
    largest = symdnn.function([x, i], T.segment_max(x, i, num_segments=x.shape[0]), mode=mode())
    assert largest(np.arange(3.0), [2, 1, 0]).tolist() == [2, 1, 0]
    with pytest.raises((NanDetected, DebugModeError), match="finite|an infinity in 1 of 3"):
        largest(np.arange(3.0), [2, 1, 1])


@pytest.mark.parametrize("mode", [NanGuardMode, DebugMode])
@pytest.mark.parametrize("form", ["weights", "outside", "inner", "big", "assigned"])
def test_places_that_a_choice_fills_are_no_faults(form: str, mode: Any) -> None:
    """Hidden scores; sums weighted by 0 have them inside of their stable form. A NaN beside them
    is a fault, and so is what is computed from them."""
    s, m = T.fmatrix(), T.fmatrix()
    seen = T.gt(m, 0)
    hidden = {
        "outside": T.where(seen, s, -np.inf),
        "inner": T.where(T.lt(s, 9), T.where(seen, s, -np.inf), 0.0),
        "big": T.where(seen, s, -1e30),
        "assigned": T.set_subtensor(s[T.eq(m, 0).nonzero()], -np.inf),
    }
    e = T.exp(s - s.max(1, keepdims=True)) * m if form == "weights" else T.exp(hidden[form])
    p = e / e.sum(1, keepdims=True)
    scores, mask = np.array([[1, 2, 3], [0, 4, -1]], "f"), np.array([[1, 1, 0], [1, 0, 1]], "f")
    results = [p, T.grad((p**2).sum(), s), hidden.get(form, s)]
    got = symdnn.function([s, m], results, mode=mode(), on_unused_input="ignore")(scores, mask)
    weights = np.exp(scores) * mask
    np.testing.assert_allclose(got[0], weights / weights.sum(1, keepdims=True), 1e-6)
    if form == "weights" or (form == "big" and mode is DebugMode):
        return
    for wrong in (T.where(seen, T.sqrt(s), -np.inf), -hidden[form]):
        with pytest.raises((NanDetected, DebugModeError), match="NaN|infinity|finite|above"):
            symdnn.function([s, m], wrong, mode=mode())(scores, mask)


@pytest.mark.parametrize("mode", [NanGuardMode, DebugMode])
def test_elements_that_a_mask_leaves_out_are_no_faults(mode: Any) -> None:
    """Neither alone, nor in a reduction, a product or an assignment; those that it takes are."""
    x, m = T.dvector(), T.TensorType("bool", (None,))()
    chosen = T.log(x[m])
    results = [chosen, chosen.max(), T.dot(1 / x[m], x[m]), T.set_subtensor(x[m], chosen)]
    f = symdnn.function([x, m], results, mode=mode())
    given, some = np.array([0.0, 2, 0, 3]), np.array([False, True, False, True])
    got = f(given, some)
    np.testing.assert_allclose(got[0], np.log([2, 3]))
    np.testing.assert_allclose(got[3], [0, np.log(2), 0, np.log(3)])
    with pytest.raises((NanDetected, DebugModeError), match="infinity|finite"):
        f(given, ~some)


def test_a_copy_of_a_graph_is_rewritten_as_the_graph() -> None:
    """Stable forms are known by the user's variables, which a copy of a copy has, too."""
    s, m = T.fmatrices(2)
    cost = (T.log((T.exp(s) * m).sum(1)) ** 2).sum()
    scores = np.array([[1, 2], [3, 1]], "f")
    found = symdnn.function([s, m], T.grad(cost, s), mode=DebugMode())(scores, scores > 1.5)
    np.testing.assert_allclose(found, [[0, 4], [6, 0]], 1e-6, 1e-6)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_signs_of_vectors_are_arbitrary(dtype: str, rng: np.random.Generator) -> None:
    """What a kernel gives is compared with the reference up to what the op leaves open."""
    x = T.TensorType(dtype, (None, None))("x")
    tall = symdnn.function([x], T.linalg.svd(x, full_matrices=False), mode=DebugMode())
    square = symdnn.function([x], [*T.linalg.eigh(x), *T.linalg.svd(x)], mode=DebugMode())
    for _ in range(20):
        a = rng.standard_normal((5, 3)) + 1j * rng.standard_normal((5, 3))
        tall(a.astype(dtype) if dtype == "complex128" else a.real)
        b = a[:3] + a[:3].conj().T
        square(b.astype(dtype) if dtype == "complex128" else b.real)


@pytest.mark.parametrize("faulty", ["input", "result", "result read on the host"])
def test_one_fault_is_one_warning(faulty):
    """Also where a value is copied to a device and back."""
    x = T.dvector("x")
    y = T.log(x)
    out = {"input": x * 0, "result": y, "result read on the host": y}[faulty]
    outs = [out, T.nonzero(out > 1)[0]] if "host" in faulty else [out]
    given = np.array([1.0, np.nan if faulty == "input" else -1.0])
    f = symdnn.function([x], outs, mode=NanGuardMode())
    with (
        config.change_flags(**{"NanGuardMode.action": "warn"}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        f(given)
    told = [str(w.message) for w in caught if "NanGuardMode" in str(w.message)]
    wanted = ["the input x", "Mul"] if faulty == "input" else ["Log"]
    assert len(told) == len(wanted)
    assert all(w in t for w, t in zip(wanted, told))
