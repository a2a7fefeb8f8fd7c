"""From GEMMs to cuBLASLt's op."""
