"""The base of distributions: parameters, shapes, checks; PyTorch's names and meanings.

Parameters are variables, arrays or numbers; if all are Python numbers they become ``floatX``. They
broadcast to ``batch_shape``, whose sizes are ints where they are known, else integer scalar
variables. A draw has the shape ``(*sample_shape, *batch_shape, *event_shape)``. A log probability
has no event dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.constraints import Constraint
from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch, SymdnnError, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import graph_inputs
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.dtype import float_of
from symdnn.ops.core.gradient_control import assert_, disconnected_grad
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream
from symdnn.ops.random.sizes import size_dims

__all__ = ["Distribution", "seed", "sum_rightmost"]


class _Streams:
    """The stream of draws that name none."""

    default: RandomStream | None = None


def seed(number: int) -> None:
    """Let draws without ``rng=`` come from a stream of this seed, from the start.

    Without a seed they come from one of the operating system.
    """
    _Streams.default = RandomStream(number)


def stream_of(rng: RandomStream | None) -> RandomStream:
    """``rng``, or the stream of draws that name none."""
    if rng is not None:
        if not isinstance(rng, RandomStream):
            raise TypeMismatch("sample", "a RandomStream as rng", f"{rng!r:.80}")
        return rng
    if _Streams.default is None:
        _Streams.default = RandomStream()
    return _Streams.default


def sum_rightmost(v: Variable, ndims: int) -> Variable:
    """The sum over the last ``ndims`` dimensions."""
    return v.sum(axis=list(range(v.type.ndim - ndims, v.type.ndim))) if ndims else v


class Distribution:
    """Base of distributions.

    With ``validate_args=None``, constant parameters and values are checked immediately. True also
    checks, by assertions in the graph, those that are known in a call
    (:class:`~symdnn.errors.AssertionFailed`). False checks nothing.
    """

    #: Parameters and their constraints.
    arg_constraints: ClassVar[Mapping[str, Constraint]] = {}
    #: Whether :meth:`rsample` has gradients.
    has_rsample: ClassVar[bool] = False
    #: Whether :meth:`enumerate_support` lists all values.
    has_enumerate_support: ClassVar[bool] = False
    #: How many dimensions an event has.
    event_dim: int = 0

    def __init__(self, validate_args: bool | None = None, **parameters: TensorLike) -> None:
        self.validate_args = validate_args
        given = alike([as_variable(p) for p in parameters.values()])
        wanted = float_of(*(v.type.dtype for v in given))
        rows = []
        for name, v in zip(parameters, given, strict=True):
            floating = v if v.type.dtype == wanted else T.cast(v, wanted)
            rule = self.arg_constraints.get(name, constraints.real)
            if v.type.ndim < rule.event_dim:
                wanted_ndim = f"{rule.event_dim} dimension(s) at least"
                raise NdimMismatch(f"{self}: {name}", wanted_ndim, v.type)
            checked = self._checked(floating, rule, name)
            setattr(self, name, checked)
            event = rule.event_dim
            rows.append(checked[(Ellipsis, *[0] * event)] if event else checked)
        self.dtype = wanted
        try:
            self._batch_dims: list[Dim] = size_dims(None, None, rows)
        except ShapeMismatch as error:
            sizes = [f"{n} of {v.type}" for n, v in zip(parameters, given, strict=True)]
            raise ShapeMismatch(self, error.wanted, ", ".join(sizes)) from None

    def _checked(self, v: Variable, rule: Constraint, name: str) -> Variable:
        """``v``, refused or asserted where it is out of range."""
        if self.validate_args is False or not (isinstance(v, Constant) or self.validate_args):
            return v
        fits = rule.check(v)
        # A constant may have bounds that are none.
        if isinstance(v, Constant) and all(isinstance(u, Constant) for u in graph_inputs([fits])):
            real = rule is constraints.real  # most often: checked without a graph
            if not (~np.isnan(v.data) if real else evaluate([fits], {})[0]).all():
                raise OptionError(f"{self}: wanted {rule} as {name}, got {v.data}")
            return v
        if not self.validate_args:
            return v
        return assert_(v, T.all(fits), message=f"{self}: wanted {rule} as {name}")

    def _value(self, value: TensorLike) -> Variable:
        """A value whose probability is computed."""
        v = as_variable(value)
        if isinstance(v, Constant) and v.number is not None:
            v = T.constant(v.data.astype(self.dtype))
        elif not v.type.is_float:
            v = T.cast(v, self.dtype)
        if self.event_dim:
            v = of_sizes(v, self.event_shape, f"{self}: the value")
        return self._checked(v, self.support, "the value")

    def __str__(self) -> str:
        return type(self).__name__

    # -- shapes -----------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> tuple[Dim, ...]:
        """The shape of distinct distributions."""
        return tuple(self._batch_dims)

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        """The shape of a single draw."""
        return ()

    def _extended(self, sample_shape: Any) -> list[Dim]:
        return [*size_dims(sample_shape), *self.batch_shape, *self.event_shape]

    def _spread(self, v: Variable) -> Variable:
        """``v`` in the batch's shape, for values that do not depend on all parameters."""
        dims = self.batch_shape
        # Only a static 1 broadcasts, so another size is that of the batch.
        whole = v.type.ndim == len(dims) and all(
            a != 1 or b == 1 for a, b in zip(v.type.shape, dims)
        )
        return v if whole else T.alloc(v, *dims)

    def expand(self, batch_shape: Any) -> Self:
        """The same distributions in a larger batch: each parameter repeated to ``batch_shape``.

        >>> from symdnn.distributions.real_line import Normal
        >>> Normal(0.0, 1.0).expand((3, 2)).batch_shape
        (3, 2)
        """
        dims = size_dims(batch_shape)
        old = self._batch_dims
        fits = len(dims) >= len(old) and all(
            a == 1 or a == b or not (isinstance(a, int) and isinstance(b, int))
            for a, b in zip(reversed(old), reversed(dims))
        )
        if not fits:
            raise OptionError(f"{self}: a batch of {tuple(old)} does not expand to {tuple(dims)}")
        new = copy(self)
        # Cached values belong to the old parameters.
        for name, found in vars(self).items():
            if isinstance(getattr(type(self), name, None), cached_property):
                vars(new).pop(name)
            rule = self.arg_constraints.get(name)
            if rule is not None and isinstance(found, Variable):
                event = dims_after(found, rule.event_dim) if rule.event_dim else ()
                vars(new)[name] = T.alloc(found, *dims, *event)
        new._batch_dims = dims
        return new

    # -- what a distribution has ------------------------------------------------------------------

    @property
    def support(self) -> Constraint:
        """The set of possible draws."""
        raise NotImplementedError

    @property
    def mean(self) -> Variable:
        """The mean, of the shape of the batch and the event."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Variable:
        """The place of the largest density."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Variable:
        """The variance of each element."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Variable:
        """The standard deviation of each element."""
        return T.sqrt(self.variance)

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        """Draws through which no gradient flows; ``rng`` is the stream (None: :func:`seed`)."""
        return disconnected_grad(self.rsample(sample_shape, rng))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        """Draws with gradients to the parameters (reparameterised)."""
        raise self._lacks("rsample")

    def log_prob(self, value: TensorLike) -> Variable:
        """The logarithm of the density, or of the probability, at ``value``."""
        raise NotImplementedError

    def cdf(self, value: TensorLike) -> Variable:
        """The probability of draws of at most ``value``."""
        raise self._lacks("cdf")

    def icdf(self, value: TensorLike) -> Variable:
        """The value whose :meth:`cdf` is ``value``."""
        raise self._lacks("icdf")

    def _probability(self, value: TensorLike) -> Variable:
        """An operand of :meth:`icdf`: NaN where it is no probability."""
        p = T.cast(value, self.dtype)
        return T.switch(constraints.unit_interval.check(p), p, like(np.nan, p))

    def entropy(self) -> Variable:
        """The mean of ``-log_prob``, in nats."""
        raise self._lacks("entropy")

    def enumerate_support(self, expand: bool = True) -> Variable:
        """All values, in a new first dimension; the batch has its shape, or 1s (``expand=False``).

        There is one for each element of the support; independent elements are listed one by one.
        """
        raise self._lacks("enumerate_support")

    def _enumerated(self, values: Variable, expand: bool) -> Variable:
        """``values``, one to a row, beside the batch."""
        lead, event = self._batch_dims, list(range(1, values.type.ndim))
        wide = values.dimshuffle([0, *["x"] * len(lead), *event])
        shape = [values.shape[0], *lead, *(values.shape[i] for i in event)]
        return T.alloc(wide, *shape) if expand and lead else wide

    def perplexity(self) -> Variable:
        """``exp`` of the entropy."""
        return T.exp(self.entropy())

    def _lacks(self, what: str) -> Exception:
        return Lacking(f"{self} has no {what}: no formula for it is here")


class Lacking(SymdnnError, NotImplementedError):
    """A distribution does not have the requested quantity."""


def counted(count: Variable, log: Variable) -> Variable:
    """``count * log``; 0 where an infinite logarithm is counted 0 times.

    A count of 0 has the derivative ``log``, as any other one.
    """
    never = T.eq(count, 0) & T.isinf(log)
    return count * T.switch(never, like(0, log), log)


def inside(rule: Constraint, value: Variable, found: Variable) -> Variable:
    """``found`` where the value is in its range and finite, else -inf: the log density there."""
    within = rule.check(value) & T.lt(value, np.inf)
    return T.switch(within, found, T.switch(T.isnan(value), value, -np.inf))


def dims_after(parameter: Variable, count: int) -> Sequence[Any]:
    """The last ``count`` sizes of a parameter, ints where they are known."""
    shape = parameter.type.shape[parameter.type.ndim - count :]
    first = parameter.type.ndim - count
    return [parameter.shape[first + i] if n is None else n for i, n in enumerate(shape)]
