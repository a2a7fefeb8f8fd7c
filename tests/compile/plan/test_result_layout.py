"""Strides of results that readers on a GPU like: padded rows, and the order of attention's axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.values.strides import reshaped


@given(st.data())
def test_reshaped_strides_are_those_of_numpy(data: st.DataObject) -> None:
    sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)
    shape = tuple(data.draw(sizes))
    total = int(np.prod(shape))
    whole = np.arange(4096)
    strides = tuple(data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])) for _ in shape)
    a = np.lib.stride_tricks.as_strided(whole, shape, [8 * s for s in strides])
    new, rest = [], total
    while rest > 1:
        factor = data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0]))
        new.append(factor)
        rest //= factor
    new.insert(data.draw(st.integers(0, len(new))), 1)
    found = reshaped(shape, a.strides, new)
    seen = a.reshape(new)
    if found is None:
        assert not np.shares_memory(seen, whole)
    else:
        view = np.lib.stride_tricks.as_strided(whole, new, found)
        np.testing.assert_array_equal(view, seen)


def views_of(inputs: Any, outputs: Any, kind: str, **flags: Any) -> list[Any]:
    """The views of the results of nodes of one op, in the plans for a GPU that is not there."""
    with config.change_flags(**flags):
        f = symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cuda:sm_90"))
        plans = f.stages.specialise({v.name: v.type.shape for v in inputs})
    return [
        plan.memory.views[n.outputs[0]] for plan in plans for n in plan.specialised.segment.nodes
        if type(n.op).__name__ == kind
    ]  # fmt: skip


def scores(words: int, dtype: str = "bfloat16") -> tuple[Any, Any, Any]:
    x, w = T.tensor(dtype, (1024, 64), name="x"), T.tensor(dtype, (64, words), name="w")
    return x, w, T.dot(x, w)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_of_a_gemm_begin_at_multiples_of_16_bytes(dtype: str) -> None:
    x, w, y = scores(5001, dtype)
    (view,) = views_of([x, w], [T.tanh(y)], "Dot")
    item = np.dtype(view.buffer.variable.type.numpy).itemsize
    row, step = view.strides
    assert step == item
    assert row % 16 == 0
    assert 5001 * item < row < 5001 * item + 128
    assert view.buffer.nbytes == 1024 * row


def test_what_an_elementwise_kernel_writes_for_a_gemm_is_padded() -> None:
    x, _, _ = scores(5001)
    y = T.tensor("bfloat16", (1024, 5001), name="y")
    given = [x, y]
    (read,) = views_of(given, [T.dot(x.T, T.tanh(y))], "Tanh")
    assert read.strides[0] % 16 == 0
    (turned,) = views_of(given, [T.dot(T.tanh(y).T, x)], "Tanh")
    assert turned.strides[0] % 16 == 0


@pytest.mark.parametrize("words", [5000, 504])
def test_aligned_rows_and_small_results_stay_contiguous(words: int) -> None:
    x, w, y = scores(words if words == 5000 else 501)
    (view,) = views_of([x, w], [T.tanh(y)], "Dot")
    assert view.contiguous


def test_what_is_flattened_stays_contiguous() -> None:
    x, w, y = scores(5001)
    (view,) = views_of([x, w], [T.cumsum(y.flatten())], "Dot")
    assert view.contiguous


def test_a_result_is_copied_from_padded_rows_but_where_variables_are_written() -> None:
    x, w, y = scores(5001)
    (view,) = views_of([x, w], [y], "Dot")
    assert view.strides[0] % 16 == 0
    s = symdnn.shared(np.float32(0))
    f = symdnn.function([x, w], y, updates=[(s, s + 1)], mode=symdnn.Mode(target="cuda:sm_90"))
    plans = f.stages.specialise({v.name: v.type.shape for v in (x, w)})
    views = [
        plan.memory.views[n.outputs[0]] for plan in plans
        for n in plan.specialised.segment.nodes if type(n.op).__name__ == "Dot"
    ]  # fmt: skip
    assert all(v.contiguous for v in views)


def test_a_reshape_that_splits_rows_is_a_view_of_padded_ones() -> None:
    x, w, y = scores(5001)
    split = T.tanh(y.reshape((4, 256, 5001)))
    (view,) = views_of([x, w], [split], "Dot")
    assert view.strides[0] % 16 == 0
    (seen,) = views_of([x, w], [split], "Reshape")
    assert seen.strides == (256 * view.strides[0], *view.strides)


def attended(joined: bool) -> tuple[Any, Any]:
    x = T.tensor("bfloat16", (2, 64, 3 * 128), name="x")
    q, k, v = (
        x[..., 128 * i : 128 * (i + 1)].reshape((2, 64, 2, 64)).dimshuffle(0, 2, 1, 3)
        for i in range(3)
    )
    y = T.nnet.scaled_dot_product_attention(q, k, v)
    return x, T.tanh(y.dimshuffle(0, 2, 1, 3).reshape((2, 64, 128)) if joined else y.reshape((-1,)))


def test_attention_writes_heads_where_they_are_joined() -> None:
    x, y = attended(True)
    (view,) = views_of([x], [y], "GpuDnnAttention")
    assert view.shape == (2, 2, 64, 64)
    assert view.strides == (2 * 64 * 128, 128, 256, 2)
    *read, joined = views_of([x], [y], "Reshape")
    assert {v.strides for v in read} == {(64 * 768, 768, 128, 2)}
    assert joined.contiguous
    assert joined.buffer.nbytes == view.buffer.nbytes
    x, y = attended(False)
    assert views_of([x], [y], "GpuDnnAttention")[0].contiguous


def result_of(f: Any, x: Any) -> Any:
    (plan,) = f.stages.specialise({"x": x.type.shape})
    return plan.memory.views[plan.specialised.segment.outputs[0]].buffer


@pytest.mark.parametrize(
    ("order", "shape"),
    [
        ((0, 2, 1, 3), (4, 160)), ((3, 0, 1, 2), (2, 320)), ((0, 1, 2, 3), (640,)),
        ((3, 2, 1, 0), (640,)), ((0, 3, 1, 2), (4, 10, 16)),
    ],
)  # fmt: skip
def test_a_result_is_written_where_its_reshape_is_a_view(order: Any, shape: Any) -> None:
    x = T.TensorType("float32", (4, 8, 2, 10))("x")
    y = (2 * x + 1).dimshuffle(*order).reshape(shape)
    out = symdnn.Out(y, borrow=True)
    f = symdnn.function([x], out, mode=symdnn.Mode(target="cuda:sm_90"))
    (plan,) = f.stages.specialise({"x": x.type.shape})
    nodes, views = plan.specialised.segment.nodes, plan.memory.views
    (made,) = [n for n in nodes if "Fused" in str(n.op)]
    result = views[plan.specialised.segment.outputs[0]]
    assert views[made.outputs[0]].buffer is result.buffer
    assert result.contiguous
    assert result.buffer.nbytes == 4 * 640
    copied = [n for n in nodes if n is not made and n not in plan.memory.aliases]
    assert len(copied) <= 1  # of the argument


def test_a_reader_that_wants_c_order_keeps_it() -> None:
    x = T.TensorType("float32", (4, 8, 2, 4))("x")
    y = 2 * x
    outs = [y.dimshuffle(0, 2, 1, 3).reshape((4, 64)), T.nnet.softmax(y, axis=3)]
    (view,) = views_of([x], outs, "Mul")
    assert view.contiguous


@pytest.mark.parametrize("words", [5000, 5001])
def test_the_gradient_of_scores_takes_their_memory(words: int) -> None:
    x, w, y = scores(words)
    labels = T.tensor("int64", (1024,), name="labels")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(y.astype("float32")), labels).mean()
    gradients = T.grad(loss, [x, w])
    f = symdnn.function([x, w, labels], [loss, *gradients], mode=symdnn.Mode(target="cuda:sm_90"))
    (plan,) = f.stages.specialise({v.name: v.type.shape for v in (x, w, labels)})
    nodes = plan.specialised.segment.nodes
    (made,) = [n for n in nodes if type(n.op).__name__ == "LabelLoss"]
    assert plan.memory.in_place[made] == {1: 1}
    view = plan.memory.views[made.outputs[1]]
    assert view.strides[0] % 16 == 0
    assert view == plan.memory.views[made.inputs[1]]


@pytest.mark.parametrize("static", [True, False])
def test_experts_weighted_by_a_gate_are_not_copied(static: bool) -> None:
    """A contraction over two axes: its operand is written as the product reads it, and checked."""
    sizes = {"x": (64, 16), "up": (4, 16, 32), "down": (4, 32, 16), "gate": (64, 4)}
    inputs = [
        T.tensor("float32", s if static else (None,) * len(s), name=n) for n, s in sizes.items()
    ]
    x, up, down, gate = inputs
    h = T.nnet.silu(T.einsum("td,edh->eth", x, up))
    y = T.einsum("eth,ehd,te->td", h, down, gate)
    f = symdnn.function(inputs, y, mode=symdnn.Mode(target="cuda:sm_90"))
    (plan,) = f.stages.specialise(sizes)
    copied = [
        n for n in plan.specialised.segment.nodes
        if n.op.views and n not in plan.memory.aliases
        and plan.specialised.shapes[n.outputs[0]] != (16, 128)  # the filters, side by side
    ]  # fmt: skip
    assert not copied


def test_results_end_in_the_axis_in_which_most_operands_do() -> None:
    """A gradient through turned operands: its kernel turns one array, whatever the readers want."""
    rows, w = T.tensor("float32", (64, 48), name="rows"), T.tensor("float32", (48, 96), name="w")
    h = T.dot(rows, w).reshape((64, 4, 24))  # in the order (t, e, h)
    g = T.dot(w.T, rows.T).reshape((4, 24, 64))  # in the order (e, h, t)
    turned, other = h.dimshuffle(1, 0, 2), g.dimshuffle(0, 2, 1)
    both = T.tanh(turned) * other
    inputs = [rows, w]
    flat = (both * turned).dimshuffle(1, 0, 2).reshape((64, 96))
    f = symdnn.function(
        inputs, [both.sum(2), T.dot(flat, w.T)], mode=symdnn.Mode(target="cuda:sm_90")
    )
    (plan,) = f.stages.specialise({v.name: v.type.shape for v in inputs})
    memory, spec = plan.memory, plan.specialised
    kernels = [
        n for n in spec.segment.nodes
        if "Fused" in type(n.op).__name__ and spec.shapes[n.outputs[0]] == (4, 64, 24)
    ]  # fmt: skip
    assert kernels
    for n in kernels:
        assert {memory.views[v].strides[-1] for v in n.outputs} == {4}
