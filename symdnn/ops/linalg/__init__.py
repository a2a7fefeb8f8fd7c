"""Products of matrices and einsum."""
