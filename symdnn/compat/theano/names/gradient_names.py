"""Names of ``theano.gradient`` that symdnn's lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.autodiff import Lop as _lop
from symdnn.autodiff import Rop as _rop
from symdnn.autodiff import grad as _grad
from symdnn.autodiff import verify_grad as _verify_grad
from symdnn.autodiff_rows import hessian as _hessian
from symdnn.autodiff_rows import jacobian as _jacobian
from symdnn.compat.theano.names.types import (
    DisconnectedType,
    NullType,
    disconnected_type,
    grad_not_implemented,
    grad_undefined,
    null_type,
)
from symdnn.compat.theano.names.user_ops import Op, ViewOp
from symdnn.errors import GraphError, NonDifferentiable
from symdnn.graph.traverse import ancestors, needed_by, toposort
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Variable, constant
from symdnn.ops.core.gradient_control import (
    DisconnectedGrad,
    GradClip,
    GradScale,
    UndefinedGrad,
    ZeroGrad,
)
from symdnn.ops.core.gradient_control import DisconnectedGrad as ConsiderConstant
from symdnn.tensor import as_tensor_variable

__all__ = [
    "ConsiderConstant", "DisconnectedGrad", "DisconnectedType", "GradClip", "GradScale",
    "InconsistencyError", "Lop", "NullType", "Raise", "Rop", "UndefinedGrad", "ViewOp", "ZeroGrad",
    "disconnected_type", "format_as", "grad", "grad_not_implemented", "grad_undefined", "hessian",
    "jacobian", "null_type", "numeric_grad", "verify_grad",
]  # fmt: skip

InconsistencyError = GraphError


def grad(
    cost: Any, wrt: Any, consider_constant: Any = None, disconnected_inputs: str = "raise",
    add_names: bool = True, known_grads: Any = None, return_disconnected: str = "zero",
    null_gradients: str = "raise",
) -> Any:  # fmt: skip
    """:func:`symdnn.grad`; with ``return_disconnected="Disconnected"`` a gradient that does not
    exist is a variable of :class:`DisconnectedType`, as in Theano."""
    if null_gradients not in ("raise", "return"):
        raise ValueError(f"null_gradients={null_gradients!r}: wanted 'raise' or 'return'")
    seeded = [v for v in (cost, *(known_grads or {})) if isinstance(v, Variable)]
    options = (consider_constant, disconnected_inputs, add_names, known_grads, return_disconnected)
    if null_gradients == "return":
        _grad(cost, [], *options)  # refuses a cost that has no gradient at all
        found = _of_each(wrt, lambda v: _or_null(lambda: _of_known(cost, v, *options)))
    else:
        found = _of_known(cost, wrt, *options)
    found = reading(found, seeded)
    if return_disconnected.lower() != "disconnected":
        return found
    if not isinstance(found, list | tuple):
        return DisconnectedType()() if found is None else found
    return type(found)(DisconnectedType()() if g is None else g for g in found)


def _or_null(find: Callable[[], Any]) -> Any:
    """A gradient, or where it is not defined a variable of :class:`NullType`."""
    try:
        return find()
    except NonDifferentiable as why:
        return NullType(str(why))()


def _of_each(wrt: Any, find: Callable[[Any], Any]) -> Any:
    if not isinstance(wrt, list | tuple):
        return find(wrt)
    return type(wrt)(map(find, wrt))


def _of_known(
    cost: Any, wrt: Any, constants: Any, when: str, add_names: bool, known: Any, instead: str
) -> Any:
    """:func:`symdnn.grad`, where the gradient of a variable in ``known`` is what ``known`` says,
    also if the cost or another of them depends on it."""
    given = {v: as_tensor_variable(g) for v, g in dict(known or {}).items()}
    above = [v for v in (cost, *given) if isinstance(v, Variable) and v not in given]
    read = {u for v in (*above, *given) for u in ancestors([v]) if u is not v}
    if not read & given.keys():
        return _grad(cost, wrt, constants, when, add_names, known, instead)

    def one(v: Any) -> Any:
        if v in given:
            return given[v]
        sweeps = [(s, None) for s in above] + [(None, {k: g}) for k, g in given.items()]
        terms = []
        for start, seed in sweeps:
            ends = [*(constants or ()), *(k for k in given if seed is None or k not in seed)]
            terms.append(_grad(start, v, ends, "ignore", add_names, seed, "none"))
        terms = [t for t in terms if t is not None]
        if terms:
            return sum(terms[1:], terms[0])
        ends = [*(constants or ()), *given]
        return _grad(None, v, ends, when, add_names, given, instead)

    return _of_each(wrt, one)


def verify_grad(
    fun: Any, pt: object, n_tests: int = 2, rng: Any = None, eps: float | None = None,
    out_type: Any = None, abs_tol: float | None = None, rel_tol: float | None = None,
    mode: object = None, cast_to_output_type: bool = False, no_debug_ref: bool = True,
) -> None:  # fmt: skip
    """:func:`symdnn.verify_grad`; ``verify_grad.E_grad`` is the error that it raises."""
    points = [np.asarray(p) for p in (pt if isinstance(pt, list | tuple) else [pt])]
    _verify_grad(
        lambda *v: fun(*v), points, n_tests, _generator(rng), eps, out_type, abs_tol, rel_tol, mode
    )


def _generator(rng: object) -> Any:
    if isinstance(rng, np.random.RandomState):
        return np.random.default_rng(rng.randint(2**31))
    return rng


def Rop(
    f: Any, wrt: object, eval_points: object, disconnected_outputs: str = "raise", **words: object
) -> Any:
    """:func:`symdnn.Rop`, except that a function of the result may have any input of ``f``, as in
    Theano.

    There the graph adds the products with zeros of the inputs that are not in ``wrt``.
    """
    several = isinstance(f, list | tuple)
    given = [as_tensor_variable(v) for v in (f if several else [f])]
    if disconnected_outputs == "raise":
        # A non-differentiable dependence on wrt has the derivative zero.
        targets = set(wrt if isinstance(wrt, list | tuple) else [wrt])
        if all(targets & needed_by([v]) for v in given):
            disconnected_outputs = "ignore"
    found = _rop(given, wrt, eval_points, disconnected_outputs)
    made = [reading(r, [v]) for r, v in zip(found, given)]
    return type(f)(made) if several else made[0]


def Lop(
    f: Any, wrt: object, eval_points: object, consider_constant: object = None,
    disconnected_inputs: str = "raise",
) -> Any:  # fmt: skip
    """:func:`symdnn.Lop`, except that a function of the result may have any input of ``f``, as in
    Theano.
    """
    found = _lop(f, wrt, eval_points, consider_constant, disconnected_inputs)
    return reading(found, [as_tensor_variable(v) for v in (f if isinstance(f, list) else [f])])


def jacobian(
    expression: Any, wrt: Any, consider_constant: Any = None, disconnected_inputs: str = "raise"
) -> Any:
    """:func:`symdnn.jacobian`, except that a function of the result may have any input of
    ``expression``.
    """
    found = _jacobian(expression, wrt, consider_constant, disconnected_inputs)
    return reading(found, [as_tensor_variable(expression)])


def hessian(
    cost: Any, wrt: Any, consider_constant: Any = None, disconnected_inputs: str = "raise"
) -> Any:
    """:func:`symdnn.hessian`, except that a function of the result may have any input of
    ``cost``.
    """
    found = _hessian(cost, wrt, consider_constant, disconnected_inputs)
    return reading(found, [as_tensor_variable(cost)])


def reading(found: Any, sources: Sequence[Variable]) -> Any:
    """Derivatives that need what ``sources`` need.

    Theano's graph of a derivative contains the expression itself, so that ``function([x, y], grad(x
    * y, x))`` uses both inputs. Here only ``y`` is left. A marked zero, which reads the source,
    takes the place of ``x``.
    """
    grads = list(found) if isinstance(found, list | tuple) else [found]
    needs = [
        (s, [v for v in needed_by([s]) if v.owner is None and type(v) is Variable]) for s in sources
    ]
    bits = {v: 1 << i for i, v in enumerate(dict.fromkeys(v for _, read in needs for v in read))}
    masks = dict[Variable, int]()
    tensors = [g for g in grads if isinstance(g, Variable)]
    for node in toposort(tensors):
        mask = 0
        for v in node.inputs:
            mask |= masks.get(v) or _mark(v, bits)
        for v in node.outputs:
            masks[v] = mask
    for i, g in enumerate(grads):
        if not isinstance(g, Variable) or not isinstance(g.type, TensorType):
            continue
        mask = masks.get(g) or _mark(g, bits)
        for source, read in needs:
            need = sum(bits[v] for v in read)
            if need & ~mask:
                grads[i] = _marked(grads[i], source)
                mask |= need
    if isinstance(found, list | tuple):
        return type(found)(grads)
    return grads[0]


def _mark(v: Variable, bits: dict[Variable, int]) -> int:
    """The bits of the inputs that ``v``, which has no owner, depends on."""
    if isinstance(v, Constant):
        return 0 if v.read_of is None else sum(bits.get(r, 0) for r in needed_by([v.read_of]))
    return bits.get(v, 0)


def _marked(v: Variable, source: Variable) -> Variable:
    """``v``, made to depend on ``source`` too."""
    if isinstance(v, Constant) and v.read_of is None:
        return Constant(v.data, v.name).reading(source)
    if v.type.dtype == "bool":
        return v | constant(False).reading(source)
    found = v + constant(0, dtype=v.type.dtype).reading(source)
    found.name = v.name
    return found


def format_as(use_list: bool, use_tuple: bool, outputs: object) -> Any:
    """``outputs`` as a list, as a tuple, or as one variable."""
    if use_list or use_tuple:
        found = outputs if isinstance(outputs, list | tuple) else [outputs]
        return list(found) if use_list else tuple(found)
    return outputs[0] if isinstance(outputs, list | tuple) else outputs


class numeric_grad:
    """The gradient of a scalar function of arrays by central differences.

    ``gf`` has the gradient for each array of ``pt`` (one array if ``pt`` is an array).
    """

    def __init__(self, f: Any, pt: Any, eps: float | None = None, out_type: Any = None) -> None:
        single = not isinstance(pt, list | tuple)
        points = [np.array(p, copy=True) for p in ([pt] if single else pt)]
        step = eps or (1e-4 if any(p.dtype == np.float32 for p in points) else 1e-7)
        found = [np.zeros_like(p, dtype=np.float64) for p in points]
        for p, g in zip(points, found):
            for index in np.ndindex(*p.shape):
                kept = p[index].copy()
                p[index] = kept + step
                above = float(np.asarray(f(*points)))
                p[index] = kept - step
                g[index] = (above - float(np.asarray(f(*points)))) / (2 * step)
                p[index] = kept
        self.gf = found[0] if single else found

    @staticmethod
    def abs_rel_err(a: Any, b: Any) -> Any:
        """Absolute and relative errors."""
        error = np.abs(np.asarray(a) - np.asarray(b))
        return error, error / np.maximum(np.abs(a) + np.abs(b), 1e-8)


def _e_grad() -> type:
    from symdnn.autodiff import GradientError

    return GradientError


verify_grad.E_grad = _e_grad()  # type: ignore[attr-defined]


class Raise(Op):
    """An op that raises ``exc(msg)`` when it runs; the first input is its output's model."""

    __props__ = ("msg", "exc")

    def __init__(self, msg: str = "", exc: type[Exception] = NotImplementedError) -> None:
        self.msg, self.exc = msg, exc

    def make_node(self, *inputs: Any, **words: object) -> Any:
        """The node on ``inputs``."""
        from symdnn.compat.theano.names.user_ops import Apply

        given = [as_tensor_variable(i) for i in inputs]
        return Apply(self, given, [given[0].type()])

    def do_constant_folding(self, node: object) -> bool:
        """Never: it is to raise when the function runs."""
        return False

    def perform(
        self, node: object, inputs: object, output_storage: object, params: object = None
    ) -> None:
        """Raise the error."""
        raise self.exc(self.msg)


def consider_constant_(x: TensorLike) -> Any:
    """Theano's op of ``consider_constant``."""
    return DisconnectedGrad()(x)


disconnected_grad_ = consider_constant_
zero_grad_ = ZeroGrad()
undefined_grad_ = UndefinedGrad()


def zero_grads(variables: Sequence[Any]) -> list[Any]:
    """Each variable with a gradient of zero."""
    return [ZeroGrad()(v) for v in variables]
