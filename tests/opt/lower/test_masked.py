"""What is computed of elements by a mask: values, errors, gradients, one plan for all counts."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.modes.debug import DebugMode
from symdnn.compile.nanguard import NanGuardMode
from symdnn.errors import ShapeMismatch, SpecifiedShapeMismatch
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.array.getitem import Nonzero
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.of_values import Compressed
from symdnn.opt.lower.masked import elementwise_before_mask
from tests import op_table
from tests.opt.instances import Graph
from tests.opt.matrix import Checker
from tests.seeded import new_rng

SIZE = 41

#: Functions of a vector and a mask, of which NumPy has the same text.
PROGRAMS = {
    "sum": lambda x, m: x[m].sum(),
    "elements": lambda x, m: x[m] * 2 + 1,
    "of_two": lambda x, m: (x[m] - x[::-1][m]) ** 2,
    "mean": lambda x, m: x[m].mean(),
    "var": lambda x, m: x[m].var(),
    "centred": lambda x, m: x[m] - x[m].mean(),
    "max": lambda x, m: x[m].max(),
    "min": lambda x, m: (x[m] * 3).min(),
    "prod": lambda x, m: x[m].prod(),
    "any": lambda x, m: (x[m] > 1).any(),
    "all": lambda x, m: (x[m] > -3).all(),
    "number": lambda x, m: x[m].shape[0],
    "norm": lambda x, m: (x[m] ** 2).sum() ** 0.5,
    "dot": lambda x, m: x[m].dot(x[::-1][m]),
    "by_value": lambda x, m: x[x > 0].sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values_and_one_plan_for_all_counts(name, dtype):
    x, m = T.vector("x", dtype), T.vector("m", "bool")
    f = symdnn.function([x, m], PROGRAMS[name](x, m), on_unused_input="ignore")
    rng = new_rng()
    for chance in (0.2, 0.5, 0.8, 1.0):
        a, k = rng.normal(size=SIZE).astype(dtype), rng.random(SIZE) < chance
        a[0] = np.nan if name != "by_value" and not k[0] else a[0]
        rtol = 1e-12 if dtype == "float64" else 2e-5
        np.testing.assert_allclose(f(a, k), PROGRAMS[name](a, k), rtol=rtol, atol=rtol)
    assert len(f.plans()) == 1


def test_numbers_that_nothing_reads_are_counted():
    x, m = T.vector("x", "float64"), T.vector("m", "bool")
    counted = symdnn.function([x, m], x[m].mean())
    kept = symdnn.function([x, m], [x[m].mean(), *m.nonzero()])
    made = [{type(n.op) for n in f.fgraph.nodes} for f in (counted, kept)]
    assert not {Nonzero, Compressed} & made[0]
    assert Nonzero in made[1]


@pytest.mark.parametrize("name", ["sum", "mean", "var", "norm", "dot", "max", "by_value"])
def test_gradients(name):
    x, m = T.vector("x", "float64"), T.vector("m", "bool")
    k = new_rng().random(9) < 0.5
    f = symdnn.function([x, m], T.grad(PROGRAMS[name](x, m), x), on_unused_input="ignore")
    a = new_rng().normal(size=9)
    wanted = [
        (PROGRAMS[name](a + d, k) - PROGRAMS[name](a - d, k)) / 2e-6 for d in 1e-6 * np.eye(9)
    ]
    np.testing.assert_allclose(f(a, k), wanted, rtol=1e-6, atol=1e-8)
    f(a, ~k)
    assert len(f.plans()) == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_masks_of_rows_and_columns(axis):
    x, m = T.tensor("float64", (None, 3), "x"), T.vector("m", "bool")
    part = (slice(None),) * axis

    def program(x, m):
        chosen = x[(*part, m)]
        return chosen.sum(axis), (chosen * 2).sum(1 - axis), chosen.T - 1

    f = symdnn.function([x, m], program(x, m))
    a = new_rng().normal(size=(7, 3))
    k = new_rng().random(a.shape[axis]) < 0.5
    for got, want in zip(f(a, k), program(a, k)):
        np.testing.assert_allclose(got, want)


def test_wide_rows_that_a_mask_leaves_out_are_not_read():
    x, m = T.matrix("x", "float64"), T.vector("m", "bool")
    f = symdnn.function([x, m], x[m].sum(0))
    assert Compressed in {type(n.op) for n in f.fgraph.nodes}


def test_extremes_of_no_elements_and_masks_of_other_lengths_are_errors():
    x, m = T.vector("x", "float64"), T.vector("m", "bool")
    f = symdnn.function([x, m], x[m].max())
    with pytest.raises(ShapeMismatch, match="at least one element"):
        f(np.ones(5), np.zeros(5, bool))
    for name in ("sum", "elements", "mean", "max", "number"):
        f = symdnn.function([x, m], PROGRAMS[name](x, m))
        with pytest.raises((ShapeMismatch, SpecifiedShapeMismatch)):
            f(np.ones(5), np.ones(4, bool))


def test_writes_by_a_mask():
    x, y, m = T.vector("x", "float64"), T.vector("y", "float64"), T.vector("m", "bool")
    f = symdnn.function([x, y, m], [T.inc_subtensor(x[m], y[m]), T.set_subtensor(x[m], y[m] * 2)])
    a, b = new_rng().normal(size=(2, SIZE))
    k = new_rng().random(SIZE) < 0.5
    added, put = f(a, b, k)
    np.testing.assert_array_equal(added, np.where(k, a + b, a))
    np.testing.assert_array_equal(put, np.where(k, b * 2, a))
    assert len(f.plans()) == 1


def masked_graphs():
    """Each use of an elementwise op in the op table, of vectors by a mask."""
    rng = new_rng()
    for case in op_table.load():
        arrays = [np.asarray(draw(rng)) for draw in case.draws]
        if not all(issubclass(op, Elemwise) for op in case.ops) or case.stateful or not arrays:
            continue
        flat = [np.resize(a, SIZE) for a in arrays]
        inputs = [Variable(TensorType(a.dtype.name, (None,))) for a in flat]
        mask = Variable(TensorType("bool", (None,)))
        try:
            found = case.build(*(Compressed(0)(v, mask) for v in inputs))
        except Exception:  # it wants other operands than vectors
            continue
        outputs = list(found) if isinstance(found, list | tuple) else [found]
        yield Graph([*inputs, mask], outputs, [*flat, rng.random(SIZE) < 0.5], case.id)


def test_every_cheap_elementwise_op_is_computed_before_elements_are_chosen():
    checker, cheap = Checker([elementwise_before_mask]), set()
    for graph in masked_graphs():
        checker.check(graph)
        for node in (v.owner for v in graph.outputs):
            if (
                node
                and isinstance(node.op, Elemwise)
                and any(v.owner and isinstance(v.owner.op, Compressed) for v in node.inputs)
            ):
                program = meaning(node.op, tuple(v.type.dtype for v in node.inputs))
                cheap |= {type(node.op)} if program and program.cost <= 64 else set()
    assert not checker.wrong, checker.wrong[:9]
    missing = cheap - {op for _, op in checker.fired.node}
    assert len(cheap) > 60
    assert not missing, missing


#: Of elements that a mask leaves out, these would be NaN or infinite.
ONLY_OF_CHOSEN = {
    "log": lambda x: T.log(x[x > 0]),
    "root": lambda x: [T.sqrt(x[x > 0]), 1 / x[x > 0]],
    "set": lambda x: T.set_subtensor(x[x > 0], T.log(x[x > 0])),
    "dot": lambda x: T.dot(T.log(x[x > 0]), x[x > 0]),
    "max": lambda x: [T.log(x[x > 0]).max(), x[x > 0].max(), T.logsumexp(x[x > 0])],
}


@pytest.mark.parametrize("mode", [NanGuardMode, DebugMode])
@pytest.mark.parametrize("name", ONLY_OF_CHOSEN)
def test_modes_that_look_at_values_see_chosen_elements_alone(name, mode):
    x = T.dvector("x")
    array = np.array([-1.0, 0.0, 2.0, 3.0, -2.0])
    f = symdnn.function([x], ONLY_OF_CHOSEN[name](x), mode=mode())
    plain = symdnn.function([x], ONLY_OF_CHOSEN[name](x))
    for got, want in zip(np.atleast_1d(f(array)), np.atleast_1d(plain(array)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
