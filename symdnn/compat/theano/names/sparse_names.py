"""Names of ``theano.sparse`` that symdnn's has under another name."""

from __future__ import annotations

from typing import Any

__all__ = ["shared_sparse"]


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
