"""``S``: sparse matrices in expressions, under Theano's names. Defines no op.

::

    import symdnn.sparse as S

    a, w = S.csr_array("a"), T.fmatrix("w")
    f = symdnn.function([a, w], S.dot(a, w))

Values are arrays and matrices of ``scipy.sparse``. See the page on sparse matrices.
"""

from symdnn.ops.sparse.functions import (
    add,
    as_sparse_or_tensor_variable,
    as_sparse_variable,
    cast,
    clean,
    col_scale,
    csc_from_dense,
    csr_from_dense,
    dense_from_sparse,
    diag,
    dot,
    get_item_list,
    hstack,
    in_format,
    mul,
    remove0,
    row_scale,
    sampling_dot,
    sp_ones_like,
    sp_sum,
    sp_zeros_like,
    square_diagonal,
    sub,
    transpose,
    true_dot,
    usmm,
    vstack,
)
from symdnn.ops.sparse.functions import add as add_s_d
from symdnn.ops.sparse.functions import add as add_s_s
from symdnn.ops.sparse.functions import dot as structured_dot
from symdnn.ops.sparse.functions import mul as mul_s_d
from symdnn.ops.sparse.functions import mul as mul_s_s
from symdnn.ops.sparse.functions import mul as mul_s_v
from symdnn.ops.sparse.functions import remove0 as eliminate_zeros
from symdnn.ops.sparse.names import (
    CSC,
    CSR,
    SparseType,
    abs,
    arcsin,
    arcsinh,
    arctan,
    arctanh,
    bcast,
    ccast,
    ceil,
    conj,
    construct_sparse_from_list,
    coo_array,
    coo_matrix,
    csc_array,
    csc_dmatrix,
    csc_fmatrix,
    csc_matrix,
    csm_data,
    csm_indices,
    csm_indptr,
    csm_properties,
    csm_shape,
    csr_array,
    csr_dmatrix,
    csr_fmatrix,
    csr_matrix,
    dcast,
    deg2rad,
    ensure_sorted_indices,
    expm1,
    fcast,
    floor,
    get_item_2d,
    get_item_scalar,
    icast,
    lcast,
    log1p,
    neg,
    rad2deg,
    rint,
    sgn,
    sin,
    sinh,
    sparse_grad,
    sqr,
    sqrt,
    structured_add,
    structured_add_s_v,
    structured_exp,
    structured_log,
    structured_maximum,
    structured_minimum,
    structured_pow,
    structured_sigmoid,
    tan,
    tanh,
    trunc,
    wcast,
    zcast,
)
from symdnn.ops.sparse.variable import (
    SharedSparse,
    SparseVariable,
    shared,
    sparse_variable,
)
from symdnn.ops.sparse.variable import sparse_constant as constant

__all__ = [
    "CSC", "CSR", "SharedSparse", "SparseType", "SparseVariable", "abs", "add", "add_s_d",
    "add_s_s", "arcsin", "arcsinh", "arctan", "arctanh", "as_sparse_or_tensor_variable",
    "as_sparse_variable", "bcast", "cast", "ccast", "ceil", "clean", "col_scale", "conj",
    "constant", "construct_sparse_from_list", "coo_array", "coo_matrix", "csc_array", "csc_dmatrix",
    "csc_fmatrix", "csc_from_dense", "csc_matrix", "csm_data", "csm_indices", "csm_indptr",
    "csm_properties", "csm_shape", "csr_array", "csr_dmatrix", "csr_fmatrix", "csr_from_dense",
    "csr_matrix", "dcast", "deg2rad", "dense_from_sparse", "diag", "dot", "eliminate_zeros",
    "ensure_sorted_indices", "expm1", "fcast", "floor", "get_item_2d", "get_item_list",
    "get_item_scalar", "hstack", "icast", "in_format", "lcast", "log1p", "mul", "mul_s_d",
    "mul_s_s", "mul_s_v", "neg", "rad2deg", "remove0", "rint", "row_scale", "sampling_dot", "sgn",
    "shared", "sin", "sinh", "sp_ones_like", "sp_sum", "sp_zeros_like", "sparse_grad",
    "sparse_variable", "sqr", "sqrt", "square_diagonal", "structured_add", "structured_add_s_v",
    "structured_dot", "structured_exp", "structured_log", "structured_maximum",
    "structured_minimum", "structured_pow", "structured_sigmoid", "sub", "tan", "tanh", "transpose",
    "true_dot", "trunc", "usmm", "vstack", "wcast", "zcast",
]  # fmt: skip
