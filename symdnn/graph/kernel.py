"""The table (op type, target kind) -> kernels that can run it.

Kernels enter the table when ``compile`` loads their target, never when ``opt`` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from symdnn.errors import SymdnnError
from symdnn.graph.op import Op
from symdnn.graph.origin import Hints
from symdnn.graph.type import Type

if TYPE_CHECKING:
    from symdnn.graph.variable import Apply, Variable

__all__ = ["Call", "Kernel", "Launch", "Versions", "kernels_for", "register_kernel"]

#: Runs a bound kernel on (input buffers, output buffers). A buffer is None where size or content is
#: the kernel's own; then it returns all outputs.
Launch = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any] | None]

#: Values -> a number that changes when the value does; None where that can't be told.
Versions = Mapping["Variable", Callable[[], "int | None"]]


@dataclass(frozen=True)
class Call:
    """One node at a plan's shapes: what an oracle is asked about and a kernel is bound to.

    ``node`` is the node itself, where there is one: a choice may be kept for all its shapes.
    ``versions`` tell of values that are computed before and kept whether they have changed. Both
    are no part of what makes two calls equal.
    """

    op: Op
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
    hints: Hints
    node: Apply | None = field(default=None, compare=False, repr=False)
    versions: Versions = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.inputs))})"


class Kernel(Protocol):
    """One way to run an op on one target."""

    @property
    def name(self) -> str:
        """What reports call it, such as ``numpy.im2col`` or ``cudnn.fft_tiling``."""

    def refuses(self, call: Call) -> str | None:
        """Why it cannot run this call; None when it can.

        It is asked twice: for the types of a graph, when nodes are placed (sizes may be None; a
        ``TypeError`` over them counts as None), and for the shapes of a plan. What
        the types decide, such as a dtype, it says before it looks at sizes.
        """

    def workspace_bytes(self, call: Call) -> int:
        """Scratch memory that it needs besides inputs and outputs."""

    def bind(self, call: Call) -> Launch:
        """What runs it, everything that does not depend on data settled."""


_table: dict[tuple[type[Op], str], list[Kernel]] = {}
_default: dict[str, Kernel] = {}


def register_kernel(
    op_type: type[Op], target_kind: str, kernel: Kernel, first: bool = False
) -> None:
    """Add a kernel; a second one of the same name is refused. Order is preference: it comes after
    those that are there, or with ``first`` before them."""
    entries = _table.setdefault((op_type, target_kind), [])
    if any(k.name == kernel.name for k in entries):
        raise SymdnnError(f"kernel {kernel.name} for {op_type.__name__} is registered already")
    entries.insert(0 if first else len(entries), kernel)


def register_default_kernel(target_kind: str, kernel: Kernel) -> None:
    """The kernel for ops that have no other on this target."""
    if target_kind in _default:
        raise SymdnnError(f"target {target_kind} has a default kernel already")
    _default[target_kind] = kernel


def kernels_for(op_type: type[Op], target_kind: str) -> list[Kernel]:
    """Candidates in order of preference: those of the type, of its bases, then the default."""
    found: list[Kernel] = []
    for base in op_type.__mro__:
        if issubclass(base, Op):
            found += _table.get((base, target_kind), [])
    if target_kind in _default:
        found.append(_default[target_kind])
    return found
