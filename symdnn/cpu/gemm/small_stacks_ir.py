"""Products of stacks of small matrices of known sizes as LLVM IR: a loop over the matrices.

The sums of a tile of rows and columns are in registers. Its columns are vectors, the last of which
begins early enough to be whole, and so does the last tile: what they share is computed twice, to
the same numbers. A second operand whose columns are not contiguous is turned into memory of the
stack first. Terms are added in order.

A complex number of the first operand multiplies the pairs of a row twice, by its real and its
imaginary part. The second sums are turned by a quarter and added at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from symdnn.cpu.gemm.gemm_tile_ir import WIDTH_WITH_MASKS
from symdnn.cpu.ir.builder import Builder, first_lanes
from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.graph.type import numpy_dtype

#: The words of the kernel's block: array objects, and bytes from one matrix to the next.
WORDS = ("threads", "tasks", "one", "a", "b", "c", "a_stack", "b_stack", "c_stack")
#: Multiply-adds of vectors up to which a matrix has no loops but straight code.
_MAX_STRAIGHT = 128
#: Terms of an iteration of a loop over terms.
_UNROLL_TERMS = 4


@dataclass(frozen=True)
class SmallStack:
    """Sizes of the matrices, and strides in bytes: of rows and columns of the operands, and of the
    result's rows.

    ``part`` is the dtype of a number, or of both parts of one that ``is_complex``. ``lanes`` are
    the float32 numbers of a vector of the processor.
    """

    part: str
    is_complex: bool
    rows: int
    terms: int
    columns: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: int
    lanes: int

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(numpy_dtype(self.part).itemsize) * (2 if self.is_complex else 1)

    @property
    def width(self) -> int:
        """Columns of a vector: a power of two, with a mask if there are fewer columns."""
        widest = max(1, 4 * self.lanes // self.itemsize)
        columns = self.columns - 1 if self.lanes >= WIDTH_WITH_MASKS else self.columns >> 1
        return min(widest, 1 << columns.bit_length())

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and vectors of a tile, such that sums stay in registers."""
        registers = (24 if self.lanes == 16 else 12) // (2 if self.is_complex else 1)
        whole, most = -(-self.columns // self.width), 3 if self.lanes == 16 else 2
        vectors = -(-whole // -(-whole // most))
        most = max(1, registers // vectors)
        return -(-self.rows // -(-self.rows // most)), vectors


def small_stacks_ir(plan: SmallStack) -> str:
    """The module of ``kernel``, a task of which is one matrix of the stack."""
    s = _StackBuilder(plan)
    s.source()
    return s.task_module()


class _StackBuilder(Builder):
    """Builds the function of tasks. A vector has both parts of each of its numbers."""

    def __init__(self, plan: SmallStack) -> None:
        super().__init__(plan.width * (2 if plan.is_complex else 1), plan.part)
        self.plan, self.size = plan, plan.itemsize
        self.height, self.vectors = plan.tile
        used = plan.columns * self.width // plan.width
        #: The lanes of columns, if there are fewer than a vector has.
        self.used = first_lanes(used, self.width) if used < self.width else ""
        self._tags = 0

    def source(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, entry = self.plan, list[str]()
        for name in ("a", "b", "c"):
            entry += data_of(f"%{name}", WORDS.index(name))
            entry += word(f"%{name}_stack", WORDS.index(f"{name}_stack"))
        turns = plan.b[1] != self.size and plan.columns > 1
        if turns:
            entry.append(
                f"%turned = alloca i8, i64 {plan.terms * plan.columns * self.size}, align 64"
            )
        self.tasks(entry, "task")
        a, b, c = (self.bytes_at(f"%{name}", ("%r", f"%{name}_stack")) for name in "abc")
        step = plan.b[0]
        if turns:
            step = plan.columns * self.size
            self._turn(b)
            b = "%turned"
        self._each(plan.rows, self.height, lambda i: self._row(a, b, c, step, i))

    def tag(self) -> str:
        """A new name of a loop."""
        self._tags += 1
        return f"loop{self._tags}"

    def _each(self, count: int, step: int, body: Callable[[int | str], None]) -> None:
        """``body(first)`` for parts of ``step`` of ``count``; the last one begins early enough."""
        if count <= step:
            body(0)
            return

        with self.each(self.tag(), 0, str(count), step=step) as i:
            body(i if count % step == 0 else self.least(i, count - step))

    def _moved(self, base: str, index: int | str, step: int) -> str:
        """The address ``base + index * step``."""
        if isinstance(index, int):
            return self.bytes_at(base, index * step)
        return self.bytes_at(base, self.affine(index, step))

    # -- a second operand whose columns are not contiguous ----------------------------------------

    def _turn(self, b: str) -> None:
        """Append the copy of ``b`` into contiguous rows."""
        plan = self.plan
        kind = {4: "float", 8: "double"}.get(self.size)
        side = min(8, 1 << (min(plan.terms, plan.columns).bit_length() - 1))
        if kind is None or plan.b[0] != self.size:
            kind, side = f"<{self.size // 4} x float>", 1
        row = plan.columns * self.size

        def square(t: int | str, j: int | str) -> None:
            begun = self._moved(self._moved(b, t, plan.b[0]), j, plan.b[1])
            vector = f"<{side} x {kind}>" if side > 1 else kind
            lines = [
                self.new(f"load {vector}, ptr {self.bytes_at(begun, i * plan.b[1])}, align 4")
                for i in range(side)
            ]
            to = self._moved(self._moved("%turned", t, row), j, self.size)
            for i, x in enumerate(self.transposed(vector, lines)):
                self.put(f"store {vector} {x}, ptr {self.bytes_at(to, i * row)}, align 4")

        self._each(
            plan.terms, side, lambda t: self._each(plan.columns, side, lambda j: square(t, j))
        )

    # -- tiles ------------------------------------------------------------------------------------

    def _row(self, a: str, b: str, c: str, step: int, i: int | str) -> None:
        """Append the tiles of the rows from ``i``."""
        plan = self.plan
        a, c = self._moved(a, i, plan.a[0]), self._moved(c, i, plan.c)
        many = self.vectors * plan.width
        if plan.columns <= many:
            self._tile(a, b, c, step)
            return

        def panel(j: int | str) -> None:
            self._tile(a, self._moved(b, j, self.size), self._moved(c, j, self.size), step)

        self._each(plan.columns, many, panel)

    def _tile(self, a: str, b: str, c: str, step: int) -> None:
        """Append a tile: the sums over all terms, and their stores."""
        plan, parts = self.plan, 2 if self.plan.is_complex else 1
        last = max(0, min(plan.columns, self.vectors * plan.width) - plan.width)
        places = [min(v * plan.width, last) * self.size for v in range(self.vectors)]
        sums = ["zeroinitializer"] * (self.height * self.vectors * parts)
        if len(sums) * plan.terms <= _MAX_STRAIGHT:
            for t in range(plan.terms):
                sums = self._term(self.bytes_at(a, t * plan.a[1]), self.bytes_at(b, t * step),
                                  places, sums)  # fmt: skip
        else:
            whole = plan.terms // _UNROLL_TERMS * _UNROLL_TERMS

            def some(t: str, now: list[str]) -> list[str]:
                x, y = self._moved(a, t, plan.a[1]), self._moved(b, t, step)
                for k in range(_UNROLL_TERMS):
                    now = self._term(self.bytes_at(x, k * plan.a[1]), self.bytes_at(y, k * step),
                                     places, now)  # fmt: skip
                return now

            if whole:
                sums = self.counted(self.tag(), 0, str(whole), some, sums, self.vector,
                                    step=_UNROLL_TERMS)  # fmt: skip
            for t in range(whole, plan.terms):
                sums = self._term(self.bytes_at(a, t * plan.a[1]), self.bytes_at(b, t * step),
                                  places, sums)  # fmt: skip
        self._store(c, places, sums)

    def _term(self, a: str, b: str, places: list[int], sums: list[str]) -> list[str]:
        """Append one term of the sums: a row of ``b`` by an element of each row of ``a``."""
        plan, made = self.plan, list[str]()
        loads = [self.load(self.bytes_at(b, at), self.used) for at in places]
        for i in range(self.height):
            row = self.bytes_at(a, i * plan.a[0])
            for part in range(2 if plan.is_complex else 1):
                every = self.broadcast(self.at(row, part))
                for x in loads:
                    made.append(self.multiply_add(every, x, sums[len(made)]))
        return made

    def _store(self, c: str, places: list[int], sums: list[str]) -> None:
        """Append the stores of a tile's sums."""
        plan, count = self.plan, len(places)
        for i in range(self.height):
            row = self.bytes_at(c, i * plan.c)
            own = sums[i * count :] if not plan.is_complex else sums[2 * i * count :]
            for v, at in enumerate(places):
                x = self._whole(own[v], own[v + count]) if plan.is_complex else own[v]
                self.store(x, self.bytes_at(row, at), self.used)

    def _whole(self, real: str, imaginary: str) -> str:
        """Sums of products by real and by imaginary parts as one: the second ones times i."""
        swapped = [k ^ 1 for k in range(self.width)]
        turned = self.shuffled(self.vector, imaginary, "poison", swapped)
        chosen = [k + (k & 1) * self.width for k in range(self.width)]
        return self.shuffled(self.vector, self.sub(real, turned), self.add(real, turned), chosen)
