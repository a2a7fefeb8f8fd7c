"""Elementwise kernels of complex numbers by ``src/complex.cuh``: of one op, or fused ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symdnn.gpu.codegen.cuda_source import CTYPES, print_problem
from symdnn.gpu.kernels.elementwise import ElementwiseKernel
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.core.scalar import Instruction, ScalarProgram
from symdnn.ops.elementwise import arithmetic as ar
from symdnn.ops.elementwise import comparison as cmp
from symdnn.ops.elementwise import complexes as cx
from symdnn.ops.elementwise import math as mt
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedComplex

#: The instruction of each op whose operands are converted to a common complex dtype.
_INSTRUCTIONS: dict[type[Elemwise], str] = {
    ar.Add: "add", ar.Sub: "sub", ar.Mul: "mul", ar.TrueDiv: "div", ar.Neg: "neg", ar.Sqr: "sqr",
    ar.Inv: "inv", ar.Sqrt: "sqrt", ar.Pow: "pow", ar.Abs: "abs", cx.Conj: "conj",
    cx.Real: "real", cx.Imag: "imag", cx.Angle: "angle", mt.Exp: "exp", mt.Log: "log",
    mt.Log2: "log2", mt.Log10: "log10", mt.Log1p: "log1p", mt.Expm1: "expm1",
    mt.Sin: "sin", mt.Cos: "cos", mt.Tan: "tan", mt.Sinh: "sinh", mt.Cosh: "cosh",
    mt.Tanh: "tanh", mt.ArcSin: "arcsin", mt.ArcCos: "arccos", mt.ArcTan: "arctan",
    mt.ArcSinh: "arcsinh", mt.ArcCosh: "arccosh", mt.ArcTanh: "arctanh",
    cmp.Eq: "eq", cmp.Neq: "ne", cmp.IsNan: "isnan", cmp.IsInf: "isinf",
    cmp.IsFinite: "isfinite",
}  # fmt: skip


def complex_program(op: Elemwise, dtypes: Sequence[str]) -> ScalarProgram | None:
    """The scalar program of ``op``; None where complex.cuh does not have it."""
    out = op.out_dtype(*dtypes)
    if isinstance(op, ar.Cast):
        return _program(dtypes, [out], "", out) if TensorType(out).is_complex else None
    if isinstance(op, cmp.Switch):
        return _program(dtypes, ["bool", out, out], "select", out)
    if isinstance(op, cx.Complex):
        part = "float32" if out == "complex64" else "float64"
        return _program(dtypes, [part] * 2, "c_make", out)
    name = _INSTRUCTIONS.get(type(op))
    if name is None:
        return None
    common = np.result_type(*(numpy_dtype(_numpy_name(d)) for d in dtypes)).name
    return _program(dtypes, [common] * len(dtypes), f"c_{name}", out)


def _numpy_name(dtype: str) -> str:
    """A dtype that NumPy has, for type promotion."""
    return "float32" if dtype == "bfloat16" else dtype


def _program(
    dtypes: Sequence[str], wanted: Sequence[str], name: str, out: str
) -> ScalarProgram | None:
    """Casts to the ``wanted`` dtypes, then one instruction; with no name the first operand."""
    body: list[Instruction] = []
    args = []
    for i, (have, want) in enumerate(zip(dtypes, wanted, strict=True)):
        if have == want:
            args.append(i)
        elif TensorType(have).is_complex and not TensorType(want).is_complex:
            return None
        else:
            args.append(len(dtypes) + len(body))
            body.append(Instruction("cast", (i,), want))
    if name:
        body.append(Instruction(name, tuple(args), out))
        args = [len(dtypes) + len(body) - 1]
    return ScalarProgram(tuple(dtypes), tuple(body), (args[0],))


class ComplexKernel(ElementwiseKernel):
    """An elementwise op with complex operands, or a complex result."""

    name = "cuda.complex"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call) -> str | None:
        """Ops that ``complex.cuh`` does not have, and calls without complex operands."""
        types = (*call.inputs, *call.outputs)
        if not any(t.is_complex for t in types):
            return "no operand is complex"
        found = self.program(call)
        if found is None or found.output_dtypes != tuple(t.dtype for t in call.outputs):
            return f"{call.op} has no device text for complex numbers"
        return print_problem(found)

    def program(self, call: Call) -> ScalarProgram | None:
        """The op's program for the operands' dtypes."""
        if isinstance(call.op, FusedComplex):
            return call.op.whole
        dtypes = [t.dtype for t in call.inputs]
        return complex_program(call.op, dtypes)  # type: ignore[arg-type]

    def writes_updates(self, call: Call) -> bool:
        """False: new values of complex shared variables are copied."""
        return False


KERNELS: tuple[Row, ...] = (((Elemwise, FusedComplex), (ComplexKernel(),)),)
