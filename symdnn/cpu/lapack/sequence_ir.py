"""A loop that does several steps for each matrix of a stack, as LLVM IR.

Words of the block: threads, tasks, 1, matrices, the fault; then the array objects of the launch's
operands; for each place its address, or its offset in its array, and the step in bytes to the next
matrix; then the words of each step, in order. :class:`Step` says what these are.
"""

from __future__ import annotations

from typing import NamedTuple

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import METADATA, THREADS, data_of, next_task, word

__all__ = ["FAULT", "FIRST_ARRAY", "WORDS_OF_STEP", "Step", "sequence_ir"]

#: Index of the word that is set where a matrix has no result, and of the first array object.
FAULT, FIRST_ARRAY = 4, 5
#: How many words of its own a step has, by its kind.
WORDS_OF_STEP = {"call": 1, "copy": 1, "add": 1, "turn": 2, "info": 0, "nan": 0, "diagonal": 2,
                 "void": 1}  # fmt: skip


class Step(NamedTuple):
    """One step on places. By its kind, with its words:

    - ``call`` a routine (its address) with these places;
    - ``copy`` to the first place from the second (bytes);
    - ``add`` :attr:`number` to int32 numbers of the second place, into the first (how many);
    - ``turn`` the matrix at the second place into its transpose at the first (rows, columns);
    - ``info``: the place is a status of LAPACK's, and not 0 is a fault;
    - ``nan``: a NaN there is a fault;
    - ``diagonal``: a 0 among these numbers is a fault (how many, bytes from one to the next);
    - ``void``: after a fault the place gets NaNs (how many), and the fault is forgotten.
    """

    kind: str
    places: tuple[int, ...]
    dtype: str = "double"
    number: int = 0


def sequence_ir(arrays: int, owners: tuple[int, ...], steps: tuple[Step, ...]) -> str:
    """The module of ``kernel`` for operands of so many arrays.

    ``owners`` has for each place the array in which it is, or -1 for memory of the launch's own.
    """
    s = FunctionBuilder()
    entry = word("%count", 3)
    for k in range(arrays):
        entry += data_of(f"%array{k}", FIRST_ARRAY + k)
    at = FIRST_ARRAY + arrays
    for p, owner in enumerate(owners):
        entry += word(f"%step{p}", at + 1)
        if owner < 0:
            entry += word(f"%place{p}", at, "ptr")
        else:
            entry += word(f"%offset{p}", at)
            entry.append(f"%place{p} = getelementptr i8, ptr %array{owner}, i64 %offset{p}")
        at += 2
    for k, step in enumerate(steps):
        for j in range(WORDS_OF_STEP[step.kind]):
            entry += word(f"%own{k}_{j}", at, "ptr" if step.kind == "call" else "i64")
            at += 1
    s.tasks(entry, "task")

    def matrix(i: str, _: list[str]) -> list[str]:
        places = [
            s.bytes_at(f"%place{p}", s.new(f"mul i64 {i}, %step{p}")) for p in range(len(owners))
        ]
        for k, step in enumerate(steps):
            _WRITERS[step.kind](s, k, step, [places[p] for p in step.places])
        return []

    s.counted("matrix", 0, "%count", matrix)
    copies = "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"
    return "\n".join([*THREADS, *s.lines, *next_task("task"), copies, *METADATA]) + "\n"


def _call(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    s.put(f"call void %own{k}_0({', '.join(f'ptr {p}' for p in places)})")


def _copy(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    to, source = places
    s.put(f"call void @llvm.memmove.p0.p0.i64(ptr {to}, ptr {source}, i64 %own{k}_0, i1 false)")


def _add(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    def one(i: str, _: list[str]) -> list[str]:
        to, source = (s.bytes_at(p, s.new(f"mul i64 {i}, 4")) for p in places)
        total = s.new(f"add i32 {s.new(f'load i32, ptr {source}')}, {step.number}")
        s.put(f"store i32 {total}, ptr {to}")
        return []

    s.counted(f"add{k}", 0, f"%own{k}_0", one)


def _turn(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    to, source = places
    size, rows, columns = 8 if step.dtype == "double" else 4, f"%own{k}_0", f"%own{k}_1"

    def element(row: str, column: str, of: str, per_row: str) -> str:
        index = s.new(f"add i64 {s.new(f'mul i64 {row}, {per_row}')}, {column}")
        return s.bytes_at(of, s.new(f"mul i64 {index}, {size}"))

    def row(i: str, _: list[str]) -> list[str]:
        def one(j: str, _: list[str]) -> list[str]:
            x = s.new(f"load {step.dtype}, ptr {element(i, j, source, columns)}")
            s.put(f"store {step.dtype} {x}, ptr {element(j, i, to, rows)}")
            return []

        s.counted(f"column{k}", 0, columns, one)
        return []

    s.counted(f"row{k}", 0, rows, row)


def _fault(s: FunctionBuilder, condition: str, name: str) -> None:
    s.put(f"%fault_{name} = getelementptr i64, ptr %w, i64 {FAULT}")
    s.when(f"fault{name}", condition, lambda: s.put(f"store i64 1, ptr %fault_{name}"))
    s.block = f"fault{name}_done"


def _info(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    status = s.new(f"load i32, ptr {places[0]}")
    _fault(s, s.new(f"icmp ne i32 {status}, 0"), str(k))


def _nan(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    x = s.new(f"load {step.dtype}, ptr {places[0]}")
    _fault(s, s.new(f"fcmp uno {step.dtype} {x}, {x}"), str(k))


def _diagonal(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    def one(i: str, seen: list[str]) -> list[str]:
        place = s.bytes_at(places[0], s.new(f"mul i64 {i}, %own{k}_1"))
        x = s.new(f"load {step.dtype}, ptr {place}")
        return [s.new(f"or i1 {seen[0]}, {s.new(f'fcmp oeq {step.dtype} {x}, 0.0')}")]

    (any_,) = s.counted(f"diagonal{k}", 0, f"%own{k}_0", one, ["false"], "i1")
    _fault(s, any_, str(k))


def _void(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    size = 8 if step.dtype == "double" else 4

    def one(i: str, _: list[str]) -> list[str]:
        place = s.bytes_at(places[0], s.new(f"mul i64 {i}, {size}"))
        s.put(f"store {step.dtype} 0x7FF8000000000000, ptr {place}")
        return []

    def fill() -> None:
        s.block = f"void{k}_yes"
        s.counted(f"element{k}", 0, f"%own{k}_0", one)
        s.put(f"store i64 0, ptr %fault_{k}")

    s.put(f"%fault_{k} = getelementptr i64, ptr %w, i64 {FAULT}")
    s.when(f"void{k}", s.new(f"icmp ne i64 {s.new(f'load i64, ptr %fault_{k}')}, 0"), fill)
    s.block = f"void{k}_done"


_WRITERS = {
    "call": _call, "copy": _copy, "add": _add, "turn": _turn, "info": _info, "nan": _nan,
    "diagonal": _diagonal, "void": _void,
}  # fmt: skip
