"""Small matrix products by compiled tiles: what oneDNN takes longer to begin than to do.

Two cores with AVX-512, called from compiled code: a product of 16 by 16 matrices takes 0.11 us,
oneDNN's 0.42; of 32 by 32 0.37 and 2.1, of 48 by 48 1.6 and 2.5, of 64 by 64 2.9 and 3.2, of 80 by
80 6.8 and 7.1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.cpu import jit
from symdnn.cpu.native import Native
from symdnn.cpu.onednn_matmul import MatmulKernel
from symdnn.cpu.product_ir import WORDS, product_ir, tile_shape
from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.onednn import OneDnnMatmul

__all__ = ["ProductKernel", "register"]

#: Products of so many multiplications and more are oneDNN's, tiles counted in full.
_MOST_WORK = 1 << 18
_Words = ctypes.c_int64


class ProductKernel:
    """Products of small float32 matrices, and of stacks of them."""

    name = "llvm.product"

    def refuses(self, call: Call) -> str | None:
        """Takes float32, a bias at most behind the product, and little to do."""
        op: Any = call.op
        types: Any = (*call.inputs, *call.outputs)
        if op.residual or op.activation:
            return "nothing but a bias can follow it"
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if str(config.cpu.compile) == "never":
            return "cpu.compile=never"
        if problem := jit.problem():
            return problem
        if all(t.is_static for t in types):
            if any(0 in t.shape for t in types):
                return "it is empty"
            if not 2 <= types[0].ndim == types[1].ndim <= 3:
                return "it multiplies matrices, or stacks of them"
            if _work(types[0].shape, types[1].shape[-1]) >= _MOST_WORK:
                return "oneDNN is as fast for so much work"
        return None

    def workspace_bytes(self, call: Call) -> int:
        """None."""
        return 0

    def bind(self, call: Call) -> Any:
        """A launch; where the second operand lies transposed it is oneDNN's."""
        return _Launcher(call)


def _work(a: Sequence[int], n: int) -> int:
    """Multiplications of a product, of tiles that are not full too."""
    many, few, columns = tile_shape(jit.vector_width())
    rows = few if a[-2] <= few else many
    return prod(a[:-2]) * (-(-a[-2] // rows) * rows) * a[-1] * (-(-n // columns) * columns)


@cache
def _compiled(biased: bool) -> Any:
    return jit.compile_made(product_ir, (jit.vector_width(), biased), "kernel", ctypes.c_void_p)


class _Launcher:
    """``launch(inputs, outputs)``: blocks of parameters are kept by the operands' strides."""

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        self._call, self._biased = call, op.bias
        self._run = _compiled(op.bias)
        self._blocks: dict[Any, Any] = {}
        self._other: Any = None

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Multiply, add the bias."""
        arrays = (*inputs, *outputs)
        words = self._words(arrays)
        if words is None:
            if self._other is None:
                self._other = MatmulKernel().bind(self._call)
            self._other(inputs, outputs)
            return
        for at, a in zip(self._at(), arrays):
            words[at] = id(a)
        self._run(words)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands that lie as these do."""
        words = self._words((*inputs, *outputs))
        if words is None:
            if self._other is None:
                self._other = MatmulKernel().bind(self._call)
            found: Native | None = self._other.native(inputs, outputs)
            return found
        return Native.of(self._run, words, self._at())

    def _at(self) -> tuple[int, ...]:
        names = ("a", "b", "bias", "c") if self._biased else ("a", "b", "c")
        return tuple(map(WORDS.index, names))

    def _words(self, arrays: Sequence[Any]) -> Any:
        """The block for operands of these strides; None where the kernel cannot read them."""
        key = tuple([a.strides for a in arrays])
        if key not in self._blocks:
            self._blocks[key] = _block(arrays[0], arrays[1], arrays[-1], arrays[2:-1])
        return self._blocks[key]


def _block(a: Any, b: Any, c: Any, bias: Sequence[Any]) -> Any:
    columns = [x for x in (b, c, *bias) if x.shape[-1] > 1]
    if any(x.strides[-1] != 4 for x in columns):
        return None
    values = {
        "batch": prod(c.shape[:-2]), "m": c.shape[-2], "n": c.shape[-1], "k": a.shape[-1],
        "a_row": a.strides[-2], "a_term": a.strides[-1], "b_term": b.strides[-2],
        "c_row": c.strides[-2],
    }  # fmt: skip
    if c.ndim == 3:
        values |= {f"{n}_batch": x.strides[0] for n, x in (("a", a), ("b", b), ("c", c))}
    return (_Words * len(WORDS))(*(values.get(n, 0) for n in WORDS))


def register() -> None:
    """Enter the kernel into the table, in front of oneDNN's."""
    register_kernel(OneDnnMatmul, "cpu", ProductKernel(), first=True)
