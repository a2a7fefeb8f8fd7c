"""Products of a matrix and its own transpose: columns of the lower triangle, then their mirror.

An element has the same terms in the same order as its mirror image, so bits are those of the whole
product. BLAS has ``syrk`` for this; one core with AVX-512 takes 0.58 ms for 200 rows of 1000
terms (a whole product 0.83), 13 ms for 1000 rows (21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.graph.kernel import Call, sized
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.variable import Variable
from symdnn.ops.core.scalar import identity_program
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.vendor.onednn import OneDnnMatmul

#: Fewest rows and terms, and multiplications in all: half of them are more than the copies.
_MIN_ROWS, _MIN_TERMS, _MIN_MULTIPLICATIONS = 128, 96, 1 << 22
#: The number of parts of the columns: more leave out more of the upper triangle, and each reads
#: the rows again.
_PARTS = 6


def is_gram(call: Call[OneDnnMatmul]) -> bool:
    """Whether a product of two matrices is one with its own transpose, and large."""
    if call.node is None or len(call.inputs) != 2 or call.op.activation:
        return False
    a, b = call.node.inputs
    (rows, *terms), (*_, columns) = call.inputs[0].shape, call.inputs[1].shape
    if len(terms) != 1 or not (_is_turned(a, b) or _is_turned(b, a)) or rows != columns:
        return False
    many = rows * rows * terms[0] >= _MIN_MULTIPLICATIONS
    return many and rows >= _MIN_ROWS and terms[0] >= _MIN_TERMS


def _is_turned(a: Variable, b: Variable) -> bool:
    """Whether ``b`` is the transpose of ``a``."""
    node = b.owner
    return node is not None and node.op == DimShuffle((1, 0)) and node.inputs[0] is a


class GramLaunch(SeriesLaunch):
    """``launch((a, a.T), (c,))``; ``product`` makes the launch of a part, a whole product."""

    def __init__(
        self, call: Call[OneDnnMatmul], columns: int, product: Callable[[Call], Any]
    ) -> None:
        super().__init__([*_parts(call, columns, product)])

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Multiply, then mirror."""
        super().__call__(inputs, outputs)


def _parts(
    call: Call[OneDnnMatmul], columns: int, product: Callable[[Call], Any]
) -> Iterator[Part]:
    """A product for some columns, from the diagonal down, and a copy of what is below it."""
    rows, terms = call.inputs[0].shape
    width = -(-rows // (_PARTS * columns)) * columns
    for first in range(0, rows, width):
        last = min(first + width, rows)

        given = (rows - first, terms), (terms, last - first), (rows - first, last - first)
        a, b, c = sized(*(TensorType("float32", shape) for shape in given))
        own = replace(call, inputs=(a, b), outputs=(c,), node=None)
        below, own_columns, rest = slice(first, None), slice(first, last), slice(last, None)
        reads = [_part(0, below), _part(1, slice(None), own_columns)]
        yield Part(product(own), reads, [_part(2, below, own_columns)])
        if last < rows:
            copy = elementwise_launch(identity_program("float32"), (last - first, rows - last))
            yield Part(copy, [_part(2, rest, own_columns, True)], [_part(2, own_columns, rest)])


def _part(at: int, rows: slice, columns: slice = slice(None), turned: bool = False) -> Viewed:
    """These rows and columns of operand ``at``."""

    def view(a: Array) -> Array:
        found: Array = a[rows, columns]
        return found.T if turned else found

    return Viewed(at, view)
