"""What can be computed: every op with its types, gradient and NumPy reference.

Importing this package installs the operators behind ``+``, ``.sum()``, ... once.
"""

from symdnn.graph.operators import install_operators
from symdnn.ops import arithmetic, dot, einsum, reduce, shape

for _family in (arithmetic, dot, einsum, reduce, shape):
    install_operators(_family.OPERATORS)
