"""Which new values are made in place, which are copied, and in which order: without a device."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan.offline_plan import DescribedOracle
from symdnn.compile.program.program import Segment
from symdnn.ops.lowered.transfer import HostFromGpu

CUDA = symdnn.Mode(target="cuda:sm_90")
PLAIN = CUDA.excluding("epilogue")  # products take in no addends


def shared(*shape, name, dtype="float32"):
    return symdnn.shared(np.ones(shape, dtype), name=name)


def last_plan(f, shapes, oracle=None):
    return f.stages.specialise(shapes, oracle)[-1]


def names(pairs):
    return {old.name for old in pairs.values()}


def order(plan):
    return list(plan.specialised.segment.nodes)


def test_momentum_makes_both_in_place_behind_all_other_work():
    x, t = T.matrix("x"), T.ivector("t")
    p, v = shared(5, 3, name="p"), shared(5, 3, name="v")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, p)), t).mean()
    new = 0.9 * v + T.grad(loss, p)
    f = symdnn.function([x, t], loss, updates=[(v, new), (p, p - 0.1 * new)], mode=PLAIN)
    plan = last_plan(f, {"x": (4, 5), "t": (4,)})
    assert names(plan.memory.stored) == {"p", "v"}
    assert not plan.memory.copied
    nodes = order(plan)
    writer = next(n for n in nodes if any(o in plan.memory.stored for o in n.outputs))
    behind = nodes[nodes.index(writer) + 1 :]
    assert behind
    assert all(isinstance(n.op, HostFromGpu) for n in behind)
    finds_faults = [i for i, n in enumerate(nodes) if "Label" in str(n.op)]
    assert finds_faults
    assert max(finds_faults) < nodes.index(writer)
    text = plan.memory.text()
    assert "is made in p" in text
    assert "is made in v" in text


def test_new_values_take_no_memory():
    p = shared(1000, name="p")
    f = symdnn.function([], updates=[(p, p * 2)], mode=CUDA)
    assert last_plan(f, {}).memory.arena_bytes == 0


def test_of_two_that_read_each_other_one_is_copied():
    """Each expression reads old values, so the first that is written must wait in the arena."""
    a, b = shared(4, name="a"), shared(4, 1, name="b")
    new = [(a, a + b[:, 0]), (b, b * a.dimshuffle(0, "x"))]
    plan = last_plan(symdnn.function([], updates=new, mode=CUDA), {})
    assert len(plan.memory.stored) == len(plan.memory.copied) == 1
    assert names(plan.memory.stored) | names(plan.memory.copied) == {"a", "b"}
    (new,) = plan.memory.copied
    assert plan.memory.views[new].buffer.kind == "arena"
    assert plan.memory.views[new].buffer.last == len(order(plan))


def test_a_swap_is_left_to_the_runtime():
    a, b = shared(4, name="a"), shared(4, name="b")
    f = symdnn.function([], updates=[(a, b), (b, a)], mode=CUDA)
    assert not any(s.updates for s in f.stages.program.segments())
    g = symdnn.function([], updates=[(a, b), (b, a * 2)], mode=CUDA)
    assert not any(s.updates for s in g.stages.program.segments())
    h = symdnn.function([], updates=[(a, b), (b, b * 2)], mode=CUDA)
    assert not any(s.updates for s in h.stages.program.segments())


def test_both_of_one_fused_kernel_are_made_in_place():
    a, b = shared(4, name="a"), shared(4, name="b")
    f = symdnn.function([], updates=[(a, a + b), (b, a - b)], mode=CUDA)
    plan = last_plan(f, {})
    assert len({v.owner for v in plan.memory.stored}) == 1
    assert names(plan.memory.stored) == {"a", "b"}


def test_a_kernel_that_reads_a_view_of_the_old_value_is_not_in_place():
    a = shared(4, 4, name="a")
    f = symdnn.function([], updates=[(a, a + a.T)], mode=CUDA)
    plan = last_plan(f, {})
    assert not plan.memory.stored
    assert names(plan.memory.copied) == {"a"}


def test_a_value_that_leaves_as_it_was_is_not_overwritten():
    a = shared(4, name="a")
    f = symdnn.function([], a, updates=[(a, a + 1)], mode=CUDA)
    plan = last_plan(f, {})
    assert names(plan.memory.stored) == {"a"}
    assert isinstance(order(plan)[0].op, HostFromGpu)  # copied out before
    lent = symdnn.function([], symdnn.Out(a, borrow=True), updates=[(a, a + 1)], mode=CUDA)
    assert not any(s.updates for s in lent.stages.program.segments())
    seen = symdnn.function([], a.reshape((2, 2)), updates=[(a, a + 1)], mode=CUDA)
    plan = last_plan(seen, {})
    assert not plan.memory.stored
    assert not plan.memory.copied


def test_a_new_value_that_is_lent_has_memory_of_its_own():
    a = shared(4, name="a")
    new = a + 1
    f = symdnn.function([], symdnn.Out(new, borrow=True), updates=[(a, new)], mode=CUDA)
    assert not any(s.updates for s in f.stages.program.segments())
    g = symdnn.function([], new, updates=[(a, new)], mode=CUDA)
    assert names(last_plan(g, {}).memory.stored) == {"a"}


def test_what_other_work_reads_is_made_early_and_copied():
    a, b = shared(4, name="a"), shared(4, 4, name="b")
    new = a + 1
    f = symdnn.function([], updates=[(a, new), (b, T.dot(b, b) * T.dot(b, new))], mode=CUDA)
    plan = last_plan(f, {})
    assert names(plan.memory.copied) == {"a"}
    assert names(plan.memory.stored) == {"b"}


def test_another_shape_or_another_kernel_is_not_in_place():
    a = shared(4, name="a")
    x = T.vector("x")
    f = symdnn.function([x], updates=[(a, x * 2)], mode=CUDA)
    assert names(last_plan(f, {"x": (4,)}).memory.stored) == {"a"}
    plan = last_plan(f, {"x": (5,)})
    assert not plan.memory.stored
    assert not plan.memory.copied
    table = shared(6, 3, name="table")
    g = symdnn.function([], updates=[(table, T.sort(table, axis=0))], mode=CUDA)
    plan = last_plan(g, {})
    assert not plan.memory.stored
    assert names(plan.memory.copied) == {"table"}


def test_kernels_of_which_nothing_is_known_write_no_storage():
    """A described device says of no kernel that it looks at the error word."""
    a = shared(4, name="a")
    f = symdnn.function([], updates=[(a, a + 1)], mode=CUDA)
    plan = last_plan(f, {}, DescribedOracle())
    assert not plan.memory.stored
    assert names(plan.memory.copied) == {"a"}


def test_only_the_last_segment_writes():
    a, b = shared(4, name="a"), shared(4, name="b")
    x = T.vector("x")
    count = T.nonzero(x)[0].shape[0]
    y = a[:count].sum()
    f = symdnn.function([x], updates=[(a, a + 1), (b, b * y)], mode=CUDA)
    segments = [r for r in f.stages.program.regions if isinstance(r, Segment)]
    assert len(segments) > 1
    assert all(not s.updates for s in segments[:-1])
    assert [old.name for _, old in segments[-1].updates] == ["b"]


def test_integer_scalars_of_the_host_are_left_there():
    i, a = symdnn.shared(np.int64(0), name="i"), shared(3, name="a")
    f = symdnn.function([], updates=[(i, i + 1), (a, a * 2)], mode=CUDA)
    (segment,) = (s for s in f.stages.program.segments() if s.place.kind == "cuda")
    assert [old.name for _, old in segment.updates] == ["a"]


def test_programs_for_the_cpu_have_such_updates_too():
    a = shared(3, name="a")
    f = symdnn.function([], updates=[(a, a * 2)], mode=symdnn.Mode(target="cpu"))
    assert [s.updates[0][1] for s in f.stages.program.segments()] == [a]


def test_copies_and_pickles_of_a_function_keep_its_updates_in_place():
    import pickle

    a = shared(3, name="a")
    f = symdnn.function([], updates=[(a, a * 2)], mode=CUDA)
    for g in (f.copy(), pickle.loads(pickle.dumps(f))):
        assert names(last_plan(g, {}).memory.stored) == {"a"}
    assert not f.copy(delete_updates=True).stages.program.segments()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_storages_of_any_float_type_are_written(dtype):
    a = symdnn.shared(np.ones(3, T.constant(np.zeros(1), dtype=dtype).type.numpy), name="a")
    f = symdnn.function([], updates=[(a, a * a)], mode=CUDA)
    assert names(last_plan(f, {}).memory.stored) == {"a"}
