"""LLVM IR of a radix sort of unsigned integers, by digits of 8 bits, the lowest first.

It takes a nanosecond for each digit of a number, in memory that a cache has, whatever their order.
A sort by comparisons takes the more the longer the line. What a digit writes to are 256 places, so
that their cache lines stay in the first cache.
"""

from __future__ import annotations

from symdnn.cpu.ir.builder import FunctionBuilder

_TABLE = "[256 x i64]"


class _Radix(FunctionBuilder):
    """Builds the function for integers of so many bits."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def text(self) -> list[str]:
        """The lines of the function."""
        given = "ptr %a, ptr %b, i64 %n, i64 %digits"
        self.put(
            "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
            f"define internal ptr @radix{self.bits}({given}) noinline #0 {{", "entry:",
            *(f"%{name} = alloca {_TABLE}, align 64" for name in ("count", "count_next")),
            "%end = shl i64 %digits, 3",
        )  # fmt: skip
        with self.when("some", self.new("icmp ne i64 %digits, 0")):
            self._clear("%count")
            with self.each("first", 0, "%n") as i:
                self._counted(self._wide(self._key("%a", i)), "0", "%count")
            begun = ["%a", "%b", "%count", "%count_next"]
            found, *_ = self.counted("pass", 0, "%end", self._pass, begun, "ptr", step=8)
        self.put(f"%found = phi ptr [%a, %entry], [{found}, %pass_end]", "ret ptr %found", "}")
        return self.lines

    def _clear(self, table: str) -> None:
        self.call("llvm.memset.p0.i64", f"ptr {table}", "i8 0", "i64 2048", "i1 false")

    def _key(self, base: str, i: str) -> str:
        """The address of a number."""
        return self.new(f"getelementptr i{self.bits}, ptr {base}, i64 {i}")

    def _wide(self, at: str) -> str:
        key = self.new(f"load i{self.bits}, ptr {at}, align 1")
        return key if self.bits == 64 else self.new(f"zext i{self.bits} {key} to i64")

    def _counted(self, number: str, shift: str, table: str) -> str:
        """Count a digit of a number in a table; returns the count before."""
        digit = self.new(f"and i64 {self.new(f'lshr i64 {number}, {shift}')}, 255")
        at = self.new(f"getelementptr i64, ptr {table}, i64 {digit}")
        before = self.new(f"load i64, ptr {at}")
        self.put(f"store i64 {self.plus(before, 1)}, ptr {at}")
        return before

    def _pass(self, shift: str, carried: list[str]) -> list[str]:
        """Move all numbers by a digit to the other memory, and count the next digit."""
        source, to, own, other = carried
        self._clear(other)

        def place(p: str, sums: list[str]) -> list[str]:
            at = self.new(f"getelementptr i64, ptr {own}, i64 {p}")
            count = self.new(f"load i64, ptr {at}")
            self.put(f"store i64 {sums[0]}, ptr {at}")
            return [self.plus(sums[0], count)]

        self.counted("places", 0, "256", place, ["0"], "i64")
        following = self.new(f"and i64 {self.plus(shift, 8)}, 63")
        with self.each("move", 0, "%n") as i:
            number = self._wide(self._key(source, i))
            at = self._key(to, self._counted(number, shift, own))
            key = self.new(f"trunc i64 {number} to i32") if self.bits == 32 else number
            self.put(f"store i{self.bits} {key}, ptr {at}, align 1")
            self._counted(number, following, other)
        return [to, source, other, own]


def radix_function(bits: int) -> list[str]:
    """The function ``radix32`` or ``radix64``: (line, as much memory, n, digits) -> where they are.

    It sorts ``n`` integers, at least one, by so many of their lowest digits.
    """
    return _Radix(bits).text()
