"""Searches over both of cuDNN's APIs: how they are merged, stored for a node, measured, saved.

Neither a GPU nor cuDNN is needed: the libraries and the bench are fakes that record.
"""

from __future__ import annotations

import contextlib
import gc
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from symdnn.config import config
from symdnn.disk import store as disk_store
from symdnn.errors import ConfigError, OptionError
from symdnn.gpu import registry
from symdnn.gpu.binding import frontend
from symdnn.gpu.conv import algorithm
from symdnn.gpu.conv import tuning as conv_tuning
from symdnn.gpu.conv.algorithm import choose
from symdnn.gpu.conv.blocklist import tolerance
from symdnn.gpu.conv.launch import signature
from symdnn.gpu.conv.reference import relative_error
from symdnn.gpu.conv.search import Search
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.device import cudnn_device
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Apply
from symdnn.ops.vendor import gpudnn as G
from symdnn.tuning import allowance, question, store
from symdnn.tuning.attempts import Attempt, best_of
from tests.gpu.conv.test_cudnn_algorithm import FORWARD_GUESS, FORWARD_SIZE, perf, refuse_algorithms
from tests.gpu.fake_cudnn import HANDLE, conv, library_kernels, run

registry.load()


def plan(engine, nbytes=10, deterministic=True, **knobs):
    return GraphPlan(engine, tuple(knobs.items()), f"eng{engine}", nbytes, deterministic)


def node_of(call):
    """A node as ``Call`` carries it."""
    return Apply(call.op, (), call.outputs)


def names(candidates):
    return [c.name for c in candidates]


@pytest.fixture
def both(fake):
    """Legacy algorithms 0 to 2, cuDNN's favourite last; two plans."""
    refuse_algorithms(fake, FORWARD_SIZE, 3, 4, 5, 6, 7)
    fake.answers[FORWARD_GUESS] = [perf(2), perf(0)]
    fake.plans = lambda form: ([plan(3), plan(4, 1000)], "")
    return fake


@pytest.fixture
def folder(monkeypatch, tmp_path, fake):
    """A card and a folder for measurements."""
    device = SimpleNamespace(
        index=0, cudnn=HANDLE, name="card", capability=(9, 0), current=contextlib.nullcontext
    )  # fmt: skip
    monkeypatch.setattr(cudnn_device, "existing_context", lambda: device)
    monkeypatch.setattr(frontend, "unavailable", lambda: "none in this test")
    fake.answers["cudnnGetVersion"] = 91900
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path)}):
        yield tmp_path


class Timer:
    """A fake :func:`symdnn.gpu.conv.measure.measure`: times by name, and the number of calls."""

    def __init__(self, monkeypatch, **times):
        self.times, self.calls = times, 0
        monkeypatch.setattr(conv_tuning, "measure", self)

    def __call__(self, context, signature, candidates, budget_ms, by, patience, runs):
        self.calls += 1
        table = []
        for c in candidates:
            ms = self.times.get(c.name)
            problem = "" if ms is not None else "wrong"
            table.append(Attempt(c, ms, 0.0, problem=problem))
        return table, ""


# -- one list of guesses --------------------------------------------------------------------------


def test_guesses_take_both_apis_in_turn(both):
    exact = Search(signature(conv(algo="guess_once")), HANDLE)
    assert names(exact.guesses()) == ["large", "eng3", "none", "eng4", "small"]
    narrow = Search(signature(conv(dtype="bfloat16", algo="guess_once")), HANDLE)
    assert names(narrow.guesses()) == ["eng3", "large", "eng4", "none", "small"]


@pytest.mark.parametrize("flag", [{"dnn.conv.allow_tf32": True}, {}])
def test_tf32_prefers_plans(both, flag):
    with config.change_flags(flag):
        first = next(Search(signature(conv()), HANDLE).guesses())
    assert first.api == ("graph" if flag else "legacy")


def test_limits_hold_for_both_apis(both):
    call = conv(algo="guess_once", hints=Hints(workspace_limit=150))
    search = Search(signature(call), HANDLE)
    assert names(search.guesses()) == ["none", "eng3"]
    assert search.refused["large"] == ["300 bytes of workspace, 150 allowed"]
    assert search.refused["eng4"] == ["1000 bytes of workspace, 150 allowed"]


def test_free_memory_is_a_limit(both, monkeypatch):
    monkeypatch.setattr(algorithm, "free_bytes", lambda: 150)
    assert choose(signature(conv(algo="guess_once")), 0).candidate.name == "none"
    with config.change_flags(deterministic="more"):  # free memory must not decide there
        assert choose(signature(conv(algo="guess_once")), 0).candidate.name == "large"


def test_a_scaled_or_added_result_is_the_legacy_apis(both):
    for more in ({"alpha": 2.0}, {"residual": 1.0}):
        search = Search(signature(conv(algo="guess_once", **more)), HANDLE)
        assert {c.api for c in search.guesses()} == {"legacy"}
        assert "neither scales" in search.refused["graph API"][0]


def test_deterministic_leaves_out_plans_that_are_not(both):
    both.plans = lambda form: ([plan(3, deterministic=False), plan(4)], "")
    with config.change_flags(deterministic="more"):
        assert names(Search(signature(conv()), HANDLE).planned()) == ["eng4"]


def test_plans_for_mirrored_kernels_are_asked_for_too(both):
    both.plans = lambda form: ([], "no") if form.flip else ([plan(5)], "")
    (found,) = Search(signature(conv(conv_mode="conv")), HANDLE).planned()
    assert (found.name, found.flip_by_copy) == ("eng5", True)


# -- defaults and names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "layout", "api"),
    [("float32", "NCHW", "legacy"), ("bfloat16", "NCHW", "graph"), ("float16", "NHWC", "graph"),
     ("float32", "NHWC", "graph"), ("float64", "NCHW", "legacy")],
)  # fmt: skip
def test_the_flags_default_gives_way_to_plans(both, dtype, layout, api):
    s = replace(signature(conv(dtype=dtype, algo="small")), layout=layout)
    assert choose(s, 0).candidate.api == api


def test_a_default_that_is_written_down_is_pinned(both):
    call = conv(dtype="bfloat16", algo="small", hints=Hints(algo_fwd="small"))
    assert choose(signature(call), 0).candidate.name == "small"
    with config.change_flags({"dnn.conv.algo_fwd": "small"}):
        found = choose(signature(conv(dtype="bfloat16", algo="small")), 0)
    assert found.candidate.name == "small"


def test_a_refusal_lists_what_works(both):
    with pytest.raises(algorithm.UnsupportedAlgorithm) as caught:
        choose(signature(conv(algo="fft")), 0)
    text = str(caught.value)
    assert "algorithm 'fft' can't be used: fft: cudnnGetConvolutionForwardWorkspaceSize" in text
    assert "these work here: small, none, large." in text
    assert "dnn.conv.on_unsupported=fallback" in text


def test_a_named_algorithm_is_refused_where_it_does_not_repeat_its_bits(fake):
    call = conv(G.GpuDnnConvGradI, algo="none", hints=Hints(algo_bwd_data="none"))
    refused = pytest.raises(algorithm.UnsupportedAlgorithm, match="not deterministic")
    with config.change_flags(deterministic="more"), refused:
        choose(signature(call), 0)


# -- ways of choosing -----------------------------------------------------------------------------


def test_a_program_may_have_a_way_of_its_own(both, monkeypatch):
    def least(search):
        found = min(search.all(), key=lambda c: c.workspace_bytes)
        return algorithm.ConvAlgorithm(found, "least workspace")

    monkeypatch.setitem(algorithm.WAYS, "least", least)
    for more in ({"algo": "least_once"}, {"hints": Hints(algo_fwd="least_on_shape_change")}):
        found = choose(signature(conv(**more)), 0)
        assert (found.candidate.name, found.source) == ("eng3", "least workspace")
    with config.change_flags({"dnn.conv.algo_fwd": "least_once"}):
        assert choose(signature(conv()), 0).candidate.name == "eng3"
    monkeypatch.setitem(algorithm.WAYS, "least", lambda search: None)
    algorithm.forget()
    assert choose(signature(conv(algo="least_once")), 0).source == "cuDNN's heuristics"


def test_an_unknown_way_is_refused_where_it_would_choose(both):
    with pytest.raises(algorithm.UnsupportedAlgorithm, match="'most_once'.*, time_on_shape_change"):
        choose(signature(conv(algo="most_once")), 0)


@pytest.mark.parametrize("word", ["tiem_once", "gues_on_shape_change", "time_one", "none_once"])
def test_a_misspelt_way_is_refused_at_once(word):
    with pytest.raises(ConfigError, match="not an allowed value"):
        config.change_flags({"dnn.conv.algo_fwd": word}).__enter__()
    with pytest.raises(OptionError, match="wanted one of"):
        Hints(algo_fwd=word)


# -- once, and on each change of shape ------------------------------------------------------------


def other_shape(call):
    return signature(conv(x=(3, 4, 9, 8), algo=call.op.algo))


def test_once_keeps_a_nodes_first_choice(both):
    call = conv(algo="guess_once")
    node = node_of(call)
    first = choose(signature(call), 0, node)
    both.answers[FORWARD_GUESS] = [perf(0)]
    again = choose(other_shape(call), 0, node)
    assert again.candidate.name == first.candidate.name == "large"
    assert again.source == "the node's first choice"
    assert choose(other_shape(call), 0, node_of(call)).candidate.name == "none"  # another node
    assert choose(signature(call), 0, node) is first


def test_on_shape_change_chooses_for_each_shape(both):
    call = conv(algo="guess_on_shape_change")
    node = node_of(call)
    assert choose(signature(call), 0, node).candidate.name == "large"
    both.answers[FORWARD_GUESS] = [perf(0)]
    assert choose(other_shape(call), 0, node).candidate.name == "none"
    assert choose(signature(call), 0, node).candidate.name == "large"  # remembered


def test_once_guesses_where_the_first_choice_is_refused(both):
    call = conv(algo="guess_once")
    node = node_of(call)
    choose(signature(call), 0, node)
    refuse_algorithms(both, FORWARD_SIZE, 2, 3, 4, 5, 6, 7)
    found = choose(other_shape(call), 0, node)
    assert found.candidate.name == "none"
    assert found.instead_of == "large, the node's first choice"


def test_once_keeps_a_plan_by_engine_and_knobs(both):
    call = conv(dtype="bfloat16", algo="guess_once")
    node = node_of(call)
    assert choose(signature(call), 0, node).candidate.name == "eng3"
    both.plans = lambda form: ([plan(9), plan(3, 77)], "")
    found = choose(signature(conv(dtype="bfloat16", x=(3, 4, 9, 8), algo="guess_once")), 0, node)
    assert (found.candidate.name, found.workspace_bytes) == ("eng3", 77)


def test_a_node_that_is_gone_is_forgotten(both):
    call = conv(algo="guess_once")
    choose(signature(call), 0, node_of(call))
    gc.collect()
    assert len(algorithm._remembered._first) == 0


# -- measured -------------------------------------------------------------------------------------


def test_timing_takes_the_fastest_that_is_right(both, folder, monkeypatch):
    timer = Timer(monkeypatch, none=3.0, eng4=1.0, large=2.0)
    call = conv(algo="time_once")
    found = choose(signature(call), 0)
    assert (found.candidate.name, found.ms) == ("eng4", 1.0)
    assert "fastest of 3 measured" in str(found)
    choose(signature(call), 0)
    assert timer.calls == 1


def test_a_measured_choice_is_kept_for_other_processes(both, folder, monkeypatch):
    timer = Timer(monkeypatch, none=3.0, small=1.0)
    call = conv(algo="time_once")
    choose(signature(call), 0)
    algorithm.forget()  # as another process begins
    found = choose(signature(call), 0)
    assert (found.candidate.name, found.ms, timer.calls) == ("small", 1.0, 1)
    assert "measured before" in found.source
    other = choose(signature(conv(x=(3, 4, 9, 8), algo="time_once")), 0)
    assert (other.candidate.name, timer.calls) == ("small", 2)


def test_a_stored_choice_is_asked_for_again(both, folder, monkeypatch):
    timer = Timer(monkeypatch, none=3.0, small=1.0)
    call = conv(algo="time_once")
    choose(signature(call), 0)
    algorithm.forget()
    refuse_algorithms(both, FORWARD_SIZE, 1, 3, 4, 5, 6, 7)
    assert choose(signature(call), 0).candidate.name == "none"
    assert timer.calls == 2


def test_the_first_that_stored_wins(both, folder, monkeypatch):
    timer = Timer(monkeypatch, none=1.0, small=3.0)
    call = conv(algo="time_once")
    key = {"family": "convolution", **conv_tuning.key_of(signature(call), "time")}
    search = Search(signature(call), HANDLE)
    monkeypatch.setattr(store, "recall", lambda key, _real=store.recall: None if not timer.calls
                        else _real(key))  # fmt: skip
    store.remember(key, conv_tuning.ConvQuestion(search).record(Attempt(search.named(1), 3.0, 0.0)))
    found = choose(signature(call), 0)
    assert (found.candidate.name, timer.calls) == ("small", 1)
    assert "another process" in found.source


def test_a_kept_choice_is_used_and_nothing_is_measured(both, folder, monkeypatch):
    timer = Timer(monkeypatch, none=3.0, small=1.0)
    kept = signature(conv(algo="kept_on_shape_change"))
    assert choose(kept, 0).source == "cuDNN's heuristics"
    assert timer.calls == 0
    choose(signature(conv(algo="time_once")), 0)
    algorithm.forget()
    found = choose(kept, 0)
    assert (found.candidate.name, found.ms, timer.calls) == ("small", 1.0, 1)
    refuse_algorithms(both, FORWARD_SIZE, 1, 3, 4, 5, 6, 7)
    algorithm.forget()
    assert choose(kept, 0).source == "cuDNN's heuristics"
    assert timer.calls == 1


@pytest.mark.parametrize("algo", ["time_once", "kept_once"])
def test_only_a_measurement_is_put_off(both, folder, monkeypatch, algo):
    Timer(monkeypatch, none=1.0)
    with allowance.visiting(may_measure=False) as visit:
        choose(signature(conv(algo=algo)), 0)
    assert visit.postponed == (algo == "time_once")


def test_a_damaged_record_is_dropped(both, folder, monkeypatch):
    timer = Timer(monkeypatch, none=1.0)
    call = conv(algo="time_once")
    choose(signature(call), 0)
    (file,) = folder.rglob("*.json")
    text = file.read_text()
    for damaged in (text[:50], text.replace('"ms": 1.0', '"ms": 9.0'), "[]", "\xff" * 9):
        file.write_text(damaged, encoding="latin-1")
        algorithm.forget()
        with pytest.warns(RuntimeWarning, match="damaged: dropped"):
            assert choose(signature(call), 0).candidate.name == "none"
    assert timer.calls == 5
    assert json.loads(file.read_text())["record"]["ms"] == 1.0


def test_nothing_right_means_a_guess(both, folder, monkeypatch):
    Timer(monkeypatch)
    question._say_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="nothing could be measured"):
        found = choose(signature(conv(algo="time_once")), 0)
    assert (found.candidate.name, found.source) == ("large", "cuDNN's heuristics")
    assert not list(folder.rglob("*.json"))


def test_deterministic_measures_only_what_can_be_kept(both, folder, monkeypatch):
    timer = Timer(monkeypatch, none=1.0, large=2.0)
    call = conv(algo="time_once")
    with config.change_flags(deterministic="more"):
        assert choose(signature(call), 0).candidate.name == "none"
        algorithm.forget()
        with config.change_flags({"dnn.conv.tuning_cache": "off"}):
            assert choose(signature(call), 0).candidate.name == "large"  # guessed
    assert timer.calls == 1


def test_a_folder_that_cannot_be_written_to_is_said_once(both, folder, monkeypatch):
    Timer(monkeypatch, none=1.0)
    blocked = folder / "file"
    blocked.write_text("")
    disk_store._said.clear()
    said = pytest.warns(RuntimeWarning, match="cannot be kept")
    with config.change_flags({"dnn.conv.tuning_cache": str(blocked)}), said:
        assert choose(signature(conv(algo="time_once")), 0).candidate.name == "none"


def test_the_best_by_memory_or_energy(both):
    search = Search(signature(conv()), HANDLE)
    small, none = search.named(1), search.named(0)
    table = [Attempt(none, 3.0, 0.0, 10.0), Attempt(small, 1.0, 0.0, 20.0)]
    assert best_of(table, "time").candidate is small
    assert best_of(table, "memory").candidate is none
    assert best_of(table, "energy").candidate is none
    assert best_of([Attempt(small, 1.0, problem="wrong")], "time") is None


# -- the check of results -------------------------------------------------------------------------


def test_errors_are_relative_and_single_wrong_values_count():
    assert relative_error(1e-8, 1.0, 1e-6, 100, 1e-3) == pytest.approx(1e-4)
    assert relative_error(1e-8, 1.0, 0.9, 100, 1e-3) == float("inf")
    assert relative_error(float("nan"), 1.0, 0.0, 100, 1e-3) == float("inf")
    assert relative_error(1e-8, 1.0, float("nan"), 100, 1e-3) == float("inf")
    assert relative_error(0.0, 0.0, 0.0, 1, 1e-3) == 0


def test_the_tolerance_tells_tf32_from_float32(fake):
    s = signature(conv())
    assert tolerance(s) < 3e-4 < tolerance(replace(s, allow_tf32=True))  # 3e-4: TF32's error


# -- a plan is launched ---------------------------------------------------------------------------


def test_a_plan_is_launched_with_pointers_by_role(both, monkeypatch):
    ran = []
    monkeypatch.setattr(
        "symdnn.gpu.cudnn.graph.launch",
        lambda form, plan, handle: (
            lambda h, at, workspace: ran.append((plan.engine, at, workspace))
        ),
    )
    call = conv(dtype="bfloat16", algo="guess_once", precision="float32")
    env, (x, w), (y,), _ = run(both, call)
    assert ran == [(3, {"x": x.ptr, "w": w.ptr, "y": y.ptr}, env.workspace)]


def test_operands_at_odd_addresses_are_copied(fake):
    call = conv()
    kernel = library_kernels(type(call.op))[0]
    _, (x, *_), _, _ = run(fake, call)
    assert kernel.accepts(0, x)
    assert not kernel.accepts(0, replace(x, ptr=x.ptr + 4))


# -- what reports say -----------------------------------------------------------------------------


def test_a_settled_kernel_says_what_runs(both):
    call = conv(algo="guess_once")
    kernel = library_kernels(type(call.op))[0].settled(call)
    both.calls.clear()
    use = kernel.library_use(call)
    assert (use.requested, use.used, use.api, use.engine) == ("guess_once", "large", "legacy", "2")
    assert (use.workspace_bytes, use.deterministic, use.ms) == (300, True, None)
    assert use.precision == "float32 NCHW"
    assert both.calls == []  # there is no second query


def test_a_settled_kernel_keeps_its_choice_when_flags_change(both):
    call = conv(algo="guess_once")
    kernel = library_kernels(type(call.op))[0].settled(call)
    with config.change_flags({"dnn.conv.workspace_limit": 1, "dnn.conv.allow_tf32": True}):
        assert kernel.workspace_bytes(call) == 300
        assert "tf32" not in kernel.library_use(call).precision


def test_a_default_is_called_one(both):
    call = conv(algo="small")
    use = library_kernels(type(call.op))[0].library_use(call)
    assert (use.requested, use.why) == ("small (default)", "the flag's default")
    with config.change_flags({"dnn.conv.allow_tf32": True}):
        assert "tf32" in library_kernels(type(call.op))[0].library_use(call).precision


def test_nothing_to_convolve_has_no_row(both):
    call = conv(x=(0, 4, 7, 6))
    assert library_kernels(type(call.op))[0].settled(call).library_use(call) is None


def test_channels_last_are_described_by_strides(fake):
    s = replace(signature(conv()), layout="NHWC")
    assert (s.in_memory("x"), s.in_memory("w")) == ((2, 7, 6, 4), (6, 3, 3, 4))
    assert s.describe("x").strides == (7 * 6 * 4, 1, 6 * 4, 4)
    assert (s.describe("w").shape, s.describe("w").layout) == ((6, 4, 3, 3), "NHWC")


def test_ends_are_part_of_the_question_where_time_decides(both, folder, monkeypatch):
    """The least memory may be anywhere in the list, so all are tried for it."""
    asked = []
    timer = Timer(monkeypatch, large=2.0, none=1.0, small=3.0, eng3=4.0, eng4=5.0)
    monkeypatch.setattr(
        conv_tuning, "measure",
        lambda *given, **ends: (asked.append([*ends.values()]), timer(*given, **ends))[1],
    )  # fmt: skip
    s = signature(conv(algo="time_once"))
    for by, patience, performance in (
        ("time", 16, "default"), ("time", 16, "default"), ("time", 0, "default"),
        ("memory", 16, "default"), ("time", 16, "max"),
    ):  # fmt: skip
        flags = {"dnn.conv.objective": by, "dnn.conv.time_patience": patience}
        with config.change_flags(performance=performance, **flags):
            conv_tuning.measured(Search(s, HANDLE))
    assert asked == [[16, 1000], [0, 0], [0, 0], [16, 0]]
