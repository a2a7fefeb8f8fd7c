"""A loop that calls a routine for each matrix of a stack, as LLVM IR.

Words of the block: threads, tasks, 1, matrices of a task, matrices, the routine's address; then
for each argument its address for the first matrix, and the steps in bytes to the next matrix and to
the next task. Arguments that all calls share have steps of 0, scratch memory has one for each task.
"""

from __future__ import annotations

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import word

#: Words before those of the arguments.
HEAD = 6


def calls_ir(arguments: int) -> str:
    """The module of ``kernel`` for a routine of so many arguments, all of them pointers."""
    s = FunctionBuilder()
    words = [*word("%per", 3), *word("%count", 4), *word("%routine", 5, "ptr")]
    for k in range(arguments):
        at = HEAD + 3 * k
        words += word(f"%a{k}", at, "ptr") + word(f"%s{k}", at + 1) + word(f"%t{k}", at + 2)
    s.tasks(words, "task")
    first = s.times("%r", "%per")
    last = s.least(s.plus(first, "%per"), "%count")
    bases = [s.bytes_at(f"%a{k}", ("%r", f"%t{k}")) for k in range(arguments)]
    with s.each("matrix", first, last) as i:
        given = [s.bytes_at(base, (i, f"%s{k}")) for k, base in enumerate(bases)]
        s.put(f"call void %routine({', '.join(f'ptr {p}' for p in given)})")
    return s.task_module()
