"""Which functions of cuDNN convolutions call, and with what. Needs neither a GPU nor cuDNN."""

from __future__ import annotations

import ctypes
import operator
from types import SimpleNamespace

import pytest

from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.kernel import kernels_for
from symdnn.graph.origin import Hints
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.vendor import gpudnn as G
from tests.gpu.fake_cudnn import (
    HANDLE,
    WORKSPACE,
    arrays_of,
    conv,
    inputs_of,
    library_kernels,
    refusal,
    run,
)

registry.load()


def subclasses(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_every_gpudnn_op_has_a_kernel():
    ops = [op for op in set(subclasses(Lowered)) if op.__name__.startswith("GpuDnn")]
    concrete = [op for op in ops if not vars(op).get("abstract") and "Base" not in op.__name__]
    assert len(concrete) >= 20
    assert [op.__name__ for op in concrete if not kernels_for(op, "cuda")] == []


def test_loading_twice_registers_once():
    before = len(kernels_for(G.GpuDnnPoolGrad, "cuda"))
    registry.load()
    assert len(kernels_for(G.GpuDnnPoolGrad, "cuda")) == before == 5


# -- convolution ----------------------------------------------------------------------------------


def test_convolution_passes_each_argument_in_its_place(fake):
    fake.answers["cudnnGetConvolutionForwardWorkspaceSize"] = 4096
    _, (x, w), (y,), _ = run(fake, conv())
    args = fake.only("cudnnConvolutionForward")
    (handle, alpha, xd, xp, wd, wp, how, algo, space, nbytes, beta, yd, yp) = args
    assert (handle, alpha, beta, algo) == (HANDLE, 1.0, 0.0, 1)
    assert (xp, wp, yp) == (x.ptr, w.ptr, y.ptr)
    assert (space, nbytes) == (WORKSPACE, 4096)
    assert (xd.shape, wd.shape, yd.shape) == ((2, 4, 7, 6), (6, 4, 3, 3), (2, 6, 4, 3))
    assert (how.padding, how.stride, how.math, how.flip) == ((1, 1), (2, 2), "FMA_MATH", False)


@pytest.mark.parametrize(
    ("kind", "function", "number", "roles"),
    [
        (G.GpuDnnConvGradI, "cudnnConvolutionBackwardData", 0, "wyx"),
        (G.GpuDnnConvGradW, "cudnnConvolutionBackwardFilter", 0, "xyw"),
    ],
)
def test_gradients_of_convolution(fake, kind, function, number, roles):
    _, (a, b, *_), (c,), _ = run(fake, conv(kind))
    args = fake.only(function)
    shapes = {"x": (2, 4, 7, 6), "w": (6, 4, 3, 3), "y": (2, 6, 4, 3)}
    assert [args[2].shape, args[4].shape, args[11].shape] == [shapes[r] for r in roles]
    assert [args[3], args[5], args[12]] == [a.ptr, b.ptr, c.ptr]
    assert args[7] == number


@pytest.mark.parametrize(
    ("dtype", "precision", "compute", "math"),
    [
        ("float16", "float32", "float32", "TENSOR_OP_MATH"),
        ("float16", "float16", "float16", "TENSOR_OP_MATH"),
        ("bfloat16", None, "float32", "TENSOR_OP_MATH"),
        ("float32", None, "float32", "FMA_MATH"),
        ("float64", None, "float64", "DEFAULT_MATH"),
    ],
)
def test_precision_of_convolution(fake, dtype, precision, compute, math):
    run(fake, conv(dtype=dtype, precision=precision))
    how = fake.only("cudnnConvolutionForward")[6]
    assert (how.compute, how.math) == (compute, math)


@pytest.mark.parametrize(
    "flags", [{"dnn.conv.allow_tf32": True}, {"dnn.conv.precision": "tf32"}, {}]
)
def test_tf32_is_a_choice(fake, flags):
    with config.change_flags(flags):
        run(fake, conv(hints=Hints(precision=None if flags else "tf32")))
    assert fake.only("cudnnConvolutionForward")[6].math == "DEFAULT_MATH"


def test_float64_factors_are_doubles(fake):
    seen = []
    fake.answers["cudnnConvolutionForward"] = lambda *a: seen.extend((a[1], a[10]))
    run(fake, conv(dtype="float64"))
    run(fake, conv(dtype="float16", precision="float32"))
    kinds = [type(p.contents) for p in seen]
    assert kinds == [ctypes.c_double, ctypes.c_double, ctypes.c_float, ctypes.c_float]


def test_a_line_is_convolved_as_an_image_of_height_one(fake):
    run(fake, conv(x=(2, 4, 9), w=(6, 2, 3), num_groups=2, dilation=(2,)))
    _, _, xd, _, wd, _, how, *_ = fake.only("cudnnConvolutionForward")
    assert (xd.shape, wd.shape) == ((2, 4, 1, 9), (6, 2, 1, 3))
    assert (how.padding, how.stride, how.dilation, how.groups) == ((0, 1), (1, 2), (1, 2), 2)


def test_a_volume_keeps_its_dimensions(fake):
    run(fake, conv(x=(2, 3, 5, 6, 7), w=(4, 3, 2, 3, 1), conv_mode="conv", algo="none"))
    _, _, xd, _, wd, _, how, algo, *_ = fake.only("cudnnConvolutionForward")
    assert (len(xd.shape), len(wd.shape), len(how.padding)) == (5, 5, 3)
    assert (how.flip, algo) == (True, 0)


def test_half_and_full_borders_become_numbers(fake):
    run(fake, conv(padding=("half", "full"), stride=(1, 1), w=(6, 4, 5, 3)))
    assert fake.only("cudnnConvolutionForward")[6].padding == (2, 2)


def test_large_batches_are_cut(fake):
    call = conv(x=(65536 + 7, 1, 4, 4), w=(2, 1, 3, 3))
    _, (x, w), (y,), _ = run(fake, call)
    first, second = fake.named("cudnnConvolutionForward")
    assert (first[2].shape[0], second[2].shape[0]) == (65535, 8)
    assert (first[3], second[3]) == (x.ptr, x.ptr + 65535 * 16 * 4)
    assert second[5] == w.ptr
    assert second[12] == y.ptr + 65535 * 2 * 2 * 2 * 4


def test_the_gradient_of_kernels_adds_up_over_the_pieces(fake):
    _, _, (dw,), _ = run(fake, conv(G.GpuDnnConvGradW, x=(65536, 1, 4, 4), w=(2, 1, 3, 3)))
    first, second = fake.named("cudnnConvolutionBackwardFilter")
    assert (first[10], second[10]) == (0.0, 1.0)
    assert first[12] == second[12] == dw.ptr


def test_an_empty_batch_launches_nothing(fake):
    env, *_ = run(fake, conv(x=(0, 4, 7, 6)))
    assert fake.ran() == []
    assert env.did == []


def test_the_gradient_of_an_empty_batch_is_zero(fake):
    env, _, (dw,), _ = run(fake, conv(G.GpuDnnConvGradW, x=(0, 4, 7, 6)))
    assert fake.ran() == []
    assert env.did == [("zero", dw.ptr, dw.nbytes)]


def test_adding_to_an_output_copies_it_first(fake):
    env, (_, _, add), (y,), _ = run(fake, conv(alpha=0.5, residual=-2.0))
    args = fake.only("cudnnConvolutionForward")
    assert (args[1], args[10], args[12]) == (0.5, -2.0, y.ptr)
    ((_, _, values),) = env.did
    assert add.ptr in values
    assert y.ptr in values


def test_adding_in_place_copies_nothing(fake):
    call = conv(alpha=0.5, residual=-2.0)
    kernel = library_kernels(type(call.op))[0]
    given = inputs_of(call)
    env = SimpleNamespace(cudnn=HANDLE, workspace=WORKSPACE)  # no launch: it would fail
    kernel.bind(call)(env, given, [given[2]])
    assert fake.only("cudnnConvolutionForward")[12] == given[2].ptr


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (conv(padding=((1, 2), (1, 1))), "alike before and after"),
        (conv(precision="float64"), "float32 in float64"),
    ],
)
def test_what_cudnn_does_not_convolve(fake, call, reason):
    (found,) = refusal(call)
    assert reason in found


# -- all ------------------------------------------------------------------------------------------


def test_descriptors_are_made_when_bound_not_when_launched(fake):
    call = conv()
    kernel = library_kernels(type(call.op))[0]
    launch = kernel.bind(call)
    fake.calls.clear()
    for _ in range(3):
        launch(SimpleNamespace(cudnn=HANDLE, workspace=1), inputs_of(call), arrays_of(call.outputs))
    assert [name for name, _ in fake.calls] == ["cudnnConvolutionForward"] * 3


def test_sizes_are_plain_integers(fake):
    call = conv()
    size = library_kernels(type(call.op))[0].workspace_bytes(call)
    assert operator.index(size) == 64
