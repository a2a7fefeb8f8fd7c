"""The traits of the CPU's kernels: whose code runs, and in which threads."""

from __future__ import annotations

from symdnn.graph.kernel import Traits

#: NumPy's ufuncs and copies; and references of ops, which may call BLAS and run users' code.
NUMPY, PYTHON = Traits("numpy"), Traits("numpy", runs_user_code=True)
#: NumPy's products of matrices, which call BLAS.
MATMUL = Traits("numpy", calls_blas=True)
#: Launches in Python, compiled and NumPy's, that make no warnings.
LLVM_QUIET, NUMPY_QUIET = Traits("llvm", True, quiet=True), Traits("numpy", quiet=True)
LLVM, LLVM_ASKS_THREADS = Traits("llvm"), Traits("llvm", asks_threads=True)
ONEDNN = Traits("onednn")
