"""Sizes of convolution layers: as they are printed, padding by side, chosen output sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.dims import Dim
from symdnn.graph.variable import Variable
from symdnn.nn.modules.arguments import sizes
from symdnn.ops.array.pad import pad
from symdnn.ops.core.shape import as_dim, shape_entries, static_dim


def torch_order(numbers: tuple[Any, ...], between: str = ",") -> str:
    """(T,) H, W as Torch7 prints it: (T,) W, H; a pair as before/after."""
    lead, last = numbers[:-2], numbers[-2:]
    shown = (*lead, *reversed(last))
    return between.join(f"{n[0]}/{n[1]}" if isinstance(n, tuple) else str(n) for n in shown)


def padding_of(what: str, given: tuple[int | None, ...], keyword: Any) -> Any:
    """An int for each axis, or a pair (before, after) for each, or ``"same"`` or ``"causal"``."""
    word = isinstance(keyword, str) and keyword in ("same", "causal")
    pairs = isinstance(keyword, list | tuple) and any(np.ndim(p) == 1 for p in keyword)
    if not word and not pairs:
        return sizes(what, len(given), given, keyword, 0)
    if any(v is not None for v in given):
        raise InputError(f"{what}: wanted it by position or by keyword, got both")
    if word:
        return keyword
    if len(keyword) != len(given):
        raise InputError(f"{what}: wanted {len(given)} ints or pairs of ints, got {keyword!r}")
    return tuple(sizes(what, 2, (None, None), p) for p in keyword)


def chosen_sizes(
    what: str, least: Sequence[Dim], stride: Sequence[int], output_size: Any, more: int
) -> list[Dim]:
    """The sizes ``output_size`` of a transposed convolution, each from ``least`` to the stride
    above it; ``more`` entries before them may be given, too.

    Raises :class:`~symdnn.errors.InputError` for others, where they are known.
    """
    entries, n = shape_entries(output_size), len(least)
    if not n <= len(entries) <= n + more:
        whole = ", or the whole shape" * bool(more)
        raise InputError(
            f"{what}: {len(entries)} sizes in output_size; wanted {n}, one for each axis{whole}"
        )
    chosen: list[Dim] = []
    for low, step, entry in zip(least, stride, entries[-n:], strict=True):
        dim = as_dim(entry)
        size = static_dim(dim)
        chosen.append(dim if size is None else size)
        if size is not None and isinstance(low, int) and not low <= size < low + step:
            raise InputError(
                f"{what}: {size} in output_size; wanted {low} to {low + step - 1}, by the size of "
                f"the input and a stride of {step}"
            )
    return chosen


def check_output_padding(
    what: str, extra: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> None:
    """Raise :class:`~symdnn.errors.InputError` for one at least as large as stride and dilation."""
    if not all(0 <= a < max(s, d) for a, s, d in zip(extra, stride, dilation, strict=True)):
        raise InputError(
            f"{what}: output_padding (adj) must be smaller than the stride or the dilation, got "
            f"{tuple(extra)} with stride {tuple(stride)}"
        )


def output_padded(x: Variable, extra: Sequence[int], stride: Sequence[int]) -> Variable:
    """``x`` (N, C, positions...) with a zero behind it for each whole stride in ``extra``.

    The last window of a transposed convolution reaches less than a stride further than without
    output padding. More may be asked for where the dilation is larger than the stride.
    """
    more = [(0, a // s) for a, s in zip(extra, stride, strict=True)]
    return pad(x, [(0, 0), (0, 0), *more]) if any(n for _, n in more) else x
