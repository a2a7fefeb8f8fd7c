"""The ways of a convolution for a choice with others: tables, parts, launches; all by fakes."""

from __future__ import annotations

import pytest

from symdnn.config import config
from symdnn.gpu import registry
from symdnn.gpu.conv import together
from symdnn.gpu.conv import tuning as conv_tuning
from symdnn.gpu.conv.launch import ConvKernel
from symdnn.ops.vendor import gpudnn as G
from symdnn.tuning.attempts import Attempt
from tests.gpu.conv.test_algorithm import both, folder, plan  # noqa: F401
from tests.gpu.conv.test_cudnn_algorithm import FORWARD_SIZE
from tests.gpu.fake_cudnn import FakeEnv, arrays_of, conv, library_kernels, unsupported

registry.load()

FILTER_SIZE = "cudnnGetConvolutionBackwardFilterWorkspaceSize"
#: Milliseconds of one sample, and of one launch.
SPEED = {"none": 4.0, "small": 2.0, "large": 1.0, "eng3": 3.0, "deterministic": 2.0, "fft": 1.0}
LAUNCH_MS = 0.1
BATCH = {"x": (8, 4, 7, 6)}


@pytest.fixture
def device(both, folder, monkeypatch):  # noqa: F811
    """Workspaces of 0, 100 and 1000 bytes a sample; times by :data:`SPEED`; what was measured."""

    def size(handle, a, b, how, c, number):
        batch = both.what[int(a)].shape[0]
        if int(number) > 2:
            raise unsupported(FORWARD_SIZE)
        return (0, 100, 1000)[int(number)] * batch

    both.answers[FORWARD_SIZE] = both.answers[FILTER_SIZE] = size
    both.answers["cudnnGetConvolutionBackwardFilterAlgorithm_v7"] = []
    both.plans = lambda form: ([], "none in this test")
    measured = []

    def measure(context, s, candidates, budget_ms, by, patience, runs):
        measured.append(s.x[0])
        times = [(c, SPEED[c.name] * s.x[0] + LAUNCH_MS) for c in candidates]
        return [Attempt(c, ms, 1e-6) for c, ms in times], ""

    monkeypatch.setattr(conv_tuning, "measure", measure)
    monkeypatch.setattr(together, "free_bytes", lambda: 1 << 40)
    both.measured = measured
    with config.change_flags({"dnn.workspace_budget": 1}):
        yield both


def alternatives(call, room):
    """The alternatives of a call by (counts and algorithms of its parts)."""
    (kernel, *_) = library_kernels(type(call.op))
    assert isinstance(kernel, ConvKernel)
    return {
        tuple((p.count, p.algorithm.candidate.name) for p in a.kernel.parts): a
        for a in kernel.alternatives(call, room)
    }


def test_all_algorithms_of_the_whole_batch(device):
    found = alternatives(conv(**BATCH), 1 << 20)
    assert {which: (a.workspace_bytes, a.ms) for which, a in found.items()} == {
        ((8, "large"),): (8000, 8.1), ((8, "small"),): (800, 16.1), ((8, "none"),): (0, 32.1),
    }  # fmt: skip
    assert device.measured == [8]
    assert all(a.error == 1e-6 for a in found.values())


def test_a_batch_is_divided_where_a_faster_algorithm_then_fits(device):
    found = alternatives(conv(**BATCH), 4000)
    halves = found[(4, "large"), (4, "large")]
    assert halves.workspace_bytes == 4000
    assert halves.ms == pytest.approx(8.2)
    assert device.measured == [8, 4]
    best = min((a for a in found.values() if a.workspace_bytes <= 4000), key=lambda a: a.ms)
    assert best is halves
    assert ((8, "large"),) in found  # the reason


def test_parts_of_several_sizes_use_what_room_there_is(device):
    found = alternatives(conv(x=(7, 4, 7, 6)), 2500)
    assert device.measured == [7, 4, 3, 2, 1]
    best = min((a for a in found.values() if a.workspace_bytes <= 2500), key=lambda a: a.ms)
    assert [p.count for p in best.kernel.parts] == [2, 2, 2, 1]


def test_parts_are_measured_once_for_all_processes(device):
    call = conv(**BATCH)
    first = alternatives(call, 4000)
    again = alternatives(call, 4000)
    assert device.measured == [8, 4]
    assert {k: (a.ms, a.workspace_bytes, a.error) for k, a in again.items()} == {
        k: (a.ms, a.workspace_bytes, a.error) for k, a in first.items()
    }


def test_a_named_algorithm_stays(device):
    (found,) = alternatives(conv(algo="large", **BATCH), 10).values()
    assert found.workspace_bytes == 8000
    assert device.measured == []


def test_sums_in_16_bits_are_not_divided(device):
    call = conv(G.GpuDnnConvGradW, dtype="float16", **BATCH)
    found = alternatives(call, 10)
    assert device.measured == [8]
    assert {len(which) for which in found} == {1}


def test_determinism_measures_only_what_is_kept(device):
    flags = {"deterministic": "more", "dnn.conv.tuning_cache": "off"}
    with config.change_flags(flags):
        found = alternatives(conv(**BATCH), 10)
    assert device.measured == []
    assert all(a.ms is None for a in found.values())
    assert min(a.workspace_bytes for a in found.values()) == 0


def launched(fake, call, found):
    """The calls of cuDNN for an alternative: (start of the operands, of the result, beta)."""
    inputs, outputs = arrays_of(call.inputs), arrays_of(call.outputs, 0x9000_0000)
    before = len(fake.calls)
    found.kernel.bind(call)(FakeEnv(fake), inputs, outputs)
    stem = {"fwd": "Forward", "bwd_filter": "BackwardFilter"}[call.op.direction]
    made = [args for name, args in fake.calls[before:] if name == f"cudnnConvolution{stem}"]
    starts = (inputs[0].ptr, inputs[1].ptr, outputs[0].ptr)
    return [
        (a[3] - starts[0], a[5] - starts[1], a[12] - starts[2], a[10]) for a in made
    ]  # fmt: skip


def test_forward_parts_are_rows_of_the_batch(device):
    call = conv(**BATCH)
    found = alternatives(call, 4000)[(4, "large"), (4, "large")]
    x_bytes, y_bytes = (4 * 4 * n for n in (4 * 7 * 6, 6 * 4 * 3))
    assert launched(device, call, found) == [(0, 0, 0, 0.0), (x_bytes, 0, y_bytes, 0.0)]


def test_the_gradient_of_the_filters_is_summed_over_parts(device):
    call = conv(G.GpuDnnConvGradW, **BATCH)
    found = alternatives(call, 4000)
    halves = next(a for which, a in found.items() if [c for c, _ in which] == [4, 4])
    x_bytes, y_bytes = (4 * 4 * n for n in (4 * 7 * 6, 6 * 4 * 3))
    assert launched(device, call, halves) == [(0, 0, 0, 0.0), (x_bytes, y_bytes, 0, 1.0)]


def test_the_report_names_the_parts(device):
    call = conv(**BATCH)
    found = alternatives(call, 4000)[(4, "large"), (4, "large")]
    use = found.kernel.library_use(call)
    assert use.ms == pytest.approx(8.2)
    assert use.workspace_bytes == 4000
    assert use.why == (
        "chosen for dnn.workspace_budget; samples in 2 parts: 4 by large, 4 by large"
    )
