"""Linear algebra on a GPU by cuSOLVER and cuBLAS, through nvmath-python's bindings."""
