"""Names of ``theano.sparse`` that symdnn's has under another name."""

from __future__ import annotations

from typing import Any

from symdnn.graph.type import Type

__all__ = [
    "SparseConstant",
    "SparseTensorSharedVariable",
    "SparseType",
    "SparseVariable",
    "shared_sparse",
]


class SparseType(Type):
    """The type of sparse matrices where symdnn has none: no variable is of it."""


class SparseVariable:
    """The class of sparse variables where symdnn has none."""


class SparseConstant(SparseVariable):
    """The class of sparse constants where symdnn has none."""


class SparseTensorSharedVariable(SparseVariable):
    """The class of shared sparse matrices where symdnn has none."""


SparseTensorVariable = SparseVariable
enable_sparse = True
sparse_formats = ["csc", "csr"]


def shared_sparse(value: Any, name: str | None = None, **words: Any) -> Any:
    """What ``theano.shared`` makes of a SciPy matrix: ``symdnn.sparse.shared``."""
    try:
        from symdnn import sparse  # type: ignore[attr-defined, unused-ignore]
    except ImportError:
        kind = type(value).__name__
        raise TypeError(
            f"theano.shared of a {kind}: this version of symdnn has no sparse matrices; "
            "pass value.toarray()"
        ) from None
    return sparse.shared(value, name, **words)
