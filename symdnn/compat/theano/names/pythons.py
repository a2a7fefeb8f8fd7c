"""Names of ``theano.compat`` and small helpers of Theano: Python 2 and 3 as one."""

from __future__ import annotations

import builtins
import copyreg
import functools
import io
import itertools
import operator
import pickle
import queue
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableSet
from typing import Any

__all__ = [
    "BytesIO", "DefaultOrderedDict", "OrderedDict", "OrderedSet", "PY2", "PY3",
    "StringIO", "add_metaclass", "all", "any", "b", "cPickle", "class_types", "cmp",
    "copyreg", "decode", "decode_iter", "decode_with", "exc_message", "exec_", "filter",
    "frozendict", "get_unbound_function", "ifilter", "imap", "input", "integer_types",
    "iteritems", "iterkeys", "itervalues", "izip", "map", "maybe_add_to_os_environ_pathlist",
    "operator_div", "partial", "print_", "queue", "range", "reduce",
    "reraise", "string_types", "text_type", "u", "urllib", "with_metaclass", "xrange", "zip",
    "zip_longest",
]  # fmt: skip

PY2, PY3 = False, True
string_types, integer_types, class_types, text_type = (str,), (int,), (type,), str
binary_type = bytes
BytesIO, StringIO = io.BytesIO, io.StringIO
xrange = range = builtins.range
any, all = builtins.any, builtins.all
izip = zip = builtins.zip
imap = map = builtins.map
ifilter = filter = builtins.filter
reduce, partial, zip_longest = functools.reduce, functools.partial, itertools.zip_longest
input, print_, operator_div = builtins.input, builtins.print, operator.floordiv
cPickle = pickle
exec_ = builtins.exec


def __getattr__(name: str) -> Any:
    if name in ("moves", "configparser", "builtins"):
        import importlib

        path = "theano.compat.six.moves" if name == "moves" else name  # made on import
        return importlib.import_module(path)
    if name == "Counter":
        from collections import Counter

        return Counter
    if name == "reload":
        from importlib import reload

        return reload
    raise AttributeError(name)


def iteritems(d: Any, **words: Any) -> Iterator[Any]:
    """``iter(d.items())``."""
    return iter(d.items(**words))


def itervalues(d: Any, **words: Any) -> Iterator[Any]:
    """``iter(d.values())``."""
    return iter(d.values(**words))


def iterkeys(d: Any, **words: Any) -> Iterator[Any]:
    """``iter(d.keys())``."""
    return iter(d.keys(**words))


def cmp(x: Any, y: Any) -> int:
    """Python 2's ``cmp``: -1, 0 or 1."""
    return int(x > y) - int(x < y)


def b(text: str) -> bytes:
    """The bytes of a string."""
    return text.encode("latin-1")


def u(text: str) -> str:
    """The string itself."""
    return text


def decode(x: Any) -> str:
    """Bytes as a string."""
    return x.decode() if isinstance(x, bytes) else x


def decode_with(x: Any, encoding: str) -> str:
    """Bytes as a string."""
    return x.decode(encoding) if isinstance(x, bytes) else x


def decode_iter(items: Any) -> Iterator[str]:
    """Each of some bytes as a string."""
    return builtins.map(decode, items)


def exc_message(error: BaseException) -> Any:
    """The first argument of an exception, or the exception."""
    return error.args[0] if error.args else error


def get_unbound_function(unbound: object) -> Any:
    """The function of a method."""
    return getattr(unbound, "__func__", unbound)


def add_metaclass(metaclass: type) -> Callable[[type], type]:
    """A decorator that gives a class a metaclass."""

    def wrap(cls: type) -> type:
        body = dict(vars(cls))
        body.pop("__dict__", None)
        body.pop("__weakref__", None)
        return metaclass(cls.__name__, cls.__bases__, body)  # type: ignore[no-any-return]

    return wrap


def with_metaclass(meta: type, *bases: type) -> Any:
    """A base class with a metaclass."""
    return meta("temporary", bases or (object,), {})


def reraise(kind: Any, value: Any, traceback: Any = None) -> None:
    """Raise an exception with a traceback."""
    raise (value if value is not None else kind()).with_traceback(traceback)


def maybe_add_to_os_environ_pathlist(var: str, newpath: str) -> None:
    """Nothing: no libraries are searched for."""


class DefaultOrderedDict(OrderedDict[Any, Any]):
    """An ordered dict with a default factory."""

    def __init__(self, default_factory: Any = None, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        self.default_factory = default_factory

    def __missing__(self, key: object) -> Any:
        if self.default_factory is None:
            raise KeyError(key)
        self[key] = value = self.default_factory()
        return value


class OrderedSet(MutableSet[Any]):
    """A set that keeps the order."""

    def __init__(self, iterable: Any = ()) -> None:
        self._items = dict.fromkeys(iterable)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: object) -> None:
        """Add an item at the end, unless it is there."""
        self._items.setdefault(value)

    def discard(self, value: object) -> None:
        """Remove an item if it is there."""
        self._items.pop(value, None)

    def update(self, iterable: Any) -> None:
        """Add several."""
        self._items.update(dict.fromkeys(iterable))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OrderedSet):
            return list(self) == list(other)
        return set(self._items) == other

    __hash__ = None  # type: ignore[assignment]


class frozendict(Mapping[Any, Any], Hashable):
    """A dict that can't be changed, and is a key of dicts."""

    def __init__(self, *args: Any, **words: Any) -> None:
        self._items = dict(*args, **words)

    def __getitem__(self, key: object) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))
