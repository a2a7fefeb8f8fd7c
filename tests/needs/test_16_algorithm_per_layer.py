"""Need 16: choose, list and read back the algorithm per layer; a report's file gives the same rows.

One row per convolution: requested, used, engine and knobs, workspace, time, deterministic or not.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.errors import ConfigError, OptionError, UnsupportedAlgorithm
from symdnn.gpu import dnn
from symdnn.gpu.conv import algorithm
from tests.needs.fake_card import compiled, mebibytes, new_process, tensors

X, W, V = (2, 3, 8, 8), (4, 3, 3, 3), (4, 4, 3, 3)


def net(algo=None):
    """Two layers, the second with an algorithm of its own; both gradients of the filters."""
    v = tensors(x=X, w=W, v=V)
    h = dnn.dnn_conv(v["x"], v["w"], border_mode=1)
    y = dnn.dnn_conv(h, v["v"], border_mode=1, algo=algo)
    y.name = "last"
    grads = T.grad(y.sum(), [v["w"], v["v"]])
    return compiled(v.values(), [y, *grads])


def call(f):
    return f(*(np.ones(s, "float32") for s in (X, W, V)))


def rows(f):
    """The rows of a report without what says where a choice came from."""
    return [
        (type(r.node.op).__name__, r.use.requested, r.use.used, r.use.api, r.use.engine,
         r.use.workspace_bytes, r.use.ms, r.use.deterministic)
        for r in f.dnn_report().rows
    ]  # fmt: skip


def test_one_layers_algorithm_changes_its_row_alone(fake_card):
    fake_card.sizes = {5: mebibytes(3)}
    plain, other = net(), net("fft_tiling")
    call(plain), call(other)
    before, after = rows(plain), rows(other)
    assert len(before) == len(after) == 5
    (changed,) = [i for i in range(5) if before[i] != after[i]]
    assert before[changed][2] == "small"
    assert after[changed][1:6] == ("fft_tiling", "fft_tiling", "legacy", "5", mebibytes(3))


def test_a_report_is_replayed_with_the_same_rows(fake_card, tmp_path):
    f = net("fft_tiling")
    with config.change_flags({"dnn.conv.algo_bwd_filter": "deterministic"}):
        call(f)
    file = tmp_path / "report.json"
    f.dnn_report().save(file)
    new_process()
    again = net()
    with config.change_flags({"dnn.conv.overrides": str(file)}):
        call(again)
    assert rows(again) == rows(f)
    assert {r.use.why for r in again.dnn_report().rows} == {"replayed from report.json"}
    (row, *_) = json.loads(file.read_text())["rows"]
    assert {"names", "line", "requested", "used", "workspace_bytes", "why", "fallback"} <= set(row)


def test_a_replayed_algorithm_must_be_supported(fake_card, tmp_path):
    f = net("fft_tiling")
    call(f)
    file = tmp_path / "report.json"
    f.dnn_report().save(file)
    new_process()
    fake_card.refused = {5}
    with config.change_flags({"dnn.conv.overrides": str(file)}):
        with pytest.raises(UnsupportedAlgorithm, match="'fft_tiling' can't be used"):
            call(net())
        algorithm.forget()
        with config.change_flags({"dnn.conv.on_unsupported": "fallback"}):
            g = net()
            call(g)
    (fallback,) = [r.use.fallback for r in g.dnn_report().rows if r.use.fallback]
    assert (fallback.asked, fallback.got) == ("fft_tiling", "small")
    assert "NOT_SUPPORTED" in fallback.why


def test_patterns_after_the_file_go_before_it(fake_card, tmp_path):
    f = net("fft_tiling")
    call(f)
    file = tmp_path / "report.json"
    f.dnn_report().save(file)
    with config.change_flags({"dnn.conv.overrides": f"{file}; last=none"}):
        g = net()
        call(g)
    assert [r[2] for r in rows(g) if r[0] == "GpuDnnConv"] == ["small", "none"]


def test_another_shape_has_no_row(fake_card, tmp_path):
    f = net("fft_tiling")
    call(f)
    file = tmp_path / "report.json"
    f.dnn_report().save(file)
    v = tensors(x=(5, *X[1:]), w=W)
    g = compiled(v.values(), dnn.dnn_conv(v["x"], v["w"], border_mode=1))
    with config.change_flags({"dnn.conv.overrides": str(file)}):
        g(np.ones((5, *X[1:]), "float32"), np.ones(W, "float32"))
    assert g.dnn_report().rows[0].use.why == "the flag's default"


@pytest.mark.parametrize("content", [None, "", "{}", '{"format": 9, "rows": []}', "[1]"])
def test_what_is_no_report_is_refused(fake_card, tmp_path, content):
    file = tmp_path / "report.json"
    if content is not None:
        file.write_text(content)
    wrong = pytest.raises(ConfigError, match=r"dnn.conv.overrides: .*report.json")
    with config.change_flags({"dnn.conv.overrides": str(file)}), wrong:
        call(net())


def test_a_file_needs_its_ending(fake_card, tmp_path):
    f = net()
    call(f)
    with pytest.raises(OptionError, match=r"wanted a name \*\.json"):
        f.dnn_report().save(tmp_path / "report.txt")


def trained(words):
    net = nn.Sequential(
        nn.SpatialConvolution(3, 8, 3, 3), nn.ReLU(), nn.SpatialConvolution(8, 4, 5, 5)
    )
    x = T.tensor4("x")
    loss = net(x).sum()
    f = compiled([x], loss, updates=nn.optim.sgd(loss, net, 0.1))
    with config.change_flags(words):
        f(np.ones((4, 3, 16, 16), "float32"))
    return f


@pytest.mark.gpu
def test_on_a_card(card, tmp_path):
    """Measured choices, plans of the graph API among them, come back by the file alone."""
    search = dict.fromkeys(
        [f"dnn.conv.algo_{d}" for d in ("fwd", "bwd_data", "bwd_filter")], "time_once"
    )
    off = {"dnn.conv.tuning_cache": "off"}
    f = trained({**search, **off, "dnn.conv.allow_tf32": True})
    file = tmp_path / "report.json"
    f.dnn_report().save(file)
    algorithm.forget()
    g = trained({**off, "dnn.conv.allow_tf32": True, "dnn.conv.overrides": str(file)})
    assert [r[2:6] for r in rows(g)] == [r[2:6] for r in rows(f)]
