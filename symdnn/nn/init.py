"""Initial values of parameters: functions ``(shape, rng) -> array``, and their common seed.

Filters are (out, in, ...): a convolution's fan-in is in x window, its fan-out out x window. Dense
weights are (out, in), as in Torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import NormalDist
from typing import TYPE_CHECKING as _CHECKED
from typing import Any

import numpy as np

from symdnn.errors import InputError, UnknownWord
from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.graph.typing import Array

__all__ = [
    "calculate_gain", "constant", "constant_", "dirac", "dirac_", "eye", "eye_", "fans",
    "first_value", "generator", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform",
    "kaiming_normal", "kaiming_normal_", "kaiming_uniform", "kaiming_uniform_", "normal",
    "normal_", "ones", "ones_", "orthogonal", "orthogonal_", "seed", "skipped", "sparse",
    "sparse_", "torch_uniform", "trunc_normal", "trunc_normal_", "uniform", "uniform_",
    "xavier_normal", "xavier_normal_", "xavier_uniform", "xavier_uniform_", "zeros", "zeros_",
]  # fmt: skip

Initialiser = Callable[[Sequence[int], np.random.Generator], Any]

_state: dict[str, Any] = {"generator": np.random.default_rng(), "skipped": False}


def seed(number: int | None) -> None:
    """Seed the random numbers of new modules; None: from the operating system."""
    _state["generator"] = np.random.default_rng(number)


def generator() -> np.random.Generator:
    """The generator of new modules' initial values and of dropout's seeds."""
    made: np.random.Generator = _state["generator"]
    return made


@contextmanager
def skipped() -> Iterator[None]:
    """A block in which new modules have zeros as initial values, for weights that are loaded later.

    >>> from symdnn import nn
    >>> with nn.init.skipped():
    ...     net = nn.models.vgg16()
    >>> sum(p.get_value(borrow=True).size for p in net.parameters())
    138357544
    """
    before, _state["skipped"] = _state["skipped"], True
    try:
        yield
    finally:
        _state["skipped"] = before


def first_value(initial: Initialiser, shape: Sequence[int], dtype: str) -> Array:
    """The initial array of a parameter, which has no other owner."""
    if _state["skipped"]:
        return np.zeros(tuple(shape), dtype)  # no page of it is touched before it is written
    return np.array(initial(tuple(shape), generator()), dtype)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """(fan-in, fan-out) of a weight (out, in, window...)."""
    if len(shape) < 2:
        n = int(shape[0]) if shape else 1
        return n, n
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def zeros(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """All 0."""
    return np.zeros(shape)


def ones(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """All 1."""
    return np.ones(shape)


def constant(value: float) -> Initialiser:
    """All ``value``."""
    return lambda shape, rng: np.full(shape, value)


def normal(std: float = 0.01, mean: float = 0.0) -> Initialiser:
    """Normal numbers."""
    return lambda shape, rng: rng.normal(mean, std, shape)


def uniform(bound: float = 0.01) -> Initialiser:
    """Uniform numbers from ``-bound`` to ``bound``."""
    return lambda shape, rng: rng.uniform(-bound, bound, shape)


def torch_uniform(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Uniform within 1 / sqrt(fan-in), as in Torch7's and PyTorch's layers."""
    bound = 1 / math.sqrt(max(1, fans(shape)[0]))
    return rng.uniform(-bound, bound, shape)


def he_normal(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Normal of variance 2 / fan-in (He et al. 2015), for layers before a ReLU."""
    return rng.normal(0, math.sqrt(2 / max(1, fans(shape)[0])), shape)


def he_uniform(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Uniform of variance 2 / fan-in (He et al. 2015)."""
    bound = math.sqrt(6 / max(1, fans(shape)[0]))
    return rng.uniform(-bound, bound, shape)


def glorot_normal(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Normal of variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010)."""
    return rng.normal(0, math.sqrt(2 / max(1, sum(fans(shape)))), shape)


def glorot_uniform(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Uniform of variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010)."""
    bound = math.sqrt(6 / max(1, sum(fans(shape))))
    return rng.uniform(-bound, bound, shape)


def orthogonal(gain: float = 1.0) -> Initialiser:
    """Rows (or columns, the fewer) that are orthonormal, times ``gain`` (Saxe et al. 2014)."""

    def draw(shape: Sequence[int], rng: np.random.Generator) -> Array:
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))  # makes it uniform over the rotations
        return gain * (q if rows >= columns else q.T).reshape(shape)

    return draw


# -- PyTorch's names -------------------------------------------------------------------------------
#
# Those that end in _ give a shared variable a new value and return it. Without it they are
# initialisers, as those above.

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3,
    "relu": math.sqrt(2.0), "selu": 0.75,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor of a weight before ``nonlinearity``; ``param`` is the slope of ``leaky_relu``.

    >>> calculate_gain("tanh")
    1.6666666666666667
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        names = ", ".join([*_GAINS, "leaky_relu"])
        raise UnknownWord(f"calculate_gain: nonlinearity={nonlinearity!r}; wanted one of {names}")
    return _GAINS[nonlinearity]


def _set(tensor: Any, initial: Initialiser) -> Any:
    """``tensor`` (a shared variable, or an array) with these values."""
    if hasattr(tensor, "set_value"):
        old = tensor.get_value(borrow=True)
        tensor.set_value(first_value(initial, old.shape, str(old.dtype)), borrow=True)
    elif isinstance(tensor, np.ndarray):
        tensor[...] = first_value(initial, tensor.shape, str(tensor.dtype))
    else:
        raise InputError(f"nn.init: wanted a parameter (a shared variable), got {tensor!r:.60}")
    return tensor


def _fan(what: str, shape: Sequence[int], mode: str) -> int:
    if len(shape) < 2:
        raise InputError(f"{what}: wanted a parameter of 2 dimensions or more, got {tuple(shape)}")
    if mode not in ("fan_in", "fan_out"):
        raise UnknownWord(f"{what}: mode={mode!r}; wanted 'fan_in' or 'fan_out'")
    return max(1, fans(shape)[mode == "fan_out"])


def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0) -> Any:
    """Uniform numbers from ``a`` to ``b``."""
    return _set(tensor, lambda shape, rng: rng.uniform(a, b, shape))


def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    """Normal numbers."""
    return _set(tensor, normal(std, mean))


def trunc_normal(
    mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Initialiser:
    """Normal numbers, drawn again where they are not within ``a`` .. ``b``."""
    if not a < b or not std > 0:
        raise InputError(f"trunc_normal: wanted a < b and std above 0, got {a}, {b} and {std}")

    ends = NormalDist(mean, std)

    def draw(shape: Sequence[int], rng: np.random.Generator) -> Array:
        low, high = ends.cdf(a), ends.cdf(b)
        if high - low < 0.01:  # redrawing would take long
            part = rng.uniform(low, high, shape)
            inner = np.vectorize(ends.inv_cdf, otypes=[float])(np.clip(part, 1e-300, 1 - 1e-16))
            inside: Array = np.clip(inner, a, b)
            return inside
        value: Array = rng.normal(mean, std, shape)
        while (outside := (value < a) | (value > b)).any():
            value[outside] = rng.normal(mean, std, int(outside.sum()))
        return value

    return draw


def trunc_normal_(
    tensor: Any, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Any:
    """:func:`trunc_normal`."""
    return _set(tensor, trunc_normal(mean, std, a, b))


def constant_(tensor: Any, val: float) -> Any:
    """All ``val``."""
    return _set(tensor, constant(val))


def ones_(tensor: Any) -> Any:
    """All 1."""
    return _set(tensor, ones)


def zeros_(tensor: Any) -> Any:
    """All 0."""
    return _set(tensor, zeros)


def eye(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """1 on the diagonal of a matrix, else 0."""
    if len(shape) != 2:
        raise InputError(f"eye: wanted a matrix, got the shape {tuple(shape)}")
    rows, columns = shape
    return np.eye(rows, columns)


def eye_(tensor: Any) -> Any:
    """:func:`eye`."""
    return _set(tensor, eye)


def dirac(groups: int = 1) -> Initialiser:
    """Filters that let channels through unchanged, in each of ``groups``."""

    def draw(shape: Sequence[int], rng: np.random.Generator) -> Array:
        if len(shape) not in (3, 4, 5) or shape[0] % groups:
            raise InputError(
                f"dirac: wanted (out, in, window...) with out a multiple of {groups}, got "
                f"{tuple(shape)}"
            )
        value, each = np.zeros(shape), shape[0] // groups
        centre = tuple(n // 2 for n in shape[2:])
        for g in range(groups):
            for d in range(min(each, shape[1])):
                value[(g * each + d, d, *centre)] = 1
        return value

    return draw


def dirac_(tensor: Any, groups: int = 1) -> Any:
    """:func:`dirac`."""
    return _set(tensor, dirac(groups))


def xavier_uniform(gain: float = 1.0) -> Initialiser:
    """``gain`` times :func:`glorot_uniform`."""
    return lambda shape, rng: gain * np.asarray(glorot_uniform(_matrix("xavier", shape), rng))


def xavier_normal(gain: float = 1.0) -> Initialiser:
    """``gain`` times :func:`glorot_normal`."""
    return lambda shape, rng: gain * np.asarray(glorot_normal(_matrix("xavier", shape), rng))


def _matrix(what: str, shape: Sequence[int]) -> Sequence[int]:
    _fan(what, shape, "fan_in")
    return shape


def xavier_uniform_(tensor: Any, gain: float = 1.0) -> Any:
    """:func:`xavier_uniform` (Glorot and Bengio 2010)."""
    return _set(tensor, xavier_uniform(gain))


def xavier_normal_(tensor: Any, gain: float = 1.0) -> Any:
    """:func:`xavier_normal` (Glorot and Bengio 2010)."""
    return _set(tensor, xavier_normal(gain))


def kaiming_uniform(
    a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Initialiser:
    """Uniform of variance gain^2 / fan (He et al. 2015); ``a`` is the slope of ``leaky_relu``."""
    gain = calculate_gain(nonlinearity, a)

    def draw(shape: Sequence[int], rng: np.random.Generator) -> Array:
        bound = gain * math.sqrt(3.0 / _fan("kaiming_uniform", shape, mode))
        return rng.uniform(-bound, bound, shape)

    return draw


def kaiming_normal(
    a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Initialiser:
    """Normal of variance gain^2 / fan (He et al. 2015); ``a`` is the slope of ``leaky_relu``."""
    gain = calculate_gain(nonlinearity, a)

    def draw(shape: Sequence[int], rng: np.random.Generator) -> Array:
        return rng.normal(0.0, gain / math.sqrt(_fan("kaiming_normal", shape, mode)), shape)

    return draw


def kaiming_uniform_(
    tensor: Any, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Any:
    """:func:`kaiming_uniform`."""
    return _set(tensor, kaiming_uniform(a, mode, nonlinearity))


def kaiming_normal_(
    tensor: Any, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Any:
    """:func:`kaiming_normal`."""
    return _set(tensor, kaiming_normal(a, mode, nonlinearity))


def orthogonal_(tensor: Any, gain: float = 1.0) -> Any:
    """:func:`orthogonal`."""
    return _set(tensor, orthogonal(gain))


def sparse(sparsity: float, std: float = 0.01) -> Initialiser:
    """A matrix of normal numbers, a share ``sparsity`` of each column 0 (Martens 2010)."""

    def draw(shape: Sequence[int], rng: np.random.Generator) -> Array:
        if len(shape) != 2:
            raise InputError(f"sparse: wanted a matrix, got the shape {tuple(shape)}")
        value, none = rng.normal(0.0, std, shape), math.ceil(sparsity * shape[0])
        for column in range(shape[1]):
            value[rng.permutation(shape[0])[:none], column] = 0
        return value

    return draw


def sparse_(tensor: Any, sparsity: float, std: float = 0.01) -> Any:
    """:func:`sparse`."""
    return _set(tensor, sparse(sparsity, std))


if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "INIT")
