"""Lists of collectives decide alike on all ranks what is captured and what has plans."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
from symdnn.compile.plan import comparison
from symdnn.compile.plan.comparison import Compared, Lists, _List
from symdnn.errors import CollectiveMismatch, DistributedError
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply
from symdnn.ops.collective.moves import Send
from symdnn.ops.collective.reductions import AllReduce
from symdnn.world import process
from symdnn.world.group import Group
from symdnn.world.launcher import Launched

BOTH, PAIR = Group((0, 1), "both"), Group((0, 2), "pair")


def plan(*sizes, group=BOTH, of=None):
    """A specialised segment with a reduction (or another collective) of each size."""
    types = [TensorType("float32", (n,)) for n in sizes]
    nodes = [Apply(of or AllReduce(group), (t("x"),), (t("y"),)) for t in types]
    inputs = dict(zip(nodes, types))
    call = lambda node: SimpleNamespace(inputs=[inputs[node]])  # noqa: E731
    return SimpleNamespace(segment=SimpleNamespace(nodes=nodes), call=call)


@pytest.fixture
def told(monkeypatch):
    """What this rank tells the others; they tell what ``others`` says."""
    world = process.World(Launched(0, 3, 0, 3, "a test"))
    monkeypatch.setattr(process, "_current", world)
    told = SimpleNamespace(sent=[], others=None)

    def gather(name, value, group=None, stuck=0.0):
        told.sent.append((group, value))
        return [value, value if told.others is None else told.others]

    monkeypatch.setattr(world, "gather", gather)
    return told


def test_a_list_is_compared_once_with_the_reason_against_a_capture(told):
    compared = Compared()
    first = compared.check(plan(3, 4))
    assert compared.check(plan(3, 4), "it needs the host") is first
    assert first.why == ""
    assert compared.check(plan(3)) is not first
    assert [len(value[0]) for _, value in told.sent] == [2, 1]
    assert compared.check(plan()) is None
    told.others = [["AllReduce(op=sum, float32 [5])"], "gpu.graph=off", 0]
    assert compared.check(plan(5)).why == "on rank 1: gpu.graph=off"
    told.others = [["another"], "", 0]
    with pytest.raises(CollectiveMismatch, match="number 1 is AllReduce"):
        compared.check(plan(6))


def test_from_the_second_call_of_a_list_on_plans_are_captured(told):
    compared = Compared()
    first, second = compared.check(plan(3)), compared.check(plan(4))
    assert [first.called(), first.called(), second.called(), second.called()] == [0, 1, 0, 1]
    pair = compared.check(plan(4, group=PAIR))
    assert not pair.called()


def used(compared, sizes, limit):
    """Lists of these sizes are called in turn; what is dropped in each call."""
    gone = []
    for calls, n in enumerate(sizes):
        one = compared.check(plan(n))
        compared.use(one, calls)
        one.called()
        dropped = compared.dropped(limit)
        gone.append({n for n in sizes if compared.check(plan(n)) in dropped})
    return gone


def test_the_list_that_was_not_called_for_longest_goes_first(told):
    compared = Compared()
    assert used(compared, [1, 2, 1, 3], 2) == [set(), set(), set(), {2}]
    assert used(compared, [3, 4, 1], 2) == [set(), {1}, {3}]


def test_lists_lose_their_plans_when_one_rank_has_too_little_memory(told):
    """In the call in which a list is compared, which the rank tells the number of lists with."""
    compared = Compared()
    lists = [compared.check(plan(n)) for n in (1, 2, 3)]
    for calls, one in enumerate(lists):
        compared.use(one, calls)
    with symdnn.config.change_flags(plan_cache_bytes=25):
        new = compared.check(plan(4), "", dict.fromkeys(lists, 10))
    assert told.sent[-1] == (BOTH, [["AllReduce(op=sum, float32 [4])"], "", 1])
    compared.use(new, 3)
    assert compared.dropped(9) == {lists[0]}
    told.others = [["AllReduce(op=sum, float32 [5])"], "", 2]
    new = compared.check(plan(5), "", dict.fromkeys(lists, 10))
    compared.use(new, 4)
    assert compared.dropped(9) == {lists[1], lists[2]}
    assert compared.dropped(9) == set()


def test_the_first_capture_is_agreed_on_and_later_ones_must_not_fail(told):
    compared = Compared()
    one, other, pair = (compared.check(plan(3, group=g)) for g in (BOTH, PAIR, BOTH))
    assert pair is one
    assert one.first
    assert one.captured("") == ""
    assert not one.first
    assert told.sent[-1] == (BOTH, "")
    count = len(told.sent)
    assert one.captured("") == ""
    assert len(told.sent) == count
    with pytest.raises(DistributedError, match="other ranks replay theirs: it is busy"):
        one.captured("it is busy")
    told.others = "it is busy"
    assert other.captured("") == "on rank 2: it is busy"
    assert other.why == "on rank 2: it is busy"
    assert not other.first


def test_sends_have_lists_that_are_not_compared(told):
    """What they meet is a receipt, of another rank: both are captured from the second call on."""
    compared = Compared()
    first = compared.check(plan(3, of=Send(BOTH, 1)))
    assert told.sent == []
    assert [first.called(), first.called()] == [False, True]
    assert first.captured("busy") == first.why == "busy"
    assert told.sent == []


def test_of_lists_that_were_met_once_the_last_few_stay(told):
    compared = Compared()
    sizes = [1, 1, *range(2, 40)]  # the first one was called again
    gone = set().union(*used(compared, sizes, 100))
    kept = set(sizes) - gone
    assert kept == {1, *range(24, 40)}
    assert np.all([compared.check(plan(n)).called() for n in sizes])  # they are known as before


class Mesh:
    """Four ranks in a square: each has a list with its row and one with its column."""

    groups = {r: (Group((0, 1) if r < 2 else (2, 3), "row"), Group((r % 2, r % 2 + 2), "column"))
              for r in range(4)}  # fmt: skip

    def __init__(self):
        self.told, self.changed = {}, threading.Condition()
        self.local = threading.local()

    def gather(self, name, value, group):
        key = name, group.ranks
        with self.changed:
            self.told.setdefault(key, {})[self.local.rank] = value
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(self.told[key]) == 2, 20)
            return [self.told[key][r] for r in group.ranks]

    def first_said(self, name, words, group):
        told = zip(group.ranks, self.gather(name, words, group))
        return next((f"on rank {r}: {said}" for r, said in told if said), "")


@pytest.mark.parametrize("failing", [None, 0, 3])
def test_a_failure_reaches_all_ranks_of_a_mesh(monkeypatch, failing):
    """Also the one that shares no list with the rank on which the capture failed."""
    mesh, found = Mesh(), {}
    monkeypatch.setattr(comparison.process, "current", lambda: mesh)

    def told(rank):
        mesh.local.rank = rank
        lists = Lists(tuple(_List(group) for group in mesh.groups[rank]))
        said = lists.captured("busy" if rank == failing else "")
        found[rank] = said, [one.captured for one in lists.of]

    threads = [threading.Thread(target=told, args=(r,)) for r in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    said = {words for words, _ in found.values()}
    captured = [both for _, both in found.values()]
    if failing is None:
        assert (said, captured) == ({""}, [[True, True]] * 4)
    else:
        assert captured == [[False, False]] * 4
        assert all("busy" in words for words in said)


def test_a_later_failure_changes_no_list():
    lists = Lists((_List(None), _List(None)))
    lists.of[1].captured = True
    with pytest.raises(DistributedError, match="gpu.graph=off"):
        lists.captured("busy")
    assert not lists.of[0].why
