"""The base of all layers: named parameters, children, modes, and the backend of its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np

from symdnn.compile.shared import shared
from symdnn.config import config
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.names.elsewhere import no_attribute
from symdnn.graph.origin import NO_HINTS, Hints, current_hints, current_module, hinted, within
from symdnn.graph.tracing import check_takes
from symdnn.graph.traverse import ancestors
from symdnn.graph.typing import Array, Scalar
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.nn import init
from symdnn.nn.modules.arguments import known, of_known
from symdnn.nn.modules.by_name import Pairs, Values
from symdnn.nn.modules.called import Called
from symdnn.nn.modules.checked import check_arguments, checked
from symdnn.nn.modules.inside import found_in
from symdnn.nn.modules.naming import name_part, name_variables
from symdnn.nn.modules.state import State
from symdnn.nn.modules.torch_keywords import own_keywords
from symdnn.nn.modules.tree import tree
from symdnn.ops.control.statistics import note_order, statistics_updates

if TYPE_CHECKING:
    from symdnn.nn.modules.summary import Summary

#: Libraries of a module's ops. ``auto``: symdnn's choice; ``nn``: no vendor's library.
BACKENDS = ("auto", "nn", "cudnn", "onednn")


class Module(State):
    """A layer, or a network of layers: ``module(x)`` is the expression of its output.

    A subclass makes its parameters with :meth:`parameter`, its statistics with :meth:`buffer`,
    keeps other modules as attributes, alone or in lists, tuples and dicts of any nesting, and
    defines :meth:`forward`. All of it is plain Python: parameters are shared variables, and calling
    a module twice shares them. They are named by their path in the network, ``layer1.conv.weight``.

    ``training`` decides which expression the next call builds (with dropout and batch statistics or
    without); it never changes an existing expression. ``backend`` is one of :data:`BACKENDS`.
    """

    #: The class's name in a printed tree, without the backend; None: the class's own.
    kind: ClassVar[str | None] = None
    #: The attribute whose entries are named by their keys alone, as the layers of a ``Sequential``.
    unnamed: ClassVar[str | None] = None
    #: The arguments in a printed tree, as a format of the module: ``"{0.lower:g}, {0.upper:g}"``.
    _shown: ClassVar[str] = ""

    training: bool = True
    backend: str = "auto"
    #: Choices for the nodes that this module builds, such as a convolution's algorithms.
    hints: Hints = NO_HINTS

    def __init_subclass__(cls, **options: Any) -> None:
        """Layers of this package take sizes that are known by a type, ``x.shape[1]``, as ints."""
        super().__init_subclass__(**options)
        if cls.__module__.startswith("symdnn.nn.") and "__init__" in vars(cls):
            setattr(cls, "__init__", of_known(cls.__init__))  # noqa: B010

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Check the types of arguments, for the layers of this package."""
        if cls.__module__.startswith("symdnn.nn.") and (args or kwargs):
            named = {k: known(v) for k, v in own_keywords(cls, kwargs).items()}
            check_arguments(cls.__name__, cls.__init__, (None, *known(args)), named)
        return super().__new__(cls)

    def forward(self, *inputs: Any) -> Any:
        """The output for symbolic inputs. Subclasses define it; users call the module."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The symbolic output; arrays and numbers among ``inputs`` become constants.

        Arrays among the ``named`` arguments of ``forward`` do so, too; True and False are options
        in either place. Raises :class:`~symdnn.errors.TypeMismatch` for inputs that the module does
        not take.
        """
        given = [symbolic(self, v) for v in inputs]
        named = {k: symbolic(self, v) if _holds_values(v) else v for k, v in named.items()}
        watch = _watch.get()
        paths = _calling.get()
        outermost = paths is None
        if paths is None:
            name_variables(self)
            root = type(self).__name__
            paths = {id(m): f"{root}.{path}" if path else root for path, m in self.named_modules()}
            token = _calling.set(paths)
        try:
            path = self._path(paths)
            with hinted(self._hints()), within(path, Called(self, path, given, named)):
                forward = self.forward if watch is None else partial(watch.forward, self)
                found = forward(*given, **named)
                note_order(found)
                return found
        except TypeError:
            names = [f"input {i}" for i, _ in enumerate(given)]
            check_takes(type(self).__name__, self.forward, names, named)
            raise
        finally:
            if outermost:
                _calling.reset(token)

    if not TYPE_CHECKING:  # a checker of types would believe that every attribute exists

        def __getattr__(self, name: str) -> Any:
            made = vars(self).get("_computed", {}).get(name)  # of symdnn.nn.utils
            if made is not None:
                return made.value(self, self.training)
            raise no_attribute(self, f"{type(self).__name__!r} object", name, "MODULE")

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if isinstance(value, Shared) and id(value) in _fixed:
            self.__dict__.setdefault("_buffers", []).append(name)
        for path, part in found_in(self, {name: value}, self.unnamed, Module | Shared):
            name_part(self, path, part)

    def _path(self, paths: Mapping[int, str]) -> str:
        """Its path in the network that is called; that of its caller and its class if it has none.

        A module that is made and called within a ``forward`` is no part of the network.
        """
        return paths.get(id(self)) or f"{current_module()}.{type(self).__name__}"

    def _hints(self) -> Hints:
        """This module's hints over those of the modules around it."""
        mine = {k: v for k, v in vars(self.hints).items() if v is not None}
        if self.backend != "auto":
            mine["backend"] = self.backend
        return replace(current_hints(), **mine)

    # -- parameters and children --------------------------------------------------------------

    def parameter(
        self,
        name: str,
        shape: Sequence[int],
        initial: Callable[..., Any],
        dtype: str | None = None,
    ) -> Shared:
        """A trained shared variable of this static shape, ``initial(shape, rng)`` at first.

        It becomes the attribute ``name``. ``dtype`` is ``floatX`` unless given.
        """
        value = init.first_value(initial, shape, dtype or str(config.floatX))
        if value.shape != tuple(shape):
            raise InputError(
                f"{type(self).__name__}: the initialiser of {name} made shape {value.shape}; "
                f"wanted {tuple(shape)}"
            )
        made = shared(value, name=name, shape=value.shape, borrow=True)
        setattr(self, name, made)
        return made

    def buffer(self, name: str, value: Array | Scalar) -> Shared:
        """A shared variable that is saved but not trained, as running statistics are."""
        array = np.asarray(value)
        made = shared(array, name=name, shape=array.shape)
        setattr(self, name, made)
        self.__dict__.setdefault("_buffers", []).append(name)
        return made

    def register_buffer(self, name: str, value: Any, persistent: bool = True) -> None:
        """PyTorch's name of :meth:`buffer`; with ``persistent=False`` a constant, not saved.

        ``value`` is an array, a shared variable, a constant expression, or None.
        """
        if value is None or not persistent:
            setattr(self, name, value if value is None else as_variable(value))
            return
        if isinstance(value, Shared):
            setattr(self, name, value)
            self.__dict__.setdefault("_buffers", []).append(name)
            return
        self.buffer(name, value.eval() if isinstance(value, Variable) else value)

    def register_parameter(self, name: str, value: Shared | None) -> None:
        """PyTorch's way of an attribute ``name``: a shared variable, or None."""
        setattr(self, name, value)

    def register_module(self, name: str, module: Module | None) -> None:
        """PyTorch's way of an attribute ``name``."""
        setattr(self, name, module)

    add_module = register_module

    def children(self) -> Values[Module]:
        """The modules directly inside, by the name under which their parameters are saved.

        They are the modules among the attributes, and in nested lists, tuples and dicts
        (``layers.0``, ``heads.a.1``). A module that occurs twice has both names. Loops run over the
        modules, as in PyTorch.

        Raises :class:`~symdnn.errors.InputError` if two would have one name.
        """
        return Values(self._by_name(found_in(self, vars(self), self.unnamed, Module)))

    def named_children(self) -> Pairs[Module]:
        """The modules directly inside by name, as :meth:`children`; loops run over the pairs."""
        return Pairs(self.children())

    def own_variables(self) -> Iterator[tuple[str, Shared]]:
        """The shared variables of this module itself, by attribute, as :meth:`children` finds."""
        yield from self._by_name(found_in(self, vars(self), self.unnamed, Shared)).items()

    def _by_name(self, found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for name, value in found:
            if named.setdefault(name, value) is not value:
                what = "modules" if isinstance(value, Module) else "variables"
                raise InputError(
                    f"{type(self).__name__}: two {what} are named {name!r}; rename the key of one"
                )
        return named

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module under ``prefix`` and all inside, depth first; one that occurs twice once."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            inner = [(f"{name}.{n}" if name else n, m) for n, m in module.children().items()]
            stack += reversed(inner)

    def modules(self) -> Iterator[Module]:
        """This module and all inside, as :meth:`named_modules` finds them."""
        return (module for _, module in self.named_modules())

    def _shared(self, buffers: bool) -> Iterator[tuple[str, Shared]]:
        """Names and variables, each variable once."""
        name_variables(self)
        seen: set[Shared] = set()
        for prefix, module in self.named_modules():
            kept = module.__dict__.get("_buffers", ())
            for name, v in module.own_variables():
                if (name in kept) is buffers and v not in seen:
                    seen.add(v)
                    yield (f"{prefix}.{name}" if prefix else name), v

    def named_parameters(self) -> Pairs[Shared]:
        """The trained variables by name, such as ``"0.weight"``; the order is that of creation.

        It is a dict of which loops run over the pairs ``(name, variable)``, as in PyTorch.
        """
        return Pairs(self._shared(buffers=False))

    def parameters(self) -> list[Shared]:
        """The trained variables, for ``symdnn.grad`` and the optimisers."""
        return list(self.named_parameters().values())

    def buffers(self) -> list[Shared]:
        """The saved variables that are not trained, as :meth:`named_buffers` finds them."""
        return list(self.named_buffers().values())

    def named_buffers(self) -> Pairs[Shared]:
        """The saved variables that are not trained, as :meth:`named_parameters`: statistics."""
        return Pairs(self._shared(buffers=True))

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Whether optimisers train the parameters, which they do at first; returns the module."""
        for v in self.parameters():
            v.requires_grad = bool(requires_grad)
        return self

    # -- modes -------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Module:
        """Let the next calls build the expression for training; returns the module."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    #: Torch7's name.
    def evaluate(self) -> Module:
        """Let the next calls build the expression for evaluation; returns the module."""
        return self.train(False)

    def eval(self) -> Module:
        """PyTorch's name of :meth:`evaluate`."""
        return self.evaluate()

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Call ``function`` with each module, inner ones first; returns the module."""
        for _, module in reversed(list(self.named_modules())):
            function(module)
        return self

    def summary(self, *inputs: object, dtype: str | None = None) -> Summary:
        """Shapes, parameters and FLOPs of each module for inputs of these shapes.

        Of the class :class:`symdnn.nn.Summary`, which prints as a table; see
        :func:`symdnn.nn.modules.summary`.
        """
        from symdnn.nn.modules.summary import summary

        return summary(self, *inputs, dtype=dtype)

    # -- printing ----------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The module's name in a tree: ``nn.ReLU``, ``cudnn.ReLU``."""
        prefix = "nn" if self.backend == "auto" else self.backend
        return f"{prefix}.{self.kind or type(self).__name__}"

    def describe(self) -> str:
        """The arguments after the title in a printed tree, such as ``(3 -> 96, 11x11, 3,3)``."""
        return f"({self._shown.format(self)})" if self._shown else ""

    def __repr__(self) -> str:
        return tree(self)


#: Parameters of ``requires_grad=False``, which modules keep as buffers.
_fixed: WeakValueDictionary[int, Shared] = WeakValueDictionary()


def Parameter(data: object = None, requires_grad: bool = True) -> Shared:
    """A shared variable with this value: as an attribute of a module, its parameter.

    Floats of Python and of NumPy's float64 become ``floatX``. ``data`` may be an expression of
    constants, such as ``T.zeros((2, 3))``. With ``requires_grad=False`` a module saves it, and
    does not train it. (PyTorch's.)

    >>> str(Parameter(np.zeros((2, 3))).type)
    'float32(2, 3)'
    """
    if isinstance(data, Shared):
        data = data.get_value()
    elif isinstance(data, Variable):
        data = data.eval()
    value = np.asarray(0.0 if data is None else data)
    if value.dtype == np.float64:
        value = value.astype(str(config.floatX))
    made = shared(value, shape=value.shape)
    made.requires_grad = bool(requires_grad)
    if not requires_grad:
        _fixed[id(made)] = made
    return made


def symbolic(module: Module, value: object) -> Any:
    """An input as a variable; tables (lists, tuples) of them entry by entry."""
    if isinstance(value, Variable | bool) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [symbolic(module, v) for v in value]
    try:
        return as_variable(value)
    except (TypeError, ValueError) as error:
        raise TypeMismatch(
            type(module).__name__, "a symbolic variable or an array", value,
            "Other objects are passed by keyword",
        ) from error  # fmt: skip


def _holds_values(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic | list | tuple)


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module: the ``index``-th that began, with ``depth`` calls around it."""

    module: Module
    index: int
    depth: int
    inputs: Sequence[Any]
    output: Any


class _Watch:
    """Calls a function at the end of each call of a module."""

    def __init__(self, report: Callable[[ModuleCall], Any]) -> None:
        self.report, self.depth, self.begun = report, 0, 0

    def forward(self, module: Module, *given: Any, **named: Any) -> Any:
        """The results of the module's own ``forward``."""
        index, depth = self.begun, self.depth
        self.begun, self.depth = index + 1, depth + 1
        output = module.forward(*given, **named)
        self.depth = depth
        self.report(ModuleCall(module, index, depth, (*given, *named.values()), output))
        return output


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)
#: While a module is called, the paths of it and of all modules inside, by identity.
_calling: ContextVar[Mapping[int, str] | None] = ContextVar("calling", default=None)


@contextmanager
def watched(report: Callable[[ModuleCall], Any]) -> Iterator[None]:
    """A block in which ``report(call)`` is called at the end of every call of a module."""
    token = _watch.set(_Watch(report))
    try:
        yield
    finally:
        _watch.reset(token)


@checked
def state_updates(*outputs: Variable | None) -> list[tuple[Shared, Variable]]:
    """The updates of statistics that these expressions computed: ``(running mean, new value)``.

    Batch normalisation in training makes them; the optimisers add them to their own. A module that
    is called several times updates its statistics by each call, in the order of the calls; in a
    step of a ``scan`` by each step.
    """
    return list(statistics_updates([o for o in outputs if o is not None]).items())


@checked
def random_states(*outputs: Variable | None) -> list[Shared]:
    """The states of random numbers (dropout's) that these expressions draw from, in their order.

    Functions advance them automatically. To repeat the numbers, save their values and restore them.
    """
    found = ancestors([o for o in outputs if o is not None])
    return [v for v in found if isinstance(v, Shared) and v.default_update is not None]
