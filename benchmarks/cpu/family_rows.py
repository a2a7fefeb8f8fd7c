"""What rows of :mod:`benchmarks.cpu.survey_families` are made of: arrays of any dtype, and programs
by their texts."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.cpu.nest import Nest, np
from benchmarks.cpu.survey_users import _row as users_row

__all__ = ["SAME", "Texts", "each", "made", "row_of"]

Texts = tuple[str, str | None, str | None, str | None]
SAME = "="


def made(*shape: int, dtype: str = "float32", low: int = 0, high: int = 100, seed: int = 0) -> Any:
    """What makes an array: normal numbers of floats and complex ones, else whole ones."""

    def make() -> Any:
        import ml_dtypes  # noqa: F401 (its import names bfloat16 for NumPy)

        rng, kind = np.random.default_rng(seed), np.dtype(dtype).kind
        if kind in "iub":
            return rng.integers(low, 2 if kind == "b" else high, shape).astype(dtype)
        numbers = rng.normal(size=shape)
        return (numbers + 1j * rng.normal(size=shape) if kind == "c" else numbers).astype(dtype)

    return make


def row_of(
    name: str, arrays: tuple[Any, ...], ours: str, *others: str | None, static: bool = False,
    numpy_: str | None = "=",
) -> Nest:  # fmt: skip
    """A row by texts of ours, PyTorch, JAX and NumPy; "=" is ours, where ``==`` is no identity."""
    texts = [*others, *["=", "=", numpy_][len(others) :]]
    plain = [ours if t == "=" else t for t in texts]
    own = re.sub(r"(\w+(?:\[[^]]*\])?) == ([\w.]+(?:\([^)]*\))?)", r"T.eq(\1, \2)", ours)
    return users_row(name, arrays, own, *plain, static=static)


def each(name: str, arrays: tuple[Any, ...], texts: Texts, static: bool = False) -> Nest:
    return row_of(name, arrays, texts[0], *texts[1:], static=static)
