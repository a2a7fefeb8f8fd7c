"""The reference interpreter: each node by its op's NumPy reference, in order.

It is slow and simple on purpose. Constant folding uses it, and gradients, kernels and ``DebugMode``
are checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import MissingInputError, SymdnnError
from symdnn.graph.traverse import toposort
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Constant, Shared, Variable, constant

__all__ = ["Uncomputed", "evaluate", "evaluate_node", "evaluator", "of_constants"]


def evaluate(outputs: Sequence[Variable], values: Mapping[Variable, Any]) -> list[Array]:
    """Values of ``outputs`` given those of the inputs (or of any variables in between)."""
    return evaluator(outputs, values)(values)


def evaluator(
    outputs: Sequence[Variable], given: Iterable[Variable]
) -> Callable[[Mapping[Variable, Any]], list[Any]]:
    """A function of the values of ``given`` that computes ``outputs``; the graph is sorted once."""
    order = toposort(outputs, blockers=given)

    def run(values: Mapping[Variable, Any]) -> list[Array]:
        known: dict[Variable, Any] = dict(values)
        with np.errstate(all="ignore"):
            for node in order:
                results = _results(node, [_value(v, known) for v in node.inputs])
                known.update(zip(node.outputs, results, strict=True))
        return [_value(v, known) for v in outputs]

    return run


def evaluate_node(node: Apply, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs of one node by reference, checked against the node's types."""
    with np.errstate(all="ignore"):
        return _results(node, inputs)


def _results(node: Apply, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """:func:`evaluate_node` for callers that have switched off NumPy's warnings."""
    try:
        results = node.op.compute(*inputs)
        return tuple([_conform(v, r) for v, r in zip(node.outputs, results, strict=True)])
    except Exception as error:
        note_failure(error, node, inputs)
        raise


@dataclass(frozen=True)
class Uncomputed:
    """A stand-in for an array of which only dtype and shape are known."""

    dtype: Any
    shape: tuple[int | None, ...]
    why: str = "not computed yet"


def note_failure(error: BaseException, node: Apply, inputs: Sequence[Any]) -> None:
    """Add :func:`describe_failure` to an error, once though it passes several that would."""
    note = describe_failure(node, inputs)
    if isinstance(error, SymdnnError) and error.origin is None:
        error.origin = node.origin
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def describe_failure(node: Apply, inputs: Sequence[Any]) -> str:
    """A description of a failing node with the user's line, for ``add_note``.

    With the flag ``exception_verbosity=high`` it has the node's graph, and strides and values of
    its inputs, too.
    """
    shown = ", ".join(_describe(v) for v in inputs)
    where = node.origin.text()
    made = f"\nIt was made here:\n{where}" if where else ""
    name = f" ({node.hints.name})" if node.hints.name else ""
    more = _in_detail(node, inputs) if config.exception_verbosity == "high" else ""
    return f"While running {node.op}{name} on ({shown}).{made}{more}"


def _in_detail(node: Apply, inputs: Sequence[Any]) -> str:
    lines = ["", "Its inputs:"]
    overwritten = node.op.may_overwrite.values()
    for i, (v, value) in enumerate(zip(node.inputs, inputs)):
        changed = isinstance(value, np.ndarray) and any(i in k for k in overwritten)
        note = " (the node may have written over it)" if changed else ""
        lines.append(f"  {i}: {v} of type {v.type}: {_describe(value)}{_contents(value)}{note}")
    return "\n".join([*lines, "Its graph:", *_tree(node)])


def _contents(value: object) -> str:
    """Strides and small values of an array; the reason if it has not been computed."""
    if isinstance(value, Uncomputed):
        return f", {value.why}"
    if not isinstance(value, np.ndarray | np.generic):
        return ""
    small = f", value {value.tolist()}" if value.size <= 8 else ""
    return f", strides {value.strides}{small}"


def _tree(node: Apply, depth: int = 6) -> list[str]:
    """The nodes above ``node``, indented, each once."""
    lines: list[str] = []
    seen: set[Apply] = set()
    stack: list[tuple[Variable | Apply, int]] = [(node, 0)]
    while stack:
        item, level = stack.pop()
        owner = item if isinstance(item, Apply) else item.owner
        pad = "  " * (level + 1)
        if owner is None:
            lines.append(f"{pad}{item} <{item.type}>")  # type: ignore[union-attr]
            continue
        again = owner in seen or level >= depth
        types = "".join(f" <{v.type}>" for v in owner.outputs[:1])  # a check has no outputs
        lines.append(f"{pad}{owner.op}{types}{' ...' if again else ''}")
        if not again:
            seen.add(owner)
            stack += [(v, level + 1) for v in reversed(owner.inputs)]
    return lines


def _describe(value: object) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{tuple(value.shape)}"
    return type(value).__name__


def _conform(variable: Variable, value: object) -> Any:
    type_ = variable.type
    if isinstance(type_, OpaqueType):
        return value
    array = np.asarray(value)
    if array.dtype != type_.numpy:
        raise TypeError(f"the reference gave {array.dtype}, the type rule says {type_}")
    type_.check_value_shape(array.shape, "the reference's output")
    return array


def _value(variable: Variable, known: Mapping[Variable, Any]) -> Any:
    if variable in known:
        return known[variable]
    if isinstance(variable, Constant):
        return variable.data
    if isinstance(variable, Shared):
        return variable.get_value(borrow=True)
    raise MissingInputError(f"no value for the input {variable} of type {variable.type}")


#: Longer arithmetic of sizes is left to the compiler.
_MOST_FOLDED_VALUES = 64


def of_constants(v: Variable) -> Variable:
    """``v`` as a constant, if it is an integer computed from constant integer scalars alone."""
    values: dict[Variable, Any] = {}
    waiting = [v]
    while waiting:
        u = waiting[-1]
        if isinstance(u, Constant):
            values[u] = u.data
        if u in values:
            waiting.pop()
            continue
        node = u.owner
        if node is None or len(waiting) + len(values) > _MOST_FOLDED_VALUES or not _folds(u, node):
            return v
        unknown = [i for i in node.inputs if i not in values]
        waiting += unknown
        if not unknown:
            values[u] = evaluate_node(node, [values[i] for i in node.inputs])[0]
    return v if isinstance(v, Constant) else constant(values[v], dtype=v.type.dtype)


def _folds(v: Variable, node: Apply) -> bool:
    """Whether ``v`` is an integer scalar that ``node`` computes from integer scalars."""
    plain = node.op.folds and not node.op.unmergeable and len(node.outputs) == 1
    return (
        plain
        and bool(node.inputs)
        and all(
            isinstance(u.type, TensorType) and u.type.is_integer_scalar for u in (v, *node.inputs)
        )
    )
