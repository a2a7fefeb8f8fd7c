"""Plans of cuDNN's graph API on a GPU: against NumPy in float64, several for each convolution."""

from dataclasses import replace

import numpy as np
import pytest

from symdnn.gpu.binding import frontend
from symdnn.gpu.conv.graph_conv import conv_graph
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ACTIVATIONS, DIRECTIONS, ConvSignature, Epilogue
from symdnn.gpu.cudnn import graph
from symdnn.gpu.device.capture import Graph
from symdnn.gpu.execution.runtime import runtime
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from tests.seeded import new_rng

pytestmark = pytest.mark.gpu

#: Largest error, as a part of the largest value: a rounding of the result, or of TF32's inputs.
TOLERANCE = {
    "float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "tf32": 4e-3, "float64": 1e-12,
}  # fmt: skip

CASES = {
    "plain": {},
    "5x5, stride 2": {"kernel": (5, 5), "pad": 2, "stride": 2},
    "dilated": {"dilation": 2, "pad": 2},
    "in groups": {"groups": 2},
    "each channel alone": {"filters": 16, "groups": 16},
    "mirrored": {"flip": True},
    "odd channels": {"channels": 3, "filters": 5},
    "1x1": {"kernel": (1, 1), "pad": 0},
    "volumes": {"sizes": (7, 8, 9), "kernel": (3, 3, 3)},
    "volumes, mirrored, stride 2": {
        "sizes": (7, 8, 9), "kernel": (3, 3, 3), "stride": 2, "flip": True,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def context(card):
    problem = frontend.unavailable()
    if problem:
        pytest.skip(problem)
    with card.context.current():
        yield card.context


def signature(
    direction, kind, layout, *, channels=16, filters=24, sizes=(13, 11), kernel=(3, 3), pad=1,
    stride=1, dilation=1, groups=1, flip=False,
):  # fmt: skip
    """A convolution of four images; ``kind`` is a dtype, or tf32."""
    dtype = "float32" if kind == "tf32" else kind
    dims = len(sizes)
    out = ((n + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(sizes, kernel))
    return ConvSignature(
        direction, dtype, (4, channels, *sizes), (filters, channels // groups, *kernel),
        (4, filters, *out), (pad,) * dims, (stride,) * dims, (dilation,) * dims, groups, flip,
        "float64" if dtype == "float64" else "float32", kind == "tf32", "time_once", 0, False,
        "raise", layout,
    )  # fmt: skip


NOTHING = Epilogue()


class Data:
    """Random operands of a signature, rounded to its dtype; on the GPU in its layout."""

    def __init__(self, s, *extra):
        random = new_rng()
        shapes = {r: getattr(s, r) for r in ("x", "w", "y")}
        shapes |= {"bias": (1, s.w[0], *(1 for _ in s.y[2:])), "residual": s.y}
        wanted = ("x", "w", "y", *extra)
        dtype = numpy_dtype(s.dtype)
        self.signature = s
        self.values = {r: random.normal(size=shapes[r]).astype(dtype) for r in wanted}

    def wide(self, role):
        return self.values[role].astype(np.float64)

    def reference(self):
        """In float64, by the ops' own reference."""
        s = self.signature
        settings = (tuple((p, p) for p in s.padding), s.stride, s.dilation, s.groups, s.flip)
        if s.direction == "fwd":
            return Conv(*settings).reference(self.wide("x"), self.wide("w"))
        if s.direction == "bwd_data":
            return ConvGradInput(*settings).reference(
                self.wide("w"), self.wide("y"), *map(np.int64, s.x[2:])
            )
        return ConvGradWeight(*settings).reference(
            self.wide("x"), self.wide("y"), *map(np.int64, s.w[2:])
        )

    def run(self, context, plan, epilogue=NOTHING, enqueue=None):
        """The result of a plan; before, its memory is NaN throughout."""
        s, memory = self.signature, runtime(context.index).memory
        launch = graph.launch(conv_graph(replace(s, epilogue=epilogue)), plan, context.cudnn)
        result = DIRECTIONS[s.direction].roles[2]
        nan = np.full(getattr(s, result), np.nan).astype(numpy_dtype(s.dtype))
        values = {**self.values, result: nan}
        given = {r: memory.upload(in_memory(values[r], s.layout), None) for r in launch.roles}
        workspace = memory.empty((max(plan.workspace_bytes, 1),), "uint8")
        at = {r: a.ptr for r, a in given.items()}

        def once():
            launch(context.cudnn, at, workspace.ptr)

        (enqueue or (lambda f: f()))(once)
        context.synchronize()
        back = memory.download(given[result])
        return logical(back.view(nan.dtype), s.layout).astype(np.float64)


def in_memory(a, layout):
    """The bytes in the order of the layout."""
    ordered = np.ascontiguousarray(a if layout == "NCHW" else np.moveaxis(a, 1, -1))
    return ordered.view(np.uint8)


def logical(a, layout):
    return a if layout == "NCHW" else np.moveaxis(a, -1, 1)


def assert_close(got, wanted, tolerance, what):
    error = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert error < tolerance, f"{what}: {error:.2g}"  # NaN fails, too


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_plans_agree_with_numpy(context, case, direction, kind, layout):
    s = signature(direction, kind, layout, **CASES[case])
    found, why = graph.plans(conv_graph(s), context.cudnn, most=4)
    assert found, why
    data = Data(s)
    wanted = data.reference()
    for plan in found:
        assert_close(data.run(context, plan), wanted, TOLERANCE[kind], plan)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_plans_of_one_convolution(context, direction, kind):
    s = signature(direction, kind, "NHWC", channels=64, filters=64, sizes=(28, 28))
    found, _ = graph.plans(conv_graph(s), context.cudnn)
    assert len(found) > 4
    data = Data(s)
    wanted = data.reference()
    for plan in found:
        assert_close(data.run(context, plan), wanted, TOLERANCE[kind], plan)


def test_float32_is_not_rounded_to_tf32(context):
    exact = signature("fwd", "float32", "NHWC")
    rounded = replace(exact, allow_tf32=True)
    data = Data(exact)
    wanted = data.reference()
    scale = np.abs(wanted).max()
    errors = {}
    for s in (exact, rounded):
        found, _ = graph.plans(conv_graph(s), context.cudnn, most=12)
        data.signature = s
        ran = [np.abs(data.run(context, p) - wanted).max() / scale for p in found]
        errors[s.allow_tf32] = ran
    assert max(errors[False]) < 1e-5
    assert max(errors[True]) > 5e-5  # it would be seen


def test_a_plan_is_built_again_from_its_record(context, monkeypatch):
    s = signature("fwd", "float16", "NHWC", flip=True)
    found, _ = graph.plans(conv_graph(s), context.cudnn, most=8)
    data = Data(s)
    here = [data.run(context, p) for p in found]
    monkeypatch.setattr(graph, "_recent", {})  # as in another process
    graph._launches.clear()
    for plan, result in zip(found, here):
        np.testing.assert_array_equal(data.run(context, plan), result)


def test_deterministic_plans_give_the_same_bits(context):
    s = signature("bwd_filter", "float32", "NHWC", channels=64, sizes=(28, 28))
    s = replace(s, deterministic=True)
    found, _ = graph.plans(conv_graph(s), context.cudnn)
    assert found
    assert all(p.deterministic for p in found)
    data = Data(s)
    for plan in found:
        first = data.run(context, plan)
        for _ in range(3):
            np.testing.assert_array_equal(data.run(context, plan), first)


def test_the_workspace_limit(context):
    s = signature("bwd_filter", "bfloat16", "NHWC", channels=64, sizes=(28, 28))
    found, _ = graph.plans(conv_graph(s), context.cudnn)
    sizes = sorted({p.workspace_bytes for p in found})
    assert len(sizes) > 2
    most = sizes[len(sizes) // 2]
    limited = list(Search(replace(s, workspace_limit=most), context.cudnn).planned())
    assert 0 < len(limited) < len(found)
    assert max(c.workspace_bytes for c in limited) <= most


def test_a_launch_can_be_captured(context):
    s = signature("fwd", "bfloat16", "NHWC")
    (plan,), _ = graph.plans(conv_graph(s), context.cudnn, most=1)
    data = Data(s)

    def captured(once):
        Graph(context, once).launch()
        context.synchronize()

    assert_close(data.run(context, plan, enqueue=captured), data.reference(), 1.6e-2, plan)


# --- epilogues ------------------------------------------------------------------------------------


def activated(name, slope, v):
    """The activations in float64."""
    from scipy.special import erf

    cube = v + 0.044715 * v**3
    table = {
        "": lambda: v, "relu": lambda: np.maximum(v, 0), "relu6": lambda: np.clip(v, 0, 6),
        "tanh": lambda: np.tanh(v),
        "leaky_relu": lambda: np.where(v > 0, v, slope * v),
        "sigmoid": lambda: 1 / (1 + np.exp(-v)), "swish": lambda: v / (1 + np.exp(-v)),
        "elu": lambda: np.where(v > 0, v, np.expm1(np.minimum(v, 0))),
        "softplus": lambda: np.logaddexp(v, 0),
        "gelu": lambda: v * (1 + erf(v / 2**0.5)) / 2,
        "gelu_tanh": lambda: v * (1 + np.tanh((2 / np.pi) ** 0.5 * cube)) / 2,
    }  # fmt: skip
    return table[name]()


def check_epilogue(context, s, epilogue, most=2):
    found, why = graph.plans(conv_graph(replace(s, epilogue=epilogue)), context.cudnn, most=most)
    assert found, why
    data = Data(s, *epilogue.roles)
    wanted = epilogue.alpha * data.reference()
    if epilogue.residual:
        wanted = wanted + epilogue.beta * data.wide("residual")
    if epilogue.bias:
        wanted = wanted + data.wide("bias")
    tolerance = TOLERANCE["tf32" if s.allow_tf32 else s.dtype] * np.abs(wanted).max()
    wanted = activated(epilogue.activation, epilogue.slope, wanted)
    for plan in found:
        error = np.abs(data.run(context, plan, epilogue) - wanted).max()
        assert error < 1.2 * tolerance, f"{epilogue}, {plan}: {error:.2g}"


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "epilogue",
    [
        Epilogue(bias=True),
        Epilogue(bias=True, activation="relu"),
        Epilogue(bias=True, residual=True),
        Epilogue(bias=True, residual=True, activation="relu"),
    ],
    ids=str,
)
def test_epilogues_with_a_bias(context, epilogue, layout, kind):
    """cuDNN's ready-made kernels."""
    check_epilogue(context, signature("fwd", kind, layout, filters=32), epilogue, most=4)


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
def test_epilogues_with_any_activation(context, activation):
    """Kernels that cuDNN compiles."""
    s = signature("fwd", "bfloat16", "NHWC", filters=32)
    check_epilogue(context, s, Epilogue(True, True, activation, slope=0.1), most=1)


@pytest.mark.parametrize(
    "epilogue",
    [
        Epilogue(residual=True),
        Epilogue(residual=True, activation="relu"),
        Epilogue(True, True, "relu", beta=0.5),
        Epilogue(True, True, "relu", alpha=2.0),
        Epilogue(alpha=-0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["float16", "tf32"])
def test_epilogues_with_factors(context, epilogue, kind):
    check_epilogue(context, signature("fwd", kind, "NHWC", filters=32), epilogue)
