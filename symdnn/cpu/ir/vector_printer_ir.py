"""Scalar programs as LLVM IR of vectors, for loops whose lanes LLVM is not to choose.

Only programs of operations that processors have for vectors are printed so: no functions of a
library, no divisions of integers.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.narrow_ir import on_lanes
from symdnn.cpu.ir.scalar_ir import VALUES, Printer
from symdnn.cpu.math.lanes_ir import on_vectors
from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import ScalarProgram

_OPERATIONS = frozenset(
    {"const", "cast", "select", "add", "sub", "mul", "div", "neg", "abs", "max", "min", "sqrt"}
    | {"lt", "le", "eq", "ne", "and", "or", "xor", "not", "isnan", "isinf", "isfinite"}
)


def has_vectors(program: ScalarProgram) -> bool:
    """Whether a program can be printed so."""
    dtypes = {*program.inputs, *(step.dtype for step in program.body)}
    if not dtypes <= VALUES.keys() or not program.names <= _OPERATIONS:
        return False
    real = {d for d in dtypes if TensorType(d).is_float}
    # A float that becomes an integer, and a division by one, take more than an instruction.
    kinds = {step.name: {s.dtype for s in program.body if s.name == step.name}
             for step in program.body}  # fmt: skip
    whole = kinds.get("cast", set()) - real - {"bool"}
    return not (real and whole) and kinds.get("div", real) <= real


class VectorPrinter(Printer):
    """Prints a program that :func:`has_vectors`, on vectors of ``lanes`` numbers."""

    def __init__(self, program: ScalarProgram, prefix: str, lanes: int) -> None:
        super().__init__(program, prefix)
        self._lanes = lanes

    def _new(self, text: str) -> str:
        """Append an instruction, with vectors for its types and its constants."""
        return super()._new(on_vectors(text, self._lanes))

    def _converted(self, name: str, text: str) -> str:
        own = on_lanes(name, self._lanes)
        self.helpers.add(own)
        return self._new(text.replace(f"@{name}(", f"@{own}("))

    def _intrinsic(self, name: str, t: str, args: Sequence[str], flags: str = "") -> str:
        suffix, vector = {"float": "f32", "double": "f64"}[t], f"<{self._lanes} x {t}>"
        function = f"@llvm.{name}.v{self._lanes}{suffix}"
        self.declared.add(f"declare {vector} {function}({', '.join([vector] * len(args))})")
        given = ", ".join(f"{t} {a}" for a in args)
        return self._new(f"call {flags}{t} {function}({given})")
