"""Times of collectives out of the steps of a call: one process, made-up times."""

import json

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn.compile.report import communication
from symdnn.compile.report.communication import COMPUTE, MOVE, Timeline, timeline_of
from symdnn.compile.report.distributed_report import DistributedReport
from symdnn.errors import InputError
from symdnn.ops.collective.overlapped import AllReduceStart, AllReduceWait, AllSucceeded
from symdnn.world.group import Group

GROUP = Group((0, 1), "world")


def steps():
    """Two reductions that are on their way at the same time, nodes between, and an agreement."""
    x, y = T.vector("x"), T.vector("y")
    first, second = AllReduceStart(GROUP, "mean")(x), AllReduceStart(GROUP, "sum")(y)
    ends = [AllReduceWait(1).make_node(s, v) for s, v in ((first, x), (second, y))]
    nodes = [first.owner, T.tanh(x).owner, second.owner, T.exp(y).owner, *ends]
    agreed = AllSucceeded(GROUP)(ends[0].outputs[0]).owner
    #      start  tanh   start  exp     waits              agreement
    times = [(0, 1), (1, 3), (4, 1), (5, 4), (9, 2), (11, 1), (12, 0.5)]
    return [(n, float(b), float(s)) for n, (b, s) in zip([*nodes, agreed], times, strict=True)]


def test_a_reduction_is_on_its_way_from_its_start_to_the_end_of_its_wait():
    found = timeline_of(steps(), 0, 100.0, 13.0)
    moves = [(s.name, s.begin, s.seconds) for s in found.of(MOVE)]
    assert moves == [
        ("AllReduce(mean)", 0, 11), ("AllReduce(sum)", 4, 8), ("AllSucceeded", 12, 0.5),
    ]  # fmt: skip
    assert [s.name for s in found.of(COMPUTE)] == ["Tanh", "Exp"]
    assert found.moving_seconds == 12.5  # once, where two are on their way
    assert found.exposed_seconds == 1 + 1 + 2 + 1 + 0.5
    again = Timeline.of_plain(json.loads(json.dumps(found.plain())))
    assert again == found


def test_a_trace_has_a_process_for_each_rank_and_lanes_without_overlaps():
    one = timeline_of(steps(), 0, 100.0, 13.0)
    other = timeline_of(steps(), 1, 100.25, 13.0)
    events = communication.chrome_trace([one, other])["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    assert min(e["ts"] for e in events if e["ph"] == "X" and e["pid"] == 1) == 0.25e6
    for pid in (0, 1):
        tids = {e["tid"] for e in events if e["pid"] == pid}
        assert tids == {0, 1, 2}
        for tid in tids:
            spans = [e for e in events if (e["pid"], e["tid"], e["ph"]) == (pid, tid, "X")]
            ends = [e["ts"] + e["dur"] for e in spans]
            assert all(end <= e["ts"] + 1e-3 for end, e in zip(ends, spans[1:]))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 1"]


def test_a_picture_and_totals(tmp_path):
    report = DistributedReport((), (timeline_of(steps(), 0, 0.0, 13.0),))
    report.save(tmp_path / "calls.png")
    assert (tmp_path / "calls.png").read_bytes()[:4] == b"\x89PNG"
    report.save(tmp_path / "calls.json")
    (call,) = json.loads((tmp_path / "calls.json").read_text())["calls"]
    assert call == {"rank": 0, "seconds": 13.0, "moving_seconds": 12.5, "exposed_seconds": 5.5}


def test_without_a_profile_there_are_no_times(tmp_path):
    x = T.vector("x")
    f = symdnn.function([x], dist.all_reduce(x))
    f(np.ones(3, "float32"))
    report = f.distributed_report()
    assert [r.seconds for r in report.rows] == [None]
    with pytest.raises(InputError, match="profile=True"):
        report.save(tmp_path / "a.png")
    report.save(tmp_path / "a.txt")
    assert "exposed ms" in (tmp_path / "a.txt").read_text()


def test_with_a_profile_rows_have_the_times_of_the_last_call():
    x = T.vector("x")
    f = symdnn.function([x], dist.all_reduce(T.tanh(x)), profile=True)
    f(np.ones(3, "float32"))
    f.profile.shown = True
    report = f.distributed_report(all_ranks=True)
    (row,) = report.rows
    assert 0 < row.exposed_seconds <= row.seconds < f.profile.last_seconds
    assert "exposed" in str(report)
