"""What a plan on the CPU has to know of a kernel: whose code runs, and by which threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["FOREIGN", "LLVM", "LLVM_ASKING", "NUMPY", "ONEDNN", "PYTHON", "Traits", "traits_of"]


@dataclass(frozen=True)
class Traits:
    """Declared by each kernel class of the CPU as ``traits``.

    ``code`` is ``numpy`` (ufuncs and copies: no BLAS, nothing of a user's), ``llvm`` (compiled
    here), ``onednn``, ``python`` (an op's reference, which may call BLAS and run what a user
    wrote) or ``foreign``: a kernel that declares nothing. ``asks`` says that threads are asked for
    when it is bound (:func:`symdnn.cpu.threads.threads.threads`), or that it runs alone.

    >>> from symdnn.cpu.elementwise.elementwise import ElementwiseKernel
    >>> ElementwiseKernel.traits.threaded, ElementwiseKernel.traits.closed
    (True, True)
    """

    code: str
    asks: bool = False

    @property
    def threaded(self) -> bool:
        """Whether threads of libgomp may run it."""
        return self.code in ("llvm", "onednn")

    @property
    def closed(self) -> bool:
        """Whether it runs nothing of a user's, and no BLAS."""
        return self.code not in ("python", "foreign")

    @property
    def compiled(self) -> bool:
        """Whether it is compiled here."""
        return self.code == "llvm"

    @property
    def replaceable(self) -> bool:
        """Whether a compiled kernel may take its place once a plan has been called often."""
        return self.code in ("numpy", "python")


PYTHON, NUMPY, ONEDNN = Traits("python"), Traits("numpy"), Traits("onednn")
FOREIGN = Traits("foreign")
LLVM, LLVM_ASKING = Traits("llvm"), Traits("llvm", asks=True)


def traits_of(kernel: Any) -> Traits:
    """The traits of a kernel; of one that declares none, those that promise nothing."""
    found: Traits = getattr(kernel, "traits", FOREIGN)
    return found
