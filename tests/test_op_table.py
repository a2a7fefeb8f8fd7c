"""Every op of the table: values, types, shapes, gradients, printing, pickling, completeness."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import pickle
import pkgutil
import zlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.libraries
import symdnn.ops
import symdnn.tensor as T
from symdnn.autodiff import Lop, Rop, grad, verify_grad
from symdnn.compile.function import Function, function
from symdnn.compile.modes.debug import DebugMode
from symdnn.compile.program.mode import Mode
from symdnn.compile.program.program import Loop
from symdnn.graph.evaluate import evaluate, evaluator
from symdnn.graph.op import Op
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.lowered import Lowered
from tests import op_table, seeded
from tests.op_table import of_each
from tests.op_table.record import OpCase

CASES = op_table.load()
by_id = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def on_this_device(case: OpCase) -> None:
    """Skip what only the processor has: oneDNN's own ops, and the masks that NumPy draws."""
    device = os.environ["SYMDNN_TESTS_DEVICE"]
    if device in ("cuda", "emulated") and case.id.startswith(("onednn", "gpudnn_dropout")):
        pytest.skip("it is about the processor")


def case_rng(case: OpCase, salt: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(case.id.encode()), salt, *seeded.seeds()])


def draw(case: OpCase, salt: int = 0) -> list[np.ndarray]:
    rng = case_rng(case, salt)
    return [d(rng) for d in case.draws]


def variables(case: OpCase, arrays: list[np.ndarray]) -> list[Variable]:
    made = []
    for i, a in enumerate(arrays):
        static = case.static[i] if case.static else None
        shape = static if static is not None else tuple(1 if n == 1 else None for n in a.shape)
        made.append(TensorType(a.dtype.name, shape)(f"v{i}"))
    return made


def outputs(case: OpCase, vs: list[Variable]) -> list[Variable]:
    out = case.build(*vs)
    return list(out) if isinstance(out, list | tuple) else [out]


@of_each(CASES)
def test_reference_agrees_with_numpy_and_with_the_types(case: OpCase) -> None:
    arrays = draw(case)
    vs = variables(case, arrays)
    outs = outputs(case, vs)
    values = evaluate(outs, dict(zip(vs, arrays)))  # also checks dtype and static shape
    if case.expected is None:
        return
    expected = case.expected(*arrays)
    expected = expected if isinstance(expected, list | tuple) else [expected]
    for got, want in zip(values, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.rtol)
        assert np.shape(got) == np.shape(want)


@of_each(CASES)
def test_shape_rule_agrees_with_values(case: OpCase) -> None:
    arrays = draw(case, 1)
    vs = variables(case, arrays)
    order = toposort(outputs(case, vs))
    everything = [v for node in order for v in (*node.inputs, *node.outputs)]
    values = dict(zip(everything, evaluate(everything, dict(zip(vs, arrays)))))
    for node in order:
        types = [v.type for v in node.inputs]
        shapes = [np.shape(values[v]) for v in node.inputs]
        host = {i: int(values[node.inputs[i]]) for i in node.op.host_inputs}
        found = node.op.shapes(types, shapes, host)
        if found is not None:
            real = [np.shape(values[v]) for v in node.outputs if isinstance(v.type, TensorType)]
            assert [tuple(s) for s in found][: len(real)] == real, node


@of_each(CASES)
def test_names_of_sizes_are_carried_to_equal_sizes(case: OpCase) -> None:
    """Each unknown size is named by its number, so that equal ones share a name."""
    arrays = draw(case, 1)
    vs = [
        v.type.with_names([symdnn.Dim(f"n{n}") for n in a.shape])(v.name)
        for v, a in zip(variables(case, arrays), arrays)
    ]
    outs = outputs(case, vs)
    costs = [o for o in outs if case.grad and getattr(o.type, "is_differentiable", False)]
    real = [v for v in vs if costs and v.type.is_differentiable and not costs[0].type.is_complex]
    grads = grad(costs[0].sum(), real, disconnected_inputs="ignore") if real else []
    order = toposort([*outs, *grads])
    everything = [v for node in order for v in (*node.inputs, *node.outputs)]
    values = dict(zip(everything, evaluate(everything, dict(zip(vs, arrays)))))
    for node in order:
        for v in node.outputs:
            for name, size in zip(v.type.names or (), np.shape(values[v])):
                assert name is None or name.names == (f"n{size}",), node
        if isinstance(node.op, Elemwise):
            (y,), given = node.outputs, [v.type.names or (None,) * v.ndim for v in node.inputs]
            wanted = [d is None and any(names) for d, *names in zip(y.type.shape, *given)]
            assert [*map(bool, y.type.names or (None,) * y.ndim)] == wanted, node


@of_each(CASES)
def test_ops_print_compare_and_pickle(case: OpCase) -> None:
    arrays = draw(case)
    for node in toposort(outputs(case, variables(case, arrays))):
        assert str(node.op)
        again = pickle.loads(pickle.dumps(node.op))
        assert again == node.op
        assert hash(again) == hash(node.op)
        assert copy.deepcopy(node.op) == node.op


def has_a_gradient(case: OpCase) -> bool:
    """Whether an input and the first output that has a dtype are floating or complex."""
    vs = variables(case, draw(case))
    out = outputs(case, vs)[0]
    return case.grad and all(
        any(getattr(v.type, "is_differentiable", False) for v in group) for group in (vs, [out])
    )


WITH_GRADIENT = [c for c in CASES if has_a_gradient(c)]
GRAD = pytest.mark.parametrize("case", [c for c in CASES if c.grad], ids=lambda c: c.id)


def check_slopes(
    case: OpCase, cost: Variable, vs: list[Variable], arrays: list[np.ndarray], tolerance: float
) -> None:
    """Gradients of a number, along random directions, against central differences."""
    wrt = [v for v in vs if v.type.is_differentiable]
    cost_at = evaluator([cost], vs)
    slopes = evaluate(grad(cost, wrt, disconnected_inputs="ignore"), dict(zip(vs, arrays)))
    rng, step = case_rng(case, 5), 1e-6
    for _ in range(3):
        turns = [away_from_zero(rng, s.shape) for s in slopes]
        sides = []
        for moved in (step, -step):
            values = dict(zip(vs, arrays))
            values |= {v: values[v] + moved * t for v, t in zip(wrt, turns)}
            sides.append(cost_at(values)[0])
        parts = [s * t for s, t in zip(slopes, turns)]
        largest = max(float(np.max(np.abs(p), initial=0)) for p in parts)
        np.testing.assert_allclose(
            (sides[0] - sides[1]) / (2 * step), sum(p.sum().real for p in parts),
            rtol=tolerance, atol=tolerance * max(largest, 1),
        )  # fmt: skip


def away_from_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)


@of_each([c for c in CASES if c.grad])
def test_gradient_agrees_with_finite_differences(case: OpCase) -> None:
    """Of all elements at once; each element alone is a slow test."""
    arrays = [in_double(a) for a in draw(case, 2)]
    vs = variables(case, arrays)
    outs = outputs(case, vs)
    if not any(v.type.is_differentiable for v in vs):
        return
    values = evaluate(outs, dict(zip(vs, arrays)))
    rng = case_rng(case, 6)
    for out, value in zip(outs, values):
        if out.type.is_differentiable:
            cost = (out * away_from_zero(rng, np.shape(value))).sum()
            check_slopes(case, cost, vs, arrays, case.grad_tol)


def in_double(a: np.ndarray) -> np.ndarray:
    return a.astype("float64") if a.dtype.kind == "f" else a


def of_declared_sizes(case: OpCase, vs: Sequence[Any]) -> list[Any]:
    """Variables with the sizes that a record declares: some gradients exist for these alone."""
    static = case.static or (None,) * len(vs)
    return [v if s is None else T.specify_shape(v, s) for v, s in zip(vs, static, strict=True)]


@pytest.mark.slow
@GRAD
def test_each_element_of_a_gradient_agrees_with_finite_differences(case: OpCase) -> None:
    arrays = draw(case, 2)
    count = len(outputs(case, variables(case, arrays)))
    for which in range(count):
        if not outputs(case, variables(case, arrays))[which].type.is_differentiable:
            continue
        verify_grad(
            lambda *vs, which=which: outputs(case, of_declared_sizes(case, vs))[which],
            arrays,
            abs_tol=case.grad_tol,
            rel_tol=case.grad_tol,
        )


@of_each(WITH_GRADIENT, every=3)
def test_forward_mode_agrees_with_reverse_mode(case: OpCase) -> None:
    arrays = draw(case, 3)
    vs = variables(case, arrays)
    out = outputs(case, vs)[0]
    wrt = [v for v in vs if v.type.is_differentiable]
    rng = np.random.default_rng(5)
    tangents = [rng.standard_normal(a.shape) for v, a in zip(vs, arrays) if v in wrt]
    values = dict(zip(vs, arrays))
    weights = rng.standard_normal(evaluate([out], values)[0].shape)
    forward = Rop(out, wrt, tangents, disconnected_outputs="ignore")
    left = np.sum(evaluate([forward], values)[0] * weights)
    grads = grad((out * weights).sum(), wrt, disconnected_inputs="ignore")
    right = sum(np.sum(g * t) for g, t in zip(evaluate(grads, values), tangents))
    rounded = case.id.endswith(("float16", "bfloat16")), case.id.endswith("float32")
    rtol = 2e-2 if rounded[0] else 1e-4 if rounded[1] else 1e-6
    np.testing.assert_allclose(left, right, rtol=rtol, atol=1e-8)


def compile_and_compare(
    case: OpCase, arrays: list[np.ndarray], optimizer: str, tolerance: float
) -> None:
    """The compiled function gives what the references give, also from a plan made before."""
    vs = variables(case, arrays)
    outs = [o for o in outputs(case, vs) if isinstance(o.type, TensorType)]
    wanted = evaluate(outs, dict(zip(vs, arrays)))
    f = function(vs, outs, mode=Mode(optimizer=optimizer), on_unused_input="ignore")
    for _ in range(2):
        for got, want in zip(f(*arrays), wanted, strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            size = float(np.max(np.abs(want), initial=0, where=np.isfinite(want)))
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(size, 1))
    for cache in f.executor.plan_caches():
        assert cache.misses <= 1
        assert cache.hits == cache.misses or not cache.segment.nodes or in_a_loop(f)


def in_a_loop(f: Function) -> bool:
    return any(isinstance(region, Loop) for region in f.stages.program.regions)


@of_each(CASES)
def test_compiled_agrees_with_the_reference(case: OpCase) -> None:
    on_this_device(case)
    for optimizer in ("None", "fast_run"):
        compile_and_compare(case, draw(case, 6), optimizer, max(case.rtol, 1e-6))


# Those whose graphs say float64 themselves have no form in single precision.
SINGLE = [
    c
    for c in CASES
    if c.options.get("single", True) and any(a.dtype == np.float64 for a in draw(c))
]


@of_each(SINGLE, every=3)
def test_compiled_agrees_in_single_precision(case: OpCase) -> None:
    on_this_device(case)
    arrays = [a.astype("float32") if a.dtype == np.float64 else a for a in draw(case, 7)]
    compile_and_compare(case, arrays, "fast_run", 2e-4)


@of_each(SINGLE, every=3)
def test_references_of_16_bits_have_the_types_that_the_rules_say(case: OpCase) -> None:
    """Those of the gradients too. Libraries that compute in float32 have to round their results."""
    for dtype in map(TensorType, ("float16", "bfloat16")):
        with np.errstate(over="ignore"):  # float16 ends at 65504
            arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in draw(case, 7)]
        vs = variables(case, arrays)
        try:
            outs = [o for o in outputs(case, vs) if isinstance(o.type, TensorType)]
        except TypeError:  # the op wants wide numbers, and says so
            continue
        with np.errstate(all="ignore"):
            values = evaluate(outs, dict(zip(vs, arrays)))  # checks dtypes
        sloped = [i for i, o in enumerate(outs) if case.grad and o.type.is_differentiable]
        wrt = [v for v in vs if v.type.is_differentiable]
        if sloped and wrt:
            dys = [T.as_tensor(np.ones_like(values[i])) for i in sloped]
            slopes = Lop([outs[i] for i in sloped], wrt, dys, disconnected_inputs="ignore")
            with np.errstate(all="ignore"):
                evaluate(slopes, dict(zip(vs, arrays)))


@pytest.mark.slow
@by_id
def test_debug_mode_finds_nothing(case: OpCase) -> None:
    arrays = draw(case, 8)
    vs = variables(case, arrays)
    outs = [o for o in outputs(case, vs) if isinstance(o.type, TensorType)]
    mode = DebugMode(stability_patience=2, check_isfinite=False)
    function(vs, outs, mode=mode, on_unused_input="ignore")(*arrays)


def concrete_ops() -> set[type]:
    found = set()
    places = [(p.__path__, f"{p.__name__}.") for p in (symdnn.ops, symdnn.libraries)]
    for module in (m for place in places for m in pkgutil.walk_packages(*place)):
        if module.name.endswith(".kernels"):  # an op is known without its library
            continue
        for _, cls in inspect.getmembers(importlib.import_module(module.name)):
            ours = inspect.isclass(cls) and issubclass(cls, Op) and "symdnn." in cls.__module__
            renamed = ours and issubclass(cls, Lowered) and "__dataclass_params__" not in vars(cls)
            if ours and is_dataclass(cls) and not renamed and not vars(cls).get("abstract", False):
                found.add(cls)
    return found


def test_ops_with_parameters_of_their_own_are_dataclasses() -> None:
    """Without the decorator a class has the parameters of its base, so others would not count."""
    for cls in concrete_ops():
        own = inspect.get_annotations(cls)
        added = {name for name, kind in own.items() if not str(kind).startswith("ClassVar")}
        assert added <= {f.name for f in fields(cls)}, cls


def test_every_op_has_a_record() -> None:
    named = {op for case in CASES for op in case.ops}
    missing = {cls.__name__ for cls in concrete_ops() - named}
    assert not missing, f"no record in tests/op_table for: {sorted(missing)}"
