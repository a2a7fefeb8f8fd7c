"""Sizes that depend on data, on a GPU: what is counted there, what the host reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.getitem import Nonzero
from symdnn.ops.array.sort import Unique
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.lowered.gathered import FusedIndexed
from symdnn.ops.lowered.transfer import HostFromGpu
from symdnn.opt.lower import data_sizes
from tests.opt.lowering import assert_same_values, rewritten
from tests.seeded import new_rng

registry.load()
SHAPES = [(0,), (1,), (40,), (3, 5), (2, 3, 4), (3, 0)]
DTYPES = ["bool", "uint8", "int64", "float32"]


def drawn(shape: tuple[int, ...], dtype: str) -> Any:
    """Few different numbers; floats have NaNs, infinities and both zeros among them."""
    numbers = [0, 1, 1, 3] if dtype != "float32" else [0.0, -0.0, 1.5, np.nan, np.nan, np.inf]
    return new_rng().choice(np.asarray(numbers), shape).astype(dtype)


BUILDS: dict[str, Any] = {
    "nonzero": lambda x: list(T.nonzero(x)),
    "mask": lambda x: [x[T.neq(x, 0)]],
    "unique": lambda x: [T.unique(x)],
    "first places": lambda x: Unique(return_index=True)(x),
    "all of unique": lambda x: Unique(True, True, True)(x),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_numbers(build: str, dtype: str, shape: tuple[int, ...]) -> None:
    x = TensorType(dtype, (None,) * len(shape))("x")
    outs = BUILDS[build](x)
    fgraph = rewritten([x], outs)
    assert not any(isinstance(n.op, Nonzero | Unique) for n in fgraph.toposort())
    assert_same_values(fgraph, [x], outs, [drawn(shape, dtype)])


def compiled(x: Variable, outs: list[Any]) -> Any:
    """For a described card; a node on the host without a kernel is an error."""
    with config.change_flags(assert_lowered="raise"):
        lent = [symdnn.Out(y, borrow=True) for y in outs]
        return symdnn.function([x], lent, mode=symdnn.Mode(target="cuda:sm_90"))


@pytest.mark.parametrize("build", BUILDS)
def test_a_number_is_all_that_the_host_reads(build: str) -> None:
    x = T.fmatrix("x")
    f = compiled(x, BUILDS[build](x * 2))
    read = [n for n in f.fgraph.toposort() if isinstance(n.op, HostFromGpu)]
    assert [n.inputs[0].type.ndim for n in read] == [0]


@pytest.mark.parametrize("build", [T.sum, T.max])
def test_sizes_by_long_vectors_are_found_on_the_device(build: Any) -> None:
    """Not only those of these rules: a user's own count."""
    x = T.fvector("x")
    f = compiled(x, [T.arange(build(T.cast(T.gt(x, 0), "int64") * 3))])
    read = [n for n in f.fgraph.toposort() if isinstance(n.op, HostFromGpu)]
    assert [n.inputs[0].type.ndim for n in read] == [0]


def test_elements_of_a_vector_are_read_in_one_copy() -> None:
    x = T.lvector("x")
    shape = T.cast(T.exp(x), "int64")
    f = compiled(x, [T.zeros((shape[0], shape[1]))])
    read = [n for n in f.fgraph.toposort() if isinstance(n.op, HostFromGpu)]
    assert len(read) <= 1


def test_what_is_computed_of_chosen_elements_reads_no_others() -> None:
    """They are computed as they are read, unless another reads all of them, too."""
    x, y, k = T.fmatrix("x"), T.fmatrix("y"), T.vector("k", "bool")
    builds = {
        "one": ([T.exp(x[k] * 2) + 1], FusedIndexed, {AdvancedSubtensor, FusedElemwise}),
        "two": ([x[k] * y[k]], AdvancedSubtensor, {FusedIndexed}),
        "all": ([(x * 2)[k], x * 2], AdvancedSubtensor, {FusedIndexed}),
    }
    card = symdnn.Mode(target="cuda:sm_90")
    for outs, some, none in builds.values():
        f = symdnn.function([x, y, k], outs, mode=card, on_unused_input="ignore")
        made = {type(n.op) for n in f.fgraph.toposort()}
        assert some in made
        assert not none & made
    rng = new_rng()
    a, b = rng.standard_normal((2, 9, 4)).astype("float32")
    for mask in (np.arange(9) % 2 == 0, np.zeros(9, "bool")):
        for outs, *_ in builds.values():
            assert_same_values(rewritten([x, y, k], outs), [x, y, k], outs, [a, b, mask])


def test_slices_and_complex_numbers_stay() -> None:
    x, z = T.fmatrix("x"), T.TensorType("complex64", (None,))("z")
    for v, op in ((x, Unique(axis=0)), (z, Unique())):
        y: Any = op(v)
        assert any(isinstance(n.op, Unique) for n in rewritten([v], [y]).toposort())


def test_values_alone_are_sorted_without_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Variable] = []
    argsort = data_sizes.argsort
    monkeypatch.setattr(data_sizes, "argsort", lambda v: asked.append(v) or argsort(v))
    x = TensorType("float32", (None,))("x")
    for op, places in ((Unique(), 0), (Unique(return_counts=True), 0), (Unique(True), 1)):
        asked.clear()
        made = op(x)
        rewritten([x], list(made) if isinstance(made, list | tuple) else [made])
        assert len(asked) == places
