"""The optimisers behind :mod:`symdnn.nn.optim`, and clipping."""
