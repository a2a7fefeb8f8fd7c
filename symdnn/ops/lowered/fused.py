"""Fused elementwise ops as one op, alone or before reductions.

``opt/fuse/fuse.py`` makes them where a target has kernels for them. They have no gradients, which
are taken before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.dims import Shape
from symdnn.graph.op import Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.type import TensorType, tensor_type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable, constant
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.scalar import Instruction, ScalarProgram, number_of_text
from symdnn.ops.elementwise.complex_meaning import part_dtypes
from symdnn.ops.elemwise import broadcast_dims, broadcast_static


def check_inputs(op: Any, program: ScalarProgram, inputs: Sequence[Any]) -> None:
    """Raise :class:`TypeMismatch` unless these are tensors of one ndim with the right dtypes."""
    tensors = all(isinstance(t, TensorType) for t in inputs)
    if not tensors or tuple(t.dtype for t in inputs) != program.inputs or not inputs:
        raise TypeMismatch(op, f"tensors of dtypes {', '.join(program.inputs)}", list(inputs))
    if len({t.ndim for t in inputs}) != 1:
        raise TypeMismatch(op, "tensors of equal ndim", list(inputs))


def chosen(program: ScalarProgram, output: int, sources: Sequence[Vars]) -> list[Variable]:
    """The variables, also constants, of whose elements a result chooses by conditions.

    ``sources`` are such variables for each input of the program.
    """
    values, found = [program.outputs[output]], list[Variable]()
    for value in values:  # it grows
        step = None if value < len(sources) else program.body[value - len(sources)]
        if step is None:
            found += sources[value]
        elif step.name == "const":
            found.append(constant(number_of_text(step.value, step.dtype)))
        elif step.name in ("select", "cast"):
            values += [v for v in step.args[-2:] if v not in values]
    return found


@dataclass(frozen=True)
class FusedElemwise(MultiOp):
    """A scalar program for each element of tensors of equal ndim, which broadcast by static 1s."""

    never_fails: ClassVar[bool] = True

    program: ScalarProgram

    def infer(self, *inputs: TensorType) -> Any:
        check_inputs(self, self.program, inputs)
        shape = broadcast_static(self, inputs)
        return tuple(tensor_type(d, shape) for d in self.program.output_dtypes)

    def reference(self, *inputs: Array) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in inputs))
        results = self.program.evaluate(*inputs)
        return tuple(np.asarray(np.broadcast_to(r, shape), order="C") for r in results)

    def chosen_from(self, inputs: Vars, output: int) -> Vars:
        return chosen(self.program, output, [[v] for v in inputs])

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [broadcast_dims(self, types, shapes)] * len(self.program.outputs)

    @property
    def may_overwrite(self) -> dict[int, tuple[int, ...]]:
        every = tuple(range(len(self.program.inputs)))
        return {i: every for i in range(len(self.program.outputs))}

    def __str__(self) -> str:
        return f"FusedElemwise{{{self.program}}}"


@dataclass(frozen=True)
class FusedComplex(MultiOp):
    """As :class:`FusedElemwise`, with complex operands or results: the program is of their parts.

    ``reads`` and ``writes`` are the dtypes of operands and results; a real one has one part.
    """

    program: ScalarProgram
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def infer(self, *inputs: TensorType) -> Any:
        tensors = all(isinstance(t, TensorType) for t in inputs)
        if not tensors or tuple(t.dtype for t in inputs) != self.reads or not inputs:
            raise TypeMismatch(self, f"tensors of dtypes {', '.join(self.reads)}", list(inputs))
        if len({t.ndim for t in inputs}) != 1:
            raise TypeMismatch(self, "tensors of equal ndim", list(inputs))
        shape = broadcast_static(self, inputs)
        return tuple(TensorType(d, shape) for d in self.writes)

    def reference(self, *inputs: Array) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in inputs))
        parts = [p for a in inputs for p in ((a.real, a.imag) if np.iscomplexobj(a) else (a,))]
        rest = iter(self.program.evaluate(*parts))
        results = []
        for dtype in self.writes:
            made = np.empty(shape, dtype)
            if np.iscomplexobj(made):
                made.real, made.imag = next(rest), next(rest)
            else:
                made[...] = next(rest)
            results.append(made)
        return tuple(results)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [broadcast_dims(self, types, shapes)] * len(self.writes)

    @property
    def may_overwrite(self) -> dict[int, tuple[int, ...]]:
        return dict.fromkeys(range(len(self.writes)), tuple(range(len(self.reads))))

    @cached_property
    def whole(self) -> ScalarProgram:
        """The program of whole numbers: it takes operands apart, and puts results together."""
        body: list[Instruction] = []
        numbers: list[int] = []  # of the values of the program of parts

        def added(step: Instruction) -> int:
            body.append(step)
            return len(self.reads) + len(body) - 1

        for i, dtype in enumerate(self.reads):
            own = part_dtypes(dtype)
            names = ("c_real", "c_imag")[: len(own)] if len(own) > 1 else ()
            numbers += [added(Instruction(n, (i,), own[0])) for n in names] or [i]
        for step in self.program.body:
            numbers.append(added(replace(step, args=tuple(numbers[a] for a in step.args))))
        rest, outputs = iter(self.program.outputs), []
        for dtype in self.writes:
            parts = tuple(numbers[next(rest)] for _ in part_dtypes(dtype))
            outputs.append(
                parts[0] if len(parts) == 1 else added(Instruction("c_make", parts, dtype))
            )
        return ScalarProgram(self.reads, tuple(body), tuple(outputs))

    def __str__(self) -> str:
        return f"FusedComplex{{{self.program}}}"


def fused_elementwise(
    program: ScalarProgram, reads: Sequence[str], writes: Sequence[str]
) -> FusedElemwise | FusedComplex:
    """The op of a program of the parts of operands and results of these dtypes."""
    if any(len(part_dtypes(d)) > 1 for d in (*reads, *writes)):
        return FusedComplex(program, tuple(reads), tuple(writes))
    return FusedElemwise(program)


@dataclass(frozen=True)
class FusedReduce(MultiOp):
    """Reductions over the same axes, each of a result of a scalar program that is never stored."""

    never_fails: ClassVar[bool] = True

    program: ScalarProgram
    reductions: tuple[Reduce, ...]

    def infer(self, *inputs: TensorType) -> Any:
        check_inputs(self, self.program, inputs)
        if len({(r.axes, r.keepdims) for r in self.reductions}) != 1:
            raise TypeMismatch(self, "reductions over the same axes", list(self.reductions))
        shape = broadcast_static(self, inputs)
        values = [TensorType(d, shape) for d in self.program.output_dtypes]
        return tuple(r.infer(v) for r, v in zip(self.reductions, values, strict=True))

    def reference(self, *inputs: Array) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in inputs))
        results = self.program.evaluate(*inputs)
        return tuple(
            np.asarray(r.reference(np.broadcast_to(v, shape)))
            for r, v in zip(self.reductions, results, strict=True)
        )

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        whole = broadcast_dims(self, types, shapes)
        found: list[Shape] = []
        for r in self.reductions:
            found += r.shapes(types, [whole], host) or []
        return found

    def __str__(self) -> str:
        kinds = ", ".join(type(r).__name__ for r in self.reductions)
        return f"FusedReduce{{{kinds} over {self.reductions[0].axes} of {self.program}}}"


@dataclass(frozen=True)
class FusedElemwiseReduce(MultiOp):
    """As :class:`FusedReduce`; the program's results behind those that are reduced are stored.

    ``opt/fuse/whole_sums.py`` makes it after gradients were taken.
    """

    never_fails: ClassVar[bool] = True

    program: ScalarProgram
    reductions: tuple[Reduce, ...]

    @property
    def reduced(self) -> FusedReduce:
        """The reductions alone."""
        results = self.program.outputs[: len(self.reductions)]
        return FusedReduce(replace(self.program, outputs=results), self.reductions)

    @property
    def stored(self) -> FusedElemwise:
        """What is stored alone."""
        results = self.program.outputs[len(self.reductions) :]
        return FusedElemwise(replace(self.program, outputs=results))

    def infer(self, *inputs: TensorType) -> Any:
        return (*self.reduced.infer(*inputs), *self.stored.infer(*inputs))

    def reference(self, *inputs: Array) -> Any:
        return (*self.reduced.reference(*inputs), *self.stored.reference(*inputs))

    def chosen_from(self, inputs: Vars, output: int) -> Vars:
        own = output - len(self.reductions)
        return () if own < 0 else self.stored.chosen_from(inputs, own)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        parts = [op.shapes(types, shapes, host) or [] for op in (self.reduced, self.stored)]
        return [shape for part in parts for shape in part]

    @property
    def may_overwrite(self) -> dict[int, tuple[int, ...]]:
        count = len(self.reductions)
        return {count + i: every for i, every in self.stored.may_overwrite.items()}

    def __str__(self) -> str:
        kinds = ", ".join(type(r).__name__ for r in self.reductions)
        axes = self.reductions[0].axes
        return f"FusedElemwiseReduce{{{kinds} over {axes} of the first of {self.program}}}"
