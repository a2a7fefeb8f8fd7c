"""Every op of the op table, timed: ``python -m benchmarks.ops``."""
