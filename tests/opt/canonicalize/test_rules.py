"""Every rule fires, keeps values and errors, and does not change its near miss."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.libraries.table import ALL_RULES as RULES
from symdnn.opt.canonicalize import (
    algebra,  # fmt: skip
    alloc_rules,  # fmt: skip
    concat_rules,  # fmt: skip
    dead_code,  # fmt: skip
    dimshuffle_rules,  # fmt: skip
    elementwise,  # fmt: skip
    fold,  # fmt: skip
    indexing_rules,  # fmt: skip
    matrix_rules,  # fmt: skip
    reduce_rules,  # fmt: skip
    shape_rules,  # fmt: skip
)
from symdnn.opt.lower import matrix_rules as matrix_lowering
from symdnn.stable import forms, general, matrices, softmax
from tests.opt import (
    algebra_cases,
    array_cases,
    elementwise_cases,
    index_cases,
    matrix_cases,
    stabilize_cases,
)
from tests.opt.harness import (
    SIZES,
    RuleCase,
    clashing,
    draws,
    fired_among_others,
    outputs_of,
    run,
    same_graphs,
    values,
)

CASES: list[RuleCase] = [
    *algebra_cases.CASES,
    *elementwise_cases.CASES,
    *array_cases.CASES,
    *index_cases.CASES,
    *matrix_cases.CASES,
    *stabilize_cases.CASES,
]
#: Of these records another rule, which fires first, makes the same.
INSTEAD = {
    "increment_of_zeros_is_set": "increments_of_zeros_are_one_pass",
    "log_of_moved": "log_of_sigmoid",
    "minus_one": "one_plus_negative",
    "one_minus": "one_minus_sigmoid",
    "one_minus_exp_over_x": "expm1_of_negative_over_x",
    "one_minus_negative_expm1": "one_plus_negative",
    "one_plus_negative": "one_minus_sigmoid",
    "power_of_one_plus_exp": "inv_of_one_plus_exp",
}
by_rule = pytest.mark.parametrize("case", CASES, ids=str)


@by_rule
def test_fires(case: RuleCase) -> None:
    done = run(case.args, case.before, case.rule, case.beside)
    assert done.fired > 0
    ops = {type(n.op) for n in done.fgraph.nodes}
    assert not ops & set(case.gone)
    assert set(case.made) <= ops
    if case.after is not None:
        expected = outputs_of(case.after(*done.fgraph.inputs))
        assert same_graphs(done.fgraph, expected), list(map(str, done.fgraph.toposort()))
    else:
        assert case.gone or case.made, "a record says what becomes of it"


@by_rule
def test_fires_in_the_form_that_other_rules_leave(case: RuleCase) -> None:
    """A rule whose pattern other rules rewrite first would never fire in a function."""
    found = fired_among_others(case)
    expected = INSTEAD.get(str(case), case.rule)
    assert expected in found, (
        f"{case.rule} does not fire where the rules {sorted(found)} run too: write its pattern "
        "and this record in the form that they leave"
    )


@by_rule
def test_leaves_its_near_miss_alone(case: RuleCase) -> None:
    done = run(case.miss_args or case.args, case.miss, case.rule)
    assert done.fired == 0
    assert same_graphs(done.fgraph, outputs_of(case.miss(*done.fgraph.inputs)))


def assert_same(got: object, want: object, rtol: float) -> None:
    assert not isinstance(want, Exception), want
    assert not isinstance(got, Exception), got
    for a, b in zip(got, want, strict=True):  # type: ignore[call-overload]
        if not isinstance(b, np.ndarray):
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@by_rule
def test_keeps_values(case: RuleCase) -> None:
    done = run(case.args, case.before, case.rule, case.beside)
    for salt in range(3):
        arrays = draws(case, {**SIZES, **case.sizes}, salt)
        want = values(done.variables, done.wanted, arrays)
        got = values(done.fgraph.inputs, done.fgraph.outputs, arrays)
        assert_same(got, want, case.rtol)


@by_rule
def test_keeps_values_of_empty_arrays(case: RuleCase) -> None:
    done = run(case.args, case.before, case.rule, case.beside)
    arrays = draws(case, dict.fromkeys(SIZES, 0))
    want = values(done.variables, done.wanted, arrays)
    got = values(done.fgraph.inputs, done.fgraph.outputs, arrays)
    if isinstance(want, Exception):
        # The softmax of nothing is nothing, whatever was subtracted that nothing has: its largest.
        assert isinstance(got, Exception) or not case.checks, "the rule hides an error"
    else:
        assert_same(got, want, case.rtol)


@pytest.mark.parametrize("case", [c for c in CASES if c.checks], ids=str)
def test_hides_no_clash_of_shapes(case: RuleCase) -> None:
    done = run(case.args, case.before, case.rule, case.beside)
    for arrays in clashing(case):
        want = values(done.variables, done.wanted, arrays)
        got = values(done.fgraph.inputs, done.fgraph.outputs, arrays)
        if isinstance(want, Exception):
            assert isinstance(got, Exception), [a.shape for a in arrays]
        else:
            assert_same(got, want, case.rtol)


#: Scans, graphs as ops, and lowering have tests of their own.
MODULES = (
    algebra, alloc_rules, dead_code, elementwise, fold, indexing_rules, concat_rules, reduce_rules,
    shape_rules, softmax, forms, general, dimshuffle_rules, matrices, matrix_rules, matrix_lowering,
)  # fmt: skip


#: For a target, or of a graph, that records do not have: tests/gpu/solver/test_plans.py,
#: tests/ops/control/test_checkpoint.py.
WITHOUT = {"adjugate_by_factors", "hermitian_by_lu", "checkpoint_removed"}


def test_every_rule_has_a_record() -> None:
    ours = [r for module in MODULES for r in module.RULES]
    assert set(ours) <= set(RULES)
    assert not {r.name for r in ours} - {c.rule for c in CASES} - WITHOUT


def test_names_and_records_are_unique() -> None:
    names = [r.name for r in RULES]
    ids = [str(c) for c in CASES]
    assert len(set(names)) == len(names)
    assert len(set(ids)) == len(ids), sorted(i for i in ids if ids.count(i) > 1)


def test_a_dropped_dimension_of_an_alloc_need_not_be_known_of_the_value(rng):
    """The array's size of 1 is static, the value's is not: nothing can be dropped."""
    v = T.TensorType("float64", (None, None, None))("v")
    out = T.alloc(v, 2, 1, 5).dimshuffle(0, 2)
    x = rng.standard_normal((2, 1, 5))
    with config.change_flags(on_opt_error="raise"):
        np.testing.assert_array_equal(symdnn.function([v], out)(x), x[:, 0])


def test_equal_patterns_of_dimshuffles_may_be_of_other_dimensions(rng):
    """One drops a dimension of 1, one does not: there is no common form inside."""
    x = T.TensorType("float64", (None, None, 1))("x")
    y = T.TensorType("float64", (None, None))("y")
    out = x.dimshuffle(0, 1).dimshuffle(0, 1, "x") - y.dimshuffle(0, 1, "x")
    a, b = rng.standard_normal((2, 3, 1)), rng.standard_normal((2, 3))
    with config.change_flags(on_opt_error="raise"):
        got = symdnn.function([x, y], out)(a, b)
    np.testing.assert_array_equal(got, a - b[:, :, None])
