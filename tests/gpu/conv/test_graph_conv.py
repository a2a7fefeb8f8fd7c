"""Convolution by cuDNN's graph API: which plans, their records, launches, and the graph itself."""

import json
import pickle
import struct
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from symdnn.config import config
from symdnn.errors import CudnnArgumentError, CudnnError
from symdnn.gpu.binding import frontend
from symdnn.gpu.conv import blocklist
from symdnn.gpu.conv.graph_conv import DTYPES, conv_graph, strides
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ACTIVATIONS, ConvSignature, Epilogue
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.graph import TYPES, new_graph
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.device import cudnn_device
from tests.gpu.fake_frontend import Engine, Knob, Mode, Note, fake_frontend  # noqa: F401
from tests.gpu.with_cudnn import real_cudnn, real_frontend  # noqa: F401

HANDLE, NOTHING = 7, Epilogue()


def signature(direction="fwd", dtype="float16", dims=2, **more):
    """3x3 kernels (3x3x3) over 8 channels, the result of the size of the image."""
    ones = (1,) * dims
    values = {
        "direction": direction, "dtype": dtype, "x": (2, 8, *(7,) * dims),
        "w": (4, 8, *(3,) * dims), "y": (2, 4, *(7,) * dims), "padding": ones, "stride": ones,
        "dilation": ones, "groups": 1, "flip": False,
        "compute": "float64" if dtype == "float64" else "float32", "allow_tf32": False,
        "wanted": "guess_once", "workspace_limit": 0, "deterministic": False,
        "on_unsupported": "raise", "layout": "NCHW",
    }  # fmt: skip
    return ConvSignature(**values | more)


def plans(s, handle, epilogue=NOTHING, **more):
    return graph.plans(conv_graph(replace(s, epilogue=epilogue)), handle, **more)


def launch(s, record, handle, epilogue=NOTHING):
    return graph.launch(conv_graph(replace(s, epilogue=epilogue)), record, handle)


# --- which plans ----------------------------------------------------------------------------------


def test_plans_come_in_the_order_of_the_heuristics(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(3, Mode.FALLBACK), Engine(1), Engine(2, Mode.B), Engine(4))
    found, why = plans(signature(), HANDLE)
    assert [p.engine for p in found] == [1, 4, 2, 3]
    assert why == ""


def test_no_more_is_asked_than_wanted(fake_frontend):  # noqa: F811
    fake_frontend.engines = tuple(Engine(i) for i in range(9)) + (Engine(9, Mode.FALLBACK),)
    assert len(plans(signature(), HANDLE, most=2)[0]) == 2
    strict, loose = fake_frontend.made
    assert strict.asked == loose.asked == [Mode.A]
    assert strict.built == [0, 1]
    assert loose.built == []
    assert len(plans(signature(), HANDLE)[0]) == 10  # goes on where it stopped
    assert strict.built == list(range(10))
    assert len(fake_frontend.made) == 2


def test_a_plan_that_two_modes_give_is_listed_once(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1), Engine(1, Mode.B), Engine(1, knobs=((Knob.STAGES, 1),)))
    assert len(plans(signature(), HANDLE)[0]) == 2


def test_each_plan_has_its_own_workspace(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1, workspace=100), Engine(2), Engine(3, workspace=50))
    found, _ = plans(signature(), HANDLE)
    assert [p.workspace_bytes for p in found] == [100, 0, 50]


def test_the_workspace_limit(fake_frontend, monkeypatch):  # noqa: F811
    device = SimpleNamespace(capability=(9, 0))
    monkeypatch.setattr(cudnn_device, "existing_context", lambda: device)
    monkeypatch.setattr(blocklist, "version_number", lambda: 91900)
    fake_frontend.engines = (Engine(1, workspace=100), Engine(2, workspace=50))
    search = Search(signature(workspace_limit=99), HANDLE)
    with config.change_flags({"dnn.conv.tuning_cache": "off"}):
        assert [c.plan.engine for c in search.planned()] == [2]
    assert search.too_large[1:] == (100, "100 bytes of workspace, 99 allowed")


def test_deterministic(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1, notes=(Note.NONDETERMINISTIC,)), Engine(2))
    found, _ = plans(signature(), HANDLE)
    assert [(p.engine, p.deterministic) for p in found] == [(1, False), (2, True)]
    assert found[0].notes == ("RUNTIME_COMPILATION", "NONDETERMINISTIC")
    assert found[1].notes == ("RUNTIME_COMPILATION",)
    strict, _ = plans(signature(deterministic=True), HANDLE)
    assert [p.engine for p in strict] == [2]


@pytest.mark.parametrize(
    ("dtype", "tf32", "compute", "engines"),
    [
        ("float32", False, "float32", [1]),
        ("float32", True, "float32", [1, 2]),
        ("float16", False, "float32", [1, 2, 3]),
        ("float16", False, "float16", [1, 2, 3, 4]),
        ("float64", False, "float64", [1, 2, 3]),
    ],
)
def test_float32_means_float32(dtype, tf32, compute, engines, fake_frontend):  # noqa: F811
    fake_frontend.engines = (
        Engine(1),
        Engine(2, notes=(Note.TENSOR_CORE,)),
        Engine(3, notes=(Note.TENSOR_CORE, Note.DOWN_CONVERT_INPUTS)),
        Engine(4, notes=(Note.REDUCED_PRECISION_REDUCTION,)),
    )
    found, _ = plans(signature(dtype=dtype, allow_tf32=tf32, compute=compute), HANDLE)
    assert [p.engine for p in found] == engines


def test_why_there_is_none(fake_frontend):  # noqa: F811
    assert plans(signature(), HANDLE) == (
        [],
        "cuDNN's heuristics give no engine: heuristics A: No valid engine configs; "
        "heuristics B: No valid engine configs; heuristics FALLBACK: No valid engine configs",
    )
    fake_frontend.engines = (Engine(1, works=False), Engine(2, works=False))
    found, why = plans(signature(padding=(2, 2)), HANDLE)
    assert found == []
    assert why.startswith("all 2 plans of cuDNN's heuristics are refused: ")
    assert "eng1_TILE_SIZE=2 refused" in why


def test_a_graph_that_can_t_be_made(fake_frontend, monkeypatch):  # noqa: F811
    def fail(*args):
        raise RuntimeError("CUDNN_BACKEND_TENSOR_DESCRIPTOR cudnnFinalize failed")

    monkeypatch.setattr("symdnn.gpu.cudnn.graph.new_graph", fail)
    found, why = plans(signature(), HANDLE)
    assert found == []
    assert why.endswith("does not take it: CUDNN_BACKEND_TENSOR_DESCRIPTOR cudnnFinalize failed")


@pytest.mark.parametrize(
    ("changes", "epilogue", "why"),
    [
        ({"dtype": "int8"}, None, "no dtype of cuDNN: int8"),
        ({"x": (0, 8, 7, 7), "y": (0, 4, 7, 7)}, None, "it is empty"),
        ({"direction": "bwd_data"}, Epilogue(bias=True), "a forward convolution, not bwd_data"),
        ({}, Epilogue(residual=True, alpha=2.0, beta=0.5), "alpha or beta, not both"),
    ],
)
@pytest.mark.usefixtures("fake_frontend")
def test_what_nobody_is_asked(changes, epilogue, why):
    found, reason = plans(signature(**changes), HANDLE, epilogue)
    assert found == []
    assert why in reason


def test_off(monkeypatch):
    monkeypatch.setattr(frontend, "unavailable", lambda: "two of them")
    assert plans(signature(), HANDLE) == ([], "the graph API is off: two of them")
    record = GraphPlan(1, (), "eng1", 0, True)
    with pytest.raises(CudnnError, match="graph API is off: two of them"):
        launch(signature(), record, HANDLE)


# --- records and launches -------------------------------------------------------------------------


def test_a_record_is_plain_data(fake_frontend):  # noqa: F811
    knobs = ((Knob.TILE_SIZE, 2), (Knob.STAGES, 5))
    fake_frontend.engines = (Engine(3, knobs=knobs, workspace=16),)
    (record,), _ = plans(signature(), HANDLE)
    assert record.knobs == (("STAGES", 5), ("TILE_SIZE", 2))
    assert pickle.loads(pickle.dumps(record)) == record
    stored = json.loads(json.dumps(asdict(record)))
    assert stored["knobs"] == [["STAGES", 5], ["TILE_SIZE", 2]]
    assert str(record) == "eng3_TILE_SIZE=2_STAGES=5 (workspace 16 bytes, deterministic)"


def run(record, s=None, epilogue=NOTHING):
    """A launch, and what the frontend was given by it."""
    made = launch(s or signature(), record, HANDLE, epilogue)
    at = {role: 16 * (i + 1) for i, role in enumerate(made.roles)}
    made(HANDLE, at, 256)
    return made._graph.ran[-1]


def test_what_was_listed_is_not_built_again(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1), Engine(2))
    found, _ = plans(signature(), HANDLE)
    assert run(found[1]) == ({1: 16, 2: 32, 3: 48}, 256, "eng2_TILE_SIZE=2", HANDLE)
    assert run(found[0], signature(wanted="time_once"))[2] == "eng1_TILE_SIZE=2"
    assert len(fake_frontend.made) == 2


def forget(fake):
    """As in another process."""
    fake.made.clear()
    graph._recent.clear()


def test_equal_layers_share_what_is_built_while_one_uses_it(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1), Engine(2))
    found, _ = plans(signature(), HANDLE)
    forget(fake_frontend)
    first, second = (launch(signature(), found[0], HANDLE) for _ in range(2))
    assert second is first
    assert launch(signature(), found[1], HANDLE) is not first
    assert len(fake_frontend.made) == 2
    del first, second
    launch(signature(), found[0], HANDLE)
    assert len(fake_frontend.made) == 3


def test_a_record_is_built_by_its_engine_and_knobs(fake_frontend):  # noqa: F811
    fake_frontend.engines = tuple(Engine(2, knobs=((Knob.STAGES, i),)) for i in range(4))
    found, _ = plans(signature(), HANDLE)
    forget(fake_frontend)
    assert run(found[2])[2] == "eng2_STAGES=2"
    (only,) = fake_frontend.made
    assert only.asked == []  # no heuristics


def test_a_record_whose_engine_has_another_number_is_found_by_name(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1, tag="winner"),)
    found, _ = plans(signature(), HANDLE)
    forget(fake_frontend)
    fake_frontend.engines = (Engine(1), Engine(5, Mode.B, tag="winner"))
    assert run(found[0])[2] == "winner"


@pytest.mark.parametrize("now", [(), (Engine(1, works=False),), (Engine(1, workspace=999),)])
def test_a_record_that_can_t_be_built_again(now, fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1, workspace=8),)
    found, _ = plans(signature(), HANDLE)
    forget(fake_frontend)
    fake_frontend.engines = now
    with pytest.raises(CudnnError, match=r"plan eng1_TILE_SIZE=2 .* can't be built again: "):
        launch(signature(), found[0], HANDLE)


def test_only_the_last_plannings_are_kept(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1),)
    for n in range(1, 6):
        plans(replace(signature(), padding=(n, n)), HANDLE)
    assert [form.signature.padding for form, _ in graph._recent] == [(4, 4), (5, 5)]


def test_a_pointer_that_is_not_aligned(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1),)
    (record,), _ = plans(signature(), HANDLE)
    made = launch(signature(), record, HANDLE)
    with pytest.raises(CudnnArgumentError, match="wanted w at a multiple of 16 bytes, got 0x24"):
        made(HANDLE, {"x": 16, "w": 36, "y": 48}, 0)
    assert made._graph.ran == []


def test_the_arguments_of_an_epilogue(fake_frontend):  # noqa: F811
    import ctypes

    fake_frontend.engines = (Engine(1),)
    epilogue = Epilogue(bias=True, residual=True, alpha=2.0)
    (record,), _ = plans(signature(), HANDLE, epilogue)
    pack = run(record, epilogue=epilogue)[0]
    assert {uid: pack[uid] for uid in range(1, 6)} == {1: 16, 2: 32, 3: 48, 4: 64, 5: 80}
    assert set(pack) == {1, 2, 3, 4, 5, 6}
    made = launch(signature(), record, HANDLE, epilogue)
    assert ctypes.c_float.from_address(made._pack[6]).value == 2.0


# --- the graph, by the frontend itself ------------------------------------------------------------


def made(s, epilogue=NOTHING):
    """The graph as the frontend's own JSON; it was checked as far as that goes without a GPU."""
    return json.loads(str(new_graph(conv_graph(replace(s, epilogue=epilogue)), None)))


@pytest.mark.usefixtures("real_frontend")
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_graph_of_a_convolution(direction, layout, dims, dtype):
    s = signature(direction, dtype, dims, layout=layout, flip=True)
    found = made(s)
    (node,) = found["nodes"]
    operation = {"fwd": "FPROP", "bwd_data": "DGRAD", "bwd_filter": "WGRAD"}[direction]
    assert node["tag"] == f"CONV_{operation}"
    assert node["math_mode"] == "CONVOLUTION"
    assert (node["pre_padding"], node["post_padding"]) == ([1] * dims, [1] * dims)
    tensors = {t["uid"]: t for t in found["tensors"]}
    for uid, role in ((1, "x"), (2, "w"), (3, "y")):
        shape = getattr(s, role)
        assert tuple(tensors[uid]["dim"]) == shape
        assert tuple(tensors[uid]["stride"]) == strides(shape, layout)
        assert tensors[uid]["data_type"] == TYPES[dtype]
    assert node["compute_data_type"] == ("DOUBLE" if dtype == "float64" else "FLOAT")


@pytest.mark.usefixtures("real_frontend")
def test_the_graph_has_stride_dilation_and_groups():
    s = signature(
        x=(2, 8, 9, 9), w=(4, 2, 3, 3), y=(2, 4, 3, 3), padding=(1, 1), stride=(3, 3),
        dilation=(2, 2), groups=4,
    )  # fmt: skip
    found = made(s)
    (node,) = found["nodes"]
    assert (node["stride"], node["dilation"]) == ([3, 3], [2, 2])
    assert node["math_mode"] == "CROSS_CORRELATION"


@pytest.mark.usefixtures("real_frontend")
@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_graph_of_an_epilogue(activation, layout):
    epilogue = Epilogue(True, True, activation, 2.0, 3.0, 0.1)
    s = signature(layout=layout)
    found = made(s, epilogue)
    modes = [n.get("mode", n["tag"]) for n in found["nodes"]]
    assert modes[:5] == ["CONV_FPROP", "MUL", "MUL", "ADD", "ADD"]
    assert len(modes) == 5 + bool(activation)
    between = [t for t in found["tensors"] if t["is_virtual"]]
    assert len(between) == len(modes) - 1
    assert {t["data_type"] for t in between} == {"FLOAT"}
    assert {tuple(t["stride"]) for t in between} == {strides(s.y, layout)}
    by_value = {t["name"] for t in found["tensors"] if t["is_pass_by_value"]}
    assert by_value == {"alpha", "beta"}


@pytest.mark.usefixtures("real_frontend")
def test_only_what_an_epilogue_has():
    found = made(signature(), Epilogue(bias=True, activation="relu"))
    assert [n.get("mode", n["tag"]) for n in found["nodes"]] == ["CONV_FPROP", "ADD", "RELU_FWD"]
    assert len(found["tensors"]) == 6
    leaky = made(signature(), Epilogue(activation="leaky_relu", slope=0.25))["nodes"][1]
    assert struct.unpack(">f", bytes.fromhex(leaky["relu_lower_clip_slope"])) == (0.25,)
    clipped = made(signature(), Epilogue(activation="relu6"))["nodes"][1]
    assert struct.unpack(">f", bytes.fromhex(clipped["relu_upper_clip"])) == (6.0,)


def test_an_epilogue_that_does_not_exist():
    with pytest.raises(CudnnArgumentError, match="wanted one of relu, relu6, .*, got 'mish'"):
        Epilogue(activation="mish")


def test_limits_without_wishes():
    assert conv_graph(signature()).limits.unwanted == ("REDUCED_PRECISION_REDUCTION",)
    assert conv_graph(signature(workspace_limit=5)) == conv_graph(signature())
