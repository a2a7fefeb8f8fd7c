"""Linear algebra of stacks of matrices: factorisations, solutions, and functions of these."""
