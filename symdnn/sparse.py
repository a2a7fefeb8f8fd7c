"""``S``: sparse matrices in expressions, under Theano's names. Defines no op.

::

    import symdnn.sparse as S

    a, w = S.csr_array("a"), T.fmatrix("w")
    f = symdnn.function([a, w], S.dot(a, w))

Values are arrays and matrices of ``scipy.sparse``. See the page on sparse matrices.
"""

from symdnn.ops.sparse import functions as _functions
from symdnn.ops.sparse import names as _names
from symdnn.ops.sparse.functions import *
from symdnn.ops.sparse.functions import add as add_s_d
from symdnn.ops.sparse.functions import add as add_s_s
from symdnn.ops.sparse.functions import dot as structured_dot
from symdnn.ops.sparse.functions import mul as mul_s_d
from symdnn.ops.sparse.functions import mul as mul_s_s
from symdnn.ops.sparse.functions import mul as mul_s_v
from symdnn.ops.sparse.functions import remove0 as eliminate_zeros
from symdnn.ops.sparse.names import *
from symdnn.ops.sparse.variable import (
    SharedSparse,
    SparseVariable,
    shared,
    sparse_variable,
)
from symdnn.ops.sparse.variable import sparse_constant as constant

__all__ = [
    "SharedSparse", "SparseVariable", "add_s_d", "add_s_s", "constant", "eliminate_zeros",
    "mul_s_d", "mul_s_s", "mul_s_v", "shared", "sparse_variable", "structured_dot",
    *_functions.__all__, *_names.__all__,
]  # fmt: skip
