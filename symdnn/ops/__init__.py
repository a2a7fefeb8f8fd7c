"""The neutral ops: every op with its types, gradient and NumPy reference.

Importing this package installs the operators behind ``+``, ``.sum()``, ... once.
"""

from symdnn.graph.operators import install_operators
from symdnn.ops.array import (
    argreduce,
    create,
    cumulative,
    getitem,
    join,
    moments,
    norms,
    pad,
    reduce,
    sort,
    take,
    view,
)
from symdnn.ops.control import control
from symdnn.ops.core import constant_value, gradient_control, make_vector, shape
from symdnn.ops.elementwise import (
    activations,
    arithmetic,
    comparison,
    complexes,
    math,
    rounding,
    special,
)
from symdnn.ops.linalg import dot, einsum
from symdnn.ops.nn import (
    crossentropy,
    ctc,
    dropout,
    lrn,
    normalization,
    rnn,
    softmax,
    spatial_transformer,
)
from symdnn.ops.random import random, random_stream
from symdnn.ops.sparse import functions as sparse

for _family in (
    activations,
    argreduce,
    arithmetic,
    comparison,
    complexes,
    constant_value,
    control,
    create,
    crossentropy,
    ctc,
    cumulative,
    dot,
    dropout,
    einsum,
    getitem,
    gradient_control,
    join,
    lrn,
    make_vector,
    math,
    moments,
    normalization,
    norms,
    pad,
    random,
    random_stream,
    reduce,
    rnn,
    rounding,
    shape,
    softmax,
    sort,
    sparse,
    special,
    take,
    spatial_transformer,
    view,
):
    install_operators(_family.OPERATORS)
