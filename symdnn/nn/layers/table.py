"""Tables: lists of variables joined, chosen from, and combined element by element.

Dimensions and entries count from 0 (Torch7: from 1).
"""

from __future__ import annotations

from typing import Any, ClassVar

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.variable import Variable, constant
from symdnn.nn.layers.containers import _table
from symdnn.nn.layers.shaping import _Along
from symdnn.nn.modules.arguments import tensor_input
from symdnn.nn.modules.module import Module
from symdnn.ops.array.join import concatenate, stack
from symdnn.ops.array.take import take
from symdnn.ops.elementwise import arithmetic
from symdnn.ops.elementwise.arithmetic import cast, sqr, sqrt
from symdnn.ops.linalg.dot import matmul
from symdnn.ops.torch_names.torch_arrays import masked_select

__all__ = [
    "CAddTable", "CAveTable", "CDivTable", "CMaxTable", "CMinTable", "CMulTable", "CSubTable",
    "CosineDistance", "DotProduct", "FlattenTable", "Index", "JoinTable", "MM", "MV",
    "MaskedSelect", "MixtureTable", "NarrowTable", "SelectTable", "SplitTable", "ZipTable",
    "ZipTableOneToMany",
]  # fmt: skip


class _Combined(Module):
    """One elementwise function over the entries of a table, from the first to the last."""

    function: ClassVar[Any]
    #: How many entries there may be; None: any number.
    entries: ClassVar[int | None] = None

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = bool(inplace)  # the memory plan decides

    def forward(self, *tables: Any) -> Any:
        given = _table(self, tables)
        if self.entries not in (None, len(given)):
            raise TypeMismatch(type(self).__name__, f"a table of {self.entries}", given)
        total = given[0]
        for v in given[1:]:
            total = type(self).function(total, v)
        return total


class CAddTable(_Combined):
    """The sum of all entries of a table."""

    function = staticmethod(arithmetic.add)


class CMulTable(_Combined):
    """The product, element by element, of all entries of a table."""

    function = staticmethod(arithmetic.mul)


class CSubTable(_Combined):
    """The first entry of a table minus the second."""

    function = staticmethod(arithmetic.sub)
    entries = 2


class CDivTable(_Combined):
    """The first entry of a table divided by the second."""

    function = staticmethod(arithmetic.true_div)
    entries = 2


class CMaxTable(_Combined):
    """The largest of the entries of a table, element by element."""

    function = staticmethod(arithmetic.maximum)


class CMinTable(_Combined):
    """The smallest of the entries of a table, element by element."""

    function = staticmethod(arithmetic.minimum)


class CAveTable(CAddTable):
    """The mean, element by element, of all entries of a table."""

    def forward(self, *tables: Any) -> Any:
        total = super().forward(*tables)
        return total * constant(1 / len(_table(self, tables)), dtype=total.type.dtype)


class ZipTable(Module):
    """A table of tables of one length: the table of their first entries, of their second, ..."""

    def forward(self, *tables: Any) -> list[Any]:
        given = _table(self, tables)
        lengths = {len(t) if isinstance(t, list) else 0 for t in given}
        if len(lengths) > 1 or 0 in lengths:
            raise TypeMismatch("ZipTable", "a table of tables of one length", given)
        return [list(entries) for entries in zip(*given, strict=True)]


class ZipTableOneToMany(Module):
    """A table of a variable and a table: pairs of the variable and each entry of the table."""

    def forward(self, *tables: Any) -> list[Any]:
        given = _table(self, tables, 2)
        if not isinstance(given[1], list):
            raise TypeMismatch("ZipTableOneToMany", "a table of a variable and a table", given)
        return [[given[0], entry] for entry in given[1]]


class MM(Module):
    """The matrix product of a table of two, batches of matrices too; each may be transposed."""

    def __init__(self, transA: bool = False, transB: bool = False) -> None:
        self.transA, self.transB = bool(transA), bool(transB)

    def forward(self, *tables: Any) -> Variable:
        given = _table(self, tables, None)
        if len(given) != 2:
            raise TypeMismatch("MM", "a table of two", given)
        for v in given:
            tensor_input(self, v, "a table of two matrices, or of two batches of them", 2, 3)
        turned = (self.transA, self.transB)
        a, b = (v.swapaxes(-1, -2) if t else v for v, t in zip(given, turned, strict=True))
        return matmul(a, b)


class JoinTable(Module):
    """All entries of a table, joined along the axis ``dimension`` (from 0).

    ``nInputDims`` is the number of dimensions without a batch: an input with one more is joined
    along ``dimension + 1``.
    """

    _shown = "{0.dimension}"

    def __init__(self, dimension: int, nInputDims: int | None = None) -> None:
        self.dimension, self.nInputDims = int(dimension), nInputDims

    def forward(self, *tables: Any) -> Any:
        given = _table(self, tables)
        return concatenate(given, axis=_axis(self, given[0], self.dimension, self.nInputDims))


class SplitTable(Module):
    """The slices along the axis ``dimension`` (from 0) as a table; its size must be known.

    ``nInputDims`` as in :class:`JoinTable`.
    """

    _shown = "{0.dimension}"

    def __init__(self, dimension: int, nInputDims: int | None = None) -> None:
        self.dimension, self.nInputDims = int(dimension), nInputDims

    def forward(self, x: Variable) -> list[Variable]:
        tensor_input(self, x, "a tensor", any_dtype=True)
        axis = _axis(self, x, self.dimension, self.nInputDims)
        size = x.type.shape[axis]
        if size is None:
            wanted = f"a tensor whose size on axis {axis} is known"
            raise TypeMismatch("SplitTable", wanted, x.type, "Use T.specify_shape")
        lead = (slice(None),) * axis
        return [x[(*lead, i)] for i in range(size)]


def _axis(module: Module, x: Any, dimension: int, ndim: int | None) -> int:
    """The axis of ``x``, one further where it has a batch in front."""
    axis = dimension % (ndim or x.type.ndim) if dimension < 0 else dimension
    if ndim is not None and x.type.ndim == ndim + 1:
        axis += 1
    if axis >= x.type.ndim:
        raise TypeMismatch(type(module).__name__, f"tensors with an axis {axis}", x.type)
    return axis


class SelectTable(Module):
    """The entry ``index`` (from 0; negative ones from the end) of a table."""

    _shown = "{0.index}"

    def __init__(self, index: int) -> None:
        self.index = int(index)

    def forward(self, *tables: Any) -> Any:
        given = _table(self, tables)
        if not -len(given) <= self.index < len(given):
            raise InputError(f"SelectTable({self.index}): the table has {len(given)} entries")
        return given[self.index]


class NarrowTable(Module):
    """``length`` entries of a table, from ``offset`` (from 0) on."""

    def __init__(self, offset: int, length: int = 1) -> None:
        self.offset, self.length = int(offset), int(length)

    def forward(self, *tables: Any) -> list[Variable | None]:
        given = _table(self, tables)
        if not 0 <= self.offset <= self.offset + self.length <= len(given):
            raise InputError(
                f"NarrowTable({self.offset}, {self.length}): the table has {len(given)} entries"
            )
        return given[self.offset : self.offset + self.length]


class FlattenTable(Module):
    """A table of tables as one table."""

    def forward(self, *tables: Any) -> list[Any]:
        return _flat(_table(self, tables))


def _flat(table: list[Any]) -> list[Variable]:
    return [v for entry in table for v in (_flat(entry) if isinstance(entry, list) else [entry])]


# -- of two --------------------------------------------------------------------------------------


def _two(module: Module, tables: tuple[Any, ...], *ndims: int) -> list[Variable]:
    given = _table(module, tables)
    if len(given) != 2:
        raise TypeMismatch(type(module).__name__, "a table of two", given)
    for v in given:
        tensor_input(module, v, "a table of two float tensors", *ndims)
    return given


class DotProduct(Module):
    """The dot products of the rows of a table of two: (batch, size) or (size,) each."""

    def forward(self, *tables: Any) -> Variable:
        a, b = _two(self, tables, 1, 2)
        found: Variable = (a * b).sum(axis=-1)
        return found


class CosineDistance(Module):
    """The cosines between the rows of a table of two; 1 where they have one direction."""

    def forward(self, *tables: Any) -> Variable:
        a, b = _two(self, tables, 1, 2)
        least = constant(1e-12, dtype=a.type.dtype)
        lengths = [sqrt(sqr(v).sum(axis=-1) + least) for v in (a, b)]
        found: Variable = (a * b).sum(axis=-1) / (lengths[0] * lengths[1])
        return found


class MV(Module):
    """The product of a table of a matrix and a vector, or of batches of them."""

    def __init__(self, trans: bool = False) -> None:
        self.trans = bool(trans)

    def forward(self, *tables: Any) -> Variable:
        m, v = _two(self, tables, 1, 2, 3)
        if m.type.ndim != v.type.ndim + 1:
            raise TypeMismatch("MV", "a table of a matrix and a vector, or of batches", [m, v])
        matrix = m.swapaxes(-1, -2) if self.trans else m
        return matmul(matrix, v.dimshuffle(*range(v.type.ndim), "x"))[..., 0]


class MixtureTable(Module):
    """The sum of experts weighted by a gater: a table of (batch, experts) and of the experts.

    The experts are a table of tensors (batch, ...), or one tensor with them along the axis ``dim``
    (1). Without a batch the gater is (experts,), and the axis 0.
    """

    def __init__(self, dim: int | None = None) -> None:
        self.dim = dim

    def forward(self, *tables: Any) -> Variable:
        gater, experts = _table(self, tables, 2)
        tensor_input(self, gater, "a gater (batch, experts) or (experts,)", 1, 2)
        lead = gater.type.ndim - 1
        if isinstance(experts, list):
            whole = stack(experts, axis=lead)
        else:
            whole = experts.swapaxes(lead, lead if self.dim is None else self.dim)
        gates = gater.dimshuffle(*range(lead + 1), *["x"] * (whole.type.ndim - lead - 1))
        found: Variable = (whole * gates).sum(axis=lead)
        return found


class MaskedSelect(Module):
    """The elements of a table of a tensor and a mask where that is true, as a vector."""

    def forward(self, *tables: Any) -> Variable:
        x, mask = _table(self, tables, 2)
        return masked_select(x, cast(mask, "bool"))


class Index(_Along):
    """Slices along the axis ``dimension`` of a table of a tensor and their numbers (from 0)."""

    _shown = "{0.dim}"

    def __init__(self, dimension: int) -> None:
        self.dim = int(dimension)

    def forward(self, *tables: Any) -> Variable:
        x, index = _table(self, tables, 2)
        return take(x, cast(index, "int64"), axis=self._axis(x))
