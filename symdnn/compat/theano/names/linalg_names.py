"""Names of Theano's modules of linear algebra that symdnn has under another name."""

from __future__ import annotations

from typing import Any

from symdnn import tensor as T

__all__ = ["diag", "extract_diag", "kron", "matrix_dot", "trace"]

diag, kron, matrix_dot, trace = T.diag, T.kron, T.matrix_dot, T.trace
alloc_diag = T.alloc_diag


def extract_diag(x: Any) -> Any:
    """The diagonal of a matrix."""
    return T.diagonal(x)
