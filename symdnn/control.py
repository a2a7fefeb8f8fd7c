"""Loops and choices with the signatures of ``jax.lax``: see ``docs/control.md``."""

from symdnn.ops.control.associative import associative_scan
from symdnn.ops.control.loops import cond, fori_loop, scan, switch, while_loop

__all__ = ["associative_scan", "cond", "fori_loop", "scan", "switch", "while_loop"]
