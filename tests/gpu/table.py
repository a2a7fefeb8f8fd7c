"""Nodes of the op table's cases with their values: what kernels are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from symdnn.graph.evaluate import evaluate
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.ops.matrix.eigen import Eigh
from symdnn.ops.matrix.svd import SVD
from tests import op_table
from tests.test_op_table import draw, outputs, variables


@dataclass(frozen=True, eq=False)
class Try:
    """A call at concrete shapes, its inputs, and what the reference gives."""

    id: str
    call: Call
    inputs: list[Any]
    expected: list[Any]
    rtol: float


def concrete(op: Any, inputs: list[Any], static: list[Any] | None = None) -> Call:
    """The call of ``op`` on these arrays."""
    types = [TensorType(a.dtype.name, a.shape) for a in inputs]
    out = op.output_types(static or types)
    with np.errstate(all="ignore"):
        results = op.compute(*inputs)
    shaped = [t.with_shape(np.shape(r)) for t, r in zip(out, results)]
    return Call(op, tuple(types), tuple(shaped), NO_HINTS)


@cache
def tries(*families: str) -> list[Try]:
    """Each node of each case of these families of ops, or of all; equal ones once."""
    found: dict[Any, Try] = {}
    by_name = op_table.families()
    for case in (c for name in families or by_name for c in by_name[name]):
        for key, one in _of_case(case):
            found.setdefault(key, one)
    return list(found.values())


def _of_case(case: Any) -> Iterator[tuple[Any, Try]]:
    arrays = draw(case)
    vs = variables(case, arrays)
    order = toposort(outputs(case, vs))
    all_values = list(dict.fromkeys(v for n in order for v in (*n.inputs, *n.outputs)))
    values = dict(zip(all_values, evaluate(all_values, dict(zip(vs, arrays)))))
    for i, node in enumerate(order):
        if not all(isinstance(v.type, TensorType) for v in (*node.inputs, *node.outputs)):
            continue
        ins = [np.asarray(values[v]) for v in node.inputs]
        outs = [np.asarray(values[v]) for v in node.outputs]
        types = tuple(v.type.with_shape(a.shape) for v, a in zip(node.inputs, ins))
        results = tuple(v.type.with_shape(a.shape) for v, a in zip(node.outputs, outs))
        call = Call(node.op, types, results, NO_HINTS)
        key = (node.op, types, results, tuple(ins[h].tobytes() for h in node.op.host_inputs))
        name = f"{case.id}-{i}-{type(node.op).__name__}"
        yield key, Try(name, call, ins, outs, case.rtol)


def in_one_gauge(op: Any, results: list[Any], expected: list[Any]) -> list[Any]:
    """Eigenvectors and singular vectors with the signs (complex: phases) of the expected ones."""
    if isinstance(op, Eigh):
        vectors, wanted = results[1], expected[1]
        return [results[0], vectors * _turns(vectors, wanted, -2)]
    if isinstance(op, SVD) and len(results) == 3:
        u, values, vh = results
        turns = _turns(u, expected[0], -2)
        k = values.shape[-1]
        own = np.array(_turns(vh, expected[2], -1))
        own[..., :k, :] = turns.conj().swapaxes(-1, -2)[..., :k, :]
        return [u * turns, values, vh * own]
    return results


def _turns(vectors: Any, wanted: Any, axis: int) -> Any:
    turn = (vectors.conj() * wanted).sum(axis=axis, keepdims=True)
    return (turn / abs(turn)).astype(vectors.dtype)


def tolerance(dtype: str) -> float:
    """Relative, for results that a device rounds in its own way."""
    return {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-12}.get(dtype, 0)


def assert_close(got: Any, want: Any, rtol: float | None = None) -> None:
    """Equal dtypes and shapes, and values to rounding; NaN equals NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    limit = tolerance(want.dtype.name) if rtol is None else rtol
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        got.astype(wide), want.astype(wide), rtol=limit or 1e-6, atol=limit or 1e-6
    )
