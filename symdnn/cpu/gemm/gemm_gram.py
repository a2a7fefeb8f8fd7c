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
from symdnn.graph.kernel import Call
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.variable import Variable
from symdnn.ops.core.scalar import identity_program
from symdnn.ops.core.shape import DimShuffle

__all__ = ["GramLaunch", "is_gram"]

#: Fewest rows and terms, and multiplications in all: half of them are more than the copies.
_MIN_ROWS, _MIN_TERMS, _MIN_MULTIPLICATIONS = 128, 96, 1 << 22
#: The number of parts of the columns: more leave out more of the upper triangle, and each reads
#: the rows again.
_PARTS = 6


def is_gram(call: Call) -> bool:
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

    def __init__(self, call: Call, columns: int, product: Callable[[Call], Any]) -> None:
        super().__init__([*_parts(call, columns, product)])

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Multiply, then mirror."""
        super().__call__(inputs, outputs)


def _parts(call: Call, columns: int, product: Callable[[Call], Any]) -> Iterator[Part]:
    """A product for some columns, from the diagonal down, and a copy of what is below it."""
    rows, terms = call.inputs[0].shape
    width = -(-rows // (_PARTS * columns)) * columns
    for first in range(0, rows, width):
        last = min(first + width, rows)

        def sized(*shape: int) -> TensorType:
            return TensorType(call.outputs[0].dtype, shape)

        own = replace(
            call, inputs=(sized(rows - first, terms), sized(terms, last - first)),
            outputs=(sized(rows - first, last - first),), node=None,
        )  # fmt: skip
        reads = Viewed(0, lambda a, i=first: a[i:]), Viewed(1, lambda b, i=first, j=last: b[:, i:j])
        yield Part(product(own), reads, [Viewed(2, lambda c, i=first, j=last: c[i:, i:j])])
        if last < rows:
            copy = elementwise_launch(identity_program("float32"), (last - first, rows - last))
            below = Viewed(2, lambda c, i=first, j=last: c[j:, i:j].T)
            yield Part(copy, [below], [Viewed(2, lambda c, i=first, j=last: c[i:j, j:])])
