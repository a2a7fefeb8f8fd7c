"""A step of a small convolutional net on a GPU against the CPU: what convolutions take in, where
the slope of relu is applied, sums of what is stored in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

RATE = np.float32(0.01)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def net(device, **flags):
    """(step, parameters): two convolutions with bias, relu and pooling, and a dense layer."""
    shapes = (8, 3, 3, 3), (8,), (16, 8, 3, 3), (16,), (16 * 3 * 3, 5), (5,)
    ps = [symdnn.shared(floats(*s, seed=i) / 4, name=f"p{i}") for i, s in enumerate(shapes)]
    x, t = T.ftensor4("x"), T.ivector("t")
    h = x
    for w, b in (ps[:2], ps[2:4]):
        h = T.nnet.conv2d(h, w, border_mode="half", filter_flip=False)
        h = T.nnet.relu(h + b.dimshuffle("x", 0, "x", "x"))
        h = T.signal.pool.pool_2d(h, (2, 2), ignore_border=True)
    scores = T.dot(h.flatten(2), ps[4]) + ps[5]
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), t).mean()
    with symdnn.config.change_flags(device=device, **flags):
        news = [(p, p - RATE * g) for p, g in zip(ps, T.grad(loss, ps), strict=True)]
        return symdnn.function([x, t], loss, updates=news), ps


@pytest.mark.parametrize("slope", ["half", "zero"])
@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_steps_are_those_of_the_cpu(cuda, amp, slope):
    step, ps = net("cuda", amp=amp, **{"relu_grad_at_0": slope})
    plain, qs = net("cpu")
    limit = 2e-4 if amp == "off" else 0.15  # other elements become the maxima of their windows
    for i in range(4):
        x, t = floats(4, 3, 12, 12, seed=9 + i), np.arange(4, dtype="int32") % 5
        before = [q.get_value() for q in qs]
        np.testing.assert_allclose(step(x, t), plain(x, t), rtol=limit)
        for p, q, old in zip(ps, qs, before, strict=True):
            want = q.get_value() - old
            error = np.linalg.norm(p.get_value() - old - want)
            assert error <= limit * np.linalg.norm(want) + 1e-7
            p.set_value(q.get_value())


def test_in_16_bits_bias_and_relu_are_the_convolutions(cuda):
    step, _ = net("cuda", amp="bf16", **{"relu_grad_at_0": "zero"})
    ops = [n.op for n in step.fgraph.toposort()]
    fused = [op for op in ops if isinstance(op, GpuDnnConvBiasActivation)]
    assert [(op.bias, op.activation) for op in fused][:1] == [(True, "relu")]
    assert any(isinstance(op, FusedReduce) for op in ops)


def test_parameters_are_rounded_by_few_kernels(cuda):
    """One launch for each filter that is reordered, one for all contiguous parameters."""
    step, _ = net("cuda", amp="bf16", **{"relu_grad_at_0": "zero"})
    step(floats(4, 3, 12, 12), np.arange(4, dtype="int32"))
    (plan,) = step.plans()
    rounded = Cast("bfloat16")
    nodes = [n for n in plan.specialised.segment.nodes if n.op == rounded]
    steps = [s for s in plan.bound.steps.middle if s.node.op == rounded]
    assert len(nodes) >= 5
    assert len(steps) <= 1 + len([n for n in nodes if n.inputs[0].type.ndim == 4])
    assert len(steps) < len(nodes) - 1
