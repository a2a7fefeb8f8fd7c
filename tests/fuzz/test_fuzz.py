"""The fuzzer with fixed seeds, and that it draws what there is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests import seeded
from tests.fuzz import catalogue, gradients, oracle
from tests.fuzz.areas import SHARES, Context, load
from tests.fuzz.expressions import distance, report
from tests.fuzz.growth import Growth
from tests.fuzz.noise import Unusable, is_rounded
from tests.fuzz.program import Ref, Step
from tests.fuzz.runner import Options, run_area

SEED = 12


@pytest.mark.fuzz
@pytest.mark.parametrize("area", SHARES)
def test_nothing_is_wrong(area):
    """Every second program, and the others at the next turn."""
    if not load(area).is_there:
        pytest.skip(f"{load(area).needs} is not installed")
    count = (load(area).in_tests + 1) // 2
    options = Options(area, seed=SEED, count=count, first=seeded.turn() % 2, stride=2)
    found = run_area(area, options)
    assert found.tried >= count
    assert not found.failures, "\n".join(f.text() for f in found.failures)


def test_an_area_without_its_package_says_what_it_needs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="layers compares with torch, which is not installed"):
        Options("layers").areas()


def test_every_public_function_is_drawn():
    assert catalogue.missing() == []


def test_every_drawer_draws():
    """No drawer is dead: each gives a step that can be judged."""
    dead = []
    for path, draw in catalogue.drawn().items():
        for k in range(400):
            g = Growth(np.random.default_rng([SEED, k]))
            try:
                g.take(draw(g))
                break
            except Unusable:
                continue
        else:
            dead.append(path)
    assert dead == []


def test_what_counts_as_exact_moves_values():
    """A function whose results rounding touches is known to be one (``noise.is_rounded``)."""
    wrong = set()
    for path, draw in catalogue.drawn().items():
        if is_rounded(path) or path.split(".")[-1] in oracle.EXACT | {"copysign", "fabs", "pad"}:
            continue
        for k in range(6):
            g = Growth(np.random.default_rng([SEED, k]), dtypes=["float64"])
            try:
                new = g.take(draw(g))
            except Unusable:
                continue
            old = [t.base for t in g.terms if t not in new and t.kind == "f"]
            known = np.concatenate([[0.0, 1.0], *(np.ravel(a) for a in old)])
            made = [np.ravel(t.base) for t in new if t.kind == "f"]
            if not all(np.isin(m[m != np.round(m * 4) / 4], known).all() for m in made):
                wrong.add(path)
    assert wrong == set()


def grown(*steps):
    """A program of these steps over one matrix."""
    g = Growth(np.random.default_rng(3))
    x = g.fresh((3, 4), "float32", np.random.default_rng(4).uniform(0.2, 1, (3, 4)).astype("f4"))
    last = x
    for path in steps:
        (last,) = g.take(Step(path, (last.ref,)))
    return g, last


def test_a_wrong_value_is_seen():
    _, t = grown("T.exp", "T.sum")
    right = t.base.astype("f4")
    assert distance(t, right) == ""
    assert distance(t, np.asarray(right * np.float32(1.0001))) != ""


def test_a_wrong_gradient_is_seen():
    difference = gradients.quotient(lambda t: float(np.sin(1 + t)))
    assert gradients.judged(float(np.cos(1)), difference) == ""
    assert "differences" in gradients.judged(float(np.cos(1)) * (1 + 1e-6), difference)
    assert gradients.quotient(abs) is None, "a kink cannot be judged"


def test_an_error_put_into_a_gradient_is_seen(monkeypatch):
    """One part in a million, in one step among others."""
    from symdnn.ops.elementwise.math import Tanh

    g = gradients.SmoothGrowth(np.random.default_rng(3), values=gradients.smooth_values)
    t = g.fresh((3, 4), "float64", np.random.default_rng(4).uniform(0.2, 1, (3, 4)))
    for path in ("T.exp", "T.tanh", "T.sqrt"):
        (t,) = g.take(Step(path, (t.ref,)))
    program, slope = g.program([t]), Tanh.slope
    assert gradients.still_wrong(program, None) == ""
    monkeypatch.setattr(Tanh, "slope", lambda op, x, y: slope(op, x, y) * (1 + 1e-6))
    assert "differences" in gradients.still_wrong(program, None)


def test_ties_of_extremes_are_not_judged():
    """Each of several equal elements takes the whole gradient: what is a tie, and what none."""
    a, b = np.array([[1.0, 2, 2], [3, 0.5, 1]]), np.array([1.0, -2, 2])
    r = Ref(0)
    assert gradients.tied(Step("T.max", (r,), {"axis": 1}), a)
    assert not gradients.tied(Step("T.max", (r,), {"axis": 0}), a)
    assert not gradients.tied(Step("T.min", (r,), {"axis": 1}), a)
    assert not gradients.tied(Step("T.max", (r,)), a), "the 2 of the first row is not the extreme"
    assert gradients.tied(Step("T.ptp", (r,), {"axis": 1}), a)
    assert gradients.tied(Step("T.norm", (r, np.inf), {"axis": 0}), b)
    assert not gradients.tied(Step("T.norm", (r, -np.inf), {"axis": 0}), b)
    assert not gradients.tied(Step("T.norm", (r, 2), {"axis": 0}), b)


def test_a_failure_becomes_a_short_script(monkeypatch):
    """A bug that is put in is found, cut down to its op, and shown by a script that runs alone."""
    from symdnn.ops.elementwise.math import Tanh

    monkeypatch.setattr(Tanh, "function", staticmethod(lambda x: np.tanh(x) * 1.001))
    g, t = grown("T.exp", "T.tanh", "T.transpose", "T.sqrt")
    failure = report(Context("expressions", 1, 2), g.program([t]), "it", None, {})
    assert "NumPy has" in failure.message
    assert "T.tanh" in failure.script
    assert "T.exp" not in failure.script
    assert "T.transpose" not in failure.script
    done = subprocess.run(
        [sys.executable, "-c", failure.script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "NumPy" in done.stdout
