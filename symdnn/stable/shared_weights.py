"""Attention in a gradient whose scores or probabilities the function has anyway is written out.

A gradient sees the cost alone, in which only the values' product may read the probabilities. Where
another output reads them too, attention in one op would compute them a second time.
"""

from __future__ import annotations

from collections.abc import Iterator

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.parts import Known
from symdnn.ops.core.shape import DimShuffle, Reshape, ShapeI, SpecifyType
from symdnn.ops.elementwise.arithmetic import Cast, Mul, TrueDiv
from symdnn.ops.elementwise.comparison import Switch
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.products import BatchedDot, Dot, MatchSizes
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.nn.softmax import Softmax
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite
from symdnn.stable.bands import filled
from symdnn.stable.views import in_order

#: How far the product of queries and keys is looked for behind the probabilities.
_DEPTH = 16


@graph_rewrite("canonicalize", tags=("numerics", "stabilize", "attention"))
def shared_weights(context: Context) -> None:
    """Attention of a gradient by probabilities or scores that something else reads, too."""
    fgraph = context.fgraph
    for form, own in list(fgraph.original.items()):
        found = None if form.stable_form_of is None else _attention_behind(form)
        if found is None or own not in fgraph.clients:
            continue
        node, means = found
        here = fgraph.original.get(node.outputs[0])
        if here is None or here.owner is None or here.owner not in fgraph.nodes:
            continue
        known = _known(form.stable_form_of, node, fgraph, means)
        if known is not None:
            _write_out(here.owner, known, context)


def _write_out(node: Apply, known: Known, context: Context) -> None:
    """Replace attention and its gradients, where nothing else reads its log-sum-exp."""
    readers = [n for n, _ in context.fgraph.users(node.outputs[1])]
    own = all(n is not None and isinstance(n.op, AttentionGrad) and n.op.own for n in readers)
    if not own or any(v in context.fgraph.clients for v in node.outputs[2:]):
        return
    old, new = node.outputs[0], node.op.parts(node.inputs, known)[0]  # type: ignore[attr-defined]
    pairs = [(old, new)]
    for n in dict.fromkeys(readers):
        assert n is not None
        inputs = [new if v is old else v for v in n.inputs]
        pairs += zip(n.outputs, n.op.parts(inputs, known), strict=True)  # type: ignore[attr-defined]
    context.replace(pairs, "shared_weights")


def _attention_behind(form: Variable) -> tuple[Apply, bool] | None:
    """The node whose result has the elements of ``form`` in the same order.

    The second is whether rows of which all is hidden are means of the values.
    """
    means = False
    for _ in range(_DEPTH):
        if made_by(form, Attention):
            return node_of(form), means
        if made_by(form, Switch):
            means, form = True, as_variable(node_of(form).inputs[1])
        elif made_by(form, Reshape, Cast, SpecifyType) or _is_in_order(form):
            form = as_variable(node_of(form).inputs[0])
        else:
            return None
    return None


def _is_in_order(v: Variable) -> bool:
    return made_by(v, DimShuffle) and in_order(v)


def _known(users: Variable | None, node: Apply, fgraph: FunctionGraph, means: bool) -> Known | None:
    """What the graph has of the weights of the product ``users``, which ``node`` stands for."""
    if users is None or not made_by(users, BatchedDot, Dot):
        return None
    p = as_variable(node_of(users).inputs[0])
    while made_by(p, Reshape, Cast) or _is_in_order(p) or (made_by(p, Dropout) and p.index == 0):
        p = as_variable(node_of(p).inputs[1 if made_by(p, Dropout) else 0])
    weights = _read(p, users, fgraph)
    found = _product(p, node)
    product = None if found is None else _read(found[0], users, fgraph)
    how = node.op.how  # type: ignore[attr-defined]
    if (weights is None and product is None) or (how.softcap and product is None):
        return None
    return Known(weights, means, product, found[1] if found else 1.0)


def _read(v: Variable, product: Variable, fgraph: FunctionGraph) -> Variable | None:
    """The user's ``v`` in the graph, if an output needs it for more than this product by it."""
    made = fgraph.original.get(product)
    forms = [u for u in fgraph.original if u.stable_form_of is v]
    for u in (v, *forms):
        own = fgraph.original.get(u)
        if own is not None and _leads_on(own, None if made is None else made.owner, fgraph):
            return own
    return None


def _leads_on(v: Variable, product: Apply | None, fgraph: FunctionGraph) -> bool:
    """Whether an output needs the value of ``v`` by another way than through ``product``."""
    stack, seen = [v], {v}
    while stack:
        for n, i in fgraph.users(stack.pop()):
            if n is None:
                return True
            if n is product or isinstance(n.op, ShapeI) or i in n.op.shape_inputs:
                continue
            found = n.outputs[:1] if isinstance(n.op, Dropout) else n.outputs  # the rest is drawn
            new = [o for o in found if o not in seen]
            seen.update(new)
            stack += new
    return False


# -- the product of queries and keys ---------------------------------------------------------------


def _product(p: Variable, node: Apply) -> tuple[Variable, float] | None:
    """The scores' product before all factors, and what one of it is of ``node``'s."""
    found = [v for v in dict.fromkeys(_products(p, _DEPTH)) if made_by(v, BatchedDot, Dot)]
    fits = [(v, f) for v in found if (f := _ratio(node, node_of(v))) is not None]
    return fits[0] if len(fits) == 1 else None


def _products(v: Variable, depth: int) -> Iterator[Variable]:
    """Products whose elements are those of ``v``, in the same order."""
    if not depth or v.owner is None:
        return
    if made_by(v, BatchedDot, Dot):
        yield v
    elif made_by(v, Softmax, Reshape) or _is_in_order(v):
        yield from _products(as_variable(node_of(v).inputs[0]), depth - 1)
    elif isinstance(v.owner.op, Elemwise):
        for u in v.owner.inputs:
            if u.type.ndim == v.type.ndim and 1 not in _broadcast(u, v):
                yield from _products(u, depth - 1)


def _broadcast(u: Variable, v: Variable) -> list[int | None]:
    """The sizes of ``u`` where they are 1 and those of ``v`` are not."""
    return [a for a, b in zip(u.type.shape, v.type.shape, strict=True) if a == 1 != b]


def _ratio(node: Apply, product: Apply) -> float | None:
    """What the operands' factors in ``node`` are of those in ``product``; None: other operands."""
    whole = 1.0
    for own, given in zip(node.inputs[:2], product.inputs, strict=True):
        ours, theirs = _factors(own), _factors(given)
        same = next((v for v in ours if v in theirs), None)
        if same is None:
            return None
        whole *= ours[same] / theirs[same]
    return whole


def _factors(x: Variable) -> dict[Variable, float]:
    """Variables of which ``x`` is a view times a number, with the number."""
    found: dict[Variable, float] = {}
    factor = 1.0
    while True:
        found |= {v: factor for v in (x, x.stable_form_of) if v is not None}
        if made_by(x, Reshape, DimShuffle, Cast, MatchSizes, SpecifyType):
            x = as_variable(node_of(x).inputs[0])
            continue
        if not made_by(x, Mul, TrueDiv):
            return found
        a, b = map(as_variable, node_of(x).inputs)
        if filled(b) is None and made_by(x, Mul):
            a, b = b, a
        number = filled(b)
        if number is None or not number:
            return found
        factor *= 1 / float(number) if made_by(x, TrueDiv) else float(number)
        x = a


RULES = (shared_weights,)
