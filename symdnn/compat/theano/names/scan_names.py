"""Names of ``theano.scan_module`` and its parts, and of ``theano.ifelse``."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

from symdnn.compat.theano.names.compile_names import rebuild_collect_shared
from symdnn.compat.theano.names.gradient_names import reading
from symdnn.graph.same import equal_computations
from symdnn.graph.traverse import clone, graph_inputs
from symdnn.graph.typing import TensorLike
from symdnn.graph.values.structured import Structured
from symdnn.graph.variable import Shared, Variable
from symdnn.ops.control import scan_builder
from symdnn.ops.control.control import IfElse, ifelse
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_builder import OrderedUpdates, until
from symdnn.ops.control.scan_checkpoints import scan_checkpoints as made
from symdnn.tensor import as_tensor_variable, get_scalar_constant_value

__all__ = [
    "IfElse", "OrderedUpdates", "Scan", "clone", "equal_computations", "expand_empty", "foldl",
    "foldr", "forced_replace", "get_scalar_constant_value", "get_updates_and_outputs", "ifelse",
    "infer_shape", "isNaN_or_Inf_or_None", "map", "map_variables", "rebuild_collect_shared",
    "reconstruct_graph", "reduce", "safe_new", "scan", "scan_checkpoints", "traverse", "until",
]  # fmt: skip


def scan(
    fn: Any, sequences: Any = None, outputs_info: Any = None, non_sequences: Any = None,
    n_steps: Any = None, truncate_gradient: int = -1, go_backwards: bool = False, mode: Any = None,
    name: str | None = None, profile: bool = False, allow_gc: Any = None, strict: bool = False,
    return_list: bool = False, **old: object,
) -> Any:  # fmt: skip
    """``theano.scan``: :func:`symdnn.scan`; ``outputs`` and ``info`` are old names."""
    if "outputs" in old:
        outputs_info = old.pop("outputs")
    if "options" in old:
        old.pop("options")
    if old:
        raise TypeError(f"scan() got unexpected arguments {', '.join(old)}")
    fn, non_sequences = _read_outside(fn, non_sequences)
    outputs, updates = scan_builder.scan(
        fn, sequences, outputs_info, non_sequences, n_steps, truncate_gradient, go_backwards, mode,
        name, bool(profile), allow_gc, strict, return_list,
    )  # fmt: skip
    # All arguments of a loop count as used, as in Theano, even if no step reads them.
    given = [v for v in (*_listed(sequences), *_listed(non_sequences)) if isinstance(v, Variable)]
    return (reading(outputs, given) if given else outputs), updates


def _read_outside(fn: Any, non_sequences: Any) -> tuple[Any, Any]:
    """A step and its non-sequences, without the lists and sparse matrices among these.

    The step reads them as variables that are outside of the loop.
    """
    given = list(non_sequences) if isinstance(non_sequences, list | tuple) else [non_sequences]
    if not any(isinstance(v, Structured) for v in given):
        return fn, non_sequences
    plain = [v for v in given if not isinstance(v, Structured)]

    def step(*args: Any) -> Any:
        first = len(args) - len(plain)
        rest = iter(args[first:])
        return fn(*args[:first], *(v if isinstance(v, Structured) else next(rest) for v in given))

    return step, plain


def _listed(given: object) -> list[Any]:
    """What ``sequences`` or ``non_sequences`` hold: variables, and dicts with an ``input``."""
    items = list(given) if isinstance(given, list | tuple) else [given]
    return [i.get("input") if isinstance(i, dict) else i for i in items]


def _of_loop(made: Any) -> Any:
    """The builder's ``map``, ``reduce``, ``foldl`` and ``foldr``, with their arguments marked as
    used.
    """

    @functools.wraps(made)
    def loop(fn: Any, sequences: Any, *args: Any, **words: Any) -> Any:
        place, places = 0 if made is scan_builder.map else 1, dict(enumerate(args))
        others = words.get("non_sequences", places.get(place))
        fn, others = _read_outside(fn, others)
        if place in places:
            places[place] = others
        else:
            words["non_sequences"] = others
        outputs, updates = made(fn, sequences, *places.values(), **words)
        given = [v for v in (*_listed(sequences), *_listed(others)) if isinstance(v, Variable)]
        return (reading(outputs, given) if given else outputs), updates

    return loop


map, reduce = _of_loop(scan_builder.map), _of_loop(scan_builder.reduce)
foldl, foldr = _of_loop(scan_builder.foldl), _of_loop(scan_builder.foldr)


def scan_checkpoints(
    fn: Any, sequences: Any = (), outputs_info: Any = None, non_sequences: Any = (),
    name: str = "checkpointscan_fn", n_steps: Any = None, save_every_N: int = 10,
    padding: bool = True,
) -> Any:  # fmt: skip
    """Theano's scan that stores every ``save_every_N``-th state for the gradient."""
    return made(
        fn, sequences, outputs_info, non_sequences, name, n_steps, save_every_N, padding
    )  # fmt: skip


def safe_new(x: TensorLike, tag: str = "", dtype: Any = None) -> Variable:
    """A new variable of the type of ``x``, with ``tag`` after its name."""
    v = as_tensor_variable(x)
    new = (v if dtype is None else v.astype(dtype)).type()
    new.name = (v.name or "") + tag if v.name else None
    return new  # type: ignore[no-any-return]


def traverse(
    out: object, x: TensorLike, x_copy: object, d: dict[Any, Any], visited: object = None
) -> Any:
    """Theano's inner function for copies between devices; it does nothing here."""
    return d


def expand_empty(tensor_var: Variable, size: Any) -> Variable:
    """``tensor_var`` with ``size`` rows of zeros after it."""
    from symdnn import tensor as T

    if isinstance(size, int) and size == 0:
        return tensor_var
    rest = [tensor_var.shape[i] for i in range(1, tensor_var.ndim)]
    return T.join(0, tensor_var, T.zeros((size, *rest), tensor_var.dtype))


def forced_replace(out: Variable, x: Variable, y: Variable) -> Variable:
    """``out`` with ``y`` in the place of ``x``."""
    found: list[Variable] = clone([out], {x: y}, strict=False)
    return found[0]


def reconstruct_graph(inputs: Any, outputs: Any, tag: str | None = None) -> Any:
    """A copy ``(inputs, outputs)`` of a graph; ``tag`` goes after the names of the inputs."""
    new = [safe_new(v, tag or "") for v in inputs]
    return new, clone(list(outputs), dict(zip(inputs, new)), strict=False)


def get_updates_and_outputs(ls: object) -> Any:
    """The return value of a step as ``(condition, outputs, updates)``."""
    items = list(ls) if isinstance(ls, list | tuple) else [ls]
    condition, updates = None, OrderedDict[Any, Any]()
    outputs: list[Any] = []
    for item in items:
        if isinstance(item, until):
            condition = item
        elif isinstance(item, dict):
            updates.update(item)
        elif isinstance(item, list | tuple):
            pairs = all(isinstance(p, tuple) and isinstance(p[0], Shared) for p in item)
            if item and pairs:
                updates.update(item)
            else:
                outputs += item
        else:
            outputs.append(item)
    return condition, outputs, updates


def isNaN_or_Inf_or_None(x: Any) -> bool:
    """Whether ``x`` is None, or not finite."""
    import numpy as np

    return x is None or (not isinstance(x, Variable | str) and not bool(np.all(np.isfinite(x))))


def infer_shape(outs: Any, inputs: object, input_shapes: object) -> list[Any]:
    """The shapes of ``outs`` as variables."""
    return [tuple(o.shape[i] for i in range(o.ndim)) for o in outs]


def map_variables(replacer: Any, graphs: Any, additional_inputs: object = ()) -> list[Any]:
    """``graphs`` with each variable ``v`` replaced by ``replacer(v)``, inputs first."""
    from symdnn.graph.traverse import ancestors

    done: dict[Variable, Variable] = {}
    for v in ancestors(graphs):
        (seen,) = clone([v], done, strict=False)
        new = replacer(seen)
        if new is not seen:
            done[v] = as_tensor_variable(new)
    return clone(list(graphs), done, strict=False)  # type: ignore[no-any-return]


inputs = graph_inputs
