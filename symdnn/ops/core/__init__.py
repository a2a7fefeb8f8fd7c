"""What all ops need: dtypes, shapes, constants, scalar programs, barriers of gradients."""
