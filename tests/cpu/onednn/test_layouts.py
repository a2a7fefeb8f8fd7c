"""Layouts that primitives choose, and parameters that are kept in them."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import object_cache
from symdnn.cpu.onednn import kernel as onednn_kernel
from symdnn.cpu.onednn import library
from symdnn.graph.target import Target

needs_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not installed")


def compiled(inputs, outputs, target):
    return symdnn.function(inputs, outputs, mode=symdnn.Mode(target=target))


@needs_onednn
def test_choices_of_layouts_are_reported():
    x = T.ftensor4("x")
    y = T.nnet.conv2d(x, np.ones((16, 3, 3, 3), "float32"))
    for algo, why in (("guess", "guessed"), ("time", "timed")):
        with config.change_flags(**{"onednn.conv.algo": algo}):
            object_cache.clear()
            f = compiled([x], y, "cpu")
            f(np.ones((2, 3, 9, 11), "float32"))
            (row,) = f.dnn_report().rows
        assert (row.use.requested, row.use.api) == (algo, "oneDNN")
        assert row.use.used in ("last", "own", "plain")
        assert why in row.use.why


@needs_onednn
def test_a_parameter_is_reordered_again_when_it_changes(rng):
    x = T.ftensor4("x")
    w = symdnn.shared(rng.normal(size=(16, 16, 3, 3)).astype("f"))
    f = compiled([x], T.nnet.conv2d(x, w), "cpu")
    plain = compiled([x], T.nnet.conv2d(x, w), Target("cpu"))
    image = rng.normal(size=(2, 16, 6, 6)).astype("f")

    def agree():
        for _ in range(3):
            np.testing.assert_allclose(f(image), plain(image), rtol=1e-4, atol=1e-2)

    agree()
    w.set_value(rng.normal(size=(16, 16, 3, 3)).astype("f"))
    agree()
    step = symdnn.function([], [], updates=[(w, w * 2)], mode=symdnn.Mode(target="cpu"))
    step()
    agree()
    inside = w.get_value(borrow=True)
    inside *= 3
    agree()
    inside += 1
    agree()


@needs_onednn
def test_an_unchanged_parameter_is_reordered_once(monkeypatch):
    x = T.ftensor4("x")
    w = symdnn.shared(np.ones((16, 16, 3, 3), "f"))
    f = compiled([x], T.nnet.conv2d(x, w), "cpu")
    image = np.ones((2, 16, 6, 6), "f")
    for _ in range(3):
        f(image)
    read = []
    real = onednn_kernel._as_primitive_reads
    monkeypatch.setattr(
        onednn_kernel, "_as_primitive_reads", lambda a, o: read.append(o.name) or real(a, o)
    )
    f(image)
    assert read == ["src"]
    w.set_value(np.ones((16, 16, 3, 3), "f"))
    f(image)
    assert read == ["src", "src", "weights"]
