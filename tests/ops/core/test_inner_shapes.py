"""Shapes of a loop's results where no step has shown them."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T


@pytest.mark.parametrize(
    "step",
    [
        lambda i, v: v[i] * 2,
        lambda i, v: T.set_subtensor(v[i], 0.0)[0],
        lambda i, v: T.set_subtensor(v[:i], 0.0)[1],
    ],
    ids=["element", "written element", "written slice"],
)
def test_no_shape_depends_on_which_element_is_read_or_written(step):
    at, v = T.lvector("at"), T.dmatrix("v")
    found, _ = symdnn.scan(step, [at], non_sequences=[v])
    values = np.ones((4, 3))
    for f in (symdnn.function([at, v], found), lambda *a: found.eval(dict(zip((at, v), a)))):
        assert f(np.zeros(0, "int64"), values).shape == (0, 3)
        assert f(np.zeros(2, "int64"), values).shape == (2, 3)
