"""Functions of functions beside those of JAX: dispatch, loops, prefixes."""
