"""The builder of LLVM IR for loops: it appends lines to a function and names their registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

__all__ = ["ROWS", "Source", "first_task"]

#: First line of the function ``rows``, which runs a thread's range of tasks.
ROWS = "define internal void @rows(ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1) #0 {"


def first_task(entry: Iterable[str], name: str) -> list[str]:
    """Lines that begin the function ``rows`` and its loop over ``%r``, the basic block ``name``.

    The lines ``entry`` come before the loop; :func:`~symdnn.cpu.ir.loops_ir.next_task` ends it.
    """
    begin = f"%r = phi i64 [%r0, %entry], [%r_next, %{name}_end]"
    return [ROWS, "entry:", *entry, f"br label %{name}", f"{name}:", begin]


class Source:
    """A builder of a function's lines; :attr:`block` names the current basic block."""

    def __init__(self, block: str = "entry") -> None:
        self.lines: list[str] = []
        self.block = block
        self._count = 0

    def new(self, text: str) -> str:
        """Append an instruction; returns its register."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")
        self.block = name

    def tasks(self, entry: Iterable[str], name: str = "task") -> None:
        """Begin the function ``rows`` and its loop over tasks; see :func:`first_task`."""
        self.lines += first_task(entry, name)
        self.block = name

    def counted(
        self, name: str, low: int, high: str, body: Callable[[str, list[str]], list[str]],
        carried: Sequence[str] = (), kind: str = "",
    ) -> list[str]:  # fmt: skip
        """A loop over ``i`` from ``low`` to below ``high``, which runs at least once.

        ``body(i, values)`` writes one iteration. It takes the loop-carried values, of type
        ``kind``, and returns those of the next iteration. ``carried`` are the initial values; the
        final ones are returned.
        """
        before, i = self.block, f"%i_{name}"
        self.lines.append(f"br label %{name}")
        self.label(name)
        at = len(self.lines)
        self.lines += [""] * (1 + len(carried))
        phis = [f"%c{n}_{name}" for n in range(len(carried))]
        after = body(i, phis)
        following = self.new(f"add nuw nsw i64 {i}, 1")
        more = self.new(f"icmp slt i64 {following}, {high}")
        self.lines[at] = f"{i} = phi i64 [{low}, %{before}], [{following}, %{self.block}]"
        for n, (first, last) in enumerate(zip(carried, after, strict=True)):
            self.lines[at + 1 + n] = (
                f"{phis[n]} = phi {kind} [{first}, %{before}], [{last}, %{self.block}]"
            )
        self.lines.append(f"br i1 {more}, label %{name}, label %{name}_end")
        self.label(f"{name}_end")
        return after

    def affine(self, i: str, factor: int, offset: int = 0) -> str:
        """``factor * i + offset``"""
        if factor != 1:
            i = self.new(f"mul nsw i64 {i}, {factor}")
        return self.new(f"add nsw i64 {i}, {offset}") if offset else i
