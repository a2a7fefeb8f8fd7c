"""A result may take over a dying operand's memory only where that operand fills it as it does."""

import numpy as np
import pytest

from symdnn.compile.function import function
from symdnn.graph.type import TensorType

VIEWS = {
    "backwards": lambda v: v[::-1],
    "every other": lambda v: v[::2],
    "the end": lambda v: v[2:],
    "a column": lambda v: v.reshape((4, 2))[:, 1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_arithmetic_on_a_dying_view(view):
    x = TensorType("float64", (None,))("x")
    values = np.arange(8.0)
    f = function([x], [view(x + 1) * 2 - 1, x.sum()])
    np.testing.assert_array_equal(f(values)[0], view(values + 1) * 2 - 1)
