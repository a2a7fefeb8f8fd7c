"""Profiles and reports."""

import time

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.report.profile import FunctionProfile
from symdnn.config import config
from symdnn.graph.runtime import COMPILE_CLOCK
from tests.forked import forked


def compiled(**options):
    x = T.dmatrix("x")
    return symdnn.function([x], T.exp(x.dot(x.T))[::-1].sum(axis=0), name="f", **options)


@pytest.mark.cpu
def test_profile_counts_calls_time_and_bytes(capsys):
    f = compiled(profile=True)
    for _ in range(3):
        f(np.ones((4, 4)))
    p = f.profile
    assert p.calls == 3
    by_op = {name: (calls, moved) for name, calls, _, moved in p.by_op()}
    assert by_op["Exp"] == (3, 3 * 2 * 4 * 4 * 8)
    inside = sum(n.seconds for n in p.nodes.values())
    assert 0 < inside < p.seconds
    text = p.summary()
    assert capsys.readouterr().err.strip() == text.strip()
    assert "Profile of f: 3 calls" in text
    assert f"{__file__}" in text
    with config.change_flags(profile_memory=True):
        assert "bytes read and written" in p.text()


def test_no_profile_by_default_and_a_profile_may_be_shared():
    assert compiled().profile is None
    p = FunctionProfile("both")
    f, g = compiled(profile=p), compiled(profile=p)
    f(np.ones((2, 2)))
    g(np.ones((2, 2)))
    assert p.calls == 2


def test_the_flag_profiles_every_function_and_prints_at_exit():
    code = """
import numpy as np, symdnn, symdnn.tensor as T
x = T.dvector("x")
f = symdnn.function([x], T.exp(x) + 1, name="mine")
f(np.ones(3)); f(np.ones(3))
print("done")
"""
    done = forked(code, env={"SYMDNN_FLAGS": "profile=True", "PATH": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "Profile of mine: 2 calls" in done.stderr


@pytest.mark.cpu
def test_lowering_report_has_a_row_for_each_node_of_each_plan():
    f = compiled()
    planned = f.lowering_report()
    assert {row.how for row in planned.rows} <= {"not planned", "host"}
    f(np.ones((2, 3)))
    f(np.ones((4, 3)))
    report = f.lowering_report()
    nodes = [n for s in f.stages.program.segments() for n in s.nodes]
    assert len([row for row in report.rows if row.plan is not None]) == 2 * len(nodes)
    hows = {row.how for row in report.rows if row.plan == 0}
    assert {"view", "numpy.matmul"} <= hows
    dot = next(row for row in report.rows if type(row.node.op).__name__ == "Dot")
    assert dot.line.startswith(__file__)
    assert dot.target == "cpu"
    assert report.kernels()["view"] >= 2

    refused = [why for row in report.rows for _, why in row.refused]
    assert all(refused)
    assert "Dot" in str(report)


def test_columns_of_the_lowering_report_are_as_wide_as_what_is_in_them():
    x = T.matrix("x")
    f = symdnn.function([x], T.tanh(x), mode=symdnn.Mode(target="cuda:sm_90"))
    header, *rows = str(f.lowering_report()).splitlines()
    assert header.startswith("plan  target       by           op, user's line")
    at = header.index("by")
    assert [row[at - 2 : at + 11] for row in rows if "  -  " in row] == ["  not planned"] * 3


def test_memory_report():
    w = symdnn.shared(np.zeros((5, 5)))
    x = T.dmatrix("x")
    f = symdnn.function([x], T.exp(x.dot(w)).dot(x) + np.ones((5, 5)), updates=[(w, w * 2)])
    assert f.memory_report().plans == 0
    before = str(f.memory_report())
    assert before.startswith("plans                       0, made at first calls\nshared variables")
    f(np.ones((5, 5)))
    report = f.memory_report()
    assert report.plans == 1
    assert report.shared == 200
    assert report.constants >= 200
    assert report.made_per_call == 200  # the new value of w is made in its place
    assert report.peak == report.arena + 200
    assert report.arena >= report.largest_live >= 200
    assert "arena of the largest plan" in str(report)


@pytest.mark.cpu
def test_a_profile_is_printed_when_the_process_ends_unless_it_was_shown():
    code = """if True:
        import numpy as np, symdnn, symdnn.tensor as T
        x = T.fmatrix("x")
        f, g, never = (symdnn.function([x], T.tanh(x), profile=True, name=n) for n in "fgh")
        f(np.ones((5, 5), "float32")), g(np.ones((5, 5), "float32"))
        g.profile.summary()
        print("the end", flush=True)
    """
    done = forked(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Profile of f: 1 calls") == 1
    assert done.stderr.count("Profile of g") == 1
    assert "Profile of h" not in done.stderr


def test_the_wait_for_a_compiler_is_no_steps_time():
    profile = FunctionProfile("f")
    node = T.exp(T.vector("x")).owner
    watch = profile.watch()
    watch(node, [], None)
    with COMPILE_CLOCK.running():
        time.sleep(0.05)
    watch(node, [], [])
    watch.finish([])
    assert profile.compile_seconds >= 0.05
    assert profile.nodes[node].seconds <= profile.seconds - 0.05
    assert "ms compiling" in profile.text()
    profile.forget()
    assert profile.compile_seconds == 0
