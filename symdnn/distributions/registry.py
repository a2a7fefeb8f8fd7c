"""Transforms from all numbers to where a constraint holds: ``biject_to``, ``transform_to``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Lacking
from symdnn.distributions.constraints import Constraint
from symdnn.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    LowerCholeskyTransform,
    SigmoidTransform,
    StickBreakingTransform,
    Transform,
)
from symdnn.distributions.vector_transforms import (
    CatTransform,
    CorrCholeskyTransform,
    IndependentTransform,
    PositiveDefiniteTransform,
    SoftmaxTransform,
    StackTransform,
    as_number,
)

__all__ = ["ConstraintRegistry", "biject_to", "identity_transform", "transform_to"]

Factory = Callable[[Any], Transform]
identity_transform = ComposeTransform([])


class ConstraintRegistry:
    """Transforms by the class of a constraint; :meth:`register` enters one.

    >>> t = biject_to(constraints.interval(0.0, 2.0))
    >>> float(t(0.0).eval())
    1.0
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.table: dict[type[Constraint], Factory] = {}

    def register(
        self, constraint: Constraint | type[Constraint], factory: Factory | None = None
    ) -> Any:
        """Enter ``factory``, a function of the constraint; without it, a decorator that does."""
        if factory is None:
            return lambda f: self.register(constraint, f)
        kind = constraint if isinstance(constraint, type) else type(constraint)
        self.table[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        for kind in type(constraint).__mro__:
            if kind in self.table:
                return self.table[kind](constraint)
        raise Lacking(f"{self.name} has no transform to {constraint}: its register enters one")


#: One to one; and any, which may have more numbers than it needs.
biject_to, transform_to = ConstraintRegistry("biject_to"), ConstraintRegistry("transform_to")


def _to_interval(rule: constraints.interval) -> Transform:
    low, high = as_number(rule.low), as_number(rule.high)
    if low == -np.inf and high == np.inf:
        return ComposeTransform([])
    if high == np.inf:
        rise = ExpTransform()
        return rise if low == 0 else ComposeTransform([rise, AffineTransform(rule.low, 1.0)])
    if low == -np.inf:
        return ComposeTransform([ExpTransform(), AffineTransform(rule.high, -1.0)])
    if (low, high) == (0, 1):
        return SigmoidTransform()
    width = T.as_tensor_variable(rule.high) - rule.low
    return ComposeTransform([SigmoidTransform(), AffineTransform(rule.low, width)])


def _refused(rule: constraints.integer_interval) -> Transform:
    raise Lacking(f"there is no transform of all numbers to {rule}")


def _enter(registry: ConstraintRegistry) -> None:
    table: dict[type[Constraint], Factory] = {
        type(constraints.real): lambda c: ComposeTransform([]),
        constraints.interval: _to_interval,
        constraints.integer_interval: _refused,
        constraints.independent: lambda c: IndependentTransform(
            registry(c.base), c.reinterpreted_batch_ndims
        ),
        type(constraints.lower_cholesky): lambda c: LowerCholeskyTransform(),
        type(constraints.positive_definite): lambda c: PositiveDefiniteTransform(),
        type(constraints.corr_cholesky): lambda c: CorrCholeskyTransform(),
        constraints.cat: lambda c: CatTransform([registry(p) for p in c.cseq], c.dim, c.lengths),
        constraints.stack: lambda c: StackTransform([registry(p) for p in c.cseq], c.dim),
    }
    registry.table.update(table)


for _registry in (biject_to, transform_to):
    _enter(_registry)
biject_to.register(constraints.simplex, lambda c: StickBreakingTransform())
transform_to.register(constraints.simplex, lambda c: SoftmaxTransform())
