"""Suppression of boxes looks at the numbers of boxes and of scores."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ShapeMismatch, SymdnnError
from symdnn.ops.array.boxes import nms, non_max_suppression


@pytest.mark.parametrize("sizes", [(1, 3, 5), (2, 3, 1), (2, 3, 4), (3, 1, 6)])
def test_scores_of_other_boxes_are_refused(sizes, rng):
    boxes, scores = T.ftensor3(), T.ftensor3()
    f = symdnn.function([boxes, scores], non_max_suppression(boxes, scores, 3, 0.5))
    given = rng.random((2, 5, 4)).astype("float32")
    assert len(f(given, rng.random((2, 3, 5)).astype("float32")))
    with pytest.raises(ShapeMismatch):
        f(given, rng.random(sizes).astype("float32"))
    with pytest.raises(ShapeMismatch, match="same N and B"):
        non_max_suppression(given, rng.random(sizes).astype("float32"), 3, 0.5)


@pytest.mark.parametrize("n", [0, 1, 3, 6])
def test_nms_refuses_another_number_of_scores(n, rng):
    boxes, scores = T.fmatrix(), T.fvector()
    f = symdnn.function([boxes, scores], nms(boxes, scores, 0.5))
    given = rng.random((5, 4)).astype("float32")
    assert len(f(given, np.arange(5, dtype="float32")))
    with pytest.raises(SymdnnError):
        f(given, rng.random(n).astype("float32"))
