"""The basis of all ops: dtypes, shapes, constants, scalar programs, barriers of gradients."""
