"""Forward mode of a scan: against differences, in one loop."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.control.scan import Scan


def program(until):
    """A loop with two taps, a sequence, a sum, a collected value."""
    x, h, c, w = T.dvector("x"), T.dvector("h"), T.dscalar("c"), T.dscalar("w")

    def step(x, before, last, c, w):
        new = T.tanh(w * last + before * x)
        outputs = [new, c + new * x, new**2]
        return (outputs, symdnn.until(c > 1.2)) if until else outputs

    infos = [{"initial": h, "taps": [-2, -1]}, c, None]
    found, _ = symdnn.scan(step, x, infos, w)
    return [x, h, c, w], found


@pytest.mark.parametrize("until", [False, True])
@pytest.mark.parametrize("along", [(0,), (1, 3), (0, 1, 2, 3)])
def test_tangents(until, along, rng):
    inputs, outputs = program(until)
    points = [rng.uniform(0.5, 1, 5), rng.uniform(0.2, 1, 2), np.float64(0.1), np.float64(0.7)]
    turns = [rng.normal(size=p.shape) for p in points]
    wrt = [inputs[k] for k in along]
    tangents = [t.type() for t in wrt]
    found = symdnn.Rop(outputs, wrt, tangents)
    f = symdnn.function([*inputs, *tangents], found)
    got = f(*points, *(turns[k] for k in along))
    value = symdnn.function(inputs, outputs)

    def moved(step):
        return value(*(p + step * t if k in along else p
                       for k, (p, t) in enumerate(zip(points, turns))))  # fmt: skip

    for a, high, low in zip(got, moved(1e-6), moved(-1e-6)):
        np.testing.assert_allclose(a, (high - low) / 2e-6, rtol=1e-6, atol=1e-8)
    # One loop carries both: forward mode records nothing.
    loops = [n.op for n in f.fgraph.nodes if isinstance(n.op, Scan)]
    assert len(loops) == 1


def test_second_derivatives_in_all_mixtures(rng):
    inputs, outputs = program(until=False)
    points = [rng.uniform(0.5, 1, 4), rng.uniform(0.2, 1, 2), np.float64(0.1), np.float64(0.7)]
    w, cost = inputs[3], sum((o**2).sum() for o in outputs)
    one = np.float64(1)
    along = symdnn.Rop(cost, w, one)
    slope_along = symdnn.Rop(symdnn.grad(cost, w), w, one)
    mixtures = [symdnn.Rop(along, w, one), symdnn.grad(along, w), slope_along]
    found = symdnn.function(inputs, mixtures)(*points)
    slope = symdnn.function(inputs, symdnn.grad(cost, w))
    step = 1e-6
    wanted = (slope(*points[:3], 0.7 + step) - slope(*points[:3], 0.7 - step)) / (2 * step)
    np.testing.assert_allclose(found, [wanted] * 3, rtol=1e-6)
