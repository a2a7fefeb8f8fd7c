"""Rows of :mod:`benchmarks.cpu.nest`: reductions of rows of 10 to 5000 numbers in each dtype.

    python -m benchmarks.cpu.survey_rows --check
    python -m benchmarks.cpu.survey_rows --window-ms 2 --peers ../peers/bin/python

Each array has some 100,000 elements, which fit the second cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.cpu.family_rows import SAME, Texts, each, made
from benchmarks.cpu.nest import Nest, main

_ELEMENTS, _LENGTHS = 100_000, (10, 33, 100, 300, 1000, 5000)
_FLOATS = ("float32", "float64", "float16", "bfloat16")
_WHOLE = ("int8", "uint8", "int16", "int32", "int64", "bool")
#: Texts of programs of rows, and their dtypes.
_OF_ROWS: dict[str, tuple[Texts, tuple[str, ...]]] = {
    "sum": (("x.sum(1)", SAME, SAME, SAME), (*_FLOATS, *_WHOLE, "complex64", "complex128")),
    "mean": (("x.mean(1)", SAME, SAME, SAME), (*_FLOATS, "complex64")),
    "mean of whole numbers": (
        ("x.mean(1)", "x.mean(1, dtype=torch.float32)", SAME, SAME), ("bool", "int32", "uint8")),
    "var": (("x.var(1)", "x.var(1, correction=0)", SAME, SAME), _FLOATS),
    "std": (("x.std(1)", "x.std(1, correction=0)", SAME, SAME), ("float32", "float64")),
    "norm": (
        ("xp.sqrt((x * x).sum(1))", "torch.linalg.vector_norm(x, dim=1)",
         "jnp.linalg.norm(x, axis=1)", "np.linalg.norm(x, axis=1)"), ("float32", "float64")),
    "max": (("x.max(1)", "x.amax(1)", SAME, SAME), (*_FLOATS, *_WHOLE[:-1])),
    "min": (("x.min(1)", "x.amin(1)", SAME, SAME), ("float32", "int64")),
    "prod": (("x.prod(1)", SAME, SAME, SAME), ("float32", "float64", "int64", "int32")),
    "nansum": (("T.nansum(x, axis=1)", "torch.nansum(x, 1)", "jnp.nansum(x, 1)", "np.nansum(x, 1)"),
               ("float32", "float64")),
    "softmax": (("T.softmax(x, axis=1)", "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)", None),
                _FLOATS),
    "argmax": (("x.argmax(1)", SAME, SAME, SAME), (*_FLOATS, *_WHOLE[:-1])),
    "argmin": (("x.argmin(1)", SAME, SAME, SAME), ("float32", "int64")),
    "any": (("(x > 3).any(1)", SAME, SAME, SAME), ("float32", "int32")),
    "any, all": (("x.any(1)", SAME, SAME, SAME), ("bool",)),
    "all": (("x.all(1)", SAME, SAME, SAME), ("bool", "int32")),
    "columns, sum": (("x.sum(0)", SAME, SAME, SAME), (*_FLOATS, *_WHOLE, "complex64")),
    "columns, max": (("x.max(0)", "x.amax(0)", SAME, SAME), ("float32", "int8", "float16")),
    "columns, var": (("x.var(0)", "x.var(0, correction=0)", SAME, SAME), ("float32", "float64")),
}  # fmt: skip
#: Of three axes: texts, shape.
_OF_CUBES = (
    ("sum 1 of 30x100x100", ("x.sum(1)", SAME, SAME, SAME), (30, 100, 100)),
    ("sum 0, 2 of 30x40x250", ("x.sum((0, 2))", SAME, SAME, SAME), (30, 40, 250)),
    ("sum 1, 2 of 300x11x31", ("x.sum((1, 2))", SAME, SAME, SAME), (300, 11, 31)),
    ("max 1 of 30x100x100", ("x.max(1)", "x.amax(1)", SAME, SAME), (30, 100, 100)),
    ("max 0, 2 of 30x40x250", ("x.max((0, 2))", "x.amax((0, 2))", SAME, SAME), (30, 40, 250)),
    ("mean 0 of 10x100x100", ("x.mean(0)", SAME, SAME, SAME), (10, 100, 100)),
    ("sum of all", ("x.sum()", SAME, SAME, SAME), (300, 333)),
    ("sum 1 of all of 1000x1000", ("x.sum(1)", SAME, SAME, SAME), (1000, 1000)),
)


def rows() -> Iterator[Nest]:
    """All rows."""
    for name, (texts, dtypes) in _OF_ROWS.items():
        for dtype in dtypes:
            for n in _LENGTHS:
                x = made(_ELEMENTS // n, n, dtype=dtype, high=2 if name == "prod" else 100)
                yield each(f"{name} {dtype} {n}", (x,), _without(texts, dtype), static=True)
    for name, texts, shape in _OF_CUBES:
        for dtype in ("float32", "complex64", "int32"):
            if dtype != "complex64" or "max" not in name:
                own = made(*shape, dtype=dtype)
                yield each(f"{name} {dtype}", (own,), texts, static=True)


def _without(texts: Texts, dtype: str) -> Texts:
    """The texts for a dtype: NumPy has no bfloat16 of its own."""
    ours, torch_, jax_, numpy_ = texts
    return ours, torch_, jax_, None if dtype == "bfloat16" else numpy_


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_rows"))
