"""Prints graphs: as a tree, as a formula, as a list of steps, as a picture.

Any stage can be printed: the user's expression, the rewritten graph, the program, the plans.
"""

from symdnn.ops.core.gradient_control import Print
from symdnn.printing.formula import pprint
from symdnn.printing.graph_page import graph_page
from symdnn.printing.network import to_networkx
from symdnn.printing.notebook import repr_html
from symdnn.printing.picture import pydotprint
from symdnn.printing.tree import debugprint, min_informative_str

__all__ = [
    "Print",
    "debugprint",
    "dprint",
    "graph_page",
    "min_informative_str",
    "pp",
    "pprint",
    "pydotprint",
    "repr_html",
    "to_networkx",
]

#: Short names, as in ``symdnn.dprint(f)``.
dprint, pp = debugprint, pprint
