"""A loop that does several steps for each matrix of a stack, as LLVM IR.

Words of the block: threads, tasks, 1, matrices, the fault; then the array objects of the launch's
operands; for each place its address, or its offset in its array, and the step in bytes to the next
matrix; then the words of each step, in order. :class:`Step` says what these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.cpu.ir.math_ir import declarations, definitions
from symdnn.cpu.lapack.expm_ir import exponential

#: Index of the word that is set where a matrix has no result, and of the first array object.
FAULT, FIRST_ARRAY = 4, 5
#: How many words of its own a step has, by its kind.
WORDS_OF_STEP = {"call": 1, "try": 1, "copy": 1, "add": 1, "turn": 2, "info": 0, "nan": 0,
                 "diagonal": 2, "finite": 2, "determinant": 1, "void": 1, "expm": 4}  # fmt: skip


class Step(NamedTuple):
    """One step on places. By its kind, with its words:

    - ``call`` a routine (its address) with these places; ``try`` it if there was no fault;
    - ``copy`` to the first place from the second (bytes);
    - ``add`` :attr:`number` to int32 numbers of the second place, into the first (how many);
    - ``turn`` the matrix at the second place into its transpose at the first (rows, columns);
    - ``info``: the place is a status of LAPACK's, and not 0 is a fault;
    - ``nan``: a NaN there is a fault;
    - ``diagonal``: a 0 among these numbers is a fault (how many, bytes from one to the next);
    - ``finite``: a number that is not finite is a fault (rows, columns), anywhere, or for the
      :attr:`number` 1 or 2 in the lower or the upper triangle;
    - ``determinant`` by LU factors, their pivots and status (rows), into one place, or into two its
      sign and the logarithm of its size;
    - ``expm``: the exponential of a matrix (:func:`~symdnn.cpu.lapack.expm_ir.exponential`);
    - ``void``: after a fault the place gets NaNs (how many), and for the :attr:`number` 0 the fault
      is forgotten.
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
            entry += word(f"%own{k}_{j}", at, "ptr" if step.kind in _ROUTINES else "i64")
            at += 1
    s.tasks(entry, "task")
    with s.each("matrix", 0, "%count") as i:
        places = [s.bytes_at(f"%place{p}", (i, f"%step{p}")) for p in range(len(owners))]
        for k, step in enumerate(steps):
            _WRITERS[step.kind](s, k, step, [places[p] for p in step.places])
    others = ["declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"]
    if any(step.kind == "determinant" for step in steps):
        others += [*sorted(declarations({"f_log"})), *definitions({"f_log"})]
    return s.task_module(*others)


_BYTES = {"double": 8, "float": 4, "i32": 4}


def _at(s: FunctionBuilder, place: str, index: str, dtype: str) -> str:
    """The address of an element of an array."""
    return s.bytes_at(place, (index, _BYTES[dtype]))


def _fault_word(s: FunctionBuilder, name: object) -> str:
    s.put(f"%fault_{name} = getelementptr i64, ptr %w, i64 {FAULT}")
    return f"%fault_{name}"


def _call(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    s.put(f"call void %own{k}_0({', '.join(f'ptr {p}' for p in places)})")


def _try(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    sound = s.new(f"icmp eq i64 {s.new(f'load i64, ptr {_fault_word(s, k)}')}, 0")
    with s.when(f"try{k}", sound):
        _call(s, k, step, places)


def _copy(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    to, source = places
    s.put(f"call void @llvm.memmove.p0.p0.i64(ptr {to}, ptr {source}, i64 %own{k}_0, i1 false)")


def _add(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    with s.each(f"add{k}", 0, f"%own{k}_0") as i:
        to, source = (_at(s, p, i, "i32") for p in places)
        total = s.new(f"add i32 {s.new(f'load i32, ptr {source}')}, {step.number}")
        s.put(f"store i32 {total}, ptr {to}")


def _turn(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    to, source = places
    rows, columns = f"%own{k}_0", f"%own{k}_1"

    def element(row: str, column: str, of: str, per_row: str) -> str:
        index = s.new(f"add i64 {s.new(f'mul i64 {row}, {per_row}')}, {column}")
        return _at(s, of, index, step.dtype)

    with s.each(f"row{k}", 0, rows) as i, s.each(f"column{k}", 0, columns) as j:
        x = s.new(f"load {step.dtype}, ptr {element(i, j, source, columns)}")
        s.put(f"store {step.dtype} {x}, ptr {element(j, i, to, rows)}")


def _fault(s: FunctionBuilder, condition: str, name: str) -> None:
    fault = _fault_word(s, name)
    with s.when(f"fault{name}", condition):
        s.put(f"store i64 1, ptr {fault}")
    s.block = f"fault{name}_done"


def _info(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    status = s.new(f"load i32, ptr {places[0]}")
    _fault(s, s.new(f"icmp ne i32 {status}, 0"), str(k))


def _nan(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    x = s.new(f"load {step.dtype}, ptr {places[0]}")
    _fault(s, s.new(f"fcmp uno {step.dtype} {x}, {x}"), str(k))


def _diagonal(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    def one(i: str, seen: list[str]) -> list[str]:
        place = s.bytes_at(places[0], (i, f"%own{k}_1"))
        x = s.new(f"load {step.dtype}, ptr {place}")
        return [s.new(f"or i1 {seen[0]}, {s.new(f'fcmp oeq {step.dtype} {x}, 0.0')}")]

    (any_,) = s.counted(f"diagonal{k}", 0, f"%own{k}_0", one, ["false"], "i1")
    _fault(s, any_, str(k))


def _finite(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    """The sum of all numbers times 0, which is NaN if one is not finite."""
    t = step.dtype

    def row(i: str, sums: list[str]) -> list[str]:
        first = s.times(i, f"%own{k}_1")
        low, high = i if step.number == 2 else 0, f"%own{k}_1"
        if step.number == 1:
            high = s.plus(i, 1)

        def one(j: str, sums: list[str]) -> list[str]:
            at = _at(s, places[0], s.plus(first, j), t)
            x = s.new(f"load {t}, ptr {at}")
            return [s.new(f"fadd {t} {sums[0]}, {s.new(f'fmul {t} {x}, 0.0')}")]

        return s.counted(f"finite_column{k}", low, high, one, sums, t)

    (total,) = s.counted(f"finite_row{k}", 0, f"%own{k}_0", row, ["0.0"], t)
    _fault(s, s.new(f"fcmp uno {t} {total}, {total}"), str(k))


_ONE = 1 << 52  # one in the exponent of a float64
_LOG_2 = "0x3FE62E42FEFA39EF"


def _determinant(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    """The product of the diagonal, as a number from 0.5 to below 1 and a power of 2."""
    factors, pivots, info, *results = places

    def one(i: str, carried: list[str]) -> list[str]:
        product, power = carried
        apart = s.new(f"mul i64 {s.new(f'add i64 %own{k}_0, 1')}, 8")
        at = s.times(i, apart)
        x = s.new(f"load double, ptr {s.bytes_at(factors, at)}")
        pivot = s.new(f"load i32, ptr {_at(s, pivots, i, 'i32')}")
        following = s.plus(i, 1)
        exchanged = s.new(f"icmp ne i64 {s.new(f'sext i32 {pivot} to i64')}, {following}")
        return [*determinant_steps(s, x, exchanged, product, power)]

    product, power = s.counted(
        f"factor{k}", 0, f"%own{k}_0", one, ["1.0", "0"], ["double", "i64"]
    )  # fmt: skip
    singular = s.new(f"icmp sgt i32 {s.new(f'load i32, ptr {info}')}, 0")  # factors may be NaN
    product = s.new(f"select i1 {singular}, double 0.0, double {product}")
    leave_determinant(s, product, power, results, "double")


def determinant_steps(
    s: FunctionBuilder, x: str, exchanged: str, product: str, power: str, lanes: int = 0
) -> tuple[str, str]:
    """A product and a power of 2 after a pivot ``x``, of rows that were exchanged or not.

    The product is from 0.5 to below 1, or not a normal number. All may be vectors of ``lanes``.
    """

    def whole(n: int) -> str:
        return f"<{', '.join([f'i64 {n}'] * lanes)}>" if lanes else str(n)

    t, i, b = (f"<{lanes} x {k}>" if lanes else k for k in ("double", "i64", "i1"))
    turned = s.new(f"select {b} {exchanged}, {t} {s.new(f'fneg {t} {x}')}, {t} {x}")
    bits = s.new(f"bitcast {t} {s.new(f'fmul {t} {product}, {turned}')} to {i}")
    exponent = s.new(f"and {i} {s.new(f'lshr {i} {bits}, {whole(52)}')}, {whole(2047)}")
    normal = s.new(f"icmp ult {i} {s.new(f'sub {i} {exponent}, {whole(1)}')}, {whole(2046)}")
    by = s.new(f"sub {i} {exponent}, {whole(1022)}")
    by = s.new(f"select {b} {normal}, {i} {by}, {i} {whole(0)}")
    rest = s.new(f"sub {i} {bits}, {s.new(f'shl {i} {by}, {whole(52)}')}")
    return s.new(f"bitcast {i} {rest} to {t}"), s.new(f"add {i} {power}, {by}")


def leave_determinant(
    s: FunctionBuilder, product: str, power: str, results: Sequence[str], dtype: str
) -> None:
    """Store ``product * 2 ** power``, or its sign and the logarithm of its size."""

    def store(value: str, to: str) -> None:
        if dtype != "double":
            value = s.new(f"fptrunc double {value} to {dtype}")
        s.put(f"store {dtype} {value}, ptr {to}")

    if len(results) == 1:
        store(_scaled(s, product, power), results[0])
        return
    below = s.new(f"fcmp olt double {product}, 0.0")
    size = s.new(f"select i1 {below}, double {s.new(f'fneg double {product}')}, double {product}")
    none = s.new(f"fcmp oeq double {product}, 0.0")
    signed = s.new(f"select i1 {below}, double -1.0, double 1.0")
    store(s.new(f"select i1 {none}, double 0.0, double {signed}"), results[0])
    low = s.new(f"fcmp olt double {size}, 0.75")  # so that the logarithm of about 1 is exact
    size = s.new(f"select i1 {low}, double {s.new(f'fadd double {size}, {size}')}, double {size}")
    power = s.new(f"sub i64 {power}, {s.new(f'zext i1 {low} to i64')}")
    log = s.new(f"call double @f_log(double {size})")
    shift = s.new(f"fmul double {s.new(f'sitofp i64 {power} to double')}, {_LOG_2}")
    store(s.new(f"fadd double {shift}, {log}"), results[1])


def _scaled(s: FunctionBuilder, product: str, power: str) -> str:
    """``product * 2 ** power``, by three factors that are normal numbers."""
    power = s.most(s.least(power, 3000), -3000)
    first = s.new(f"sdiv i64 {power}, 3")
    rest = s.minus(power, first)
    second = s.new(f"sdiv i64 {rest}, 2")
    for part in (first, second, s.minus(rest, second)):
        bits = s.new(f"mul i64 {s.new(f'add i64 {part}, 1023')}, {_ONE}")
        product = s.new(f"fmul double {product}, {s.new(f'bitcast i64 {bits} to double')}")
    return product


def _void(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    fault = _fault_word(s, k)
    with s.when(f"void{k}", s.new(f"icmp ne i64 {s.new(f'load i64, ptr {fault}')}, 0")):
        s.block = f"void{k}_yes"
        with s.each(f"element{k}", 0, f"%own{k}_0") as i:
            place = _at(s, places[0], i, step.dtype)
            s.put(f"store {step.dtype} 0x7FF8000000000000, ptr {place}")
        if not step.number:
            s.put(f"store i64 0, ptr {fault}")
    s.block = f"void{k}_done"


def _expm(s: FunctionBuilder, k: int, step: Step, places: list[str]) -> None:
    exponential(s, k, step.dtype, places, [f"%own{k}_{j}" for j in range(WORDS_OF_STEP["expm"])])


_ROUTINES = ("call", "try")
_WRITERS = {
    "call": _call, "try": _try, "copy": _copy, "add": _add, "turn": _turn, "info": _info,
    "nan": _nan, "diagonal": _diagonal, "finite": _finite, "determinant": _determinant,
    "void": _void, "expm": _expm,
}  # fmt: skip
