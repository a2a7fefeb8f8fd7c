"""Metrics: against NumPy, over batches of several sizes."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch
from symdnn.nn.training.metrics import as_metrics
from tests.seeded import new_rng

m = nn.metrics
RNG = new_rng()


def measured(metric, outputs, targets, sizes):
    y = T.TensorType("float32", (None,) * outputs.ndim)("y")
    t = T.TensorType(targets.dtype.name, (None,) * targets.ndim)("t")
    f = symdnn.function([y, t], metric.outputs(y, [t]))
    state, start = metric.start(), 0
    for n in sizes:
        state = metric.add(state, f(outputs[start : start + n], targets[start : start + n]), n)
        start += n
    return metric.result(state)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_top_k(k, shape):
    scores = RNG.normal(size=(12, 5, *shape)).astype("float32")
    t = RNG.integers(0, 5, (12, *shape))
    best = np.argsort(-scores, axis=1)[:, :k]
    wanted = (best == t[:, None]).any(axis=1).mean()
    found = measured(m.top_k(k), scores, t, [5, 5, 2])
    assert found == pytest.approx(wanted)
    assert k < 5 or found == 1


def test_ties_and_nan():
    equal = np.zeros((4, 4), "float32")
    t = np.arange(4)
    assert measured(m.accuracy(), equal, t, [4]) == 0.25
    assert measured(m.top_k(2), equal, t, [4]) == 0.5
    assert measured(m.top_k(3), equal * np.nan, t, [4]) == 0


def test_ignored_targets_do_not_count():
    scores = np.eye(4, dtype="float32")[[0, 1, 2, 2]]
    t = np.array([0, -100, 2, 3])
    assert measured(m.accuracy(ignore=-100), scores, t, [2, 2]) == pytest.approx(2 / 3)
    nothing = measured(m.accuracy(ignore=-100), scores, np.full(4, -100), [4])
    assert np.isnan(nothing)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_confusion_matrix(shape):
    scores = RNG.normal(size=(30, 4, *shape)).astype("float32")
    t = RNG.integers(-1, 4, (30, *shape)).astype("int32")
    wanted = np.zeros((4, 4))
    for true, found in zip(t.ravel(), scores.argmax(axis=1).ravel()):
        if true >= 0:
            wanted[true, found] += 1
    np.testing.assert_array_equal(measured(m.confusion_matrix(4), scores, t, [8] * 4), wanted)


def test_means_are_weighted_by_size():
    error = m.Metric(lambda y, t: abs(y - t).mean())
    y, t = (RNG.normal(size=(7, 2)).astype("float32") for _ in range(2))
    found = measured(error, y, t, [4, 3])
    assert found == pytest.approx(np.abs(y - t).mean(), rel=1e-5)
    mean = m.RunningMean()
    assert np.isnan(mean.value)
    mean.add(3.0)
    mean.add(1.0, 3)
    assert mean.value == 1.5


def test_bad_metrics():
    with pytest.raises(InputError, match="got 3"):
        as_metrics({"a": 3})
    with pytest.raises(InputError, match="wanted one of mean, ratio, sum"):
        m.Metric(len, "median")
    with pytest.raises(InputError, match="k=0"):
        m.top_k(0)
    y, t = T.matrix("y"), T.ivector("t")
    with pytest.raises(TypeMismatch, match="symbolic scalars"):
        as_metrics({"a": lambda y, t: y})["a"].outputs(y, [t])
    with pytest.raises(TypeMismatch, match=r"wanted outputs \(N, C, ...\) and integer targets"):
        m.accuracy().outputs(y, [y])
