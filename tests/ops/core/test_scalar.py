"""Scalar programs: their meaning is the op's reference; how they are built and printed."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from symdnn.config import config
from symdnn.ops.core.scalar import FUNCTIONS, Builder, ScalarProgram, identity_program
from symdnn.ops.elementwise import arithmetic as ar
from symdnn.ops.elementwise import comparison as cmp
from symdnn.ops.elementwise.activations import Relu
from symdnn.ops.elementwise.math import Exp
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elementwise.storage import Narrow
from symdnn.ops.elemwise import Elemwise
from tests.gpu.table import assert_close, tries
from tests.test_op_table import concrete_ops

NARROW = {"float16": 2e-3, "bfloat16": 1.6e-2}


def ops_with_a_formula():
    ops = {op for op in concrete_ops() if issubclass(op, Elemwise) and op.formula is not None}
    return sorted(ops, key=lambda op: op.__name__)


def made(op_type):
    return op_type(*{ar.Cast: ("float32",), Narrow: ("float8_e5m2",)}.get(op_type, ()))


def elementwise_tries():
    return [t for t in tries() if isinstance(t.call.op, Elemwise)]


def test_programs_mean_what_the_references_compute():
    checked = set()
    for one in elementwise_tries():
        program = meaning(one.call.op, tuple(a.dtype.name for a in one.inputs))
        if program is None:
            continue
        (got,) = program.evaluate(*one.inputs)
        (want,) = one.expected
        assert_close(np.broadcast_to(got, want.shape), want)
        checked.add(type(one.call.op))
    assert checked == set(ops_with_a_formula())


def test_every_real_elementwise_op_has_a_program():
    by_numpy = {"Real", "Imag", "Angle", "Conj", "Complex", "OrderSlope"}
    every = {op for op in concrete_ops() if issubclass(op, Elemwise)}
    missing = {op.__name__ for op in every - set(ops_with_a_formula())}
    assert missing == by_numpy


def test_a_formula_is_of_the_function_beside_it():
    """An op that derives from another and computes something else does not inherit its formula."""

    @dataclass(frozen=True)
    class ReluOfSquare(Relu):
        function = staticmethod(lambda x: np.maximum(x * x, 0))

    @dataclass(frozen=True)
    class OtherSlope(Relu):
        def slope(self, x, y):
            return x

    assert ReluOfSquare.formula is None
    assert meaning(ReluOfSquare(), ("float32",)) is None
    assert OtherSlope.formula is Relu.formula


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float16", "float32"])
def test_programs_of_other_dtypes(dtype):
    rng = np.random.default_rng(3)
    checked = 0
    for op_type in ops_with_a_formula():
        op = made(op_type)
        arrays = [
            rng.integers(0, 2 if dtype == "bool" else 5, 20).astype(dtype) for _ in range(op.arity)
        ]
        if not op.takes(dtype) or op_type is ar.Pow:
            continue
        with np.errstate(all="ignore"):
            want = op.reference(*arrays)
        program = meaning(op, (dtype,) * op.arity)
        assert program is not None
        assert program.output_dtypes == (want.dtype.name,)
        assert_close(program.evaluate(*arrays)[0], want)
        checked += 1
    assert checked > 12


def test_what_may_fail_or_is_complex_has_no_program():
    assert meaning(ar.Pow(), ("int32", "int8")) is None
    assert meaning(ar.Pow(), ("int32", "uint8")) is not None
    assert meaning(ar.Pow(), ("float32", "int8")) is not None
    assert meaning(Exp(), ("complex64",)) is None


def test_the_dtype_follows_the_flags():
    for name in ("float32", "float64", "float32"):
        with config.change_flags(floatX=name):
            program = meaning(Exp(), ("int32",))
            assert program is not None
            assert program.output_dtypes == (name,)


def test_int64_beside_uint64_is_compared_exactly():
    a, b = np.array([-1, 2**53 + 1]), np.array([2**64 - 1, 2**53], np.uint64)
    for op, want in ((cmp.Lt(), [True, False]), (cmp.Gt(), [False, True]), (cmp.Eq(), [False] * 2)):
        program = meaning(op, ("int64", "uint64"))
        assert program is not None
        assert program.evaluate(a, b)[0].tolist() == want


# -- building -------------------------------------------------------------------------------------


def test_constants_differ_where_their_bits_do():
    def of(value):
        builder = Builder(("float32",))
        return builder.program([builder.input(0) * value])

    assert of(0.0) != of(-0.0)
    assert of(float("nan")) == of(float("nan"))
    assert pickle.loads(pickle.dumps(of(float("nan")))) == of(float("nan"))
    assert of(0.1) == of(np.float32(0.1))


def test_equal_instructions_are_one_value_and_unused_ones_go():
    builder = Builder(("float64", "float64"))
    a, b = builder.input(0), builder.input(1)
    (a - b).call("exp")
    program = builder.program([(a + b) * (a + b)])
    assert [s.name for s in program.body] == ["add", "mul"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_absolute_values_that_differ_in_a_sign_are_one(dtype):
    b = Builder([dtype])
    u = b.input(0)
    values = [abs_of.call("abs") for abs_of in (u, -u, 3 * u, -3 * u, -(3 * u), u * -3)]
    first = [[v.number for v in values].index(v.number) for v in values]
    assert first == [0, 0, 2, 2, 2, 2]
    assert b.program([values[1]]).names == {"abs"}  # and a value alone stays as it is written
    alone = Builder([dtype])
    assert alone.program([(-alone.input(0)).call("abs")]).names == {"neg", "abs"}
    x = np.array([-0.0, 0.0, -1.5, 2.0, np.inf, -np.inf, np.nan, 1e-45], dtype)
    for found, factor in zip(b.program(values).evaluate(x), (1, 1, 3, 3, 3, 3)):
        np.testing.assert_array_equal(found, np.abs(x * x.dtype.type(factor)))
        assert not np.signbit(found).any()


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_whole_numbers_keep_their_sign(dtype):
    """The negative of an unsigned one wraps around."""
    b = Builder([dtype])
    u = b.input(0)
    x = np.arange(0, 128, dtype=dtype)
    (found,) = b.program([(-u).call("abs")]).evaluate(x)
    np.testing.assert_array_equal(found, np.abs(np.negative(x)))


def test_there_and_back_through_a_wider_dtype_is_nothing():
    builder = Builder(("float16", "int64"))
    half, long = builder.input(0), builder.input(1)
    assert half.cast("float32").cast("float16") == half
    assert long.cast("float64").cast("int64") != long  # 2**53 + 1
    assert builder.const(3, "int8").cast("float32").dtype == "float32"
    assert {s.name for s in builder.body} == {"cast", "const"}


def test_inlined_programs_compose():
    inner = meaning(ar.Sqr(), ("float64",))
    assert inner is not None
    builder = Builder(("float64",))
    x = builder.input(0)
    (twice,) = builder.inline(inner, builder.inline(inner, [x]))
    assert builder.program([twice]).evaluate(np.array(3.0))[0] == 81


def test_wrong_operands_are_refused():
    builder = Builder(("float32", "float64", "float16", "int32"))
    single, double, half, whole = (builder.input(i) for i in range(4))
    with pytest.raises(TypeError, match="one wide dtype"):
        single.call("add", double)
    with pytest.raises(TypeError, match="one wide dtype"):
        half.call("exp")
    with pytest.raises(TypeError, match="floats"):
        whole.call("exp")
    with pytest.raises(TypeError, match="select"):
        single.where(single, single)
    with pytest.raises(TypeError, match="no instruction .* 'ge': FUNCTIONS"):
        single.call("ge", 0)


def test_comparisons_are_operators():
    builder = Builder(("float32",))
    x = builder.input(0)
    program = builder.program([x < 2, x <= 2, x > 2, x >= 2])
    values = np.array([1, 2, 3, np.nan], "float32")
    wanted = ([1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0])
    assert np.array_equal(program.evaluate(values), np.array(wanted, bool))


def test_every_instruction_is_used_by_some_op():
    used = set()
    for op_type in ops_with_a_formula():
        op = made(op_type)
        for dtype in ("float64", "int32", "bool"):
            if op.takes(dtype):
                program = meaning(op, (dtype,) * op.arity)
                used |= program.names if program else set()
    assert set(FUNCTIONS) <= used


def test_programs_print_as_formulas():
    builder = Builder(("float32", "float32"))
    a, b = builder.input(0), builder.input(1)
    product = a * b
    program = builder.program([(product < 0).where(0, product.call("exp")), -a])
    assert str(program) == "t2 = a * b; (t2 < 0) ? 0 : exp(t2), neg(a)"
    assert str(identity_program("int8")) == "a"
    assert isinstance(program, ScalarProgram)
