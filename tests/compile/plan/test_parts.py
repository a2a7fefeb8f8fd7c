"""Joins, splits and reorders on a GPU without copies, in plans for a described card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan.views import plain_strides
from symdnn.config import config
from symdnn.ops.nn.channels_last import Reorder


def planned(inputs: Sequence[Any], outputs: Any, kind: str) -> list[tuple[Any, Any]]:
    """The nodes of an op, with the memory plans of their segments."""
    f = symdnn.function(list(inputs), outputs, mode=symdnn.Mode(target="cuda:sm_90"))
    plans = f.stages.specialise({v.name: v.type.shape for v in inputs})
    return [
        (n, plan.memory) for plan in plans for n in plan.specialised.segment.nodes
        if type(n.op).__name__ == kind
    ]  # fmt: skip


def copied(inputs: Sequence[Any], outputs: Any, kind: str = "Join") -> list[list[int]]:
    """The pieces that each join or split copies."""
    found = []
    for node, memory in planned(inputs, outputs, kind):
        pieces = node.inputs if kind == "Join" else node.outputs
        there = memory.parts.get(node, ())
        found.append([i for i in range(len(pieces)) if i not in there])
        assert (node in memory.aliases) == (not found[-1])
    return found


def halves(shape: tuple[int, ...] = (2, 6, 32)) -> tuple[Any, Any]:
    x, y = (T.tensor("float32", shape, name=n) for n in "xy")
    return x, y


def read(whole: Any) -> Any:
    """A joined result that no elementwise kernel makes."""
    return T.cumsum(whole, axis=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_elementwise_kernels_make_is_made_in_the_join(axis: int) -> None:
    x, y = halves()
    whole = T.concatenate([T.exp(x), T.tanh(y)], axis=axis)
    assert copied([x, y], [read(whole)]) == [[]]
    ((node, memory),) = planned([x, y], [read(whole)], "Join")
    views = [memory.views[v] for v in node.inputs]
    out = memory.views[node.outputs[0]]
    assert all(v.buffer is out.buffer and v.strides == out.strides for v in views)
    assert [v.offset for v in views] == [0, out.strides[axis] * x.type.shape[axis]]
    assert out.contiguous
    assert out.buffer.nbytes == 4 * 2 * 2 * 6 * 32


def test_arguments_constants_and_repeated_values_are_copied() -> None:
    x, y = halves()
    z = T.constant(np.ones((2, 6, 32), "float32"))
    made = T.exp(x)
    whole = T.concatenate([made, y, z, made], axis=1)
    assert copied([x, y], [read(whole)]) == [[1, 2, 3]]


def test_results_and_what_joins_to_one_have_memory_of_their_own() -> None:
    x, y = halves()
    a, b = T.exp(x), T.tanh(y)
    assert copied([x, y], [a, read(T.concatenate([a, b]))]) == [[]]  # `a` is copied to the host
    borrowed = [symdnn.Out(a, borrow=True), read(T.concatenate([a, b]))]
    assert copied([x, y], borrowed) == [[0]]


def test_pieces_are_made_in_a_result_that_stays_on_the_device() -> None:
    x, y = halves()
    whole = T.concatenate([T.exp(x), y, T.tanh(y)], axis=2)
    result = symdnn.Out(whole, borrow=True)
    assert copied([x, y], [result, T.exp(x).sum()]) == [[1]]
    ((node, memory),) = planned([x, y], [result], "Join")
    out, *views = (memory.views[v] for v in (*node.outputs, *node.inputs))
    assert out.buffer.kind == "outside"
    assert out.buffer.variable is node.outputs[0]
    assert [v.buffer is out.buffer for v in views] == [True, False, True]
    assert not any(v.static for v in (out, *views[::2]))
    state = symdnn.shared(np.zeros((4, 6, 32), "float32"), name="state")
    f = symdnn.function(
        [x, y], updates={state: T.concatenate([T.exp(x), T.tanh(y)])},
        mode=symdnn.Mode(target="cuda:sm_90"),
    )  # fmt: skip
    (plan,) = f.stages.specialise({v.name: v.type.shape for v in (x, y)})
    assert not any(
        v.buffer.kind == "outside" for v in map(plan.memory.views.get, plan.memory.beside)
    )


def test_values_behind_views_are_made_there() -> None:
    x, y = halves((2, 4, 6, 8))
    pieces = [T.exp(v).dimshuffle(0, 2, 1, 3).reshape((2, 6, 32)) for v in (x, y)]
    assert copied([x, y], [read(T.concatenate(pieces, axis=2))]) == [[]]
    flat = [T.exp(v).flatten() for v in (x, y)]
    assert copied([x, y], [read(T.concatenate(flat))]) == [[]]
    single = [
        T.exp(v[:1]).dimshuffle(1, 2, 3) for v in (x, y)
    ]  # a dimension of one element is dropped
    assert copied([x, y], [read(T.concatenate(single, axis=2))]) == [[]]


def test_a_view_that_the_place_does_not_allow_is_copied() -> None:
    x, y = halves((2, 6, 32))
    # Rows of a piece are not adjacent, so no reshape of it has one axis.
    pieces = [T.cumsum(T.exp(v).reshape((12, 32)), axis=0) for v in (x, y)]
    assert copied([x, y], [read(T.concatenate(pieces, axis=1))]) == [[0, 1]]


def test_what_another_kernel_reads_in_c_order_is_copied() -> None:
    x = T.tensor("float32", (2, 8, 8, 8), name="x")
    y = T.tensor("float32", (2, 8, 8, 8), name="y")
    w = T.tensor("float32", (8, 8, 3, 3), name="w")
    a, b = T.exp(x), T.tanh(y)
    whole = T.concatenate([a, b], axis=1)
    found = copied([x, y, w], [read(whole), T.nnet.conv2d(a, w)])
    assert found == [[0]]


def test_a_join_of_joins_is_made_at_once() -> None:
    x, y = halves()
    inner = T.concatenate([T.exp(x), T.tanh(x)], axis=2)
    whole = T.concatenate([inner, T.concatenate([T.tanh(y), y], axis=2)], axis=1)
    assert copied([x, y], [read(whole)]) in ([[], [1], []], [[1], [], []])


def test_the_memory_of_a_join_is_not_taken_long_before_it() -> None:
    x, y = halves((64, 64))
    first = T.exp(x)
    z = y
    for _ in range(6):
        z = T.dot(z, y)  # each as large as a piece
    whole = T.concatenate([first, T.tanh(z + first.sum())], axis=1)
    assert [1] not in copied([x, y], [read(whole)])
    ((node, memory),) = planned([x, y], [read(whole)], "Join")
    buffers = [memory.views[v].buffer for v in (*node.inputs, *node.outputs)]
    assert buffers[1] is buffers[2]


@pytest.mark.parametrize(("size", "kept"), [(256, []), (16, [0])], ids=["small", "large"])
def test_a_vector_is_held_while_much_larger_values_are_made(size: int, kept: list[int]) -> None:
    """As a bucket of gradients is, while the cotangents between them are made."""
    x, y = halves((8, 8))
    u = T.tensor("float32", (size, size), name="u")
    first = T.exp(x)
    z = u + first.sum()
    for _ in range(6):
        z = T.dot(z, u)
    whole = T.concatenate([first.flatten(), T.tanh(y + z.sum()).flatten()])
    assert copied([x, y, u], [read(whole)]) == [kept]


def attention_of_packed(width: int, amp: str) -> tuple[Any, Any]:
    x = T.tensor("float32", (2, 64, 128), name="x")
    w = T.tensor("float32", (128, 3 * width), name="w")
    packed = T.dot(x, w)
    q, k, v = (
        packed[..., width * i : width * (i + 1)]
        .reshape((2, 64, 2, width // 2))
        .dimshuffle(0, 2, 1, 3)
        for i in range(3)
    )
    y = T.nnet.scaled_dot_product_attention(q, k, v, is_causal=True)
    loss = T.sqr(y.dimshuffle(0, 2, 1, 3).reshape((2, 64, width))).sum()
    with config.change_flags(amp=amp):
        return [x, w], T.grad(loss, w)


@pytest.mark.parametrize(("width", "amp", "wanted"), [(128, "bf16", []), (128, "off", [0, 1, 2])])
def test_gradients_of_attention_are_written_side_by_side(
    width: int, amp: str, wanted: list[int]
) -> None:
    with config.change_flags(amp=amp):
        inputs, gradient = attention_of_packed(width, amp)
        assert copied(inputs, [gradient]) == [wanted]


def test_pieces_of_a_split_are_views_where_all_readers_take_them() -> None:
    x, _ = halves((8, 16, 16, 8))
    w = T.tensor("float32", (8, 8, 3, 3), name="w")
    whole = T.cumsum(T.tanh(x), axis=0)
    a, b = T.split(whole, (4, 4), 2, axis=3)
    assert copied([x], [T.exp(a), T.exp(b).sum()], "Split") == [[]]
    assert copied([x], [symdnn.Out(a, borrow=True), T.exp(b)], "Split") == [[0]]
    c, d = T.split(whole, (6, 10), 2, axis=1)
    conv = T.nnet.conv2d(d.dimshuffle(0, 3, 1, 2), w)  # reads a copy in its own order
    assert copied([x, w], [T.exp(c), conv], "Split") in ([[]], [[1]])


def test_the_strides_of_pieces_are_those_of_numpy() -> None:
    x, _ = halves()
    a, b = T.split(T.cumsum(x, axis=0), (10, 22), 2, axis=2)
    ((node, memory),) = planned([x], [T.exp(a), T.exp(b)], "Split")
    whole = np.zeros((2, 6, 32), "float32")
    for v, part in zip(node.outputs, np.split(whole, [10], axis=2)):
        view = memory.views[v]
        start = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        assert (view.shape, view.strides, view.offset) == (part.shape, part.strides, start)
    assert plain_strides(node.inputs[0], whole.shape) == whole.strides


def reordered(inputs: Sequence[Any], outputs: Any) -> list[bool]:
    """Whether each reorder of a plan is a view."""
    return [n in memory.aliases for n, memory in planned(inputs, outputs, "Reorder")]


def looking(heads: int = 2) -> tuple[list[Any], Any]:
    """Attention among the pixels of images, between two convolutions of one pixel, in NHWC."""
    x = T.tensor("bfloat16", (2, 64, 8, 8), name="x")
    w = T.tensor("bfloat16", (192, 64, 1, 1), name="w")
    b = T.tensor("bfloat16", (192,), name="b")
    v = T.tensor("bfloat16", (64, 64, 1, 1), name="v")
    packed = T.nnet.conv2d(x, w) + b.dimshuffle("x", 0, "x", "x")
    packed = packed.reshape((2, 3, heads, 64 // heads, -1))
    q, k, u = (packed[:, i].dimshuffle(0, 1, 3, 2) for i in range(3))
    y = T.nnet.scaled_dot_product_attention(q, k, u)
    y = T.nnet.conv2d(y.dimshuffle(0, 1, 3, 2).reshape((2, 64, 8, 8)), v)
    loss = T.sqr(y.astype("float32")).sum()
    return [x, w, b, v], T.grad(loss, [x, w, b, v])


def reorder(x: Any, order: tuple[int, ...]) -> Any:
    return Reorder(order)(x)


def test_attention_of_images_in_nhwc_copies_nothing() -> None:
    inputs, gradients = looking()
    assert copied(inputs, gradients) == [[]]
    assert sorted(reordered(inputs, gradients)) == [False, False, True, True, True]  # x, dx
    for kind in ("GpuDnnAttention", "GpuDnnAttentionGrad"):
        ((node, memory),) = planned(inputs, gradients, kind)
        read = [memory.views[v] for v in node.inputs if v.type.ndim == 4]
        assert {v.strides[3] for v in read} == {2}  # features are adjacent


def test_what_is_only_reordered_is_made_in_the_new_order() -> None:
    x = T.tensor("float32", (2, 8, 6, 10), name="x")
    y = reorder(T.exp(x), (0, 2, 3, 1))
    assert reordered([x], [read(y)]) == [True]
    ((node, memory),) = planned([x], [read(y)], "Reorder")
    made, seen = memory.views[node.inputs[0]], memory.views[node.outputs[0]]
    assert made.strides == (4 * 480, 4, 4 * 80, 4 * 8)
    assert seen.contiguous


def test_reorders_of_arguments_and_of_what_others_read_are_copies() -> None:
    x = T.tensor("float32", (2, 8, 6, 10), name="x")
    assert reordered([x], [read(reorder(x, (0, 2, 3, 1)))]) == [False]
    made = T.exp(x)
    both = [read(reorder(made, (0, 2, 3, 1))), read(made)]
    assert reordered([x], both) == [False]  # a scan along an axis wants its order
    total = [read(reorder(made, (0, 2, 3, 1))), made.sum(axis=(0, 2, 3))]
    assert reordered([x], total) in ([True], [False])
    result = [symdnn.Out(reorder(made, (0, 2, 3, 1)), borrow=True)]
    assert reordered([x], result) == [False]


def test_an_elementwise_result_has_the_order_of_its_operand_where_readers_need_it() -> None:
    x = T.tensor("bfloat16", (2, 64, 128), name="x")
    b = T.tensor("bfloat16", (2, 128, 1), name="b")
    added = T.cumsum(x, axis=1).dimshuffle(0, 2, 1) + b
    y = added.reshape((2, 2, 64, 64)).dimshuffle(0, 1, 3, 2)
    found = T.nnet.scaled_dot_product_attention(y, y, y)
    ((node, memory),) = planned([x, b], [found], "Add")
    assert memory.views[node.outputs[0]].strides == (2 * 64 * 128, 2, 2 * 128)
    ((node, memory),) = planned([x, b], [T.cumsum(added, axis=2)], "Add")
    assert memory.views[node.outputs[0]].contiguous
