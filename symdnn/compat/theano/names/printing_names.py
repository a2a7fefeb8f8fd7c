"""Names of ``theano.printing`` and ``theano.d3viz``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn import printing
from symdnn.compat.theano.names.class_names import stand_in
from symdnn.graph.variable import Variable
from symdnn.ops.core.gradient_control import Print as _Print
from symdnn.printing.graph_page import graph_page
from symdnn.printing.picture import pydotprint as _pydotprint

__all__ = [
    "DefaultPrinter", "FunctionPrinter", "IgnorePrinter", "LeafPrinter", "OperatorPrinter",
    "PPrinter", "PatternPrinter", "Print", "d3viz", "d3write", "debugprint", "pp", "pprint",
    "pydot_imported", "pydotprint", "pydotprint_variables", "var_descriptor",
]  # fmt: skip

pydot_imported, pydot_imported_msg = True, ""


class _Printer:
    """Theano's printer classes, which programs attach to ops: they exist and are ignored."""

    def __init__(self, *args: object, **words: object) -> None:
        self.args = args


FunctionPrinter = OperatorPrinter = PatternPrinter = LeafPrinter = IgnorePrinter = _Printer
DefaultPrinter = _Printer


class PPrinter:
    """``theano.pprint``: an expression as a formula. Printers that a program assigns to its own ops
    (:meth:`assign`) are ignored: these ops are printed as functions.
    """

    def __call__(self, *args: Any, **words: Any) -> str:
        """The formula as text."""
        return printing.pprint(*args, **words)

    process = __call__

    def assign(self, condition: object, printer: object = None) -> None:
        """Nothing."""

    def clone(self) -> PPrinter:
        """This printer."""
        return self

    def clone_assign(self, condition: object, printer: object = None) -> PPrinter:
        """This printer."""
        return self


pprint = pp = PPrinter()


def _print(message: str = "", attrs: Sequence[str] = ("__str__",), global_fn: Any = None) -> Any:
    return _Print(message, tuple(attrs), global_fn)


#: ``theano.printing.Print``; ``global_fn(op, array)`` replaces the printing.
Print = stand_in("Print", _print, "core.gradient_control.Print")


def debugprint(obj: Any, *args: Any, **words: Any) -> Any:
    """``theano.printing.debugprint``: :func:`symdnn.dprint`, of lists too."""
    for old in (
        "ids", "stop_on_name", "done", "used_ids", "used_names", "print_view_map", "print_storage",
        "print_clients", "print_destroy_map", "profile",
    ):  # fmt: skip
        words.pop(old, None)
    return printing.debugprint(obj, *args, **words)


def pydotprint(fct: Any, outfile: Any = None, *args: object, **words: object) -> Any:
    """``theano.printing.pydotprint``: :func:`symdnn.printing.pydotprint`. Keywords for GraphViz are
    ignored.
    """
    return _pydotprint(fct, outfile or "symdnn.svg")


def pydotprint_variables(
    vars: Any, outfile: Any = "variables.svg", *args: object, **words: object
) -> Any:
    """The picture of an expression."""
    return _pydotprint(vars, outfile)


def d3viz(fct: object, outfile: str, *args: object, **words: object) -> None:
    """``theano.d3viz.d3viz``: :func:`symdnn.printing.graph_page`."""
    graph_page(fct, outfile)


def d3write(fct: object, path: str, *args: object, **words: object) -> None:
    """A page of a graph in a file."""
    graph_page(fct, path)


def var_descriptor(obj: Any, *args: object, **words: object) -> str:
    """An expression as text."""
    found: Sequence[Variable] | Variable = obj
    return str(printing.pprint(found))
