"""Loops and choices with the signatures of ``jax.lax``: see ``docs/control.md``."""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.ops.control.associative import associative_scan
from symdnn.ops.control.loops import cond, fori_loop, scan, switch, while_loop

__all__ = ["associative_scan", "cond", "fori_loop", "scan", "switch", "while_loop"]

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "CONTROL")
