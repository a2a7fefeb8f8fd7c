"""The adapter kernel: it runs a call as a call of another op, or in another layout.

A library's op has the meaning of a neutral op. If the library refuses a plan's shapes, or another
kernel is faster, a kernel of the neutral op runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.kernel import FOREIGN, Call, Kernel, Traits, kernels_for

__all__ = ["Substitute"]


@dataclass(frozen=True)
class Substitute(Kernel):
    """Runs ``rewritten(call)`` by the first of ``kernels`` that does not refuse it.

    ``rewritten`` returns the call to run, on the same operands, or the reason in words why there is
    none. The default ``kernels`` are those of the other op on ``target_kind``. With ``lends_name``
    reports name the kernel that runs.
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
        """The reason why there is no other call, or why all kernels refuse it."""
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
        """The substitute with only the kernel that runs, whose choices are made."""
        inner, kernel = self.taken(call)
        own = kernel.settled(inner)
        name = own.name if self.lends_name else self.name
        return replace(self, kernels=(own,), name=name, traits=own.traits)

    def capturable(self, call: Call) -> bool:
        """As the kernel that runs."""
        inner, kernel = self.taken(call)
        return kernel.capturable(inner)

    def workspace_bytes(self, call: Call) -> int:
        """The workspace of the kernel that runs."""
        inner, kernel = self.taken(call)
        return kernel.workspace_bytes(inner)

    def bind(self, call: Call) -> Any:
        """The launch of the kernel that runs."""
        inner, kernel = self.taken(call)
        return kernel.bind(inner)

    def details(self, call: Call) -> str:
        """The details of the kernel that runs."""
        inner, kernel = self.taken(call)
        return kernel.details(inner)
