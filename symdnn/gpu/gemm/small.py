"""Products of many small matrices in one elementwise pass: a thread for each element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, Views
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.graph.kernel import Call
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.vendor.gpublas import FEWEST_SMALL_PRODUCTS, MOST_SMALL_SIDE

#: A block of a matrix library has a tile of 32 by 32 or more for each product.
_FEWEST_ROWS = FEWEST_SMALL_PRODUCTS * MOST_SMALL_SIDE


class SmallProductsKernel(CudaKernel[BatchedDot | Dot]):
    """Each element as a sum of a few products. It reads any strides."""

    name = "cuda.small_products"
    writes_any_layout = True

    def refuses(self, call: Call[BatchedDot | Dot]) -> str | None:
        """Long sums, and products that a matrix library computes in the same time."""
        if call.outputs[0].dtype not in ("float32", "float64"):
            return "it is for float32 and float64"
        if not call.has_sizes or call.outputs[0].ndim < 2:
            return "it is for small matrices of known sizes"
        *count, rows, columns = call.outputs[0].shape
        terms = call.inputs[0].shape[-1]
        if not 1 <= terms <= MOST_SMALL_SIDE or columns > MOST_SMALL_SIDE:
            return f"it is for matrices of up to {MOST_SMALL_SIDE} by {MOST_SMALL_SIDE}"
        if not count:
            return None if rows >= _FEWEST_ROWS else f"it is for {_FEWEST_ROWS} rows or more"
        if rows > MOST_SMALL_SIDE:
            return f"it is for matrices of up to {MOST_SMALL_SIDE} by {MOST_SMALL_SIDE}"
        if count[0] < FEWEST_SMALL_PRODUCTS:
            return f"it is for {FEWEST_SMALL_PRODUCTS} products or more"
        return super().refuses(call)

    def launches(
        self, call: Call[BatchedDot | Dot], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel over all elements."""
        x, y = inputs
        terms, lead = x.shape[-1], (slice(None),) * (len(x.shape) - 2)
        columns = [x[(*lead, slice(None), slice(t, t + 1))] for t in range(terms)]
        rows = [y[(*lead, slice(t, t + 1))] for t in range(terms)]
        return elementwise(_sum_of_products(x.dtype, terms), [*columns, *rows], outputs)


@cache
def _sum_of_products(dtype: str, terms: int) -> ScalarProgram:
    builder = Builder((dtype,) * (2 * terms))
    total = builder.input(0) * builder.input(terms)
    for t in range(1, terms):
        total = total + builder.input(t) * builder.input(terms + t)
    return builder.program([total])
