"""Scaled dot-product attention and its gradient (Vaswani et al. 2017).

Query, key and value are (batch, heads, time, features); heads of the query may share those of key
and value in equal groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch
from symdnn.graph.backprop import zeros_for
from symdnn.graph.dims import product
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType, Type, elements
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.attention import reference as in_numpy
from symdnn.ops.attention.heads import with_equal_lead
from symdnn.ops.attention.packed import Packed
from symdnn.ops.attention.parts import (
    NOTHING,
    Known,
    attention_grad_parts,
    attention_parts,
    probabilities,
)
from symdnn.ops.attention.scores import EXTRAS, Scores
from symdnn.ops.core.composed import vjp_of_expressions
from symdnn.ops.core.dtype import upcast, wide_float, work_dtype
from symdnn.ops.core.lanes import fold, lanes_of, sizes_of, stacked, unfold
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.random.random import STATE_TYPE, next_state
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["Attention", "AttentionGrad", "attention_weights", "scaled_dot_product_attention"]


@dataclass(frozen=True)
class Attention(MultiOp):
    """(result, log-sum-exp, next state if it draws) of query, key, value and the extras of ``how``.

    The result is ``softmax(scores) @ value``, (batch, heads, queries, features of value), in the
    dtype of the operands; the natural log-sum-exp of the scores, (batch, heads, queries), is
    float32 (float64 for float64). A query that sees no key has the result 0 and the log-sum-exp
    -inf. Sums are float32 at least. With ``state`` and ``rate``, probabilities are dropped as
    :class:`~symdnn.ops.nn.dropout.Dropout` drops them.
    """

    folds: ClassVar[bool] = False
    how: Scores

    @property
    def draws(self) -> bool:
        """Whether it drops probabilities."""
        return "state" in self.how.extras

    @property
    def random_state(self) -> int | None:
        return 3 + self.how.extras.index("state") if self.draws else None

    def infer(self, *types: TensorType) -> tuple[Type, ...]:
        batch, heads, queries, _ = self.how.check(self, types)
        out = TensorType(types[0].dtype, (batch, heads, queries, types[2].shape[3]))
        lse = TensorType(wide_float(types[0].dtype), (batch, heads, queries))
        return (out, lse, STATE_TYPE) if self.draws else (out, lse)

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        return 2.0 * elements(inputs[0]) * (inputs[1].shape[2] or 0)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        q, v = shapes[0], shapes[2]
        self.how.check_sizes(self, types, shapes)
        return [(*q[:3], v[3]), tuple(q[:3]), *([(2,)] if self.draws else [])]

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        out, lse = in_numpy.attention(self.how, *operands)
        found = out.astype(operands[0].dtype), lse.astype(wide_float(operands[0].dtype.name))
        if not self.draws:
            return found
        state = operands[3 + self.how.extras.index("state")]
        scores = product((*operands[0].shape[:3], operands[1].shape[2]))
        return (*found, next_state(state, int(scores)))

    def parts(self, inputs: Vars, known: Known = NOTHING) -> list[Variable]:
        """The outputs as expressions of simpler ops, and of what is ``known``."""
        return list(attention_parts(self.how, *inputs, known=known))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (q, k, v, *extras), (dout, dlse, *_) = inputs, cotangents
        given = zeros_for(outputs[:1], [dout])
        given += [] if dlse is None else [dlse]
        op = AttentionGrad(self.how, of_lse=dlse is not None, own=True)
        grads = op(q, k, v, *outputs[:2], *given, *extras)
        in_mask = grads[3:]
        return [
            *grads[:3],
            *(in_mask[0] if e == "mask" and in_mask else None for e in self.how.extras),
        ]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return _on_folded(self, inputs, axes, 3)


@dataclass(frozen=True)
class AttentionGrad(MultiOp):
    """Gradients of query, key, value, and of a float mask.

    The operands are query, key, value, result, log-sum-exp, the result's cotangent, with ``of_lse``
    that of the log-sum-exp, and the extras of ``how``. Dao et al. 2022 compute it so that no scores
    are kept. ``own`` says that result and log-sum-exp are those of these operands, as in a
    gradient: then expressions for this op share the softmax with those for :class:`Attention`.
    Without ``of_mask`` there is no gradient of a mask.
    """

    how: Scores
    of_lse: bool = False
    own: bool = False
    of_mask: bool = True

    @property
    def first_extra(self) -> int:
        """The index of the first extra operand."""
        return 7 if self.of_lse else 6

    def infer(self, *types: TensorType) -> tuple[Type, ...]:
        self.how.check(self, (*types[:3], *types[self.first_extra :]))
        mask = self.how.named(types[self.first_extra :]).get("mask")
        masks = [mask] if self.of_mask and mask is not None and mask.is_float else []
        return (*types[:3], *masks)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        at = self.first_extra
        self.how.check_sizes(self, (*types[:3], *types[at:]), (*shapes[:3], *shapes[at:]))
        masks = [shapes[at]] if len(self.infer(*types)) > 3 else []
        return [*shapes[:3], *masks]

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        return 5.0 * elements(inputs[0]) * (inputs[1].shape[2] or 0)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        grads = in_numpy.attention_grad(self.how, *self._whole(operands, 0))
        like = [*operands[:3], *(operands[self.first_extra :][:1] if self.of_mask else ())]
        return tuple(g.astype(x.dtype) for g, x in zip(grads, like, strict=False))

    def parts(self, inputs: Vars, known: Known = NOTHING) -> list[Variable]:
        """As :meth:`Attention.parts`."""
        found = attention_grad_parts(self.how, self.own, *self._whole(inputs, None), known=known)
        return found if self.of_mask else found[:3]

    def _whole(self, operands: Sequence[Any], missing: Any) -> list[Any]:
        """The operands with ``missing`` where there is no cotangent of the log-sum-exp."""
        return [*operands[:6], *(() if self.of_lse else (missing,)), *operands[6:]]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        return vjp_of_expressions(lambda *v: self.parts(v), inputs, cotangents)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return _on_folded(self, inputs, axes, self.first_extra)


def _on_folded(op: Any, inputs: Vars, axes: Axes, count: int) -> Batched:
    """Lanes as a part of the batch; a loop where it draws."""
    if "state" in op.how.extras:
        return None
    lanes = lanes_of(inputs, axes)
    whole = [stacked(v, a, lanes) for v, a in zip(inputs[:count], axes)]
    batch = sizes_of(whole[0])[1]
    extras, was_one = [], False
    for name, v, a in zip(op.how.extras, inputs[count:], axes[count:], strict=True):
        each = stacked(v, a, lanes)
        if name == "mask":
            was_one = each.type.shape[1] == 1
            each = operator("alloc")(each, lanes, batch, *sizes_of(each)[2:]) if was_one else each
        extras.append(fold(each, 0))
    outputs = op.make_node(*(fold(v, 0) for v in whole), *extras).outputs
    found = [unfold(v, 0, lanes, batch) for v in outputs]
    if len(found) > 3 and was_one:  # the gradient of a mask that served the whole batch
        found[3] = found[3].sum(axis=1, keepdims=True)
    return found, [0] * len(found)


def scaled_dot_product_attention(
    query: TensorLike, key: TensorLike, value: TensorLike, attn_mask: TensorLike | None = None,
    dropout_p: Any = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False, causal: str | None = None,
    window: tuple[int | None, int | None] | None = None, query_lengths: TensorLike | None = None,
    key_lengths: TensorLike | None = None, softcap: float = 0.0,
    cu_seqlens_q: TensorLike | None = None, cu_seqlens_k: TensorLike | None = None,
    max_seqlen_q: Any = None, max_seqlen_k: Any = None, stream: Any = None,
    return_lse: bool = False, hints: Hints | None = None,
) -> Any:  # fmt: skip
    """``softmax(scale * query @ key.T + mask) @ value``, as PyTorch's function of this name has it.

    Shapes are (..., heads, time, features); the result has that of ``query`` with the features of
    ``value``. Leading dimensions that are statically 1 broadcast. A query that sees no key has the
    result 0.

    - ``attn_mask`` broadcasts over (..., heads, queries, keys): where it is bool, True takes part;
      a float mask is added. It excludes ``is_causal``.
    - ``dropout_p`` drops probabilities, drawn from ``stream`` (a RandomStream, or a seed).
    - ``is_causal`` hides keys after the query of equal index (``causal="top_left"``);
      ``causal="bottom_right"`` puts the last query beside the last key, as decoding wants.
    - ``scale`` is ``1 / sqrt(features)`` by default; ``softcap=c``: scores are c tanh(score / c).
    - ``enable_gqa`` lets heads of the query share those of key and value in equal groups.
    - ``window=(left, right)``: a query sees so many keys before and after its own (None: all).
    - ``query_lengths``, ``key_lengths``: ints (batch,); what is beyond is not seen.
    - ``cu_seqlens_q``, ``cu_seqlens_k`` (by default the former): arrays are (heads, positions,
      features) of sequences behind each other, number ``i`` from position ``cu_seqlens[i]`` to
      ``cu_seqlens[i + 1]``, which see only themselves. ``max_seqlen_q``, ``max_seqlen_k`` are the
      sizes of the longest; without them they are found at each call.
    - ``return_lse`` gives ``(result, log-sum-exp)``, the latter natural, without features.

    Raises OptionError, :class:`~symdnn.errors.ShapeMismatch`, :class:`~symdnn.errors.TypeMismatch`.
    """
    what = "scaled_dot_product_attention"
    xs = _same_dtype([as_variable(x) for x in (query, key, value)])
    if min(x.type.ndim for x in xs) < 2:
        wanted = "query, key and value (..., time, features)"
        raise NdimMismatch(what, wanted, [x.type for x in xs])
    how = _settings(what, is_causal, causal, window, attn_mask is not None)
    how = replace(how, scale=scale, softcap=float(softcap))
    given = {"mask": attn_mask, "key_lengths": key_lengths, "query_lengths": query_lengths}
    more = {n: as_variable(x) for n, x in given.items() if x is not None}
    draw, last = (dropout_p, stream), (enable_gqa, hints)
    if cu_seqlens_q is None:
        found = _attend(what, how, xs, more, draw, *last)
    else:
        if more or any(x.type.ndim != 3 for x in xs):
            wanted = "arrays (heads, positions, features), no mask and no lengths"
            raise OptionError(f"{what}: with cu_seqlens_q: wanted {wanted}")
        q = Packed(what, cu_seqlens_q, max_seqlen_q)
        k = q if cu_seqlens_k is None else Packed(what, cu_seqlens_k, max_seqlen_k)
        more = {"key_lengths": k.lengths, "query_lengths": q.lengths}
        padded = [q.padded(xs[0]), *(k.padded(x) for x in xs[1:])]
        out, lse = _attend(what, how, padded, more, draw, *last)
        positions = dims_of(xs[0])[1]
        found = q.packed(out, positions), q.packed(lse, positions, -np.inf)
    return found if return_lse else found[0]


def _attend(
    what: str, how: Scores, xs: list[Variable], more: dict[str, Variable], draw: tuple[Any, Any],
    enable_gqa: bool, hints: Hints | None,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Result and log-sum-exp of arrays (..., heads, time, features)."""
    q, k, v = with_equal_lead(*xs, groups=enable_gqa)
    lead = dims_of(q)[:-3] if q.type.ndim > 3 else []
    extras = dict(more)
    if "mask" in extras:
        extras["mask"] = _mask4(what, extras["mask"], q, lead)
    q4, k4, v4 = (_four(x) for x in (q, k, v))
    if not enable_gqa:
        _check_heads(what, q4.type.shape[1], k4.type.shape[1])
    source, state = _stream(what, *draw, extras)
    names = tuple(e for e in EXTRAS if e in extras)
    op = Attention(replace(how, extras=names))
    out, lse, *new = op(q4, k4, v4, *(extras[n] for n in names), hints=hints)
    if source is not None and state is not None:
        source.register(state, new[0])
    return _shaped(out, q, lead), _shaped(lse, q, lead)


def attention_weights(
    query: Variable, key: Variable, mask: Variable | None = None, *, causal: bool = False
) -> Variable:
    """The weights of the values in attention, (batch, heads, queries, keys), before dropout.

    ``query`` and ``key`` are (batch, heads, time, features), ``mask`` is one of four dimensions as
    in :func:`scaled_dot_product_attention`. A query that sees no key has weights 0. They are
    computed whole: the attention op itself makes no array of this shape.
    """
    what = "attention_weights"
    q, k = _same_dtype([query, key])
    how = replace(
        _settings(what, causal, None, None, False), extras=() if mask is None else ("mask",)
    )
    given = {} if mask is None else {"mask": _mask4(what, mask, q, dims_of(q)[:-3])}
    wide = work_dtype(q.type.dtype)
    return cast(probabilities(how, cast(q, wide), cast(k, wide), given)[1], q.type.dtype)


def _check_heads(what: str, heads: int | None, groups: int | None) -> None:
    if heads is not None and groups is not None and groups not in (1, heads):
        wanted = "as many heads of keys as of queries; enable_gqa=True shares them in groups"
        raise ShapeMismatch(what, wanted, f"{heads} and {groups}")


def _stream(
    what: str, rate: Any, stream: Any, extras: dict[str, Variable]
) -> tuple[RandomStream | None, Shared | None]:
    """The stream that dropout draws from and its state, whose operands are added to ``extras``."""
    number = float(rate) if isinstance(rate, int | float) else None
    if number is not None and not 0 <= number <= 1:
        raise OptionError(f"{what}: dropout_p={rate}; wanted a probability, 0 to 1")
    if number == 0:
        return None, None
    source = stream if isinstance(stream, RandomStream) else RandomStream(stream)
    extras["state"] = state = source.new_state()
    extras["rate"] = cast(as_variable(rate if number is None else np.float32(number)), "float32")
    return source, state


def _same_dtype(xs: list[Variable]) -> list[Variable]:
    dtype = upcast(*(x.type.dtype for x in xs))
    return [cast(x, dtype) for x in xs]


def _settings(what: str, is_causal: bool, causal: str | None, window: Any, masked: bool) -> Scores:
    if causal not in (None, "top_left", "bottom_right"):
        raise OptionError(f"{what}: causal={causal!r}; wanted 'top_left' or 'bottom_right'")
    if is_causal and masked:
        raise OptionError(f"{what}: attn_mask and is_causal exclude each other; give one of them")
    left, right = (None, None) if window is None else window
    if is_causal or causal:
        right = 0
    return Scores(left=left, right=right, bottom_right=causal == "bottom_right")


def _four(x: Variable) -> Variable:
    """(batch, heads, time, features): leading dimensions joined, or made."""
    missing = 4 - x.type.ndim
    if missing >= 0:
        return x.dimshuffle(*("x",) * missing, *range(x.type.ndim)) if missing else x
    dims = dims_of(x)
    return x.reshape((product(dims[:-3]), *dims[-3:]))


def _mask4(what: str, mask: Variable, q: Variable, lead: Sequence[Any]) -> Variable:
    """A mask of four dimensions, those that broadcast statically 1."""
    if mask.type.ndim > q.type.ndim:
        raise NdimMismatch(what, f"a mask of at most {q.type.ndim} dimensions", mask.type)
    missing = max(q.type.ndim, 4) - mask.type.ndim
    whole = mask.dimshuffle(*("x",) * missing, *range(mask.type.ndim)) if missing else mask
    if whole.type.ndim == 4:
        return whole
    if all(d == 1 for d in whole.type.shape[:-3]):
        return whole.dimshuffle("x", *range(whole.type.ndim - 3, whole.type.ndim))
    sizes = [d if s == 1 else m for d, m, s in zip(lead, dims_of(whole), whole.type.shape)]
    rest = dims_of(whole)[-3:]
    return operator("alloc")(whole, *sizes, *rest).reshape((product(sizes), *rest))


def _shaped(x: Variable, q: Variable, lead: Sequence[Any]) -> Variable:
    """A result with the leading dimensions of the query."""
    if q.type.ndim == 4:
        return x
    if q.type.ndim < 4:
        drop = 4 - q.type.ndim
        return x.dimshuffle(*range(drop, x.type.ndim))
    return x.reshape((*lead, *dims_of(x)[1:]))


OPERATORS = {"attention": scaled_dot_product_attention}
