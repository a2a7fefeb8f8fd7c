"""``theano.misc.pkl_utils``: variables and arrays in zip files, read without running code."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from contextlib import contextmanager
from typing import Any

import numpy as np

from symdnn.compat.theano.pickles import load_with
from symdnn.compile.shared import shared
from symdnn.graph.variable import Shared

__all__ = [
    "CompatUnpickler", "DEFAULT_PROTOCOL", "PersistentNdarrayID", "PersistentSharedVariableID",
    "Pickler", "StripPickler", "dump", "load", "min_recursion",
]  # fmt: skip

DEFAULT_PROTOCOL = pickle.DEFAULT_PROTOCOL
Pickler = pickle.Pickler
min_recursion = 3000


class StripPickler(pickle.Pickler):
    """A pickler; traces of the user's lines are small here and stay."""

    def __init__(self, file: Any, protocol: int = 0, extra_tag_to_remove: Any = None) -> None:
        super().__init__(file, max(protocol, 2))


class CompatUnpickler(pickle.Unpickler):
    """Python's unpickler for files of Python 2. It runs what the file says: of a file of others,
    read :func:`symdnn.compat.theano.load_pickle` instead."""

    def __init__(self, file: Any, **words: Any) -> None:
        super().__init__(file, encoding=words.pop("encoding", "latin1"), **words)


class PersistentNdarrayID:
    """Names arrays of a zip file ``array_0``, ``array_1``, ... and stores them."""

    def __init__(self, zip_file: zipfile.ZipFile) -> None:
        self.zip_file, self.count, self.seen = zip_file, 0, dict[int, str]()

    def __call__(self, obj: Any) -> str | None:
        if type(obj) is not np.ndarray or obj.dtype.kind == "O":
            return None
        if id(obj) not in self.seen:
            self.seen[id(obj)] = self.store(obj, f"array_{self.count}")
            self.count += 1
        return self.seen[id(obj)]

    def store(self, array: object, name: str) -> str:
        """Put an array into the zip file; its name there."""
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
        self.zip_file.writestr(name, buffer.getvalue())
        return name


class PersistentSharedVariableID(PersistentNdarrayID):
    """The same, where arrays of shared variables have the variables' names."""

    def __init__(self, zip_file: zipfile.ZipFile, allow_unnamed: bool = True,
                 allow_duplicates: bool = True) -> None:  # fmt: skip
        super().__init__(zip_file)
        self.unnamed, self.duplicates = allow_unnamed, allow_duplicates
        self.names: dict[str, int] = {}

    def __call__(self, obj: Any) -> Any:
        if not isinstance(obj, Shared):
            return super().__call__(obj)
        if id(obj) in self.seen:
            return "shared", obj.name, self.seen[id(obj)]
        if not obj.name and not self.unnamed:
            raise ValueError("a shared variable has no name")
        base = obj.name or "shared"
        again = self.names.get(base, 0)
        if obj.name and again and not self.duplicates:
            raise ValueError(f"two shared variables are called {base!r}")
        self.names[base] = again + 1
        name = f"{base}_{again + 1}" if again or not obj.name else base
        self.seen[id(obj)] = self.store(obj.get_value(borrow=True), name)
        return "shared", obj.name, self.seen[id(obj)]


def dump(
    obj: object, file_handler: Any, protocol: int = DEFAULT_PROTOCOL,
    persistent_id: Any = PersistentSharedVariableID,
) -> None:  # fmt: skip
    """Write ``obj`` to a zip file: shared variables and arrays as .npy, the rest as a pickle.

    ``load`` gives shared variables again, and no expressions.
    """
    with zipfile.ZipFile(file_handler, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        known = persistent_id(archive)

        class Writer(pickle.Pickler):
            def persistent_id(self, obj: object) -> Any:
                return known(obj)

        buffer = io.BytesIO()
        with _deep():
            Writer(buffer, max(protocol, 2)).dump(obj)
        archive.writestr("pkl", buffer.getvalue())


@contextmanager
def _deep() -> Any:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, min_recursion))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def load(f: Any, persistent_load: object = None) -> Any:
    """What :func:`dump` wrote, or Theano's own ``dump``: :func:`symdnn.compat.theano.load_pickle`
    with shared variables, as in Theano, and not their arrays."""
    return load_with(f, lambda value, name: shared(value, name if isinstance(name, str) else None))
