"""Values out of pickles that Theano wrote, without Theano and without running their code.

A pickle is a program. This reader resolves no names: classes and functions in a pickle become
:class:`TheanoObject`, which stores its arguments and does nothing. Only arrays, dtypes and Python's
containers are made, by functions of this file.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.typing import TensorLike
from symdnn.io.reading import checked_members, opened, refuse_more

__all__ = ["TheanoObject", "load_pickle", "load_with"]

Array = np.ndarray[Any, Any]
#: Makes a shared variable of a value and a name.
Shares = Callable[[Any, Any], Any]
ADVICE = (
    "Where the program runs, save the values: numpy.savez(path, *[p.get_value() for p in params])"
)
#: Steps that need a program's own code: only pkl_utils knows a persistent id.
_REFUSED = {"EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
_DTYPE = re.compile(r"[<>|=]?([biufc])(\d+)|\|?b1|bool")


class TheanoObject:
    """An object of a pickle, as data: its class and its stored state.

    Its attributes are attributes here. ``class_name`` is ``"module.Class"``, ``arguments`` are
    those of its constructor, and ``entries`` the items of a list or dict.
    """

    class_name = ""
    arguments: tuple[Any, ...]
    entries: list[Any]
    state: Any

    def __new__(cls, *args: object, **words: object) -> Any:
        made = object.__new__(cls)
        made.arguments, made.state, made.entries = args, {}, []
        return made

    def __init__(self, *args: object, **words: Any) -> None:
        """Return None for any arguments."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: TensorLike) -> None:
        self.entries.append((key, value))

    def append(self, value: TensorLike) -> None:
        """Note an item."""
        self.entries.append(value)

    add = append

    def extend(self, values: Any) -> None:
        """Note items."""
        self.entries += list(values)

    def __call__(self, *args: Any) -> TheanoObject:
        return type(self)(*args)

    def __getattr__(self, attribute: str) -> Any:
        state = self.__dict__.get("state")
        if isinstance(state, dict) and attribute in state:
            return state[attribute]
        raise AttributeError(f"{self.class_name} has no {attribute!r}")

    def __repr__(self) -> str:
        return f"<{self.class_name} of a pickle>"


def load_pickle(source: str | Path | BinaryIO) -> Any:
    """What Theano or a program pickled: lists, dicts, numbers, and arrays for variables.

    ``source`` is a path or an open file: of ``pickle.dump`` in Python 2 or 3, or of
    ``theano.misc.pkl_utils.dump`` (a zip). Shared variables and constants become their arrays,
    those of a GPU too; any other object is a :class:`TheanoObject`, with its attributes as data.
    Nothing of the file runs, and no class or function that it names is looked up.

    Raises :class:`~symdnn.errors.FileFormatError` for a damaged file, or one that would take more
    memory than the flag ``load_limit_bytes`` allows.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        with opened(path, "pickle of Theano", ADVICE) as (file, size):
            return _read(file, size, path)
    return load_with(source, None)


def load_with(source: BinaryIO, shared: Shares | None) -> Any:
    """:func:`load_pickle` of an open file; ``shared(value, name)`` makes what stands for a shared
    variable (None: its array)."""
    content = source.read()
    return _guarded(lambda: _read(io.BytesIO(content), len(content), Path("<file>"), shared))


def _guarded(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"a pickle that is damaged ({error!s:.200}). {ADVICE}") from error


def _read(file: BinaryIO, size: int, path: Path, shared: Shares | None = None) -> Any:
    start = file.read(4)
    file.seek(0)
    arrays: dict[str, Array] = {}
    if start == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            checked_members(archive, size)
            names = set(archive.namelist())
            if "pkl" not in names:
                raise FileFormatError(f"{path} is a zip without a member 'pkl'. {ADVICE}")
            for name in names - {"pkl"}:
                arrays[name] = np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
            text = archive.read("pkl")
    else:
        text = file.read(size + 1)
    refuse_more(len(text), size)
    end = _check_steps(text)
    refuse_more(end, len(text))
    found = _Unpickler(io.BytesIO(text), arrays, max(size, 1 << 16), shared).load()
    return _Values(shared).of(found)


def _check_steps(text: bytes) -> int:
    """Refuse steps that no program of Theano's needs, and a list of remembered values that would
    be huge."""
    end = 0
    for step, argument, place in pickletools.genops(text):
        if step.name in _REFUSED:
            raise FileFormatError(f"a pickle with a {step.name}. {ADVICE}")
        if step.name.endswith("PUT") and isinstance(argument, int) and argument > len(text):
            raise FileFormatError(f"a pickle that is damaged: it remembers value {argument}")
        end = place or end
    return end


class _Unpickler(pickle.Unpickler):
    """An unpickler that makes only arrays, containers and :class:`TheanoObject`."""

    def __init__(
        self, file: BinaryIO, arrays: dict[str, Array], most_bytes: int, shared: Shares | None
    ) -> None:
        super().__init__(file, encoding="latin1")
        self.arrays, self.most_bytes, self.classes = arrays, most_bytes, dict[str, Any]()
        self.shared, self.made = shared, dict[str, Any]()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self.classes:
            known = _known(full, self.most_bytes)
            self.classes[full] = known or type(
                "TheanoObject", (TheanoObject,), {"class_name": full}
            )
        return self.classes[full]

    def persistent_load(self, saved: Any) -> Any:
        # pkl_utils: ids such as "array_0", with or without what kind of value it is, or
        # ("shared", name of the variable, id).
        key = saved[-1] if isinstance(saved, tuple | list) else saved
        for name in (str(key), str(key).partition(".")[2]):
            if name in self.arrays and self.shared is not None and _is_shared(saved):
                if name not in self.made:
                    self.made[name] = self.shared(self.arrays[name], saved[1])
                return self.made[name]
            if name in self.arrays:
                return self.arrays[name]
        raise FileFormatError(f"a pickle that asks for {saved!r:.80}, which its zip has not")


def _known(full: str, most_bytes: int) -> Any:
    module, _, name = full.rpartition(".")
    if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray"):
        return {
            "dtype": _Dtype, "ndarray": _NdArray,
            "_reconstruct": lambda *a: _Array(most_bytes),
            "scalar": lambda dtype, raw=b"": _scalar(dtype, raw),
        }.get(name)  # fmt: skip
    if module in ("copy_reg", "copyreg") and name == "_reconstructor":
        return _reconstructed
    if module in ("__builtin__", "builtins"):
        return {
            "object": object, "list": list, "dict": dict, "set": set, "frozenset": frozenset,
            "tuple": tuple, "slice": slice, "complex": complex, "bool": bool, "int": int,
            "long": int, "float": float, "str": str, "unicode": str, "range": range,
            "xrange": range, "bytearray": lambda *a: bytearray(_as_bytes(a[0]) if a else b""),
            "bytes": lambda *a: _as_bytes(a[0]) if a else b"",
        }.get(name)  # fmt: skip
    if full == "collections.OrderedDict":
        return lambda *items: type("Ordered", (OrderedDict,), {})(*items)
    if full == "_codecs.encode":  # Python 3's pickles of protocol 2 write bytes so
        return lambda text, encoding="latin1": _as_bytes(text)
    return None


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, int):
        raise ValueError("bytes of a number")
    return value.encode("latin1") if isinstance(value, str) else bytes(value)


def _reconstructed(kind: object, base: object = object, state: object = None) -> Any:
    """``copyreg._reconstructor``: an instance without its constructor."""
    if isinstance(kind, type) and issubclass(kind, TheanoObject):
        made = kind.__new__(kind)
        if isinstance(state, dict):
            made.entries += list(state.items())
        elif state is not None and base is not object:
            made.entries += list(state) if isinstance(state, list | tuple) else [state]
        return made
    raise ValueError(f"an instance of {kind!r:.80}")


class _NdArray:
    """The class ``numpy.ndarray``, which pickles name before an array."""


class _Dtype:
    """A dtype of numbers as a pickle describes it."""

    def __init__(self, text: Any = "", *rest: object) -> None:
        self.text = str(text)
        self.order: Any = "<"

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(state[2:5]):
            raise ValueError("a dtype with parts")
        self.order = str(state[1])

    def made(self) -> np.dtype[Any]:
        """The dtype; raises ``ValueError`` for one that is not of numbers."""
        if not _DTYPE.fullmatch(self.text):
            raise ValueError(f"a dtype {self.text!r:.40}: only numbers are read")
        dtype = np.dtype(self.text)
        return dtype.newbyteorder(self.order) if self.order in "<>" else dtype


class _Array:
    """An array of a pickle: created empty, then filled with shape, dtype and bytes."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.array: Any = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        *_, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise ValueError("an array of no dtype")
        if dtype.text.startswith("O"):  # lists of objects: ragged data
            if not isinstance(raw, list) or len(raw) != math.prod(shape):
                raise ValueError("an array of objects that does not fit its shape")
            self.array = raw
            return
        kind, content = dtype.made(), _as_bytes(raw)
        if any(not isinstance(n, int) or n < 0 for n in shape):
            raise ValueError(f"an array of shape {shape}")
        if len(content) != math.prod(shape) * kind.itemsize:
            raise ValueError(f"an array of shape {shape} with {len(content)} bytes")
        flat = np.frombuffer(content, kind).astype(kind.newbyteorder("="))
        self.array = flat.reshape(shape, order="F" if fortran else "C")


def _scalar(dtype: object, raw: object) -> Any:
    if not isinstance(dtype, _Dtype):
        raise ValueError("a number of no dtype")
    kind, content = dtype.made(), _as_bytes(raw)
    if len(content) != kind.itemsize:
        raise ValueError("a number of another size")
    return np.frombuffer(content, kind).astype(kind.newbyteorder("="))[0]


class _Values:
    """Arrays in place of Theano's variables, throughout nested containers; each object once."""

    def __init__(self, shared: Shares | None) -> None:
        self.shared = shared
        self.done: dict[int, Any] = {}
        self.kept: list[Any] = []  # so that no id is used twice

    def of(self, value: object) -> Any:
        """``value`` with arrays for variables."""
        if id(value) in self.done:
            return self.done[id(value)]
        self.kept.append(value)
        if isinstance(value, _Array):
            made = value.array if isinstance(value.array, np.ndarray) else self.of(value.array)
            self.done[id(value)] = made
            return made
        if isinstance(value, list):
            self.done[id(value)] = made = []
            made.extend(self.of(v) for v in value)
            return made
        if isinstance(value, dict):
            self.done[id(value)] = made = OrderedDict() if isinstance(value, OrderedDict) else {}
            made.update((k, self.of(v)) for k, v in value.items())
            return made
        if isinstance(value, tuple | set | frozenset):
            made = type(value)(map(self.of, value))
            self.done[id(value)] = made
            return made
        if isinstance(value, TheanoObject):
            return self._object(value)
        return value

    def _object(self, value: TheanoObject) -> Any:
        self.done[id(value)] = value
        state = value.state[0] if _is_pair(value.state) else value.state
        array = self._number(value, state if isinstance(state, dict) else {})
        if array is not None:
            self.done[id(value)] = array
            return array
        value.state, value.arguments = self.of(state), self.of(value.arguments)
        value.entries = self.of(value.entries)
        return value

    def _number(self, value: TheanoObject, state: dict[str, Any]) -> Any:
        """The array of a shared variable, a constant, or an array of a GPU; None for others."""
        last = value.class_name.rpartition(".")[2]
        if last in ("CudaNdarray_unpickler", "GpuArray_unpickler") and value.arguments:
            return self.of(value.arguments[0])
        container = state.get("container")
        if isinstance(container, TheanoObject):
            inner = container.state[0] if _is_pair(container.state) else container.state
            storage = inner.get("storage") if isinstance(inner, dict) else None
            if not isinstance(storage, list) or len(storage) != 1:
                return None
            array = self.of(storage[0])
            return array if self.shared is None else self.shared(array, state.get("name"))
        if last.endswith("Constant") and "data" in state:
            return self.of(state["data"])
        return None


def _is_shared(saved: object) -> bool:
    return isinstance(saved, tuple) and len(saved) == 3 and saved[0] == "shared"


def _is_pair(state: object) -> bool:
    # Classes with slots: (attributes, slots).
    return isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict)
