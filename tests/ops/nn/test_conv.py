from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symdnn.autodiff import grad
from symdnn.errors import DimensionMismatch, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.origin import Hints
from symdnn.graph.pattern import Pattern, p, pattern_vars
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import as_variable
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, conv_size
from symdnn.ops.nn.conv_abstract import (
    AbstractConv2d,
    AbstractConv3d_gradInputs,
    check_conv_gradinputs_shape,
    get_conv_gradinputs_shape,
    get_conv_gradweights_shape,
    get_conv_output_shape,
    get_conv_shape_1axis,
)
from symdnn.ops.nn.conv_builders import (
    causal_conv1d,
    conv1d,
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv2d_transpose,
    conv3d,
    separable_conv2d,
    signal_conv2d,
)
from symdnn.ops.nn.neighbours import images2neibs
from symdnn.ops.nn.pool import Pool


def tensor(*shape, dtype="float32", name=None):
    return TensorType(dtype, shape)(name)


def values(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# -- what comes out ------------------------------------------------------------------------


def test_static_shapes_and_dtype() -> None:
    x, w = tensor(None, 3, 28, 28), tensor(8, 3, 5, 5)
    assert conv2d(x, w).type.shape == (None, 8, 24, 24)
    assert conv2d(x, w, border_mode="half").type.shape == (None, 8, 28, 28)
    assert conv2d(x, w, border_mode="full", subsample=2).type.shape == (None, 8, 16, 16)
    assert conv2d(x, w, border_mode=((0, 1), (2, 0))).type.shape == (None, 8, 25, 26)
    assert conv2d(tensor(2, 3, 9, 9, dtype="uint8"), w).type.dtype == "float32"
    assert conv2d(x, tensor(8, 3, 5, 5, dtype="float64")).type.dtype == "float64"


def test_half_of_an_even_kernel_grows_the_output() -> None:
    assert conv2d(tensor(1, 1, 6, 6), tensor(1, 1, 2, 4), border_mode="half").type.shape[2:] == (
        7, 7,
    )  # fmt: skip


def test_the_kernel_is_flipped_unless_told_otherwise() -> None:
    x = np.zeros((1, 1, 3, 3), "float32")
    x[0, 0, 1, 1] = 1
    w = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    (y,) = evaluate([conv2d(x, w, border_mode="half")], {})
    np.testing.assert_array_equal(y, w)
    (y,) = evaluate([conv2d(x, w, border_mode="half", filter_flip=False)], {})
    np.testing.assert_array_equal(y, w[:, :, ::-1, ::-1])


def test_symbolic_modes_stay_in_the_op_only_while_the_kernel_is_unknown() -> None:
    x = tensor(None, None, None, None)
    unknown = conv2d(x, tensor(None, None, None, 3), border_mode="half")
    assert unknown.owner.op.padding == ("half", (1, 1))
    known = conv2d(x, tensor(None, None, None, 3), None, (None, None, 5, 3), "half")
    assert known.owner.op.padding == ((2, 2), (1, 1))


def test_shapes_that_are_imagesbecome_static_and_are_checked() -> None:
    x, w = tensor(None, None, None, None), tensor(None, None, None, None)
    y = conv2d(x, w, input_shape=(7, 3, 8, None), filter_shape=(4, 3, 3, as_variable(3)))
    assert y.type.shape == (7, 4, 6, None)
    with pytest.raises(ShapeMismatch, match="7"):
        evaluate([y], {x: values(2, 3, 8, 8), w: values(4, 3, 3, 3)})
    with pytest.raises(ShapeMismatch, match="input_shape"):
        conv2d(tensor(1, 2, 3, 3), w, input_shape=(1, 3, None, None))
    assert conv2d(x, w, image_shape=(7, None, None, None)).type.shape[0] == 7


def test_hints_are_on_the_node_and_on_its_gradients() -> None:
    x, w = tensor(2, 3, 8, 8), tensor(4, 3, 3, 3)
    hints = Hints(name="first", algo_fwd="winograd")
    y = conv2d(x, w, hints=hints)
    assert y.owner.hints == hints
    gx, gw = grad(y.sum(), [x, w])
    assert isinstance(gx.owner.op, ConvGradInput)
    assert isinstance(gw.owner.op, ConvGradWeight)
    assert gx.owner.hints == gw.owner.hints == hints
    assert conv2d(x, w).owner.op == y.owner.op


def test_gradients_of_gradients_stay_in_the_family() -> None:
    x, w = tensor(2, 3, 8, 8), tensor(4, 3, 3, 3)
    y = conv2d(x, w)
    gx = grad((y * y).sum(), x)
    found = {type(node.op) for node in toposort(grad((gx * gx).sum(), [x, w]))}
    assert {Conv, ConvGradInput, ConvGradWeight} <= found


# -- symbolic shapes --------------------------------------------------------------------------

MODES = st.one_of(
    st.sampled_from(["valid", "half", "full"]),
    st.tuples(st.integers(0, 2), st.tuples(st.integers(0, 2), st.integers(0, 2))),
)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(6, 9), st.integers(1, 3), MODES, st.integers(1, 3), st.integers(1, 2),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_symbolic_shape_is_the_shape_of_the_value(n, k, mode, stride, dilation, groups) -> None:
    xv, wv = values(2, 4, n, n + 1), values(2, 4 // groups, k, 2)
    x, w = tensor(*[None] * 4), tensor(*[None] * 4)
    y = conv2d(x, w, None, None, mode, (stride, 1), False, None, (dilation, 1), groups)
    given = {x: xv, w: wv}
    (value,) = evaluate([y], given)
    assert _symbolic(y, given) == value.shape
    for g in grad(y.sum(), [x, w]):
        (value,) = evaluate([g], given)
        assert _symbolic(g, given) == value.shape
        assert value.shape == given[x if g.owner.op.__class__ is ConvGradInput else w].shape


def _symbolic(v, given) -> tuple[int, ...]:
    node = v.owner
    shapes = [dims_of(i) for i in node.inputs]
    host = {i: node.inputs[i] for i in node.op.host_inputs}
    (dims,) = node.op.shapes([i.type for i in node.inputs], shapes, host)
    return tuple(int(d) for d in evaluate([as_variable(d) for d in dims], given))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(5, 8), st.integers(1, 3), MODES, st.integers(1, 3), st.integers(1, 2),
    st.booleans(),
)  # fmt: skip
def test_gradients_are_transposes(n, k, mode, stride, dilation, flip) -> None:
    """<dy, conv(x, w)> = <x, grad_input(w, dy)> = <w, grad_weight(x, dy)>."""
    xv, wv = values(2, 2, n, dtype="float64"), values(4, 1, k, dtype="float64", seed=1)
    if isinstance(mode, tuple):
        mode = (mode[1],)
    y = conv1d(xv, wv, None, None, mode, stride, flip, dilation, 2)
    op = y.owner.op
    yv = evaluate([y], {})[0]
    dy = values(*yv.shape, dtype="float64", seed=2)
    shared = op.settings
    dx = ConvGradInput(*shared, (n,))(wv, dy, np.int64(n))
    dw = ConvGradWeight(*shared, (k,))(xv, dy, np.int64(k))
    a, b = evaluate([dx, dw], {})
    np.testing.assert_allclose([np.sum(a * xv), np.sum(b * wv)], np.sum(dy * yv), atol=1e-9)


# -- what is refused --------------------------------------------------------------------------


def test_errors_name_shapes_and_padding() -> None:
    x, w = tensor(2, 3, 4, 4), tensor(5, 3, 7, 3)
    with pytest.raises(ShapeMismatch, match=r"span 7, input 4 \+ 1 \+ 1.*x \(2, 3, 4, 4\)"):
        conv2d(x, w, border_mode=1)
    with pytest.raises(ShapeMismatch, match="2 input channels|3 input channels"):
        conv2d(x, tensor(5, 2, 3, 3))
    with pytest.raises(ShapeMismatch, match="output channels divisible by groups=3"):
        conv2d(x, tensor(5, 1, 3, 3), num_groups=3)
    with pytest.raises(ShapeMismatch, match="input channels divisible by groups=2"):
        conv2d(x, tensor(4, 1, 3, 3), num_groups=2)


def test_run_time_errors_are_the_same() -> None:
    x, w = tensor(*[None] * 4), tensor(*[None] * 4)
    y = conv2d(x, w)
    with pytest.raises(ShapeMismatch, match="span 7"):
        evaluate([y], {x: values(2, 3, 4, 4), w: values(5, 3, 7, 3)})
    with pytest.raises(ShapeMismatch, match="channels"):
        evaluate([y], {x: values(2, 3, 4, 4), w: values(5, 2, 3, 3)})


def test_wrong_rank_or_dtype() -> None:
    with pytest.raises(TypeMismatch, match="4 dimensions"):
        conv2d(tensor(3, 4, 4), tensor(5, 3, 3, 3))
    with pytest.raises(TypeMismatch, match="5 dimensions"):
        conv3d(tensor(2, 3, 4, 4), tensor(5, 3, 3, 3))
    with pytest.raises(TypeMismatch, match="float"):
        conv2d(tensor(2, 3, 4, 4, dtype="int32"), tensor(5, 3, 3, 3, dtype="int8"))
    with pytest.raises(TypeMismatch, match="dtype"):
        Conv(((0, 0),), (1,), (1,))(tensor(1, 1, 3), tensor(1, 1, 2, dtype="float64"))


@pytest.mark.parametrize("mode", ["same", -1, (1,), (1, 2, 3), ((1, 2, 3), 0), ("x", 0)])
def test_bad_border_mode(mode) -> None:
    with pytest.raises(ValueError, match="border_mode"):
        conv2d(tensor(2, 3, 4, 4), tensor(5, 3, 3, 3), border_mode=mode)


def test_bad_options() -> None:
    x, w = tensor(2, 3, 4, 4), tensor(5, 3, 3, 3)
    with pytest.raises(ValueError, match="at least 1"):
        conv2d(x, w, subsample=(0, 1))
    with pytest.raises(TypeMismatch, match="subsample"):
        conv2d(x, w, subsample=(1, 1, 1))
    with pytest.raises(TypeMismatch, match="unshared"):
        conv2d(x, w, unshared=True)
    with pytest.raises(TypeError, match="unexpected.*bordermode"):
        conv2d(x, w, bordermode="full")
    with pytest.raises(TypeError, match="old name"):
        conv2d(x, w, input_shape=(2, 3, 4, 4), image_shape=(2, 3, 4, 4))
    with pytest.warns(DeprecationWarning, match="unroll_batch"):
        conv2d(x, w, unroll_batch=4)


def test_a_gradient_that_does_not_belong_to_the_input() -> None:
    dy, w = tensor(2, 5, 3, 3), tensor(5, 3, 3, 3)
    assert conv2d_grad_wrt_inputs(dy, w, (2, 3, 5, 5)).type.shape == (2, 3, 5, 5)
    with pytest.raises(ShapeMismatch, match=r"output gradient of shape \(2, 5, 4, 4\)"):
        conv2d_grad_wrt_inputs(dy, w, (2, 3, 6, 6))
    with pytest.raises(ShapeMismatch, match="input_shape"):
        conv2d_grad_wrt_inputs(dy, w, (2, 4, 5, 5))
    with pytest.raises(ShapeMismatch, match="output gradient"):
        conv2d_grad_wrt_weights(tensor(2, 3, 5, 5), dy, (5, 3, 2, 2))
    with pytest.raises(TypeMismatch, match="filter_shape"):
        conv2d_grad_wrt_weights(tensor(2, 3, 5, 5), dy, (5, 3, None, 3))


# -- the other builders ------------------------------------------------------------------------


def test_symbolic_sizes_of_gradients() -> None:
    x, dy, w = tensor(*[None] * 4), tensor(*[None] * 4), tensor(*[None] * 4)
    dx = conv2d_grad_wrt_inputs(dy, w, (None, None, *dims_of(x)[2:]), subsample=(2, 2))
    given = {x: values(2, 3, 6, 5), dy: values(2, 4, 2, 2), w: values(4, 3, 3, 2)}
    assert evaluate([dx], given)[0].shape == (2, 3, 6, 5)
    dw = conv2d_grad_wrt_weights(x, dy, (None, None, *dims_of(w)[2:]), subsample=(2, 2))
    assert evaluate([dw], given)[0].shape == (4, 3, 3, 2)


def test_transposed_convolution_finds_the_smallest_shape() -> None:
    y = conv2d_transpose(tensor(2, 4, 3, 3), tensor(4, 3, 3, 3), input_dilation=2)
    assert y.type.shape == (2, 3, 7, 7)
    y = conv2d_transpose(tensor(2, 4, 3, 3), tensor(4, 3, 3, 3), (2, 3, 8, 7), input_dilation=2)
    assert y.type.shape == (2, 3, 8, 7)


def test_causal_convolution_sees_no_future() -> None:
    xv, w = values(1, 1, 8), values(1, 1, 3, seed=1)
    y = evaluate([causal_conv1d(xv, w, filter_dilation=2)], {})[0]
    changed = xv.copy()
    changed[..., 5:] = 0
    z = evaluate([causal_conv1d(changed, w, filter_dilation=2)], {})[0]
    assert y.shape == xv.shape
    np.testing.assert_array_equal(y[..., :5], z[..., :5])
    with pytest.raises(TypeMismatch, match="known width"):
        causal_conv1d(xv, tensor(None, None, None))


def test_separable_convolution() -> None:
    x, deep, point = values(2, 3, 6, 6), values(6, 1, 3, 3, seed=1), values(4, 6, 1, 1, seed=2)
    y = evaluate([separable_conv2d(x, deep, point, 3, border_mode="half")], {})[0]
    z = evaluate([conv2d(x, deep, border_mode="half", num_groups=3)], {})[0]
    np.testing.assert_allclose(y, np.einsum("ok,nkij->noij", point[:, :, 0, 0], z), rtol=1e-4,
                               atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("stacks", [(False, False), (True, False), (False, True), (True, True)])
def test_signal_convolution_of_stacks(stacks) -> None:
    x = values(*((2,) if stacks[0] else ()), 5, 5)
    w = values(*((3,) if stacks[1] else ()), 2, 2, seed=1)
    y = evaluate([signal_conv2d(x, w, filter_shape=w.shape)], {})[0]
    assert y.shape == (*x.shape[:-2], *w.shape[:-2], 4, 4)
    image = x[0] if stacks[0] else x
    kernel = w[0] if stacks[1] else w
    first = y[(0,) * sum(stacks)]
    assert np.isclose(first[0, 0], np.sum(image[:2, :2] * kernel[::-1, ::-1]), rtol=1e-4)


def test_abstract_convolutions_keep_their_options() -> None:
    op = AbstractConv2d(kshp=(4, 3, 3, 3), border_mode="half", subsample=(2, 2))
    assert op == AbstractConv2d(None, (4, 3, 3, 3), "half", (2, 2))
    assert op(tensor(2, 3, 8, 8), tensor(*[None] * 4)).type.shape == (2, 4, 4, 4)
    dx = AbstractConv3d_gradInputs(imshp=(2, 3, None, 5, 5))(
        tensor(4, 3, 2, 2, 2), tensor(2, 4, 4, 4, 4), (5, 5, 5)
    )
    assert dx.type.shape == (2, 3, 5, 5, 5)


def test_functions_of_shapes() -> None:
    assert get_conv_output_shape((2, 3, 9, None), (4, 3, 3, 3), "half", (2, 1)) == (2, 4, 5, None)
    assert get_conv_shape_1axis(9, 3, (1, 2), 2) == 5
    assert get_conv_shape_1axis(9, 3, "full", 1, 2) == 13
    assert get_conv_shape_1axis(None, 3, "full", 1) is None
    assert get_conv_gradinputs_shape((4, 3, 3, 3), (2, 4, 7, 4), "valid", (1, 2)) == (2, 3, 9, None)
    assert get_conv_gradweights_shape((2, 3, 9, 9), (2, 4, 7, 11), [0, "full"], (1, 1)) == (
        4, 3, 3, 3,
    )  # fmt: skip
    assert check_conv_gradinputs_shape((2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 7, None), "valid", 1)
    assert not check_conv_gradinputs_shape((2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 6, 7), "valid", 1)


def test_large_batches_are_done_in_parts(monkeypatch) -> None:
    from symdnn.ops.nn import conv_reference

    x, w = values(5, 2, 6, 6), values(3, 2, 3, 3, seed=1)
    y = conv2d(x, w)
    dy = values(5, 3, 4, 4, seed=2)
    grads = [conv2d_grad_wrt_inputs(dy, w, x.shape), conv2d_grad_wrt_weights(x, dy, w.shape)]
    whole = evaluate([y, *grads], {})
    monkeypatch.setattr(conv_reference, "_CHUNK_ELEMENTS", 600)
    for a, b in zip(whole, evaluate([y, *grads], {}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_ops_are_patterns_of_rewrites() -> None:
    x, w = pattern_vars("x w")
    pattern = Conv(p.padding, p.stride, p.dilation, p.groups, p.flip)(x, w)
    assert isinstance(pattern, Pattern)
    pooled = Pool(p.ws, p.stride, p.pad, p.mode, p.ignore_border)(pattern)
    assert isinstance(pooled, Pattern)


@pytest.mark.parametrize("mode", ["half", "full", (0, 1)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 3])
def test_unknown_sizes_follow_the_formula_in_few_nodes(mode, stride, dilation):
    n, k = TensorType("int64", ())("n"), TensorType("int64", ())("k")
    size = conv_size(n, k, mode, stride, dilation)
    for kernel in (1, 2, 3, 4, 5):
        reach = (kernel - 1) * dilation
        before, after = {"half": [(reach + 1) // 2] * 2, "full": [reach] * 2}.get(mode, mode)
        wanted = (20 + before + after - reach - 1) // stride + 1
        assert evaluate([size], {n: np.int64(20), k: np.int64(kernel)})[0] == wanted
        assert conv_size(20, kernel, mode, stride, dilation) == wanted
    assert len(toposort([size])) <= 3 + 3 * (stride > 1) + (dilation > 1)


@pytest.mark.parametrize(
    ("mode", "size", "step", "shape"),
    [
        ("valid", (2, 3), (1, 2), (4, 6)),
        ("valid", (2, 2), None, (4, 7)),
        ("valid", (2, 2), None, (1, 4)),
        ("ignore_borders", (2, 3), None, (4, 2)),
        ("wrap_centered", (3, 3), (1, 1), (2, 4)),
        ("wrap_centered", (2, 3), (1, 1), (4, 4)),
    ],
)
def test_patches_that_do_not_fit_are_refused_for_known_and_unknown_sizes(mode, size, step, shape):
    with pytest.raises(ShapeMismatch, match="patches of"):
        images2neibs(tensor(1, 2, *shape), size, step, mode)
    x, images = tensor(None, None, None, None), values(1, 2, *shape)
    with pytest.raises(DimensionMismatch, match="patches of"):
        evaluate([images2neibs(x, size, step, mode)], {x: images})
