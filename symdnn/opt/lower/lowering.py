"""Lowerings: rewrites of a neutral op to a library's op, which can say why they do not apply.

Nothing here knows a library: :mod:`symdnn.libraries` has a room for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.lowered.lowered import Lowered
from symdnn.rewriting.rewrite import Context, GraphRewrite, Rewrite

Built = Variable | Sequence[Variable | None] | None
#: The reason why a node is not lowered; None when it is.
Reasons = Callable[[Apply, Context], str | None]


def _no_reason(node: Apply, context: Context) -> str | None:
    return None


def _dtype(node: Apply) -> str:
    """The dtype of the first array of numbers that are not whole; the first one's without any."""
    types = [v.type for v in (*node.inputs, *node.outputs) if isinstance(v.type, TensorType)]
    return next((t.dtype for t in types if not t.is_discrete), types[0].dtype)


@dataclass(frozen=True)
class Backend:
    """A library that nodes are lowered to.

    ``name`` is its name in :attr:`Target.libraries` and its tag, ``kind`` the kind of target that
    it runs on. ``problem(target)`` is the reason why it is not used at all, or None. ``hints`` are
    the values of a hint's ``backend`` with which a node may be lowered to it.
    ``without_bfloat16(target)`` is the reason why a target does not compute in bfloat16, or None.
    """

    name: str
    kind: str
    problem: Callable[[Target], str | None]
    hints: tuple[str | None, ...]
    without_bfloat16: Callable[[Target], str | None] = lambda target: None

    def dtype_reason(self, target: Target, dtype: str, low: type[Lowered]) -> str | None:
        """Why the library does not take a dtype for its op ``low``; None where it does."""
        if (reason := low.dtype_reason(dtype, target.libraries)) is not None:
            return reason
        return self.without_bfloat16(target) if dtype == "bfloat16" else None

    def lowering(
        self, name: str, low: type[Lowered] | None, *ops: type[Op], refuses: Reasons = _no_reason,
        tags: Iterable[str] = (), text: str = "",
    ) -> Callable[[Callable[[Apply, Context], Built]], Lowering]:  # fmt: skip
        """Make a :class:`Lowering` to ``low`` of the function that builds the replacement (a
        decorator).

        ``text`` is the first line of its docstring unless given, or which op becomes which.
        """

        def wrap(build: Callable[[Apply, Context], Built]) -> Lowering:
            renamed = f"{', '.join(op.__name__ for op in ops)} to {low.__name__ if low else name}"
            line = text or (build.__doc__ or renamed).strip().split("\n")[0]
            own = frozenset({self.name, "fast_compile", *tags})
            return Lowering(name, self, low, ops, refuses, build, own, line)

        return wrap

    def row(
        self, name: str, low: type[Lowered], *ops: type[Op], refuses: Reasons = _no_reason,
        **settings: Any,
    ) -> Lowering:  # fmt: skip
        """A lowering to ``low`` with the neutral op's fields and ``settings``, on equal inputs."""

        def build(node: Apply, context: Context) -> Built:
            return low.of(node.op, **settings)(*node.inputs, hints=node.hints)

        return self.lowering(name, low, *ops, refuses=refuses)(build)


@dataclass(frozen=True)
class Lowering:
    """Lowering of neutral ops to a library's op.

    ``low`` is that op, of whose dtypes the operands must be; None where ``build`` casts them.
    ``refuses`` says when else a node stays as it is, and why. ``build`` makes the replacement.
    """

    name: str
    backend: Backend
    low: type[Lowered] | None
    ops: tuple[type[Op], ...]
    refuses: Reasons
    build: Callable[[Apply, Context], Built]
    tags: frozenset[str] = frozenset()
    text: str = field(default="", compare=False)

    def reason(self, node: Apply, context: Context) -> str | None:
        """The reason why ``node`` is not lowered; None when it is."""
        if (reason := self.backend.problem(context.target)) is not None:
            return reason
        if node.hints.backend not in self.backend.hints:
            return f"the hint asks for backend {node.hints.backend}"
        if isinstance(node.outputs[0].type, OpaqueType):
            return "its result is no tensor"
        if self.low is not None:
            reason = self.backend.dtype_reason(context.target, _dtype(node), self.low)
        return reason or self.refuses(node, context)

    def rewrite(self) -> Rewrite:
        """The rewrite of the phase ``lower`` that does it."""

        def apply(node: Apply, context: Context) -> Any:
            if self.reason(node, context) is not None:
                return None
            return self.build(node, context)

        kind = self.backend.kind
        return Rewrite(self.name, "lower", self.ops, apply, self.tags, self.text, target=kind)


@dataclass(frozen=True)
class Library:
    """A vendor's library: its lowerings and its other rewrites.

    ``detected_by`` names the module whose ``facts()`` are keywords of :class:`Target`: the
    library's version, or ``notes`` that say why it is absent. It is empty for a library that the
    detection of the device finds. ``kernels`` names the module whose rows ``KERNELS`` are entered
    after the target's own. It is empty where the target's registry has them. ``demanded`` says
    whether compiling fails without the library, by :meth:`Selection.takes`.
    """

    backend: Backend
    lowerings: tuple[Lowering, ...] = ()
    own_rules: tuple[Rewrite | GraphRewrite, ...] = ()
    detected_by: str = ""
    kernels: str = ""
    demanded: Callable[[Callable[[GraphRewrite], bool]], bool] = lambda takes: False

    @property
    def rules(self) -> tuple[Rewrite | GraphRewrite, ...]:
        """The lowerings as rewrites, and the other rewrites."""
        return (*(low.rewrite() for low in self.lowerings), *self.own_rules)


def why_not(
    lowerings: Iterable[Lowering],
    fgraph: FunctionGraph,
    target: Target,
    takes: Callable[[Rewrite], bool],
) -> dict[Apply, str]:
    """For each node that ``lowerings`` could have lowered and did not, the reason.

    ``fgraph`` is a rewritten graph. ``takes`` says which rewrites were switched on.
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
