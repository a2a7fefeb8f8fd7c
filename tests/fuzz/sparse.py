"""Programs of sparse matrices in both formats against dense ones of NumPy, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

import symdnn
import symdnn.sparse as S
import symdnn.tensor as T
from symdnn.errors import SymdnnError
from tests.fuzz.areas import Area, Context, Failure, error_text

SIZES = (1, 2, 3, 5, 8, 13)
#: An expression, and the function of dense arrays that it is; of one or two sparse operands of one
#: shape (a, b), a dense matrix x of that shape, and rows, a vector of numbers of rows.
SPARSE: dict[str, tuple[Any, Any]] = {
    "add": (lambda a, b, x, r: a + b, lambda a, b, x, r: a + b),
    "sub": (lambda a, b, x, r: a - b, lambda a, b, x, r: a - b),
    "mul": (lambda a, b, x, r: a * b, lambda a, b, x, r: a * b),
    "mul_dense": (lambda a, b, x, r: a * x, lambda a, b, x, r: a * x),
    "twice": (lambda a, b, x, r: a + a, lambda a, b, x, r: a + a),
    "columns": (lambda a, b, x, r: S.col_scale(a, x[0]), lambda a, b, x, r: a * x[0]),
    "rows": (lambda a, b, x, r: S.row_scale(a, x[:, 0]), lambda a, b, x, r: a * x[:, :1]),
    "tanh": (lambda a, b, x, r: S.tanh(a), lambda a, b, x, r: np.tanh(a)),
    "turned": (lambda a, b, x, r: S.in_format(a, "csc"), lambda a, b, x, r: a),
    "taken": (lambda a, b, x, r: a[r][:, ::-1], lambda a, b, x, r: a[r][:, ::-1]),
    "zeros": (lambda a, b, x, r: S.remove0(a * (x > 0)), lambda a, b, x, r: a * (x > 0)),
    "product": (lambda a, b, x, r: S.dot(S.dot(a, b.T), b), lambda a, b, x, r: a @ b.T @ b),
    "from_dense": (
        lambda a, b, x, r: S.csr_from_dense(x) * a, lambda a, b, x, r: x * a,
    ),
    "sampled": (
        lambda a, b, x, r: S.sampling_dot(x, T.dot(x.T, x), a),
        lambda a, b, x, r: a * (x @ (x.T @ x).T),
    ),
}  # fmt: skip
ENDS: dict[str, tuple[Any, Any]] = {
    "dense": (lambda a, x: a.toarray(), lambda a, x: a),
    "dot": (lambda a, x: S.dot(a, x.T), lambda a, x: a @ x.T),
    "left": (lambda a, x: S.dot(x.T, a), lambda a, x: x.T @ a),
    "turned_dot": (lambda a, x: S.dot(a.T, x[:, 0]), lambda a, x: a.T @ x[:, 0]),
    "sums": (lambda a, x: a.sum(0), lambda a, x: a.sum(0)),
    "diagonal": (lambda a, x: S.diag(a), lambda a, x: np.diagonal(a)),
    "stack": (
        lambda a, x: S.vstack([a, a]).toarray() + S.hstack([a.T, a.T]).toarray().T,
        lambda a, x: 2 * np.vstack([a, a]),
    ),
    "part": (lambda a, x: a[-1, 0], lambda a, x: a[-1, 0]),
}  # fmt: skip


def check(ctx: Context) -> list[Failure]:
    """A chain of operations, its value and its gradients by both operands."""
    rng = ctx.rng
    shape = tuple(int(n) for n in rng.choice(SIZES, 2))
    names = [str(n) for n in rng.choice(list(SPARSE), rng.integers(0, 4))]
    end = str(rng.choice(list(ENDS)))
    formats = [str(f) for f in rng.choice(["csr", "csc"], 2)]
    density = float(rng.choice([0.0, 0.2, 0.6, 1.0]))
    dense = [rng.standard_normal(shape) * (rng.random(shape) < density) for _ in range(2)]
    x, rows = rng.standard_normal(shape), rng.integers(-shape[0], shape[0], shape[0])

    def numpys(a: Any, b: Any, x: Any) -> Any:
        for name in names:
            a = SPARSE[name][1](a, b, x, rows)
        return ENDS[end][1](a, x)

    what = f"{shape} {density} {formats}: {' '.join(names)} {end}"
    try:
        vs = [S.sparse_variable(f, n, "float64") for f, n in zip(formats, "ab")]
        v = T.dmatrix("x")
        made: Any = vs[0]
        for name in names:
            made = SPARSE[name][0](made, vs[1], v, T.constant(rows))
        out = ENDS[end][0](made, v)
        cost = (out**2).sum()
        slopes = symdnn.grad(cost, [*vs, v], disconnected_inputs="ignore")
        f = symdnn.function([*vs, v], [out, *slopes], on_unused_input="ignore")
        given = [getattr(scipy.sparse, f"{k}_array")(d) for k, d in zip(formats, dense)]
        found, *grads = f(*given, x)
    except SymdnnError as error:
        return [ctx.fail(f"{what}: {error_text(error)}")]
    ctx.count("programs")
    return _compare(ctx, what, numpys, [*dense, x], found, grads)


def _compare(
    ctx: Context, what: str, numpys: Any, arrays: list[Any], found: Any, grads: list[Any]
) -> list[Failure]:
    wanted = numpys(*arrays)
    scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
    if np.shape(found) != np.shape(wanted) or not np.allclose(found, wanted, 1e-9, 1e-9 * scale):
        return [ctx.fail(f"{what}: the value differs")]
    turns = [ctx.rng.standard_normal(a.shape) for a in arrays]
    for i in (0, 1):
        turns[i] *= arrays[i] != 0
    step = 1e-6

    def cost_at(sign: int) -> float:
        return float((numpys(*(a + sign * step * t for a, t in zip(arrays, turns))) ** 2).sum())

    numeric = (cost_at(1) - cost_at(-1)) / (2 * step)
    dense = [g.toarray() if scipy.sparse.issparse(g) else g for g in grads]
    slope = sum(float((g * t).sum()) for g, t in zip(dense, turns))
    size = sum(float(np.abs(g * t).sum()) for g, t in zip(dense, turns))
    if abs(slope - numeric) > 1e-5 * max(size, float(np.abs(wanted).max(initial=0)) ** 2, 1.0):
        return [ctx.fail(f"{what}: the slope is {slope}, differences say {numeric}")]
    return []


AREA = Area("sparse", "programs", check, in_tests=60)
