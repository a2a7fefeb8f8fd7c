"""Which sizes are known to be equal, and which are known to be sizes."""

import pytest

import symdnn.tensor as T
from symdnn.graph.dims import at_least_zero, is_size
from symdnn.rewriting.facts import ShapeFacts

x = T.matrix("x")
n, m = x.shape[0], x.shape[1]
k = T.lscalar("k")

EQUAL = {
    "a difference": (n - 4, n + -4),
    "the order of terms": (n + m + 1, 1 + m + n),
    "terms that cancel": (n + m - n, m),
    "a factor": (2 * (n + 3), n + n + 6),
    "nothing left": (n - n, T.constant(0)),
    "a product": (n * m + 1, 1 + m * n),
}
OTHER = {
    "another number": (n - 4, n + 4),
    "another factor": (2 * n, 3 * n),
    "another size": (n + 1, m + 1),
    "a narrow number that may wrap": (T.cast(k, "int8") + 1 - 1, T.cast(k, "int8")),
}


@pytest.mark.parametrize("case", EQUAL)
def test_linear_forms_of_one_value_are_equal(case):
    facts, (a, b) = ShapeFacts(), EQUAL[case]
    assert facts.same(a, b)
    assert facts.same(T.maximum(a, 0), T.maximum(b, 0))


@pytest.mark.parametrize("case", OTHER)
def test_other_forms_are_not(case):
    assert not ShapeFacts().same(*OTHER[case])


def test_arithmetic_of_sizes_gives_sizes():
    for size in (n, n * m, n + 3, (n * m) // 96, T.maximum(n - 4, 0) // 2, n % 3):
        assert is_size(size)
        assert at_least_zero(size) is size


def test_differences_and_numbers_of_users_may_be_negative():
    for size in (n - 4, k, k * n, -1 * n, n + k, T.minimum(n, k)):
        assert not is_size(size)
