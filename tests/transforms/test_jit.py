"""``symdnn.jit``: traces, keys, trees, updates, and what may not be asked of a traced value."""

import copy
import dataclasses
import gc
import pickle
import warnings
import weakref
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import (
    ArgumentError,
    GraphError,
    MissingInputError,
    RetraceWarning,
    SymbolicValueError,
)
from symdnn.transforms.jit import Jit


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass
class State:
    mean: object
    rest: object = None


def test_trees_in_and_out(rng):
    x = rng.normal(size=(3, 2)).astype("float32")

    @symdnn.jit
    def f(pair, state, *more, scale):
        total = pair.a + sum(more) * scale
        return State(total, {"b": [pair.b, None], "a": (state.rest["k"],)}), x.shape

    found, shape = f(Pair(x, 2), State(None, {"k": 1.5}), x, x, scale=2.0)
    assert isinstance(found, State)
    assert list(found.rest) == ["a", "b"]
    np.testing.assert_allclose(found.mean, 5 * x, rtol=1e-6)
    assert found.mean.dtype == np.float32
    assert found.rest["b"] == [2, None]
    assert found.rest["a"][0] == np.float32(1.5)
    assert [int(n) for n in shape] == [3, 2]


def test_one_trace_for_numbers_and_sizes(rng):
    seen = []

    @symdnn.jit
    def f(x, k):
        seen.append(x.type)
        return x * k + k * 2 - 1

    for n, k in ((3, 2.0), (5, -1.0), (7, 1e-3), (0, 1e30)):
        x = rng.normal(size=n).astype("float32")
        np.testing.assert_array_equal(f(x, k), x * np.float32(k) + np.float32(k * 2) - 1)
    assert f.traces == 1
    assert len(seen) == 1
    f(np.zeros(3), 2.0)
    f(np.zeros((3, 4)), 2.0)
    f(np.zeros((1, 4)), 2.0)  # a size of 1 broadcasts
    assert f.traces == 4
    f(k=1.0, x=np.zeros(9))
    assert f.traces == 4


def test_a_number_has_the_dtype_of_arrays_but_all_its_digits(rng):
    @symdnn.jit
    def f(x, y, r):
        scaled = (r * 3 - r) / 2
        return x * scaled, y * scaled, scaled > 0.05, x**r

    x, y = rng.uniform(1, 2, 4).astype("float32"), rng.uniform(1, 2, 4)
    a, b, above, c = f(x, y, 0.1)
    assert a.dtype == c.dtype == np.float32
    np.testing.assert_allclose(b, y * 0.1, rtol=1e-15)
    assert bool(above)
    n = symdnn.jit(lambda x, n: (x + n, x // n))(np.array([7, 8], "int8"), 2)
    assert n[0].dtype == n[1].dtype == np.int8


def test_broadcasting_is_that_of_the_arrays(rng):
    f = symdnn.jit(lambda a, b: a + b)
    for one, other in (((1, 5), (3, 5)), ((3, 1), (3, 5)), ((3, 5), (3, 5)), ((), (2,))):
        a, b = rng.normal(size=one), rng.normal(size=other)
        np.testing.assert_array_equal(f(a, b), a + b)


def test_values_are_not_to_be_asked():
    asked = {
        "cond": lambda x: x if x.sum() > 0 else -x,
        "while_loop": lambda x: x if x[0] else -x,
        "int": lambda x: x.reshape((int(x.sum()),)),
        "range": lambda x: sum(x for _ in range(x.sum().astype("int64"))),
        "float": lambda x: x * float(x[0]),
    }
    for word, f in asked.items():
        with pytest.raises(SymbolicValueError, match=f"(?s)traced.*{word}|{word}.*traced") as e:
            symdnn.jit(f)(np.ones(3))
        assert "cond" in str(e.value)
        assert "static" in str(e.value)
    assert bool(T.dvector()), "outside of a trace a variable is an object like others"


def test_static_arguments():
    @symdnn.jit(static_argnames=["kind", "n"])
    def f(x, kind, *, n=2):
        return {"sum": x.sum, "max": x.max}[kind]() * n

    x = np.array([1.0, 2.0])
    assert [f(x, "sum"), f(x, "max"), f(x, kind="sum", n=10)] == [3 * 2, 2 * 2, 30]
    assert f.traces == 3
    with pytest.raises(ArgumentError, match="static argument kind must be hashable"):
        f(x, ["sum"])
    with pytest.raises(ArgumentError, match="no argument 'knd'"):
        symdnn.jit(lambda kind: kind, static_argnames="knd")
    assert symdnn.jit(lambda x, n: x * n, static_argnums=1)(x, 3).tolist() == [3, 6]


def test_a_warning_of_many_traces_says_what_changed():
    f = symdnn.jit(lambda p, n: p["w"] ** n, static_argnames="n", max_traces=2)
    for n in range(2):
        f({"w": np.ones(3)}, n)
    with pytest.warns(RetraceWarning) as seen:
        f({"w": np.ones(3, "float32")}, 0)
    assert "p['w'] was float64(?) and is float32(?)" in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f({"w": np.ones(5)}, 1)


def test_shared_variables_are_read_in_each_call_and_may_be_updated():
    w = symdnn.shared(np.zeros(2), "w")

    @symdnn.jit
    def train(x, rate):
        loss = ((x - w) ** 2).sum()
        return loss, {w: w - rate * symdnn.grad(loss, w)}

    assert [float(train(np.ones(2), 0.5)) for _ in range(2)] == [2, 0]
    w.set_value(np.full(2, 3.0))
    assert train(np.ones(2), 0.5) == 8
    outer = symdnn.jit(lambda x: (train(x, 0.25) * 2, w * 1))
    assert outer(np.zeros(2))[0] == 4
    assert w.get_value().tolist() == [0.5, 0.5]
    with pytest.raises(GraphError, match="updated twice"):
        symdnn.jit(lambda x: train(x, 0.1) + train(x, 0.2))(np.zeros(2))
    with pytest.raises(ArgumentError, match="updates w"):
        train(T.dvector(), 0.1)


def test_streams_go_on_and_statistics_are_kept(rng):
    stream = T.random.RandomStream(5)
    draw = symdnn.jit(lambda x: x + stream.normal((3,)))
    a, b = draw(0.0), draw(0.0)
    assert (a != b).all()

    norm = nn.SpatialBatchNormalization(2)
    before = norm.running_mean.get_value()
    x = rng.normal(3, 1, size=(4, 2, 3, 3)).astype("float32")
    symdnn.jit(lambda x: norm(x).sum())(x)
    assert (norm.running_mean.get_value() != before).all()


def test_methods_and_their_objects():
    class Model:
        def __init__(self, k):
            self.k = k

        @symdnn.jit
        def call(self, x):
            return x * self.k

    model = Model(3.0)
    assert model.call(2.0) == 6
    assert Model(4.0).call(2.0) == 8
    assert model.call.traces == 1
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def square(x):
    """A function that pickle finds by its name."""
    return x * x


def test_copies_and_pickles():
    f = symdnn.jit(square)
    assert f(3.0) == 9
    assert copy.deepcopy({"f": f})["f"] is f
    again = pickle.loads(pickle.dumps(Jit(square)))
    assert again(3.0) == 9

    class Slotted:
        __slots__ = ("k",)

        @symdnn.jit
        def call(self, x):
            return x

    with pytest.raises(ArgumentError, match="weakly, got a Slotted"):
        Slotted().call(1.0)


def test_in_expressions_and_in_other_functions():
    f = symdnn.jit(lambda x: T.sin(x) * x)
    x = T.dscalar("x")
    g = symdnn.function([x], symdnn.grad(f(x), x))
    wanted = np.sin(2) + 2 * np.cos(2)
    assert np.isclose(g(2.0), wanted)
    assert np.isclose(symdnn.jit(lambda x: f(f(x)))(2.0), np.sin(f(2.0)) * f(2.0))
    outputs, _ = symdnn.scan(lambda v: f(v), outputs_info=[x], n_steps=3)
    assert np.isclose(symdnn.function([x], outputs[-1])(2.0), f(f(f(2.0))))


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"p\['a'\]: wanted an array.*'text'"):
        symdnn.jit(lambda p: p)({"a": "text"})
    with pytest.raises(TypeError, match=r"the result\['s'\]"):
        symdnn.jit(lambda x: {"s": "text"})(1.0)


def test_results_of_nothing_and_of_inputs(rng):
    x = rng.normal(size=4)
    f = symdnn.jit(lambda x: (x, x, None, 3))
    a, b, nothing, three = f(x)
    a[:] = 0
    assert nothing is None
    assert three == 3
    assert (b == x).all()
    assert (f(x)[0] == x).all()
    assert symdnn.jit(lambda: ())() == ()


def test_array_likes(rng):
    x = rng.normal(size=(4, 6))
    f = symdnn.jit(lambda x: x * 2)
    np.testing.assert_array_equal(f(x.T[::2]), x.T[::2] * 2)
    np.testing.assert_array_equal(f(np.float32(3)), np.float32(6))
    found = f([1, 2.5])  # a tree of two numbers, not an array
    assert [float(v) for v in symdnn.jit(lambda v: [u * 2 for u in v])([1, 2.5])] == [2, 5]
    assert found is not None


def test_a_method_may_name_its_object_as_static():
    class Scaled:
        def __init__(self, by):
            self.by = by

        @partial(symdnn.jit, static_argnums=(0, 2))
        def __call__(self, x, power=1):
            return self.by * x**power

        @partial(symdnn.jit, static_argnames="self")
        def inverse(self, x):
            return x / self.by

    two, three = Scaled(2.0), Scaled(3.0)
    assert [two(5.0), three(5.0), two(5.0, 2), three(5.0, power=3)] == [10, 15, 50, 375]
    assert two.inverse(5.0) == 2.5


def test_a_variable_from_outside_is_named_with_what_to_do():
    x = T.dscalar("x")
    for f in (symdnn.grad(lambda t: t * x), symdnn.jit(lambda t: t * x)):
        with pytest.raises(MissingInputError, match=r"<lambda>.* needs x .*T\.constant"):
            f(2.0)
        assert f(T.constant(2.0)).eval({x: 3.0}) in (3.0, 6.0)
