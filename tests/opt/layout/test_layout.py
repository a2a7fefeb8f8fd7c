"""Channels last inside: which nodes get it, that the order changes at borders only, and values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.ops.nn.channels_last import Reorder, first_order, last_order
from symdnn.ops.nn.conv import Conv
from symdnn.ops.nn.normalization import layer_norm
from symdnn.ops.vendor import gpudnn as G
from symdnn.opt.layout.layout_cut import FlowNetwork
from symdnn.opt.layout.layout_follow import may_have_nhwc
from tests.opt.lowering import ALL, GPU, assert_same_values, rewritten
from tests.opt.nets import NETS, arguments, loss_of, training

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


@contextmanager
def layout(wish: str, **flags: Any) -> Iterator[None]:
    with config.change_flags(**{"gpu.layout": wish, **flags}):
        yield


def reorders(fgraph: FunctionGraph) -> list[Any]:
    return [n for n in fgraph.toposort() if isinstance(n.op, Reorder)]


def maker(v: Any) -> Any:
    """The node that made a value, through transfers; None for inputs of the graph."""
    while v.owner is not None and isinstance(v.owner.op, GpuFromHost | HostFromGpu):
        v = v.owner.inputs[0]
    return v.owner


def readers(fgraph: FunctionGraph, v: Any) -> list[Any]:
    """The nodes that read a value, transfers left out; None where it is a result."""
    found: list[Any] = []
    for node, _ in fgraph.users(v):
        through = node is not None and isinstance(node.op, GpuFromHost | HostFromGpu)
        found += readers(fgraph, node.outputs[0]) if through else [node]
    return found


def layouts(fgraph: FunctionGraph) -> set[str]:
    return {n.op.layout for n in fgraph.toposort() if "NHWC" in getattr(n.op, "layouts", ())}


def images_of(*shape: int | None, dtype: str = "float64") -> Any:
    return TensorType(dtype, shape or (None,) * 4)("x")


def names_of_changed(fgraph: FunctionGraph) -> list[str | None]:
    """Inputs that are then reordered to the other layout."""
    found = []
    for node in reorders(fgraph):
        v = node.inputs[0]
        while v.owner is not None and isinstance(v.owner.op, GpuFromHost | HostFromGpu):
            v = v.owner.inputs[0]
        found += [v.name] if node.op.order == LAST else []
    return found


# -- nets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_a_net_changes_the_order_at_its_borders_only(name: str) -> None:
    x = images_of(dtype="float64")
    logits, parameters = NETS[name](x, "float64")
    with layout("nhwc"):
        fgraph = rewritten([x], [logits])
    assert layouts(fgraph) == {"NHWC"}
    kernels = sum(p.ndim == 4 for p in parameters)
    inward = [n for n in reorders(fgraph) if n.op.order == LAST]
    outward = [n for n in reorders(fgraph) if n.op.order == FIRST]
    assert all(maker(n.inputs[0]) is None for n in inward)  # images and kernels
    assert len(inward) == kernels + 1
    # Flattening keeps the order of axes that the dense layer's weights expect.
    last = [u.op for n in outward for u in readers(fgraph, n.outputs[0])]
    assert [type(op) for op in last] == ([] if name == "resnet" else [Reshape])
    values = dict(zip(fgraph.inputs, arguments(name, "float64")))
    want = evaluate([logits], {x: arguments(name, "float64")[0]})
    np.testing.assert_allclose(evaluate(fgraph.outputs, values), want, rtol=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_training_changes_the_order_at_its_borders_only(name: str) -> None:
    inputs, outputs, parameters = training(name, "float64")
    with layout("nhwc"):
        fgraph = rewritten(inputs, outputs)
    assert layouts(fgraph) == {"NHWC"}
    kernels = sum(p.ndim == 4 for p in parameters)
    for node in reorders(fgraph):
        (v,), (w,) = node.inputs, node.outputs
        made = maker(v)
        leaves = made is None or not follows_in_order(made)
        arrives = all(u is None or not may_have_nhwc(u) for u in readers(fgraph, w))
        assert leaves if node.op.order == LAST else arrives
    # Reorders of the images and of each filter at the input; of a flat layer both ways. Updates
    # read any layout.
    flat = 0 if name == "resnet" else 2
    assert len(reorders(fgraph)) == 1 + kernels + flat
    assert_same_values(fgraph, inputs, outputs, arguments(name, "float64"))


def follows_in_order(node: Any) -> bool:
    """Whether the node could have given its result with channels last."""
    op = node.op
    plain = replace(op, layout="NCHW") if "NHWC" in getattr(op, "layouts", ()) else op
    return may_have_nhwc(plain.make_node(*node.inputs)) if plain is not op else may_have_nhwc(node)


def test_rewriting_a_deep_net_takes_little_time() -> None:
    x, t = images_of(dtype="float32"), T.ivector("t")
    logits, parameters = NETS["resnet"](x, "float32", blocks=1)
    for _ in range(24):
        logits = logits + 0 * logits
    loss = loss_of(logits, t)
    with layout("nhwc"):
        fgraph = FunctionGraph([x, t], [loss, *T.grad(loss, parameters)])
        from symdnn.opt.optimise import optimise

        profile = optimise(fgraph, GPU, ALL, all_capabilities())
    assert profile.phases["layout"] < 2


def test_flattened_images_keep_their_order() -> None:
    x = images_of(2, 3, 4, 5)
    w = symdnn.shared(np.random.default_rng(0).standard_normal((6, 3, 3, 3)))
    y = T.nnet.conv2d(x, w).flatten(2)
    with layout("nhwc"):
        fgraph = rewritten([x], [y])
    value = np.random.default_rng(1).standard_normal((2, 3, 4, 5))
    assert_same_values(fgraph, [x], [y], [value])


# -- which convolutions ---------------------------------------------------------------------------


def conv_layout(
    dtype: str = "float32", target: Target = GPU, groups: int = 1, wish: str = "auto",
    selection: Any = ALL, **flags: Any,
) -> str:  # fmt: skip
    x = images_of(2, 8, 6, 6, dtype=dtype)
    w = TensorType(dtype, (8, 8 // groups, 3, 3))("w")
    y = T.nnet.conv2d(x, w, num_groups=groups)
    with layout(wish, **flags):
        fgraph = rewritten([x, w], [y], target, selection)
    (found,) = layouts(fgraph)
    return found


TF32 = {"dnn.conv.allow_tf32": True}
VOLTA, TURING = (Target("cuda", compute_capability=c, cudnn=(9, 19)) for c in ((6, 1), (7, 5)))


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("NCHW", {}),
        ("NHWC", TF32),
        ("NHWC", {"dtype": "float16"}),
        ("NHWC", {"dtype": "bfloat16"}),
        ("NCHW", {"dtype": "float64"}),
        ("NCHW", {"dtype": "float64", **TF32}),
        ("NCHW", {"dtype": "float16", "target": VOLTA}),
        ("NHWC", {"dtype": "float16", "target": TURING}),
        ("NCHW", {**TF32, "target": TURING}),
        ("NCHW", {"dtype": "bfloat16", "groups": 8}),
        ("NHWC", {"dtype": "bfloat16", "groups": 8, "wish": "nhwc"}),
        ("NHWC", {"wish": "nhwc"}),
        ("NCHW", {"dtype": "bfloat16", "wish": "nchw"}),
        ("NCHW", {"dtype": "bfloat16", "selection": ALL.excluding("channels_last")}),
        ("NCHW", {"dtype": "bfloat16", "selection": ALL.excluding("layout")}),
    ],
)
def test_which_convolutions_get_it(wanted: str, given: dict[str, Any]) -> None:
    assert conv_layout(**given) == wanted


def test_what_is_not_convolved_stays() -> None:
    x = images_of()
    with layout("nhwc"):
        fgraph = rewritten([x], [T.signal.pool.pool_2d(x, (2, 2), ignore_border=True) * 2])
    assert layouts(fgraph) == {"NCHW"}
    assert not reorders(fgraph)


def test_volumes() -> None:
    x, w = TensorType("float64", (2, 3, 4, 5, 6))("x"), TensorType("float64", (4, 3, 2, 2, 2))("w")
    y = T.nnet.relu(T.nnet.conv3d(x, w))
    outputs = [y, *T.grad((y**2).sum(), [x, w])]
    with layout("nhwc"):
        fgraph = rewritten([x, w], outputs)
    assert layouts(fgraph) == {"NHWC"}
    assert {n.op.order for n in reorders(fgraph)} == {(0, 2, 3, 4, 1), (0, 4, 1, 2, 3)}
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(v.type.shape) for v in (x, w)]
    assert_same_values(fgraph, [x, w], outputs, values)


# -- what goes along ------------------------------------------------------------------------------


def lrn(h: Any) -> Any:
    from symdnn.ops.nn.lrn import LRN

    return LRN(5, 1e-4, 0.75, 2.0)(h)


BETWEEN: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda h: T.nnet.relu(h) * 2 - T.tanh(h),
    "a cast": lambda h: h.astype("float32").astype("float64"),
    "a bias": lambda h: h + T.arange(4).astype("float64").dimshuffle("x", 0, "x", "x"),
    "maximum": lambda h: T.signal.pool.pool_2d(h, (2, 2), ignore_border=True),
    "mean": lambda h: T.signal.pool.pool_2d(h, (2, 2), ignore_border=True, mode="average_inc_pad"),
    "batch norm": lambda h: T.nnet.bn.batch_normalization_train(
        h, np.full(4, 1.5), np.full(4, 0.5), axes="spatial")[0],
    "batch norm of each place": lambda h: T.nnet.bn.batch_normalization_train(
        h, np.full((4, 4, 4), 1.5), np.full((4, 4, 4), 0.5), axes="per-activation")[0],
    "batch norm by given statistics": lambda h: T.nnet.bn.batch_normalization_test(
        h, np.full(4, 1.5), np.full(4, 0.5), np.zeros(4), np.ones(4), axes="spatial"),
    "lrn": lrn,
    "softmax over channels": lambda h: T.nnet.softmax(h, axis=1),
    "softmax over a row": lambda h: T.nnet.logsoftmax(h, axis=3),
    "channels joined": lambda h: T.concatenate([h[:, :1], T.tanh(h[:, :3])], axis=1),
    "images joined": lambda h: T.concatenate([h, h * 2], axis=0),
    "parts": lambda h: T.concatenate(T.split(h, [1, 3], 2, axis=1)[::-1], axis=1),
    "padding": lambda h: T.pad(h, ((0, 0), (0, 0), (1, 2), (2, 1)), mode="constant"),
    "a part": lambda h: h[:, :, 1:, : h.shape[3] - 1],
    "every other": lambda h: h[::-1, :, ::2],
    "a changed part": lambda h: T.inc_subtensor(h[:, 1:3, :, 1 : h.shape[3]], 2.0),
    "a mean that is taken off": lambda h: h - h.mean((0, 2, 3), keepdims=True),
    "gates of channels": lambda h: h * T.nnet.sigmoid(h.mean((2, 3))).dimshuffle(0, 1, "x", "x"),
    "a constant": lambda h: h * np.arange(4.0).reshape(1, 1, 1, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
def test_what_is_between_goes_along(name: str, known: bool) -> None:
    x = images_of(*((2, 3, 6, 6) if known else ()))
    rng = np.random.default_rng(0)
    w, v = (symdnn.shared(rng.standard_normal(s)) for s in ((4, 3, 3, 3), (2, 4, 1, 1)))
    y = T.nnet.conv2d(BETWEEN[name](T.nnet.conv2d(x, w)), v)
    outputs = [y, *T.grad((y * y).sum(), [w, v])]
    # Values that are folded into the filters are not between convolutions any more.
    with layout("nhwc"), config.change_flags(**{"gpu.fold_batch_norm": "off"}):
        forward, fgraph = rewritten([x], [y]), rewritten([x], outputs)
    assert_same_values(fgraph, [x], outputs, [rng.standard_normal((2, 3, 6, 6))], rtol=1e-7)
    inner = [n for n in reorders(forward) if maker(n.inputs[0]) is not None]
    assert [n.op.order for n in inner] == [FIRST]  # the result
    assert readers(forward, inner[0].outputs[0]) == [None]


def test_what_can_not_go_along_is_a_border() -> None:
    x = images_of(2, 3, 6, 6)
    rng = np.random.default_rng(0)
    w, v = (symdnn.shared(rng.standard_normal(s)) for s in ((4, 3, 3, 3), (2, 4, 1, 1)))
    h = T.cumsum(T.nnet.relu(T.nnet.conv2d(x, w)), axis=1)
    y = T.nnet.conv2d(h, v)
    with layout("nhwc"):
        fgraph = rewritten([x], [y])
    assert_same_values(fgraph, [x], [y], [rng.standard_normal((2, 3, 6, 6))])
    assert len(reorders(fgraph)) == 5  # x, w, v (1x1, sizes unknown), around cumsum less relu's


def test_a_small_kernel_needs_no_copy() -> None:
    x, w = images_of(2, 8, 6, 6), TensorType("float64", (4, 8, 1, 1))("w")
    with layout("nhwc"):
        fgraph = rewritten([x, w], [T.nnet.conv2d(x, w)])
    assert names_of_changed(fgraph) == ["x"]


def test_images_that_come_with_channels_last_cost_nothing() -> None:
    x, w = images_of(), TensorType("float64", (4, 8, 1, 1))("w")
    y = T.nnet.relu(T.nnet.conv2d(x.dimshuffle(*FIRST), w)).dimshuffle(*LAST)
    with layout("nhwc"):
        fgraph = rewritten([x, w], [y])
    assert not reorders(fgraph)
    kinds = [type(n.op) for n in fgraph.toposort() if isinstance(n.op, DimShuffle)]
    assert len(kinds) <= 1  # of the kernel


@pytest.mark.parametrize(("channels_last", "wanted"), [(True, "NHWC"), (False, "NCHW")])
def test_a_depthwise_convolution_has_the_order_of_what_is_around_it(
    channels_last: bool, wanted: str
) -> None:
    """A block of layer norm and GEMMs over channels after it keeps (N, sizes, C)."""
    x = images_of(2, 8, 6, 6, dtype="bfloat16")
    stem, each = images_of(8, 8, 1, 1, dtype="bfloat16"), images_of(8, 1, 3, 3, dtype="bfloat16")
    weight, ones = (TensorType("bfloat16", (8,) * n)("w") for n in (2, 1))
    h = T.nnet.conv2d(x, stem) if channels_last else x
    for _ in range(2):
        y = T.nnet.conv2d(h, each, border_mode="half", num_groups=8)
        if channels_last:
            y = layer_norm(y.dimshuffle(*LAST), ones, ones, axes=(3,))
            h = h + T.dot(y, weight).dimshuffle(*FIRST)
        else:
            h = h + T.tanh(y)
    fgraph = rewritten([x, stem, each, weight, ones], [h])
    found = [n.op for n in fgraph.toposort() if getattr(neutral_of(n.op), "groups", 1) == 8]
    assert [op.layout for op in found] == [wanted] * 2


def test_a_kernels_cast_changes_the_order_too() -> None:
    x, w = images_of(2, 8, 6, 6, dtype="float16"), TensorType("float32", (4, 8, 3, 3))("w")
    with layout("auto"):
        fgraph = rewritten([x, w], [T.nnet.conv2d(x, w.astype("float16"))])
    assert names_of_changed(fgraph) == ["x"]


def test_sizes_of_a_changed_value_are_still_its_own() -> None:
    x, w = images_of(), TensorType("float64", (4, 3, 3, 3))("w")
    h = T.nnet.conv2d(x, w)
    with layout("nhwc"):
        fgraph = rewritten([x, w], [h, h.shape[2] + 10 * h.shape[1]])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 3, 7, 6)), rng.standard_normal((4, 3, 3, 3))]
    assert int(evaluate(fgraph.outputs, dict(zip(fgraph.inputs, arrays)))[1]) == 45


# -- random nets ----------------------------------------------------------------------------------


def random_net(rng: np.random.Generator, x: Any) -> list[Any]:
    """Values of four dimensions and equal sizes, made from each other in random ways."""
    values = [x]

    def pick() -> Any:
        return values[int(rng.integers(len(values)))]

    def conv(v: Any) -> Any:
        w = symdnn.shared(rng.standard_normal((3, 3, 3, 3)) * 0.3)
        return T.nnet.conv2d(v, w, border_mode="half")

    makers: list[Callable[[], Any]] = [
        lambda: conv(pick()),
        lambda: conv(pick()),
        lambda: T.tanh(pick()) + pick(),
        lambda: T.nnet.relu(pick()),
        lambda: pick() * pick().mean((2, 3), keepdims=True),
        lambda: T.cumsum(pick(), axis=1),
        lambda: pick().reshape((2, 3, 25)).reshape((2, 3, 5, 5)),
        lambda: pick().dimshuffle(0, 1, 3, 2),
        lambda: T.nnet.softmax(pick(), axis=1),
        lambda: T.concatenate([pick()[:, :1], pick()[:, 1:]], axis=1),
        lambda: BETWEEN["batch norm"](T.concatenate([pick(), pick()[:, :1]], axis=1))[:, 1:],
    ]
    for _ in range(int(rng.integers(3, 12))):
        values.append(makers[int(rng.integers(len(makers)))]())
    return [values[-1], pick(), pick().sum()]


@pytest.mark.parametrize("seed", range(25))
def test_random_nets_keep_their_values(seed: int) -> None:
    rng = np.random.default_rng([5, seed])
    x = images_of(*((2, 3, 5, 5) if seed % 2 else ()))
    outputs = random_net(rng, x)
    cost = (outputs[0] * outputs[0]).sum()
    outputs.append(T.grad(cost, x, disconnected_inputs="ignore"))
    with layout("nhwc"):
        fgraph = rewritten([x], outputs)
    assert_same_values(fgraph, [x], outputs, [rng.standard_normal((2, 3, 5, 5))], rtol=1e-7)


# -- ops ------------------------------------------------------------------------------------------


SETTINGS: dict[str, Any] = {
    "padding": ((1, 1), (0, 0)), "stride": (1, 2), "dilation": (1, 1), "num_groups": 1,
}  # fmt: skip
IMAGE, KERNEL, RESULT = (2, 3, 5, 6), (4, 3, 3, 2), (2, 4, 5, 3)
ROW = (1, 3, 1, 1)
WINDOW = {"ws": (2, 2), "stride": (2, 2), "pad": (0, 0)}
OPS: dict[str, tuple[Any, list[Any]]] = {
    "conv": (G.GpuDnnConv(**SETTINGS), [IMAGE, KERNEL]),
    "conv added": (G.GpuDnnConv(**SETTINGS).ending("float64", alpha=2.0, residual=0.5),
                   [IMAGE, KERNEL, RESULT]),
    "conv weights": (G.GpuDnnConvGradW(**SETTINGS, static=(3, 2)), [IMAGE, RESULT, 3, 2]),
    "conv images": (G.GpuDnnConvGradI(**SETTINGS, static=(5, 6)), [KERNEL, RESULT, 5, 6]),
    "pool": (G.GpuDnnPool("max", **WINDOW), [IMAGE]),
    "mean's gradient": (
        G.GpuDnnPoolGrad("average_inc_pad", **WINDOW, static=(5, 6)), [(2, 3, 2, 3), 5, 6]),
    "norm": (G.GpuDnnBatchNorm("spatial"), [IMAGE, ROW, ROW]),
    "norm's gradient": (G.GpuDnnBatchNormGrad("spatial"), [IMAGE, IMAGE, ROW, ROW, ROW]),
    "norm of places": (G.GpuDnnBatchNorm("per-activation"), [IMAGE, (1, 3, 5, 6), (1, 3, 5, 6)]),
    "lrn": (G.GpuDnnLRN(), [IMAGE]),
}  # fmt: skip


def moved(array: Any, order: Any) -> Any:
    return array.transpose(order(array.ndim)) if np.ndim(array) >= 4 else array


@pytest.mark.parametrize("name", OPS)
def test_an_op_means_the_same_in_both_layouts(name: str) -> None:
    op, given = OPS[name]
    other = replace(op, layout="NHWC")
    rng = np.random.default_rng(0)
    arrays = [np.int64(a) if isinstance(a, int) else rng.standard_normal(a) for a in given]
    want = op.compute(*arrays)
    got = other.compute(*(moved(a, last_order) for a in arrays))
    vs = [TensorType(a.dtype.name, np.shape(a))(f"v{i}") for i, a in enumerate(arrays)]
    seen = [v.dimshuffle(*last_order(4)) if v.type.ndim == 4 else v for v in vs]
    node = other.make_node(*seen)
    shapes = other.shapes(
        [v.type for v in seen], [v.type.shape for v in seen],
        {i: int(arrays[i]) for i in other.host_inputs},
    )  # fmt: skip
    for a, b, v, s in zip(want, got, node.outputs, shapes or (), strict=True):
        np.testing.assert_allclose(moved(b, first_order), a, rtol=1e-12)
        assert v.type.shape == b.shape == tuple(s)
    spelled = evaluate(other.expanded(*seen) or [], dict(zip(vs, arrays)))
    for a, b in zip(got, spelled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert "layout=NHWC" in str(other)
    assert "layout" not in str(op)


def test_gradients_of_an_op_with_channels_last() -> None:
    rng = np.random.default_rng(0)
    op = G.GpuDnnConv(**SETTINGS, layout="NHWC")
    arrays = [rng.standard_normal(moved(np.empty(s), last_order).shape) for s in (IMAGE, KERNEL)]
    symdnn.verify_grad(op, arrays, rng=rng)


def test_an_unknown_layout() -> None:
    x, w = images_of(2, 3, 5, 6), TensorType("float64", (4, 3, 3, 2))("w")
    with pytest.raises(ValueError, match="layout='CHWN': wanted one of NCHW, NHWC"):
        G.GpuDnnConv(**SETTINGS, layout="CHWN")(x, w)


# -- the cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_cheapest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 7
    pairs = [(int(a), int(b), float(rng.integers(1, 9)) / 2)
             for a, b in rng.integers(0, count, (6, 2)) if a != b]  # fmt: skip
    values = [
        (i, int(rng.integers(count)), {int(r) for r in rng.integers(0, count, 3)}, float(c))
        for i, c in enumerate(rng.integers(1, 9, 5))
    ]
    network = FlowNetwork()
    network.fix(0, at_source=True)
    network.fix(count - 1, at_source=False)
    for a, b, c in pairs:
        network.pair(a, b, c)
    for name, maker, readers, c in values:
        network.value(name, maker, readers, c)

    def cost(side: set[int]) -> float:
        total = sum(c for a, b, c in pairs if (a in side) != (b in side))
        for _, maker, readers, c in values:
            total += c * any((r in side) != (maker in side) for r in readers)
        return total

    sides = [
        {0, *chosen} for n in range(count - 1)
        for chosen in itertools.combinations(range(1, count - 1), n)
    ]  # fmt: skip
    best = min(map(cost, sides))
    found = {n for n in network.at_source() if isinstance(n, int)}
    assert cost(found) == pytest.approx(best)
    assert len(found) == min(len(s) for s in sides if cost(s) <= best + 1e-6)


def test_neutral_ops_are_not_touched_without_cudnn() -> None:
    x, w = images_of(2, 3, 6, 6), TensorType("float64", (4, 3, 3, 3))("w")
    with layout("nhwc"):
        fgraph = rewritten([x, w], [T.nnet.conv2d(x, w)], GPU, ALL.excluding("cudnn"))
        cpu = rewritten([x, w], [T.nnet.conv2d(x, w)], Target("cpu"))
    for graph in (fgraph, cpu):
        assert [type(n.op) for n in graph.toposort() if isinstance(n.op, Conv)] == [Conv]
        assert not reorders(graph)
