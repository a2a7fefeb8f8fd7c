"""The scalar program of an elementwise op on operands of given dtypes.

Ops with complex operands or results have none, nor have integer powers that may fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from symdnn.config import config
from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import RESULT, STORED, Builder, ScalarProgram
from symdnn.ops.elementwise.arithmetic import Pow
from symdnn.ops.elemwise import Elemwise

_floatx, _cast_policy = config.reader("floatX"), config.reader("cast_policy")


def meaning(op: Elemwise, dtypes: tuple[str, ...]) -> ScalarProgram | None:
    """The program of ``op`` on operands of these dtypes; None if it has none.

    Operands are cast to the dtype that the reference computes in (float16 and bfloat16 to float32),
    the result to the op's dtype. In a chain of 16-bit ops only a user's cast and the operands of
    ops that decide are rounded in between.
    """
    # The dtype of a result may depend on flags, so they are part of the cache's key.
    return _meaning(op, dtypes, str(_floatx()), str(_cast_policy()))


@cache
def _meaning(op: Elemwise, dtypes: tuple[str, ...], *flags: str) -> ScalarProgram | None:
    formula, out = type(op).formula, op.out_dtype(*dtypes)
    if formula is None or any(TensorType(d).is_complex for d in (*dtypes, out)):
        return None
    if type(op) is Pow and _may_fail(dtypes):
        return None
    builder = Builder(dtypes)
    args = [builder.input(i) for i in range(len(dtypes))]
    if op.mixes_dtypes:
        result = formula(op, *args)
    else:
        work, kind = op.work_dtype(*dtypes), STORED if op.decides else ""
        args = [a.cast(work, kind) for a in args]
        result = args[0].call(formula, *args[1:]) if isinstance(formula, str) else formula(*args)
    return builder.program([result.cast(out, RESULT)])


def _may_fail(dtypes: Sequence[str]) -> bool:
    """Whether it is a power of an integer and a signed one: NumPy refuses negative exponents."""
    signed = dtypes[1] != "bool" and not dtypes[1].startswith("u")
    return signed and all(TensorType(d).is_discrete for d in dtypes)
