"""From products of matrices to cuBLASLt's."""
