"""Fused ops by NumPy, an instruction at a time, for arrays that are too small to compile for.

They are compiled once a plan has been called often (:mod:`symdnn.cpu.execution.tier_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.launch.traits import NUMPY
from symdnn.graph.kernel import Call, Kernel, Launch
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array
from symdnn.ops.core.scalar import FUNCTIONS, Instruction, ScalarProgram, number_of_text

#: Temporaries of at most this size are assumed never to fail to allocate.
_MAX_TEMPORARY_BYTES = 1 << 17

NumpyStep = tuple[Callable[..., Any], tuple[int, ...], bool]


class ProgramKernel(Kernel):
    """``FusedElemwise`` by NumPy's functions, with ``out=`` where no operand is overwritten."""

    name = "numpy.program"
    traits = NUMPY

    def writes_updates(self, call: Call) -> bool:
        """Whether it can write a shared variable, because it cannot fail.

        It cannot if its temporaries are small, and floats or bools.
        """
        types = (*call.inputs, *call.outputs)
        small = all(prod(t.shape) * t.numpy.itemsize <= _MAX_TEMPORARY_BYTES for t in types)
        return small and all(t.is_float or t.dtype == "bool" for t in types)

    def bind(self, call: Call) -> Launch[Array]:
        """A Python function with one call of NumPy for each instruction."""
        program: ScalarProgram = call.op.program  # type: ignore[attr-defined]
        return run_program(program)


@lru_cache(maxsize=128)
def run_program(program: ScalarProgram) -> Launch[Array]:
    """``launch(inputs, outputs)`` of a program; a result may share the memory of an operand."""
    steps = [_step(program, s) for s in program.body]
    count = len(program.inputs)
    reads_input = [i for i, s in enumerate(program.body) if any(a < count for a in s.args)]
    last = max(reads_input, default=-1)
    # After the last read of an input, results are written straight into the outputs.
    target: dict[int, int] = {}
    if all(v >= count for v in program.outputs):  # else an output may overlap a returned input
        late = [(v, k) for k, v in enumerate(program.outputs) if v - count >= last]
        target = {v: k for v, k in late if steps[v - count][2]}
    text = _text(program, [args for _, args, _ in steps], target)
    scope: dict[str, Any] = {f"f{i}": step[0] for i, step in enumerate(steps, count)}
    scope["copyto"] = np.copyto
    # The text consists of numbers and the template's words; nothing in it comes from the user.
    exec(compile(text, "<program>", "exec"), scope)
    return scope["launch"]


def _text(
    program: ScalarProgram, args: Sequence[tuple[int, ...]], target: Mapping[int, int]
) -> str:
    """The program as a Python function, a line for each instruction."""
    count = len(program.inputs)
    lines = ["def launch(inputs, outputs):", f" {_names('v', range(count))}, = inputs"]
    lines.append(f" {_names('o', range(len(program.outputs)))}, = outputs")
    for i, operands in enumerate(args, count):
        out = [f"out=o{target[i]}"] if i in target else []
        lines.append(f" v{i} = f{i}({', '.join([*(f'v{a}' for a in operands), *out])})")
    rest = [(k, v) for k, v in enumerate(program.outputs) if target.get(v) != k]
    # An input that is returned unchanged may overlap another output: copy it first.
    lines += [f" c{v} = v{v}.copy()" for v in sorted({v for _, v in rest if v < count})]
    lines += [f" copyto(o{k}, {'c' if v < count else 'v'}{v})" for k, v in rest]
    return "\n".join(lines)


def _names(letter: str, numbers: Iterable[int]) -> str:
    return ", ".join(f"{letter}{i}" for i in numbers)


def _step(program: ScalarProgram, step: Instruction) -> NumpyStep:
    """(function, indices of its operands, whether it takes ``out``)"""
    dtype = numpy_dtype(step.dtype)
    if step.name == "const":
        number = np.asarray(number_of_text(step.value, step.dtype))
        return lambda: number, (), False
    if step.name == "cast":
        return _cast(numpy_dtype(program.dtype_of(step.args[0])), dtype), step.args, False
    if step.name == "bitcast":
        return lambda x: np.asarray(x).view(dtype), step.args, False
    if step.name == "select":
        return np.where, step.args, False
    function: Any = FUNCTIONS[step.name].function
    dtypes = [numpy_dtype(program.dtype_of(a)) for a in step.args]
    if isinstance(function, np.ufunc) and _gives(function, dtypes, dtype):
        return function, step.args, True
    return lambda *a: np.asarray(function(*a)).astype(dtype, copy=False), step.args, False


def _cast(source: Any, target: Any) -> Callable[..., Any]:
    if target == np.bool_ and source.kind not in "biuf":
        return lambda x: x != 0
    return lambda x: x.astype(target)


def _gives(function: np.ufunc, dtypes: Sequence[Any], wanted: object) -> bool:
    try:
        return bool(function.resolve_dtypes((*dtypes, None))[-1] == wanted)
    except TypeError:
        return False
