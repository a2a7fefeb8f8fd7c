"""Which statements of a program have loops with widths of vectors."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from symdnn.cpu.steps.steps_ir import steps_ir
from symdnn.cpu.steps.widths_ir import in_vectors
from symdnn.ops.core.scalar import Builder
from symdnn.ops.steps.statements import Branch, LoopProgram, Map, Repeat, View, dense


def squares(size: int, at: int = 0) -> Map:
    """The squares of so many numbers."""
    b = Builder(["float32"])
    x = b.input(0)
    read, written = (
        View(base, "float32", (size,), dense((size,), 4), 4 * at) for base in ("a0", "a1")
    )
    return Map(b.program([x * x]), (size,), (read,), (written,))


def program_of(body, before=(), after=()) -> LoopProgram:
    """A loop of unknown length with these statements in it and around it."""
    return LoopProgram(2, (), tuple(before), (), (), Repeat("t0", None, tuple(body), ()), after)


@pytest.mark.parametrize("count", [3, 150])
def test_steps_have_widths_however_much_is_around_the_loop(count):
    step = squares(48)
    around = [squares(8, at) for at in range(count)]
    found = in_vectors(program_of([step], around))
    assert id(step) in found
    assert len(found) <= 80
    without = steps_ir(program_of([step], around)).count("!llvm.loop !1\n")
    assert without == count + 1 - len(found)


def test_what_is_little_work_has_none_and_equal_work_has():
    heavy, light = squares(4096), squares(8)
    assert in_vectors(program_of([heavy, light])) == {id(heavy)}
    equal = [squares(64, at) for at in range(200)]
    assert len(in_vectors(program_of(equal[:40]))) == 40
    assert len(in_vectors(program_of(equal))) == 80


def test_inner_loops_count_as_often_as_they_repeat_and_branches_as_both():
    often, once, yes, no = squares(8), squares(64), squares(64), squares(64)
    inner = Repeat("t1", 4000, (often,), ())
    branch = Branch(View("a0", "float32"), (yes,), (no,))
    assert in_vectors(program_of([once, inner])) == {id(often)}
    assert in_vectors(program_of([branch])) == {id(yes), id(no)}
    assert in_vectors(program_of([])) == set()


def test_a_long_function_with_loops_has_the_gradient_of_its_steps():
    """A hidden Markov model with its probabilities normalised, more than 80 statements."""
    rng = np.random.default_rng(3)
    given = [rng.normal(size=s) for s in ((5, 5), (5, 7), (5,))]
    seen = rng.integers(0, 7, (3, 6))

    def loss(tr, em, first):
        tr, em = (v - T.logsumexp(v, axis=1).reshape((-1, 1)) for v in (tr, em))
        e = em.T[seen.T]

        def step(a, e):
            return T.logsumexp(a[:, :, None] + tr[None], axis=1) + e, None

        a = control.scan(step, first - T.logsumexp(first, axis=0) + e[0], e[1:])[0]
        return -T.logsumexp(a, axis=1).mean()

    with config.change_flags(**{"cpu.compile": "always"}):
        slopes = symdnn.jit(symdnn.grad(loss, (0, 1, 2)))
        value = symdnn.jit(loss)
        for _ in range(3):
            found = slopes(*given)
        for k in range(len(given)):
            ends = []
            for sign in (1e-6, -1e-6):
                moved = [v.copy() for v in given]
                moved[k].flat[2] += sign
                ends.append(float(value(*moved)))
            np.testing.assert_allclose(
                found[k].flat[2], (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-8
            )
