"""oneDNN: the library, its objects, and kernels that call it."""
