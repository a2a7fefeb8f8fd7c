"""The sum of all elements of several arrays as one op.

``opt/lower/totals.py`` makes it of the norm of all gradients and of other sums of sums. It has no
gradient, which is taken before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, Op, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.core.scalar import ScalarProgram


@dataclass(frozen=True)
class Totals(Op):
    """The sum over all arrays of the sums of their elements, each mapped by the array's program.

    Inputs are arrays of any shapes; the result is a scalar of the programs' common result dtype,
    float32 or float64.
    """

    programs: tuple[ScalarProgram, ...]

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return self.programs[0].output_dtypes[0]

    def infer(self, *inputs: TensorType) -> TensorType:
        results = {p.output_dtypes for p in self.programs}
        if len(results) != 1 or results - {("float32",), ("float64",)}:
            raise TypeMismatch(self, "programs with one float32 or float64 result", list(results))
        wanted = [p.inputs for p in self.programs]
        got = [(t.dtype,) if isinstance(t, TensorType) else () for t in inputs]
        if wanted != got:
            dtypes = ", ".join(str(d) for (d, *_) in wanted)
            raise TypeMismatch(self, f"tensors of dtypes {dtypes}", list(inputs))
        return TensorType(self.dtype, ())

    def reference(self, *inputs: Array) -> Array:
        total = np.float64(0)
        for program, x in zip(self.programs, inputs, strict=True):
            (mapped,) = program.evaluate(x)
            total = total + np.broadcast_to(mapped, x.shape).sum(dtype=np.float64)
        return np.asarray(total, self.dtype)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [()]

    def __str__(self) -> str:
        kinds = ", ".join(dict.fromkeys(str(p) for p in self.programs))
        return f"Totals{{of {len(self.programs)} arrays: {kinds}}}"
