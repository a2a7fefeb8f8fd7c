"""Random draws by rejection: gamma variates and von Mises' angles, with gradients.

Element ``e`` of a stream has its own sequence of proposals: proposal ``t`` reads the four words of
the block with the counter ``e``, the tag of the op and the number ``t``
(:func:`~symdnn.ops.random.rng_philox.block_words`). So elements are drawn in parallel, and equal on
all devices but for proposals at the very edge of being accepted, which rounding decides. Draws are
computed in float64 for all dtypes. Parameters out of range give NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.op import Grads, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.incomplete import gamma_draw_slope, von_mises_draw_slope
from symdnn.ops.elemwise import pad_left, unbroadcast
from symdnn.ops.random import rng_philox as philox
from symdnn.ops.random.random import RandomOp, dims_and_static

_MOST_PROPOSALS = 1000


class ByRejection(RandomOp):
    """Base of draws with one parameter, by proposals that are accepted or not."""

    abstract: ClassVar[bool] = True
    parameters: ClassVar[int] = 1
    tag: ClassVar[int]

    def accepted(self, parameter: Array, words: Sequence[Array]) -> tuple[Array, Array]:
        """(proposals made of the four words, whether they are accepted)."""
        raise NotImplementedError

    def drawn(self, state: Any, parameter: Array) -> Array:
        """A value for each element of ``parameter`` (NaN where that is out of range)."""
        found = np.full(parameter.shape, np.nan)
        rest = np.flatnonzero(self.sound(parameter))
        with np.errstate(all="ignore"):
            for proposal in range(1, _MOST_PROPOSALS):
                if not len(rest):
                    break
                words = philox.block_words(state, rest, self.tag, proposal)
                values, good = self.accepted(parameter[rest], words)
                found[rest[good]] = values[good]
                rest = rest[~good]
        return found

    def sound(self, parameter: Array) -> Array:
        """Where the parameter is in its range."""
        raise NotImplementedError

    def slope(self, parameter: Variable, values: Variable) -> Variable:
        """The derivative of the values with respect to the parameter."""
        raise NotImplementedError

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        grads: list[Variable | None] = [None] * len(inputs)
        p, dy = inputs[1], cotangents[0]
        if p.type.is_differentiable and dy is not None:
            grads[1] = unbroadcast(cast(dy * self.slope(p, outputs[0]), p.type.dtype), p)
        return grads

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        t, y = tangents[1], outputs[0]
        if t is None:
            return [None, None]
        return [cast(t * self.slope(inputs[1], y), y.type.dtype), None]


class RandomLogGamma(ByRejection):
    """The logarithms of gamma variates of a shape and scale 1, with its gradient.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; for shapes below 1
    their last formula, in which the power of a uniform is a product with its logarithm: so the
    logarithm does not underflow. The gradient is implicit (Figurnov, Mohamed and Mnih 2018).
    """

    tag: ClassVar[int] = 0x6A

    def sound(self, parameter: Array) -> Array:
        return (parameter > 0) & (parameter < np.inf)

    def accepted(self, parameter: Array, words: Sequence[Array]) -> tuple[Array, Array]:
        from scipy.special import ndtri

        d = np.where(parameter < 1, parameter + 1, parameter) - 1 / 3
        z = ndtri(philox.open_of_two(*words[:2]))
        log_v = 3 * np.log1p(z / np.sqrt(9 * d))
        edge = 0.5 * z * z + d * (log_v - np.expm1(log_v))
        return np.log(d) + log_v, np.log(philox.open_of_two(*words[2:])) < edge

    def draw(self, state: Any, size: int, *parameters: Array) -> Array:
        shape = parameters[0].astype(np.float64)
        found = self.drawn(state, shape)
        small = np.flatnonzero((shape > 0) & (shape < 1))
        words = philox.block_words(state, small, self.tag, 0)
        found[small] += np.log(philox.open_of_two(*words[:2])) / shape[small]
        found[shape == 0] = -np.inf
        return found

    def slope(self, parameter: Variable, values: Variable) -> Variable:
        return gamma_draw_slope(parameter, values)


class RandomVonMises(ByRejection):
    """Angles of von Mises' distribution of mean 0 and a concentration, with its gradient.

    Best and Fisher, "Efficient simulation of the von Mises distribution", 1979. The gradient is
    implicit (Figurnov, Mohamed and Mnih 2018).
    """

    tag: ClassVar[int] = 0x76

    def sound(self, parameter: Array) -> Array:
        return (parameter >= 0) & (parameter < np.inf)

    def accepted(self, parameter: Array, words: Sequence[Array]) -> tuple[Array, Array]:
        k = np.maximum(parameter, 1e-9)
        tau = 1 + np.sqrt(1 + 4 * k * k)
        rho = (tau - np.sqrt(2 * tau)) / (2 * k)
        small = k < 1e-4  # where the difference above cancels
        # r - 1, and 1 - f, of which the angle's half has the square of the sine.
        over = np.where(small, 1 / k + k - 1, (1 - rho) ** 2 / (2 * rho))
        sine = np.sin(0.5 * np.pi * philox.open_of_two(*words[:2]))
        rest = 2 * sine * sine
        part = over * rest / (over + 2 - rest)
        c = k * (over + part)
        u = (words[2].astype(np.float64) + 0.5) * 2.0**-32
        good = (c * (2 - c) > u) | (np.log(c / u) + 1 - c >= 0)
        angle = 2 * np.arcsin(np.sqrt(np.minimum(part / 2, 1)))
        return np.where(words[3] >> np.uint64(31) > 0, angle, -angle), good

    def draw(self, state: Any, size: int, *parameters: Array) -> Array:
        return self.drawn(state, parameters[0].astype(np.float64))

    def slope(self, parameter: Variable, values: Variable) -> Variable:
        return von_mises_draw_slope(parameter, values)


def _of_one(
    op: type[ByRejection], state: TensorLike, parameter: TensorLike, size: Sequence[Dim], dtype: str
) -> tuple[Variable, Variable]:
    if not TensorType(dtype).is_float:
        raise TypeMismatch(op.__name__, "a float dtype", dtype)
    dims, static = dims_and_static(size)
    return op(dtype, static)(state, pad_left(as_variable(parameter), len(dims)), *dims)


def random_log_gamma(
    state: TensorLike, shape: TensorLike, size: Sequence[Dim], dtype: str
) -> tuple[Variable, Variable]:
    """(logarithms of gamma variates of this shape and scale 1, next state)."""
    return _of_one(RandomLogGamma, state, shape, size, dtype)


def random_von_mises(
    state: TensorLike, concentration: TensorLike, size: Sequence[Dim], dtype: str
) -> tuple[Variable, Variable]:
    """(angles of (-pi, pi) around 0, next state)."""
    return _of_one(RandomVonMises, state, concentration, size, dtype)


OPERATORS: dict[str, Any] = {}
