"""The flag ``dnn.check``: what is wrong is found on the call's own values, blocked and replaced."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu import registry
from symdnn.gpu.conv import algorithm, checked
from symdnn.gpu.conv.algorithm import UnsupportedAlgorithm
from symdnn.graph.origin import Hints
from symdnn.ops.vendor import gpudnn as G
from symdnn.tuning import blocked
from tests.gpu.computing_cudnn import Memory, computing, run_conv  # noqa: F401
from tests.gpu.conv.test_cudnn_algorithm import FORWARD_GUESS, perf
from tests.gpu.fake_cudnn import conv

registry.load()

KINDS = {"fwd": G.GpuDnnConv, "bwd_data": G.GpuDnnConvGradI, "bwd_filter": G.GpuDnnConvGradW}
DEFAULTS = {"fwd": 1, "bwd_data": 0, "bwd_filter": 0}


def operands(call, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(t.shape).astype(t.numpy) if t.shape else np.int64(1)
        for t in call.inputs
    ]


def truth(call, given):
    sizes = [np.int64(n) for n in call.outputs[0].shape[2:]] if len(given) > 3 else []
    wide = [a.astype(np.float64) for a in given[:2]]
    return call.op.neutral().reference(*wide, *sizes)


@pytest.mark.parametrize("direction", KINDS)
def test_a_right_algorithm_is_run_once_and_stays(computing, fake, direction):  # noqa: F811
    call = conv(KINDS[direction])
    given = operands(call)
    got, env, launch, kernel = run_conv(fake, call, given)
    np.testing.assert_allclose(got, truth(call, given), rtol=1e-5, atol=1e-5)
    assert kernel.library_use(call).check.startswith("checked, off by")
    assert computing.ran.count((direction, DEFAULTS[direction])) == 1
    computing.ran.clear()
    env.did.clear()
    run_conv(fake, call, given, env, launch)  # a steady call
    assert computing.ran == [(direction, DEFAULTS[direction])]
    assert env.did == []
    run_conv(fake, call, given)  # another function with the same convolution
    assert computing.ran == [(direction, DEFAULTS[direction])] * 2


@pytest.mark.parametrize("direction", KINDS)
def test_a_wrong_default_is_replaced_in_the_same_call(
    computing, fake, direction, caplog  # noqa: F811
):  # fmt: skip
    computing.wrong[direction] = {DEFAULTS[direction]}
    call = conv(KINDS[direction])
    given = operands(call)
    with caplog.at_level(logging.WARNING, "symdnn.dnn"):
        got, env, launch, kernel = run_conv(fake, call, given)
    np.testing.assert_allclose(got, truth(call, given), rtol=1e-5, atol=1e-5)
    use = kernel.library_use(call)
    assert use.fallback.asked == algorithm.DIRECTIONS[direction].default
    assert use.fallback.got == use.used != use.fallback.asked
    assert "its result was off by" in use.fallback.why
    (line,) = caplog.messages
    assert str(use.fallback) in line
    (entry,) = blocked.entries()
    assert entry.name == algorithm.DIRECTIONS[direction].default
    assert (entry.key["library"], entry.key["version"], entry.key["arch"]) == (
        "cudnn",
        91900,
        "9.0",
    )
    computing.ran.clear()
    again, *_ = run_conv(fake, call, given, env, launch)
    np.testing.assert_array_equal(again, got)
    assert (direction, DEFAULTS[direction]) not in computing.ran


def test_another_process_does_not_run_it(computing, fake):  # noqa: F811
    computing.wrong["fwd"] = {1}
    call = conv()
    run_conv(fake, call, operands(call))
    for known in (algorithm, checked, blocked):
        known.forget()
    computing.ran.clear()
    with config.change_flags({"dnn.check": "off"}):
        *_, kernel = run_conv(fake, call, operands(call))
    assert ("fwd", 1) not in computing.ran
    search = algorithm.Search(kernel.parts[0].signature, 7)
    assert search.named(1) is None
    assert "it is on the block list" in search.refused["small"][0]


def test_a_wrong_named_one_raises_and_says_why(computing, fake):  # noqa: F811
    computing.wrong["fwd"] = {4}
    call = conv(algo="fft", hints=Hints(algo_fwd="fft"))
    with pytest.raises(UnsupportedAlgorithm, match="'fft' can't be used: .*its result was off by"):
        run_conv(fake, call, operands(call))
    algorithm.forget()
    with config.change_flags({"dnn.conv.on_unsupported": "fallback"}):
        got, _, _, kernel = run_conv(fake, call, operands(call))
    np.testing.assert_allclose(got, truth(call, operands(call)), rtol=1e-5, atol=1e-5)
    assert kernel.library_use(call).fallback.asked == "fft"


def test_several_wrong_ones_are_all_passed_over(computing, fake):  # noqa: F811
    fake.answers[FORWARD_GUESS] = [perf(2), perf(4), perf(0)]
    computing.wrong["fwd"] = {2, 4}
    call = conv(algo="guess_once", hints=Hints(algo_fwd="guess_once"))
    got, _, _, kernel = run_conv(fake, call, operands(call))
    np.testing.assert_allclose(got, truth(call, operands(call)), rtol=1e-5, atol=1e-5)
    assert kernel.library_use(call).used == "none"
    assert {e.name for e in blocked.entries()} == {"large", "fft"}


def test_an_added_result_is_checked_elsewhere(computing, fake):  # noqa: F811
    computing.wrong["fwd"] = {1}
    call = conv(residual=0.5, alpha=2.0)
    given = operands(call)
    got, *_ = run_conv(fake, call, given)
    wanted = 2 * truth(call, given) + 0.5 * given[2]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_no_check_in_a_capture(computing, fake):  # noqa: F811
    call = conv()
    env = Memory(fake, capturing=True)
    with pytest.raises(SymdnnError, match="not been checked"):
        run_conv(fake, call, operands(call), env)
    env.capturing = False
    *_, launch, _ = run_conv(fake, call, operands(call), env)
    env.capturing = True
    env.did.clear()
    run_conv(fake, call, operands(call), env, launch)
    assert env.did == []


def test_always_checks_each_call_and_captures_nothing(computing, fake):  # noqa: F811
    call = conv()
    with config.change_flags({"dnn.check": "always"}):
        _, env, launch, kernel = run_conv(fake, call, operands(call))
        assert not kernel.capturable(call)
        computing.wrong["fwd"] = {1}
        got, *_ = run_conv(fake, call, operands(call), env, launch)
    np.testing.assert_allclose(got, truth(call, operands(call)), rtol=1e-5, atol=1e-5)
    assert kernel.capturable(call)


def test_off_checks_nothing(computing, fake):  # noqa: F811
    computing.wrong["fwd"] = {1}
    call = conv()
    with config.change_flags({"dnn.check": "off"}):
        got, env, _, kernel = run_conv(fake, call, operands(call))
    assert env.did == []
    assert not np.allclose(got, truth(call, operands(call)))
    assert kernel.library_use(call).check == ""


def test_values_that_are_not_finite_decide_nothing(computing, fake):  # noqa: F811
    call = conv()
    given = operands(call)
    given[0][0, 0, 0, 0] = np.nan
    _, env, launch, kernel = run_conv(fake, call, given)
    assert kernel.library_use(call).check.startswith("not checked: the trusted result has NaN")
    assert list(blocked.entries()) == []
    run_conv(fake, call, operands(call), env, launch)
    assert kernel.library_use(call).check.startswith("checked")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("direction", KINDS)
def test_all_dtypes(computing, fake, direction, dtype):  # noqa: F811
    call = conv(KINDS[direction], dtype=dtype)
    given = operands(call)
    got, *_, kernel = run_conv(fake, call, given)
    np.testing.assert_allclose(got.astype(float), truth(call, given), rtol=5e-2, atol=5e-2)
    assert kernel.library_use(call).check.startswith("checked")


def test_sums_that_cancel_are_no_fault(computing, fake):  # noqa: F811
    """Terms of 1e4 that sum to 1: rounding in float32 is 1e-4 of the result and more."""
    call = conv(x=(2, 64, 7, 6), w=(6, 64, 3, 3))
    rng = np.random.default_rng(1)
    x = 1e3 + rng.standard_normal((2, 64, 7, 6)).astype("float32")
    w = rng.standard_normal((6, 64, 3, 3)).astype("float32")
    w -= w.mean((1, 2, 3), keepdims=True)
    *_, kernel = run_conv(fake, conv(x=x.shape, w=w.shape, padding=((0, 0),) * 2), [x, w])
    assert kernel.library_use(call) is not None
    assert list(blocked.entries()) == []


def test_large_batches_are_compared_in_parts(computing, fake, monkeypatch):  # noqa: F811
    monkeypatch.setattr("symdnn.gpu.conv.reference._PART_BYTES", 2000)
    for direction, kind in KINDS.items():
        call = conv(kind, x=(5, 4, 7, 6))
        *_, kernel = run_conv(fake, call, operands(call))
        assert kernel.library_use(call).check.startswith("checked, off by"), direction
        computing.wrong[direction] = {DEFAULTS[direction]}
        checked.forget()
        *_, kernel = run_conv(fake, call, operands(call))
        assert kernel.library_use(call).fallback is not None


def test_a_larger_workspace_is_allocated(computing, fake):  # noqa: F811
    fake.answers["cudnnGetConvolutionForwardWorkspaceSize"] = lambda *args: 1000 * (args[-1] != 1)
    fake.answers[FORWARD_GUESS] = [perf(2)]
    computing.wrong["fwd"] = {1}
    call = conv()
    _, env, _, kernel = run_conv(fake, call, operands(call))
    assert kernel.workspace_bytes(call) == 0
    assert kernel.library_use(call).workspace_bytes == 1000
    assert 1000 in env.allocated
