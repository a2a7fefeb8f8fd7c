"""The one OpenMP thread pool; BLAS held down; other processes noticed."""
