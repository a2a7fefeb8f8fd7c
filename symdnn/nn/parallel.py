"""Tensor parallel by annotation: which dimension of which parameters ranks share out.

Each rank of a group stores its part of the named parameters and of their optimiser state. The
program is still written with whole values. What each rank computes, and where ranks communicate, is
derived when a function is compiled (:mod:`symdnn.sharding.propagate`). Shoeybi et al. 2019,
"Megatron-LM".
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING as _CHECKED
from typing import Any, TypeVar

from symdnn.distributed.gradients import broadcast_values
from symdnn.errors import InputError
from symdnn.graph.dims import normal_axis
from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.graph.variable import Shared
from symdnn.nn.layers.linear import Linear, LookupTable
from symdnn.nn.models.gpt2 import Conv1D
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.attention import MultiheadAttention
from symdnn.ops.collective.functions import group_of
from symdnn.options import is_int
from symdnn.sharding.axis import Split, keep_along
from symdnn.sharding.storage import layout_of
from symdnn.world.group import Group

__all__ = ["shard"]

ModuleT = TypeVar("ModuleT", bound=Module)
Splits = dict[Shared, Split]
_WORDS = ("columns", "rows", "heads", "vocabulary")


def shard(
    net: ModuleT, layers: Mapping[str, str | int], group: Group | None = None
) -> ModuleT:  # fmt: skip
    """Shard some parameters of ``net`` over the ranks of ``group`` (default: all); returns it.

    ``layers`` maps names of modules, or patterns of them (``"blocks.*.mlp"``), to words:

    ``"columns"``, ``"rows"``
        a linear layer's outputs, or its inputs. In a module that contains several, ``"columns"``
        are those of all but the last, which has rows: so one ``all_reduce`` serves both.
    ``"heads"``
        the heads of an attention: columns of the projections of queries, keys and values, rows of
        the last one.
    ``"vocabulary"``
        the rows of a :class:`~symdnn.nn.LookupTable`; the scores that its weights make, and their
        softmax cross-entropy, are shared out likewise.

    The name of a parameter takes the number of a dimension. Sizes must be multiples of the number
    of ranks. Parameters and buffers get the values of rank 0, so all ranks of the program call
    this, before optimisers and functions are made; it is a collective as ``get_value`` and
    ``state_dict`` are from then on. Results are those of one rank, up to rounding. Dropout inside
    of attention is computed for all heads on each rank.

    Raises :class:`~symdnn.errors.InputError` for a name that is not there or a word that does not
    fit, ``AxisError`` for a dimension that is not there, ``ShapeMismatch`` for sizes. ::

        mesh = dist.Mesh({"data": -1, "tensor": 2})
        nn.parallel.shard(net, {"*.attn": "heads", "*.mlp": "columns"}, mesh.group("tensor"))
        updates = nn.optim.adam(loss, net, distributed=dist.DataParallel(mesh.group("data")))

    >>> from symdnn import nn
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> shard(net, {"": "columns"})[0].weight.get_value().shape  # of one rank: nothing is done
    (8, 4)
    """
    ranks = group_of(group)
    if not isinstance(net, Module) or not isinstance(layers, Mapping):
        raise InputError(
            f"nn.parallel.shard: wanted a module and a dict such as {{'*.mlp': 'columns'}}, got "
            f"{net!r:.60} and {layers!r:.60}"
        )
    found: Splits = {}
    for pattern, word in layers.items():
        found |= _matching(net, pattern, word)
    if ranks.size == 1:
        return net
    broadcast_values([*net.named_parameters().values(), *net.named_buffers().values()])
    for v, split in found.items():
        if layout_of(v) is not None:
            raise InputError(f"nn.parallel.shard: {v} is kept in parts already")
        keep_along(v, split, ranks, f"nn.parallel.shard: {v}")
    return net


def _matching(net: Module, pattern: str, word: str | int) -> Splits:
    if is_int(word):
        named = {n: v for n, v in net.named_parameters().items() if fnmatchcase(n, pattern)}
        if not named:
            raise InputError(f"nn.parallel.shard: no parameter is named {pattern!r}")
        what = f"nn.parallel.shard: {pattern!r}"
        return {v: Split(normal_axis(what, word, v.type.ndim)) for v in named.values()}
    if word not in _WORDS:
        raise InputError(
            f"nn.parallel.shard: {pattern!r} has {word!r}; wanted one of {', '.join(_WORDS)}, or "
            "for a parameter the number of a dimension"
        )
    modules = [(n, m) for n, m in net.named_modules() if fnmatchcase(n, pattern)]
    if not modules:
        names = ", ".join(n for n, _ in net.named_modules() if n)
        raise InputError(f"nn.parallel.shard: no module is named {pattern!r}; there are {names}")
    found: Splits = {}
    for name, module in modules:
        found |= _splits(name, module, word)
    return found


def _splits(name: str, module: Module, word: str) -> Splits:
    if isinstance(module, LookupTable) and word in ("vocabulary", "columns"):
        return {module.weight: Split(0 if word == "vocabulary" else 1)}
    if isinstance(module, Linear | Conv1D):
        if word in ("columns", "vocabulary"):
            return _columns(module)
        if word == "rows":
            return _rows(module)
    if isinstance(module, MultiheadAttention) and word == "heads":
        return _heads(module)
    inside = [m for _, m in module.named_modules() if isinstance(m, Linear | Conv1D)]
    if word not in ("columns", "heads") or not inside or inside == [module]:
        raise InputError(
            f"nn.parallel.shard: {name} is a {type(module).__name__}, which has no {word}"
        )
    *first, last = inside
    if not first:
        return _columns(last)
    size = _sizes(last)[0]
    found = _rows(last)
    for m in first:
        outputs = _sizes(m)[1]
        many = outputs // size if outputs % size == 0 else 1
        found |= _columns(m, (size,) * many if many > 1 else ())
    return found


def _sizes(m: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    first, second = m.weight.storage.shape
    return (first, second) if isinstance(m, Conv1D) else (second, first)


def _columns(m: Any, sections: tuple[int, ...] = ()) -> Splits:
    found: Splits = {m.weight: Split(1 if isinstance(m, Conv1D) else 0, sections)}
    if m.bias is not None:
        found[m.bias] = Split(0, sections)
    return found


def _rows(m: Any) -> Splits:
    return {m.weight: Split(0 if isinstance(m, Conv1D) else 1)}


def _heads(m: MultiheadAttention) -> Splits:
    kv = m.num_kv_heads * m.head_dim
    sections = (m.embed_dim, kv, kv)
    found = _rows(m.out_proj)
    for v in (m.in_proj_weight, m.in_proj_bias):
        found |= {} if v is None else {v: Split(0, sections)}
    for v in (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight):
        found |= {} if v is None else {v: Split(0)}
    return found


if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "PARALLEL")
