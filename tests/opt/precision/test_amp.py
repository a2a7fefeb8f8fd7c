"""Mixed precision: which values are in 16 bits, which in float32, and equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import Hints
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.lowered.gathered import PlacedSums
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy
from symdnn.ops.nn.dropout import Dropout, DropoutGrad, dropout
from symdnn.ops.vendor import gpudnn as G
from symdnn.ops.vendor.gpublas import GpuGemmBase, GpuGemmKept
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from symdnn.opt.precision.amp import precision_reason
from tests.opt.lowering import ALL, CPU, GPU, rewritten
from tests.opt.nets import NETS, arguments, training

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
#: What rounding each product's operands may cost.
CLOSE = {"bf16": 3e-2, "fp16": 4e-3}
PLAIN = ALL.excluding("epilogue")
PRODUCTS = (G.DnnConvolution, Dot, BatchedDot, GpuGemmBase, G.GpuDnnRNNBase)


@contextmanager
def amp(value: str, **flags: Any) -> Iterator[None]:
    with config.change_flags(amp=value, **{"gpu.layout": "nchw", **flags}):
        yield


def products(fgraph: FunctionGraph) -> list[Any]:
    return [n for n in fgraph.toposort() if isinstance(n.op, PRODUCTS)]


def dtypes_of_products(fgraph: FunctionGraph) -> set[str]:
    return {n.inputs[0].type.dtype for n in products(fgraph)}


def dtypes(fgraph: FunctionGraph, *ops: type) -> set[str]:
    """Dtypes that the first operands of these ops have."""
    return {n.inputs[0].type.dtype for n in fgraph.toposort() if isinstance(n.op, ops)}


def agree(
    fgraph: FunctionGraph, vs: Any, outputs: Any, arrays: Any, close: float, types: bool = True
) -> None:
    """The rewritten graph's values are near the plain one's, each in size of its largest."""
    want = evaluate(list(outputs), dict(zip(vs, arrays)))
    got = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, arrays)))
    for a, b in zip(got, want, strict=True):
        if types:
            assert a.dtype == b.dtype
        assert a.shape == b.shape
        scale = np.abs(b.astype("float64")).max() + 1e-3
        assert np.abs(a.astype("float64") - b.astype("float64")).max() <= close * scale


def f32(*shape: int | None, name: str = "x") -> Any:
    return TensorType("float32", shape)(name)


# -- nets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", DTYPES)
@pytest.mark.parametrize("name", NETS)
def test_training_in_mixed_precision(name: str, value: str) -> None:
    inputs, outputs, _ = training(name)
    with amp(value):
        fgraph = rewritten(inputs, outputs, selection=PLAIN)
    assert dtypes_of_products(fgraph) == {DTYPES[value]}
    assert dtypes(fgraph, SoftmaxCrossentropy) == {"float32"}
    assert dtypes(fgraph, G.GpuDnnPoolBase) <= {DTYPES[value]}
    assert [v.type.dtype for v in fgraph.outputs] == ["float32"] * len(outputs)
    agree(fgraph, inputs, outputs, arguments(name), 8 * CLOSE[value])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_channels_last_and_mixed_precision(layout: str) -> None:
    inputs, outputs, _ = training("resnet")
    with amp("bf16", **{"gpu.layout": layout}):
        fgraph = rewritten(inputs, outputs)
    assert {n.op.layout for n in products(fgraph) if "NHWC" in getattr(n.op, "layouts", ())} == {
        layout.upper()
    }
    agree(fgraph, inputs, outputs, arguments("resnet"), 8 * CLOSE["bf16"])


def test_normalisation_keeps_its_statistics_in_float32() -> None:
    inputs, outputs, _ = training("resnet")
    with amp("bf16"):
        fgraph = rewritten(inputs, outputs)
    for node in fgraph.toposort():
        if isinstance(node.op, G.GpuDnnBatchNorm):
            assert [v.type.dtype for v in node.inputs] == ["bfloat16", "float32", "float32"]
            assert [v.type.dtype for v in node.outputs] == ["bfloat16", "float32", "float32"]
        if isinstance(node.op, G.GpuDnnBatchNormGrad):
            found = [v.type.dtype for v in node.inputs]
            assert found == ["bfloat16"] * 2 + ["float32"] * 3
            assert [v.type.dtype for v in node.outputs] == ["bfloat16", "float32", "float32"]


@pytest.mark.parametrize("name", NETS)
def test_updates_are_of_the_float32_values(name: str) -> None:
    """A step that is too small to change anything leaves every bit of the parameters."""
    inputs, outputs, parameters = training(name)
    loss, rate = outputs[0], np.float32(1e-30)
    nexts = [p - rate * g for p, g in zip(parameters, T.grad(loss, parameters))]
    with amp("bf16"):
        fgraph = rewritten(inputs, [loss, *nexts])
    found = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, arguments(name))))
    for p, new in zip(parameters, found[1:], strict=True):
        np.testing.assert_array_equal(p.get_value(), new)


def test_a_parameter_is_rounded_once() -> None:
    inputs, outputs, parameters = training("vgg")
    with amp("bf16"):
        fgraph = rewritten(inputs, outputs)
    rounded = [
        n.inputs[0] for n in fgraph.toposort()
        if n.op == Cast("bfloat16")
        and (found := entering(n.inputs[0])) is not None
        and found.ndim > 1
    ]  # fmt: skip
    kernels = [p for p in parameters if p.ndim > 1]
    assert sorted(entering(v).name or "" for v in rounded) == ["", *[""] * (len(kernels) - 1), "x"]
    assert len(set(map(entering, rounded))) == len(rounded) == len(kernels) + 1


def entering(v: Any) -> Any:
    """The input or shared variable that ``v`` is a view of; None for anything computed."""
    views = ("DimShuffle", "GpuFromHost", "HostFromGpu", "SpecifyType")
    while v.owner is not None and type(v.owner.op).__name__ in views:
        v = v.owner.inputs[0]
    return v if v.owner is None else None


# -- single rules ---------------------------------------------------------------------------------

X, Y, W = (4, 6), (6, 5), (6, 5)


def of_product(build: Callable[[Any], Any]) -> FunctionGraph:
    """The graph of ``build`` of a product, its values checked."""
    x, w = f32(*X), f32(*W, name="w")
    outputs = [build(T.dot(x, w))]
    with amp("bf16"):
        fgraph = rewritten([x, w], outputs, selection=PLAIN)
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(-1, 1, s).astype("float32") for s in (X, W)]
    agree(fgraph, [x, w], outputs, arrays, 4 * CLOSE["bf16"])
    return fgraph


def stored(fgraph: FunctionGraph) -> list[str]:
    """Dtypes of rounded values, in order: results of GEMMs, and casts."""
    return [
        n.op.dtype for n in fgraph.toposort()
        if isinstance(n.op, Cast) and entering(n.inputs[0]) is None
    ]  # fmt: skip


def test_what_follows_a_product_is_computed_in_float32() -> None:
    fgraph = of_product(lambda y: T.dot(T.nnet.relu(y * 2 + 1), np.eye(5, dtype="float32")))
    assert dtypes(fgraph, Elemwise) == {"float32", "bfloat16"}
    arithmetic = [n for n in fgraph.toposort() if isinstance(n.op, Elemwise)
                  and not isinstance(n.op, Cast)]  # fmt: skip
    assert {v.type.dtype for n in arithmetic for v in n.outputs} == {"float32"}
    assert stored(fgraph) == ["float32", "bfloat16", "float32"]  # widened, stored, the result


@pytest.mark.parametrize(
    "build",
    [
        lambda y: T.exp(y),
        lambda y: T.log(T.sqr(y) + 1).sum(),
        lambda y: T.nnet.softmax(y),
        lambda y: y.mean(),
        lambda y: y.norm(2),
        lambda y: T.nnet.logsoftmax(y + 1),
        lambda y: T.cumsum(y),
    ],
    ids=["exp", "log", "softmax", "mean", "norm", "log softmax", "another op"],
)
def test_what_needs_float32_gets_it(build: Callable[[Any], Any]) -> None:
    fgraph = of_product(build)
    assert stored(fgraph) == ["float32"]  # the GEMM's result is widened, nothing is rounded


@pytest.mark.parametrize(
    "build",
    [
        lambda y: y.dimshuffle(1, 0),
        lambda y: y.reshape((2, 10)),
        lambda y: T.concatenate([y, y * 2], axis=0),
        lambda y: T.concatenate([y, T.zeros_like(y)], axis=0),
        lambda y: y[1:, ::2],
        lambda y: T.pad(y, 1),
        lambda y: T.inc_subtensor(T.zeros_like(y)[1:], y[1:]),
        lambda y: y * (y > 0),
        lambda y: T.switch(y > 0, y, 0),
        lambda y: T.tanh(y) * 0.5 + T.nnet.sigmoid(y),
        lambda y: T.clip(T.maximum(y, 0), -1, 1),
    ],
)
def test_what_may_stay_in_16_bits(build: Callable[[Any], Any]) -> None:
    def chain(y: Any) -> Any:
        h = build(y)
        return T.dot(h, np.ones((h.type.shape[1], 2), "float32"))

    fgraph = of_product(chain)
    _, second = products(fgraph)
    assert second.inputs[0].type.dtype == "bfloat16"
    assert stored(fgraph)[-1] == "float32"
    assert stored(fgraph).count("bfloat16") <= 2


def test_a_sum_with_a_float32_value_is_float32() -> None:
    fgraph = of_product(lambda y: y + T.exp(y.sum(axis=1, keepdims=True) * T.ones_like(y)))
    assert "bfloat16" not in stored(fgraph)


def test_a_result_is_not_rounded_for_its_other_readers() -> None:
    x, w = f32(*X), f32(*W, name="w")
    h = T.tanh(T.dot(x, w))
    with amp("bf16"):
        fgraph = rewritten([x, w], [h, T.dot(h, np.eye(5, dtype="float32"))], selection=PLAIN)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, s).astype("float32") for s in (X, W)]
    shown, _ = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, arrays)))
    assert (shown != shown.astype(numpy_dtype("bfloat16")).astype("float32")).any()


def test_stacks_of_matrices() -> None:
    x, y = f32(2, 3, 4), f32(2, 4, 5, name="y")
    outputs = [T.batched_dot(x, y), *T.grad(T.batched_dot(x, y).sum(), [x, y])]
    with amp("bf16"):
        fgraph = rewritten([x, y], outputs, selection=PLAIN)
    assert dtypes(fgraph, BatchedDot) == {"bfloat16"}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.type.shape).astype("float32") for v in (x, y)]
    agree(fgraph, [x, y], outputs, arrays, CLOSE["bf16"])


def test_dropout_draws_the_same_mask() -> None:
    x, w = f32(*X), f32(*W, name="w")
    h = dropout(T.dot(x, w), 0.5, stream=3)
    z = T.dot(h, np.eye(5, dtype="float32"))
    outputs = [z, *T.grad(z.sum(), [x, w])]
    with amp("bf16"):
        fgraph = rewritten([x, w], outputs, selection=PLAIN)
    assert dtypes(fgraph, DropoutGrad) == {"bfloat16"}
    (forward,) = [n for n in fgraph.toposort() if isinstance(n.op, Dropout)]
    assert forward.inputs[1].type.dtype == "bfloat16"
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in (X, W)]
    agree(fgraph, [x, w], outputs, arrays, 2 * CLOSE["bf16"])


def test_recurrent_nets_in_the_dtypes_that_cudnn_has() -> None:
    from symdnn.gpu import dnn

    block = dnn.RNNBlock("float32", 3, 1, "lstm")
    x, h, c = f32(4, 2, 3), f32(1, 2, 3, name="h"), f32(1, 2, 3, name="c")
    w = f32(block.get_param_size((2, 3)), name="w")
    y = block.apply(w, x, h, c)[0]
    outputs = [y, *T.grad((y * y).sum(), [w, x])]
    for value, cudnn, dtype in (
        ("fp16", (9, 0), "float16"), ("bf16", (9, 12), "float32"), ("bf16", (9, 13), "bfloat16"),
    ):  # fmt: skip
        target = Target("cuda", 0, (9, 0), cudnn=cudnn)
        with amp(value):
            fgraph = rewritten([w, x, h, c], outputs, target, PLAIN)
        assert dtypes_of_products(fgraph) == {dtype}
        assert {v.type.dtype for v in fgraph.outputs} == {"float32"}
    with amp("fp16"):
        fgraph = rewritten([w, x, h, c], outputs, selection=PLAIN)
    kinds = {type(n.op) for n in products(fgraph)}
    assert kinds == {G.GpuDnnRNNOp, G.GpuDnnRNNGradInputs, G.GpuDnnRNNGradWeights}


# -- what convolutions scale and add --------------------------------------------------------------


def merged(dtype: str, merge: str) -> tuple[Any, FunctionGraph]:
    x, w, out = f32(2, 3, 5, 5), f32(4, 3, 3, 3, name="w"), f32(2, 4, 3, 3, name="out")
    v = f32(4, 4, 1, 1, name="v")
    y = T.nnet.conv2d(x, w)
    cases = {
        "scaled": lambda: y * 0.25,
        "added to an input": lambda: out - y,
        "added to a product": lambda: T.nnet.conv2d(T.tanh(y), v) + y,
    }
    outputs = [cases[merge]()]
    inputs = [x, w, out, v]
    with amp(dtype):
        fgraph = rewritten(inputs, outputs)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(u.type.shape).astype("float32") for u in inputs]
    agree(fgraph, inputs, outputs, arrays, CLOSE[dtype])
    return [n.op for n in products(fgraph)][-1], fgraph


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_that_scale_or_add(dtype: str) -> None:
    for merge in ("scaled", "added to an input"):
        op, _ = merged(dtype, merge)
        assert (op.alpha, op.beta) == (1, 0)
    op, fgraph = merged(dtype, "added to a product")
    assert (op.alpha, op.beta) == (1, 1)
    assert {v.type.dtype for v in products(fgraph)[-1].inputs} == {DTYPES[dtype]}


# -- what is left alone ---------------------------------------------------------------------------


def dot_of(dtype: str, hints: Hints | None = None) -> tuple[list[Any], list[Any]]:
    x, w = TensorType(dtype, X)("x"), TensorType(dtype, W)("w")
    return [x, w], [Dot()(x, w, hints=hints)]


@pytest.mark.parametrize(
    ("reason", "value", "target", "dtype", "selection", "hints"),
    [
        ("amp=off", "off", GPU, "float32", PLAIN, None),
        ("mixed precision is for GPUs", "bf16", CPU, "float32", PLAIN, None),
        ("no tensor cores", "bf16", Target("cuda", compute_capability=(7, 5), cudnn=(9, 19)),
         "float32", PLAIN, None),
        ("no tensor cores", "fp16", Target("cuda", compute_capability=(6, 1), cudnn=(9, 19)),
         "float32", PLAIN, None),
        (None, "bf16", GPU, "float64", PLAIN, None),
        (None, "bf16", GPU, "float16", PLAIN, None),
        (None, "bf16", GPU, "float32", PLAIN.excluding("amp"), None),
        (None, "bf16", GPU, "float32", PLAIN.excluding("precision"), None),
        (None, "bf16", GPU, "float32", PLAIN, Hints(precision="float32")),
    ],
)  # fmt: skip
def test_what_is_left_alone(
    reason: str | None, value: str, target: Target, dtype: str, selection: Any, hints: Any
) -> None:
    inputs, outputs = dot_of(dtype, hints)
    with amp(value):
        fgraph = rewritten(inputs, outputs, target, selection)
        found = precision_reason(target)
    assert dtypes_of_products(fgraph) == {dtype}
    assert (found is None) if reason is None else (reason in (found or ""))


def test_on_turing_float16_is_taken() -> None:
    inputs, outputs = dot_of("float32")
    with amp("fp16"):
        turing = Target("cuda", compute_capability=(7, 5), cudnn=(9, 19))
        fgraph = rewritten(inputs, outputs, turing, PLAIN)
    assert dtypes_of_products(fgraph) == {"float16"}


def test_a_program_without_products_stays() -> None:
    x = f32(None, None)
    with amp("bf16"):
        fgraph = rewritten([x], [T.tanh(x) * 2])
    assert not [n for n in fgraph.toposort() if isinstance(n.op, Cast)]


# -- random nets ----------------------------------------------------------------------------------


def random_net(rng: np.random.Generator, x: Any) -> list[Any]:
    values = [x]

    def pick() -> Any:
        return values[int(rng.integers(len(values)))]

    def product(v: Any) -> Any:
        return T.dot(v, (rng.standard_normal((4, 4)) * 0.4).astype("float32"))

    makers: list[Callable[[], Any]] = [
        lambda: product(pick()),
        lambda: product(T.tanh(pick())),
        lambda: T.tanh(pick()) + pick() * 0.5,
        lambda: T.nnet.relu(pick()),
        lambda: T.nnet.softmax(pick()),
        lambda: pick() - pick().mean(axis=0, keepdims=True),
        lambda: T.concatenate([pick()[:2], pick()[2:]], axis=0),
        lambda: pick().dimshuffle(1, 0),
        lambda: T.exp(T.tanh(pick())) - 1,
        lambda: T.switch(pick() > 0, T.tanh(pick()), 0.5),
    ]
    for _ in range(int(rng.integers(3, 12))):
        values.append(makers[int(rng.integers(len(makers)))]())
    return [T.tanh(v) for v in (values[-1], pick())]


@pytest.mark.parametrize("value", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_random_nets_stay_near(seed: int, value: str) -> None:
    rng = np.random.default_rng([7, seed])
    x = f32(4, 4) if seed % 2 else f32(None, None)
    outputs = random_net(rng, x)
    array = rng.uniform(-1, 1, (4, 4)).astype("float32")
    with amp(value):
        fgraph = rewritten([x], outputs, selection=PLAIN)
        # Switches may flip where a value is near 0: compared is the typical element.
        got = evaluate(fgraph.outputs, {fgraph.inputs[0]: array})
    want = evaluate(outputs, {x: array})
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype == np.float32
        assert np.median(np.abs(a - b)) <= 2 * CLOSE[value]


@pytest.mark.parametrize(
    ("target", "excluded", "why"),
    [
        ("cpu", "", "mixed precision is for GPUs"),
        ("cuda:sm_75", "", "no tensor cores for bfloat16"),
        ("cuda:sm_90", "amp", "the rewrite mixed_precision is off"),
    ],
)
def test_the_report_says_where_amp_changes_nothing(target, excluded, why):
    x, w = T.fmatrix("x"), T.fmatrix("w")
    mode = symdnn.Mode(target=target)
    with config.change_flags(amp="bf16"):
        f = symdnn.function([x, w], T.dot(x, w), mode=mode.excluding(*filter(None, [excluded])))
    assert "amp=bf16 changes nothing: " in str(f.lowering_report())
    assert why in str(f.lowering_report())
    plain = symdnn.function([x, w], T.dot(x, w), mode=mode)
    assert "amp=" not in str(plain.lowering_report())


def test_the_report_says_nothing_of_amp_where_it_works():
    x, w = T.fmatrix("x"), T.fmatrix("w")
    with config.change_flags(amp="bf16"):
        f = symdnn.function([x, w], T.dot(x, w), mode=symdnn.Mode(target="cuda:sm_90"))
    assert "changes nothing" not in str(f.lowering_report())
    assert "GEMMs and convolutions: 1 of bfloat16" in str(f.lowering_report())


def test_a_convolution_takes_in_what_mixed_precision_computes_in_float32() -> None:
    """Bias, addend and relu after it; the gradient needs only the result."""
    x, w, z, b = f32(2, 3, 6, 6), f32(4, 3, 3, 3, name="w"), f32(2, 3, 6, 6), f32(4, name="b")
    v = f32(4, 3, 1, 1, name="v")
    y = T.nnet.conv2d(x, w, border_mode="half")
    y = T.nnet.relu(y + T.nnet.conv2d(z, v) + b.dimshuffle("x", 0, "x", "x"))
    loss = (T.nnet.conv2d(y, w.dimshuffle(1, 0, 2, 3)) ** 2).sum()
    with config.change_flags(relu_grad_at_0="zero"):
        vs, outs = [x, w, z, v, b], [loss, T.grad(loss, b)]
    arrays = [np.random.default_rng(4).uniform(-1, 1, t.type.shape).astype("float32") for t in vs]
    with amp("bf16"):
        fgraph = rewritten(vs, outs, selection=ALL)
    fused = [n for n in fgraph.toposort() if isinstance(n.op, GpuDnnConvBiasActivation)]
    (node,) = [n for n in fused if n.op.bias]
    assert (node.op.activation, node.op.residual) == ("relu", 1)
    assert {v.type.dtype for v in (*node.inputs, *node.outputs)} == {"bfloat16"}
    agree(fgraph, vs, outs, arrays, 5e-2)


def test_a_bias_in_float32_stays_where_the_sum_is_read_in_float32() -> None:
    x, w, b = f32(2, 3, 6, 6), f32(4, 3, 3, 3, name="w"), f32(4, name="b")
    y = T.nnet.conv2d(x, w) + b.dimshuffle("x", 0, "x", "x")
    with amp("bf16"):
        fgraph = rewritten([x, w, b], [y.sum(axis=(0, 2, 3))], selection=ALL)
    assert not [n for n in fgraph.toposort() if isinstance(n.op, GpuDnnConvBiasActivation)]


def test_views_of_a_value_share_its_cast() -> None:
    x, w, dy = f32(2, 3, 8), f32(8, 5, name="w"), f32(6, 5, name="dy")
    flat = T.exp(x).reshape((6, 8))
    with amp("bf16"):
        fgraph = rewritten([x, w, dy], [T.dot(flat, w), T.dot(flat.T, dy)], selection=PLAIN)
    first, second = products(fgraph)
    assert source(first.inputs[0]) is source(second.inputs[0])
    assert source(first.inputs[0]).type.dtype == "bfloat16"


MOVES: dict[str, Callable[[Any], Any]] = {
    "roll": lambda x: T.roll(x, 2, 1), "two rolls": lambda x: T.roll(x, (1, -3), (0, 1)),
    "pad": lambda x: T.pad(x, 1), "reflect": lambda x: T.pad(x, 2, mode="reflect"),
    "wrap": lambda x: T.pad(x, ((0, 0), (3, 1)), mode="wrap"),
    "gather": lambda x: x[np.array([0, 1, 1, 0, 1, 0, 1])],
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_what_is_moved_for_a_product_is_rounded_before(name: str) -> None:
    """By the kernel that computes it, which halves the traffic; after a GEMM it stays in
    16 bits.
    """
    x, w = f32(4, 6), f32(6, 6, name="w")
    arrays = [np.random.default_rng(3).standard_normal(s).astype("f4") for s in ((4, 6), (6, 6))]
    moved = MOVES[name](T.exp(x))
    behind = T.dot(MOVES[name](T.dot(x, w)).T, moved)
    with amp("bf16"):
        fgraph = rewritten([x, w], [behind], selection=PLAIN)
    assert dtypes(fgraph, type(moved.owner.op)) == {"bfloat16"}
    agree(fgraph, [x, w], [behind], arrays, CLOSE["bf16"])


def test_what_is_assigned_to_zeros_is_rounded_before() -> None:
    """Tokens that are sent to experts: the buffer between them is half as large."""
    x, w, i = f32(4, 6), f32(6, 5, name="w"), T.ivector("i")
    arrays = [np.random.default_rng(3).standard_normal(s).astype("f4") for s in ((4, 6), (6, 5))]
    given = [*arrays, np.array([8, 0, 3, 5], np.int32)]
    for index in (i, slice(2, 6)):
        buffer = T.set_subtensor(T.zeros((9, 6), "float32")[index], T.exp(x))
        vs = [x, w, i][: 2 + (index is i)]
        with amp("bf16"):
            fgraph = rewritten(vs, [T.dot(buffer, w)], selection=PLAIN)
        assert dtypes(fgraph, AdvancedIncSubtensor, PlacedSums) == {"bfloat16"}
        assert all(n.inputs[0].type.shape != (9, 6) for n in fgraph.toposort()
                   if isinstance(n.op, Cast))  # fmt: skip
        agree(fgraph, vs, [T.dot(buffer, w)], given[: len(vs)], CLOSE["bf16"])
    added = T.inc_subtensor(T.zeros((9, 6), "float32")[i], T.exp(x))
    with amp("bf16"):
        fgraph = rewritten([x, w, i], [T.dot(added, w)], selection=PLAIN)
    assert dtypes(fgraph, AdvancedIncSubtensor) == {"float32"}


def test_a_table_is_not_rounded_for_a_few_of_its_rows() -> None:
    table, w, i = f32(100, 6, name="table"), f32(6, 5, name="w"), T.ivector("i")
    few = TensorType("int32", (3,))("few")
    with amp("bf16"):
        for index in (i, few):
            fgraph = rewritten([table, w, index], [T.dot(table[index], w)], selection=PLAIN)
            assert dtypes(fgraph, AdvancedSubtensor) == {"float32"}


def source(v: Any) -> Any:
    """The value of which ``v`` is a view."""
    while v.owner is not None and type(v.owner.op).__name__ in ("DimShuffle", "Reshape"):
        v = v.owner.inputs[0]
    return v


def test_what_gemms_and_sums_read_is_not_stored_in_float32() -> None:
    """The gradient behind an activation with exponentials: GEMMs and a bias's gradient read it."""
    x, w, v, b = f32(6, 4), f32(4, 5, name="w"), f32(5, 3, name="v"), f32(5, name="b")
    cost = T.dot(T.nnet.gelu(T.dot(x, w) + b, approximate="tanh"), v).sum()
    with amp("bf16"):
        fgraph = rewritten([x, w, v, b], T.grad(cost, [x, w, b]), selection=ALL)
    shapes = [(n, n.inputs[0].type.shape, n.outputs[0].type.shape) for n in fgraph.toposort()
              if isinstance(n.inputs[0].type, TensorType)]  # fmt: skip
    (total,) = [n for n, given, found in shapes if (given, found) == ((6, 5), (5,))]
    summed = total.inputs[0].owner
    assert summed is not None
    assert isinstance(summed.op, Cast)
    rounded = summed.inputs[0]
    assert rounded.type.dtype == "bfloat16"
    readers = {source(v) for n in products(fgraph) for v in n.inputs if v.owner is not None}
    assert rounded in readers


def test_attention_between_dense_layers_stays_in_16_bits() -> None:
    x, w, v = f32(2, 4, 16), f32(16, 48, name="w"), f32(16, 3, name="v")
    packed = T.dot(x, w)
    q, k, u = (
        packed[..., 16 * i : 16 * (i + 1)].reshape((2, 4, 2, 8)).dimshuffle(0, 2, 1, 3)
        for i in range(3)
    )
    y = T.nnet.scaled_dot_product_attention(q, k, u, is_causal=True)
    out = T.dot(y.dimshuffle(0, 2, 1, 3).reshape((2, 4, 16)), v)
    with amp("bf16"):
        fgraph = rewritten([x, w, v], T.grad((out**2).sum(), [w, v]), selection=ALL)
    order = fgraph.toposort()
    names = [type(n.op).__name__ for n in order]
    assert {"GpuDnnAttention", "GpuDnnAttentionGrad", "Join"} <= set(names)
    assert "IncSubtensor" not in names
    between = [n for n in order[names.index("GpuDnnAttention") :] if n.outputs[0].type.ndim == 4]
    assert {n.outputs[0].type.dtype for n in between} == {"bfloat16"}
    assert not {"Cast", "FusedElemwise"} & {type(n.op).__name__ for n in between}


def test_a_bias_in_float32_is_added_by_the_gemm() -> None:
    """Also where the activation and its gradient read the sum, through a reshape."""
    x, w, b = f32(2, 3, 8), f32(8, 5, name="w"), f32(5, name="b")
    v = f32(5, 4, name="v")
    y = T.dot(T.nnet.gelu(T.dot(x, w) + b, approximate="tanh"), v)
    arrays = [np.random.default_rng(4).uniform(-1, 1, t.type.shape).astype("float32")
              for t in (x, w, b, v)]  # fmt: skip
    outs = [y, *T.grad((y**2).sum(), [w, b])]
    with amp("bf16"):
        fgraph = rewritten([x, w, b, v], outs, selection=ALL)
    (node,) = [n for n in products(fgraph) if isinstance(n.op, GpuGemmKept) and n.op.bias]
    assert {t.type.dtype for t in (*node.inputs, *node.outputs)} == {"bfloat16"}
    agree(fgraph, [x, w, b, v], outs, arrays, 5e-2)


def test_what_comes_in_16_bits_is_read_as_it_is() -> None:
    x, w = TensorType("bfloat16", (2, 3, 6, 6))("x"), f32(4, 3, 3, 3, name="w")
    with amp("bf16"):
        fgraph = rewritten([x, w], [T.nnet.conv2d(x.astype("float32"), w)], selection=ALL)
    (node,) = products(fgraph)
    entered = node.inputs[0].owner
    assert entered is not None
    assert entered.inputs[0] is fgraph.inputs[0]


def test_what_products_and_sums_read_is_stored_in_16_bits_whatever_makes_it() -> None:
    """The gradient of a softmax, which a product and the sum for a bias read."""
    x, w, b, t = f32(6, 8), f32(8, 16, name="w"), f32(16, name="b"), f32(6, 16, name="t")
    loss = -(t * T.nnet.logsoftmax(T.dot(x, w) + b, axis=1)).sum()
    vs, outs = [x, w, b, t], list(T.grad(loss, [x, b]))
    arrays = [np.random.default_rng(4).uniform(-1, 1, v.type.shape).astype("float32") for v in vs]
    with amp("bf16"):
        fgraph = rewritten(vs, outs, selection=PLAIN)
    agree(fgraph, vs, outs, arrays, CLOSE["bf16"])
    wide = [
        n for n in fgraph.toposort()
        for v in n.outputs
        if v.type.ndim == 2 and v.type.dtype == "float32" and v.type.shape == (6, 16)
        and len(fgraph.users(v)) > 1 and any(isinstance(u.op, Dot) for u in fgraph.user_nodes(v))
    ]  # fmt: skip
    assert not wide
