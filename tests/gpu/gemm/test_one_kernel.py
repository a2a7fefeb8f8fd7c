"""Products with an activation that cuBLASLt lacks: cuDNN's one kernel, where it is the faster."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from symdnn.config import config
from symdnn.errors import CudnnError
from symdnn.gpu import libcudnn, registry
from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.graph import new_graph
from symdnn.gpu.device import cudnn_device
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.gemm import bench, one_kernel
from symdnn.gpu.gemm import choice as gemm_choice
from symdnn.gpu.gemm.one_kernel import ACTIVATIONS, MatmulGraph
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmKept
from tests.gpu.fake_cublaslt import FakeGemmEnv, lt
from tests.gpu.fake_frontend import Engine, fake_frontend
from tests.gpu.with_cudnn import real_cudnn

__all__ = ["fake_frontend", "lt", "real_cudnn"]
registry.load()
M, K, N = 16, 8, 24


class Env(FakeGemmEnv):
    """With cuDNN's handle; a plan of the engines ``wrong`` writes other numbers."""

    cudnn = 7
    wrong: tuple[str, ...] = ()

    def download(self, array):
        ran = [run[2] for graph in self.graphs.made for run in graph.ran]
        return np.full(4, 5.0 if ran and ran[-1] in self.wrong else 1.0)


@pytest.fixture
def env(lt, fake_frontend, monkeypatch):
    """Two kernels take 3 ms, plans of cuDNN 2, 1 and 4 ms; choices are kept nowhere."""
    fake_frontend.engines = tuple(Engine(i) for i in range(3))
    made = Env()
    made.graphs, made.ms = fake_frontend, [3.0, 2.0, 1.0, 4.0]
    times = made.ms

    def clock(env, enqueue, good):
        enqueue()
        return times.pop(0)

    monkeypatch.setattr(bench, "replay_ms", clock)
    monkeypatch.setattr(bench, "race_ms", lambda env, runs: [1.0] * len(runs))
    monkeypatch.setattr(gemm_choice._GemmBench, "time", lambda self, way, good: 1.0)
    monkeypatch.setattr(gemm_choice._GemmBench, "race", lambda self, ways: [1.0] * len(ways))
    for module in (gemm_choice, one_kernel):
        monkeypatch.setattr(module, "is_capturing", lambda env: False)
    monkeypatch.setattr(frontend, "version", lambda: "1.0")
    monkeypatch.setattr(libcudnn, "cudnnGetVersion", lambda: 91900, raising=False)
    one_kernel.forget()
    with config.change_flags(**{"gpu.gemm.algo": "time"}):
        yield made
    one_kernel.forget()


def launched(
    env, *, kind=GpuGemm, activation="gelu_erf", dtype="bfloat16", bias=True, strides=None, times=1
):
    """Run the op; the names of the plans that wrote the result itself."""
    op = kind().ending(dtype, bias=bias, activation=activation)
    types = [TensorType(dtype, s) for s in ((M, K), (K, N), (1, N))[: 2 + bias]]
    outs = op.output_types(types)
    call = Call(op, tuple(types), tuple(outs), NO_HINTS)
    arrays = [
        RawArray(0x100000 * i, t.shape, t.dtype, (strides or {}).get(i, ()))
        for i, t in enumerate((*types, *outs), 1)
    ]
    *_, kernel = kernels_for(type(op), "cuda")
    assert kernel.refuses(call) is None
    assert kernel.workspace_bytes(call) >= (32 << 20) + 255
    launch = kernel.bind(call)
    for _ in range(times):
        launch(env, arrays[: len(types)], arrays[len(types) :])
    runs = [run for made in env.graphs.made for run in made.ran]
    return [name for pack, _, name, _ in runs if arrays[-1].ptr in pack.values()]


def test_the_fastest_plan_runs(env, lt):
    ran = launched(env, times=2)
    assert len(ran) == 2
    assert all(name.startswith("eng1") for name in ran)
    assert env.ms == []
    assert {r["epilogue"] for r in lt.runs} == {""}  # trials of two kernels


@pytest.mark.parametrize("ms", [[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
def test_two_kernels_run_where_no_plan_is_faster(env, lt, ms):
    env.ms[:] = ms
    assert launched(env) == []
    assert 0x400000 in lt.runs[-1]["pointers"]
    assert [d[1] for d in env.did if d[0] == "launch"][-1] == "elementwise"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_both_results_are_written_by_one_kernel(env, lt, activation):
    ran = launched(env, kind=GpuGemmKept, activation=activation)
    assert [name.split("_")[0] for name in ran] == ["eng1"]
    (run,) = [r for made in env.graphs.made for r in made.ran if 0x400000 in r[0].values()]
    assert list(run[0].values()) == [0x100000, 0x200000, 0x300000, 0x400000, 0x500000]


@pytest.mark.parametrize("bias", [False, True])
def test_or_by_two_kernels(env, lt, bias):
    env.ms[:] = [1.0, 2.0, 3.0, 4.0]
    assert launched(env, kind=GpuGemmKept, activation="gelu", bias=bias) == []
    first, second = 0x300000 + 0x100000 * bias, 0x400000 + 0x100000 * bias
    assert lt.runs[-1]["epilogue"] == "bias" * bias
    assert lt.runs[-1]["pointers"][3] == second
    name, fields = env.did[-1][1:]
    assert (name, fields[:2]) == ("elementwise", [second, first])


def test_a_plan_with_a_wrong_result_is_not_taken(env):
    env.wrong = (Engine(1).name,)
    env.ms[:] = [3.0, 2.0, 4.0]  # what is wrong is not timed
    assert [name.split("_")[0] for name in launched(env)] == ["eng0"]


def test_what_cudnn_does_not_read_is_two_kernels(env, monkeypatch):
    assert launched(env, dtype="float32") == []
    assert launched(env, activation="relu") == []
    assert launched(env, strides={1: (2 * K + 2, 2)}) == []
    for flags in ({"gpu.gemm.algo": "guess"}, {"dnn.enabled": "False"}):
        with config.change_flags(**flags):
            assert launched(env) == []
    monkeypatch.setattr(one_kernel, "is_capturing", lambda env: True)
    assert launched(env) == []
    monkeypatch.setattr(one_kernel, "is_capturing", lambda env: False)
    monkeypatch.setattr(frontend, "unavailable", lambda: "it is off")
    assert launched(env) == []
    assert len(env.ms) == 4


def test_another_process_takes_what_was_measured(env, monkeypatch, tmp_path):
    card = SimpleNamespace(index=0, name="a card", capability=(9, 0))
    monkeypatch.setattr(cudnn_device, "existing_context", lambda: card)
    with config.change_flags(**{"dnn.conv.tuning_cache": str(tmp_path)}):
        first = launched(env)
        one_kernel.forget()
        assert launched(env) == first * 2  # measuring would find no time to take
        one_kernel.forget()
        env.ms[:] = [1.0, 2.0, 3.0, 4.0]
        for made in env.graphs.made:
            made.ran.clear()
        monkeypatch.setattr(graph, "launch", gone)
        assert launched(env) == []  # measured anew: no plan can be built


def gone(*args):
    raise CudnnError("this cuDNN can't build it again")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_graphs_that_the_frontend_takes(real_cudnn, activation, bias, across, kept):
    if frontend.unavailable():
        pytest.skip(frontend.unavailable())
    y = (1, K) if across else (N, 1)
    sides = ((M, K), (K, 1)), ((K, N), y), ((M, N), (2 * N, 1))
    more = [((M, N), (N, 1))] * kept
    assert new_graph(MatmulGraph("bfloat16", *sides, bias, activation, *more), None, (9, 0))
