"""Optimisers whose state is shared out over ranks (ZeRO-1: Rajbhandari et al. 2020).

Parameters of equal settings are joined to one vector, of which each rank has an equal part. The
gradients are summed by ``reduce_scatter``, so that a rank gets those of its part; it makes the step
of its part alone, with its part of the state, and ``all_gather`` brings the new values to all. It
is for rules that treat each element alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.compile.function import function
from symdnn.distributed.gradients import DataParallel
from symdnn.errors import InputError
from symdnn.graph.typing import Array
from symdnn.graph.variable import Shared, Variable, constant
from symdnn.nn.optimizers.groups import Parameter
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.collective.functions import all_gather, all_reduce, reduce_scatter
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import reshape
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr, sqrt
from symdnn.world import process

__all__ = ["Part", "Parts", "check_shardable"]


def check_shardable(name: str, kind: str, common: Mapping[str, Any]) -> None:
    """Refuse what can't be done part by part."""
    if kind == "lamb":
        raise InputError(f"{name}: a step needs norms of whole parameters, so it takes no shard=")
    if common.get("loss_scale") is not None:
        raise InputError(f"{name}: shard= does not go with loss_scale=; use amp='bf16'")


@dataclass(frozen=True)
class Part(Parameter):
    """This rank's part of some joined parameters: ``variable`` is the first of them."""

    joined: tuple[Parameter, ...] = ()
    own: Variable | None = None
    count: int = 0

    @property
    def value(self) -> Variable:
        """The elements of this rank."""
        assert self.own is not None, "made with its elements"
        return self.own

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """The shape of its state."""
        return (self.count,), (self.count,)


class Parts:
    """The parts of all parameters, and their gradients on this rank."""

    def __init__(
        self, name: str, parameters: Sequence[Parameter], grads: Sequence[Variable],
        parallel: DataParallel,
    ) -> None:  # fmt: skip
        self.name, self.group = name, parallel.ranks
        self.parts: list[Part] = []
        self.grads: list[Variable] = []
        index = self.group.index(process.current().place.rank, name)
        for number, bucket in enumerate(_buckets(parameters, grads, parallel)):
            ps = [parameters[i] for i in bucket]
            length = sum(_size(p) for p in ps)
            count = -(-length // self.group.size)
            pad = count * self.group.size - length
            sent = [parallel.reduced_in(grads[i]) for i in bucket]
            g = reduce_scatter(_flat(sent, pad), "mean", group=self.group)
            own = _flat([p.variable for p in ps], pad)[index * count : (index + 1) * count]
            first = ps[0]
            part = Part(
                f"part{number}", first.variable, first.group, first.options, first.lr_scale,
                first.decays, tuple(ps), own, count,
            )  # fmt: skip
            self.parts.append(part)
            self.grads.append(cast(g, grads[bucket[0]].type.dtype))

    def clipped(self, grads: Sequence[Variable], limit: Any) -> list[Variable]:
        """The parts of gradients times ``min(1, limit / norm)``, by the norm over all ranks."""
        wide = "float64" if any(g.type.dtype == "float64" for g in grads) else "float32"
        own: Any = sum(total(sqr(cast(g, wide))) for g in grads)
        norm = sqrt(all_reduce(own, "sum", self.group))
        bound = cast(limit, wide) if isinstance(limit, Variable) else constant(
            np.asarray(limit, wide)
        )  # fmt: skip
        factor = bound / maximum(norm, bound)
        return [cast(cast(g, wide) * factor, g.type.dtype) for g in grads]

    def whole(self, part: Part, new: Variable) -> list[tuple[Shared, Variable]]:
        """The new values of a part's parameters, from all ranks' new parts."""
        joined, at, pairs = all_gather(new, group=self.group), 0, []
        for p in part.joined:
            shape = p.variable.get_value(borrow=True).shape
            pairs.append((p.variable, reshape(joined[at : at + _size(p)], shape)))
            at += _size(p)
        return pairs

    # -- files -------------------------------------------------------------------------------

    def gathered(self, state: Mapping[str, Shared]) -> dict[str, Array]:
        """The state by the names and shapes that it has without parts; all ranks call this."""
        mine = {n: v for n, v in state.items() if self._part_of(n) is not None}
        values = function([], [all_gather(v, group=self.group) for v in mine.values()])()
        found = {n: np.array(v.get_value()) for n, v in state.items() if n not in mine}
        for name, value in zip(mine, values, strict=True):
            part, word = self._named(name)
            at = 0
            for p in part.joined:
                shape = p.variable.get_value(borrow=True).shape
                piece = value[at : at + _size(p)].reshape(shape)
                found[f"{self.name}.{p.name}.{word}"] = np.array(piece)
                at += _size(p)
        return found

    def own_values(
        self, values: Mapping[str, Any], state: Mapping[str, Shared]
    ) -> dict[str, Array]:
        """What this rank keeps of values that :meth:`gathered` gave, on any number of ranks."""
        index = self.group.index(process.current().place.rank, self.name)
        left, found = dict(values), {}
        for name in state:
            if self._part_of(name) is None:
                continue
            part, word = self._named(name)
            pieces = []
            for p in part.joined:
                full = f"{self.name}.{p.name}.{word}"
                if full not in left:
                    raise InputError(f"{self.name}: the state has no {full}")
                pieces.append(np.ravel(left.pop(full)))
            joined = np.concatenate(pieces)
            length = part.count * self.group.size
            joined = np.pad(joined, (0, length - joined.size))
            found[name] = joined[index * part.count : (index + 1) * part.count]
        return {**left, **found}

    def _part_of(self, name: str) -> Part | None:
        known = {f"{self.name}.{p.name}": p for p in self.parts}
        return known.get(name.rpartition(".")[0])

    def _named(self, name: str) -> tuple[Part, str]:
        part = self._part_of(name)
        assert part is not None, "asked before"
        return part, name.rpartition(".")[2]


def _size(p: Parameter) -> int:
    return int(np.prod(p.variable.get_value(borrow=True).shape, dtype=int))


def _flat(values: Sequence[Variable], pad: int) -> Variable:
    """All elements in one vector, with ``pad`` zeros behind."""
    dtype = values[0].type.numpy
    pieces = [v.flatten() for v in values]
    return concatenate([*pieces, *([constant(np.zeros(pad, dtype))] if pad else [])])


def _buckets(
    parameters: Sequence[Parameter], grads: Sequence[Variable], parallel: DataParallel
) -> list[list[int]]:
    """Indices of parameters that are joined: of equal settings, in the order of their gradients."""
    kinds: dict[Any, list[int]] = {}
    for i, (p, g) in enumerate(zip(parameters, grads, strict=True)):
        stored = p.variable.type.dtype
        wide = "float32" if is_narrow_float(stored) else stored
        key = (p.group, p.lr_scale, p.decays, stored, g.type.dtype, wide)
        kinds.setdefault(key, []).append(i)
    found: list[list[int]] = []
    for same in kinds.values():
        made = parallel.buckets([grads[i] for i in same], [parameters[i].variable for i in same])
        found += [[same[k] for k in bucket] for bucket in made]
    return found
