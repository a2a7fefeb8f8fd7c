"""Methods of a variable that reduce, accumulate and sort along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.operators import apply
from symdnn.graph.typing import AxisLike, DtypeLike, TensorLike

if TYPE_CHECKING:
    from symdnn.graph.variable import Variable


class ReductionMethods:
    """``x.sum(axis)`` and its kin, with NumPy's arguments or PyTorch's keywords."""

    __slots__ = ()

    @torch_words()
    def sum(
        self, axis: AxisLike = None, dtype: DtypeLike | None = None, keepdims: bool = False,
        acc_dtype: DtypeLike | None = None, *, initial: TensorLike | None = None,
        where: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Sum over ``axis`` (all when None)."""
        return apply("sum", self, axis, dtype, keepdims, acc_dtype, initial=initial, where=where)

    @torch_words()
    def prod(
        self, axis: AxisLike = None, dtype: DtypeLike | None = None, keepdims: bool = False,
        acc_dtype: DtypeLike | None = None, *, initial: TensorLike | None = None,
        where: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Product over ``axis``."""
        return apply("prod", self, axis, dtype, keepdims, acc_dtype, initial=initial, where=where)

    @torch_words()
    def mean(
        self, axis: AxisLike = None, dtype: DtypeLike | None = None, keepdims: bool = False,
        acc_dtype: DtypeLike | None = None, *,
        where: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Mean over ``axis``."""
        return apply("mean", self, axis, dtype, keepdims=keepdims, acc_dtype=acc_dtype, where=where)

    @torch_words("var", "unbiased", "correction")
    def var(
        self, axis: AxisLike = None, ddof: int = 0, keepdims: bool = False, corrected: bool = False
    ) -> Variable:
        """Variance over ``axis``."""
        return apply("var", self, axis, ddof, keepdims, corrected)

    @torch_words("std", "unbiased", "correction")
    def std(
        self, axis: AxisLike = None, ddof: int = 0, keepdims: bool = False, corrected: bool = False
    ) -> Variable:
        """Standard deviation over ``axis``."""
        return apply("std", self, axis, ddof, keepdims, corrected)

    @torch_words("max")
    def max(
        self, axis: AxisLike = None, keepdims: bool = False, *, initial: TensorLike | None = None,
        where: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Largest element over ``axis``."""
        return apply("max", self, axis, keepdims, initial=initial, where=where)

    @torch_words("min")
    def min(
        self, axis: AxisLike = None, keepdims: bool = False, *, initial: TensorLike | None = None,
        where: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Smallest element over ``axis``."""
        return apply("min", self, axis, keepdims, initial=initial, where=where)

    @torch_words()
    def argmax(self, axis: AxisLike = None, keepdims: bool = False) -> Variable:
        """Index of the largest element over ``axis``."""
        return apply("argmax", self, axis, keepdims)

    @torch_words()
    def argmin(self, axis: AxisLike = None, keepdims: bool = False) -> Variable:
        """Index of the smallest element over ``axis``."""
        return apply("argmin", self, axis, keepdims)

    def ptp(self, axis: AxisLike = None, keepdims: bool = False) -> Variable:
        """Largest minus smallest element over ``axis``."""
        return apply("ptp", self, axis, keepdims)

    @torch_words()
    def all(
        self, axis: AxisLike = None, keepdims: bool = False, *, where: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Whether all elements over ``axis`` are true."""
        return apply("all", self, axis, keepdims, where=where)

    @torch_words()
    def any(
        self, axis: AxisLike = None, keepdims: bool = False, *, where: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Whether any element over ``axis`` is true."""
        return apply("any", self, axis, keepdims, where=where)

    @torch_words()
    def norm(self, L: object = 2, axis: AxisLike = None, keepdims: bool = False) -> Variable:
        """The L-norm over ``axis``."""
        return apply("norm", self, L, axis, keepdims)

    @torch_words()
    def cumsum(self, axis: int | None = None) -> Variable:
        """Running sum along ``axis``."""
        return apply("cumsum", self, axis)

    @torch_words()
    def cumprod(self, axis: int | None = None) -> Variable:
        """Running product along ``axis``."""
        return apply("cumprod", self, axis)

    @torch_words("sort", "descending", "stable")
    def sort(self, axis: int = -1, kind: str = "quicksort", order: object = None) -> Variable:
        """Sorted along ``axis``."""
        return apply("sort", self, axis, kind, order)

    @torch_words("argsort", "descending", "stable")
    def argsort(self, axis: int = -1, kind: str = "quicksort", order: object = None) -> Variable:
        """Indices that sort along ``axis``."""
        return apply("argsort", self, axis, kind, order)
