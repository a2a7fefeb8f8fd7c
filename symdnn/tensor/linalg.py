"""Products of matrices and tensors."""

from symdnn.ops.dot import batched_dot, batched_tensordot, dot, matmul, outer, tensordot
from symdnn.ops.einsum import einsum
from symdnn.ops.linalg import kron, matrix_dot

__all__ = [
    "batched_dot", "batched_tensordot", "dot", "einsum", "kron", "matmul", "matrix_dot", "outer",
    "tensordot",
]  # fmt: skip
