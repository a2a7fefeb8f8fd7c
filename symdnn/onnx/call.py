"""A model as a function of arrays by name, compiled for each pattern of sizes that calls have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from symdnn.compile.call.compiled_function import Function
from symdnn.compile.function import function
from symdnn.errors import ModelError, SymdnnError
from symdnn.graph.names.dim import Dim
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.onnx.graph import Graph, Port, load
from symdnn.onnx.model.kinds import FLOATS, carried, carrier, numpy_kind, stored
from symdnn.onnx.model.values import Optional, Unsettled, Value
from symdnn.onnx.model.values import Sequence as Tensors

__all__ = ["CompiledGraph", "compile"]

#: Compiled functions in the cache; the least recently used is dropped.
_MOST_FUNCTIONS = 64
#: Which sizes stay open: those that the file names, all without names, none.
_NAMED, _UNNAMED, _EXACT = 0, 1, 2
#: A value that a call settles is part of the key of its function.
_MOST_SETTLED = 1 << 20


class CompiledGraph:
    """A function of a :class:`Graph`: ``f(x=..., y=...)`` gives the outputs by name.

    There is a function of symdnn for each *pattern*: which open sizes are 1 (they broadcast, as
    ONNX says), and the values of the inputs that decide shapes. It is compiled at the first call
    with this pattern. A model whose nodes need the sizes themselves has one for each shape.
    """

    def __init__(self, graph: Graph, mode: Any = None, profile: Any = None) -> None:
        self.graph, self.mode, self.profile = graph, mode, profile
        self._level = _NAMED
        self._by_value: set[str] = set()
        self._functions: OrderedDict[Any, _Bound] = OrderedDict()
        self._last: tuple[dict[str, tuple[Any, Any]], _Bound] | None = None

    @property
    def functions(self) -> list[Function]:
        """The functions that calls have had compiled so far."""
        return [b.function for b in self._functions.values()]

    def __call__(self, *args: Any, **inputs: Any) -> dict[str, Any]:
        """The outputs by name: arrays, lists of them for sequences, None for absent ones.

        Inputs are positional or by name; those with a value in the file by name only. Raises
        :class:`~symdnn.errors.ModelError` for inputs that do not fit, and for a node that can't be
        run.
        """
        if not args and (bound := self._repeated(inputs)) is not None:
            with suppress(SymdnnError):
                return bound(inputs)
        given = _named(self.graph, args, inputs)
        arrays = {n: _prepared(self._port(n), v) for n, v in given.items()}
        try:
            return self._call(arrays)
        except SymdnnError as error:
            if not self._has_open_sizes():
                raise
            # Names of sizes that the file gives wrongly, or a size that turns out to be 1.
            return self._less_open(arrays, error)

    def _repeated(self, inputs: Mapping[str, Any]) -> _Bound | None:
        """The function of the last call, for arrays of the same names, dtypes and shapes."""
        if self._last is None or len(inputs) != len(self._last[0]):
            return None
        for name, (dtype, shape) in self._last[0].items():
            v = inputs.get(name)
            if type(v) is not np.ndarray or v.dtype != dtype or v.shape != shape:
                return None
        return self._last[1]

    def _remember(self, arrays: Mapping[str, Any], bound: _Bound) -> None:
        """The guard of the next call, if it passes arrays through unchanged."""
        plain = not self._by_value and all(
            type(v) is np.ndarray and v.dtype == numpy_kind(self._port(n).kind)
            for n, v in arrays.items()
        )
        self._last = ({n: (v.dtype, v.shape) for n, v in arrays.items()}, bound) if plain else None

    def _port(self, name: str) -> Port:
        return self.graph.inputs.get(name) or self.graph.defaults[name]

    def _less_open(self, arrays: Mapping[str, Any], error: SymdnnError) -> dict[str, Any]:
        """The call without names of sizes, then with the sizes themselves."""
        while self._level < _EXACT:
            self._level += 1
            try:
                return self._call(arrays)
            except SymdnnError as again:
                error = again
        raise error

    def _has_open_sizes(self) -> bool:
        ports = self.graph.inputs.values()
        return any(p.shape is None or any(not isinstance(d, int) for d in p.shape) for p in ports)

    def _call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._functions.get(key := self._key(arrays))
        if bound is None:
            bound = self._bind(arrays)
            key = self._key(arrays)  # all settled values are known now
            self._functions[key] = bound
            if len(self._functions) > _MOST_FUNCTIONS:
                self._functions.popitem(last=False)
        self._functions.move_to_end(key)
        self._remember(arrays, bound)
        return bound(arrays)

    def _key(self, arrays: Mapping[str, Any]) -> Any:
        return tuple((n, self._pattern(n, v)) for n, v in arrays.items())

    def _pattern(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, list):
            return tuple(v.shape for v in value)
        if name in self._by_value:
            return value.shape, value.tobytes()
        shape = value.shape
        return shape if self._level == _EXACT else tuple(n if n < 2 else -1 for n in shape)

    def _bind(self, arrays: Mapping[str, Any]) -> _Bound:
        """Build and compile for the pattern of these arrays, and settle the values that
        this needs.
        """
        while True:
            try:
                return self._bound(arrays)
            except Unsettled as why:
                new = {n for n in why.names if n not in self._by_value}
                new = {n for n in new if _size(arrays[n]) <= _MOST_SETTLED}
                if not new and (self._level == _EXACT or not why.sizes):
                    raise ModelError(str(why)) from why
                self._by_value |= new
                self._level = _EXACT if why.sizes else self._level

    def _bound(self, arrays: Mapping[str, Any]) -> _Bound:
        variables: list[tuple[str, int | None, Variable]] = []
        roots: dict[Variable, str] = {}
        values: dict[str, Any] = {}
        for name, array in arrays.items():
            port = self._port(name)
            values[name] = self._value(port, array, variables, roots)
        results = self.graph.build(values, roots)
        flat: list[Variable] = []
        forms = [_flattened(r, flat) for r in results]
        made = function(
            [v for _, _, v in variables], flat, mode=self.mode, on_unused_input="ignore",
            name=self.graph.name or "onnx", profile=self.profile,
        )  # fmt: skip
        places = [(n, i) for n, i, _ in variables]
        return _Bound(made, places, list(zip(self.graph.outputs, forms)))

    def _value(
        self, port: Port, array: Any, variables: list[tuple[str, int | None, Variable]],
        roots: dict[Variable, str],
    ) -> Any:  # fmt: skip
        """An input as a value: a variable, or the array itself where it decides shapes."""
        if array is None:
            return Optional()
        if isinstance(array, list):
            parts = []
            for i, a in enumerate(array):
                v = TensorType(carrier(port.kind), a.shape)(f"{port.name}_{i}")
                variables.append((port.name, i, v))
                parts.append(Value(v, port.kind))
            found: Any = Tensors(parts, port.kind)
            return Optional(found) if port.form == "optional" else found
        if port.name in self._by_value:
            value = Value.of(array, None) if array.dtype == numpy_kind(port.kind) else Value(
                None, port.kind, array)  # fmt: skip
            return Optional(value) if port.form == "optional" else value
        v = TensorType(carrier(port.kind), self._sizes(port, array.shape))(port.name)
        variables.append((port.name, None, v))
        roots[v] = port.name
        return Optional(Value(v, port.kind)) if port.form == "optional" else Value(v, port.kind)

    def _sizes(self, port: Port, shape: tuple[int, ...]) -> list[Any]:
        declared: Any = port.shape if port.shape is not None else [None] * len(shape)
        return [
            n if self._level == _EXACT or isinstance(d, int) or n < 2
            else Dim(d) if self._level == _NAMED and isinstance(d, str) and d.isidentifier()
            else None
            for d, n in zip(declared, shape)
        ]  # fmt: skip


class _Bound:
    """A compiled function with the places of its arguments and the forms of its results."""

    def __init__(
        self, made: Function, places: list[tuple[str, int | None]], forms: list[tuple[str, Any]]
    ) -> None:
        self.function, self.places, self.forms = made, places, forms

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        results = self.function(*(arrays[n] if i is None else arrays[n][i] for n, i in self.places))
        return {name: _formed(form, results) for name, form in self.forms}


def _flattened(value: Any, flat: list[Variable]) -> Any:
    """The form of a result, whose variables are appended to ``flat``."""
    if value is None or (isinstance(value, Optional) and value.value is None):
        return None
    if isinstance(value, Optional):
        return _flattened(value.value, flat)
    if isinstance(value, Tensors):
        return [_flattened(v, flat) for v in value]
    flat.append(value.variable)
    return (len(flat) - 1, value.kind)


def _formed(form: Any, results: list[Any]) -> Any:
    if form is None:
        return None
    if isinstance(form, list):
        return [_formed(f, results) for f in form]
    place, kind = form
    return stored(np.asarray(results[place]), kind)


def _size(value: Any) -> int:
    return sum(v.size for v in value) if isinstance(value, list) else value.size


def _named(graph: Graph, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = list(graph.inputs)
    if len(args) == 1 and isinstance(args[0], Mapping) and not inputs:
        inputs, args = args[0], ()
    if len(args) > len(names):
        raise ModelError(f"{len(args)} inputs were given; there are {names}")
    given = dict(zip(names, args)) | dict(inputs)
    if unknown := set(given) - set(names) - set(graph.defaults):
        raise ModelError(f"no inputs {sorted(unknown)}; there are {names}")
    missing = [n for n in names if n not in given and graph.inputs[n].form != "optional"]
    if missing:
        raise ModelError(f"the inputs {missing} are missing; there are {names}")
    chosen = [n for n in graph.defaults if n in given]
    return {n: given.get(n) for n in (*names, *chosen)}


def _prepared(port: Port, value: Any) -> Any:
    """An argument as arrays of the dtype that carries the port's kind."""
    if value is None:
        if port.form != "optional":
            raise ModelError(f"the input {port.name!r} is None")
        return None
    if isinstance(value, list | tuple) and port.form != "tensor":
        return [_array(port, v, None) for v in value]
    if port.form == "sequence":
        raise ModelError(f"the input {port.name!r}: wanted a list of arrays")
    return _array(port, value, port.shape)


def _array(port: Port, value: Any, shape: Any) -> np.ndarray[Any, Any]:
    given = np.asarray(value)
    wanted = numpy_kind(port.kind)
    if given.dtype != wanted:
        same = given.dtype.kind == wanted.kind or given.dtype == np.dtype(carrier(port.kind))
        same = same or {str(given.dtype), port.kind} <= set(FLOATS)
        python = not hasattr(value, "dtype")
        if not (same or python):
            raise ModelError(f"the input {port.name!r}: wanted {port.kind}, got {given.dtype}")
        given = given.astype(wanted)
    if shape is not None:
        fits = len(shape) == given.ndim and all(
            not isinstance(d, int) or d == n for d, n in zip(shape, given.shape)
        )
        if not fits:
            raise ModelError(f"the input {port}: got an array of shape {given.shape}")
    return carried(given, port.kind)


def compile(
    path_or_graph: Any, mode: Any = None, *, profile: Any = None, **options: Any
) -> CompiledGraph:
    """A function of arrays from a model: ``compile("net.onnx")(x=array)["y"]``.

    ``path_or_graph`` is a :class:`Graph` or what :func:`load` takes, with its ``options``; ``mode``
    and ``profile`` are those of :func:`symdnn.function`. In a profile, and in other reports, a node
    of the file is a module: ``/layer1/conv/Conv`` is ``layer1.conv.Conv``. Functions are compiled
    at the first calls, see :class:`CompiledGraph`.
    """
    graph = path_or_graph if isinstance(path_or_graph, Graph) else load(path_or_graph, **options)
    return CompiledGraph(graph, mode, profile)
