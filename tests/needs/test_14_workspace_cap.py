"""Need 14: the workspace is capped, algorithms fall back in a stated order, no large net dies.

Peak memory obeys the limit; a step of VGG's that needs 8 GB of workspace completes with 1 GB free,
logs one line for each demoted layer, and its result is that of the unlimited run.
"""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from tests.needs.fake_card import compiled, mebibytes, new_process, tensors

#: Channels of VGG-16's convolutions; "M" is a pooling layer.
VGG = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
LAYERS = 13
GIB = 1 << 30
FFT, WINOGRAD = 4, 7


def vgg(widths=1.0):
    """VGG-16's convolutions, with named layers."""
    layers, before = [], 3
    for n in VGG:
        if n == "M":
            layers.append(nn.SpatialMaxPooling(2, 2, 2, 2))
            continue
        width = max(1, int(int(n) * widths))
        layers += [nn.SpatialConvolution(before, width, 3, 3, 1, 1, 1, 1), nn.ReLU()]
        before = width
    return nn.Sequential(*layers)


def step(net, rate=0.01):
    """A training step; its loss is the mean of the features."""
    x = T.tensor4("x")
    loss = (net(x) ** 2).mean()
    updates = nn.optim.sgd(loss, net, rate)
    return symdnn.function([x], loss, updates=updates, mode=symdnn.Mode(target="cuda"))


def demotions(caplog):
    return [m for m in caplog.messages if "bytes of workspace" in m]


@pytest.mark.parametrize(
    ("limit", "used", "most"),
    [(0, "fft", 8 * GIB), (mebibytes(64), "winograd_non_fused", mebibytes(48)), (1, "small", 0)],
)
def test_the_limit_is_obeyed_and_said(fake_card, caplog, limit, used, most):
    fake_card.sizes = {FFT: 8 * GIB, WINOGRAD: mebibytes(48)}
    order = [FFT, WINOGRAD, 1]
    perfs = [type("Perf", (), {"algo": n, "status": 0}) for n in order]
    fake_card.answers["cudnnGetConvolutionForwardAlgorithm_v7"] = perfs
    v = tensors(x=(2, 3, 8, 8), w=(4, 3, 3, 3))
    flags = {"dnn.conv.algo_fwd": "guess_on_shape_change", "dnn.conv.workspace_limit": limit}
    y = T.nnet.conv2d(v["x"], v["w"], border_mode=1)
    y.name = "first"
    with config.change_flags(flags), caplog.at_level(logging.WARNING, "symdnn.dnn"):
        found = planned(v, y)
    assert (found.used, found.workspace_bytes) == (used, most)
    assert len(demotions(caplog)) == (limit > 0)
    if limit:
        assert found.fallback.asked == "fft"
        assert f"{8 * GIB} bytes of workspace, {limit} allowed" in found.fallback.why
        assert f"{most} bytes of workspace instead of {8 * GIB}" in found.fallback.cost


def planned(v, y):
    """The row of one convolution, of a plan that is not run."""
    from symdnn.gpu.conv.launch import ConvKernel
    from symdnn.graph.kernel import Call
    from symdnn.graph.type import TensorType

    f = compiled(v.values(), y)
    (node,) = [n for n in f.fgraph.nodes if type(n.op).__name__ == "GpuDnnConv"]
    types = [TensorType("float32", s) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 8, 8))]
    call = Call(node.op, tuple(types[:2]), (types[2],), node.hints, node)
    return ConvKernel().settled(call).library_use(call)


def test_a_vgg_step_is_demoted_layer_by_layer(fake_card, caplog):
    """All forward layers want 8 GB of workspace, more than there is; each gets what fits."""
    fake_card.sizes = {FFT: 8 * GIB}
    net = vgg(1 / 32)
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype("float32")
    limited = {
        "dnn.conv.algo_fwd": "fft", "dnn.conv.workspace_limit": mebibytes(64),
        "dnn.conv.on_unsupported": "fallback",
    }  # fmt: skip
    before = [p.get_value() for p in net.parameters()]
    unlimited = float(step(net, 0.0)(images))
    with config.change_flags(limited), caplog.at_level(logging.WARNING, "symdnn.dnn"):
        f = step(net)
        loss = float(f(images))
    lines = demotions(caplog)
    assert len(lines) == LAYERS
    assert len({line.split(" fwd ")[0] for line in lines}) == LAYERS  # each names its layer
    for line in lines:
        assert re.match(r"\d+ fwd \(.*test_14_workspace_cap.py", line)
        assert f"asked for fft, got small: {8 * GIB} bytes of workspace" in line
    rows = [r.use for r in f.dnn_report().rows if r.use.requested == "fft"]
    assert [u.used for u in rows] == ["small"] * LAYERS
    assert all(u.workspace_bytes <= mebibytes(64) for u in rows)
    assert loss == pytest.approx(unlimited, rel=1e-4)
    assert any((p.get_value() != b).any() for p, b in zip(net.parameters(), before, strict=True))
    caplog.clear()
    with config.change_flags(limited), caplog.at_level(logging.WARNING, "symdnn.dnn"):
        f(images)
    assert demotions(caplog) == []  # each layer once


@pytest.mark.gpu
def test_vgg_on_a_card(card, caplog):
    """``fft`` wants gigabytes for VGG-16's first layers; with 1 GB free the step completes."""
    images = np.random.default_rng(0).standard_normal((32, 3, 224, 224)).astype("float32")
    nn.init.seed(1)
    net = vgg()
    start = [p.get_value() for p in net.parameters()]
    named = {"dnn.conv.algo_fwd": "fft", "dnn.conv.on_unsupported": "fallback"}

    def run(**flags):
        """The loss, the new parameters, lines of demotions, and bytes in use, of one step."""
        for p, value in zip(net.parameters(), start, strict=True):
            p.set_value(value)
        new_process()
        caplog.clear()
        settings = {**named, **{name.replace("__", "."): v for name, v in flags.items()}}
        with config.change_flags(settings), caplog.at_level(logging.WARNING, "symdnn.dnn"):
            f = step(net)
            loss = float(f(images))
        use = f.device_memory()
        largest = max(r.use.workspace_bytes for r in f.dnn_report().rows)
        f.free()
        new = [p.get_value() for p in net.parameters()]
        return loss, new, demotions(caplog), use.arena + use.live, largest

    loss, wanted, _, unlimited_bytes, largest = run()
    *_, least_bytes, no_workspace = run(dnn__conv__workspace_limit=1)
    assert no_workspace <= 1 < GIB < largest
    # Workspaces lie where values are dead, so the largest may have more than what is free at worst.
    limit = least_bytes + GIB // 4
    assert limit < unlimited_bytes
    for flags, most_bytes, most in (
        ({"dnn__conv__workspace_limit": mebibytes(64)}, unlimited_bytes, mebibytes(64)),
        ({"gpu__memory_limit": limit}, limit, largest),
    ):
        again, got, lines, nbytes, used = run(**flags)
        assert nbytes <= most_bytes
        assert used <= most
        assert lines
        assert len(lines) == len(set(lines))
        assert again == pytest.approx(loss, rel=1e-4)
        for a, b in zip(got, wanted, strict=True):
            assert np.abs(a - b).max() <= 1e-4 * np.abs(b).max()
