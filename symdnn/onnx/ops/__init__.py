"""Builders of ops, by family. Each module has them in ``OPS``."""
