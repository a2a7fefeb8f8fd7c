"""Every public function of ``T``, with how to draw a call of it.

Elementwise functions and reductions are found in their faces and drawn by their signatures; ops
with a record in the op table are drawn by it; the rest by :mod:`tests.fuzz.drawers`. A new public
function is in :data:`LEFT_OUT` with a reason, or it is drawn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.tensor import elementwise, reductions
from tests.fuzz.drawers import DRAWERS as OLDER
from tests.fuzz.drawers_conv import DRAWERS as CONVOLUTIONS
from tests.fuzz.drawers_matrix import MATRICES
from tests.fuzz.drawers_more import DRAWERS as RARER
from tests.fuzz.drawers_numpy import DRAWERS as NUMPYS
from tests.fuzz.drawers_torch import DRAWERS as TORCHS
from tests.fuzz.growth import Growth, Term, check_broadcast
from tests.fuzz.noise import Unusable
from tests.fuzz.program import Step, cases
from tests.fuzz.values import kind

Draw = Callable[[Growth], Step]
DRAWERS = {**OLDER, **NUMPYS, **RARER, **TORCHS, **CONVOLUTIONS}
#: What operands of elementwise functions are called, outside of their own module too.
OPERANDS = {"x", "y", "p", "start", "end", "weight", "at_zero"}
#: How many operands are drawn of functions that do with fewer.
BY_POSITION = {"clip": 3, "where": 3}

LEFT_OUT = {
    "grad": "drawn by the area gradients",
    "Rop": "drawn by the area gradients",
    "Lop": "drawn by the area gradients",
    "jacobian": "drawn by the area gradients",
    "hessian": "drawn by the area gradients",
    "verify_grad": "a check, not an expression",
    "empty": "its values mean nothing",
    "empty_like": "its values mean nothing",
    "as_tensor": "gives back what it is given",
    "as_tensor_variable": "gives back what it is given",
    "constant": "gives back what it is given",
    "get_scalar_constant_value": "gives a number, not a variable",
    "get_vector_length": "gives a number, not a variable",
    "inc_subtensor": "drawn by the area indexing",
    "set_subtensor": "drawn by the area indexing",
    "check_conv_gradinputs_shape": "says yes or no, of sizes",
    "get_conv_gradinputs_shape": "gives sizes",
    "get_conv_gradweights_shape": "gives sizes",
    "get_conv_output_shape": "gives sizes",
    "get_conv_shape_1axis": "gives a size",
    "bilinear_kernel_1D": "a constant",
    "bilinear_kernel_2D": "a constant",
    "cho_factor": "gives a factor and a flag; cholesky is drawn",
    "cdist": "its gradient at equal rows is a convention; tests/ops/torch_names has PyTorch's",
    "masked_scatter": "it reads as many values as the mask has; likewise",
    "dropout": "its values are random",
    "spatial_dropout": "its values are random",
}


#: Functions that are drawn by their paths, or by records of the op table.
LINALG = ("T.linalg.", "T.slinalg.", "T.nlinalg.")
#: Modules of ``T`` with public functions that are no packages.
FACES = ("extra_ops", "linalg", "slinalg", "nlinalg")


def public_functions() -> dict[str, Any]:
    """Path (``T.nnet.relu``) to function, each function once; makers of variables are left out."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for path, module in _faces():
        for name in getattr(module, "__all__", None) or sorted(vars(module)):
            f = getattr(module, name, None)
            if name.startswith("_") or not _is_function(f) or id(f) in seen:
                continue
            if getattr(f, "__module__", "") == "symdnn.tensor.constructors":
                continue
            seen.add(id(f))
            found[f"{path}.{name}"] = f
    return found


def _faces() -> Iterator[tuple[str, ModuleType]]:
    whole = ModuleType("T")
    for name, value in vars(T).items():
        if not isinstance(value, ModuleType):
            setattr(whole, name, value)
    yield "T", whole
    for name, module in sorted(vars(T).items()):
        public = isinstance(module, ModuleType) and not name.startswith("_")
        if public and hasattr(module, "__path__") | (name in FACES):
            yield f"T.{name}", module
            for inner, part in sorted(vars(module).items()):
                if isinstance(part, ModuleType) and part.__name__.startswith("symdnn.tensor."):
                    yield f"T.{name}.{inner}", part


def _is_function(f: Any) -> bool:
    return inspect.isfunction(f) or type(f).__name__ == "partial"


# -- by signature ---------------------------------------------------------------------------------


def required(f: Any) -> list[str]:
    return [
        p.name
        for p in inspect.signature(f).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


def _operand(g: Growth, t: Term) -> Any:
    """Another operand beside ``t``: a term, or a literal that does not widen it."""
    if g.chance(0.2) and t.kind == "f":
        return g.number()
    return g.partner(t)


def draw_elementwise(path: str, f: Any) -> Draw:
    """A call of an elementwise function of any number of operands."""
    count = BY_POSITION.get(path.split(".")[-1]) or len(required(f))

    def draw(g: Growth) -> Step:
        t = g.term()
        others = [_operand(g, t) for _ in range(count - 1)]
        check_broadcast([t, *(o for o in others if isinstance(o, Term))])
        args: list[Any] = [t.ref, *(o.ref if isinstance(o, Term) else o for o in others)]
        if g.chance(0.3):
            args = [args[k] for k in g.order(len(args))]
        return Step(path, tuple(args))

    return draw


def draw_reduction(path: str, f: Any) -> Draw:
    """A call of a reduction over some axes."""
    parameters = inspect.signature(f).parameters
    scan = "keepdims" not in parameters

    def draw(g: Growth) -> Step:
        t = g.term()
        kwargs: dict[str, Any] = {"axis": g.axes(t)}
        if scan:
            kwargs["axis"] = g.axis(t) if t.ndim and g.chance(0.8) else None
        elif g.chance(0.3):
            kwargs["keepdims"] = True
        if "ddof" in parameters and g.chance(0.2):
            kwargs["ddof"] = 1
        return Step(path, (t.ref,), kwargs)

    return draw


# -- by the op table ------------------------------------------------------------------------------


def draw_case(name: str) -> Draw:
    """A use of an op as the op table has it, its floats in one dtype."""
    case = cases()[name]

    def draw(g: Growth) -> Step:
        single = case.options.get("single", True) and g.chance(0.5) and not g.dtypes
        refs = []
        for i, d in enumerate(case.draws):
            a = np.asarray(d(g.rng))
            if a.dtype.name == "float64" and single:
                a = a.astype("float32")
            t = g.fresh(a.shape, a.dtype.name, a, known=0.2)
            refs.append(_typed(g, case, i, t))
        return Step(f"case.{name}", tuple(refs))

    return draw


def _typed(g: Growth, case: Any, i: int, t: Term) -> Any:
    """The static shape that the record asks for; by default sizes of 1 are static."""
    from dataclasses import replace

    wanted = case.static[i] if case.static and case.static[i] is not None else None
    if wanted is None:
        wanted = tuple(1 if n == 1 else None for n in t.shape)
    item = replace(g.items[t.ref.at], static=tuple(wanted))
    g.items[t.ref.at] = item
    v = item.type(f"v{t.ref.at}")
    g.symbols[t.ref.at] = v
    g.terms[g.terms.index(t)] = replace(t, v=v)
    return t.ref


def case_names() -> list[str]:
    """Records that can be drawn: pure ones, of neutral ops, with a value for each input."""
    lowered = ("gpudnn", "onednn", "gpublas", "gpu_", "transfer")
    return [
        c.id
        for c in cases().values()
        if not c.stateful
        and not any(o.__module__.split(".")[-1].startswith(lowered) for o in c.ops)
        and not c.id.startswith(("print", "assert"))
    ]


def functions_of_case(name: str) -> set[str]:
    """Names of functions that a record's builder mentions."""
    found: set[str] = set()
    stack: list[Any] = [cases()[name].build]
    while stack:
        f = stack.pop()
        if not inspect.isfunction(f):
            found.add(getattr(f, "__name__", ""))
            continue
        found |= {f.__name__, *f.__code__.co_names}
        stack += [c.cell_contents for c in f.__closure__ or () if callable(c.cell_contents)]
        stack += [c for c in f.__defaults__ or () if callable(c)]
        for const in f.__code__.co_consts:
            found |= set(getattr(const, "co_names", ()))
    return found


# -- all together ---------------------------------------------------------------------------------


@cache
def drawn() -> dict[str, Draw]:
    """Path to drawer, for every public function that has one."""
    simple = {*elementwise.__all__} - set(DRAWERS)
    reducing = {*reductions.__all__} - set(DRAWERS)
    found: dict[str, Draw] = {}
    for path, f in public_functions().items():
        name = path.split(".")[-1]
        if name in LEFT_OUT:
            continue
        if path in MATRICES:
            found[path] = _named(path, MATRICES[path])
        elif path.startswith(LINALG):
            continue
        elif name in DRAWERS:
            found[path] = _named(path, DRAWERS[name])
        elif name in {*simple, *BY_POSITION} or ({*required(f)} and {*required(f)} <= OPERANDS):
            found[path] = draw_elementwise(path, f)
        elif name in reducing or _reduces(f):
            found[path] = draw_reduction(path, f)
    return found


def _reduces(f: Any) -> bool:
    names = list(inspect.signature(f).parameters)
    return "axis" in names and "keepdims" in names and len(required(f)) == 1


def _named(path: str, drawer: Callable[[Growth], tuple[Any, ...]]) -> Draw:
    def draw(g: Growth) -> Step:
        args, kwargs = drawer(g)
        return Step(path, args, kwargs)

    return draw


@cache
def by_case() -> dict[str, Draw]:
    """The op table's drawers."""
    return {f"case.{n}": draw_case(n) for n in case_names()}


def missing() -> list[str]:
    """Public functions that nothing draws and nobody left out."""
    by_table = set().union(*(functions_of_case(n) for n in case_names()))
    return [
        p for p in public_functions()
        if p not in drawn() and p.split(".")[-1] not in {*LEFT_OUT, *by_table}
    ]  # fmt: skip


# -- operators of Python --------------------------------------------------------------------------


def draw_operator(g: Growth) -> Step:
    """``x + y`` and the like, with literals at either side."""
    name = g.of(["add", "sub", "mul", "truediv", "pow", "add", "mul", "sub", "neg", "lt", "ge"])
    t = g.term(kinds="fcif")
    if name == "neg":
        return Step("operator.neg", (t.ref,))
    if name == "pow":
        return Step(
            "operator.pow",
            (t.ref, g.of([2, 3, 1, 0] if t.kind in "biu" else [2, 3, 0.5, -1, 1, 0, -2])),
        )
    other = g.number() if g.chance(0.4) and kind(t.dtype) in "fc" else g.partner(t).ref
    args = (t.ref, other) if g.chance(0.7) else (other, t.ref)
    return Step(f"operator.{name}", args)


def draw_step(g: Growth) -> Step:
    """A call of any public function, an operator, or a record of the op table."""
    which = g.rng.random()
    if which < 0.25:
        return draw_operator(g)
    table = by_case() if which > 0.93 else drawn()
    return table[g.of(list(table))](g)


def grow(g: Growth, steps: int, draw: Callable[[Growth], Step] = draw_step) -> Growth:
    """Up to ``steps`` steps; what cannot be judged is left out."""
    made = tries = 0
    while made < steps and tries < 6 * steps:
        tries += 1
        try:
            g.take(draw(g))
        except Unusable:
            continue
        made += 1
    return g
