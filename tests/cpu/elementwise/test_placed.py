"""Parts added to zeros in rows, against the reference."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise import placed
from symdnn.cpu.elementwise.placed import PlacedSumsKernel
from symdnn.errors import ShapeMismatch
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.gathered import PlacedSums
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

#: The shape of the result, and the slices of its parts.
CASES = {
    "rows": ((70, 90), (np.s_[1:], np.s_[:-1])),
    "columns": ((40, 200), (np.s_[:, 2:], np.s_[:, 1:-1], np.s_[:, :-2])),
    "a line": ((10000,), (np.s_[1:], np.s_[:-1])),
    "even and odd": ((50, 131), (np.s_[:, ::2], np.s_[:, 1::2])),
    "thirds": ((50, 131), (np.s_[:, 4::3], np.s_[1:, 5::3])),
    "one part": ((50, 131), (np.s_[1:-1, ::2],)),
    "a middle axis": ((4, 30, 90), (np.s_[:, 1:], np.s_[:, :-1])),
    "every second row": ((60, 90), (np.s_[::2], np.s_[3::4])),
    "a cross": ((60, 70), (np.s_[2:, 1:-1], np.s_[:-2, 1:-1], np.s_[1:-1, 2:], np.s_[1:-1, :-2])),
    "apart": ((60, 90), (np.s_[:30, :50], np.s_[30:, 40:])),
    "steps that differ": ((60, 90), (np.s_[:, :45], np.s_[:, ::2])),
    "short rows": ((5000, 3), (np.s_[:, 1:], np.s_[:, :-1])),
    "few": ((300, 90), (np.s_[100:110, 20:40],)),
    "nothing": ((60, 90), (np.s_[5:5], np.s_[:, 90:])),
}
DTYPES = ("float32", "float64", "float16", "int8", "int64", "complex64")


def op_of(shape, parts, factors):
    indices = [(*(p if isinstance(p, tuple) else (p,)),) for p in parts]
    full = [(*p, *[slice(None)] * (len(shape) - len(p))) for p in indices]
    pattern = tuple(tuple((s.start, s.stop, s.step) for s in p) for p in full)
    return PlacedSums((None,) * len(shape), pattern, factors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_parts_are_added_as_the_reference_does(rng, case, dtype):
    shape, parts = CASES[case]
    factors = [1.0, -2.0, 3.0, 1.0] if dtype.startswith("float") else [1.0] * 4
    op = op_of(shape, parts, tuple(factors[: len(parts)]))
    empty = np.zeros(shape, dtype)
    ys = [(rng.normal(size=empty[p].shape) * 9).astype(dtype) for p in parts]
    for given in (ys, [np.repeat(y, 2, -1)[..., ::2] for y in ys], [y[:1, ...] for y in ys]):
        sizes = [np.asarray(n) for n in shape]
        if any(0 in y.shape for y in given):
            given = ys
        arrays = [np.broadcast_to(y, empty[p].shape) for y, p in zip(given, parts)]
        wanted = op.reference(*arrays, *sizes)
        call = call_of(op, [*arrays, *sizes], TensorType(dtype, shape))
        for count in (1, 3):
            with config.change_flags(**{"openmp.threads": count}):
                (found,) = launched(PlacedSumsKernel(), call, [*arrays, *sizes])
            if dtype in ("float32", "float64", "float16"):
                np.testing.assert_allclose(found, wanted, rtol=2e-2 if dtype == "float16" else 1e-5)
            else:
                np.testing.assert_array_equal(found, wanted)


def test_which_are_one_pass():
    def one(case):
        shape, parts = CASES[case]
        places = op_of(shape, parts, (1.0,) * len(parts)).places()
        return placed._in_one_pass(places, shape)

    found = {case for case in CASES if one(case)}
    assert found == {*CASES} - {"steps that differ", "short rows", "few", "nothing"}


@pytest.mark.parametrize("shape", [(3, 4), (300, 400), (0, 400), (1, 400)])
def test_the_gradient_of_a_difference_is_one_pass(rng, shape):
    x = T.dmatrix("x")
    slope = x[1:] - x[:-1]
    f = symdnn.function([x], symdnn.grad((slope**2).sum(), x))
    made = [n.op for n in f.fgraph.toposort() if isinstance(n.op, PlacedSums)]
    assert [op.factors for op in made] == [(-2.0, 2.0)]
    data = rng.normal(size=shape)
    wanted, d = np.zeros(shape), np.diff(data, axis=0)
    wanted[:-1] -= 2 * d
    wanted[1:] += 2 * d
    for _ in range(3):
        np.testing.assert_allclose(f(data), wanted, rtol=1e-12)


def test_functions_with_loops_keep_increments():
    """The compiled steps of loops, and of what is around them, have code for these."""
    x = T.dvector("x")
    d = x[1:] - x[:-1]
    inside, _ = symdnn.scan(lambda k, v: v * v + k, T.arange(3.0), x[0])
    f = symdnn.function([x], symdnn.grad(inside[-1] + (d**2).sum(), x))
    assert not any(isinstance(n.op, PlacedSums) for n in f.fgraph.toposort())


@pytest.mark.parametrize("size", [30, 100_000])
@pytest.mark.parametrize("given", [(98, 99), (99, 1), (100, 99), (99, 50)])
def test_a_value_has_the_size_of_its_part(size, given):
    """A size that only a call knows is an error, as for an increment: it does not broadcast."""
    x, y, z = T.fvector("x"), T.fvector("y"), T.fvector("z")
    into = T.inc_subtensor(T.zeros_like(x)[1:], y)
    f = symdnn.function([x, y, z], T.inc_subtensor(into[:-1], -z))
    assert any(isinstance(n.op, PlacedSums) for n in f.fgraph.toposort())
    n = [size * k // 100 if k < 98 else size + k - 100 for k in given]
    arrays = [np.ones(m, "float32") for m in (size, *n)]
    with pytest.raises(ShapeMismatch, match="that of the indexed part"):
        f(*arrays)
    arrays = [np.ones(m, "float32") for m in (size, size - 1, size - 1)]
    np.testing.assert_array_equal(f(*arrays), [-1.0, *[0.0] * (size - 2), 1.0])
