"""PyTorch's ``torch.nn.utils``: weights computed of other parameters, and parameters as a vector.

A reparameterised weight is no parameter: each use of it is an expression of those that replace it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING as _CHECKED
from typing import ClassVar, TypeVar

import numpy as np

from symdnn.compile.shared import shared
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.nn import init
from symdnn.nn.layers.conv import TRANSPOSED
from symdnn.nn.modules.module import Module
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.elementwise.arithmetic import maximum, sqr, sqrt
from symdnn.ops.linalg.dot import dot

__all__ = [
    "parameters_to_vector", "remove_spectral_norm", "remove_weight_norm", "spectral_norm",
    "vector_to_parameters", "weight_norm",
]  # fmt: skip

ModuleT = TypeVar("ModuleT", bound=Module)


# -- computed weights ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SpectralNorm:
    """``weight_orig / sigma``, its largest singular value by power iteration."""

    what: ClassVar[str] = "spectral_norm"
    parts: ClassVar[tuple[str, ...]] = ("_orig", "_u", "_v")
    name: str
    dim: int
    iterations: int
    eps: float

    def value(self, module: Module, training: bool) -> Variable:
        weight, u, v = (getattr(module, self.name + part) for part in self.parts)
        axes = [self.dim, *(a for a in range(weight.type.ndim) if a != self.dim)]
        matrix = weight.transpose(axes).flatten(2)
        left, right = u, v
        if training:
            fixed = disconnected_grad(matrix)
            for _ in range(self.iterations):
                right = self._unit(dot(fixed.T, left))
                left = self._unit(dot(fixed, right))
        found: Variable = weight / dot(left, dot(matrix, right))
        if training:
            found.tag.state_updates = [(u, left), (v, right)]
        return found

    def _unit(self, x: Variable) -> Variable:
        return x / maximum(sqrt(total(sqr(x))), self.eps)


@dataclass(frozen=True)
class _WeightNorm:
    """``weight_g weight_v / |weight_v|``, the norm over all axes but ``dim``."""

    what: ClassVar[str] = "weight_norm"
    parts: ClassVar[tuple[str, ...]] = ("_g", "_v")
    name: str
    dim: int | None

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(a for a in range(ndim) if a != self.dim)

    def value(self, module: Module, training: bool) -> Variable:
        g, v = (getattr(module, self.name + part) for part in self.parts)
        norm = sqrt(total(sqr(v), self.axes(v.type.ndim), keepdims=self.dim is not None))
        found: Variable = v * (g / norm)
        return found


def _weight(what: str, module: Module, name: str, dim: int | None) -> Shared:
    """The parameter that is replaced."""
    buffers = vars(module).get("_buffers", ())
    own = {n: v for n, v in module.own_variables() if n not in buffers}
    if name not in own:
        raise InputError(
            f"{what}: {type(module).__name__} has no parameter {name!r} of its own; it has "
            f"{', '.join(own) or 'none'}"
        )
    ndim = own[name].type.ndim
    if not ndim or (dim is not None and not 0 <= dim < ndim):
        raise InputError(f"{what}: dim={dim!r} of {name} {own[name].type}; wanted one of its axes")
    return own[name]


def _replace(module: Module, made: _SpectralNorm | _WeightNorm) -> None:
    """``module``'s parameter as an expression."""
    del vars(module)[made.name]
    vars(module).setdefault("_computed", {})[made.name] = made


def _restore(what: str, module: ModuleT, name: str) -> ModuleT:
    made = vars(module).get("_computed", {}).get(name)
    if getattr(made, "what", None) != what:
        raise InputError(f"remove_{what}: {type(module).__name__}.{name} has no {what}")
    value = made.value(module, training=False).eval()
    del vars(module)["_computed"][name]
    kept = vars(module).get("_buffers", [])
    for part in made.parts:
        del vars(module)[name + part]
        if name + part in kept:
            kept.remove(name + part)
    setattr(module, name, shared(value, name=name, shape=value.shape))
    return module


def spectral_norm(
    module: ModuleT, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> ModuleT:  # fmt: skip
    """Let ``module`` divide its parameter ``name`` by the largest singular value; returns it.

    The parameter is ``weight_orig`` then, a matrix of the rows ``dim`` (0; of transposed
    convolutions 1) for this. Singular vectors are the buffers ``weight_u`` and ``weight_v``. Each
    call in training improves them by ``n_power_iterations``, and optimisers' updates keep them
    (:func:`symdnn.nn.state_updates`); evaluation takes them as they are. (Miyato et al. 2018;
    PyTorch's.)

    Raises :class:`~symdnn.errors.InputError` if there is no such parameter.

    >>> from symdnn import nn
    >>> sorted(nn.utils.spectral_norm(nn.Linear(4, 3)).state_dict())
    ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    axis = (1 if isinstance(module, TRANSPOSED) else 0) if dim is None else dim
    weight = _weight("spectral_norm", module, name, axis)
    if n_power_iterations < 1:
        raise InputError(
            f"spectral_norm: n_power_iterations={n_power_iterations!r}; wanted 1 or more"
        )
    _replace(module, _SpectralNorm(name, axis, int(n_power_iterations), float(eps)))
    setattr(module, f"{name}_orig", weight)
    rows = weight.get_value(borrow=True).shape[axis]
    columns = weight.get_value(borrow=True).size // rows
    for part, size in (("u", rows), ("v", columns)):
        vector = init.generator().standard_normal(size)
        unit = vector / max(float(np.linalg.norm(vector)), eps)
        module.buffer(f"{name}_{part}", unit.astype(weight.type.dtype))
    return module


def remove_spectral_norm(module: ModuleT, name: str = "weight") -> ModuleT:
    """Undo :func:`spectral_norm`: the divided weight becomes the parameter; returns the module."""
    return _restore("spectral_norm", module, name)


def weight_norm(module: ModuleT, name: str = "weight", dim: int | None = 0) -> ModuleT:
    """Let ``module`` have direction and length of its parameter ``name`` apart; returns it.

    The parameters are ``weight_v``, of the shape of the weight, and ``weight_g``, its norms over
    all axes but ``dim`` (None: over all). (Salimans and Kingma 2016; PyTorch's.)

    Raises :class:`~symdnn.errors.InputError` if there is no such parameter.

    >>> from symdnn import nn
    >>> sorted(nn.utils.weight_norm(nn.Linear(4, 3)).named_parameters().keys())
    ['bias', 'weight_g', 'weight_v']
    """
    weight = _weight("weight_norm", module, name, dim)
    made = _WeightNorm(name, dim)
    value: Array = weight.get_value()
    length = np.sqrt((value**2).sum(made.axes(value.ndim), keepdims=dim is not None))
    _replace(module, made)
    length = np.asarray(length, value.dtype)
    setattr(module, f"{name}_g", shared(length, name=f"{name}_g", shape=length.shape))
    setattr(module, f"{name}_v", weight)
    return module


def remove_weight_norm(module: ModuleT, name: str = "weight") -> ModuleT:
    """Undo :func:`weight_norm`: the product becomes the parameter; returns the module."""
    return _restore("weight_norm", module, name)


# -- vectors ---------------------------------------------------------------------------------------


def parameters_to_vector(parameters: Iterable[TensorLike]) -> Variable:
    """All elements of ``parameters`` (or of gradients), one after the other, as a vector.

    >>> from symdnn import nn
    >>> nn.utils.parameters_to_vector(nn.Linear(4, 3).parameters()).eval().shape
    (15,)
    """
    given = [as_variable(p) for p in parameters]
    if not given:
        raise InputError("parameters_to_vector: no parameters; wanted one or more")
    return concatenate([p.flatten() for p in given])


def vector_to_parameters(vec: TensorLike, parameters: Iterable[Shared]) -> None:
    """Set the values of ``parameters`` from a vector in the order of :func:`parameters_to_vector`.

    ``vec`` is an array, or an expression without inputs. Raises
    :class:`~symdnn.errors.InputError` if it has another number of elements; then nothing is set.
    """
    given = list(parameters)
    for p in given:
        if not isinstance(p, Shared):
            raise TypeMismatch("vector_to_parameters", "shared variables", p)
    values = np.asarray(vec.eval() if isinstance(vec, Variable) else vec)
    shapes = [p.get_value(borrow=True).shape for p in given]
    counts = [int(np.prod(shape)) for shape in shapes]
    if values.shape != (sum(counts),):
        raise InputError(
            f"vector_to_parameters: a vector of shape {values.shape}; wanted {(sum(counts),)}"
        )
    parts = np.split(values, np.cumsum(counts)[:-1])
    for p, part, shape in zip(given, parts, shapes, strict=True):
        p.set_value(np.array(part.reshape(shape), p.type.dtype))


if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "UTILS")
