"""The model of many GPUs: near what was measured, and what a step makes of its transfers."""

from __future__ import annotations

import pytest

from benchmarks import scale
from benchmarks.distributed.fabric import FABRICS, MEASURED
from benchmarks.scale import Bucket, Step, predicted

NEAR = FABRICS["nvlink+8x400g"]


@pytest.mark.parametrize("point", MEASURED, ids=lambda m: f"{m.gpus}x{m.nbytes / 1e6:.0f}MB")
def test_all_reduces_are_near_the_measured_ones(point):
    assert NEAR.all_reduce(point.nbytes, point.gpus) == pytest.approx(point.seconds, rel=0.3)


def test_small_transfers_go_by_trees_over_many_machines():
    """Hops of a ring grow with the cards, those of a tree with the machines' logarithm."""
    seconds = [NEAR.all_reduce(1024, n) for n in (8, 512, 4096)]
    assert seconds == sorted(seconds)
    assert seconds[2] < 10 * seconds[0] < 1e-3
    assert NEAR.all_reduce(1e9, 1) == NEAR.halves(1e9, 1) == 0
    assert NEAR.halves(1e9, 8) == pytest.approx(NEAR.all_reduce(1e9, 8) / 2, rel=0.01)
    slow = FABRICS["nvlink+1x100g"]
    assert slow.all_reduce(102e6, 16) > 10 * NEAR.all_reduce(102e6, 16)


def test_what_is_hidden_and_what_is_exposed(monkeypatch):
    monkeypatch.setattr(scale, "BESIDE", 1.0)
    took = NEAR.all_reduce(10**8, 8) * 1e3
    hidden = Step("", [Bucket(10**8, 0.2, 1.0)])
    total, moving = predicted(hidden, 10 * took, 8, NEAR)
    agreement = moving - took
    assert total == pytest.approx(10 * took + agreement)
    last = Step("", [Bucket(10**8, 0.5, 1.0), Bucket(10**8, 1.0, 1.0)])
    assert predicted(last, 10 * took, 8, NEAR)[0] == pytest.approx(11 * took + agreement)
    # The first is waited for at half time, and comes a quarter of the step too late.
    early = Step("", [Bucket(10**8, 0.25, 0.5)])
    assert predicted(early, 2 * took, 8, NEAR)[0] == pytest.approx(2.5 * took + agreement)


@pytest.mark.parametrize("beside", [0.2, 0.5])
def test_work_beside_a_transfer_is_slower(monkeypatch, beside):
    monkeypatch.setattr(scale, "BESIDE", beside)
    took = NEAR.all_reduce(10**8, 8) * 1e3
    lost = (1 - beside) * took
    total, moving = predicted(Step("", [Bucket(10**8, 0.2, 1.0)]), 10 * took, 8, NEAR)
    agreement = moving - took
    assert total == pytest.approx(10 * took + lost + agreement)
    both = Step("", [Bucket(10**8, 0.2, 1.0), Bucket(10**8, 0.2, 1.0)])  # one after the other
    assert predicted(both, 10 * took, 8, NEAR)[0] == pytest.approx(10 * took + 2 * lost + agreement)
    # All that is left is done beside it, and then it is waited for.
    end = Step("", [Bucket(10**8, 1 - beside / 20, 1.0)])
    assert predicted(end, 10 * took, 8, NEAR)[0] == pytest.approx(
        10 * took + took - beside * took / 2 + agreement
    )


@pytest.mark.slow
def test_steps_are_near_the_measured_ones():
    for count, case, _, measured, found, *_ in scale.check_steps()[1:]:
        assert float(found) == pytest.approx(float(measured), rel=0.03), (count, case)


def test_a_plan_has_its_buckets_in_their_order():
    step = scale.planned("gpt2", 16, NEAR, small=True)
    assert step.buckets
    assert all(0 < b.ready <= b.wanted <= 1 for b in step.buckets)
    assert [b.ready for b in step.buckets] == sorted(b.ready for b in step.buckets)


def test_ranges():
    assert scale._counts("8..64") == [8, 16, 32, 64]
    assert scale._counts("2,6") == [2, 6]
