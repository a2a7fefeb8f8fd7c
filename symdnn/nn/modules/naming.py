"""Names of a network's variables: the path of the module and the attribute, ``layer1.conv.weight``.

A variable gets its name when it becomes part of a module, and a longer one when that module becomes
part of another. Entries that are appended to a list later get names when the network is used next.
A variable keeps its name in the largest network: a call of a part alone changes no name. A user's
name is kept.

The variable's tag has ``path``, the name given here, and ``attribute``, its last part, which is the
name in files of lists of variables.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from symdnn.graph.variable import Shared

if TYPE_CHECKING:
    from symdnn.nn.modules.module import Module

#: The network that gave a variable its name. Copies and pickles only have the name.
_roots: weakref.WeakKeyDictionary[Shared, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def name_variables(root: Any) -> None:
    """Give the variables of the module ``root`` and of all modules inside their names."""
    _name_all(root, list(root.named_modules()))


def name_part(root: Module, path: str, part: Any) -> None:
    """Name a single module or variable, which is now at ``path`` in ``root``."""
    if isinstance(part, Shared):
        _name(part, path, path, root, {id(root)})
    else:
        _name_all(root, list(part.named_modules(path)))


def _name_all(root: Module, modules: Sequence[tuple[str, Any]]) -> None:
    inside = {id(root), *(id(module) for _, module in modules)}
    seen: set[Shared] = set()
    for prefix, module in modules:
        for attribute, v in module.own_variables():
            if v not in seen:
                seen.add(v)
                _name(v, attribute, f"{prefix}.{attribute}" if prefix else attribute, root, inside)


def local_name(v: Shared) -> str | None:
    """A variable's name without the path of its module."""
    given = getattr(v._tag, "path", None)
    return str(v.tag.attribute) if given is not None and given == v.name else v.name


def _name(v: Shared, attribute: str, path: str, root: Module, inside: Collection[int]) -> None:
    given = getattr(v._tag, "path", None)
    if v.name != given and v.name not in (None, attribute):
        return  # the user's own
    if given is not None and v.name == given != path and not _gives_way(v, path, inside):
        return
    if v.name != path or given is None:
        v.name = v.tag.path = path
        v.tag.attribute = attribute
    _roots.setdefault(v, weakref.ref(root))
    if id(_roots[v]()) in inside:
        _roots[v] = weakref.ref(root)


def _gives_way(v: Shared, path: str, inside: Collection[int]) -> bool:
    """Whether ``path`` replaces an earlier name."""
    known = _roots.get(v)
    holder = None if known is None else known()
    if holder is not None:
        return id(holder) in inside
    return not str(v.name).endswith(f".{path}")
