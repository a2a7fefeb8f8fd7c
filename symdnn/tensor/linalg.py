"""``T.linalg``: linear algebra under the names of ``numpy.linalg`` and ``scipy.linalg``.

The last two dimensions of an operand are matrices, those before them a stack of such. Matrices are
float32, float64, complex64 or complex128.
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.errors import LinAlgError
from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.ops.linalg.dot import matmul, outer, tensordot
from symdnn.ops.linalg.linalg import kron
from symdnn.ops.matrix import functions as _functions
from symdnn.ops.matrix.cholesky import cho_factor, cho_solve, cholesky
from symdnn.ops.matrix.determinant import det, slogdet
from symdnn.ops.matrix.eigen import eig, eigh, eigvals, eigvalsh
from symdnn.ops.matrix.expm import expm, matrix_power
from symdnn.ops.matrix.functions import *
from symdnn.ops.matrix.lu import lu, lu_factor, lu_solve
from symdnn.ops.matrix.qr import qr
from symdnn.ops.matrix.solve import inv, solve, solve_triangular
from symdnn.ops.matrix.svd import lstsq, matrix_rank, pinv, svd, svdvals
from symdnn.ops.numpy_names.numpy_arrays import matrix_transpose
from symdnn.ops.numpy_names.numpy_math import cross
from symdnn.ops.numpy_names.numpy_more import vecdot

__all__ = [
    "LinAlgError", "cho_factor", "cho_solve", "cholesky", "cross", "det", "eig", "eigh",
    "eigvals", "eigvalsh", "expm", "inv", "kron", "lstsq", "lu", "lu_factor", "lu_solve",
    "matmul", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet",
    "solve", "solve_triangular", "svd", "svdvals", "tensordot", "vecdot", *_functions.__all__,
]  # fmt: skip

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "LINALG")
