"""symdnn: a symbolic graph compiler for deep learning.

Write an expression, differentiate it, compile it, call it::

    import symdnn
    import symdnn.tensor as T

    x = T.vector("x")
    f = symdnn.function([x], symdnn.grad((x**2).sum(), x))
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn import _starting as _starting
from symdnn.graph.gc_pause import paused as _paused

with _paused():  # what modules define stays
    from symdnn import control, gradient, printing, rewrites, tensor, tuning
    from symdnn.autodiff import Lop, Rop, grad, subgraph_grad, verify_grad
    from symdnn.compile.call.arguments import In, Out
    from symdnn.compile.dlpack import as_dlpack, from_dlpack
    from symdnn.compile.evaluation import evaluate
    from symdnn.compile.function import Function, function
    from symdnn.compile.modes.debug import DebugMode
    from symdnn.compile.modes.monitor import MonitorMode
    from symdnn.compile.nanguard import NanGuardMode
    from symdnn.compile.program.mode import Mode
    from symdnn.compile.shared import shared
    from symdnn.config import config
    from symdnn.gradient import hessian, jacobian
    from symdnn.graph.names.dim import Dim
    from symdnn.graph.names.elsewhere import refusing as _refusing
    from symdnn.graph.origin import Hints
    from symdnn.graph.target import Target
    from symdnn.graph.traverse import clone
    from symdnn.graph.values.tree import register_tree
    from symdnn.graph.variable import Apply, Constant, Shared, Variable
    from symdnn.loss_scale import LossScale
    from symdnn.ops.control.checkpoint import checkpoint
    from symdnn.ops.control.control import ifelse
    from symdnn.ops.control.from_graph import OpFromGraph
    from symdnn.ops.control.scan_builder import foldl, foldr, map, reduce, scan, until
    from symdnn.ops.control.scan_checkpoints import scan_checkpoints
    from symdnn.printing import dprint, pp
    from symdnn.saving import load, save, saved_op
    from symdnn.transforms.custom import custom_gradient
    from symdnn.transforms.derivatives import hvp, jvp, linearize, value_and_grad, vjp
    from symdnn.transforms.jit import jit
    from symdnn.transforms.vectorize import vectorize_graph, vmap

__version__ = "0.1.0"

__all__ = [
    "Apply", "Constant", "DebugMode", "Dim", "Function", "Hints", "In", "Lop", "LossScale", "Mode",
    "MonitorMode", "NanGuardMode", "OpFromGraph", "Out", "Rop", "Shared", "Target", "Variable",
    "as_dlpack", "checkpoint", "clone", "config", "control", "custom_gradient", "dprint",
    "evaluate", "foldl", "foldr", "from_dlpack", "function", "grad", "gradient", "hessian", "hvp",
    "ifelse", "jacobian", "jit", "jvp", "linearize", "load", "map", "pp", "printing", "reduce",
    "register_tree", "rewrites", "save", "saved_op", "scan", "scan_checkpoints", "shared",
    "subgraph_grad", "tensor", "tuning", "until", "value_and_grad", "vectorize_graph",
    "verify_grad", "vjp", "vmap",
]  # fmt: skip

if not _CHECKED:  # a checker of types would believe that every name exists
    _MODULES = ("errors", "io")
    _LATE = ("compat", "distributed", "distributions", "gpu", "nn", "onnx", "serving", "sparse")
    __getattr__ = _refusing(__name__, "SYMDNN", submodules=_LATE)

    def __dir__() -> list[str]:
        """The public names, without the submodules that they come from."""
        return sorted({*__all__, *_LATE, *(n for n in globals() if n.startswith("__")), *_MODULES})
