"""Rows of :mod:`benchmarks.cpu.nest`: ops by dtypes by layouts that nobody tuned, and the classes
of booleans, joins, pads and stacks of small matrices.

    python -m benchmarks.cpu.survey_layouts --draw 60 --seed 1 --before TREE --window-ms 12
    python -m benchmarks.cpu.survey_layouts --only '^(bool|join|pad|stack)'
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu.nest import Nest, drawn, main, np
from benchmarks.cpu.survey import _whole
from benchmarks.cpu.survey_users import _array, _row
from benchmarks.cpu.survey_wide import graded, shape_text

#: Name -> (shape of the array, what is read of it).
_LAYOUTS = {
    "long": ((1000003,), "x"), "tall": ((20011, 7), "x"), "narrow.T": ((7, 20011), "x.T"),
    "cube": ((40, 60, 110), "x"), "cube turned": ((40, 60, 110), "xp.swapaxes(x, 0, 2)"),
    "cube middle": ((60, 40, 110), "xp.swapaxes(x, 0, 1)"),
    "sliced": ((1200, 411), "x[::2, 1:-1]"), "large": ((4000, 4000), "x"),
}  # fmt: skip
_DTYPES = ("float32", "float64", "int32", "int8", "bool", "bfloat16")
#: Name -> texts of ours, PyTorch, JAX and NumPy of ``v`` along axis ``a``.
_OPS: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "sum": ("{v}.sum({a})",) * 4,
    "max": ("{v}.max({a})", "{v}.amax({a})", "{v}.max({a})", "{v}.max({a})"),
    "argmax": ("{v}.argmax({a})", None, "{v}.argmax({a})", "{v}.argmax({a})"),
    "any": ("({v} > 1).any({a})",) * 4,
    "cumsum": ("xp.cumsum({v}, {a})",) * 4,
    "sort": ("xp.sort({v}, {a})", "torch.sort({v}, {a})[0]", "xp.sort({v}, {a})",
             "xp.sort({v}, {a})"),
    "argsort": ("xp.argsort({v}, {a})", "torch.argsort({v}, dim={a}, stable=True)",
                "xp.argsort({v}, {a})", "np.argsort({v}, {a}, kind='stable')"),
    "flip": ("xp.flip({v}, {a}) * 1", "torch.flip({v}, ({a},)) * 1", "xp.flip({v}, {a}) * 1",
             "xp.flip({v}, {a}) * 1"),
    "roll": ("xp.roll({v}, 3, {a})",) * 4,
    "half": ("xp.where({v} > 1, {v}, {v} * {v})",) * 4,
    "mean": ("{v}.mean({a})", None, "{v}.mean({a})", "{v}.mean({a})"),
    "middle": ("xp.expand_dims({v}, 1) * xp.expand_dims({v}, 0)[:, :3]",
               "torch.unsqueeze({v}, 1) * torch.unsqueeze({v}, 0)[:, :3]",
               "xp.expand_dims({v}, 1) * xp.expand_dims({v}, 0)[:, :3]",
               "xp.expand_dims({v}, 1) * xp.expand_dims({v}, 0)[:, :3]"),
    "take": ("{v}[::-1][:, 1:] + 1", "torch.flip({v}, (0,))[:, 1:] + 1", "{v}[::-1][:, 1:] + 1",
             "{v}[::-1][:, 1:] + 1"),
}  # fmt: skip


def rows() -> Iterator[Nest]:
    """All rows."""
    yield from _booleans()
    yield from _joins()
    yield from _pads()
    yield from _stacks()
    for name, texts in _OPS.items():
        for layout, (shape, read) in _LAYOUTS.items():
            for dtype in _DTYPES:
                yield from _along(name, texts, layout, shape, read, dtype)


def _along(
    name: str, texts: tuple[str | None, ...], layout: str, shape: tuple[int, ...], read: str,
    dtype: str,
) -> Iterator[Nest]:  # fmt: skip
    x = _whole(dtype, 0, 100, shape) if dtype in ("int32", "int8") else _array(shape, dtype)
    if len(shape) == 1 and name in ("take", "middle"):
        return
    for axis in {0, len(shape) - 1}:
        each = [t and t.format(v=f"({read})", a=axis) for t in texts]
        if dtype == "bfloat16":  # NumPy has none
            each[3] = None
        assert each[0] is not None
        yield _row(f"{name} {axis} {layout} {dtype}", (x,), each[0], *each[1:])


def _booleans() -> Iterator[Nest]:
    for shape in ((1000, 1000), (300, 1000), (100000,)):
        x, none = _array(shape, "bool"), lambda shape=shape: np.zeros(shape, bool)
        axis = len(shape) - 1
        for mark, array in (("half", x), ("none", none)):
            mark = f"{mark} {shape_text(shape)}"
            for op in ("any", "all", "argmax", "max"):
                for a in {str(axis), ""}:
                    theirs = f"x.int().{op}({a})" if op == "argmax" else f"x.{op}({a})"
                    theirs = theirs.replace(".max(", ".amax(")
                    yield _row(f"bool {op} ({a}) {mark}", (array,), f"x.{op}({a})", theirs)
            yield _row(f"bool count {mark}", (array,), "xp.count_nonzero(x)")


def _joins() -> Iterator[Nest]:
    for shape in ((1000, 1000), (300, 500)):
        x, y, mark = drawn(*shape), drawn(*shape, seed=1), shape_text(shape)
        for axis in (0, 1, 2):
            yield graded(_row(f"join stack {axis} {mark}", (x, y), f"xp.stack([x, y], {axis})"))
        for axis in (0, 1):
            yield graded(_row(
                f"join {axis} {mark}", (x, y), f"xp.tanh(xp.concatenate([x, y], {axis}))",
                f"torch.tanh(torch.cat([x, y], {axis}))",
            ))  # fmt: skip


def _pads() -> Iterator[Nest]:
    for shape in ((1000, 1000), (4, 16, 30, 30)):
        for mode, theirs in (("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")):
            widths = ((0, 0),) * (len(shape) - 2) + ((2, 2), (3, 3))
            lead = "[None]" if len(shape) == 2 else ""
            row = _row(
                f"pad {mode} {shape_text(shape)}", (drawn(*shape),),
                f"xp.pad(x, {widths}, mode='{mode}')", f"F.pad(x{lead}, (3, 3, 2, 2), '{theirs}')",
            )  # fmt: skip
            yield row
            yield graded(row)


def _definite(n: int, dtype: str) -> Callable[[], Any]:
    def make() -> Any:
        a = np.random.default_rng(0).normal(size=(2000, n, n))
        return (a @ a.swapaxes(1, 2) + n * np.eye(n)).astype(dtype)

    return make


def _stacks() -> Iterator[Nest]:
    for dtype in ("float32", "float64"):
        for n in (2, 3, 4, 6, 8, 12):
            x, y, mark = _definite(n, dtype), drawn(2000, n, 2, dtype=dtype), f"{dtype} 2000 of {n}"
            for name, end in (("inv", ""), ("det", ""), ("slogdet", "[1]"), ("cholesky", ""),
                              ("qr", "[1]"), ("eigh", "[0]")):  # fmt: skip
                row = _row(f"stack {name} {mark}", (x,), f"xp.linalg.{name}(x){end}")
                yield row
                if name == "inv":
                    yield graded(row)
            row = _row(f"stack solve {mark}", (x, y), "xp.linalg.solve(x, y)")
            yield row
            yield graded(row)


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_layouts"))
