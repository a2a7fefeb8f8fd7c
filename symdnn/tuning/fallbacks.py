"""One line in the log for each layer that does not run the algorithm that was asked for.

The logger is ``symdnn.dnn``, the level ``WARNING``. A line says which layer, where it was made,
what was asked, what runs instead, why, and what that costs. A layer's line appears once.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

from symdnn.graph.library_use import Fallback
from symdnn.graph.variable import Apply
from symdnn.tuning.overrides import names_of

__all__ = ["LOGGER", "log"]

LOGGER = logging.getLogger("symdnn.dnn")
_said: WeakKeyDictionary[Apply, set[Fallback]] = WeakKeyDictionary()


def log(fallback: Fallback, what: str, node: Apply | None) -> None:
    """Log a fallback of ``node``, an operation ``what`` (such as ``fwd``), unless it was logged."""
    if node is None:
        LOGGER.warning("%s: %s", what, fallback)
        return
    said = _said.setdefault(node, set())
    if fallback in said:
        return
    said.add(fallback)
    name = names_of(node)[-1:] or (type(node.op).__name__,)
    LOGGER.warning("%s %s (%s): %s", name[0], what, node.origin, fallback)
