"""Networks of modules: one after the other, side by side, and how their outputs are joined.

Tables are Python lists of variables. Dimensions and entries count from 0 (Torch7: from 1).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.names.elsewhere import no_attribute
from symdnn.graph.variable import Variable
from symdnn.nn.modules.by_name import Values
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.naming import name_part, name_variables
from symdnn.ops.array.join import concatenate

__all__ = [
    "Concat", "ConcatTable", "Container", "MapTable", "Parallel", "ParallelTable", "Sequential",
]  # fmt: skip


class _Modules(list[Module]):
    """A list, and the method of PyTorch that has its name; copies and pickles are plain lists."""

    owner: Module

    def __call__(self) -> Iterator[Module]:
        """The container and all modules inside."""
        return Module.modules(self.owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class Container(Module):
    """A list of modules, in :attr:`modules`; they are saved under 0, 1, 2, ...

    A dict of modules, and ``add_module(name, module)``, name them: they are saved under these
    names, and are attributes (PyTorch's).
    """

    unnamed = "modules"

    if TYPE_CHECKING:
        modules: Any
    else:

        @property
        def modules(self) -> list[Module]:
            """The modules, as a list (Torch7's); called, it yields all inside (PyTorch's)."""
            held = vars(self).get("modules")
            if held is None:
                raise no_attribute(self, f"{type(self).__name__!r} object", "modules", "MODULE")
            if not isinstance(held, _Modules):
                held = vars(self)["modules"] = _Modules(held)
            held.owner = self
            return held

        @modules.setter
        def modules(self, held: Iterable[Module]) -> None:
            vars(self)["modules"] = _Modules(held)

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        self.modules = []
        #: The name of each module; empty where it is its number.
        self.names: list[str] = []
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.register_module(name, module)
        else:
            for each in modules:
                self.add(each)

    def add(self, module: Any) -> Container:
        """Append a module; returns the container, so that calls can be chained."""
        return self._append("", module)

    def _append(self, name: str, module: object) -> Container:
        self.modules.append(_checked(self, module))
        self.names.append(name)
        name_part(self, name or str(len(self.modules) - 1), module)
        return self

    def register_module(self, name: str, module: object) -> None:
        """Append a module, or replace the one of that name."""
        if not isinstance(name, str) or not name or "." in name or name in vars(self):
            taken = "; there is such an attribute" if name in vars(self) else ""
            raise InputError(
                f"{type(self).__name__}: wanted a module's name, without dots, got {name!r}{taken}"
            )
        if name in self.names:
            self[self.names.index(name)] = _checked(self, module)
        else:
            self._append(name, module)

    add_module = register_module

    def children(self) -> Values[Module]:
        """The modules by name or number, and those of other attributes."""
        given = {str(i): name for i, name in enumerate(self.names) if name}
        return Values({given.get(k, k): m for k, m in super().children().items()})

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self).get("names", ()) and not hasattr(type(self), name):
            self.register_module(name, value)
        else:
            super().__setattr__(name, value)

    if not TYPE_CHECKING:  # a checker of types would believe that every attribute exists

        def __getattr__(self, name: str) -> Any:
            names = vars(self).get("names", ())
            if name in names:
                return self.modules[names.index(name)]
            return super().__getattr__(name)

    def __len__(self) -> int:
        return len(self.modules)

    def append(self, module: Module) -> Container:
        """PyTorch's name of :meth:`add`."""
        return self.add(module)

    def extend(self, modules: Iterable[Module]) -> Container:
        """Append several modules; returns the container."""
        for module in modules:
            self.add(module)
        return self

    def insert(self, index: int, module: Module) -> Container:
        """Put a module in front of number ``index``; returns the container."""
        self.add(module)
        self.modules.insert(index, self.modules.pop())
        self.names.insert(index, self.names.pop())
        name_variables(self)
        return self

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self.modules[index]
        made = copy.copy(self)
        made.modules, made.names = self.modules[index], self.names[index]
        return made

    def __setitem__(self, index: int, module: Module) -> None:
        self.modules[index] = _checked(self, module)
        name_variables(self)

    def __delitem__(self, index: int | slice) -> None:
        del self.modules[index], self.names[index]
        name_variables(self)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules)

    #: Torch7's names.
    def get(self, index: int) -> Module:
        """The module of this index, from 0."""
        found: Module = self.modules[index]
        return found

    def size(self) -> int:
        """How many modules there are."""
        return len(self.modules)


def _checked(container: Container, module: object) -> Module:
    if not isinstance(module, Module):
        name = type(container).__name__
        raise InputError(f"{name}.add: wanted a module, got {module!r:.60}")
    return module


class Sequential(Container):
    """Each module's output is the next one's input (Torch7's ``nn.Sequential``)."""

    def forward(self, *x: Any) -> Any:
        value: Any = x[0] if len(x) == 1 else list(x)
        for module in self.modules:
            value = module(value)
        return value

    def chain(self) -> str:
        """``[input -> (0) -> (1) -> output]``."""
        steps = "".join(f"({name or i}) -> " for i, name in enumerate(self.names))
        return f"[input -> {steps}output]"


class _Branches(Container):
    """Modules side by side; printed as a fork."""

    #: Read by the printed tree.
    branches = True


class ConcatTable(_Branches):
    """Each module of the one input; the output is the table of their outputs.

    >>> ConcatTable(Sequential(), Sequential())
    nn.ConcatTable {
      input
        |`-> (0): nn.Sequential
         `-> (1): nn.Sequential
         ... -> output
    }
    """

    def forward(self, *x: Any) -> list[Any]:
        given: Any = x[0] if len(x) == 1 else list(x)
        return [module(given) for module in self.modules]


class ParallelTable(_Branches):
    """The i-th module of the i-th entry of a table; the output is the table of their outputs."""

    def forward(self, *tables: Any) -> list[Any]:
        given = _table(self, tables, len(self.modules))
        return [module(x) for module, x in zip(self.modules, given, strict=True)]


class MapTable(Container):
    """One module of each entry of a table; the output is the table of its outputs."""

    def forward(self, *tables: Any) -> list[Any]:
        if len(self.modules) != 1:
            raise InputError(f"MapTable: wanted one module, got {len(self.modules)}")
        return [self.modules[0](x) for x in _table(self, tables)]


class Concat(_Branches):
    """Outputs of all modules, of the one input, joined along the axis ``dim`` (from 0).

    ``dim`` 1 joins the planes of batches. (Torch7's ``nn.Concat``, which counts from 1.)
    """

    def __init__(self, dim: int, *modules: Module) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise InputError(f"Concat: wanted an axis, got {dim!r}")
        super().__init__(*modules)
        self.dim = dim

    def forward(self, x: Any) -> Variable:
        if not self.modules:
            raise InputError("Concat: there are no modules; add one")
        return concatenate([module(x) for module in self.modules], axis=self.dim)


class Parallel(_Branches):
    """The i-th module of slice i along ``inputDim``; outputs joined along ``outputDim``."""

    def __init__(self, inputDim: int, outputDim: int, *modules: Module) -> None:
        super().__init__(*modules)
        self.inputDim, self.outputDim = int(inputDim), int(outputDim)

    def forward(self, x: Any) -> Variable:
        ndim = x.type.ndim
        if not -ndim <= self.inputDim < ndim:
            raise TypeMismatch("Parallel", f"a tensor with an axis {self.inputDim}", x.type)
        size = x.type.shape[self.inputDim]
        if size not in (None, len(self.modules)) or not self.modules:
            wanted = f"{len(self.modules)} slices, one for each module, on axis {self.inputDim}"
            raise TypeMismatch("Parallel", wanted, x.type)
        lead = (slice(None),) * (self.inputDim % ndim)
        parts = [module(x[(*lead, i)]) for i, module in enumerate(self.modules)]
        return concatenate(parts, axis=self.outputDim)


def _table(module: Module, inputs: tuple[Any, ...], length: int | None = None) -> list[Any]:
    """The table that a module got, as one argument or as several."""
    single = len(inputs) == 1 and isinstance(inputs[0], list | tuple)
    given = list(inputs[0] if single else inputs)
    if not given or (len(inputs) == 1 and not single and isinstance(inputs[0], Variable)):
        raise TypeMismatch(type(module).__name__, "a table (a list) of variables", inputs)
    if length is not None and len(given) != length:
        raise TypeMismatch(
            type(module).__name__, f"a table of {length}, one for each module", given
        )
    return given
