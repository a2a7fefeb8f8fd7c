"""Products of many small matrices in one elementwise pass: a thread for each element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, Views
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.graph.kernel import Call
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.linalg.dot import BatchedDot

#: A block of a matrix library has a tile of 32 by 32 or more for each product.
_MOST_SIDE, _FEWEST_PRODUCTS = 4, 4096


class SmallProductsKernel(CudaKernel[BatchedDot]):
    """Each element as a sum of a few products. It reads any strides."""

    name = "cuda.small_products"
    writes_any_layout = True

    def refuses(self, call: Call[BatchedDot]) -> str | None:
        """Long sums, and stacks that a matrix library multiplies in the same time."""
        if call.outputs[0].dtype not in ("float32", "float64"):
            return "it is for float32 and float64"
        if not call.has_sizes:
            return "it is for small matrices of known sizes"
        (_, rows, terms), (count, _, columns) = call.inputs[0].shape, call.outputs[0].shape
        if not 1 <= terms <= _MOST_SIDE or max(rows, columns) > _MOST_SIDE:
            return f"it is for matrices of up to {_MOST_SIDE} by {_MOST_SIDE}"
        if count < _FEWEST_PRODUCTS:
            return f"it is for {_FEWEST_PRODUCTS} products or more"
        return super().refuses(call)

    def launches(
        self, call: Call[BatchedDot], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel over all elements."""
        (x, y), whole = inputs, slice(None)
        terms = x.shape[2]
        columns = [x[whole, whole, t : t + 1] for t in range(terms)]
        rows = [y[whole, t : t + 1] for t in range(terms)]
        return elementwise(_sum_of_products(x.dtype, terms), [*columns, *rows], outputs)


@cache
def _sum_of_products(dtype: str, terms: int) -> ScalarProgram:
    builder = Builder((dtype,) * (2 * terms))
    total = builder.input(0) * builder.input(terms)
    for t in range(1, terms):
        total = total + builder.input(t) * builder.input(terms + t)
    return builder.program([total])
