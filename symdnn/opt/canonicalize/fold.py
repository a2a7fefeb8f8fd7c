"""Constant folding: a node whose inputs are all constants becomes a constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, static_dim
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.elemwise import Elemwise
from symdnn.rewriting.rewrite import Context, node_rewrite

#: A result with more elements than this is folded only if its inputs together have as many.
FOLD_LIMIT_ELEMENTS = 4096


@node_rewrite(
    Op, phase="canonicalize", tags=("fast_compile", "cleanup", "constant_folding"),
    name="constant_folding", admits=lambda op, made: set(made) == {Constant},
)  # fmt: skip
def constant_folding(node: Apply, context: Context) -> Sequence[Variable] | None:
    """A node of constants is evaluated by its reference, unless the result is a large constant."""
    if node.op.unmergeable or not node.op.folds or _too_big(node):
        return None
    if not all(isinstance(v.type, TensorType) for v in node.outputs):
        return None
    try:
        values = evaluate_node(node, [v.data for v in node.inputs])  # type: ignore[attr-defined]
    except Exception:
        return None  # the node fails when the function runs, with the user's line
    exact = _exact(node)
    return [Constant(value, exact=exact) for value in values]


def _exact(node: Apply) -> float | None:
    """The result of a scalar 16-bit op before it is rounded; None for other ops."""
    op, out = node.op, node.outputs[0].type
    given = [v for v in node.inputs if isinstance(v, Constant)]
    if len(node.outputs) != 1 or not is_narrow_float(out.dtype):
        return None
    if isinstance(op, DimShuffle | Reshape):
        return given[0].exact
    if not isinstance(op, Elemwise) or isinstance(op, Cast) or op.decides:
        return None
    if any(v.type.is_complex or v.data.size != 1 for v in given):
        return None
    wide = [np.asarray(v.data if v.exact is None else v.exact, np.float64) for v in given]
    with np.errstate(all="ignore"):
        return float(op.reference(*wide).reshape(()))


def _too_big(node: Apply) -> bool:
    given = sum(v.data.size for v in node.inputs)  # type: ignore[attr-defined]
    types = [v.type for v in node.outputs]
    if isinstance(node.op, Alloc):
        return any(t.ndim > 0 and t.shape != (1,) * t.ndim for t in types)
    if isinstance(node.op, InnerGraphOp) and _steps(node) > FOLD_LIMIT_ELEMENTS:
        return True
    made = [_elements(s) for s in _shapes(node)]
    return any(n is None and given > FOLD_LIMIT_ELEMENTS for n in made) or any(
        n is not None and n > max(FOLD_LIMIT_ELEMENTS, given) for n in made
    )


def _steps(node: Apply) -> float:
    """How many steps the loop of a node runs; infinite where a loop is in its graph."""
    op: Any = node.op
    if any(isinstance(n.op, InnerGraphOp) for n in op.inner.nodes):
        return math.inf
    return int(node.inputs[0].data) if isinstance(op, Scan) else 1  # type: ignore[attr-defined]


def _shapes(node: Apply) -> list[tuple[int | None, ...]]:
    """The shapes of the results: from the values of sizes where static types do not say."""
    static = [v.type.shape for v in node.outputs if isinstance(v.type, TensorType)]
    if not any(None in shape for shape in static):
        return static
    given = [v.data for v in node.inputs]  # type: ignore[attr-defined]
    types, host = [v.type for v in node.inputs], {i: given[i] for i in node.op.host_inputs}
    try:
        found = node.op.shapes(types, [v.shape for v in given], host)
    except Exception:
        return static  # the node fails when the function runs
    return static if found is None else [tuple(map(int, s)) for s in found]


def _elements(shape: tuple[int | None, ...]) -> int | None:
    count = 1
    for d in shape:
        if d is None:
            return None
        count *= d
    return count


@node_rewrite(
    Op, phase="canonicalize", tags=("fast_compile", "cleanup", "shape"),
    admits=lambda op, made: "static" in getattr(op, "__dataclass_fields__", ()),
)  # fmt: skip
def sizes_known_by_now(node: Apply, context: Context) -> Any:
    """A dimension that has become a constant enters the op's field ``static``."""
    op: Any = node.op
    old = getattr(op, "static", None)
    if not isinstance(old, tuple) or len(old) != len(where := op.host_inputs):
        return None
    new = tuple(
        static_dim(node.inputs[i]) if s is None else s for s, i in zip(old, where, strict=True)
    )
    if new == old or any(d is not None and d < -1 for d in new):
        return None
    out = replace(op, static=new)(*node.inputs, hints=node.hints)
    return list(out) if isinstance(out, tuple) else out


RULES = [constant_folding, sizes_known_by_now]
