"""Finds the modules and variables in a module's attributes, at any depth of containers.

Nested dicts, lists, tuples and deques are searched at each use, so entries that are appended later
are found, too. An entry's name is the attribute, then the keys and indices that lead to it:
``heads.a``, ``blocks.0.1``.
"""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from symdnn.errors import InputError

if TYPE_CHECKING:
    from symdnn.nn.modules.module import Module

_ROWS = (list, tuple, deque, UserList)
#: Types of the entries of long lists, which are skipped quickly.
_PLAIN = (str, int, float, type(None))


class Lent:
    """A value that a module uses and does not own: its modules are no part of the module."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value


def found_in(
    owner: Module, attributes: Mapping[str, Any], unnamed: str | None, wanted: Any
) -> Iterator[tuple[str, Any]]:
    """Names and values of class ``wanted`` in these attributes of ``owner``, in their order.

    Entries of the attribute ``unnamed`` go by their own keys. Raises
    :class:`~symdnn.errors.InputError` for a set with such values, which would have no names.
    """
    for attribute, value in attributes.items():
        if isinstance(value, wanted):
            yield attribute, value
        elif isinstance(value, (*_ROWS, Mapping, AbstractSet)):
            where = f"{type(owner).__name__}.{attribute}"
            start = "" if attribute == unnamed else f"{attribute}."
            yield from _entries(where, start, value, wanted)


def _entries(where: str, start: str, holder: object, wanted: Any) -> Iterator[tuple[str, Any]]:
    """The entries depth first, without recursion; a container inside of itself is entered once."""
    stack: list[tuple[str, Any]] = [(start, holder)]
    entered: set[int] = set()
    while stack:
        prefix, value = stack.pop()
        if isinstance(value, wanted):
            yield prefix.removesuffix("."), value
        elif isinstance(value, AbstractSet):
            if any(isinstance(v, wanted) for v in value):
                raise InputError(
                    f"{where} has a set of modules or variables, which has no order and so no "
                    "names for them; keep them in a list or a dict"
                )
        elif id(value) not in entered:
            entered.add(id(value))
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            inner = [(f"{prefix}{k}.", v) for k, v in pairs if _may_hold(v, wanted)]
            stack += reversed(inner)


def _may_hold(value: object, wanted: Any) -> bool:
    if isinstance(value, _PLAIN):
        return False
    return isinstance(value, (wanted, *_ROWS, Mapping, AbstractSet))


def replaced(value: object, change: Callable[[Any], Any], entered: set[int] | None = None) -> Any:
    """``value`` with ``change`` applied to it or to its entries.

    Lists and dicts are changed in place, and tuples are replaced.
    """
    entered = set() if entered is None else entered
    if not isinstance(value, (*_ROWS, Mapping)):
        return change(value)
    if id(value) in entered:
        return value
    entered.add(id(value))
    if isinstance(value, tuple):
        made = [replaced(v, change, entered) for v in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    held: Any = value
    for key, v in list(value.items() if isinstance(value, Mapping) else enumerate(value)):
        if (new := replaced(v, change, entered)) is not v:
            held[key] = new
    return value
