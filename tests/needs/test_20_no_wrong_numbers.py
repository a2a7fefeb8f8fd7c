"""Need 20: no silent wrong numbers from one algorithm.

``dnn.check=once`` compares each newly chosen plan with the reference plan on the real input, and
refuses it past the tolerance; a seeded wrong plan is caught, and put on the block list by (cuDNN,
architecture, operation).
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import cli, doctor
from symdnn.config import config
from symdnn.gpu import dnn
from symdnn.gpu.conv import candidate, checked
from symdnn.gpu.conv import epilogue as conv_epilogue
from symdnn.gpu.conv.algorithm import DIRECTIONS, UnsupportedAlgorithm
from symdnn.graph.origin import Hints
from symdnn.tuning import blocked, store
from tests.gpu.computing_cudnn import computing, run_conv
from tests.gpu.conv.test_checked import DEFAULTS, KINDS, operands, truth
from tests.gpu.fake_cudnn import conv
from tests.needs.fake_card import compiled, new_process, tensors

__all__ = ["computing"]


def forget():
    """Forget as the end of a process does."""
    new_process()
    checked.forget()
    conv_epilogue.forget()


@pytest.mark.parametrize("direction", KINDS)
def test_a_seeded_fault_is_caught_replaced_and_blocked(computing, fake, direction):
    number = DEFAULTS[direction]
    computing.wrong[direction] = {number}
    call = conv(KINDS[direction])
    given = operands(call)
    got, _, _, kernel = run_conv(fake, call, given)
    np.testing.assert_allclose(got, truth(call, given), rtol=1e-5, atol=1e-5)
    (entry,) = blocked.entries()
    key = entry.key
    assert (key["library"], key["version"], key["arch"]) == ("cudnn", 91900, "9.0")
    assert (key["direction"], key["dtype"]) == (direction, "float32")
    assert key["algorithm"] == ["legacy", number, False]
    assert kernel.library_use(call).fallback.got == kernel.library_use(call).used
    forget()  # another process: cuDNN may be right by now, but not in this version
    computing.ran.clear()
    run_conv(fake, call, given)
    assert (direction, number) not in computing.ran


def test_another_version_of_cudnn_is_tried_again(computing, fake, monkeypatch):
    computing.wrong["fwd"] = {1}
    call = conv()
    run_conv(fake, call, operands(call))
    forget()
    computing.wrong["fwd"] = set()
    monkeypatch.setattr("symdnn.gpu.conv.blocklist.version_number", lambda: 92000)
    *_, kernel = run_conv(fake, call, operands(call))
    assert kernel.library_use(call).used == "small"


def test_one_that_the_user_named_raises(computing, fake):
    computing.wrong["fwd"] = {5}
    call = conv(algo="fft_tiling", hints=Hints(algo_fwd="fft_tiling"))
    for _ in range(2):  # now by the check, then by the block list
        with pytest.raises(UnsupportedAlgorithm, match="'fft_tiling' can't be used: .*off by"):
            run_conv(fake, call, operands(call))
        forget()


def test_the_list_is_shown_and_exported(computing, fake, capsys, tmp_path):
    computing.wrong["bwd_filter"] = {0}
    call = conv(KINDS["bwd_filter"])
    run_conv(fake, call, operands(call))
    assert cli.main(["algos", "--blocked"]) == 0
    shown = capsys.readouterr().out
    assert "none: its result was off by" in shown
    assert "version 91900, arch 9.0" in shown
    (entry,) = doctor.diagnose().blocked
    assert entry == shown.strip()
    assert any(entry in line for line in doctor._report(doctor.diagnose()))
    assert cli.main(["tune", "--export", str(tmp_path / "all.txt")]) == 0
    (line,) = (tmp_path / "all.txt").read_text().splitlines()
    assert json.loads(line)["key"]["family"] == "blocked"
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / "other")}):
        forget()
        assert list(blocked.entries()) == []
        assert store.imported(line) == "new"
        assert [e.name for e in blocked.entries()] == ["none"]


# -- on a card ------------------------------------------------------------------------------------

X, W = (4, 16, 20, 20), (24, 16, 3, 3)


@pytest.fixture
def seeded(card, monkeypatch, tmp_path):
    """``seeded(direction, name)``: an algorithm zeroes the first half of its results."""
    faults: set[tuple[str, str]] = set()
    real = candidate.CandidateRun.__call__

    def run(self, env, arrays, alpha=1.0, beta=0.0):
        real(self, env, arrays, alpha, beta)
        direction = {"y": "fwd", "x": "bwd_data", "w": "bwd_filter"}[self.result]
        if (direction, self.candidate.name) in faults:
            out = arrays[self.result]
            env.zero(out.ptr, out.nbytes // 2)

    monkeypatch.setattr(candidate.CandidateRun, "__call__", run)
    forget()
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / "tuning")}):
        yield lambda direction, name: faults.add((direction, name))
    forget()


def all_directions(flags=None):
    """A layer with both gradients, called three times, so that its plan is captured."""
    v = tensors(x=X, w=W)
    y = dnn.dnn_conv(v["x"], v["w"], border_mode=1, conv_mode="cross")
    f = compiled(v.values(), [y, *T.grad((y**2).sum(), [v["x"], v["w"]])])
    rng = np.random.default_rng(3)
    given = [rng.standard_normal(s).astype("float32") for s in (X, W)]
    with config.change_flags(flags or {}):
        return f, [[np.asarray(a) for a in f(*given)] for _ in range(3)]


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_on_a_card(seeded, direction):
    _, (right, *_) = all_directions({"dnn.check": "off"})
    forget()
    seeded(direction, DIRECTIONS[direction].default)
    f, results = all_directions()
    for got in results:
        for a, b in zip(got, right, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())
    rows = [r.use for r in f.dnn_report().rows]
    assert [u.fallback.asked for u in rows if u.fallback] == [DIRECTIONS[direction].default]
    # In bwd_data there are two algorithms to trust. What replaces one of them has none beside it.
    alone = [u for u in rows if u.fallback and direction == "bwd_data"]
    assert all(u.check.startswith("checked") for u in rows if u not in alone)
    assert [e.key["direction"] for e in blocked.entries()] == [direction]
    assert [p.bound.capture_state.split(",")[0] for p in f.plans()] == ["captured"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_what_is_right_passes_on_a_card(card, dtype):
    """Defaults of all directions, dtypes and layouts: nothing is blocked without a fault."""
    forget()
    with config.change_flags({"dnn.conv.tuning_cache": "off"}):
        for layout in ("never", "nhwc"):
            x, w = T.TensorType(dtype, X)("x"), T.TensorType(dtype, W)("w")
            with config.change_flags({"gpu.layout": "nhwc" if layout == "nhwc" else "nchw"}):
                y = T.nnet.relu(T.nnet.conv2d(x, w, border_mode=1))
                f = compiled([x, w], [y, *T.grad(y.sum(), [x, w])])
                rng = np.random.default_rng(3)
                f(*(rng.standard_normal(s).astype(x.type.numpy) for s in (X, W)))
            assert all(r.use.check.startswith("checked") for r in f.dnn_report().rows), str(
                f.dnn_report()
            )
        assert list(blocked.entries()) == []
