"""Names of ``theano.tensor.inplace``: each is the function itself, since the compiler decides what
is done in place."""

from __future__ import annotations

from typing import Any

from symdnn import tensor as T

_OTHER = {"abs_": "abs", "and_": "and_", "or_": "or_", "second": "fill", "transpose_": "transpose"}


def __getattr__(name: str) -> Any:
    base = name.removesuffix("_inplace")
    found = getattr(T, _OTHER.get(base, base), None) if base != name else None
    if found is None:
        raise AttributeError(name)
    return found
