"""``T.nlinalg``: linear algebra under the names of ``theano.tensor.nlinalg``.

:mod:`symdnn.tensor.linalg` has all of it under the names of NumPy and SciPy.
"""

from symdnn.ops.array.create import alloc_diag, diag
from symdnn.ops.array.create import diagonal as extract_diag
from symdnn.ops.linalg.linalg import matrix_dot
from symdnn.ops.matrix.determinant import Det, det
from symdnn.ops.matrix.eigen import Eigh, eigh
from symdnn.ops.matrix.expm import matrix_power
from symdnn.ops.matrix.functions import tensorinv, tensorsolve
from symdnn.ops.matrix.solve import MatrixInverse
from symdnn.ops.matrix.solve import inv as matrix_inverse
from symdnn.ops.matrix.svd import SVD, MatrixPinv, pinv
from symdnn.ops.matrix.theano_names import *
from symdnn.ops.matrix.theano_names import Eig_ as Eig
from symdnn.ops.matrix.theano_names import svd_ as svd

__all__ = [
    "AllocDiag", "Det", "Eig", "Eigh", "ExtractDiag", "MatrixInverse", "MatrixPinv", "QRFull",
    "QRIncomplete", "SVD", "TensorInv", "TensorSolve", "alloc_diag", "det", "diag", "eig", "eigh",
    "extract_diag", "lstsq", "matrix_dot", "matrix_inverse", "matrix_power", "norm", "pinv", "qr",
    "svd", "tensorinv", "tensorsolve", "trace",
]  # fmt: skip
