"""Which algorithm a convolution gets: names, searches, limits. Needs neither a GPU nor cuDNN."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from symdnn.config import config
from symdnn.errors import CudnnError
from symdnn.gpu import registry
from symdnn.gpu.conv import algorithm
from symdnn.gpu.device import cudnn_device
from symdnn.graph.origin import Hints
from symdnn.ops.vendor import gpudnn as G
from tests.gpu.fake_cudnn import WORKSPACE, conv, library_kernels, refusal, run, unsupported

registry.load()

# -- the choice of an algorithm -------------------------------------------------------------------


def chosen(call):
    return library_kernels(type(call.op))[0].details(call)


def refuse_algorithms(fake, name, *numbers, flipped=()):
    """Let the workspace query refuse these numbers (always, or where kernels are mirrored)."""

    def answer(handle, a, b, how, c, number):
        if number in numbers or (number in flipped and fake.what[int(how)].flip):
            raise unsupported(name)
        return 100 * (int(number) + 1)

    fake.answers[name] = answer


def perf(number, status=0):
    return SimpleNamespace(algo=number, status=status)


FORWARD_SIZE = "cudnnGetConvolutionForwardWorkspaceSize"
FORWARD_GUESS = "cudnnGetConvolutionForwardAlgorithm_v7"


@pytest.mark.parametrize(
    ("word", "number"),
    [("none", 0), ("small", 1), ("large", 2), ("fft", 4), ("fft_tiling", 5), ("winograd", 6),
     ("winograd_non_fused", 7), (3, 3)],
)  # fmt: skip
def test_a_named_algorithm_is_taken(fake, word, number):
    run(fake, conv(algo=word))
    assert fake.only("cudnnConvolutionForward")[7] == number
    assert fake.named(FORWARD_GUESS) == []


@pytest.mark.parametrize(
    ("kind", "word", "number"),
    [
        (G.GpuDnnConvGradI, "deterministic", 1), (G.GpuDnnConvGradI, "fft_tiling", 3),
        (G.GpuDnnConvGradI, "winograd_non_fused", 5), (G.GpuDnnConvGradW, "deterministic", 1),
        (G.GpuDnnConvGradW, "small", 3), (G.GpuDnnConvGradW, "fft_tiling", 6),
        (G.GpuDnnConvGradW, "winograd_non_fused", 5),
    ],
)  # fmt: skip
def test_named_algorithms_of_the_gradients(fake, kind, word, number):
    run(fake, conv(kind, algo=word))
    (name,) = {n for n in fake.ran() if n.startswith("cudnnConvolution")}
    assert fake.only(name)[7] == number


def test_the_flag_names_the_algorithm_where_the_op_does_not(fake):
    with config.change_flags({"dnn.conv.algo_fwd": "fft"}):
        run(fake, conv())
    assert fake.only("cudnnConvolutionForward")[7] == 4


def test_the_hint_names_the_algorithm(fake):
    run(fake, conv(hints=Hints(algo_fwd="large")))
    assert fake.only("cudnnConvolutionForward")[7] == 2


def test_a_search_takes_the_first_guess_within_the_limit(fake):
    refuse_algorithms(fake, FORWARD_SIZE)
    fake.answers[FORWARD_GUESS] = [perf(7, 9), perf(5), perf(4), perf(0)]
    call = conv(algo="guess_once", hints=Hints(workspace_limit=550))
    run(fake, call)
    assert fake.only("cudnnConvolutionForward")[7] == 4
    said = "fft (cuDNN's heuristics, workspace 500 bytes, instead of fft_tiling)"
    assert chosen(call).count(said) == 1


def test_the_default_gives_way(fake):
    refuse_algorithms(fake, FORWARD_SIZE, 1)
    fake.answers[FORWARD_GUESS] = [perf(1), perf(7)]
    call = conv(algo="small")
    run(fake, call)
    assert fake.only("cudnnConvolutionForward")[7] == 7
    assert "instead of small" in chosen(call)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_default_gives_way_where_sums_would_be_rounded(fake, dtype):
    run(fake, conv(G.GpuDnnConvGradW, dtype, algo="none", precision="float32"))
    assert fake.only("cudnnConvolutionBackwardFilter")[7] == 1
    fake.calls.clear()
    run(fake, conv(G.GpuDnnConvGradW, algo="none"))
    run(fake, conv(G.GpuDnnConvGradI, dtype, algo="none", precision="float32"))
    assert fake.only("cudnnConvolutionBackwardFilter")[7] == 0
    assert fake.only("cudnnConvolutionBackwardData")[7] == 0


def test_the_default_is_taken_where_nothing_rounds_less(fake):
    refuse_algorithms(fake, "cudnnGetConvolutionBackwardFilterWorkspaceSize", 1)
    run(fake, conv(G.GpuDnnConvGradW, "float16", algo="none", precision="float32"))
    assert fake.only("cudnnConvolutionBackwardFilter")[7] == 0


def test_without_a_guess_the_next_that_works_is_taken(fake):
    refuse_algorithms(fake, FORWARD_SIZE, 1, 0)
    fake.answers[FORWARD_GUESS] = []
    run(fake, conv())
    assert fake.only("cudnnConvolutionForward")[7] == 2


def test_a_named_algorithm_that_is_refused_is_an_error(fake):
    refuse_algorithms(fake, FORWARD_SIZE, 4)
    with pytest.raises(algorithm.UnsupportedAlgorithm, match="'fft' can't be used") as caught:
        run(fake, conv(algo="fft"))
    assert "NOT_SUPPORTED" in str(caught.value)
    assert "on_unsupported=fallback" in str(caught.value)
    assert "tensor float32(2, 4, 7, 6)" in "\n".join(caught.value.__notes__)


def test_a_named_algorithm_may_fall_back_when_told(fake):
    refuse_algorithms(fake, FORWARD_SIZE, 4)
    fake.answers[FORWARD_GUESS] = [perf(0)]
    with config.change_flags({"dnn.conv.on_unsupported": "fallback"}):
        call = conv(algo="fft")
        run(fake, call)
        assert "none (cuDNN's heuristics" in chosen(call)
        assert "instead of fft" in chosen(call)


def test_no_algorithm_at_all_is_a_refusal(fake):
    refuse_algorithms(fake, FORWARD_SIZE, *range(8))
    fake.answers[FORWARD_GUESS] = []
    (reason,) = refusal(conv())
    assert "no algorithm for this convolution" in reason


@pytest.mark.parametrize("kind", [G.GpuDnnConvGradI, G.GpuDnnConvGradW])
def test_deterministic_takes_only_what_repeats(fake, kind):
    stem = "BackwardData" if kind is G.GpuDnnConvGradI else "BackwardFilter"
    fake.answers[f"cudnnGetConvolution{stem}Algorithm_v7"] = [perf(0), perf(3), perf(1)]
    call = conv(kind, algo="none")
    with config.change_flags({"deterministic": "more"}):
        run(fake, call)
        assert "instead of none" in chosen(call)
    expected = {"BackwardData": 3, "BackwardFilter": 1}[stem]  # bwd_filter's 3 adds atomically
    assert fake.only(f"cudnnConvolution{stem}")[7] == expected


def test_an_unknown_word_is_an_error(fake):
    with pytest.raises(algorithm.UnsupportedAlgorithm, match="'fast'.*wanted one of"):
        run(fake, conv(algo="fast"))


def test_kernels_are_mirrored_by_a_copy_where_cudnn_only_correlates(fake):
    refuse_algorithms(fake, FORWARD_SIZE, flipped=range(8))
    call = conv(conv_mode="conv")
    kernel = library_kernels(type(call.op))[0]
    env, (_, w), _, _ = run(fake, call)
    args = fake.only("cudnnConvolutionForward")
    assert args[6].flip is False
    assert args[5] == WORKSPACE + 256  # behind the 200 bytes of cuDNN
    assert kernel.workspace_bytes(call) == 256 + w.nbytes
    ((_, _, values),) = env.did
    last = w.ptr + (2 * 3 + 2) * 4  # the copy reads from the last element backwards
    assert last in values
    assert args[5] in values


def test_a_mirrored_gradient_of_kernels_is_copied_back(fake):
    refuse_algorithms(fake, "cudnnGetConvolutionBackwardFilterWorkspaceSize", flipped=range(8))
    env, _, (dw,), _ = run(fake, conv(G.GpuDnnConvGradW, conv_mode="conv"))
    scratch = fake.only("cudnnConvolutionBackwardFilter")[12]
    assert scratch != dw.ptr
    ((_, _, values),) = env.did
    assert dw.ptr in values


def test_an_algorithm_is_chosen_once_for_a_signature(fake):
    call = conv(algo="guess_once")
    fake.answers[FORWARD_GUESS] = [perf(0)]
    run(fake, call)
    run(fake, call)
    assert len(fake.named(FORWARD_GUESS)) == 1


def test_without_a_device_nothing_is_asked(fake, monkeypatch):
    monkeypatch.setattr(cudnn_device, "existing_context", lambda: None)
    call = conv(algo="fft")
    kernel = library_kernels(type(call.op))[0]
    assert kernel.refuses(call) is None
    assert kernel.workspace_bytes(call) > 0
    assert fake.calls == []
    assert "not asked of a device" in kernel.details(call)


def test_an_error_of_cudnn_says_what_was_asked(fake):
    def fail(*args):
        raise unsupported("cudnnConvolutionForward")

    fake.answers["cudnnConvolutionForward"] = fail
    with pytest.raises(CudnnError) as caught:
        run(fake, conv())
    notes = "\n".join(caught.value.__notes__)
    for part in ("small", "workspace 64 bytes", "filter float32(6, 4, 3, 3)", "padding (1, 1)"):
        assert part in notes
