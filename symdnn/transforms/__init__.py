"""Functions of functions of arrays: ``jit``, ``value_and_grad``, ``jvp``, ``vjp`` and their kin."""
