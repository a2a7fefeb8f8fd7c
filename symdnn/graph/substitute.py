"""A kernel that runs a call as one of another op, or in another layout: the one adapter there is.

A library's op means what an op of no library means. Where the library refuses a plan's shapes, or a
kernel of ours is faster, the kernels of that other op run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.kernel import FOREIGN, Call, Kernel, Traits, kernels_for

__all__ = ["Substitute"]


@dataclass(frozen=True)
class Substitute(Kernel):
    """Runs ``rewritten(call)`` by the first of ``kernels`` that takes it.

    ``rewritten`` gives the call that runs, on the same operands, or in words why there is none.
    Without ``kernels`` they are those of the other op on ``target_kind``. With ``lends_name`` a
    report calls it by the name of the kernel that runs.
    """

    rewritten: Callable[[Call], Call | str]
    target_kind: str
    kernels: tuple[Kernel, ...] = ()
    name: str = "neutral"
    traits: Traits = FOREIGN
    contiguous_inputs: bool = False
    lends_name: bool = False

    def _candidates(self, inner: Call) -> tuple[Kernel, ...]:
        return self.kernels or tuple(kernels_for(type(inner.op), self.target_kind))

    def refuses(self, call: Call) -> str | None:
        """Why there is no other call, or what all kernels refuse in it."""
        inner = self.rewritten(call)
        if isinstance(inner, str):
            return inner
        reasons = dict.fromkeys(k.refuses(inner) for k in self._candidates(inner))
        if None in reasons:
            return None
        return "; ".join(map(str, reasons)) or f"{inner.op} has no kernel"

    def taken(self, call: Call) -> tuple[Call, Kernel]:
        """The other call, and the kernel that runs it."""
        inner = self.rewritten(call)
        assert not isinstance(inner, str), "a kernel that refuses was chosen"
        return inner, next(k for k in self._candidates(inner) if k.refuses(inner) is None)

    def settled(self, call: Call) -> Substitute:
        """With the one kernel that runs, its own choices made."""
        inner, kernel = self.taken(call)
        own = kernel.settled(inner)
        name = own.name if self.lends_name else self.name
        return replace(self, kernels=(own,), name=name, traits=own.traits)

    def capturable(self, call: Call) -> bool:
        """As the kernel that runs."""
        inner, kernel = self.taken(call)
        return kernel.capturable(inner)

    def workspace_bytes(self, call: Call) -> int:
        """What the kernel needs."""
        inner, kernel = self.taken(call)
        return kernel.workspace_bytes(inner)

    def bind(self, call: Call) -> Any:
        """The kernel's launch."""
        inner, kernel = self.taken(call)
        return kernel.bind(inner)

    def details(self, call: Call) -> str:
        """Those of the kernel that runs."""
        inner, kernel = self.taken(call)
        return kernel.details(inner)
