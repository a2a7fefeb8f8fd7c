"""Values that a gradient has in stable form are computed in that form alone.

A gradient is taken of the stable form of the user's expression, made before anything else is known.
The compiler would bring the user's own expression into a stable form as well, by other ways, and
where both ended as different nodes everything behind them would run twice.
"""

from __future__ import annotations

from symdnn.graph.variable import Variable
from symdnn.ops.core.shape import ShapeI
from symdnn.rewriting.rewrite import Context, graph_rewrite


@graph_rewrite("canonicalize", tags=("numerics", "stabilize"))
def stable_twins(context: Context) -> None:
    """Readers of the user's variable read its stable form where a gradient has brought that."""
    fgraph = context.fgraph
    for form, own in list(fgraph.original.items()):
        stands_for = form.stable_form_of
        users = None if stands_for is None else fgraph.original.get(stands_for)
        if users is None or users not in fgraph.clients or own not in fgraph.clients:
            continue
        # Its size is no reason to compute it, and that of both may be expressed by the user's own.
        readers = [
            (n, i) for n, i in fgraph.users(users) if n is None or not isinstance(n.op, ShapeI)
        ]
        if users is not own and _fits(users, own) and readers:
            fgraph.redirect(readers, users, own, "stable_twins")


def _fits(old: Variable, new: Variable) -> bool:
    """Whether the type of ``new`` says at least as much."""
    pairs = zip(old.type.shape, new.type.shape, strict=False)
    alike = old.type.dtype == new.type.dtype and old.type.ndim == new.type.ndim
    return alike and all(a is None or a == b for a, b in pairs)


RULES = (stable_twins,)
