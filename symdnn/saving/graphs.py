"""A graph as what JSON holds, and back: nodes in order, each with its op, inputs and types.

An int is an input of the graph or, counted on, an output of a node; ``"c3"`` is a constant and
``"s0"`` a shared variable of the file. Types are inferred anew and must be those of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from symdnn.errors import InputError, SymdnnError
from symdnn.graph.inner import InnerGraph
from symdnn.graph.names.dim import Dim
from symdnn.graph.op import Op
from symdnn.graph.origin import NO_HINTS, Hints, Origin
from symdnn.graph.traverse import toposort
from symdnn.graph.type import OpaqueType, TensorType, Type, numpy_dtype
from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.saving.ops import decode, encode

#: The most nodes of a file, with each inner graph counted as often as it is used, as inlining
#: would.
MOST_NODES = 1_000_000
#: The deepest nesting of graphs.
MOST_DEPTH = 32

Array = np.ndarray[Any, Any]


# -- writing ---------------------------------------------------------------------------------------


class Writer:
    """What the graphs of one file share: ops, constants, shared variables, named arrays."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.ops: list[Any] = []
        self.constants: list[Any] = []
        self.shared: dict[Shared, int] = {}
        self._ops: dict[Op, int] = {}
        self._constants: dict[Any, int] = {}

    def graph(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> dict[str, Any]:
        """Inputs, nodes and outputs."""
        numbers: dict[Variable, int] = {v: i for i, v in enumerate(inputs)}
        nodes = []
        for node in toposort(outputs, numbers):
            entry: dict[str, Any] = {
                "op": self._op(node.op),
                "inputs": [self._reference(v, numbers) for v in node.inputs],
                "types": [write_type(v.type) for v in node.outputs],
            }
            if any(v.name is not None for v in node.outputs):
                entry["names"] = [v.name for v in node.outputs]
            if node.hints:
                entry["hints"] = _write_hints(node.hints)
            nodes.append(entry)
            for v in node.outputs:
                numbers.setdefault(v, len(numbers))
        return {
            "inputs": [{"name": v.name, "type": write_type(v.type)} for v in inputs],
            "nodes": nodes,
            "outputs": [self._reference(v, numbers) for v in outputs],
        }

    def write_inner(self, graph: InnerGraph) -> Any:
        """A graph inside of an op."""
        return self.graph(graph.inputs, graph.outputs)

    def number(self, shared: Shared) -> int:
        """The number of a shared variable in the file."""
        return self.shared.setdefault(shared, len(self.shared))

    def shared_entries(self) -> list[Any]:
        """The document's entry of each shared variable; those of one storage share an array."""
        wanted = [v.name for v in self.shared]
        names: dict[int, str] = {}
        entries = []
        for i, v in enumerate(self.shared):
            if id(v.storage) not in names:
                own = str(v.name) if _is_plain(v.name) and wanted.count(v.name) == 1 else ""
                names[id(v.storage)] = key = own or f"#shared.{i}"
                self.arrays[key] = _stored(v.get_value(borrow=True))
            entries.append(
                {"name": v.name, "type": write_type(v.type), "value": names[id(v.storage)]}
            )
        return entries

    def keep(self, key: str, value: object) -> str:
        """Keep an array under a name; the name."""
        self.arrays[key] = _stored(value)
        return key

    def _op(self, op: Op) -> int:
        if op not in self._ops:
            entry = encode(op, self.write_inner)  # which may add inner ops
            self._ops[op] = len(self.ops)
            self.ops.append(entry)
        return self._ops[op]

    def _reference(self, v: Variable, numbers: Mapping[Variable, int]) -> int | str:
        if v in numbers:
            return numbers[v]
        if isinstance(v, Constant):
            return f"c{self._constant(v)}"
        if isinstance(v, Shared):
            return f"s{self.number(v)}"
        raise InputError(f"save: {v} of type {v.type} is no input of its graph")

    def _constant(self, v: Constant) -> int:
        key = (v.key(), v.name)
        if key not in self._constants:
            self._constants[key] = number = len(self.constants)
            entry = {"value": self.keep(f"#constant.{number}", v.data), "dtype": v.dtype}
            if v.name is not None:
                entry["name"] = v.name
            if v.exact is not None:
                entry["exact"] = encode(v.exact, self.write_inner)
            self.constants.append(entry)
        return self._constants[key]


def _is_plain(name: object) -> bool:
    """Whether an array in a file may have the name of its variable."""
    if not isinstance(name, str) or not name or name[0] == "#" or name.startswith("__"):
        return False
    return name.isprintable() and len(name) <= 1000


def _stored(value: Any) -> Array:
    """An array as safetensors takes it: complex128 as pairs of float64."""
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    if array.dtype == np.complex128:
        array = np.stack([array.real, array.imag], axis=-1)
    return array


def write_type(t: Type) -> Any:
    """A type: ``[dtype, sizes]``, with names of sizes where there are any."""
    if isinstance(t, OpaqueType):
        return {"opaque": t.tag}
    assert isinstance(t, TensorType)
    plain = [t.dtype, list(t.shape)]
    if t.names is None:
        return plain
    return [*plain, [None if n is None else list(n.names) for n in t.names]]


def _write_hints(hints: Hints) -> dict[str, Any]:
    given = {f.name: getattr(hints, f.name) for f in fields(hints)}
    return {k: v for k, v in given.items() if v is not None}


# -- reading ---------------------------------------------------------------------------------------


class Reader:
    """Makes graphs of a file's entries; whatever raises there is about the file."""

    def __init__(self, document: Mapping[str, Any], arrays: Mapping[str, Array], file: str) -> None:
        self.file, self._arrays = file, arrays
        self._storages: dict[str, Storage] = {}
        self._sizes: dict[Op, tuple[int, int]] = {}
        self.constants = [self._constant(e) for e in document["constants"]]
        self.shared = [self._shared(e) for e in document["shared"]]
        self.ops: list[Op] = []
        for entry in document["ops"]:
            op = decode(entry, self.read_inner)
            if not isinstance(op, Op):
                raise ValueError(f"an op that is none: {op!r:.60}")
            if self.size_of(op)[1] > MOST_DEPTH:
                raise ValueError(f"graphs in graphs, more than {MOST_DEPTH} deep")
            self.ops.append(op)

    def array(self, key: str, dtype: str) -> Array:
        """An array of the file."""
        found = self._arrays[key]
        if dtype == "complex128":
            if found.dtype != np.float64 or found.shape[-1:] != (2,):
                raise ValueError(f"{key:.60} is no array of complex numbers")
            return np.ascontiguousarray(found).view(np.complex128)[..., 0]
        if found.dtype != numpy_dtype(dtype):
            raise ValueError(f"{key:.60} has dtype {found.dtype}, wanted {dtype:.20}")
        return found

    def storage(self, key: str, type_: TensorType) -> Storage:
        """The storage of an array: one, whoever asks."""
        if key not in self._storages:
            array = self.array(key, type_.dtype)
            self._storages[key] = Storage(array, borrow=False)
        storage = self._storages[key]
        value = storage.get(borrow=True)
        if value.dtype != type_.numpy:
            raise ValueError(f"{key:.60} has two dtypes")
        type_.check_value_shape(value.shape, key)
        return storage

    def graph(self, entry: Mapping[str, Any]) -> tuple[list[Variable], list[Variable]]:
        """Fresh inputs, and the outputs."""
        inputs = [Variable(read_type(e["type"]), read_name(e.get("name"))) for e in entry["inputs"]]
        made: list[Variable] = list(inputs)
        for number, node in enumerate(entry["nodes"]):
            made += self._node(node, made, number).outputs
        return inputs, [self.find(r, made) for r in entry["outputs"]]

    def read_inner(self, entry: Any) -> InnerGraph:
        """The graph of an entry; raises ``ValueError``."""
        return InnerGraph(*self.graph(entry))

    def find(self, reference: object, made: Sequence[Variable]) -> Variable:
        """The variable that is referred to."""
        if type(reference) is int and 0 <= reference < len(made):
            return made[reference]
        if isinstance(reference, str) and reference[:1] in ("c", "s"):
            table: Sequence[Variable] = self.constants if reference[0] == "c" else self.shared
            number = int(reference[1:])
            if 0 <= number < len(table):
                return table[number]
        raise ValueError(f"a variable that is not there: {reference!r:.60}")

    def size_of(self, op: Op) -> tuple[int, int]:
        """The nodes of an op with all inner graphs inlined, and the depth of the nesting."""
        if op not in self._sizes:
            held = _held(op)
            inside = [v for v in held if isinstance(v, Op)]
            inside += [n.op for v in held if isinstance(v, InnerGraph) for n in v.nodes]
            sizes = [self.size_of(o) for o in inside]
            count = 1 + sum(n for n, _ in sizes)
            self._sizes[op] = count, max([1 + depth for _, depth in sizes], default=0)
        return self._sizes[op]

    def _node(self, entry: Mapping[str, Any], made: Sequence[Variable], number: int) -> Apply:
        index = entry["op"]
        if type(index) is not int or not 0 <= index < len(self.ops):
            raise ValueError(f"node {number} has an op that is not there: {index!r:.40}")
        op = self.ops[index]
        inputs = [self.find(r, made) for r in entry["inputs"]]
        hints = Hints(**entry["hints"]) if "hints" in entry else NO_HINTS
        origin = Origin(((self.file, number, type(op).__name__),))
        try:
            types = op.typed(inputs)
        except SymdnnError as error:
            raise ValueError(f"node {number}: {error}") from None
        node = Apply(op, inputs, types, origin, hints)
        wanted = [read_type(t) for t in entry["types"]]
        if list(types) != wanted:
            found = ", ".join(map(str, types))
            raise ValueError(f"node {number}: {op} gives {found}, and the file says otherwise")
        for v, name in zip(node.outputs, entry.get("names", ())):
            v.name = read_name(name)
        return node

    def _constant(self, entry: Mapping[str, Any]) -> Constant:
        exact = decode(entry.get("exact"), self.read_inner)
        if not isinstance(exact, float | int | None):
            raise ValueError(f"a constant whose exact value is {exact!r:.60}")
        data = self.array(entry["value"], entry["dtype"])
        return Constant(data, read_name(entry.get("name")), exact)

    def _shared(self, entry: Mapping[str, Any]) -> Shared:
        type_ = read_type(entry["type"])
        if not isinstance(type_, TensorType):
            raise ValueError("a shared variable without a dtype")
        return Shared(type_, self.storage(entry["value"], type_), read_name(entry.get("name")))


def _held(op: Op) -> list[Any]:
    found: list[Any] = []
    rest = [getattr(op, f.name) for f in fields(op)]  # type: ignore[arg-type]
    while rest:
        value = rest.pop()
        if isinstance(value, tuple):
            rest += value
        else:
            found.append(value)
    return found


def check_size(reader: Reader, entry: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where inlining all graphs of a file would make too many nodes."""
    total = sum(reader.size_of(reader.ops[node["op"]])[0] for node in entry["nodes"])
    if total > MOST_NODES:
        raise ValueError(f"its graphs are {total} nodes when they are inlined")


def read_type(entry: Any) -> Type:
    """The type of an entry; raises ``ValueError``."""
    if isinstance(entry, dict):
        return OpaqueType(str(entry["opaque"]))
    dtype, shape, *rest = entry
    if any(d is not None and (type(d) is not int or not 0 <= d < 2**63) for d in shape):
        raise ValueError(f"a shape of {shape!r:.60}")
    numpy_dtype(dtype)
    made = TensorType(dtype, shape)
    if not rest:
        return made
    (names,) = rest
    if len(names) != len(shape):
        raise ValueError(f"names of {len(names)} sizes out of {len(shape)}")
    return made.with_names([None if n is None else Dim(*n) for n in names])


def read_name(entry: object) -> str | None:
    """The name of a variable; raises ``ValueError``."""
    if entry is not None and not isinstance(entry, str):
        raise ValueError(f"a name that is no text: {entry!r:.60}")
    return entry
