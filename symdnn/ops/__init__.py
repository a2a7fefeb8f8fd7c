"""The neutral ops: every op with its types, gradient and NumPy reference.

Importing this package installs the operators behind ``+``, ``.sum()``, ... once.
"""

from symdnn.graph.names.torch_words import install_torch_functions
from symdnn.graph.operators import install_methods, install_operators
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
from symdnn.ops.core import called_size, constant_value, gradient_control, make_vector, shape
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
from symdnn.ops.numpy_names import indexed_updates
from symdnn.ops.random import random, random_stream
from symdnn.ops.sparse import functions as sparse
from symdnn.ops.torch_names import torch_arrays, torch_math, torch_methods, torch_scatter

for _family in (
    activations,
    argreduce,
    arithmetic,
    called_size,
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

install_operators({"indexed": indexed_updates.Indexed})
for _family in (torch_arrays, torch_math, torch_methods, torch_scatter):
    install_methods(_family.METHODS)
    install_torch_functions(_family.FUNCTIONS)
