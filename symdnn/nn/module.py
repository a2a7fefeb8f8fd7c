"""The base of all layers: named parameters, children, modes, and what its ops lower to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from symdnn.compile.shared import shared
from symdnn.config import config
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.origin import NO_HINTS, Hints, current_hints, hinted
from symdnn.graph.traverse import ancestors
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.nn import init
from symdnn.nn.tree import tree

__all__ = ["BACKENDS", "Module", "state_updates", "symbolic"]

#: What a module's ops may lower to. ``auto``: what symdnn finds best; ``nn``: no vendor's library.
BACKENDS = ("auto", "nn", "cudnn", "onednn")


class Module:
    """A layer, or a network of layers: ``module(x)`` is the expression of its output.

    A subclass makes its parameters with :meth:`parameter`, its statistics with :meth:`buffer`,
    keeps other modules as attributes or in ``modules``, and defines :meth:`forward`. All of it
    is plain Python: parameters are shared variables, and calling a module twice shares them.

    ``training`` says which expression the next call builds (dropout, batch statistics); it never
    changes an expression that exists. ``backend`` is one of :data:`BACKENDS`.
    """

    #: The class's name in a printed tree, without the backend; None: the class's own.
    kind: ClassVar[str | None] = None

    training: bool = True
    backend: str = "auto"
    #: Choices for the nodes that this module builds, such as a convolution's algorithms.
    hints: Hints = NO_HINTS

    def forward(self, *inputs: Any) -> Any:
        """The output for symbolic inputs. Subclasses define it; users call the module."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *inputs: Any) -> Any:
        """The symbolic output; arrays and numbers among ``inputs`` become constants.

        Raises :class:`~symdnn.errors.TypeMismatch` for inputs that the module does not take.
        """
        given = [symbolic(self, v) for v in inputs]
        with hinted(self._hints()):
            return self.forward(*given)

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
        value = np.asarray(initial(tuple(shape), init.generator()), dtype or str(config.floatX))
        if value.shape != tuple(shape):
            raise InputError(
                f"{type(self).__name__}: the initialiser of {name} made shape {value.shape}; "
                f"wanted {tuple(shape)}"
            )
        made = shared(value, name=name, shape=value.shape)
        setattr(self, name, made)
        return made

    def buffer(self, name: str, value: Any) -> Shared:
        """A shared variable that is saved but not trained, as running statistics are."""
        array = np.asarray(value)
        made = shared(array, name=name, shape=array.shape)
        setattr(self, name, made)
        self.__dict__.setdefault("_buffers", []).append(name)
        return made

    def children(self) -> dict[str, Module]:
        """The modules directly inside, by the name under which their parameters are saved."""
        return {name: v for name, v in vars(self).items() if isinstance(v, Module)}

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module under ``prefix`` and all inside, depth first; one that occurs twice once."""
        seen: set[int] = set()

        def walk(name: str, module: Module) -> Iterator[tuple[str, Module]]:
            if id(module) in seen:
                return
            seen.add(id(module))
            yield name, module
            for inner, child in module.children().items():
                yield from walk(f"{name}.{inner}" if name else inner, child)

        return walk(prefix, self)

    def _shared(self, buffers: bool) -> Iterator[tuple[str, Shared]]:
        """Names and variables, each variable once."""
        seen: set[Shared] = set()
        for prefix, module in self.named_modules():
            kept = module.__dict__.get("_buffers", ())
            for name, v in vars(module).items():
                if isinstance(v, Shared) and (name in kept) is buffers and v not in seen:
                    seen.add(v)
                    yield (f"{prefix}.{name}" if prefix else name), v

    def named_parameters(self) -> dict[str, Shared]:
        """The trained variables by name, such as ``"0.weight"``; the order is that of creation."""
        return dict(self._shared(buffers=False))

    def parameters(self) -> list[Shared]:
        """The trained variables, for ``symdnn.grad`` and the optimisers."""
        return list(self.named_parameters().values())

    def named_buffers(self) -> dict[str, Shared]:
        """What is saved beside the parameters: running statistics."""
        return dict(self._shared(buffers=True))

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

    # -- values ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copies of the values of parameters and buffers, as NumPy arrays by name."""
        named = {**self.named_parameters(), **self.named_buffers()}
        return {name: np.array(v.get_value()) for name, v in named.items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Module:
        """Take values by name: all of them or, where one does not fit, none.

        ``strict`` refuses names that are missing or unknown. Raises
        :class:`~symdnn.errors.InputError` naming every problem.
        """
        named = {**self.named_parameters(), **self.named_buffers()}
        problems = [f"{n} is missing" for n in named if strict and n not in state]
        problems += [f"{n} is unknown" for n in state if strict and n not in named]
        taken: dict[str, Any] = {}
        for name in named:
            if name not in state:
                continue
            value, wanted = np.asarray(state[name]), named[name].get_value(borrow=True)
            if value.shape != wanted.shape:
                problems.append(f"{name} has shape {value.shape}, wanted {wanted.shape}")
            taken[name] = value.astype(wanted.dtype)
        if problems:
            text = "; ".join(problems)
            raise InputError(f"{type(self).__name__}.load_state_dict: {text}. Nothing was changed")
        for name, value in taken.items():
            named[name].set_value(value)
        return self

    # -- printing ----------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """``nn.ReLU``, ``cudnn.ReLU``: how the module is named in a tree."""
        prefix = "nn" if self.backend == "auto" else self.backend
        return f"{prefix}.{self.kind or type(self).__name__}"

    def describe(self) -> str:
        """The arguments behind the title in a printed tree, such as ``(3 -> 96, 11x11, 3,3)``."""
        return ""

    def __repr__(self) -> str:
        return tree(self)


def symbolic(module: Module, value: Any) -> Any:
    """An input as a variable; tables (lists, tuples) of them entry by entry."""
    if isinstance(value, Variable) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [symbolic(module, v) for v in value]
    try:
        return as_variable(value)
    except (TypeError, ValueError) as error:
        raise TypeMismatch(
            type(module).__name__, "a symbolic variable or an array", value
        ) from error


def state_updates(*outputs: Any) -> list[tuple[Shared, Variable]]:
    """The updates of statistics that these expressions computed: ``(running mean, new value)``.

    Batch normalisation in training makes them; the optimisers add them to their own. A module that
    is called twice in one expression updates its statistics from the last call.
    """
    found: dict[Shared, Variable] = {}
    for v in ancestors([o for o in outputs if o is not None]):
        for target, new in getattr(v._tag, "state_updates", ()):
            found[target] = new
    return list(found.items())
