"""PyTorch's Upsample: other numbers of positions, by the nearest, or by linear or cubic curves."""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np

from symdnn.errors import InputError, OptionError, TypeMismatch, UnknownWord
from symdnn.graph.variable import Variable
from symdnn.nn.layers.adaptive_pooling import adaptive_averages
from symdnn.nn.modules.arguments import tensor_input
from symdnn.nn.modules.module import Module
from symdnn.ops.core.shape import dims_of, shape_entries
from symdnn.ops.nn.upsample import interpolate, smoothed

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]

#: The numbers of axes of positions that a mode takes, and its name in one dimension.
_MODES = {
    "nearest": ((1, 2, 3), "nearest"), "nearest-exact": ((1, 2, 3), "nearest-exact"),
    "linear": ((1,), "linear"), "bilinear": ((2,), "linear"), "trilinear": ((3,), "linear"),
    "bicubic": ((2,), "cubic"), "area": ((1, 2, 3), "area"),
}  # fmt: skip


class Upsample(Module):
    """(N, C, positions...) with ``size`` positions, or ``scale_factor`` times as many.

    Each is a number, or a tuple in the order of the axes; one of them is given, and sizes may be
    those of a variable, ``y.shape[2:]``. ``mode`` is
    "nearest", "nearest-exact", "area" (adaptive averages), "linear" (3 dimensions), "bilinear",
    "bicubic" (4) or "trilinear" (5). ``align_corners`` of the latter four puts the first and last
    elements of input and output above each other; otherwise (None, False) their outer edges are.
    Steps between positions are ``1 / scale_factor``, with ``recompute_scale_factor`` the quotient
    of the sizes. ``antialias``, of "bilinear" and "bicubic", takes averages of what lies around an
    element where there are fewer than before. (PyTorch's.)

    Raises :class:`~symdnn.errors.InputError`, and :class:`~symdnn.errors.TypeMismatch` for an input
    of another number of dimensions.

    >>> Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    nn.Upsample(scale_factor=2, bilinear, align_corners)
    """

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
        align_corners: bool | None = None, recompute_scale_factor: bool | None = None, *,
        antialias: bool = False,
    ) -> None:  # fmt: skip
        if mode not in _MODES:
            raise UnknownWord(f"Upsample: mode={mode!r}; wanted one of {', '.join(_MODES)}")
        if (size is None) == (scale_factor is None):
            raise InputError("Upsample: wanted one of size and scale_factor")
        if align_corners is not None and ("nearest" in mode or mode == "area"):
            raise InputError(f"Upsample: align_corners is of linear and cubic modes, not {mode!r}")
        if antialias and mode not in ("bilinear", "bicubic"):
            raise OptionError(f"Upsample: antialias is of bilinear and bicubic, not {mode!r}")
        self.antialias = bool(antialias)
        self.size = None if size is None else _numbers("size", size, whole=True)
        self.scale_factor = None
        if scale_factor is not None:
            self.scale_factor = _numbers("scale_factor", scale_factor, whole=False)
        self.mode, self.align_corners = mode, bool(align_corners)
        self.recompute_scale_factor = bool(recompute_scale_factor)

    def forward(self, x: Variable) -> Variable:
        counts, kind = _MODES[self.mode]
        wanted = f"a float tensor (N, C, {' or '.join(map(str, counts))} axes of positions)"
        tensor_input(self, x, wanted, *(n + 2 for n in counts))
        old = dims_of(x)[2:]
        given = self.size or self.scale_factor or ()
        if len(given) not in (1, len(old)):
            raise TypeMismatch(type(self).__name__, f"{len(given)} axes of positions", x.type)
        each = given * len(old) if len(given) == 1 else given
        if kind == "area":
            new = each if self.size is not None else [_times(n, s) for n, s in zip(old, each)]
            return adaptive_averages(x, new)
        resized = smoothed if self.antialias else interpolate
        if self.size is not None:
            return resized(x, each, [None] * len(old), kind, self.align_corners)
        new = [_times(n, s) for n, s in zip(old, each, strict=True)]
        ratios = [None if self.recompute_scale_factor else 1 / s for s in each]
        return resized(x, new, ratios, kind, self.align_corners)

    def describe(self) -> str:
        name = "size" if self.size is not None else "scale_factor"
        given = self.size or self.scale_factor or ()
        shown = ", ".join(str(n) if isinstance(n, Variable) else f"{n:g}" for n in given)
        corners = ", align_corners" if self.align_corners else ""
        corners += ", antialias" if self.antialias else ""
        return f"({name}={shown if len(given) == 1 else f'({shown})'}, {self.mode}{corners})"


class UpsamplingNearest2d(Upsample):
    """:class:`Upsample` of images by the nearest pixel."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """:class:`Upsample` of images by "bilinear" with ``align_corners=True``."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


def _numbers(name: str, given: Any, whole: bool) -> tuple[Any, ...]:
    entries = tuple(given) if isinstance(given, list | tuple) else (given,)
    if whole and any(isinstance(e, Variable) for e in entries):
        return tuple(shape_entries(given))
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    fits = all(isinstance(e, kinds) and not isinstance(e, bool) and e > 0 for e in entries)
    if not entries or not fits or any(e != e for e in entries):
        wanted = "ints, 1 or more, or sizes of a variable" if whole else "numbers above 0"
        raise InputError(f"Upsample: {name}={given!r:.60}; wanted {wanted}")
    return tuple(int(e) if whole else float(e) for e in entries)


def _times(n: Any, scale: float) -> Any:
    """``floor(n * scale)``."""
    if isinstance(n, int):
        return floor(n * scale)
    if scale == int(scale):
        return n * int(scale)
    return (n.astype("float64") * scale).astype("int64")
