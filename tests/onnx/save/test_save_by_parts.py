"""Ops without a counterpart in ONNX, written as functions of others."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import symdnn
import symdnn.tensor as T
from symdnn.nn import functional as F
from symdnn.onnx import compile
from symdnn.onnx.save.model import to_model

#: onnx's reference divides by 0 as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

EDGES = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-38, -1e-38, 3e38, -0.3])
X, Y = T.tensor("float32", (None, 4), name="x"), T.tensor("float32", (4,), name="y")
BOOLS, INTS = T.tensor("bool", (2, 3), name="b"), T.tensor("int32", (2, 3), name="i")
NO_ROWS = T.tensor("float32", (None, 0), name="none")
IMAGES = T.tensor("float32", (2, 3, None, None), name="images")
POINTS = T.tensor("float32", (2, 4, 5, 2), name="points")
VOLUMES = T.tensor("float32", (1, 2, 3, 4, 5), name="volumes")
AT = T.tensor("float32", (1, 2, 2, 2, 3), name="at")


def by_all(model, feed):
    """The results by symdnn, by onnx's reference, and by ONNX Runtime where it is."""
    yield list(compile(model)(**feed).values())
    yield ReferenceEvaluator(model).run(None, feed)
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        yield session.run(None, feed)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_angles_with_all_signs(dtype):
    y, x = T.vector("y", dtype=dtype), T.vector("x", dtype=dtype)
    with np.errstate(over="ignore"):
        ys, xs = (v.ravel().astype(dtype) for v in np.meshgrid(EDGES, EDGES))
    wanted = np.arctan2(ys, xs)
    for (found,) in by_all(to_model(T.arctan2(y, x), inputs=[y, x]), {"y": ys, "x": xs}):
        np.testing.assert_allclose(found, wanted, rtol=2 * np.finfo(dtype).eps)
        np.testing.assert_array_equal(
            np.signbit(found)[~np.isnan(wanted)], np.signbit(wanted)[~np.isnan(wanted)]
        )


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 4e-7), ("float64", 1e-13)])
def test_log_gamma_everywhere(dtype, rtol, rng):
    x = T.vector("x", dtype=dtype)
    near = 10.0 ** -np.arange(1, 7)
    values = np.concatenate([
        np.delete(EDGES, [5, 6]), 1 + near, 1 - near, 2 + near, 2 - near, np.linspace(0.3, 12, 200),
        10 ** rng.uniform(-30, 30, 50), np.arange(-3, 13), -rng.uniform(0.1, 0.9, 20) - 3,
    ]).astype(dtype)  # fmt: skip
    wanted = symdnn.function([x], T.gammaln(x))(values)
    for (found,) in by_all(to_model(T.gammaln(x)), {"x": values}):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)
        zeros = np.isin(values, [1, 2])
        np.testing.assert_array_equal(found[zeros], 0)
        near = np.abs(wanted) < 1e-3  # beside the zeros 1 and 2, where SciPy has 9 digits
        np.testing.assert_allclose(found[near], wanted[near], rtol=max(rtol, 1e-8))


def checkpointed():
    first, second = symdnn.checkpoint(lambda x, y: tuple(v * (x * y).exp() for v in (x, y)))(X, Y)
    return [first, second, *T.grad(first.sum() + T.sqr(second).sum(), [X, Y])]


CASES = {
    "medians": lambda: [T.median(X, axis=1), T.median(X), T.quantile(X, 0.3, axis=0)],
    "gradient of a median": lambda: T.grad(T.sqr(T.median(X, axis=1)).sum(), X),
    "checkpoint": checkpointed,
    "bounds": lambda: [T.clip(X, 1, -1), T.clip(X, -1, 1), T.clip(X, Y, -Y)],
    "bools": lambda: [BOOLS + ~BOOLS, T.argmin(BOOLS, axis=0), T.argmax(BOOLS)],
    "truth": lambda: [T.any(BOOLS, axis=()), T.all(BOOLS, axis=()), T.any(NO_ROWS, axis=1),
                      T.all(NO_ROWS, axis=1), T.any(BOOLS), T.all(BOOLS, axis=1)],
    "tests of integers": lambda: [T.isnan(INTS), T.isinf(INTS), T.isfinite(INTS)],
    **{
        f"points {mode} {padding} {align}": lambda m=mode, p=padding, a=align: [
            F.grid_sample(IMAGES, POINTS, m, p, a),
        ]
        for mode in ("bilinear", "nearest", "bicubic")
        for padding, align in (("zeros", False), ("border", True), ("reflection", False))
    },
    "points of volumes": lambda: F.grid_sample(VOLUMES, AT, align_corners=True),
    "gradient of points": lambda: T.grad(
        T.sqr(F.grid_sample(IMAGES, POINTS)).sum(), [IMAGES, POINTS]
    ),
}  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("name", CASES)
def test_values_stay(name, rng):
    made = CASES[name]()
    outputs = list(made) if isinstance(made, list | tuple) else [made]
    model = to_model(outputs)
    feed = {
        X: rng.normal(size=(5, 4)), Y: rng.normal(size=4), BOOLS: rng.random((2, 3)) > 0.5,
        INTS: rng.integers(-2, 3, (2, 3)), NO_ROWS: np.ones((3, 0)),
        IMAGES: rng.normal(size=(2, 3, 5, 6)), POINTS: rng.uniform(-1.3, 1.3, (2, 4, 5, 2)),
        VOLUMES: rng.normal(size=(1, 2, 3, 4, 5)), AT: rng.uniform(-1.3, 1.3, (1, 2, 2, 2, 3)),
    }  # fmt: skip
    names = {p.name for p in model.graph.input}
    feed = {v: a.astype(v.type.dtype) for v, a in feed.items() if v.name in names}
    wanted = symdnn.function(list(feed), outputs)(*feed.values())
    for found in by_all(model, {v.name: a for v, a in feed.items()}):
        for f, w in zip(found, wanted, strict=True):
            assert f.dtype == w.dtype
            np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
