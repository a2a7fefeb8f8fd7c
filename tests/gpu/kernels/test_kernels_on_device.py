"""Kernels with device text of our own, on a GPU, against the NumPy reference over the op table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.device.array import RawArray
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.ops.array import reduce as red
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.cumulative import CumSum
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.sort import ArgSort
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.random import random as rnd
from tests import op_table
from tests.gpu.codegen.test_table import shifted, strided
from tests.gpu.emulator import must_be_dense
from tests.gpu.recorder import generated_kernels
from tests.gpu.table import Try, assert_close, concrete, in_one_gauge, tries
from tests.test_op_table import draw, outputs, variables

pytestmark = pytest.mark.gpu

FAMILIES = sorted({case.id.partition("_")[0] for case in op_table.load()})
rng = np.random.default_rng(11)


def on_gpu(cuda: Any, array: Any) -> RawArray:
    """The array on the device, laid out as it is on the host."""
    a = np.asarray(array)
    if (a.flags.c_contiguous and a.base is None) or a.size == 0:
        return cuda.memory.upload(np.ascontiguousarray(a).reshape(a.shape), None)
    base = a
    while isinstance(base.base, np.ndarray):
        base = base.base
    whole = cuda.memory.upload(base.ravel(order="K").view(np.uint8), None)
    at = a.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return RawArray(whole.ptr + at, a.shape, a.dtype.name, a.strides, whole)


def launched(cuda: Any, kernel: Any, call: Any, inputs: list[Any]) -> tuple[list[Any], list[int]]:
    """Results of a kernel on the device, and the error word."""
    read = set(call.op.host_inputs)
    with cuda.exclusive():
        given = [np.int64(a) if i in read else on_gpu(cuda, a) for i, a in enumerate(inputs)]
        made = [cuda.memory.empty(tuple(t.shape), t.dtype) for t in call.outputs]
        scratch = cuda.memory.empty((max(kernel.workspace_bytes(call), 1),), "uint8")
        kernel.bind(call)(cuda.env(scratch.ptr, 7), given, made)
        word = RawArray(cuda.context.error_word, (4,), "int32")
        before, cuda.memory.before_reading = cuda.memory.before_reading, lambda: None
        try:
            error = cuda.memory.download(word).tolist()
            cuda.memory.copy_in(np.zeros(4, np.int32), word)
            results = [cuda.memory.download(a) for a in made]
        finally:
            cuda.memory.before_reading = before
    return results, error


def check(cuda: Any, one: Try, laid_out: Any = np.asarray) -> None:
    read = set(one.call.op.host_inputs)
    for kernel in generated_kernels(one.call):
        inputs = [
            np.array(a, order="C")
            if i in read or must_be_dense(kernel, i, laid_out(a))
            else laid_out(a)
            for i, a in enumerate(one.inputs)
        ]
        results, error = launched(cuda, kernel, one.call, inputs)
        assert error[0] == 0
        results = in_one_gauge(one.call.op, results, one.expected)
        for got, want in zip(results, one.expected, strict=True):
            assert_close(got, want)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "laid_out", [np.asarray, strided, shifted], ids=["dense", "strided", "shifted"]
)
def test_every_kernel(cuda, family, laid_out):
    for one in tries():
        if one.id.partition("_")[0].partition("-")[0] == family:
            check(cuda, one, laid_out)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("excluded", [(), ("cudnn",), ("fusion",)], ids=["all", "own", "unfused"])
def test_functions_of_the_table(cuda, family, excluded):
    for case in op_table.load():
        if case.id.partition("_")[0] == family and not case.stateful:
            check_function(case, excluded)


def check_function(case: Any, excluded: tuple[str, ...]) -> None:
    arrays = draw(case)
    vs = variables(case, arrays)
    outs = outputs(case, vs)
    order = toposort(outs)
    if not all(isinstance(v.type, TensorType) for n in order for v in n.outputs):
        return
    wanted = evaluate(outs, dict(zip(vs, arrays)))
    with config.change_flags(device="cuda"):
        mode = symdnn.Mode().excluding(*excluded)
        f = symdnn.function(vs, outs, mode=mode, on_unused_input="ignore")
        for _ in range(3):  # the second call is captured, the third replayed
            for got, want in zip(f(*arrays), wanted, strict=True):
                assert_close(got, want, rtol=max(case.rtol, 1e-6))


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("n", [1, 31, 4097, 3_000_001])
def test_elementwise_of_all_sizes(cuda, n, dtype):
    a, b = ((rng.standard_normal(n) * 9).astype(TensorType(dtype).numpy) for _ in range(2))
    call = concrete(Add(), [a, b])
    check(cuda, Try("", call, [a, b], list(call.op.compute(a, b)), 0))


@pytest.mark.parametrize("shape", [(1 << 22,), (3, 1_000_003), (1_000_003, 3), (70, 80, 90)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (2,), (0, 2)])
def test_reductions_of_all_shapes(cuda, shape, axes):
    if max(axes) >= len(shape):
        pytest.skip("no such axis")
    x = rng.standard_normal(shape).astype(np.float32)
    for op in (red.Sum(axes, False, "float32", "float32"), red.Max(axes), red.LogSumExp(axes)):
        call = concrete(op, [x])
        want = red.Sum(axes, False, "float64", "float64").reference(x.astype("f8"))
        expected = want.astype("f4") if isinstance(op, red.Sum) else op.reference(x)
        for kernel in generated_kernels(call):
            (got,), _ = launched(cuda, kernel, call, [x])
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-3)


def test_results_are_the_same_bits_each_time(cuda):
    x = rng.standard_normal((999, 1001)).astype(np.float32)
    places = rng.integers(0, 50, 999)
    with config.change_flags(deterministic="more"):
        for op, arrays in (
            (red.Sum((0, 1), False, "float32", "float32"), [x]),
            (CumSum(0), [x]),
            (AdvancedIncSubtensor(("a", FULL)), [x[:50], x, places]),
        ):
            call = concrete(op, arrays)
            (kernel,) = generated_kernels(call)
            found = {launched(cuda, kernel, call, arrays)[0][0].tobytes() for _ in range(5)}
            assert len(found) == 1


def test_a_long_sort(cuda):
    x = rng.integers(0, 1000, (3, 200_001)).astype(np.float32)
    call = concrete(ArgSort(1), [x])
    check(cuda, Try("", call, [x], list(call.op.compute(x)), 0))


def test_more_elements_than_32_bits_number(cuda):
    n = (1 << 31) + 77
    x = np.zeros(n, np.int8)
    x[[5, n - 3]] = [3, 4]
    call = concrete(Add(), [x, x])
    (kernel,) = generated_kernels(call)
    (got,), _ = launched(cuda, kernel, call, [x, x])
    assert (got[5], got[n - 3]) == (6, 8)
    assert np.count_nonzero(got) == 2
    total = concrete(red.Sum((0,), False, "int64", "int64"), [x])
    (kernel,) = generated_kernels(total)
    assert launched(cuda, kernel, total, [x])[0][0] == 7


def test_many_draws(cuda):
    state = np.array([2**40 + 9, 2**32 - 5], np.uint64)
    for op in (
        rnd.RandomUniform("float32", (None,)),
        rnd.RandomUniform("float64", (None,)),
        rnd.RandomNormal("float32", (None,)),
        rnd.RandomNormal("float16", (None,)),
    ):
        inputs = [state, np.int64(1_000_001)]
        call = concrete(op, inputs)
        check(cuda, Try("", call, inputs, list(op.compute(*inputs)), 0))


# -- errors on data -------------------------------------------------------------------------------


def test_an_index_out_of_range_raises_with_the_users_line(cuda):
    import symdnn.tensor as T

    with config.change_flags(device="cuda"):
        x, i = T.fmatrix("x"), T.lvector("i")
        total = symdnn.shared(np.zeros(3, np.float32))
        f = symdnn.function([x, i], x[i].sum(axis=1), updates=[(total, total + 1)])
        a = rng.standard_normal((4, 2)).astype(np.float32)
        np.testing.assert_allclose(f(a, np.array([3, -4])), a[[3, 0]].sum(1), rtol=1e-6)
        with pytest.raises(symdnn.errors.IndexOutOfRange, match="4") as caught:
            f(a, np.array([0, 4]))
        assert __file__ in "".join(caught.value.__notes__)
        assert total.get_value().tolist() == [1, 1, 1]  # the failed call updated nothing
        np.testing.assert_allclose(f(a, np.array([1, 1])), a[[1, 1]].sum(1), rtol=1e-6)


def test_fused_nodes_run(cuda):
    import symdnn.tensor as T

    with config.change_flags(device="cuda"):
        x, y = T.fmatrix("x"), T.fmatrix("y")
        f = symdnn.function([x, y], [T.exp(x) * y + T.tanh(x), T.sqr(x - y).sum(axis=0)])
        assert any(isinstance(n.op, FusedElemwise) for n in f.stages.fgraph.toposort())
        a, b = (rng.standard_normal((300, 7)).astype(np.float32) for _ in range(2))
        got = f(a, b)
        np.testing.assert_allclose(got[0], np.exp(a) * b + np.tanh(a), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got[1], ((a - b) ** 2).sum(0), rtol=1e-5)


VIEWS = {
    "flip": lambda v: v[::-1],
    "rest": lambda v: v[1:],
    "every second": lambda v: v[:, ::2],
    "transposed": lambda v: v.T,
    "a row": lambda v: v[-1][None],
    "diagonal": lambda v: T.diagonal(v)[None],
    "spread": lambda v: v.dimshuffle(0, "x", 1)[:, 0],
}


@pytest.mark.parametrize("optimizer", [None, "fast_run"])
@pytest.mark.parametrize("source", ["input", "shared", "constant", "made"])
def test_views_of_views(cuda, source, optimizer, rng):
    """Wherever the memory is that they all show: no offset is lost or counted twice."""
    data = rng.normal(size=(7, 9)).astype("float32")
    x = T.fmatrix("x")
    root = {"input": x, "shared": symdnn.shared(data), "constant": T.constant(data),
            "made": x + 1}[source]  # fmt: skip
    outs = []
    for _ in range(12):
        v = root
        for name in rng.choice(list(VIEWS), int(rng.integers(2, 5))):
            if name != "a row" or evaluate([v.shape[0]], {root: data})[0]:
                v = VIEWS[str(name)](v)
        outs += [v, v * 2]
    inputs, at = ([x], [data]) if source in ("input", "made") else ([], [])
    with config.change_flags(device="cuda"):
        f = symdnn.function(inputs, outs, mode=symdnn.Mode(optimizer=optimizer))
    known = {x: data} | ({root: data} if source == "shared" else {})
    for _ in range(2):
        for got, want, out in zip(f(*at), evaluate(outs, known), outs):
            np.testing.assert_array_equal(np.asarray(got), want, err_msg=symdnn.pp(out))
