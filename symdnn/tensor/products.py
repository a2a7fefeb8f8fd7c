"""Products of matrices and tensors."""

from symdnn.ops.linalg.dot import batched_dot, batched_tensordot, dot, matmul, outer, tensordot
from symdnn.ops.linalg.einsum import einsum
from symdnn.ops.linalg.linalg import kron, matrix_dot

__all__ = [
    "batched_dot", "batched_tensordot", "dot", "einsum", "kron", "matmul", "matrix_dot", "outer",
    "tensordot",
]  # fmt: skip
