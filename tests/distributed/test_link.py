"""Sizes of buckets from a link: the rule, the record that is kept, what all ranks take."""

import json
import math

import numpy as np
import pytest

import symdnn.distributed as dist
from symdnn.config import config
from symdnn.distributed import link
from symdnn.distributed.link import DEFAULT_BUCKET_BYTES, Link, bucket_bytes
from symdnn.gpu.nccl import communicator
from symdnn.graph.target import Target
from symdnn.tuning import store
from symdnn.world import process
from symdnn.world.group import Group
from symdnn.world.launcher import Launched
from tests.distributed import harness

GROUP = Group((0, 1), "world")
MEASURED = link._measured


class Told(process.World):
    """A world of two ranks in which the first one has ``record``, or measures something else."""

    def __init__(self, rank, record=None):
        super().__init__(Launched(rank, 2, rank, 2, "a test"), store=object(), engine="mpi")
        self.record, self.asked = record, []

    def gather(self, name, value, group=None):
        self.asked.append(name)
        other = self.record if "record" in name else {"latency": 5e-3, "bandwidth": 1e6}
        given = [value, other] if self.place.rank == 0 else [other, value]
        return json.loads(json.dumps(given))


@pytest.fixture(autouse=True)
def measured(monkeypatch, tmp_path):
    """How often something was measured; a folder of records of the test's own."""
    calls = []
    monkeypatch.setattr(link, "_measured", lambda group: calls.append(1) or Link(1e-3, 1e9))
    with config.change_flags(**{"dnn.conv.tuning_cache": str(tmp_path / "tuning")}):
        store.list_again()
        yield calls


def cost(size, total, of):
    """The latencies of all buckets, and the last one's bytes."""
    return total / size * of.latency + size / of.bandwidth


def test_the_size_is_the_best_of_all_sizes():
    for of in (Link(40e-6, 300e9), Link(1e-4, 2e9), Link(1e-3, 1e8)):
        total = 100_000_000
        best = of.bucket_bytes(total)
        others = np.geomspace(1e5, 2e8, 200)
        assert cost(best, total, of) <= min(cost(s, total, of) for s in others) * (1 + 1e-6)
    assert Link(1e-9, 1e6).bucket_bytes(10) == 64 << 10  # never tiny
    assert Link(1.0, 1e12).bucket_bytes(1 << 40) == 256 << 20


def test_the_first_rank_measures_once_and_keeps_the_record(monkeypatch, measured):
    for _ in range(2):  # two runs of a program
        monkeypatch.setattr(process, "_current", Told(0))
        size = bucket_bytes(GROUP, 10**8)
        assert size == bucket_bytes(GROUP, 10**8) == int(math.sqrt(10**8 * 1e-3 * 1e9))
    assert len(measured) == 1


@pytest.mark.parametrize(("on_gpus", "bandwidth"), [(False, 2e9), (True, 280e9)])
def test_what_a_program_takes_besides_cancels(monkeypatch, on_gpus, bandwidth):
    """On a GPU its call takes longer than some small reductions, and hides them."""
    latency, call = 20e-6, 150e-6

    def seconds(group, count, length):
        return max(call, length * (latency + 4 * count / bandwidth)) + call

    monkeypatch.setattr(link, "_seconds_of_chain", seconds)
    monkeypatch.setattr(link, "_on_gpus", lambda: on_gpus)
    found = MEASURED(GROUP)
    assert found.latency == pytest.approx(latency, rel=0.25)
    assert found.bandwidth == pytest.approx(bandwidth, rel=0.1)
    best = Link(latency, bandwidth).bucket_bytes(500_000_000)
    assert found.bucket_bytes(500_000_000) == pytest.approx(best, rel=0.2)


@pytest.mark.parametrize("noise", [-1.0, 0.0])
def test_a_latency_that_was_not_seen_makes_no_tiny_buckets(monkeypatch, noise):
    """Where the longer chain of small reductions seems to take no longer than one of them."""
    monkeypatch.setattr(
        link, "_seconds_of_chain", lambda group, count, length:
        1.0 + (count > link._SMALL) * length * 4 * count / 300e9 + noise * (length > 1) * 1e-5,
    )  # fmt: skip
    monkeypatch.setattr(link, "_on_gpus", lambda: True)
    assert 10e6 < MEASURED(GROUP).bucket_bytes(500_000_000) < 100e6


@pytest.mark.parametrize(("on_gpus", "ranks", "here", "flag", "wanted"), [
    (True, 2, 2, True, "rounded"),
    (True, 2, 1, False, "rounded"),  # one addition, wherever they are
    (True, 4, 4, True, "rounded"),
    (True, 4, 4, False, "gradient"),
    (True, 4, 2, True, "gradient"),  # memory is registered on one machine
    (False, 2, 2, True, "gradient"),
])  # fmt: skip
def test_gradients_move_in_16_bits_where_their_sum_is_rounded_once(
    monkeypatch, on_gpus, ranks, here, flag, wanted
):
    """If neither the user nor a flag says how they move."""
    place = Launched(1, ranks, 1 % here, here, "a test")
    monkeypatch.setattr(process, "_current", process.World(place))
    monkeypatch.setattr(link, "_on_gpus", lambda: on_gpus)
    with config.change_flags({"distributed.registered": flag}):
        assert dist.DataParallel().word == wanted
        assert dist.DataParallel(reduce_dtype="float32").word == "float32"
        with config.change_flags({"distributed.reduce_dtype": "gradient"}):
            assert dist.DataParallel().word == "gradient"


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_device_auto_is_what_programs_run_on(monkeypatch, kind):
    monkeypatch.setattr(link, "resolve_target", lambda: Target(kind))
    monkeypatch.setattr(communicator, "problem", lambda: None)
    for device, wanted in (("auto", kind == "cuda"), ("cpu", False), ("cuda1", True)):
        with config.change_flags(device=device):
            assert link._on_gpus() == wanted


def test_other_ranks_take_the_firsts_record_or_measurement(monkeypatch, measured):
    monkeypatch.setattr(process, "_current", Told(1, {"latency": 1e-4, "bandwidth": 1e8}))
    assert bucket_bytes(GROUP, 10**8) == 1_000_000
    assert not measured
    monkeypatch.setattr(process, "_current", Told(1))
    assert bucket_bytes(GROUP, 10**8) == int(math.sqrt(10**8 * 5e-3 * 1e6))
    assert len(measured) == 1  # all ranks take part in the collectives
    assert not list(store.records())


def test_the_default_where_nothing_is_measured(monkeypatch, measured):
    assert bucket_bytes(Group((0,), "one"), 10**8) == DEFAULT_BUCKET_BYTES
    world = process.World(Launched(0, 2, 0, 2, "a test"))  # nothing joins it
    monkeypatch.setattr(process, "_current", world)
    assert bucket_bytes(GROUP, 10**8) == DEFAULT_BUCKET_BYTES
    monkeypatch.setattr(process, "_current", Told(0))
    with config.change_flags(deterministic="more"):
        assert bucket_bytes(GROUP, 10**8) == DEFAULT_BUCKET_BYTES
    assert not measured


def test_two_ranks_measure_the_same_link(tmp_path):
    one, other = harness.checks(2, tmp_path, "link_checks")
    assert one["values"] == other["values"]
    found = one["values"]["check_a_real_link"]
    assert 0 < found["latency"] < 1
    assert found["bandwidth"] > 1e5
    assert dist.size() == 1
