"""LAPACK of SciPy for stacks of matrices: one compiled loop calls a routine for each matrix."""
