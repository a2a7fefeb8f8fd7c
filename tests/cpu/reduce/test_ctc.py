"""The CTC loss by compiled loops, against its reference."""

import numpy as np
import pytest

from symdnn.config import config
from symdnn.cpu.reduce.ctc import CtcKernel
from symdnn.errors import IndexOutOfRange
from symdnn.ops.nn.ctc import CTCCosts, CTCLoss
from tests.cpu.harness import called, compiled, launched
from tests.seeded import new_rng

pytestmark = compiled
OPS = [CTCLoss(), CTCCosts()]

#: Frames, sequences, classes, labels.
SIZES = [
    (1, 1, 2, 1), (5, 3, 3, 2), (7, 2, 1, 0), (12, 4, 9, 4), (40, 6, 17, 12), (30, 5, 40, 30),
    (9, 2, 5, 0),
]  # fmt: skip


def batch(sizes, dtype="float32", labels="int64", lengths="int64"):
    """A batch of labels that repeat, with padding anywhere, and of sequences of any length."""
    steps, count, classes, width = sizes
    rng = new_rng()
    scores = rng.normal(size=(steps, count, classes)) * 4
    wanted = rng.integers(1, max(classes, 2), (count, width))
    if labels.startswith("i"):
        wanted = np.where(rng.random(wanted.shape) < 0.3, -1, wanted)
    frames = rng.integers(0, steps + 1, count)
    return scores.astype(dtype), wanted.astype(labels), frames.astype(lengths)


def check(op, arrays):
    want = op.reference(*arrays)
    found = launched(CtcKernel(), called(op, arrays), arrays)
    wide = arrays[0].dtype == np.float64
    for a, b in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10 if wide else 1e-6, atol=1e-11 if wide else 1e-7)


@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes(op, dtype, sizes):
    check(op, batch(sizes, dtype))


@pytest.mark.parametrize("labels", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("lengths", ["int8", "uint16", "uint32"])
def test_integers(labels, lengths):
    for op in OPS:
        check(op, batch((12, 4, 9, 4), labels=labels, lengths=lengths))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("where", [(3, 1, 0), (3, slice(None), 2), (11, 0), (slice(None), 2, 0)])
def test_special_scores(value, where):
    scores, labels, _ = batch((12, 4, 9, 4))
    scores[where] = value
    with np.errstate(all="ignore"):
        for op in OPS:
            check(op, (scores, labels, np.array([12, 11, 12, 5])))


def test_strides():
    scores, labels, lengths = batch((12, 4, 9, 4), "float64")
    for op in OPS:
        given = [scores.transpose(2, 1, 0).copy().transpose(2, 1, 0), labels[:, ::-1], lengths]
        check(op, given)
        check(op, [scores[::-2], labels[::-1], np.minimum(lengths, 6)[::-1]])


def test_long_sequences_and_large_scores():
    rng = new_rng()
    scores = (rng.normal(size=(400, 3, 20)) * 50).astype("float32")
    labels = rng.integers(1, 20, (3, 100))
    for op in OPS:
        check(op, (scores, labels, np.array([400, 390, 120])))


@pytest.mark.parametrize("op", OPS, ids=str)
def test_any_number_of_threads(op):
    arrays = batch((60, 37, 30, 12))
    found = []
    for count in (1, 2, 3):
        with config.change_flags(**{"openmp.threads": count}):
            found.append(launched(CtcKernel(), called(op, arrays), arrays))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize(
    ("labels", "lengths", "words"),
    [
        ([[1, 2], [3, 1]], [4, 4], "label 3 in row 1, position 0"),
        ([[1, 0], [1, 1]], [4, 4], "label 0 in row 0, position 1"),
        ([[1, 2], [2, 1]], [4, 5], r"input_lengths\[1\] = 5"),
        ([[1, 2], [2, 1]], [-1, 4], r"input_lengths\[0\] = -1"),
    ],
)
def test_what_is_out_of_range_is_named(op, labels, lengths, words):
    arrays = [np.zeros((4, 2, 3)), np.array(labels), np.array(lengths)]
    kernel = CtcKernel().bind(called(op, arrays))
    results = [np.empty(2), np.empty((4, 2, 3))][: len(called(op, arrays).outputs)]
    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match=words):
            kernel(arrays, results)
    arrays[1:] = np.array([[1, 2], [2, -1]]), np.array([4, 4])
    kernel(arrays, results)
    np.testing.assert_allclose(results[0], CTCLoss().reference(*arrays)[0])
