"""Matrix products by cuBLASLt."""
