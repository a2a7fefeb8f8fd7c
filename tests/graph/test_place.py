"""A place is a kind and an index; a function runs at one GPU beside the host."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.execute import targets
from symdnn.compile.execute.targets import Devices
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.errors import OptionError
from symdnn.gpu import detect
from symdnn.graph.place import HOST, Place
from symdnn.graph.target import Target
from symdnn.graph.values.storage import Storage
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu, Transfer, gpu_from_host
from symdnn.printing.listing import program_text

FIRST, SECOND = Place("cuda"), Place("cuda", 1)


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [("cpu", HOST, "cpu"), ("cuda", FIRST, "cuda0"), ("cuda0", FIRST, "cuda0"),
     ("cuda12", Place("cuda", 12), "cuda12")],
)  # fmt: skip
def test_a_place_has_a_name(text, place, name):
    assert Place.parse(text) == place
    assert str(place) == name
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize("text", ["", "gpu", "cpu1", "cuda-1", "cuda:1", "cuda1:sm_90"])
def test_other_words_name_no_place(text):
    with pytest.raises(OptionError, match="is no device: wanted 'cpu', 'cuda', 'cuda0', 'cuda1'"):
        Place.parse(text)


def test_a_target_is_at_its_place():
    assert [Target.parse(t).place for t in ("cpu", "cuda:sm_90", "cuda1:sm_90")] == [
        HOST, FIRST, SECOND,
    ]  # fmt: skip
    assert str(Target.parse("cuda1:sm_90")) == "cuda1:sm_90"


def test_the_flag_chooses_the_second_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(
        detect, "cuda_target", lambda i=0: asked.append(i) or Target("cuda", i, (9, 0))
    )
    for device in ("cuda", "cuda0", "cuda1"):
        with config.change_flags(device=device):
            assert targets.resolve_target().place == Place.parse(device)
    assert asked == [0, 0, 1]


class Memory:
    """What a storage keeps at a place, of NumPy's memory."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.copies = 0

    def upload(self, array, into):
        self.copies += 1
        return array.copy()

    def download(self, buffer):
        return buffer.copy()

    def lend(self, buffer):
        return buffer


def test_a_storage_has_a_copy_for_each_gpu():
    one, two = Memory(FIRST), Memory(SECOND)
    storage = Storage(np.zeros(3))
    a, b = storage.on(one), storage.on(two)
    assert a is not b
    a[:] = 1
    storage.written(FIRST)
    np.testing.assert_array_equal(storage.on(two), np.ones(3))
    np.testing.assert_array_equal(storage.host(), np.ones(3))
    storage.on(one)
    assert (one.copies, two.copies) == (1, 2)
    assert storage.version_on(SECOND) == storage.version_on(FIRST)


def _program(target):
    x = T.fvector("x")
    w = symdnn.shared(np.ones(3, "float32"), "w")
    return function([x], T.exp(x) * w, updates={w: w * 2}, mode=Mode(target=target))


def test_programs_name_the_gpu_that_they_are_for():
    f = _program("cuda1:sm_90")
    (segment,) = f.stages.program.segments()
    assert segment.place == SECOND
    moved = {n.op for n in f.fgraph.nodes if isinstance(n.op, Transfer)}
    assert moved == {GpuFromHost(SECOND), HostFromGpu(SECOND)}
    assert "GpuFromHost{cuda1}" in symdnn.printing.debugprint(f, file="str")
    assert "segment 0 on cuda1" in program_text(f.stages.program)


def test_equal_programs_for_two_gpus_differ_in_the_place_alone():
    one, two = (_program(t) for t in ("cuda0:sm_90", "cuda1:sm_90"))
    names = [[str(n.op) for n in f.fgraph.toposort()] for f in (one, two)]
    assert names[0] != names[1]
    assert [n.replace("cuda0", "cuda1") for n in names[0]] == names[1]


def test_runtimes_are_of_the_functions_gpu_and_the_host():
    devices = Devices(Target("cuda", 1, compute_capability=(9, 0)))
    assert devices.runtime(HOST).memory.place == HOST
    with pytest.raises(OptionError, match="is on cuda0, the function on cuda1"):
        devices.runtime(FIRST)


@pytest.mark.parametrize("inside", [False, True], ids=["", "in a loop"])
def test_two_gpus_in_one_function_are_refused(inside):
    x = T.fvector("x")

    def wish(v):
        return gpu_from_host(v, SECOND) * 2

    out = symdnn.scan(wish, sequences=[x], return_list=False)[0] if inside else wish(x)
    with pytest.raises(OptionError, match=r"GpuFromHost\{cuda1\}, made at .*test_place.py") as info:
        function([x], out, mode=Mode(target="cuda:sm_90"))
    assert "is on cuda1, the function on cuda0" in str(info.value)
    assert "Mode(target='cuda1')" in str(info.value)


@pytest.mark.parametrize("target", ["cpu", "cuda1:sm_90"])
def test_a_wish_that_fits_is_taken(target):
    x = T.fvector("x")
    f = function(
        [x], [gpu_from_host(x, SECOND) * 2, gpu_from_host(x) + 1], mode=Mode(target=target)
    )
    assert all(n.op.place == SECOND for n in f.fgraph.nodes if isinstance(n.op, Transfer))


def test_a_function_of_each_gpu_shares_variables(monkeypatch):
    """Two devices that compute by references, in one process."""
    import symdnn.gpu.execution.runtime as runtimes
    from tests.gpu.reference_device import ReferenceRuntime

    here = {0: ReferenceRuntime(), 1: ReferenceRuntime()}
    for rt in (here[1].context, here[1].memory):
        monkeypatch.setattr(rt, "place", SECOND)
    monkeypatch.setattr(runtimes, "_runtimes", here)
    x, w = T.fvector("x"), symdnn.shared(np.ones(3, "float32"), "w")
    f, g = (
        function([x], x * w, updates={w: w + n}, mode=Mode(target=f"cuda{i}:sm_90"))
        for i, n in enumerate((1, 10))
    )
    a, total = np.arange(3, dtype="float32"), 1
    for _ in range(4):
        np.testing.assert_array_equal(f(a), a * total)
        np.testing.assert_array_equal(g(a), a * (total + 1))
        total += 11
        np.testing.assert_array_equal(w.get_value(), np.full(3, total, "float32"))
    assert f.plans()[0].specialised.segment.place == FIRST
    assert g.plans()[0].specialised.segment.place == SECOND
    rows = [{r.target for r in h.lowering_report().rows} for h in (f, g)]
    assert rows == [{"cuda0:sm_90"}, {"cuda1:sm_90"}]
