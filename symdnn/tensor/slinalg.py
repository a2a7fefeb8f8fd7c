"""``T.slinalg``: linear algebra under the names of ``theano.tensor.slinalg``.

:mod:`symdnn.tensor.linalg` has all of it under the names of NumPy and SciPy.
"""

from symdnn.ops.linalg.linalg import kron
from symdnn.ops.matrix.cholesky import Cholesky, cholesky
from symdnn.ops.matrix.expm import Expm, expm
from symdnn.ops.matrix.theano_names import *
from symdnn.ops.matrix.theano_names import Eigvalsh_ as Eigvalsh

__all__ = [
    "Cholesky", "Eigvalsh", "Expm", "Solve", "cholesky", "eigvalsh", "expm", "kron", "solve",
    "solve_lower_triangular", "solve_upper_triangular",
]  # fmt: skip
