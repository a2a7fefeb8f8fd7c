"""Out of device memory: freed caches, shrunk workspaces, the error's text; no value changes."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.device.budget import OutOfDeviceMemory

pytestmark = pytest.mark.gpu

MIB = 1 << 20


def limited(card, more):
    """The flag that leaves ``more`` bytes besides those in use now."""
    card.memory.free_held()
    card.arena.needed = 0
    card.arena.trim()
    use = card.memory_use()
    return config.change_flags(**{"gpu.memory_limit": use.arena + use.live + more})


def function(inputs, outputs, **more):
    return symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cuda"), **more)


def test_a_call_over_the_limit_fails_and_changes_nothing(card):
    x = T.fmatrix("x")
    w = symdnn.shared(np.ones((8, 1024), "float32"), name="w")
    f = function([x], (w * x.sum()).sum(), updates=[(w, w + T.tanh(x).sum(0) + T.sort(x, 0)[0])])
    small, large = (np.ones((n, 1024), "float32") for n in (8, 20_000))
    f(small)
    before = w.get_value()
    with limited(card, 8 * MIB), pytest.raises(OutOfDeviceMemory, match="gpu.memory_limit"):
        f(large)
    np.testing.assert_array_equal(w.get_value(), before)
    f(small)
    f(large)


def test_workspaces_are_cut_before_a_call_fails(rng, card):
    x, w = T.ftensor4("x"), T.ftensor4("w")
    y = T.nnet.conv2d(x, w, border_mode="half")
    images = rng.normal(size=(16, 32, 64, 64)).astype("float32")
    kernels = rng.normal(size=(32, 32, 5, 5)).astype("float32")
    with config.change_flags(**{"dnn.conv.algo_fwd": "fft"}):
        f = function([x, w], y)
        wanted = f(images, kernels)
        workspace = f.memory_report().workspaces
        assert workspace > MIB
        f.free()
        with limited(card, images.nbytes * 3 + workspace // 2):
            np.testing.assert_allclose(f(images, kernels), wanted, rtol=1e-3, atol=1e-2)
            assert f.memory_report().workspaces < workspace


def test_blocks_that_nobody_uses_are_given_back(card):
    rows = np.ones((16 * MIB // 4,), "float32")
    kept = [symdnn.shared(rows) for _ in range(2)]
    f = function([], kept[0].sum() + kept[1].sum())
    f()
    del kept, f
    with limited(card, 20 * MIB):
        other = symdnn.shared(rows)
        g = function([], other.sum())
        assert g() == rows.size


def test_the_arena_shrinks_and_grows_without_moving(card):
    x = T.fmatrix("x")
    f = function([x], T.sort(T.tanh(x), axis=1).sum())
    small, large = (np.random.rand(n, 512).astype("float32") for n in (64, 40_000))
    first = [f(small), f(small)]
    f(large)
    base, most = card.arena.base, card.arena.nbytes
    card.arena.needed = 0
    card.arena.trim()
    assert card.arena.nbytes < most
    for _ in range(3):
        np.testing.assert_allclose(f(small), first[0])
    np.testing.assert_allclose(f(large), np.tanh(large.astype("float64")).sum(), rtol=1e-4)
    assert card.arena.base == base


def test_the_report_says_what_is_taken(card):
    x = T.fvector("x")
    f = function([x], T.tanh(x).sum())
    f(np.ones(1000, "float32"))
    report = f.memory_report()
    assert report.device.peak >= report.device.live > 0
    assert "most so far" in str(report)
