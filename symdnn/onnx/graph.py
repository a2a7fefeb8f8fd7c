"""A model of a file as an expression: inputs, outputs and parameters by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from symdnn.compile.shared import shared
from symdnn.errors import ModelError, ShapeMismatch
from symdnn.graph.names.dim import Dim
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.onnx.build.scope import Scope, World
from symdnn.onnx.model.file import read
from symdnn.onnx.model.kinds import FLOATS, carrier, kind_of
from symdnn.onnx.model.tensors import array_of, sparse_array
from symdnn.onnx.model.values import Optional, Unsettled, Value

__all__ = ["Graph", "Port", "load"]

#: Ops whose result has the elements of their first input.
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
#: Inputs that are settings of an op, whatever their dtype: no parameters.
_SETTINGS = frozenset(
    {"Resize", "Upsample", "Clip", "Pad", "Range", "Dropout", "OneHot", "NonMaxSuppression"}
)
_STATISTICS = {"BatchNormalization": (3, 4)}


@dataclass(frozen=True)
class Port:
    """An input or output of a graph: name, kind of its elements, and sizes.

    A size is a number, a name, or None; ``shape`` is None if not even their number is known.
    ``form`` is ``tensor``, ``sequence`` or ``optional``.
    """

    name: str
    kind: str
    shape: tuple[int | str | None, ...] | None
    form: str = "tensor"

    def __str__(self) -> str:
        sizes = (
            "?"
            if self.shape is None
            else ", ".join("?" if d is None else str(d) for d in self.shape)
        )
        what = "" if self.form == "tensor" else f"{self.form} of "
        return f"{self.name}: {what}{self.kind}({sizes})"


class Graph:
    """A model: ``inputs`` and ``outputs`` by name, and ``parameters``, which are shared variables.

    Calling it applies it to variables. Sizes that the file leaves open and shape-changing values
    that only a call has are settled by :func:`symdnn.onnx.compile`.
    """

    def __init__(
        self, model: Any, folder: str | None, batch: int | None, dtype: str | None
    ) -> None:
        self.proto = model
        proto = model.graph
        self.name = str(proto.name)
        self.opsets = {("" if o.domain == "ai.onnx" else o.domain): int(o.version)
                       for o in model.opset_import}  # fmt: skip
        functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
        self._world = World(functions, {}, folder, dtype)
        self._values: dict[str, Any] = {}
        self.parameters: dict[str, Shared] = {}
        for tensor in proto.initializer:
            self._values[tensor.name] = self._world.adapted(array_of(tensor, folder))
        for tensor in proto.sparse_initializer:
            value = self._world.adapted(sparse_array(tensor, folder))
            self._values[tensor.values.name] = value
        self._make_parameters()
        ports = [_port(v, self._world) for v in proto.input]
        #: Inputs whose values the file gives; a call may give others.
        self.defaults = {p.name: p for p in ports if p.name in self._values}
        ports = [p for p in ports if p.name not in self._values]
        free = _batch_names(ports) if batch is not None else set()
        self.inputs = {p.name: _with_batch(p, batch, free) for p in ports}
        self.outputs = [str(o.name) for o in proto.output]

    def _make_parameters(self) -> None:
        """Floating initialisers that nodes compute with become shared variables."""
        settings: set[str] = set()
        used: set[str] = set()
        for node in self.proto.graph.node:
            for i, name in enumerate(node.input):
                setting = i > 0 and node.op_type in _SETTINGS
                (settings if setting else used).add(name)
        for name, value in list(self._values.items()):
            if value.kind not in FLOATS or value.ndim == 0 or name in settings - used:
                continue
            made = shared(value.array, name=name, shape=value.shape, borrow=True)
            self.parameters[name] = made
            self._values[name] = Value(made, value.kind)

    # -- what it has --------------------------------------------------------------------------

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the sizes that the file leaves open, in the order of the inputs."""
        names = (d for p in self.inputs.values() for d in p.shape or () if isinstance(d, str))
        return tuple(dict.fromkeys(names))

    @property
    def trainable(self) -> list[Shared]:
        """The parameters without the running statistics of batch normalisation.

        Between may be nodes that show an array otherwise: :func:`symdnn.onnx.save` writes such.
        """
        shown = {
            node.output[0]: node.input[0]
            for node in self.proto.graph.node if node.op_type in _VIEWS
        }  # fmt: skip

        def source(name: str) -> str:
            return source(shown[name]) if name in shown else name

        fixed = {
            source(node.input[i])
            for node in self.proto.graph.node
            for i in _STATISTICS.get(node.op_type, ())
            if i < len(node.input)
        }
        return [p for name, p in self.parameters.items() if name not in fixed]

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """An input variable for each tensor input, with the sizes of the file.

        Open sizes have the names of the file, unless sizes of different names must be equal.
        """
        return self._built[0]

    @cached_property
    def expressions(self) -> dict[str, Variable]:
        """The outputs as expressions of :attr:`variables` and :attr:`parameters`."""
        variables, found = self._built
        return self(**variables) if found is None else found

    @cached_property
    def _built(self) -> tuple[dict[str, Variable], dict[str, Variable] | None]:
        """Inputs, and the outputs if the graph can be built of them."""
        named = {p.name: symbolic(p) for p in self.inputs.values() if _is_plain(p)}
        plain = {n: [d if isinstance(d, int) else None for d in ds] for n, ds in named.items()}
        made: list[dict[str, Variable]] = []
        for sizes in (named, plain):
            kinds = ((n, carrier(self.inputs[n].kind)) for n in sizes)
            made.append({n: TensorType(kind, sizes[n])(n) for n, kind in kinds})
            try:
                return made[-1], self(**made[-1])
            except ModelError as error:
                if not isinstance(error.__cause__, ShapeMismatch):
                    break
        return made[0], None

    def __call__(self, *args: Any, **inputs: Any) -> dict[str, Variable]:
        """The outputs by name, of these inputs (in order, or by name).

        Raises :class:`~symdnn.errors.ModelError`, which names the node, where a size or value is
        needed that is not known before a call.
        """
        given = dict(zip(self.inputs, args)) | inputs
        ports = self.defaults | self.inputs
        values = {k: v if isinstance(v, Value) else Value(as_variable(v), ports[k].kind)
                  for k, v in given.items() if k in ports}  # fmt: skip
        if unknown := set(given) - set(ports):
            raise ModelError(f"no inputs {sorted(unknown)}; there are {list(self.inputs)}")
        try:
            found = self.build(values, {})
        except Unsettled as why:
            advice = "give sizes (load(..., batch=), static types), or use symdnn.onnx.compile"
            raise ModelError(f"{why}; {advice}") from why
        return {n: v.variable for n, v in zip(self.outputs, found) if isinstance(v, Value)}

    def build(self, values: Mapping[str, Any], roots: dict[Variable, str]) -> list[Any]:
        """The outputs as values; ``roots`` are input variables whose values a call may settle."""
        missing = [n for n, p in self.inputs.items() if n not in values and p.form != "optional"]
        if missing:
            raise ModelError(f"the inputs {missing} are missing")
        absent = {n: Optional() for n in self.inputs if n not in values}
        world = World(self._world.functions, roots, self._world.folder, self._world.dtype)
        scope = Scope(world, self.opsets, {**self._values, **absent, **values})
        return scope.outputs(self.proto.graph.node, self.outputs)

    def __repr__(self) -> str:
        ins = ", ".join(map(str, self.inputs.values()))
        return f"Graph({self.name!r}: {ins} -> {', '.join(self.outputs)})"


def load(
    path_or_model: str | os.PathLike[str] | bytes | Any,
    batch: int | None = None,
    dtype: str | None = None,
) -> Graph:
    """A model in ONNX's format as a graph of symdnn.

    ``path_or_model`` is a path, the bytes of a file or an ``onnx.ModelProto``. ``batch`` fixes the
    first size of each input where the file leaves it open. With ``dtype`` all that is float32,
    float16 or bfloat16 in the file is of that dtype.

    Raises :class:`~symdnn.errors.ModelError` for files that are damaged or hold what symdnn does
    not run, and ``OSError`` for files that can't be read.
    """
    model, folder = read(path_or_model)
    return Graph(model, folder, batch, None if dtype is None else TensorType(dtype, ()).dtype)


def symbolic(port: Port) -> list[Any]:
    """The sizes of a port as those of a type: names that are identifiers become names."""
    assert port.shape is not None, "a port whose number of dimensions is known"
    return [
        d if not isinstance(d, str) else Dim(d) if d.isidentifier() else None for d in port.shape
    ]


def _is_plain(port: Port) -> bool:
    return port.form == "tensor" and port.shape is not None


def _port(info: Any, world: World) -> Port:
    """An input as the file declares it."""
    proto, form = info.type, "tensor"
    if proto.HasField("optional_type"):
        proto, form = proto.optional_type.elem_type, "optional"
    if proto.HasField("sequence_type"):
        proto, form = proto.sequence_type.elem_type, "sequence" if form == "tensor" else form
    what = f"the input {info.name!r}"
    if proto.HasField("map_type") or not proto.HasField("tensor_type"):
        raise ModelError(f"{what} is no tensor, sequence of tensors or optional tensor")
    tensor = proto.tensor_type
    kind = world.kind(kind_of(tensor.elem_type, what))
    if not tensor.HasField("shape"):
        return Port(info.name, kind, None, form)
    sizes: list[int | str | None] = []
    for d in tensor.shape.dim:
        if d.HasField("dim_value"):
            if d.dim_value < 0:
                sizes.append(None)  # some programs write -1 for a size that is open
            else:
                sizes.append(int(d.dim_value))
        else:
            sizes.append(str(d.dim_param) or None)
    return Port(info.name, kind, tuple(sizes), form)


def _batch_names(ports: list[Port]) -> set[str]:
    firsts = [p.shape[0] for p in ports if p.shape]
    return {d for d in firsts if isinstance(d, str)}


def _with_batch(port: Port, batch: int | None, names: set[str]) -> Port:
    if batch is None or not port.shape:
        return port
    sizes = [batch if (i == 0 and d is None) or d in names else d for i, d in enumerate(port.shape)]
    return Port(port.name, port.kind, tuple(sizes), port.form)
