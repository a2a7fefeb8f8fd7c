from __future__ import annotations

from itertools import product

import numpy as np

from symdnn.ops.linalg import dot as D
from symdnn.ops.linalg import linalg
from symdnn.ops.linalg.einsum import einsum
from tests.op_table.record import OpCase, integers, normal

DOT, STACK, MATCH = (D.Dot,), (D.BatchedDot,), (D.Dot, D.MatchSizes)


def loop_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A matrix product by the definition."""
    out = np.zeros((x.shape[0], y.shape[1]))
    for i, j in product(range(x.shape[0]), range(y.shape[1])):
        out[i, j] = sum(x[i, k] * y[k, j] for k in range(x.shape[1]))
    return out


def stacked(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(a @ b) for a, b in zip(x, y, strict=True)])


def in_float32(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x.astype("float32") @ y.astype("float32")).astype(x.dtype).astype("float64")


def _einsum(equation: str):
    return lambda *vs: einsum(equation, *vs)


def _einsum_case(name: str, equation: str, *draws, **more) -> OpCase:
    def expected(*arrays: np.ndarray) -> np.ndarray:
        return np.einsum(equation, *arrays)

    return OpCase(f"einsum_{name}", more.pop("ops", ()), _einsum(equation), draws, expected, **more)


CASES = [
    OpCase("dot_mm", DOT, D.dot, (normal(3, 4), normal(4, 2)), loop_product),
    OpCase("dot_mv", DOT, D.dot, (normal(3, 4), normal(4)), np.dot),
    OpCase("dot_vm", DOT, D.dot, (normal(4), normal(4, 2)), np.dot),
    OpCase("dot_vv", DOT, D.dot, (normal(4), normal(4)), np.dot),
    OpCase("dot_row", DOT, D.dot, (normal(1, 4), normal(4, 1)), np.dot),
    OpCase("dot_scalar", (), D.dot, (normal(), normal(4, 2)), np.multiply),
    OpCase("dot_nd", DOT, D.dot, (normal(2, 3, 4), normal(5, 4, 2)), np.dot),
    OpCase("dot_nd_vector", DOT, D.dot, (normal(2, 3, 4), normal(4)), np.dot),
    OpCase("dot_vector_nd", DOT, D.dot, (normal(4), normal(2, 4, 3)), np.dot),
    OpCase(
        "dot_float32",
        DOT,
        D.dot,
        (normal(3, 4, dtype="float32"), normal(4, 2, dtype="float32")),
        np.dot,
        grad=False,
        rtol=1e-5,
    ),
    OpCase(
        "dot_int32",
        DOT,
        D.dot,
        (integers(-9, 9, 3, 4, dtype="int32"), integers(-9, 9, 4, 2, dtype="int32")),
        np.dot,
        grad=False,
    ),
    OpCase(
        "dot_mixed",
        DOT,
        D.dot,
        (integers(-9, 9, 3, 4, dtype="int8"), normal(4, 2)),
        np.dot,
        grad=False,
    ),
    OpCase(
        "dot_float16",
        DOT,
        D.dot,
        (normal(3, 40, dtype="float16"), normal(40, 2, dtype="float16")),
        in_float32,
        grad=False,
        rtol=1e-3,
    ),
    OpCase(
        "dot_bfloat16",
        DOT,
        lambda x, y: D.dot(x, y).astype("float64"),
        (normal(3, 40, dtype="bfloat16"), normal(40, 2, dtype="bfloat16")),
        in_float32,
        grad=False,
        rtol=1e-2,
    ),
    OpCase(
        "dot_complex",
        DOT,
        D.dot,
        (normal(3, 4, dtype="complex128"), normal(4, 2, dtype="complex128")),
        np.dot,
        grad=False,
    ),
    OpCase("dot_empty_inner", DOT, D.dot, (normal(3, 0), normal(0, 2)), np.dot, grad=False),
    OpCase("dot_empty_outer", DOT, D.dot, (normal(0, 3), normal(3, 2)), np.dot, grad=False),
    OpCase("batched_dot", STACK, D.batched_dot, (normal(3, 2, 4), normal(3, 4, 5)), stacked),
    OpCase("batched_dot_rows", STACK, D.batched_dot, (normal(3, 4), normal(3, 4, 5)), stacked),
    OpCase("batched_dot_pairs", STACK, D.batched_dot, (normal(3, 4), normal(3, 4)), stacked),
    OpCase(
        "batched_dot_scale",
        (),
        D.batched_dot,
        (normal(3), normal(3, 4)),
        lambda x, y: x[:, None] * y,
    ),
    OpCase(
        "batched_dot_nd",
        STACK,
        D.batched_dot,
        (normal(3, 2, 5, 4), normal(3, 4, 2)),
        lambda x, y: np.einsum("bijk,bkl->bijl", x, y),
    ),
    OpCase(
        "batched_dot_empty",
        STACK,
        D.batched_dot,
        (normal(0, 2, 4), normal(0, 4, 5)),
        np.matmul,
        grad=False,
    ),
    OpCase(
        "batched_dot_float16",
        STACK,
        D.batched_dot,
        (normal(2, 3, 9, dtype="float16"), normal(2, 9, 2, dtype="float16")),
        in_float32,
        grad=False,
        rtol=1e-3,
    ),
    OpCase(
        "batched_tensordot",
        (*STACK, D.MatchSizes),
        D.batched_tensordot,
        (normal(3, 2, 4, 5), normal(3, 4, 5, 2)),
        lambda x, y: np.einsum("bijk,bjkl->bil", x, y),
    ),
    OpCase(
        "batched_tensordot_axes",
        STACK,
        lambda x, y: D.batched_tensordot(x, y, [[2], [-1]]),
        (normal(3, 2, 4, 5), normal(3, 2, 4)),
        lambda x, y: np.einsum("bijk,blj->bikl", x, y),
    ),
    OpCase("matmul_mm", DOT, D.matmul, (normal(3, 4), normal(4, 2)), np.matmul),
    OpCase("matmul_stack", STACK, D.matmul, (normal(5, 3, 4), normal(5, 4, 2)), np.matmul),
    OpCase("matmul_one_matrix", DOT, D.matmul, (normal(5, 3, 4), normal(4, 2)), np.matmul),
    OpCase("matmul_one_left", STACK, D.matmul, (normal(3, 4), normal(5, 4, 2)), np.matmul),
    OpCase("matmul_4d", STACK, D.matmul, (normal(2, 5, 3, 4), normal(2, 5, 4, 2)), np.matmul),
    OpCase(
        "matmul_partly_broadcast", STACK, D.matmul, (normal(2, 1, 3, 4), normal(5, 4, 2)), np.matmul
    ),
    OpCase("matmul_ones", DOT, D.matmul, (normal(5, 3, 4), normal(1, 4, 2)), np.matmul),
    OpCase("matmul_vector_left", DOT, D.matmul, (normal(4), normal(5, 4, 2)), np.matmul),
    OpCase("matmul_vector_right", DOT, D.matmul, (normal(5, 3, 4), normal(4)), np.matmul),
    OpCase(
        "tensordot_2",
        MATCH,
        D.tensordot,
        (normal(2, 3, 4), normal(3, 4, 5)),
        np.tensordot,
    ),
    OpCase(
        "tensordot_1",
        DOT,
        lambda x, y: D.tensordot(x, y, 1),
        (normal(2, 3, 4), normal(4, 5)),
        lambda x, y: np.tensordot(x, y, 1),
    ),
    OpCase(
        "tensordot_0",
        (),
        lambda x, y: D.tensordot(x, y, 0),
        (normal(2, 3), normal(4)),
        lambda x, y: np.tensordot(x, y, 0),
    ),
    OpCase(
        "tensordot_axes",
        MATCH,
        lambda x, y: D.tensordot(x, y, [[0, -1], [2, 1]]),
        (normal(2, 3, 4), normal(5, 4, 2)),
        lambda x, y: np.tensordot(x, y, [[0, -1], [2, 1]]),
    ),
    OpCase("tensordot_all", MATCH, D.tensordot, (normal(3, 4), normal(3, 4)), np.tensordot),
    OpCase("outer", (), D.outer, (normal(3), normal(2, 2)), np.outer),
    OpCase("kron", (), linalg.kron, (normal(2, 3), normal(3, 2)), np.kron),
    OpCase("kron_nd", (), linalg.kron, (normal(2), normal(2, 3, 2)), np.kron),
    OpCase(
        "matrix_dot",
        DOT,
        linalg.matrix_dot,
        (normal(2, 3), normal(3, 4), normal(4, 2)),
        lambda x, y, z: x @ y @ z,
    ),
    _einsum_case("matrix", "ij,jk->ik", normal(3, 4), normal(4, 2), ops=DOT),
    _einsum_case("implicit", "ij,jk", normal(3, 4), normal(4, 2)),
    _einsum_case("batch", "bij,bjk->ikb", normal(2, 3, 4), normal(2, 4, 3), ops=STACK),
    _einsum_case("two_batch", "bhqd,bhkd->bhqk", normal(2, 2, 3, 4), normal(2, 2, 5, 4)),
    _einsum_case("chain", "ij,jk,kl->il", normal(2, 3), normal(3, 4), normal(4, 2)),
    _einsum_case("bilinear", "bi,oij,bj->bo", normal(3, 2), normal(4, 2, 5), normal(3, 5)),
    _einsum_case("sum_out", "ij->j", normal(3, 4)),
    _einsum_case("sum_all", "ij->", normal(3, 4)),
    _einsum_case("transpose", "ijk->kij", normal(2, 3, 4)),
    _einsum_case("outer", "i,j->ij", normal(3), normal(4)),
    _einsum_case("times", "ij,ij->ij", normal(3, 4), normal(3, 4)),
    _einsum_case("inner", "ij,ij->", normal(3, 4), normal(3, 4)),
    _einsum_case("one_sided", "ij,k->k", normal(3, 4), normal(2)),
    _einsum_case("trace", "ii->", normal(3, 3)),
    _einsum_case("diagonal", "ii,i->i", normal(3, 3), normal(3)),
    _einsum_case("ellipsis", "...ij,...jk->...ik", normal(2, 3, 4), normal(2, 4, 2)),
    _einsum_case("broadcast", "...ij,jk->k...i", normal(2, 3, 4), normal(4, 2)),
    _einsum_case("ones", "bi,bi->bi", normal(1, 4), normal(3, 4)),
    _einsum_case(
        "int",
        "ij,jk->ik",
        integers(-9, 9, 3, 4, dtype="int32"),
        integers(-9, 9, 4, 2, dtype="int32"),
        grad=False,
    ),
    _einsum_case("int_sum", "ij->i", integers(-9, 9, 3, 4, dtype="int32"), grad=False),
]
