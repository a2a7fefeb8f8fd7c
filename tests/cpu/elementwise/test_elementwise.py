"""Compiled elementwise kernels: values over the whole range, layouts, dtypes, threads, cache."""

import ctypes
import os

import numpy as np
import pytest
import scipy.stats

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.elementwise.elementwise import ElementwiseKernel
from symdnn.cpu.ir.elementwise_ir import elementwise_ir
from symdnn.cpu.ir.loops_ir import LoopOperand
from symdnn.cpu.math.functions_ir import IN_FLOAT, IN_LANES
from symdnn.cpu.math.math32_ir import SINGLE
from symdnn.cpu.math.math_arcs_ir import ARCS
from symdnn.cpu.math.math_gelu_erfc_ir import GELU_ERFC
from symdnn.cpu.reference.programs import run_program
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import FUNCTIONS, Builder
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.lowered.fused import FusedElemwise
from tests.cpu.harness import call_of, compiled, launched
from tests.forked import forked
from tests.seeded import new_rng

pytestmark = compiled


def apply(program, *arrays):
    """The results of the kernel."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    results = [TensorType(d, shape) for d in program.output_dtypes]
    call = call_of(FusedElemwise(program), arrays, *results)
    return launched(ElementwiseKernel(), call, arrays)


def unary(name, dtype="float32"):
    b = Builder([dtype])
    return b.program([b.call(name, b.input(0))])


def floats():
    """float32 numbers of every exponent, both signs, and what is special."""
    rng = new_rng()
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 88.72, 88.73, -103.9]
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype("uint32").view("float32")
    near_one = 1 + rng.normal(size=20_000) * 1e-3
    usual = rng.normal(size=200_000) * 20
    small = rng.normal(size=20_000) * np.logspace(-30, 1, 20_000)
    return np.concatenate(
        [np.asarray(a, "float32") for a in (special, bits, near_one, usual, small)]
    )


def pairs():
    """Pairs of floats: every one of the special with every one, all bits, and usual ones."""
    rng = new_rng()
    special = np.array(
        [0.0, 0.25, 0.5, 1, 1.5, 2, 3, 7, 2**24 - 1, 2**24, 1e-45, 1e-38, 3e38, np.inf, np.nan]
    )
    special = np.concatenate([special, -special])
    a, b = (v.ravel() for v in np.meshgrid(special, special))
    bits = rng.integers(0, 2**32, (2, 200_000), dtype="uint32").view("float32")
    usual = np.exp(rng.normal(size=200_000) * 4), rng.normal(size=200_000) * 9
    whole = rng.normal(size=50_000) * 3, rng.integers(-40, 40, 50_000)
    near = 1 + rng.normal(size=50_000) * 1e-4, rng.normal(size=50_000) * 1e5
    parts = [(a, b), bits, usual, whole, near]
    return tuple(np.concatenate([np.asarray(p[i], "float32") for p in parts]) for i in range(2))


@pytest.mark.parametrize("name", sorted(IN_FLOAT - IN_LANES))
def test_float32_functions_over_all_floats(name):
    if FUNCTIONS[name].arity == 2:
        x = pairs()
        b = Builder(("float32", "float32"))
        program = b.program([b.call(name, b.input(0), b.input(1))])
    else:
        x, program = (floats(),), unary(name)
    (y,) = apply(program, *x)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name].function(*[a.astype("float64") for a in x])
        wanted = exact.astype("float32")
    assert np.array_equal(np.isnan(y), np.isnan(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(y[~finite], wanted[~finite])
    ulp = np.spacing(np.maximum(np.abs(wanted[finite]), np.float32(1.2e-38))).astype("float64")
    own = f"s_{name}"
    in_float = own in {"s_sin", "s_cos", *(f.name for f in (*SINGLE, *ARCS))}
    by_tails = own in {"s_tan", *(f.name for f in GELU_ERFC)}
    most = 4.0 if by_tails else 2.0 if in_float else 1.0 if own == "s_pow" else 0.51
    assert np.max(np.abs(y[finite] - exact[finite]) / ulp) < most
    zeros = wanted == 0
    np.testing.assert_array_equal(np.signbit(y[zeros]), np.signbit(wanted[zeros]))


def test_whole_powers_of_two_are_exact():
    n = np.arange(-149, 128, dtype="float32")
    (powers,), (logarithms,) = apply(unary("exp2"), n), apply(unary("log2"), np.exp2(n))
    np.testing.assert_array_equal(powers, np.exp2(n.astype("float64")))
    np.testing.assert_array_equal(logarithms, n)


@pytest.mark.parametrize("name", ["gelu", "gelu_slope"])
def test_gelu_of_float64_is_made_of_the_c_library_s_functions(name):
    x = np.concatenate([new_rng().normal(size=20_000) * 9, [0, np.inf, -np.inf]])
    (y,) = apply(unary(name, "float64"), x)
    np.testing.assert_allclose(y, FUNCTIONS[name].function(x), rtol=1e-13, atol=1e-15)
    assert np.isnan(apply(unary(name, "float64"), np.full(9, np.nan))[0]).all()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("count", [1, 5, 31, 1000])
def test_large_angles_leave_the_others_of_their_vector_alone(name, count):
    x = new_rng().normal(size=count).astype("float32") * 100
    (near,) = apply(unary(name), x)
    mixed = np.where(np.arange(count) % 3 == 0, np.float32(1e30), x)
    (y,) = apply(unary(name), mixed)
    small = np.arange(count) % 3 != 0
    np.testing.assert_allclose(y[small], near[small], rtol=4e-7)
    exact = FUNCTIONS[name].function(float(np.float32(1e30)))
    np.testing.assert_allclose(y[~small], exact, rtol=1e-7)


def test_gelu_and_its_slope_meet_their_tails():
    """x is where float32 has the first denormal results, and where it has the last."""
    x = np.array([-12.9, -13.5, -14.4, -40.0, -np.inf], "float32")
    (y,), (slope,) = (apply(unary(n), x) for n in ("gelu", "gelu_slope"))
    near = x[:3].astype("float64")
    np.testing.assert_allclose(y[:3], near * scipy.stats.norm.cdf(near), rtol=1e-6, atol=3e-45)
    assert (y[3:] == 0).all()
    assert np.signbit(y).all()
    assert (slope[:3] < 0).all()
    assert (slope[3:] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "max", "min", "lt", "le", "eq", "ne"])
def test_arithmetic_and_comparisons_are_those_of_numpy(rng, name, dtype):
    if dtype == "bool" and name == "sub":
        pytest.skip("NumPy refuses it")
    a, b = ((rng.normal(size=(37, 5)) * 3).astype(dtype) for _ in range(2))
    if dtype.startswith("float"):
        a[0], b[1] = np.nan, np.nan
    builder = Builder([dtype, dtype])
    program = builder.program([builder.call(name, builder.input(0), builder.input(1))])
    np.testing.assert_array_equal(apply(program, a, b)[0], FUNCTIONS[name].function(a, b))


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64", "int8", "uint16"])
@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
def test_conversions_are_those_of_numpy(source, target):
    builder = Builder([source])
    program = builder.program([builder.cast(builder.input(0), target)])
    x = new_rng().integers(0, 90, 100)
    x = x.astype(TensorType(source).numpy)
    with np.errstate(all="ignore"):
        wanted = program.evaluate(x)[0]
    np.testing.assert_array_equal(apply(program, x)[0].astype("f8"), wanted.astype("f8"))


def test_float64_is_rounded_to_float16_once(rng):
    """Numbers of float16, those half way between two, their neighbours, and those beyond."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (halves[:-1] + halves[1:]) / 2
    near = [np.nextafter(ties, to) for to in (-np.inf, np.inf)]
    wide = rng.integers(0, 0x7FF0 << 48, 10_000).view(np.float64)
    special = [np.nan, np.inf, 65520 - 1e-9, 65520.0, 3.5e38, 1e300, 5e-324, 2.0**-25, 0.0]
    x = np.concatenate([halves, ties, *near, ties * (1 + 1e-9), ties * (1 - 1e-9), wide, special])
    x = np.concatenate([x, -x])
    builder = Builder(["float64"])
    program = builder.program([builder.cast(builder.input(0), "float16")])
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float16)
    np.testing.assert_array_equal(apply(program, x)[0], wanted)


def test_operands_lie_in_any_way_and_broadcast(rng):
    builder = Builder(["float32"] * 3)
    a, b, c = (builder.input(i) for i in range(3))
    program = builder.program([a * b + c, a - c])
    x = rng.normal(size=(5, 6, 7, 8)).astype("float32")
    row = rng.normal(size=(1, 6, 1, 1)).astype("float32")
    for y in (
        rng.normal(size=(8, 7, 6, 5)).astype("float32").transpose(3, 2, 1, 0),
        rng.normal(size=(5, 6, 7, 16)).astype("float32")[..., ::2],
        rng.normal(size=(5, 6, 7, 8)).astype("float32")[::-1, :, ::-1],
        rng.normal(size=(1, 1, 1, 8)).astype("float32"),
        np.float32(3).reshape(1, 1, 1, 1),
    ):
        first, second = apply(program, x, row, y)
        np.testing.assert_allclose(first, x * row + y, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(second, x - y)


def test_a_result_may_overwrite_an_operand():
    x = np.arange(1000, dtype="float32")
    types = (TensorType("float32", (1000,)),)
    call = Call(FusedElemwise(unary("neg")), types, types, NO_HINTS)
    wanted = -x
    ElementwiseKernel().bind(call)([x], [x])
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("shape", [(1,), (63,), (64,), (65,), (1_000_003,), (3, 70_000), (900, 7)])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_threads_share_all_the_work_and_none_twice(shape, count):
    x = new_rng().normal(size=shape).astype("float32")
    rows, n = (1, shape[0]) if len(shape) == 1 else shape
    wide = np.zeros((rows, n + 1), "float32")[:, :n]  # rows that do not meet
    text = elementwise_ir(
        unary("neg"), (0, 0), [LoopOperand("float32", "dense")], [LoopOperand("float32", "dense")]
    )
    run = jit.compile_function(text, "kernel", ctypes.c_void_p)
    words = [count, rows, n, id(x), 4, 4 * n, id(wide), 4, wide.strides[0]]
    run((ctypes.c_int64 * len(words))(*words))
    np.testing.assert_array_equal(wide, -x.reshape(rows, n))


def test_sizes_do_not_change_the_source():
    before = len(jit._functions)
    for n in (100, 200, 300):
        apply(unary("expm1"), np.ones((n, 3), "float32"))
    assert len(jit._functions) <= before + 1


def test_object_code_is_kept_and_a_damaged_file_is_dropped(tmp_path):
    dense = [LoopOperand("float32", "dense")]
    text = elementwise_ir(unary("sqrt"), (0,), dense, dense)

    def compile_anew():
        jit._functions.clear()
        jit.compile_function(text, "kernel", ctypes.c_void_p, folder=tmp_path)
        (file,) = tmp_path.rglob("*.o")
        return file

    file = compile_anew()
    assert compile_anew() == file
    file.write_bytes(b"nonsense")
    with pytest.warns(RuntimeWarning, match="damaged"):
        compile_anew()
    compile_anew()


def test_the_flag_and_small_work_leave_it_to_numpy():
    x = T.fvector("x")
    f = symdnn.function([x], T.exp(x) * 2, mode=symdnn.Mode(target="cpu"))
    small, large = np.ones(3, "float32"), np.ones(1 << 16, "float32")
    with config.change_flags(**{"cpu.compile": "auto"}):
        f(small)
        assert "llvm.elementwise" not in f.lowering_report().kernels()
        f(large)
        assert f.lowering_report().kernels()["llvm.elementwise"] >= 1
    with config.change_flags(**{"cpu.compile": "never"}):
        f.free()
        f(large)
        assert "llvm.elementwise" not in f.lowering_report().kernels()


def test_threads_follow_the_flag_and_the_work():
    with config.change_flags(**{"openmp.threads": 3}):
        assert threads.threads(10**9, 100) == 3
        assert threads.threads(250, 100) == 2
        assert threads.threads(0, 100) == 1


def test_dimensions_that_no_operand_tells_apart_are_merged():
    assert merged((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == ((24,), [(1,), (1,)])
    assert merged((2, 3, 4), [(12, 4, 1), (0, 4, 1)]) == ((2, 12), [(12, 1), (0, 1)])
    assert merged((1, 1), [(1, 1)]) == ((1,), [(1,)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "bool"])
def test_programs_by_numpy_write_where_their_operands_lie(rng, dtype):
    builder = Builder([dtype, dtype])
    a, b = builder.input(0), builder.input(1)
    wide = builder.cast(a, "float32") + builder.cast(b, "float32")
    back = builder.cast(wide, dtype)
    program = builder.program([a, back, builder.call("eq", wide, builder.cast(a, "float32"))])
    x, y = ((rng.normal(size=9) * 3).astype(TensorType(dtype).numpy) for _ in range(2))
    wanted = program.evaluate(x.copy(), y.copy())
    outs = [y, x, np.zeros(9, bool)]  # each result over the other operand
    run_program(program)([x, y], outs)
    for got, want in zip(outs, wanted):
        np.testing.assert_array_equal(got, want)


def test_another_process_runs_what_one_compiled(tmp_path):
    program = (
        "import numpy as np, symdnn, symdnn.tensor as T\n"
        "from symdnn.cpu.elementwise import elementwise\n"
        "import sys\n"
        "def never(*_): raise AssertionError('the text was asked for')\n"
        "never.__module__, never.__qualname__ = 'symdnn.cpu.ir.elementwise_ir', 'elementwise_ir'\n"
        "if sys.argv[1] == 'again': elementwise.elementwise_ir = never\n"
        "x = T.fvector('x')\n"
        "f = symdnn.function([x], T.exp(x) * 2, mode=symdnn.Mode(target='cpu'))\n"
        "a = np.linspace(0, 1, 100000).astype('f')\n"
        "np.testing.assert_allclose(f(a), np.exp(a) * 2, rtol=1e-6)\n"
    )
    environment = {**os.environ, "SYMDNN_FLAGS": f"base_compiledir={tmp_path},cpu.compile=always"}
    for word in ("first", "again"):
        done = forked(program, word, env=environment)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "bfloat16"])
@pytest.mark.parametrize("step", [-1, 2, 3, 4, 5, -2])
def test_operands_of_constant_strides(rng, step, dtype):
    x = (rng.normal(size=(7, 300)) * 3).astype(numpy_dtype(dtype))[:, ::step]
    v = TensorType(dtype, (None, None))()
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([v], T.switch(T.eq(v, v), v, v))
    np.testing.assert_array_equal(f(x), x)
    y = np.ones(x.shape, x.dtype)
    w = TensorType(dtype, (None, None))()
    with config.change_flags(**{"cpu.compile": "always"}):
        both = symdnn.function([v, w], T.maximum(v[:, ::-1], w))
    np.testing.assert_array_equal(both(x, y), np.maximum(x[:, ::-1], y))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_become_unsigned_numbers_of_64_bits_as_in_numpy(dtype):
    """Negative ones are taken modulo 2^64, and all of the upper half are there."""
    x = np.array([0, 1.9, 2.0**32, 2.0**62, 2.0**63, 1.5 * 2.0**63, -1, -300.7, -(2.0**40)], dtype)
    b = Builder([dtype])
    (found,) = apply(b.program([b.cast(b.input(0), "uint64")]), x)
    assert found.tolist() == [int(v) % 2**64 for v in x]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64", "complex64"])
@pytest.mark.parametrize("step", [2, 3, 4])
def test_every_second_number_is_packed(step, dtype):
    """Of lines of any length; what is behind the last number is not read."""
    rng = new_rng()
    for count in (*range(1, 40), 63, 64, 65, 129, 511, 512, 513, 1100):
        whole = rng.integers(0, 99, (3, count * step - step + 1)).astype(dtype)
        x, y = whole[:, ::step], rng.integers(0, 99, (3, count)).astype(dtype)
        call = call_of(Add(), [x, y])
        (got,) = launched(ElementwiseKernel(), call, [x, y])
        np.testing.assert_array_equal(got, x + y)
