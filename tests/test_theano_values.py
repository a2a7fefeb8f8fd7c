"""Values, shapes and state that differ from Theano's as soon as one does not look."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import function, grad, shared


@pytest.mark.parametrize("axes", ["per-activation", "spatial", (0, 2), 1, (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("symbolic_epsilon", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_batch_statistics_have_the_ndim_of_gamma(axes, symbolic_epsilon, full, rng) -> None:
    ax = {"per-activation": (0,), "spatial": (0, 2, 3), 1: (1,)}.get(axes, axes)
    data = rng.normal(size=(3, 2, 4, 5))
    kept = [1 if i in ax else n for i, n in enumerate(data.shape) if full or i not in ax]
    x, eps = T.dtensor4(), T.dscalar()
    ps = [T.TensorType("float64", [1 if full and n == 1 else None for n in kept])() for _ in "gbmv"]
    more = {"running_mean": ps[2], "running_var": ps[3]}
    outs = T.nnet.bn.batch_normalization_train(
        x, ps[0], ps[1], axes, eps if symbolic_epsilon else 1e-3, 0.2, **more
    )
    assert [o.ndim for o in outs] == [4] + [len(kept)] * 4
    test = T.nnet.bn.batch_normalization_test(x, *ps, axes, eps if symbolic_epsilon else 1e-3)
    _, _, m, v = values = [rng.uniform(0.5, 2, kept) for _ in "gbmv"]
    weights = rng.normal(size=data.shape)
    cost = (outs[0] * weights).sum() + (outs[1] ** 3).sum() + (outs[2] ** 2).sum()
    grads = grad(cost, [x, *ps[:2]])
    run = function([x, *ps, eps], [*outs, test, *grads], on_unused_input="ignore")
    got = run(data, *values, 1e-3)
    mean, var = data.mean(ax, keepdims=True), data.var(ax, keepdims=True)
    wide = [p.reshape(mean.shape) for p in values]
    n = data.size // mean.size
    wanted = [
        wide[0] * (data - mean) / np.sqrt(var + 1e-3) + wide[1],
        mean.reshape(kept),
        1 / np.sqrt(var + 1e-3).reshape(kept),
        0.8 * m + 0.2 * mean.reshape(kept),
        0.8 * v + 0.2 * var.reshape(kept) * n / (n - 1),
        wide[0] * (data - wide[2]) / np.sqrt(wide[3] + 1e-3) + wide[1],
    ]
    for a, b in zip(got, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert [a.shape for a in got[6:]] == [data.shape, tuple(kept), tuple(kept)]
    np.testing.assert_allclose(got[8], weights.sum(ax).reshape(kept), rtol=1e-9, atol=1e-12)
    value = function([x, *ps, eps], cost, on_unused_input="ignore")
    at, step = tuple(rng.integers(data.shape)), 1e-5
    up, down = data.copy(), data.copy()
    up[at] += step
    down[at] -= step
    slope = (value(up, *values, 1e-3) - value(down, *values, 1e-3)) / (2 * step)
    np.testing.assert_allclose(got[6][at], slope, rtol=1e-5, atol=1e-6)


def test_default_updates_of_what_lies_behind_an_input_are_not_applied() -> None:
    behind, read = shared(0), shared(0)
    behind.default_update, read.default_update = behind + 1, read + 1
    y = 2 * behind
    function([y], y + read)(21)
    assert (behind.get_value(), read.get_value()) == (0, 1)
    z = 3 * behind
    function([], z, givens={z: read})()
    assert (behind.get_value(), read.get_value()) == (0, 2)


def test_a_default_update_can_be_deleted() -> None:
    w = shared(0)
    w.default_update = w + 1
    del w.default_update
    assert w.default_update is None
    function([], w)()
    assert w.get_value() == 0


@pytest.mark.parametrize("kind", ["MRG_RandomStreams", "RandomStreams"])
def test_std_of_truncated_normals(kind) -> None:
    stream = getattr(T.random, kind)(3)
    after = stream.truncated_normal((100_000,), avg=1.0, std=T.constant(2.0))
    before = stream.normal((100_000,), avg=1.0, std=2.0, truncate=True)
    a, b = function([], [after, before])()
    assert abs(a.std() - 2) < 0.02
    assert abs(b.std() - 2 * 0.8796) < 0.02
    assert abs(b - 1).max() <= 4
    assert 4.4 < abs(a - 1).max() <= 4 / 0.8796 + 1e-5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("bounds", [(3, 1), (1, 3), (2, 2), "arrays"])
def test_clip_tests_its_lower_bound_first(dtype, bounds, rng) -> None:
    x, low, high = (T.vector(dtype=dtype) for _ in range(3))
    data = rng.integers(0, 6, (3, 40)).astype(x.type.numpy)
    if bounds != "arrays":
        data[1], data[2] = bounds
    want = np.where(data[0] < data[1], data[1], np.where(data[0] > data[2], data[2], data[0]))
    for mode in (None, symdnn.Mode(optimizer=None)):
        clip = function([x, low, high], T.clip(x, low, high), mode=mode)
        np.testing.assert_array_equal(clip(*data).astype(float), want.astype(float))
        twice = function([x], T.clip(T.clip(x, data[1], data[2]), data[1], data[2]), mode=mode)
        again = np.where(want < data[1], data[1], np.where(want > data[2], data[2], want))
        np.testing.assert_array_equal(twice(data[0]).astype(float), again.astype(float))
    if x.type.is_differentiable:
        cost = T.clip(x, low, high).sum()
        got = function([x, low, high], grad(cost, [x, low, high]))(*data)
        below, above = data[0] < data[1], data[0] > data[2]
        for a, b in zip(got, (~below & ~above, below, above & ~below)):
            np.testing.assert_array_equal(a.astype(float), b.astype(float))


def test_order_of_graph_inputs_is_theanos() -> None:
    from symdnn.graph.traverse import graph_inputs

    def by_search(outputs):
        """The search as Theano's documentation has it, on a list of what is still to be seen."""
        found, waiting = [], list(outputs)
        while waiting:
            v = waiting.pop()
            if all(v is not u for u in found):
                found.append(v)
                waiting += [] if v.owner is None else v.owner.inputs[::-1]
        return [v for v in found if v.owner is None]

    p, q, r = (shared(0.0, name=n) for n in "pqr")
    assert graph_inputs([p + (q + r)]) == [p, q, r]
    assert graph_inputs([p, q]) == [q, p]
    assert graph_inputs([(p + q) * r, q]) == [q, p, r]
    middle = q + r
    assert graph_inputs([p * middle], [middle]) == [p]
    w, x = T.matrix(), T.matrix()
    outs = [T.dot(T.tanh(x + p), w) - q, (T.dot(x, w) + r).sum()]
    assert graph_inputs(outs) == by_search(outs)
