"""Trees: nested containers as a flat list of leaves and a structure that can be compared.

Containers are None (without leaves), ``list``, ``tuple``, named tuples, ``dict`` (keys in sorted
order where they can be sorted), dataclasses, and classes of :func:`register_tree`. Everything else
is a leaf. The meaning is that of ``jax.tree_util``.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from symdnn.errors import TypeMismatch

#: (value) -> (children, what else the value consists of), and back.
Split = Callable[[Any], tuple[Sequence[Any], Hashable]]
Join = Callable[[Any, Sequence[Any]], Any]

_registered: dict[type, tuple[Split, Join]] = {}


class Tree:
    """The structure of a tree: its container's class, what that needs besides, its children.

    Equal structures have an equal hash. ``kind`` is None for a leaf.
    """

    __slots__ = ("_hash", "children", "extra", "kind", "leaves")

    def __init__(
        self, kind: type | None, extra: Hashable = None, children: tuple[Tree, ...] = ()
    ) -> None:
        self.kind, self.extra, self.children = kind, extra, children
        #: The number of leaves.
        self.leaves: int = 1 if kind is None else sum([c.leaves for c in children])
        self._hash = hash((kind, extra, children))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Tree)
            and self._hash == other._hash
            and (self.kind, self.extra) == (other.kind, other.extra)
            and self.children == other.children
        )

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        inside = [str(c) for c in self.children]
        if self.kind is type(None):
            return "None"
        if self.kind is list:
            return f"[{', '.join(inside)}]"
        if self.kind is tuple:
            return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
        names = self.extra if isinstance(self.extra, tuple) else range(len(inside))
        if self.kind in (dict, OrderedDict):
            return "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(names, inside)) + "}"
        return f"{self.kind.__name__}({', '.join(inside)})"

    def __repr__(self) -> str:
        return f"Tree({self})"


LEAF = Tree(None)
_NONE = Tree(type(None))


def register_tree(cls: type, split: Split, join: Join) -> None:
    """Make instances of ``cls`` containers of trees.

    ``split(value)`` gives the children and something hashable, from which ``join(extra, children)``
    makes a value (``jax.tree_util.register_pytree_node``).

    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> register_tree(Pair, lambda p: ((p.a, p.b), None), lambda _, c: Pair(*c))
    >>> flatten([Pair(1, 2), 3])
    ([1, 2, 3], Tree([Pair(*, *), *]))
    """
    _registered[cls] = (split, join)


def flatten(tree: object, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Tree]:
    """The leaves of ``tree`` in order, and its structure.

    ``is_leaf(value)`` may declare a container a leaf.

    >>> flatten({"b": (1, None), "a": [2]})
    ([2, 1], Tree({'a': [*], 'b': (*, None)}))
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves.append, is_leaf)


def _flatten(value: Any, add: Callable[[Any], None], is_leaf: Callable[[Any], bool] | None) -> Tree:
    if is_leaf is not None and is_leaf(value):
        add(value)
        return LEAF
    cls = type(value)
    if cls is tuple or cls is list:
        children, extra = value, None
    elif value is None:
        return _NONE
    else:
        taken = _taken_apart(value, cls)
        if taken is None:
            add(value)
            return LEAF
        children, extra = taken
    return Tree(cls, extra, tuple([_flatten(c, add, is_leaf) for c in children]))


def _taken_apart(value: Any, cls: type) -> tuple[Iterable[Any], Hashable] | None:
    """The children of a container that is no plain list or tuple, and the rest; None of a leaf."""
    if cls in _registered:
        return _registered[cls][0](value)
    if cls is dict:
        try:
            keys = tuple(sorted(value))
        except TypeError:
            keys = tuple(value)
        return [value[k] for k in keys], keys
    if cls is OrderedDict:
        return list(value.values()), tuple(value)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return value, None
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _plain(cls):
        return [getattr(value, f.name) for f in _fields(cls)], None
    return None


def _plain(cls: type) -> bool:
    """Whether all fields of a dataclass are arguments of its constructor."""
    return all(f.init for f in _fields(cls))


def _fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


def unflatten(tree: Tree, leaves: Iterable[Any]) -> Any:
    """The tree of this structure with other leaves.

    >>> unflatten(flatten({"a": 1, "b": (2, None)})[1], "xy")
    {'a': 'x', 'b': ('y', None)}
    """
    return _unflatten(tree, iter(leaves))


def _unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    kind: Any = tree.kind
    if kind is None:
        return next(leaves)
    if kind is type(None):
        return None
    children = [_unflatten(c, leaves) for c in tree.children]
    if kind is list:
        return children
    if kind is tuple:
        return tuple(children)
    if kind in _registered:
        return _registered[kind][1](tree.extra, children)
    if kind in (dict, OrderedDict):
        return kind(zip(tree.extra, children))  # type: ignore[call-overload]
    return kind(*children) if issubclass(kind, tuple) else _dataclass(kind, children)


def _dataclass(kind: Any, children: Sequence[Any]) -> Any:
    return kind(**{f.name: c for f, c in zip(_fields(kind), children, strict=True)})


def paths(tree: Tree, root: str = "") -> list[str]:
    """How each leaf is written, from the name of the whole: ``params['w'][0]``.

    >>> paths(flatten({"a": 1, "b": (2, 3)})[1], "x")
    ["x['a']", "x['b'][0]", "x['b'][1]"]
    """
    if tree.kind is None:
        return [root]
    kind: Any = tree.kind
    if kind in (dict, OrderedDict):
        names = [f"[{k!r}]" for k in tree.extra]  # type: ignore[attr-defined]
    elif hasattr(kind, "_fields"):
        names = [f".{n}" for n in kind._fields]
    elif dataclasses.is_dataclass(kind) and kind not in _registered:
        names = [f".{f.name}" for f in _fields(kind)]
    else:
        names = [f"[{i}]" for i in range(len(tree.children))]
    return [p for n, c in zip(names, tree.children, strict=True) for p in paths(c, root + n)]


def map_tree(f: Callable[..., Any], tree: object, *others: object) -> Any:
    """``f`` of each leaf (and of those of ``others``, which have the same structure), as a tree.

    Raises :class:`~symdnn.errors.TypeMismatch` for another structure.

    >>> map_tree(lambda a, b: a + b, {"w": 1, "b": [2]}, {"w": 10, "b": [20]})
    {'b': [22], 'w': 11}
    """
    leaves, structure = flatten(tree)
    more = []
    for other in others:
        found, got = flatten(other)
        if got != structure:
            raise TypeMismatch("map_tree", f"trees of the structure {structure}", got)
        more.append(found)
    return unflatten(structure, [f(*each) for each in zip(leaves, *more, strict=True)])
