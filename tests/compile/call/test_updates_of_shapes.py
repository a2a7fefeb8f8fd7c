"""Updates that give shared variables other shapes, call after call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T

CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "shrinks": (lambda s: s[1:-1], lambda a: a[1:-1]),
    "grows": (lambda s: T.concatenate([s, s * 2]), lambda a: np.concatenate([a, a * 2])),
    "one longer, one shorter": (
        lambda s: T.switch(T.eq(s.shape[0] % 2, 0), 1, -1) + T.arange(7 - s.shape[0]) * 1.0,
        lambda a: np.where(len(a) % 2 == 0, 1, -1) + np.arange(7 - len(a)) * 1.0,
    ),
    "by a loop": (
        lambda s: T.concatenate([symdnn.scan(lambda a: a + 1, s)[0], s[:1]]),
        lambda a: np.concatenate([a + 1, a[:1]]),
    ),
}
READ: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "values": (lambda s: s.sum(), lambda a: a.sum()),
    "sizes": (lambda s: s.shape[0] * 2, lambda a: len(a) * 2),
    "itself": (lambda s: s, lambda a: a),
    "a product": (lambda s: T.dot(s, s), lambda a: a @ a),
}


@pytest.mark.parametrize("argument", [False, True])
@pytest.mark.parametrize("read", list(READ))
@pytest.mark.parametrize("change", list(CHANGES))
def test_each_call_reads_the_shape_that_the_last_has_left(
    change: str, read: str, argument: bool
) -> None:
    value = np.arange(4.0)
    s, x = symdnn.shared(value, name="s"), T.dscalar("x")
    new, new_value = CHANGES[change]
    get, got = READ[read]
    f = symdnn.function([x] if argument else [], get(s) + (x if argument else 0),
                        updates=[(s, new(s))])  # fmt: skip
    for k in range(6):
        found = f(float(k)) if argument else f()
        np.testing.assert_allclose(found, got(value) + (k if argument else 0))
        value = new_value(value)
        np.testing.assert_allclose(s.get_value(), value)


def test_a_function_that_only_updates() -> None:
    s = symdnn.shared(np.arange(9.0))
    f, g = symdnn.function([], [], updates=[(s, s[1:])]), symdnn.function([], s * 2)
    for k in range(9):
        np.testing.assert_array_equal(g(), np.arange(k, 9.0) * 2)
        f()
    assert g().shape == (0,)
