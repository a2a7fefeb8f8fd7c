"""A builder of loops over strided operands: scalar programs, numbers in memory, indices of axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.scalar_ir import Printer, load_as, part_names
from symdnn.ops.core.scalar import ScalarProgram


class LoopBuilder(FunctionBuilder):
    """A builder whose words are in registers of their names.

    ``%name.data`` is the address of an operand, ``%name.k0`` its step along the first axis of kind
    k in bytes, ``%kn1`` the size of the second.
    """

    #: Whether programs load whole vectors; see :class:`~symdnn.cpu.ir.scalar_ir.Printer`.
    whole_loads = False

    def __init__(self) -> None:
        super().__init__()
        self.helpers: set[str] = set()
        self._tags = 0

    def tag(self) -> str:
        """A name that is made once."""
        self._tags += 1
        return f"t{self._tags}"

    def program(
        self, program: ScalarProgram, inputs: Sequence[str], free: bool = False, unit: str = ""
    ) -> list[str]:
        """Append a scalar program; returns its results. ``free``: LLVM may reorder additions.

        With ``unit``, a register that is 1, additions in float64 are multiply-adds.
        """
        printer = Printer(program, f"{self.tag()}_", whole_loads=self.whole_loads)
        results = printer.emit(inputs)
        lines = printer.lines
        if unit:
            call = "call reassoc" if free else "call"
            fused = rf"{call} double @llvm.fmuladd.f64(double \2, double {unit}, double \1)"
            lines = [re.sub(r"fadd double (\S+), (\S+)$", fused, line) for line in lines]
            self.declared.add("declare double @llvm.fmuladd.f64(double, double, double)")
        if free:
            lines = [re.sub(r" = (fadd|fmul) ", r" = \1 reassoc ", line) for line in lines]
        self.put(*lines)
        self.declared |= printer.declared
        self.helpers |= printer.helpers
        return results

    def value(self, dtype: str, pointer: str, more: str = "") -> str:
        """Load a number."""
        (found,) = self.parts_of(dtype, pointer, more)
        return found

    def parts_of(self, dtype: str, pointer: str, more: str = "") -> list[str]:
        """Load a number, or both parts of a complex one."""
        name = f"%{self.tag()}"
        self.put(*load_as(dtype, name, pointer, more))
        return part_names(dtype, name)

    def copy_row(self, target: str, source: str, nbytes: int | str) -> None:
        """Copy dense memory by the function of :data:`~symdnn.cpu.ir.loops_ir.COPY_ROW`.

        Of a constant number of bytes LLVM makes a few loads and stores.
        """
        given = f"(ptr {target}, ptr {source}, i64 {nbytes}"
        if isinstance(nbytes, int):
            self.put(f"call void @llvm.memmove.p0.p0.i64{given}, i1 false)")
        else:
            self.put(f"call void @copy_row{given})")

    def split(self, index: str, kind: str, count: int) -> list[str]:
        """The indices in ``count`` axes of this kind that an index stands for."""
        return self.unravelled(index, [f"%{kind}n{d}" for d in range(count)])

    def stepped_to(self, base: str, name: str, indices: Mapping[str, str]) -> str:
        """The address ``base`` of an operand plus indices times its steps of these names."""
        for step, index in indices.items():
            base = self.bytes_at(base, (index, f"%{name}.{step}"))
        return base

    def moved(self, base: str, name: str, kind: str, indices: Sequence[str]) -> str:
        """The address ``base`` of an operand plus indices times its steps of a kind."""
        return self.stepped_to(base, name, {f"{kind}{d}": i for d, i in enumerate(indices)})
