"""What generators of LLVM IR for compiled loops share: a function's lines as they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

__all__ = ["ROWS", "Source", "first_task"]

#: The head of the function that runs a part of the tasks.
ROWS = "define internal void @rows(ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1) #0 {"


def first_task(entry: Iterable[str], name: str) -> list[str]:
    """Lines that begin the function ``rows`` up to its loop over ``%r``, a block ``name``.

    ``entry`` stand in front of the loop; :func:`~symdnn.cpu.ir.loops_ir.next_task` ends it.
    """
    begin = f"%r = phi i64 [%r0, %entry], [%r_next, %{name}_end]"
    return [ROWS, "entry:", *entry, f"br label %{name}", f"{name}:", begin]


class Source:
    """Lines of a function; :attr:`block` is the one that the next line belongs to."""

    def __init__(self, block: str = "entry") -> None:
        self.lines: list[str] = []
        self.block = block
        self._count = 0

    def new(self, text: str) -> str:
        """A register with this value."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def tasks(self, entry: Iterable[str], name: str = "task") -> None:
        """Begin the function ``rows`` and its block ``name``, as :func:`first_task` says."""
        self.lines += first_task(entry, name)
        self.block = name

    def counted(
        self, name: str, low: int, high: str, body: Callable[[str, list[str]], list[str]],
        carried: Sequence[str] = (), kind: str = "",
    ) -> list[str]:  # fmt: skip
        """``body(i, values)`` for each number from ``low`` to below ``high``; there is one.

        It is given values of a ``kind`` that it gives on to the next; ``carried`` are the first,
        and the last are returned.
        """
        before, i = self.block, f"%i_{name}"
        self.lines.append(f"br label %{name}")
        self.label(name)
        at = len(self.lines)
        self.lines += [""] * (1 + len(carried))
        held = [f"%c{n}_{name}" for n in range(len(carried))]
        after = body(i, held)
        following = self.new(f"add nuw nsw i64 {i}, 1")
        more = self.new(f"icmp slt i64 {following}, {high}")
        self.lines[at] = f"{i} = phi i64 [{low}, %{before}], [{following}, %{self.block}]"
        for n, (first, last) in enumerate(zip(carried, after, strict=True)):
            self.lines[at + 1 + n] = (
                f"{held[n]} = phi {kind} [{first}, %{before}], [{last}, %{self.block}]"
            )
        self.lines.append(f"br i1 {more}, label %{name}, label %{name}_end")
        self.label(f"{name}_end")
        return after

    def affine(self, i: str, factor: int, offset: int = 0) -> str:
        """``factor * i + offset``"""
        if factor != 1:
            i = self.new(f"mul nsw i64 {i}, {factor}")
        return self.new(f"add nsw i64 {i}, {offset}") if offset else i
