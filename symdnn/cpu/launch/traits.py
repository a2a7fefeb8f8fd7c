"""The traits of the CPU's kernels: whose code runs, and by which threads."""

from __future__ import annotations

from symdnn.graph.kernel import Traits

__all__ = ["LLVM", "LLVM_ASKING", "NUMPY", "ONEDNN", "PYTHON"]

#: Ufuncs and copies; and an op's reference, which may call BLAS and run what a user wrote.
NUMPY, PYTHON = Traits("numpy"), Traits("numpy", runs_user_code=True)
LLVM, LLVM_ASKING = Traits("llvm"), Traits("llvm", asks_threads=True)
ONEDNN = Traits("onednn")
