"""What can be computed: every op with its types, gradient and NumPy reference.

Importing this package installs the operators behind ``+``, ``.sum()``, ... once.
"""

from symdnn.graph.operators import install_operators
from symdnn.ops import (
    activations,
    argreduce,
    arithmetic,
    comparison,
    complexes,
    control,
    create,
    cumulative,
    dot,
    einsum,
    getitem,
    gradient_control,
    join,
    math,
    moments,
    norms,
    pad,
    reduce,
    rounding,
    shape,
    sort,
    special,
    take,
    view,
)

for _family in (
    activations,
    argreduce,
    arithmetic,
    comparison,
    complexes,
    control,
    create,
    cumulative,
    dot,
    einsum,
    getitem,
    gradient_control,
    join,
    math,
    moments,
    norms,
    pad,
    reduce,
    rounding,
    shape,
    sort,
    special,
    take,
    view,
):
    install_operators(_family.OPERATORS)
