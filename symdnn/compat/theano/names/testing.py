"""Names of ``theano.tests.unittest_tools`` and of Theano's test configuration."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np

from symdnn.compat.theano.names import gradient_names
from symdnn.compat.theano.settings import config

__all__ = [
    "AttemptManyTimes", "InferShapeTester", "SkipTest", "T_OpContractMixin", "WrongValue",
    "assertFailure_fast", "assert_allclose", "attr", "custom_name_func", "fetch_seed",
    "mode_with_gpu", "mode_without_gpu", "seed_rng", "str_diagnostic", "test_ctx_name",
    "verify_grad",
]  # fmt: skip

SkipTest = unittest.SkipTest
test_ctx_name = None
mode_with_gpu = mode_without_gpu = None


def fetch_seed(pseed: int | None = None) -> int:
    """The seed of tests: ``pseed``, or the flag ``unittests.rseed``."""
    return int(config.unittests.rseed if pseed is None else pseed)


def seed_rng(pseed: int | None = None) -> int:
    """Seed ``numpy.random``; the seed."""
    seed = fetch_seed(pseed)
    np.random.seed(seed)
    return seed


def verify_grad(
    op: Any, pt: Any, n_tests: int = 2, rng: object = None, *args: Any, **words: Any
) -> None:
    """:func:`symdnn.verify_grad` with a seeded generator."""
    given = rng if rng is not None else np.random.RandomState(fetch_seed())
    gradient_names.verify_grad(op, pt, n_tests, given, *args, **words)


verify_grad.E_grad = gradient_names.verify_grad.E_grad  # type: ignore[attr-defined]


def assert_allclose(
    expected: Any, value: Any, rtol: float | None = None, atol: float | None = None
) -> None:
    """Raise :class:`WrongValue` unless arrays agree, by Theano's tolerances for their dtype."""
    narrow = any(getattr(v, "dtype", None) in ("float32", "complex64") for v in (expected, value))
    relative = rtol if rtol is not None else 1e-5
    absolute = atol if atol is not None else (1e-5 if narrow else 1e-8)
    if not np.allclose(expected, value, relative, absolute, equal_nan=True):
        raise WrongValue(expected, value, relative, absolute)


def str_diagnostic(expected: object, value: object, rtol: float, atol: float) -> str:
    """What differs, as text."""
    error = np.abs(np.asarray(expected) - np.asarray(value))
    return (
        f"expected {expected!r:.500}\ngot {value!r:.500}\nlargest difference {error.max()}, "
        f"rtol={rtol}, atol={atol}"
    )


class WrongValue(Exception):
    """Values that do not agree."""

    def __init__(self, expected: Any, value: Any, rtol: float, atol: float) -> None:
        super().__init__(str_diagnostic(expected, value, rtol, atol))
        self.expected_value, self.val = expected, value


def attr(*args: object, **words: object) -> Any:
    """nose's decorator, which changes nothing."""
    return lambda f: f


def custom_name_func(testcase_func: Any, param_num: Any, param: object) -> str:
    """The name of a parameterised test."""
    return f"{testcase_func.__name__}_{param_num}"


def assertFailure_fast(f: object) -> Any:
    """The test itself."""
    return f


class T_OpContractMixin:
    """Theano's check that ops can be cloned and compared."""

    ops: list[Any] = []

    def test_eq(self) -> None:
        """Equal to itself, with an equal hash."""
        for op in self.ops:
            assert op == op
            assert hash(op) == hash(op)


class InferShapeTester(unittest.TestCase):
    """Checks that ``infer_shape`` of an op agrees with what it computes."""

    def setUp(self) -> None:
        """Seed ``numpy.random``."""
        seed_rng()

    def _compile_and_check(
        self,
        inputs: Any,
        outputs: Any,
        numeric_inputs: Any,
        cls: object,
        *args: object,
        **words: object,
    ) -> None:
        from symdnn.compat.theano.names.compile_names import function

        values = function(inputs, outputs, on_unused_input="ignore")(*numeric_inputs)
        shapes = function(inputs, [o.shape for o in outputs], on_unused_input="ignore")
        for value, shape in zip(values, shapes(*numeric_inputs)):
            assert tuple(shape) == np.shape(value), (tuple(shape), np.shape(value))


class AttemptManyTimes:
    """A decorator that repeats a test of random numbers until it passes ``n_req_successes``."""

    def __init__(self, n_attempts: int, n_req_successes: int = 1) -> None:
        self.n_attempts, self.n_req_successes = n_attempts, n_req_successes

    def __call__(self, f: Any) -> Any:
        def attempt(*args: Any, **words: Any) -> None:
            left = self.n_req_successes
            for i in range(self.n_attempts):
                try:
                    f(*args, **words)
                    left -= 1
                except Exception:
                    if i == self.n_attempts - 1:
                        raise
                if not left:
                    return

        return attempt
