"""Lowerings: rewrites from a neutral op to a library's, which can say why they do not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.rewriting.rewrite import Context, Rewrite

__all__ = ["Lowering", "Reasons", "cudnn_reason", "dtype_reason", "lowering", "why_not"]

Built = Variable | Sequence[Variable | None] | None
#: Why a node is not lowered; None when nothing speaks against it.
Reasons = Callable[[Apply, Context], str | None]

_FLOATS = ("float16", "float32", "float64")


def cudnn_reason(target: Target) -> str | None:
    """Why cuDNN is not used at all, a line for each reason; None when it is there."""
    if target.kind != "cuda":
        return "\n".join([f"the target is {target}", *target.notes])
    if str(config.dnn.enabled) == "False":
        return "dnn.enabled=False"
    if not target.has("cudnn"):
        return "\n".join(["cuDNN can't be used", *target.notes])
    return None


def dtype_reason(target: Target, dtype: str, *, bfloat16: bool = False) -> str | None:
    """Why cuDNN does not take this dtype; ``bfloat16`` says that the op has kernels for it."""
    if dtype in _FLOATS:
        return None
    if dtype != "bfloat16" or not bfloat16:
        return f"cuDNN has it for {', '.join(_FLOATS)}, not for {dtype}"
    if (target.compute_capability or (0, 0)) < (8, 0):
        return f"bfloat16 needs compute capability 8.0 or more, {target} has not"
    return None


@dataclass(frozen=True)
class Lowering:
    """From neutral ops to a library's op: when (``refuses``), and to what (``build``)."""

    name: str
    ops: tuple[type[Op], ...]
    refuses: Reasons
    build: Callable[[Apply, Context], Built]
    tags: frozenset[str] = frozenset()
    text: str = field(default="", compare=False)

    def reason(self, node: Apply, context: Context) -> str | None:
        """Why ``node`` stays as it is; None when it is lowered."""
        backend = node.hints.backend
        if (reason := cudnn_reason(context.target)) is not None:
            return reason
        if backend not in (None, "cudnn", "onednn"):  # oneDNN's hint means little on a GPU
            return f"the hint asks for backend {backend}"
        if not all(isinstance(v.type, TensorType) for v in node.outputs[:1]):
            return "its result is no tensor"
        return self.refuses(node, context)

    def rewrite(self) -> Rewrite:
        """As a rewrite of the phase ``lower``."""

        def apply(node: Apply, context: Context) -> Any:
            if self.reason(node, context) is not None:
                return None
            return self.build(node, context)

        return Rewrite(self.name, "lower", self.ops, apply, self.tags, self.text, target="cuda")


def lowering(
    name: str, *ops: type[Op], refuses: Reasons, tags: Iterable[str] = ()
) -> Callable[[Callable[[Apply, Context], Built]], Lowering]:
    """Make a :class:`Lowering` of the function that builds the replacement (a decorator)."""

    def wrap(build: Callable[[Apply, Context], Built]) -> Lowering:
        text = (build.__doc__ or "").strip().split("\n")[0]
        own = frozenset({"cudnn", "fast_compile", *tags})
        return Lowering(name, ops, refuses, build, own, text)

    return wrap


def why_not(
    lowerings: Iterable[Lowering],
    fgraph: FunctionGraph,
    target: Target,
    takes: Callable[[Rewrite], bool],
) -> dict[Apply, str]:
    """For each node that one of ``lowerings`` could have lowered and did not: the reason.

    ``takes`` says which rewrites were switched on.
    """
    context = Context(fgraph, target)
    table: dict[type[Op], list[Lowering]] = {}
    for low in lowerings:
        for kind in low.ops:
            table.setdefault(kind, []).append(low)
    found: dict[Apply, str] = {}
    for node in fgraph.toposort():
        for low in (x for kind in type(node.op).__mro__ for x in table.get(kind, ())):
            reason = low.reason(node, context)
            if not takes(low.rewrite()):
                reason = f"the rewrite {low.name} is switched off"
            found.setdefault(node, reason or f"the rewrite {low.name} did not run")
    return found
