"""Gradients of expressions: grad, Lop, Rop, jacobian-vector products, verify_grad.

These are the public functions under Theano's names. The sweeps of reverse and forward mode are in
:mod:`symdnn.graph.backprop`; they run over the stable form of the expression
(:mod:`symdnn.stable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from symdnn.autodiff_flat import flat_gradient, gradient_of_discrete, is_discrete
from symdnn.config import config
from symdnn.errors import (
    DisconnectedInput,
    NdimMismatch,
    NonDifferentiable,
    OptionError,
    TypeMismatch,
)
from symdnn.graph.backprop import require_differentiable
from symdnn.graph.evaluate import evaluator
from symdnn.graph.names.torch_words import advises
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.values.structured import Structured
from symdnn.graph.variable import Variable, as_variable
from symdnn.options import as_function, as_list
from symdnn.stable.sweeps import backprop, forward_sweep

__all__ = ["GradientError", "Lop", "Rop", "grad", "gradients_taken", "subgraph_grad", "verify_grad"]


#: Makes a function of the points' values that computes expressions.
Computer = Callable[[Sequence[Variable]], Callable[[Sequence[Any]], list[Any]]]


_taken: WeakKeyDictionary[Variable, Variable] = WeakKeyDictionary()


def gradients_taken() -> Mapping[Variable, Variable]:
    """The results of :func:`grad` that still exist, and the variables with respect to which they
    were taken: by it programs of one process are made data parallel ones."""
    return _taken


class GradientError(AssertionError):
    """``verify_grad`` found a gradient that finite differences contradict."""


@advises(
    outputs="cost", inputs="wrt", grad_outputs="known_grads={output: its gradient} without a cost",
    allow_unused="disconnected_inputs='ignore' does that", **dict.fromkeys(
        ("create_graph", "retain_graph"), "gradients are expressions: symdnn.grad takes them again"
    ),
)  # fmt: skip
def grad(
    cost: Variable | Callable[..., Any] | None,
    wrt: Any = 0,
    consider_constant: Sequence[Variable] | None = None,
    disconnected_inputs: str = "raise",
    add_names: bool = True,
    known_grads: Mapping[Variable, Any] | None = None,
    return_disconnected: str = "zero",
    null_gradients: str = "raise",
    has_aux: bool = False,
    argnums: Any = None,
) -> Any:
    """Gradient of a scalar ``cost`` with respect to ``wrt`` (a variable or a sequence).

    A ``cost`` that is a function of arrays has a function as its gradient, with ``wrt`` the number
    or the name of an argument, or several of them: see :func:`symdnn.value_and_grad`, which has
    ``has_aux`` too. ``argnums`` is another name of ``wrt``, JAX's.

    Each gradient has the shape and dtype of its variable. ``known_grads`` has gradients of other
    variables (``cost`` may then be None). The variables of ``consider_constant`` count as
    constants. If the cost does not depend on a variable, ``disconnected_inputs`` (``"raise"``,
    ``"warn"`` or ``"ignore"``) says what happens, and ``return_disconnected`` what is returned:
    ``"zero"``, ``"none"``, or None as a ``"disconnected"`` marker. A gradient through integers is
    zero. The gradient with respect to an integer is that with respect to an equal real number, in
    ``floatX``. ``null_gradients`` is accepted for compatibility with Theano: an undefined gradient
    always raises.

    The result has the structure of ``wrt``; that of a sparse matrix is one with its places. Raises
    :class:`~symdnn.errors.DisconnectedInput`, and :class:`~symdnn.errors.NonDifferentiable` for a
    cost that is no real scalar.
    """
    wrt = wrt if argnums is None else argnums
    if callable(cost) and not isinstance(cost, Variable):
        return operator("grad_of_function")(cost, wrt, has_aux)
    single = isinstance(wrt, Variable | Structured)
    if not single and not hasattr(wrt, "__iter__"):
        raise TypeMismatch("grad", "variables in wrt", repr(wrt))
    given: list[Any] = [wrt] if single else list(wrt)
    targets = [v.differentiable if isinstance(v, Structured) else v for v in given]
    _check_choice("disconnected_inputs", disconnected_inputs, ("raise", "warn", "ignore"))
    return_disconnected = return_disconnected.lower()  # Theano writes "None", "Disconnected"
    _check_choice("return_disconnected", return_disconnected, ("zero", "none", "disconnected"))
    for v in targets:
        if not isinstance(v, Variable):
            raise TypeMismatch("grad", "variables in wrt", type(v).__name__)
        if not is_discrete(v):
            require_differentiable(v, "wrt:")
    seeds = _seeds(cost, known_grads)
    found = _all_gradients(cost, seeds, targets, consider_constant or ())
    how = disconnected_inputs, return_disconnected
    grads = [_connected(cost, v, g, *how) for v, g in zip(targets, found)]
    if add_names:
        _name(cost, targets, grads)
    _taken.update((g, v) for v, g in zip(targets, grads) if g is not None)
    made = [
        v.with_gradient(g) if isinstance(v, Structured) and g is not None else g
        for v, g in zip(given, grads, strict=True)
    ]
    many = tuple(made) if isinstance(wrt, tuple) else made
    return made[0] if single else many


def _seeds(cost: Variable | None, known: Mapping[Variable, Any] | None) -> dict[Variable, Variable]:
    seeds = {v: as_variable(g) for v, g in (known or {}).items()}
    if cost is None:
        if not seeds:
            raise TypeMismatch("grad", "a cost or known_grads", "neither")
        return seeds
    if not isinstance(cost, Variable):
        raise TypeMismatch("grad", "a variable or a function as the cost", repr(cost))
    if cost.type.ndim != 0:
        raise NonDifferentiable(
            f"grad: the cost must be a scalar, got {cost} of type {cost.type}. "
            "Take its sum or mean, or use jacobian"
        )
    if is_discrete(cost):
        return seeds
    require_differentiable(cost, "the cost")
    if cost.type.is_complex:
        raise NonDifferentiable(
            f"grad: the cost must be real, got {cost} of type {cost.type}. Take its real part"
        )
    seeds.setdefault(cost, as_variable(np.ones((), cost.type.numpy)))
    return seeds


def _all_gradients(
    cost: Variable | None,
    seeds: Mapping[Variable, Variable],
    targets: Sequence[Variable],
    constants: Sequence[Variable],
) -> list[Variable | None]:
    """The gradients of a sweep, with zeros for variables that it reaches only through integers."""
    # The known gradient of an integer goes no further.
    flowing = {v: g for v, g in seeds.items() if v in targets or not is_discrete(v)}
    found = list(backprop(flowing, targets, constants))
    outputs = [*seeds] if cost is None else [*seeds, cost]
    for i, v in enumerate(targets):
        if found[i] is None and v is cost:  # of an integer; a real cost has a seed
            found[i] = operator("ones_like")(v, "floatX")
        if found[i] is None and is_discrete(v):
            found[i] = gradient_of_discrete(seeds, v, constants, backprop)
        if found[i] is None:
            found[i] = flat_gradient(outputs, v, constants)
    return found


def _connected(
    cost: Variable | None, v: Variable, g: Variable | None, when: str, instead: str
) -> Variable | None:
    if g is not None:
        return g
    none = (
        "nothing that has a gradient depends"
        if cost is None
        else f"the cost {cost} does not depend"
    )
    message = (
        f"grad: {none} on {v} (of type {v.type}) in a differentiable way. "
        "Pass disconnected_inputs='ignore' if that is meant"
    )
    if when == "raise":
        raise DisconnectedInput(message)
    if when == "warn":
        import warnings

        warnings.warn(message, stacklevel=4)
    dtype = "floatX" if is_discrete(v) else None
    return operator("zeros_like")(v, dtype) if instead == "zero" else None


def _name(
    cost: Variable | None, targets: Sequence[Variable], grads: Sequence[Variable | None]
) -> None:
    for v, g in zip(targets, grads):
        if g is None or g.owner is None or g.name is not None:
            continue
        if cost is not None and cost.name and v.name:
            g.name = f"(d{cost.name}/d{v.name})"


def _check_choice(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise OptionError(f"{what}={value!r}: wanted one of {', '.join(allowed)}")


def Lop(
    f: Any,
    wrt: Any,
    eval_points: Any,
    consider_constant: Any = None,
    disconnected_inputs: str = "raise",
) -> Any:
    """``eval_points`` times the Jacobian of ``f`` with respect to ``wrt`` (reverse mode).

    ``eval_points`` have the shapes of ``f``, the results those of ``wrt`` and its structure. Raises
    :class:`~symdnn.errors.OptionError` for another number of points, and
    :class:`~symdnn.errors.DisconnectedInput`.
    """
    outputs = [as_variable(v) for v in f] if isinstance(f, list | tuple) else [as_variable(f)]
    points = _points("Lop", eval_points, outputs)
    targets = list(wrt) if isinstance(wrt, list | tuple) else [wrt]
    seeds = dict(zip(outputs, points))
    found = backprop(seeds, targets, consider_constant or ())
    grads = [
        _connected(outputs[0], v, g, disconnected_inputs, "zero") for v, g in zip(targets, found)
    ]
    return type(wrt)(grads) if isinstance(wrt, list | tuple) else grads[0]


def _points(
    what: str, given: TensorLike | Sequence[TensorLike], variables: Sequence[Variable]
) -> list[Variable]:
    """The given points as variables, one for each of ``variables``."""
    points = [as_variable(p) for p in (given if isinstance(given, list | tuple) else [given])]
    if len(points) != len(variables):
        raise OptionError(f"{what}: wanted {len(variables)} eval points, got {len(points)}")
    return points


def Rop(f: Any, wrt: Any, eval_points: Any, disconnected_outputs: str = "raise") -> Any:
    """The Jacobian of ``f`` with respect to ``wrt`` times ``eval_points`` (forward mode).

    ``eval_points`` have the shapes of ``wrt``, the results those of ``f`` and its structure. Raises
    :class:`~symdnn.errors.OptionError` for another number of points, and
    :class:`~symdnn.errors.DisconnectedInput` unless ``disconnected_outputs`` is ``"ignore"``.
    """
    outputs = [as_variable(v) for v in f] if isinstance(f, list | tuple) else [as_variable(f)]
    targets = list(wrt) if isinstance(wrt, list | tuple) else [wrt]
    tangents = {}
    for v, t in zip(targets, _points("Rop", eval_points, targets)):
        if t.type.ndim != v.type.ndim:
            raise NdimMismatch("Rop", f"an eval point of type {v.type} for {v}", t.type)
        tangents[v] = t if t.type.dtype == v.type.dtype else operator("cast")(t, v.type.dtype)
    found = forward_sweep(tangents, outputs)
    result = [_tangent(o, t, disconnected_outputs) for o, t in zip(outputs, found)]
    return type(f)(result) if isinstance(f, list | tuple) else result[0]


def _tangent(output: Variable, tangent: Variable | None, when: str) -> Variable:
    if tangent is None and when == "raise":
        raise DisconnectedInput(f"Rop: {output} does not depend on wrt in a differentiable way")
    return operator("zeros_like")(output) if tangent is None else tangent


def subgraph_grad(
    wrt: Sequence[Variable],
    end: Sequence[Variable],
    start: Mapping[Variable, Any] | None = None,
    cost: Variable | None = None,
    details: bool = False,
) -> tuple[Any, ...]:
    """Gradients with respect to ``wrt`` and ``end``, whose variables end the sweep.

    ``start`` maps variables to their known gradients; ``cost`` adds a scalar cost. What lies behind
    a variable of ``end`` counts as constant, so a variable that is reached only through one has
    zeros. With ``details`` the parts that come from ``start`` and from ``cost`` follow as lists, or
    as None.
    """
    targets = list(dict.fromkeys([*wrt, *end]))

    def swept(cost: Variable | None, start: Mapping[Variable, Any] | None) -> list[Variable]:
        found: list[Variable] = grad(cost, targets, end, "ignore", known_grads=start)
        return found

    known = swept(None, start) if start or cost is None else []
    own = [] if cost is None else swept(cost, None)
    both = [operator("add")(a, b) for a, b in zip(known, own)] or known or own
    by_variable = dict(zip(targets, both, strict=True))
    found = [by_variable[v] for v in wrt], [by_variable[v] for v in end]
    return (*found, known or None, own or None) if details else found


def verify_grad(
    fun: Callable[..., Variable],
    pt: Sequence[Any] | np.ndarray[Any, Any],
    n_tests: int = 2,
    rng: Any = None,
    eps: float | None = None,
    out_type: Any = None,
    abs_tol: float | None = None,
    rel_tol: float | None = None,
    mode: Any = None,
    cast_to_output_type: bool = False,
    no_debug_ref: bool = True,
) -> None:
    """Check the gradient of ``fun`` at ``pt`` against central differences.

    ``fun`` takes variables and returns one, which is cast to ``out_type`` if that is given.
    Float32 points are checked in float64. Discrete points are not differentiated. The values are
    computed by the ops' references, or with ``mode`` by functions compiled in that mode. ``rng`` is
    a seed or a generator, by default the flag ``unittests.rseed``; the last two arguments are
    accepted for compatibility with Theano. Raises :class:`GradientError`, which names the argument,
    the element and both values.
    """
    generator = (
        rng if hasattr(rng, "uniform") else np.random.default_rng(rng or config.unittests.rseed)
    )
    as_function("verify_grad", fun, "variables")
    given = [pt] if isinstance(pt, np.ndarray) else pt
    points = [
        _in_double(p) for p in as_list("verify_grad: pt", given, "arrays, one for each argument")
    ]
    variables = [_variable_for(p, f"arg{i}") for i, p in enumerate(points)]
    output = as_variable(fun(*variables))
    output = output if out_type is None else output.astype(out_type)
    value_at = _computer(variables, mode)([output])
    (value,) = value_at(points)
    weights = [
        generator.uniform(0.5, 1.5, value.shape) * generator.choice([-1, 1], value.shape)
        for _ in range(n_tests)
    ]
    wrt = [v for v in variables if v.type.is_differentiable]
    slopes = [
        _central_differences(value_at, points, variables.index(v), eps or 1e-6, weights)
        for v in wrt
    ]
    weight = TensorType("float64", value.shape)("weight")
    weight.tag.test_value = np.ones(value.shape)
    cost = operator("sum")(output * weight)
    grads = grad(cost, wrt, disconnected_inputs="ignore")
    gradient_at = _computer([*variables, weight], mode)(grads)
    for i, w in enumerate(weights):
        for v, analytic, numeric in zip(wrt, gradient_at([*points, w]), slopes):
            _compare(v, analytic, numeric[i], abs_tol or 1e-5, rel_tol or 1e-5)


def _variable_for(point: Array, name: str) -> Variable:
    shape = tuple(1 if n == 1 else None for n in point.shape)
    made: Variable = TensorType(point.dtype.name, shape)(name)
    made.tag.test_value = point
    return made


def _computer(variables: Sequence[Variable], mode: Any) -> Computer:
    """A maker of functions of the points: by the references, or compiled in ``mode``."""

    def by_reference(outputs: Sequence[Variable]) -> Callable[[Sequence[Any]], list[Any]]:
        run = evaluator(outputs, variables)
        return lambda points: run(dict(zip(variables, points)))

    def compiled(outputs: Sequence[Variable]) -> Callable[[Sequence[Any]], list[Any]]:
        make = operator("function")
        f = make(variables, list(outputs), mode=mode, on_unused_input="ignore")
        return lambda points: list(f(*points))

    return by_reference if mode is None else compiled


def _in_double(point: Array) -> Array:
    array = np.asarray(point)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _central_differences(
    value_at: Callable[[Sequence[Any]], list[Any]],
    points: Sequence[Array],
    which: int,
    step: float,
    weights: Sequence[Any],
) -> list[Array]:
    """Slopes of the value's sum weighted by each of ``weights``, for each element of one point."""
    numeric = [np.zeros_like(points[which]) for _ in weights]
    for index in np.ndindex(*points[which].shape):
        sides = []
        for sign in (1.0, -1.0):
            moved = [p.copy() if i == which else p for i, p in enumerate(points)]
            moved[which][index] += sign * step
            (value,) = value_at(moved)
            sides.append(value.astype(np.result_type(value, np.float64)))
        slope = (sides[0] - sides[1]) / (2 * step)
        for n, w in zip(numeric, weights):
            n[index] = (slope * w).sum()
    return numeric


def _compare(v: Variable, analytic: Array, numeric: Array, abs_tol: float, rel_tol: float) -> None:
    if analytic.shape != numeric.shape:
        raise GradientError(f"{v}: gradient of shape {analytic.shape}, value {numeric.shape}")
    error = np.abs(analytic - numeric)
    bad = ~(error <= abs_tol + rel_tol * np.maximum(np.abs(analytic), np.abs(numeric)))
    if bad.any():
        worst = np.unravel_index(int(np.argmax(np.where(bad, error, -1))), error.shape)
        raise GradientError(
            f"{v}: element {tuple(map(int, worst))} of the gradient is {analytic[worst]}, "
            f"finite differences say {numeric[worst]} ({int(bad.sum())} of {bad.size} differ)"
        )
