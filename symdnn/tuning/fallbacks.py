"""A warning in the log for each layer that does not run the algorithm that the user chose.

The logger is ``symdnn.dnn``. The line names the layer, its line in the program, the chosen
algorithm, the one that runs, the reason and the cost. It appears once for each layer.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

from symdnn.graph.library_use import Fallback
from symdnn.graph.variable import Apply
from symdnn.tuning.overrides import names_of

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
