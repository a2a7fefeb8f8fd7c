"""The functions behind :mod:`symdnn.distributed`: collectives of symbolic values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.collective.base import REDUCTIONS
from symdnn.ops.collective.moves import AllToAll, Permute, Recv, Send
from symdnn.ops.collective.reductions import AllGather, AllReduce, Broadcast, Reduce, ReduceScatter
from symdnn.ops.core.shape import as_dim, dims_of, dimshuffle, reshape, static_dim
from symdnn.options import is_int
from symdnn.world import process
from symdnn.world.group import Group

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "broadcast", "permute", "recv", "reduce",
    "reduce_scatter", "send",
]  # fmt: skip


def group_of(group: Group | None) -> Group:
    """A group; None: all ranks of the world."""
    if group is not None and not isinstance(group, Group):
        raise TypeMismatch("group", "a group by new_group or of a mesh, or None for all", group)
    return group or process.current().group


def _operation(what: str, op: str) -> str:
    if op not in REDUCTIONS:
        raise OptionError(f"{what}: op={op!r}; wanted one of {', '.join(REDUCTIONS)}")
    return op


def _number(what: str, number: int, group: Group) -> int:
    return process.check_rank(number, group.size, what)


@overload
def all_reduce(x: TensorLike, op: str = ..., group: Group | None = ...) -> Variable: ...


@overload
def all_reduce(x: list[Any], op: str = ..., group: Group | None = ...) -> list[Variable]: ...


def all_reduce(x: Any, op: str = "sum", group: Group | None = None) -> Any:
    """The sum of ``x`` over the ranks of ``group`` (all), on each of them; a list likewise.

    ``op`` is ``"sum"``, ``"mean"``, ``"prod"``, ``"max"`` or ``"min"``. ``x`` has the same shape
    and dtype on all ranks; the arrays of a list are moved together. Floats of 16 bits are rounded
    once on CPUs, and at each addition by NCCL. The gradient of sum is the sum of all ranks'
    gradients, that of mean their mean (``ncclAllReduce``, ``MPI_Allreduce``).

    >>> import symdnn.tensor as T
    >>> x = T.vector("x")
    >>> all_reduce(x, "max").eval({x: [1.0, 2.0]})  # of one rank
    array([1., 2.], dtype=float32)
    """
    several = isinstance(x, list | tuple)
    given = [as_variable(v) for v in (x if several else [x])]
    if not given:
        return []
    found = AllReduce(group_of(group), _operation("all_reduce", op))(*given)
    return list(found) if several else found[0]


def reduce(x: TensorLike, op: str = "sum", root: int = 0, group: Group | None = None) -> Variable:
    """:func:`all_reduce` whose result number ``root`` of the group alone gets; others get zeros.

    Its gradient is that of the root alone: that of all others is left out (``ncclReduce``,
    ``MPI_Reduce``).
    """
    group = group_of(group)
    return Reduce(group, _operation("reduce", op), _number("reduce: root", root, group))(x)


def broadcast(x: TensorLike, root: int = 0, group: Group | None = None) -> Variable:
    """The value of number ``root`` of the group, on all ranks, which give arrays of its shape.

    The root's gradient is the sum of all ranks', that of others is 0 (``ncclBroadcast``).
    """
    group = group_of(group)
    return Broadcast(group, _number("broadcast: root", root, group))(x)


def all_gather(x: TensorLike, axis: int = 0, group: Group | None = None) -> Variable:
    """The arrays of all ranks, of equal shapes, joined along ``axis``; scalars make a vector.

    Each rank's gradient is the sum of all ranks' for its part (``ncclAllGather``).

    >>> import symdnn.tensor as T
    >>> all_gather(T.scalar("x")).type.ndim
    1
    """
    v = as_variable(x)
    if v.type.ndim == 0:
        v = dimshuffle(v, ["x"])
    return _along("all_gather", AllGather(group_of(group)), v, axis)


def reduce_scatter(
    x: TensorLike, op: str = "sum", axis: int = 0, group: Group | None = None
) -> Variable:
    """The sum (or ``"mean"``) over the ranks, of which each gets an equal part along ``axis``.

    The size of that axis must be a multiple of the number of ranks. The gradient is
    :func:`all_gather` (``ncclReduceScatter``, ``MPI_Reduce_scatter_block``).
    """
    if op not in ("sum", "mean"):
        raise OptionError(f"reduce_scatter: op={op!r}; wanted sum or mean")
    return _along("reduce_scatter", ReduceScatter(group_of(group), op), as_variable(x), axis)


def _along(what: str, op: Any, v: Variable, axis: int) -> Variable:
    """An op of the first axis along another one."""
    axis = normal_axis(what, axis, v.type.ndim) if v.type.ndim else 0
    if axis == 0:
        made: Variable = op(v)
        return made
    swapped = list(range(v.type.ndim))
    swapped[0], swapped[axis] = axis, 0
    return dimshuffle(op(dimshuffle(v, swapped)), swapped)


def all_to_all(
    x: TensorLike, split_axis: int = 0, concat_axis: int = 0, group: Group | None = None
) -> Variable:
    """Part i of as many equal ones along ``split_axis`` goes to number i of the group; the parts
    that come are joined along ``concat_axis`` in the order of the ranks.

    The gradient is the exchange back (``ncclAlltoAll``, ``MPI_Alltoall``).
    """
    v, op = as_variable(x), AllToAll(group_of(group))
    ndim = v.type.ndim
    split = normal_axis("all_to_all", split_axis, ndim)
    concat = normal_axis("all_to_all", concat_axis, ndim)
    if split == concat:
        return _along("all_to_all", op, v, split)
    rest = [i for i in range(ndim) if i != split]
    moved = op(dimshuffle(v, [split, *rest]))
    n, dims = op.group.size, dims_of(v)
    parts = reshape(moved, (n, dims[split] // n, *(dims[i] for i in rest)))
    place = {split: 1} | {axis: 2 + k for k, axis in enumerate(rest)}
    order = [j for axis in range(ndim) for j in ([0] if axis == concat else []) + [place[axis]]]
    sizes = list(dims)
    sizes[split], sizes[concat] = dims[split] // n, dims[concat] * n
    return reshape(dimshuffle(parts, order), tuple(sizes))


def permute(
    x: TensorLike, pairs: Iterable[tuple[int, int]], group: Group | None = None
) -> Variable:
    """The ``x`` of number a on number b, for each pair (a, b); zeros where nothing comes.

    The gradient is the permutation back (JAX's ``ppermute``). ::

        before = permute(x, [(r, (r + 1) % n) for r in range(n)])  # a ring
    """
    given = list(pairs) if isinstance(pairs, Iterable) else [pairs]
    if not all(isinstance(p, tuple | list) and len(p) == 2 and all(map(is_int, p)) for p in given):
        raise OptionError(
            f"permute: pairs={pairs!r}; wanted pairs of a source and a destination, such as "
            "[(0, 1), (1, 0)]"
        )
    return Permute(group_of(group), tuple((int(a), int(b)) for a, b in given))(x)


def _token(after: Variable | None, dtype: str) -> Variable:
    if after is None:
        return as_variable(np.zeros(0, TensorType(dtype, ()).numpy))
    return after


def send(
    x: TensorLike, to: int, after: Variable | None = None, tag: int = 0, group: Group | None = None
) -> Variable:
    """Send ``x`` to number ``to`` of the group, which receives it by :func:`recv`.

    Returns a token, a vector without elements. As all effects, it happens only if its result is
    needed: pass the token to the next transfer (``after``), or return it. The gradient with
    respect to ``x`` comes from the peer: it is received where that of the token is asked for, as
    in ``grad(token.sum(), parameters)``. Transfers run in the order in which they were written.
    """
    v, group = as_variable(x), group_of(group)
    op = Send(group, _number("send: to", to, group), _tag(tag))
    return op(v, _token(after, v.type.dtype))


def recv(
    shape: Sequence[Any], dtype: str, source: int, after: Variable | None = None, tag: int = 0,
    group: Group | None = None,
) -> Variable:  # fmt: skip
    """What number ``source`` of the group sends: an array of this shape (ints or integer scalars)
    and dtype.

    ``after`` is a token, of the same dtype where a gradient is to go through it: the gradient with
    respect to it sends that of the result back to ``source``.
    """
    group, token = group_of(group), _token(after, dtype)
    if token.type.dtype != dtype:
        raise TypeMismatch("recv: after", f"a token of dtype {dtype}", token.type)
    if not isinstance(shape, Iterable):
        raise TypeMismatch("recv: shape", "a list of sizes, such as (2, 3)", shape)
    dims = [as_dim(d) for d in shape]
    static = tuple(static_dim(d) for d in dims)
    op = Recv(group, _number("recv: source", source, group), _tag(tag), static)
    return op(token, *dims)


def _tag(tag: int) -> int:
    return process.check_rank(tag, 1 << 14, "tag")
