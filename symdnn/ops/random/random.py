"""Random draws: each op reads a state, and returns values and the next state.

The state is a uint64 vector (key, counter). Element ``i`` of a draw depends on key and
``counter + i`` alone (:mod:`symdnn.ops.random.rng_philox`), so all devices draw the same numbers.
Inputs are the state, then the op's parameters, then the dimensions of the result (int64 scalars,
read on the host). Parameters have one dimension for each of the result's and broadcast by static
1s. No gradient flows through a draw; scale and shift are ordinary arithmetic around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from symdnn.errors import DataError, NdimMismatch, TypeMismatch
from symdnn.graph.dims import Dim, Shape, same_dim
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.lanes import lanes_of, same_for_all
from symdnn.ops.core.shape import as_dim, static_dim
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elemwise import pad_left
from symdnn.ops.random import rng_philox as philox

__all__ = [
    "STATE_TYPE",
    "dims_and_static",
    "RandomBernoulli",
    "RandomCategorical",
    "RandomIntegers",
    "RandomMultinomial",
    "RandomNormal",
    "RandomPermutation",
    "RandomPoisson",
    "RandomSubset",
    "RandomUniform",
    "next_state",
    "random_bernoulli",
    "random_categorical",
    "random_integers",
    "random_multinomial",
    "random_normal",
    "random_permutation",
    "random_poisson",
    "random_subset",
    "random_uniform",
    "state_after",
]

STATE_TYPE = TensorType("uint64", (2,))
_WRAP = 0xFFFFFFFFFFFFFFFF


def next_state(state: Array, elements: int) -> Any:
    """The state after ``elements`` were drawn; the counter wraps at 2**64."""
    return np.array([int(state[0]), int(state[1]) + elements & _WRAP], np.uint64)


def state_after(state: Variable, elements: Dim) -> Variable:
    """:func:`next_state` as an expression."""
    return state + cast(as_dim(elements), "uint64") * np.array([0, 1], np.uint64)


def check_state(op: Op, state: TensorType) -> None:
    """Raise :class:`TypeMismatch` unless ``state`` is a (key, counter) vector."""
    if not STATE_TYPE.accepts(state):
        raise TypeMismatch(
            op, f"a random state of type {STATE_TYPE}", state, "Use RandomStream(seed)"
        )


@dataclass(frozen=True)
class RandomOp(MultiOp):
    """Base of the draws: ``dtype`` of the values, ``static`` dimensions where they are known."""

    no_gradients: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    folds: ClassVar[bool] = False
    random_state: ClassVar[int] = 0
    #: The number of parameters between the state and the dimensions.
    parameters: ClassVar[int] = 0
    dtype: str
    static: tuple[int | None, ...]

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]  # values, next state
            self, *inputs: Any, hints: Hints | None = None, name: str | None = None
        ) -> tuple[Variable, Variable]: ...

    @property
    def host_inputs(self) -> tuple[int, ...]:
        first = 1 + self.parameters
        return tuple(range(first, first + len(self.static)))

    def split(self, inputs: Sequence[Any]) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """(state, parameters, dimensions) of the inputs."""
        first = 1 + self.parameters
        return inputs[0], inputs[1:first], inputs[first:]

    def check_parameter(self, p: TensorType) -> None:
        """Refuse a parameter of the wrong ndim or kind."""
        if p.ndim != len(self.static) or p.is_complex:
            raise NdimMismatch(self, f"parameters of {len(self.static)} dimension(s)", p)

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        state, parameters, dims = self.split(inputs)
        check_state(self, state)
        if len(dims) != len(self.static):
            raise NdimMismatch(self, f"{len(self.static)} dimensions", list(dims))
        for p in parameters:
            self.check_parameter(p)
        return TensorType(self.dtype, self.static), STATE_TYPE

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        out = tuple(host[i] for i in self.host_inputs)
        for t, s in zip(types[1 : 1 + self.parameters], shapes[1:], strict=False):
            self.fits(t, s, out)
        return [out, (2,)]

    def fits(self, type_: TensorType, shape: Shape, out: Shape) -> None:
        """Raise :class:`ShapeMismatch` unless a parameter broadcasts to the result."""
        for known, d, n in zip(type_.shape, shape, out, strict=True):
            if known != 1:
                same_dim(self, (d, n), f"parameters that fit the size {out}", tuple(shape))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        state, parameters, dims = self.split(inputs)
        shape = tuple(int(d) for d in dims)
        if any(d < 0 for d in shape):
            raise DataError(f"{self}: a size cannot be negative, got {shape}")
        size = int(np.prod(shape, dtype=np.int64))
        flat = [np.broadcast_to(p, shape).reshape(-1) for p in parameters]
        values = self.draw(state, size, *flat).reshape(shape)
        return values.astype(TensorType(self.dtype).numpy, copy=False), next_state(state, size)

    def draw(self, state: Any, size: int, *parameters: Any) -> Any:
        """``size`` values; each parameter is a vector of that length."""
        raise NotImplementedError

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [None] * len(outputs)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        """A lane draws the numbers that follow those of the lanes before it.

        If each lane has its own state, it is a loop: each lane draws as in a single call.
        """
        state, parameters, dims = self.split(inputs)
        own = self.split(axes)
        if own[0] is not None or any(a is not None for a in own[2]):
            return None
        lanes = as_dim(lanes_of(inputs, axes))
        wide = [same_for_all(p) if a is None else p for p, a in zip(parameters, own[1])]
        op = replace(self, static=(static_dim(lanes), *self.static))
        return op.make_node(state, *wide, lanes, *dims).outputs, [0, None]


class RandomUniform(RandomOp):
    """Uniform values of the open interval (0, 1), of a float dtype."""

    def draw(self, state: Any, size: int, *parameters: Any) -> Array:
        return philox.open_uniform(state, size, TensorType(self.dtype).numpy)


@dataclass(frozen=True)
class RandomNormal(RandomOp):
    """Standard normal values; with ``truncated`` only those of (-2, 2).

    Box and Muller 1958 on pairs: elements 2j and 2j + 1 of a stream are ``r cos(t)`` and
    ``r sin(t)`` with ``r = sqrt(-2 log u)`` and ``t = 2 pi v``, where u and v are the uniforms
    ``w / 2**32 + 2**-33`` of the words 2j and 2j + 1, rounded to float32 (for float64: the 52-bit
    uniforms of these elements). Truncated values are the inverse distribution function of the
    uniform of the same element.
    """

    truncated: bool = False

    def draw(self, state: Any, size: int, *parameters: Any) -> Any:
        if self.truncated:
            return self._truncated(state, size)
        odd = int(state[1]) & 1
        pairs = (size + odd + 1) // 2
        start = np.array([int(state[0]), int(state[1]) - odd], np.uint64)
        u = self._uniforms(start, 2 * pairs).astype(np.float64).reshape(pairs, 2)
        radius, angle = np.sqrt(-2 * np.log(u[:, 0])), 2 * np.pi * u[:, 1]
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        return both.reshape(-1)[odd : odd + size]

    def _uniforms(self, state: Array, size: int) -> Array:
        if self.dtype == "float64":
            return philox.open_uniform(state, size, np.float64)
        w = philox.words(state, size, 1)[:, 0].astype(np.float32)
        return w * np.float32(2.0**-32) + np.float32(2.0**-33)

    def _truncated(self, state: Array, size: int) -> Any:
        from scipy.special import ndtr, ndtri

        wide = np.float64 if self.dtype == "float64" else np.float32
        u = philox.open_uniform(state, size, wide).astype(np.float64)
        low, high = ndtr(-2.0), ndtr(2.0)
        return ndtri(low + u * (high - low))


class RandomBernoulli(RandomOp):
    """1 with probability ``p``: whether the element's word is less than ``p * 2**32``."""

    parameters: ClassVar[int] = 1

    def draw(self, state: Any, size: int, *parameters: Array) -> Array:
        words = philox.words(state, size, 1)[:, 0]
        return words < parameters[0].astype(np.float64) * 2.0**32


class RandomIntegers(RandomOp):
    """Integers of ``[low, high)``: ``low + floor(W (high - low) / 2**64)``, W of 64 bits.

    Lemire's multiplication without rejection: for n values the probabilities are off by at most
    n / 2**64.
    """

    parameters: ClassVar[int] = 2

    def check_parameter(self, p: TensorType) -> None:
        super().check_parameter(p)
        if not p.is_discrete:
            raise TypeMismatch(self, "integer bounds", p)

    def draw(self, state: Any, size: int, *parameters: Array) -> Any:
        low, high = (p.astype(np.int64) for p in parameters)
        if (low >= high).any():
            i = int(np.argmax(low >= high))
            raise DataError(f"{self}: no integer in [{low[i]}, {high[i]}) (low, high)")
        span = high.view(np.uint64) - low.view(np.uint64)
        offset = philox.mulhi64(philox.words64(state, size), span)
        return (low.view(np.uint64) + offset).view(np.int64)


class RandomPoisson(RandomOp):
    """Numbers of events with the mean ``rate``: the inverse distribution function of u."""

    parameters: ClassVar[int] = 1

    def draw(self, state: Any, size: int, *parameters: Array) -> Array:
        from scipy.special import pdtr, pdtrik

        rate = parameters[0].astype(np.float64)
        if not ((rate >= 0) & (rate < 1e15)).all():
            raise DataError(f"{self}: wanted rates of at least 0 and below 1e15")
        u = philox.open_uniform(state, size, np.float64)
        none = u <= np.exp(-rate)
        found = np.ceil(pdtrik(np.where(none, 0.5, u), np.where(none, 1.0, rate)))
        # SciPy's inverse is that of a smoothed function: it may be wrong by one.
        found = np.where((found > 0) & (pdtr(found - 1, rate) >= u), found - 1, found)
        return np.where(none, 0, found)


class RandomPermutation(RandomOp):
    """Permutations of ``0 .. n-1`` along the last dimension: the order of 64-bit words."""

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        state, _, dims = self.split(inputs)
        shape = tuple(int(d) for d in dims)
        size = int(np.prod(shape, dtype=np.int64))
        keys = philox.words64(state, size).reshape(shape)
        order = np.argsort(keys, axis=-1, kind="stable")
        return order.astype(TensorType(self.dtype).numpy), next_state(state, size)


class RandomCategorical(RandomOp):
    """The index of a class drawn with the probabilities ``p[..., class]`` (any positive scale).

    The first class whose cumulated probability exceeds the element's 52-bit uniform.
    """

    parameters: ClassVar[int] = 1

    def check_parameter(self, p: TensorType) -> None:
        if p.ndim != len(self.static) + 1 or not p.is_float:
            raise TypeMismatch(self, f"float probabilities of {len(self.static) + 1} dims", p)

    def fits(self, type_: TensorType, shape: Shape, out: Shape) -> None:
        super().fits(TensorType(type_.dtype, type_.shape[:-1]), shape[:-1], out)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        state, (p,), dims = self.split(inputs)
        shape = tuple(int(d) for d in dims)
        size = int(np.prod(shape, dtype=np.int64))
        u = philox.open_uniform(state, size, np.float64).reshape(shape)
        found = pick_class(self, p, u)
        return found.astype(TensorType(self.dtype).numpy), next_state(state, size)


def pick_class(op: Op | str, p: Array, u: Array) -> Any:
    """For each uniform the first class whose cumulated probability exceeds it."""
    weights = p.astype(np.float64)
    if not (weights >= 0).all() or not (weights.sum(-1) > 0).all():
        raise DataError(f"{op}: probabilities must be >= 0, and some of each row > 0")
    cdf = np.cumsum(weights, -1)
    # For a uniform just below 1 this is the last class with a positive probability.
    below = (cdf <= u[..., None] * cdf[..., -1:]).sum(-1)
    last = weights.shape[-1] - 1 - np.argmax(weights[..., ::-1] > 0, -1)
    return np.minimum(below, last)


class RandomMultinomial(RandomOp):
    """The count of each class in ``n`` categorical draws with the probabilities ``p``.

    Inputs: state, n, p, dimensions; the result has one more dimension, the classes. Draw ``j`` of
    row ``r`` is element ``r n + j`` of the stream.
    """

    parameters: ClassVar[int] = 2

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return (1, *super().host_inputs)

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        state, (n, p), _ = self.split(inputs)
        check_state(self, state)
        if n.ndim != 0 or not n.is_discrete:
            raise TypeMismatch(self, "an integer scalar as n", n)
        if p.ndim != len(self.static) + 1 or not p.is_float:
            raise TypeMismatch(self, f"float probabilities of {len(self.static) + 1} dims", p)
        return TensorType(self.dtype, (*self.static, p.shape[-1])), STATE_TYPE

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        out = tuple(host[i] for i in super().host_inputs)
        self.fits(TensorType("float32", types[2].shape[:-1]), shapes[2][:-1], out)
        return [(*out, shapes[2][-1]), (2,)]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        state, (n, p), dims = self.split(inputs)
        shape = (*(int(d) for d in dims), int(n))
        size = int(np.prod(shape, dtype=np.int64))
        u = philox.open_uniform(state, size, np.float64).reshape(shape)
        found = pick_class(self, p[..., None, :], u)
        counts = np.zeros((*shape[:-1], p.shape[-1]), np.int64)
        at = np.indices(shape)[:-1]
        np.add.at(counts, (*at, found), 1)
        return counts.astype(TensorType(self.dtype).numpy), next_state(state, size)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        state, n, p, *dims = inputs
        if axes[2] is None or any(a is not None for k, a in enumerate(axes) if k != 2):
            return None
        lanes = as_dim(lanes_of(inputs, axes))
        op = replace(self, static=(static_dim(lanes), *self.static))
        return op.make_node(state, n, p, lanes, *dims).outputs, [0, None]


class RandomSubset(RandomOp):
    """Distinct classes in random order, drawn with weights ``p[..., class]``.

    Inputs: state, p, dimensions; the last dimension is the number to draw. The smallest
    exponential variates ``-log(u) / p`` win (Efraimidis and Spirakis 2006), which equals drawing
    one class after the other without replacement. Each class of each row uses one element of the
    stream.
    """

    parameters: ClassVar[int] = 1

    def check_parameter(self, p: TensorType) -> None:
        super().check_parameter(p)
        if not p.is_float:
            raise TypeMismatch(self, "float weights", p)

    def fits(self, type_: TensorType, shape: Shape, out: Shape) -> None:
        super().fits(TensorType(type_.dtype, type_.shape[:-1]), shape[:-1], out[:-1])

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        state, (p,), dims = self.split(inputs)
        *lead, k = (int(d) for d in dims)
        shape = (*lead, p.shape[-1])
        if k > np.count_nonzero(p > 0, -1).min(initial=p.shape[-1]):
            raise DataError(f"{self}: {k} distinct classes wanted, fewer have a weight > 0")
        size = int(np.prod(shape, dtype=np.int64))
        u = philox.open_uniform(state, size, np.float64).reshape(shape)
        race = -np.log(u) / np.where(p > 0, p, 0).astype(np.float64)
        order = np.argsort(race, axis=-1, kind="stable")[..., :k]
        return order.astype(TensorType(self.dtype).numpy), next_state(state, size)


def dims_and_static(size: Sequence[Dim]) -> tuple[list[Variable], tuple[int | None, ...]]:
    """The dimensions as variables, and those that are known."""
    dims = [as_dim(d) for d in size]
    return dims, tuple(static_dim(d) for d in dims)


def random_uniform(state: TensorLike, size: Sequence[Dim], dtype: str) -> tuple[Variable, Variable]:
    """(uniform values of (0, 1), next state)."""
    if not TensorType(dtype).is_float:
        raise TypeMismatch("random_uniform", "a float dtype", dtype)
    dims, static = dims_and_static(size)
    return RandomUniform(dtype, static)(state, *dims)


def random_normal(
    state: TensorLike, size: Sequence[Dim], dtype: str, truncated: bool = False
) -> tuple[Variable, Variable]:
    """(standard normal values, next state); ``truncated`` to (-2, 2)."""
    if not TensorType(dtype).is_float:
        raise TypeMismatch("random_normal", "a float dtype", dtype)
    dims, static = dims_and_static(size)
    return RandomNormal(dtype, static, truncated)(state, *dims)


def random_bernoulli(
    state: TensorLike, p: TensorLike, size: Sequence[Dim], dtype: str = "int64"
) -> tuple[Variable, Variable]:
    """(1 with probability ``p``, else 0; next state)."""
    dims, static = dims_and_static(size)
    prob = pad_left(as_variable(p), len(dims))
    return RandomBernoulli(dtype, static)(state, prob, *dims)


def random_poisson(
    state: TensorLike, rate: TensorLike, size: Sequence[Dim], dtype: str = "int64"
) -> tuple[Variable, Variable]:
    """(numbers of events with the mean ``rate``, next state)."""
    dims, static = dims_and_static(size)
    mean = pad_left(as_variable(rate), len(dims))
    return RandomPoisson(dtype, static)(state, mean, *dims)


def random_integers(
    state: TensorLike, low: TensorLike, high: TensorLike, size: Sequence[Dim], dtype: str = "int64"
) -> tuple[Variable, Variable]:
    """(integers of ``[low, high)``, next state)."""
    dims, static = dims_and_static(size)
    bounds = [pad_left(cast(b, "int64"), len(dims)) for b in (low, high)]
    return RandomIntegers(dtype, static)(state, *bounds, *dims)


def random_permutation(
    state: TensorLike, n: Dim, size: Sequence[Dim] = (), dtype: str = "int64"
) -> tuple[Variable, Variable]:
    """(permutations of ``0 .. n-1``, of shape ``(*size, n)``; next state)."""
    dims, static = dims_and_static([*size, n])
    return RandomPermutation(dtype, static)(state, *dims)


def random_categorical(
    state: TensorLike, p: TensorLike, size: Sequence[Dim], dtype: str = "int64"
) -> tuple[Variable, Variable]:
    """(class indices of shape ``size``, next state); ``p`` has the classes last."""
    dims, static = dims_and_static(size)
    prob = pad_left(as_variable(p), len(dims) + 1)
    return RandomCategorical(dtype, static)(state, prob, *dims)


def random_multinomial(
    state: TensorLike, n: TensorLike, p: TensorLike, size: Sequence[Dim], dtype: str = "int64"
) -> tuple[Variable, Variable]:
    """(counts of shape ``(*size, classes)`` that sum to ``n``, next state)."""
    dims, static = dims_and_static(size)
    prob = pad_left(as_variable(p), len(dims) + 1)
    op = RandomMultinomial(dtype, static)
    return op(state, as_dim(n), prob, *dims)


def random_subset(
    state: TensorLike, p: TensorLike, k: Dim, size: Sequence[Dim] = (), dtype: str = "int64"
) -> tuple[Variable, Variable]:
    """(``k`` distinct classes of shape ``(*size, k)``, next state); weights ``p``."""
    dims, static = dims_and_static([*size, k])
    prob = pad_left(as_variable(p), len(dims))
    return RandomSubset(dtype, static)(state, prob, *dims)


OPERATORS = {"random_bernoulli": random_bernoulli, "random_uniform": random_uniform}
