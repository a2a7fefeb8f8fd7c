"""GEMMs in training whose result an activation function reads, and its gradient.

One kernel may write the values before and after the activation, if nothing else reads the former.
If only GEMMs read the latter, no other kernel would have computed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elementwise.activations import Gelu, GeluTanh
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.lowered.epilogue import Affine
from symdnn.ops.vendor.gpublas import ACTIVATIONS, GpuGemmKept
from symdnn.opt.epilogue.epilogue import Chain, behind_reshape, is_product, read_by
from symdnn.rewriting.rewrite import Context


def keep_before_activations(
    context: Context, gemm_at: Callable[[Apply], Chain | None], name: str
) -> None:
    """Merge each such pair of a graph. ``gemm_at(node)`` is the chain at a GEMM, or None."""
    for node in context.fgraph.toposort():
        chain = gemm_at(node) if node in context.fgraph.nodes else None
        if chain is None or not _keeps(chain):
            continue
        behind = behind_reshape(chain, context) or chain
        found = _activated(behind.value, context)
        if found is not None:
            word, out = found
            _merge(context, chain, behind, word, out, name)


def _keeps(chain: Chain) -> bool:
    """Whether it is a 16-bit GEMM whose epilogue is at most a bias."""
    terms, dtype = chain.terms, chain.epilogue.dtype
    plain = terms is not None and terms == Affine(bias=terms.bias)
    fits = isinstance(chain.op.unlowered, Dot) and chain.value.type.ndim == 2
    return plain and fits and is_narrow_float(dtype) and dtype == chain.factors_dtype


def _activated(v: Variable, context: Context) -> tuple[str, Variable] | None:
    """An activation function of ``v``, computed in float32 and read by products, and its name."""
    words = {op: word for word, op in ACTIVATIONS.items() if isinstance(op, Gelu | GeluTanh)}
    for wide in context.fgraph.user_nodes(v):
        if not isinstance(wide.op, Cast) or wide.outputs[0].type.dtype != "float32":
            continue
        for node in context.fgraph.user_nodes(wide.outputs[0]):
            word = next((w for op, w in words.items() if op == node.op), None)
            if word is None or not context.only_user(node.outputs[0]):
                continue
            (rounded,) = context.fgraph.user_nodes(node.outputs[0])
            (out,) = rounded.outputs
            same = isinstance(rounded.op, Cast) and out.type.dtype == v.type.dtype
            readers = read_by(out, context)
            if same and readers and all(is_product(reader, context) for reader in readers):
                return word, out
    return None


def _merge(
    context: Context, chain: Chain, behind: Chain, word: str, out: Variable, name: str
) -> None:
    maker, terms = chain.value.owner, chain.terms
    assert maker is not None, "a GEMM is made by a node"
    assert terms is not None, "the GEMM has a bias alone"
    activation = dict(chain.op.rules.activations)[word]
    dtype = chain.epilogue.dtype
    epilogue = replace(terms, activation=word).epilogue(dtype, activation, chain.factors_dtype)
    with inherit(maker.origin, maker.hints):
        both = GpuGemmKept(chain.op.unlowered, epilogue=epilogue)
        activated, before = both(*chain.inputs())
        if behind.reshape is not None:
            activated = behind.reshape.op(activated, *behind.reshape.inputs[1:])
        context.replace([(chain.value, before), (out, activated)], name)
