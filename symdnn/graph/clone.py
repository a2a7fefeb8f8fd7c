"""Copies of expressions with some variables replaced (Theano's ``clone``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symdnn.errors import TypeMismatch
from symdnn.graph.traverse import clone_graph
from symdnn.graph.variable import Constant, Variable, as_variable

__all__ = ["clone"]


def clone(
    output: Any,
    replace: Any = None,
    strict: bool = True,
    share_inputs: bool = True,
    copy_inputs: bool | None = None,
) -> Any:
    """``output`` (a variable, a list or a dict of them) with variables replaced.

    ``replace`` maps variables to expressions; with ``strict`` a replacement must have the type
    of its variable. With ``share_inputs=False`` the copy has new inputs; the copy of a shared
    variable has the same storage. ``copy_inputs`` is the old name of ``share_inputs``.
    """
    share_inputs = share_inputs if copy_inputs is None else copy_inputs
    pairs = dict(replace.items() if isinstance(replace, Mapping) else replace or ())
    new = {old: as_variable(v) for old, v in pairs.items()}
    if strict:
        for old, v in new.items():
            if not old.type.accepts(v.type):
                raise TypeMismatch("clone", f"{old.type} for {old}", v.type)
    if isinstance(output, Mapping):
        keys = list(output)
        return dict(zip(keys, _clone([output[k] for k in keys], new, share_inputs)))
    if isinstance(output, list | tuple):
        return _clone(list(output), new, share_inputs)
    return _clone([output], new, share_inputs)[0]


def _clone(
    outputs: list[Variable], replace: dict[Variable, Variable], share_inputs: bool
) -> list[Variable]:
    memo = clone_graph(outputs, replace, _same if share_inputs else _copy)
    return [memo[v] for v in outputs]


def _same(v: Variable) -> Variable:
    return v


def _copy(v: Variable) -> Variable:
    return v if isinstance(v, Constant) else v.clone()
