"""Rows of :mod:`benchmarks.cpu.nest` that only move numbers: joins, rolls, tiles, pads, gathers,
transposes, masks, parts that are set, and counts, in three sizes and dtypes of 1 to 16 bytes.

    python -m benchmarks.cpu.survey_moves --check
    python -m benchmarks.cpu.survey_moves --window-ms 3 --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import permutations
from math import prod

from benchmarks.cpu.family_rows import SAME, each, made
from benchmarks.cpu.nest import Nest, main

#: Rows and columns by the name of a size.
_SIZES = {"small": (9, 13), "medium": (307, 331), "large": (3001, 3307)}
#: Texts of programs of one array, of which all or all but PyTorch's are the same.
_SAME_TEXTS = (
    "xp.stack([x, x], 0)", "xp.stack([x, x], -1)", "xp.stack([x, x, x, x], 1)",
    "xp.tile(x, (3, 1))", "xp.tile(x, (1, 3))",
    "xp.tile(x, (2, 3))", "xp.roll(x, 3, 0)", "xp.roll(x, 3, 1)", "xp.roll(x, (3, -2), (0, 1))",
    "xp.tril(x)", "xp.triu(x, 2)", "xp.where(x[:, :1] > 0, x, 0)", "xp.where(x[0] > 0, x, -x)",
)  # fmt: skip
#: Views that are copied.
_VIEWS = (
    "x.T",
    "x[::2]",
    "x[:, ::2]",
    "x[1::3, ::2]",
    "x[1:-1, 1:-1]",
    "xp.diagonal(x)",
    "xp.rot90(x)",
    "xp.rot90(x, 2)",
)
_OTHER_TEXTS = (
    ("xp.concatenate([x, x], 0)", "torch.cat([x, x], 0)"),
    ("xp.concatenate([x, x], 1)", "torch.cat([x, x], 1)"),
    ("xp.concatenate([x[:, 3:], x, x[:, :5]], 1)", "torch.cat([x[:, 3:], x, x[:, :5]], 1)"),
    ("xp.concatenate([x + 1, x * 2], 1)", "torch.cat([x + 1, x * 2], 1)"),
    ("xp.pad(x, ((1, 1), (1, 1)))", "F.pad(x, (1, 1, 1, 1))"),
    ("xp.pad(x + 1, ((2, 1), (3, 2)))", "F.pad(x + 1, (3, 2, 2, 1))"),
    ("xp.flip(x, 0)", "torch.flip(x, (0,))"), ("xp.flip(x, 1)", "torch.flip(x, (1,))"),
    ("xp.flip(x, (0, 1))", "torch.flip(x, (0, 1))"),
    ("xp.repeat(x, 3, 0)", "torch.repeat_interleave(x, 3, 0)"),
    ("xp.repeat(x, 3, 1)", "torch.repeat_interleave(x, 3, 1)"),
    ("xp.diff(x, axis=0)", "torch.diff(x, dim=0)"), ("xp.diff(x, axis=1)", "torch.diff(x, dim=1)"),
)  # fmt: skip


def rows() -> Iterator[Nest]:
    """All rows."""
    for size, shape in _SIZES.items():
        yield from _of_one(size, shape, "float32")
        yield from _indexed(size, shape)
    for dtype in ("int8", "bfloat16", "float64", "complex128"):
        yield from _of_one("medium", _SIZES["medium"], dtype)
    for sizes in ((3, 5, 7), (41, 53, 61), (7, 11, 31, 43)):
        for dtype in ("int8", "float16", "float32", "float64", "complex128"):
            yield from _permuted(sizes, dtype)


def _of_one(size: str, shape: tuple[int, int], dtype: str) -> Iterator[Nest]:
    x, mark = made(*shape, dtype=dtype, low=-99), f"{size} {dtype}"
    known = None if dtype == "bfloat16" else SAME
    for text in _SAME_TEXTS:
        if "> 0" not in text or dtype != "complex128":
            yield each(f"{text} {mark}", (x,), (text, SAME, SAME, known))
    for text in _VIEWS:
        copied = None if known is None else f"np.array({text.replace('xp', 'np')}, order='C')"
        texts = (
            text,
            f"({text.replace('xp', 'torch')}).clone(memory_format=torch.contiguous_format)",
        )
        yield each(f"{text} {mark}", (x,), (*texts, SAME, copied))
    for text, theirs in _OTHER_TEXTS:
        own = (
            None
            if known is None
            else text.replace("xp.flip(", "np.copy(np.flip(") + ")" * ("xp.flip(" in text)
        )
        yield each(f"{text} {mark}", (x,), (text, theirs, SAME, own))
    yield each(
        f"set part {mark}",
        (x,),
        ("T.set_subtensor(x[1:-1, 2:-2], 5)", None, "x.at[1:-1, 2:-2].set(5)", None),
    )


def _indexed(size: str, shape: tuple[int, int]) -> Iterator[Nest]:
    rows, columns = shape
    n = prod(shape)
    x, line, flags = made(*shape), made(n), made(*shape, dtype="bool")
    some = {
        axis: made(shape[axis] // 2, dtype="int64", high=shape[axis]) for axis in range(2)
    }  # fmt: skip
    for axis in range(2):
        yield each(
            f"take {axis} {size}",
            (x, some[axis]),
            (f"xp.take(x, y, {axis})", f"torch.index_select(x, {axis}, y)", SAME, SAME),
        )
    along = {
        0: made(rows // 2, columns, dtype="int64", high=rows),
        1: made(rows, columns // 2, dtype="int64", high=columns),
    }
    for axis, places in along.items():
        yield each(
            f"take_along_axis {axis} {size}",
            (x, places),
            (f"xp.take_along_axis(x, y, {axis})", f"torch.gather(x, {axis}, y)", SAME, SAME),
        )
    put = made(rows, 2, dtype="int64", high=columns)
    yield each(
        f"put_along_axis 1 {size}",
        (x, put),
        (
            "xp.put_along_axis(x, y, 0, 1)",
            "torch.scatter(x, 1, y, 0)",
            "jnp.put_along_axis(x, y, 0, 1, inplace=False)",
            None,
        ),
    )
    yield each(f"mask {size}", (x, flags), ("x[y]", SAME, None, SAME))
    yield each(f"rows by mask {size}", (x, made(rows, dtype="bool")), ("x[y]", SAME, None, SAME))
    yield each(
        f"columns by mask {size}", (x, made(columns, dtype="bool")), ("x[:, y]", SAME, None, SAME)
    )
    yield each(
        f"nonzero {size}",
        (flags,),
        ("list(xp.nonzero(x))", "torch.nonzero(x, as_tuple=True)", None, "np.nonzero(x)"),
    )
    yield each(f"where of three {size}", (flags, x, x), ("xp.where(x, y, z)", SAME, SAME, SAME))
    yield each(
        f"mesh {size}",
        (made(columns), made(rows)),
        (
            "list(xp.meshgrid(x, y))",
            "[v.contiguous() for v in torch.meshgrid(x, y, indexing='xy')]",
            "jnp.meshgrid(x, y)",
            "np.meshgrid(x, y)",
        ),
    )
    edges = made(50, dtype="float32")
    yield each(
        f"searchsorted {size}",
        (edges, line),
        (
            "xp.searchsorted(xp.sort(x), y)",
            "torch.searchsorted(torch.sort(x)[0], y)",
            "jnp.searchsorted(jnp.sort(x), y)",
            SAME,
        ),
    )
    few = made(n, dtype="int64", high=40)
    if size != "large":
        yield each(f"unique {size}", (few,), ("xp.unique(x)", "torch.unique(x)", None, SAME))
    yield each(
        f"bincount {size}",
        (few,),
        (
            "xp.bincount(x, None, 40)",
            "torch.bincount(x, minlength=40)",
            "jnp.bincount(x, length=40)",
            "np.bincount(x, minlength=40)",
        ),
    )
    yield each(
        f"histogram {size}",
        (line,),
        ("xp.histogram(x, 30, (-3, 3))[0]", "torch.histc(x, 30, -3, 3)", SAME, SAME),
    )
    yield each(
        f"one-hot {size}",
        (made(rows, dtype="int64", high=columns),),
        (
            f"T.to_one_hot(x, {columns}, 'float32')",
            f"torch.nn.functional.one_hot(x, {columns}).to(torch.float32)",
            f"jax.nn.one_hot(x, {columns}, dtype='float32')",
            f"np.eye({columns}, dtype='float32')[x]",
        ),
    )
    a, b = {"small": ((3, 3), (4, 4)), "medium": ((17, 19), (23, 29)),
            "large": ((61, 53), (59, 57))}[size]  # fmt: skip
    yield each(f"kron {size}", (made(*a), made(*b)), ("xp.kron(x, y)", SAME, SAME, SAME))
    points = {"small": 12, "medium": 330, "large": 3000}[size]
    for dims in (2, 3):
        yield each(
            f"cdist {dims} {size}",
            (made(points, dims), made(points + 7, dims)),
            (
                "xp.sqrt(((x[:, None] - y) ** 2).sum(-1))",
                "torch.cdist(x, y)",
                "jnp.sqrt(((x[:, None] - y) ** 2).sum(-1))",
                None,
            ),
        )


def _permuted(shape: tuple[int, ...], dtype: str) -> Iterator[Nest]:
    x = made(*shape, dtype=dtype)
    for order in permutations(range(len(shape))):
        if list(order) != sorted(order):
            yield each(
                f"transpose {shape} {dtype} {order}",
                (x,),
                (
                    f"x.transpose({order})",
                    f"x.permute({order}).contiguous()",
                    f"x.transpose({order})",
                    f"np.array(x.transpose({order}), order='C')",
                ),
            )


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_moves"))
