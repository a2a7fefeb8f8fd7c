"""Epilogues: programs composed op by op, taken apart into a library's words and into ops."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.elementwise.activations import Relu, Sigmoid
from symdnn.ops.elementwise.arithmetic import Add, Mul, Neg, Sub, TrueDiv
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.lowered.activation import program_of
from symdnn.ops.lowered.epilogue import BIAS, RESIDUAL, Affine, Epilogue, EpilogueRules, Operand
from symdnn.ops.vendor.gpublas import ACTIVATIONS, GpuGemm
from symdnn.ops.vendor.gpudnn_epilogue import CONV_ACTIVATIONS
from symdnn.ops.vendor.onednn import ACTIVATIONS as ONEDNN_ACTIVATIONS
from symdnn.ops.vendor.onednn import OneDnnMatmul

WORDS = (("relu", Relu()), ("tanh", Tanh()), ("sigmoid", Sigmoid()))
DTYPES = ("float32", "float64", "float16", "bfloat16")
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def binary(op, e, dtype, other, swapped=False):
    args = [other, None] if swapped else [None, other]
    return e.then(meaning(op, (dtype, dtype)), args)


def start(dtype):
    return Affine().epilogue(dtype, None)


def drawn(rng, e, n=50):
    values = [rng.standard_normal(n) for _ in e.program.inputs]
    return [v.astype(numpy_dtype(d)) for v, d in zip(values, e.program.inputs)]


@by_dtype
def test_what_was_written_op_by_op_is_found_again(dtype, rng):
    """In whatever order it was written, with factors on either side."""
    for _ in range(200):
        e, alpha, residual, bias = start(dtype), 1.0, 0.0, False
        for kind in rng.permutation(["scale", "divide", "negate", "residual", "bias"])[:4]:
            swap = bool(rng.integers(2))
            if kind == "bias":
                e, bias = binary(Add(), e, dtype, Operand(BIAS, dtype), swap), True
            elif kind == "residual":
                factor = float(rng.choice([1.0, -2.0, 0.5]))
                e = binary(Add(), e, dtype, Operand(RESIDUAL, dtype, factor), swap)
                residual = factor
            elif bias:
                continue  # scaled after the bias was added: no library does that
            elif kind == "negate":
                e = e.then(meaning(Neg(), (dtype,)), [None])
                alpha, residual = -alpha, -residual
            else:
                op, factor = (Mul(), 4.0) if kind == "scale" else (TrueDiv(), 2.0)
                e = binary(op, e, dtype, factor, swap and kind == "scale")
                factor = factor if kind == "scale" else 1 / factor
                alpha, residual = alpha * factor, residual * factor
        word, op = [("", None), *WORDS][int(rng.integers(4))]
        if op is not None:
            e = e.then(meaning(op, (dtype,)), [None])
        found = e.affine(WORDS)
        assert found == Affine(alpha, residual, bias, word)
        canonical = found.epilogue(dtype, op)
        assert canonical.operands == e.operands
        assert canonical.affine(WORDS) == found
        values = drawn(rng, e)
        (a,), (b,) = e.program.evaluate(*values), canonical.program.evaluate(*values)
        tolerance = {"float64": 1e-12, "float32": 1e-5}.get(dtype, 1e-2)
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", [
    lambda e, d: binary(Add(), e, d, 1.0),  # an offset
    lambda e, d: binary(Mul(), e, d, Operand(RESIDUAL, d)),
    lambda e, d: binary(Mul(), binary(Add(), e, d, Operand(BIAS, d)), d, 2.0),
    lambda e, d: binary(Sub(), e, d, Operand(BIAS, d)),
    lambda e, d: binary(TrueDiv(), e, d, 1.0, swapped=True),
    lambda e, d: binary(Mul(), e, d, 0.0),
    lambda e, d: e.then(meaning(Tanh(), (d,)), [None]).then(meaning(Relu(), (d,)), [None]),
    lambda e, d: e.then(meaning(Mul(), (d, d)), [None, None]),
])  # fmt: skip
@by_dtype
def test_what_no_library_has_words_for(op, dtype):
    assert op(start(dtype), dtype).affine(WORDS) is None


@pytest.mark.parametrize(
    "words", [ACTIVATIONS, CONV_ACTIVATIONS, ONEDNN_ACTIVATIONS], ids=["lt", "cudnn", "onednn"]
)
@by_dtype
def test_each_activation_of_each_library_is_found(words, dtype):
    for word, op in words.items():
        e = binary(Add(), start(dtype), dtype, Operand(BIAS, dtype))
        e = e.then(program_of(op, dtype), [None])
        assert e.affine(tuple(words.items())) == Affine(bias=True, activation=word)


def test_16_bits_are_rounded_once(rng):
    e = binary(Add(), start("bfloat16"), "bfloat16", Operand(RESIDUAL, "bfloat16"))
    e = binary(Add(), e, "bfloat16", Operand(BIAS, "bfloat16"))
    casts = [s for s in e.program.body if s.name == "cast" and s.dtype == "bfloat16"]
    assert len(casts) == 1
    assert e.program.inputs[0] == "float32"


def test_a_users_own_rounding_in_between_stays():
    narrow = meaning(T.cast(T.fscalar(), "bfloat16").owner.op, ("float32",))
    wide = meaning(T.cast(T.scalar(dtype="bfloat16"), "float32").owner.op, ("bfloat16",))
    e = start("float32").then(narrow, [None]).then(wide, [None])
    assert e.affine() is None


def test_rules_say_what_a_library_takes():
    linear = Affine(2.0, 3.0).epilogue("float64", None)
    ends = Affine(bias=True).epilogue("float64", None)
    assert GpuGemm.rules.takes(linear, "float64")
    assert not GpuGemm.rules.takes(ends, "float64")
    widened = Affine(bias=True).epilogue("float32", None, "bfloat16")
    assert GpuGemm.rules.takes(widened, "bfloat16")
    assert not OneDnnMatmul.rules.takes(widened, "bfloat16")
    assert not OneDnnMatmul.rules.takes(Affine(2.0).epilogue("float32", None), "float32")
    assert OneDnnMatmul.rules.takes(Affine(residual=1.0).epilogue("float32", None), "float32")
    mixed = Epilogue(start("bfloat16").program).then(
        meaning(Add(), ("bfloat16", "float32")), [None, Operand(BIAS, "float32")]
    )
    assert mixed.dtype == "float32"
    assert GpuGemm.rules.takes(mixed, "bfloat16")
    assert not EpilogueRules().takes(linear, "float64")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_it_is_taken_apart_again(target, rng):
    """The same in ops of no library, which compile anywhere."""
    op = GpuGemm().ending(alpha=0.5, residual=-2.0, bias=True, activation="relu")
    x, y, z = (T.fmatrix(n) for n in "xyz")
    b = TensorType("float32", (1, None))("b")
    (out,) = op.expanded(x, y, z, b)
    arrays = [rng.standard_normal(s).astype("f") for s in ((3, 4), (4, 5), (3, 5), (1, 5))]
    want = np.maximum(0.5 * arrays[0] @ arrays[1] - 2 * arrays[2] + arrays[3], 0)
    known = dict(zip((x, y, z, b), arrays))
    np.testing.assert_allclose(evaluate([out], known)[0], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(op.compute(*arrays)[0], want, rtol=1e-5, atol=1e-5)
    if target == "cpu":
        f = symdnn.function([x, y, z, b], out)
        np.testing.assert_allclose(f(*arrays), want, rtol=1e-5, atol=1e-5)


def test_operands_that_do_not_fit_are_refused():
    op = OneDnnMatmul(Dot()).ending(residual=1.0, bias=True)
    f = TensorType
    x, y, z, b = (f("float32", s) for s in ((3, 4), (4, 5), (3, 5), (1, 5)))
    assert op.output_types([x, y, z, b]) == (f("float32", (3, 5)),)
    with pytest.raises(TypeMismatch, match="wanted an output to add to of type"):
        op.output_types([x, y, f("float32", (3, 6)), b])
    with pytest.raises(TypeMismatch, match="wanted a bias of type"):
        op.output_types([x, y, z, f("float32", (3, 5))])
    with pytest.raises(TypeMismatch, match="accumulated in float32, got float64"):
        op.output_types([f("float64", s.shape) for s in (x, y, z, b)])
    with pytest.raises(TypeMismatch, match="wanted one of"):
        OneDnnMatmul(Dot()).ending(activation="mish")
    unknown = OneDnnMatmul(Dot(), epilogue=binary(Add(), start("float32"), "float32", 1.0))
    with pytest.raises(TypeMismatch, match="an epilogue of alpha, residual, bias"):
        _ = unknown.alpha
