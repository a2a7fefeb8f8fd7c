"""Data parallel training: gradients are averaged over ranks, in buckets.

Each rank computes the loss of its own samples, and its gradients. Their averages are the gradients
of the mean loss of all samples, so that every rank makes the same step. A bucket is as many
gradients as ``distributed.bucket_bytes`` says, in the order in which the backward pass makes them;
it is one :class:`~symdnn.ops.collective.reductions.AllReduce`, which runs while the next gradients
are computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.autodiff import gradients_taken
from symdnn.compile.function import function
from symdnn.compile.shared import shared
from symdnn.compile.updates import as_pairs
from symdnn.config import config
from symdnn.distributed.link import bucket_bytes, rounds_once
from symdnn.distributed.rows import Moved, Parted, Rows, agreed, in_order, mean_of, parted
from symdnn.errors import InputError, OptionError, TypeMismatch
from symdnn.graph.origin import Hints
from symdnn.graph.traverse import ancestors, substituted, toposort
from symdnn.graph.variable import Constant, Shared, Variable, as_variable
from symdnn.ops.collective.functions import all_reduce, broadcast, group_of
from symdnn.ops.collective.overlapped import AllSucceeded
from symdnn.ops.collective.reductions import AllReduce
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.options import is_int
from symdnn.sharding.storage import layout_of
from symdnn.world.group import Group

__all__ = ["DataParallel", "average_gradients", "broadcast_values", "data_parallel"]


@dataclass(frozen=True)
class DataParallel:
    """How gradients are averaged: ``distributed=True`` of an optimiser stands for its defaults.

    ``group`` are the ranks that have different samples (all); ``samples`` the number of this rank's
    samples in a call, a scalar such as ``x.shape[0]``, where ranks may have different
    ones (None: all have as many); ``reduce_dtype`` and ``bucket_bytes`` go before the flags of
    these names. With ``shard="optimizer"`` each rank keeps a part of the optimiser's state, and
    makes the step of that part, of whose gradients alone it gets the averages: ``"gradients"`` is
    another word for it. With ``"parameters"`` it keeps that part of the parameters alone, too. With
    ``keep_gathered`` a step gathers each of these once and keeps it for the backward pass, and
    tables whose rows are gathered stay whole.
    """

    group: Group | None = None
    samples: Variable | None = None
    reduce_dtype: str | None = None
    bucket_bytes: int | None = None
    shard: str | None = None
    keep_gathered: bool = False

    def __post_init__(self) -> None:
        group_of(self.group)
        size, samples = self.bucket_bytes, self.samples
        if size is not None and not (is_int(size) and size > 0):
            raise OptionError(f"DataParallel: bucket_bytes={size!r}; wanted a number of bytes")
        if samples is not None and as_variable(samples).type.ndim:
            raise TypeMismatch("DataParallel: samples", "a scalar such as x.shape[0]", samples)
        if self.keep_gathered and self.shard != "parameters":
            raise OptionError(
                f"DataParallel: keep_gathered with shard={self.shard!r}; only with "
                "shard='parameters' are there parameters to gather"
            )
        if self.shard not in (None, "optimizer", "gradients", "parameters"):
            raise OptionError(
                f"DataParallel: shard={self.shard!r}; wanted 'optimizer', 'gradients' or "
                "'parameters'"
            )

    @classmethod
    def of(cls, given: Any) -> DataParallel | None:
        """What ``distributed=`` stands for: True, False, None or an object of this class."""
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if not isinstance(given, cls):
            raise OptionError(f"distributed={given!r:.60}; wanted True, False or a DataParallel")
        return given

    @property
    def ranks(self) -> Group:
        """The group."""
        return group_of(self.group)

    def weighted(self, loss: Variable) -> Variable:
        """``loss``, a mean over this rank's samples, such that the average over ranks is the mean
        over all samples: times ``samples`` of this rank by those of the average rank."""
        if self.samples is None or self.ranks.size == 1:
            return loss
        own = cast(self.samples, "float64")
        share: Any = own / all_reduce(own, "mean", self.ranks)
        return cast(share, loss.type.dtype) * loss

    def averaged(self, grads: Sequence[Variable], like: Sequence[Shared]) -> list[Variable]:
        """The averages of gradients, those of the variables ``like``; dtypes stay."""
        if self.ranks.size == 1 or not grads:
            return list(grads)
        parts = self.parted(grads, like)
        values = [self.reduced_in(g if p.dense is None else p.dense) for g, p in zip(grads, parts)]
        dense = [i for i, p in enumerate(parts) if p.dense is not None]
        found = self.buckets([values[i] for i in dense], [like[i] for i in dense])
        buckets = [[dense[k] for k in bucket] for bucket in found]
        totals: dict[int, Variable] = {}
        rows: dict[int, list[Rows]] = {}
        for moved in self.moved(buckets, values, parts, like):
            if moved.rows:
                (i,) = moved.indices
                rows[i] = parts[i].moved(like[i], self.ranks, values[i].type.dtype)
            else:
                given = [values[i] for i in moved.indices]
                said = "; ".join(p for i in moved.indices if (p := parts[i].said))
                totals.update(zip(moved.indices, self.reduced(given, said), strict=True))
        pairs = enumerate(zip(grads, like, strict=True))
        n = self.ranks.size
        return [mean_of(totals.get(i), g, v, n, rows.get(i, ())) for i, (g, v) in pairs]

    def reduced(self, values: Sequence[Variable], said: str = "") -> list[Variable]:
        """The sums of a bucket, and what a report says of it."""
        reduction = AllReduce(self.ranks, "sum", self.as_rounded)
        return list(reduction(*values, hints=Hints(name=said or None)))

    def parted(self, grads: Sequence[Variable], like: Sequence[Shared]) -> list[Parted]:
        """The gradients' dense parts, and rows that are gathered."""
        dtypes = [self.reduced_in(g).type.numpy for g in grads]
        found = [parted(g, v, self.ranks.size, d) for g, v, d in zip(grads, like, dtypes)]
        return agreed(found, grads, self.ranks)

    def moved(
        self, buckets: Sequence[Sequence[int]], values: Sequence[Variable],
        parts: Sequence[Parted], like: Sequence[Shared], among: Sequence[int] = (),
    ) -> list[Moved]:  # fmt: skip
        """Buckets, which are indices of what is sent, ``values``, and rows, in the order in which
        they move. Those of ``among`` are buckets, too, each before what is made after it."""
        rows = {i: [r.value for r in p.rows] for i, p in enumerate(parts) if p.rows}
        sent = [values[i] for bucket in (*buckets, among) for i in bucket]
        depth = _depths([*sent, *(v for vs in rows.values() for v in vs)])

        def bucket_of(indices: Sequence[int]) -> Moved:
            nbytes = sum(_nbytes(like[i], values[i]) for i in indices)
            return Moved(tuple(indices), nbytes, max(depth.get(values[i], 0) for i in indices))

        made = [bucket_of(bucket) for bucket in buckets]
        for one in [bucket_of([i]) for i in among]:
            at = next((k for k, b in enumerate(made) if b.depth > one.depth), len(made))
            made.insert(at, one)
        gathered = []
        for i, vs in rows.items():
            itemsize = self.reduced_in(vs[0]).type.numpy.itemsize
            own = sum(r.nbytes(like[i], itemsize) for r in parts[i].rows)
            last = max(depth.get(v, 0) for v in vs)
            # An average moves each byte twice, a gathering moves it to all ranks.
            gathered.append(Moved((i,), own * self.ranks.size / 2, last, rows=True))
        return in_order(made, gathered)

    @property
    def word(self) -> str:
        """The dtype in which gradients are averaged, ``gradient`` or ``rounded``."""
        word = self.reduce_dtype or str(config.distributed.reduce_dtype)
        if word == "auto":
            return "rounded" if rounds_once(self.ranks) else "gradient"
        if word not in ("gradient", "rounded", "float32", "bfloat16"):
            wanted = "auto, gradient, rounded, float32 or bfloat16"
            raise OptionError(f"reduce_dtype={word!r}; wanted {wanted}")
        return word

    @property
    def as_rounded(self) -> bool:
        """Whether what mixed precision has in bfloat16 moves in bfloat16."""
        return self.word == "rounded"

    def reduced_in(self, g: Variable) -> Variable:
        """A gradient in the dtype in which it is averaged: sums leave the range of float16."""
        if self.word in ("gradient", "rounded"):
            return cast(g, "float32") if g.type.dtype == "float16" else g
        return cast(g, self.word)

    def buckets(self, grads: Sequence[Variable], like: Sequence[Shared]) -> list[list[int]]:
        """Indices of the gradients that are reduced together: the first made first, but for a large
        one that is made last; less and less in the last ones."""
        sizes = [_nbytes(v, g) for g, v in zip(grads, like)]
        limit = self.bucket_bytes or int(config.distributed.bucket_bytes)
        limit = limit or bucket_bytes(self.ranks, sum(sizes))
        buckets: list[list[int]] = []
        held: dict[str, tuple[list[int], int]] = {}
        for i in _as_made(grads):
            dtype = grads[i].type.dtype
            bucket, total = held.get(dtype, ([], 0))
            if bucket and total + sizes[i] > limit:
                buckets.append(bucket)
                bucket, total = [], 0
            held[dtype] = [*bucket, i], total + sizes[i]
        buckets += [bucket for bucket, _ in held.values()]
        return _small_last(_large_not_last(buckets, sizes, limit), sizes, limit)


def _large_not_last(
    buckets: Sequence[list[int]], sizes: Sequence[int], limit: int
) -> list[list[int]]:
    """Buckets with one of a gradient beyond the limit before as many bytes of others; ``sizes`` are
    the gradients'.

    The gradient of an embedding is made last and is large: behind it there would be nothing to
    compute while it is reduced. It needs the cotangents of all layers, but not the gradients of
    their weights: those of the layers behind it in the new order are computed meanwhile. They keep
    their operands for that, so it is half of all other bytes at most.
    """
    order, large = list(buckets), [b for b in buckets if _bytes(b, sizes) > limit]
    others = sum(_bytes(b, sizes) for b in buckets if b not in large)
    for first in large[::-1]:
        at = k = order.index(first)
        tail = order[k:]
        wanted = sum(_bytes(b, sizes) for b in tail if b in large)
        behind = sum(_bytes(b, sizes) for b in tail if b not in large)
        while at > 0 and order[at - 1] not in large and behind < wanted:
            behind += _bytes(order[at - 1], sizes)
            if behind > others // 2:
                break
            at -= 1
        order = [*order[:at], *tail, *order[at:k]]
    return order


def _small_last(buckets: Sequence[list[int]], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Buckets of which the last is divided in a half and two quarters, where there are several.

    Nothing is computed behind the last one. With four and more buckets of the best size a quarter
    of one takes longer than a reduction's latency (:class:`~symdnn.distributed.link.Link`).
    """
    if sum(sizes) < _FEW_BUCKETS * limit:
        return list(buckets)
    *first, last = buckets
    parts: list[list[int]] = [[]]
    left = _bytes(last, sizes)
    half = left / 2
    for i in last:
        if len(parts) < 3 and limit / 8 <= left <= half:
            parts.append([])
            half = left / 2
        parts[-1].append(i)
        left -= sizes[i]
    return [*first, *parts]


#: A last bucket is divided where there are so many.
_FEW_BUCKETS = 4


def _bytes(bucket: Sequence[int], sizes: Sequence[int]) -> int:
    return sum(sizes[i] for i in bucket)


def _nbytes(v: Shared, g: Variable) -> int:
    """The bytes of the gradient of a variable in the dtype of ``g``."""
    return math.prod(v.storage.shape) * int(g.type.numpy.itemsize)


def _depths(values: Sequence[Variable]) -> dict[Variable, int]:
    """The lengths of the longest chains of nodes that make values, and those before them."""
    depth: dict[Variable, int] = {}
    for node in toposort(values):
        longest = max((depth.get(v, 0) for v in node.inputs), default=0)
        depth.update(dict.fromkeys(node.outputs, longest + 1))
    return depth


def _as_made(grads: Sequence[Variable]) -> list[int]:
    """Indices in the order in which a backward pass makes the gradients: those behind the shortest
    chains of nodes first. It is the same on all ranks."""
    depth = _depths(grads)
    return sorted(range(len(grads)), key=lambda i: (depth.get(grads[i], 0), i))


def average_gradients(
    grads: Sequence[Variable], params: Sequence[Shared], **options: Any
) -> list[Variable]:
    """The averages over ranks of ``grads``, the gradients of ``params``.

    ``options`` are those of :class:`DataParallel`, but for ``samples`` and ``shard``. For the
    gradients of a loss that is the mean over equally many samples on each rank.
    """
    return _of_gradients("average_gradients", options).averaged(list(grads), list(params))


def _of_gradients(what: str, options: Mapping[str, Any]) -> DataParallel:
    """The options of a function that has gradients alone, neither their loss nor an optimiser."""
    found = DataParallel(**options)
    if found.samples is not None:
        raise OptionError(f"{what}: samples= weights a loss; use DataParallel(...).weighted")
    if found.shard is not None:
        raise OptionError(
            f"{what}: shard={found.shard!r} shares out an optimiser's state and its step; give it "
            "to one, as nn.optim.adam(..., distributed=DataParallel(shard=...))"
        )
    return found


def data_parallel(updates: Any, **options: Any) -> list[tuple[Shared, Variable]]:
    """``updates`` of a program of one process, made those of a data parallel one.

    Gradients in them that :func:`symdnn.grad` took with respect to shared variables are replaced by
    their averages over the ranks. Of other new values that depend on data, such as running
    statistics, the average is taken. Variables that the updates change get the values of rank 0
    now. No variable changes unless all ranks have come so far. ``options`` are those of
    :class:`DataParallel`, but for ``shard`` and for ``samples``, by which the loss has to be
    weighted before its gradient is taken (:meth:`DataParallel.weighted`). ::

        grads = symdnn.grad(loss, [w, b])
        updates = [(p, p - 0.1 * g) for p, g in zip([w, b], grads)]
        train = symdnn.function([x, t], loss, updates=data_parallel(updates))
    """
    pairs = as_pairs(updates, "data_parallel")
    options_ = _of_gradients("data_parallel", options)
    if options_.ranks.size == 1:
        return pairs
    news = [new for _, new in pairs]
    taken = gradients_taken()
    grads = [g for g in _first_found(news, taken) if isinstance(taken[g], Shared)]
    if not grads:
        raise InputError(
            "data_parallel: the updates have no gradient by symdnn.grad of a shared variable in "
            "them; average gradients yourself by average_gradients"
        )
    averages = options_.averaged(grads, [taken[g] for g in grads])  # type: ignore[misc]
    changed = substituted(news, dict(zip(grads, averages)))
    others = [i for i, (pair, new) in enumerate(zip(pairs, changed)) if pair[1] is new]
    equal = {old for old, _ in pairs}
    local = [i for i in others if _depends_on_data(*pairs[i], equal)]
    changed = list(changed)
    for i, mean in zip(local, mean_statistics([changed[i] for i in local], options_)):
        changed[i] = mean
    done = list(zip([old for old, _ in pairs], changed))
    broadcast_values([old for old, _ in pairs], options_.group)
    return [*done, *agreement(options_.ranks)]


def _first_found(news: Iterable[Variable], wanted: Any) -> list[Variable]:
    """The wanted variables that ``news`` depend on, but those behind other wanted ones."""
    found: dict[Variable, None] = {}
    seen: set[Variable] = set()
    stack = list(news)[::-1]
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in wanted:
            found[v] = None
        elif v.owner is not None:
            stack += v.owner.inputs[::-1]
    return list(found)


def _depends_on_data(old: Shared, new: Variable, equal: Set[Variable]) -> bool:
    """Whether a new value that has no gradient in it may depend on a rank's data; integers that
    follow from variables that are ``equal`` on all ranks do not."""
    leaves = {v for v in ancestors([new]) if v.owner is None and not isinstance(v, Constant)}
    if leaves <= {old} or (not new.type.is_float and leaves <= equal):
        return False
    if not new.type.is_float:
        raise InputError(
            f"data_parallel: the update of {old} depends on a rank's data and is no float, so its "
            "average is none; reduce it yourself by all_reduce"
        )
    return True


def mean_statistics(news: Sequence[Variable], options: DataParallel) -> list[Variable]:
    """The averages over ranks of statistics, of 16-bit ones in float32: a bucket for each dtype.

    Ranks count by their ``samples``; what one without samples has is left out.
    """
    if options.ranks.size == 1:
        return list(news)
    wide = [cast(v, "float32") if is_narrow_float(v.type.dtype) else v for v in news]
    found: dict[int, Variable] = {}
    for dtype in dict.fromkeys(v.type.dtype for v in wide):
        bucket = [i for i, v in enumerate(wide) if v.type.dtype == dtype]
        found.update(zip(bucket, _means([wide[i] for i in bucket], options)))
    return [cast(found[i], v.type.dtype) for i, v in enumerate(news)]


def _means(values: list[Variable], options: DataParallel) -> list[Variable]:
    """The averages of ``values``, of one dtype."""
    if options.samples is None or not values[0].type.is_float:
        given: list[Any] = [*values]
        means: list[Variable] = all_reduce(given, "mean", options.ranks)
        return means
    own = cast(options.samples, values[0].type.dtype)
    nothing = np.asarray(0, own.type.numpy)
    counted = [switch(gt(own, nothing), v * own, nothing) for v in values]
    *sums, everywhere = all_reduce([*counted, own], "sum", options.ranks)
    return [v / everywhere for v in sums]


def agreement(group: Group) -> list[tuple[Shared, Variable]]:
    """An update that keeps all others from happening unless every rank has come so far."""
    calls = shared(np.float32(0), name="distributed.calls")
    return [(calls, AllSucceeded(group)(calls + np.float32(1)))]


def broadcast_values(variables: Sequence[Shared], group: Group | None = None) -> None:
    """Give shared variables the values that they have on the first rank of ``group`` (all); those
    that the ranks keep together have them anyway."""
    ranks = group_of(group)
    found = [v for v in dict.fromkeys(variables) if layout_of(v) is None]
    if ranks.size == 1 or not found:
        return
    news = [(v, broadcast(v, 0, ranks)) for v in found]
    function([], [], updates=news, name="distributed: values of the first rank")()
