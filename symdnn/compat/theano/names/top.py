"""Names of ``theano`` itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names.compile_names import (
    FunctionMaker,
    OpFromGraph,
    ProfileStats,
    function,
    function_dump,
    predefined_linkers,
    predefined_modes,
    predefined_optimizers,
    shared,
)
from symdnn.compat.theano.names.gradient_names import Lop, Rop, grad
from symdnn.compat.theano.names.printing_names import pp, pprint
from symdnn.compat.theano.names.scan_names import (
    foldl,
    foldr,
    map,
    reduce,
    scan,
    scan_checkpoints,
)
from symdnn.compat.theano.names.types import FunctionGraph, Generic, generic
from symdnn.compat.theano.names.types import OwnType as Type
from symdnn.compat.theano.names.user_ops import Op, as_op
from symdnn.compat.theano.settings import ChangeFlags as change_flags
from symdnn.compat.theano.settings import config
from symdnn.compile.call.arguments import In
from symdnn.errors import NotScalarConstantError
from symdnn.graph.traverse import clone
from symdnn.graph.variable import Shared, Variable
from symdnn.ops.control.scan_builder import OrderedUpdates
from symdnn.ops.sparse.functions import dot as sparse_dot
from symdnn.ops.sparse.variable import SparseVariable
from symdnn.tensor import get_scalar_constant_value

__all__ = [
    "FunctionGraph", "FunctionMaker", "Generic", "In", "Lop", "NotScalarConstantError", "Op",
    "OpFromGraph", "OrderedUpdates", "Param", "ProfileStats", "Rop", "Type", "Variable",
    "__version__", "_asarray", "as_op", "change_flags", "clone", "config", "dot", "foldl",
    "foldr", "function", "function_dump", "generic", "get_scalar_constant_value", "grad", "map",
    "pp", "pprint", "predefined_linkers", "predefined_modes", "predefined_optimizers", "reduce",
    "safe_asarray", "scan", "scan_checkpoints", "shared", "sparse_grad",
]  # fmt: skip

#: The version of Theano whose names these are. The last numbers say that it is not Theano.
__version__ = "1.0.5+symdnn"
version = full_version = short_version = __version__
FALLBACK_VERSION, release, git_revision = "1.0.5", True, ""
__api_version__ = 1
#: Old names of :class:`~symdnn.In`: ``Param(variable, default=)``.
SymbolicInput = In


def Param(
    variable: Variable, default: object = None, name: str | None = None, mutable: bool = False,
    strict: bool = False, allow_downcast: bool | None = None, implicit: bool | None = None,
    borrow: bool | None = None,
) -> In:  # fmt: skip
    """Theano's old name of ``In``, whose default value is called ``default``."""
    return In(
        variable, name=name, value=default, mutable=mutable, strict=strict,
        allow_downcast=allow_downcast, implicit=implicit, borrow=borrow,
    )  # fmt: skip


def dot(l: Any, r: Any) -> Any:  # noqa: E741  # Theano's names of the arguments
    """``theano.dot``: of variables ``T.dot``, of sparse ones theirs, of arrays NumPy's ``dot``."""
    if isinstance(l, SparseVariable) or isinstance(r, SparseVariable):
        return sparse_dot(l, r)
    if isinstance(l, Variable) or isinstance(r, Variable):
        return T.dot(l, r)
    for each in (l, r):
        if hasattr(each, "__dot__"):
            return l.__dot__(r)
    return np.dot(l, r)


def _asarray(a: Any, dtype: Any, order: Any = None) -> Any:
    """``numpy.asarray(a, dtype)``, where ``"floatX"`` is a dtype too."""
    return np.asarray(a, config.floatX if isinstance(dtype, str) and dtype == "floatX" else dtype,
                      order=order)  # fmt: skip


safe_asarray = _asarray


def sparse_grad(var: Variable) -> Variable:
    """``var`` itself: gradients of picked rows are added to the rows that were picked anyway."""
    return var


def get_debug_values(*args: object) -> Any:
    """The test values of ``args`` as a tuple in an iterator, which is empty if one has none."""
    found = []
    for v in args:
        value = v.get_value(borrow=True) if isinstance(v, Shared) else getattr(
            v, "data", getattr(v, "test_value", None))  # fmt: skip
        if value is None:
            return iter(())
        found.append(value)
    return iter([tuple(found)])


def copy_function(f: object, names: Sequence[str] = ()) -> Any:
    """A copy with shared variables of its own."""
    return copy.deepcopy(f)
