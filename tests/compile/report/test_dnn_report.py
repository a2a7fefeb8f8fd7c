"""``f.dnn_report()``: rows of the kernels that say what their library runs, data and table."""

from __future__ import annotations

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan import specialise
from symdnn.compile.plan.specialise import Choice
from symdnn.graph.library_use import LibraryUse


class Library:
    """A kernel of the CPU that claims to have chosen an algorithm when it was settled."""

    def __init__(self, kernel, shapes=None):
        self.kernel, self.shapes, self.name = kernel, shapes, kernel.name

    def chosen(self, call):
        found = self.kernel.chosen(call)
        fits = not isinstance(found, str)
        return Library(self.kernel, tuple(t.shape for t in call.inputs)) if fits else found

    def library_use(self, call):
        return LibraryUse("time_once", f"plan for {self.shapes}", "graph", "7", 640, False,
                          "float32 NCHW", 0.25, "fastest of 3 measured")  # fmt: skip

    def __getattr__(self, name):
        return getattr(self.kernel, name)


def with_library(monkeypatch, op_name):
    real = specialise.kernels_for

    def kernels_for(op_type, kind):
        found = real(op_type, kind)
        return [Library(k) for k in found] if op_type.__name__ == op_name else found

    monkeypatch.setattr(specialise, "kernels_for", kernels_for)


def products():
    x, w = T.matrix("x", dtype="float32"), T.matrix("w", dtype="float32")
    return symdnn.function([x, w], T.tanh(T.dot(x, w)), mode=symdnn.Mode(target="cpu"))


def test_without_a_library_there_are_no_rows():
    f = products()
    f(np.ones((2, 3), "float32"), np.ones((3, 4), "float32"))
    assert f.dnn_report().rows == ()
    assert "no plan has a node" in str(f.dnn_report())


def test_a_row_for_each_plan_says_what_was_settled(monkeypatch):
    f = products()
    (op_name,) = {type(n.op).__name__ for n in f.fgraph.nodes} & {"Dot", "OneDnnMatmul"}
    with_library(monkeypatch, op_name)
    for n in (2, 5):
        f(np.ones((n, 3), "float32"), np.ones((3, 4), "float32"))
    report = f.dnn_report()
    assert [row.plan for row in report.rows] == [0, 1]
    assert report.used() == ["plan for ((2, 3), (3, 4))", "plan for ((5, 3), (3, 4))"]
    assert report.rows[0].shapes == ((2, 3), (3, 4), (2, 4))
    assert report.rows[0].line.startswith(__file__)


def test_the_table_has_the_units_in_its_columns(monkeypatch):
    f = products()
    (op_name,) = {type(n.op).__name__ for n in f.fgraph.nodes} & {"Dot", "OneDnnMatmul"}
    with_library(monkeypatch, op_name)
    f(np.ones((2, 3), "float32"), np.ones((3, 4), "float32"))
    head, row, why = str(f.dnn_report()).splitlines()
    assert head.split()[:5] == ["plan", "op", "requested", "used", "api"]
    assert row.index("640") == head.index("workspace")
    assert row.index("0.25") == head.index("ms")
    assert row[head.index("fixed") :].startswith("no")
    assert why.strip() == "fastest of 3 measured"


def test_a_choice_keeps_the_settled_kernel(monkeypatch):
    f = products()
    (op_name,) = {type(n.op).__name__ for n in f.fgraph.nodes} & {"Dot", "OneDnnMatmul"}
    with_library(monkeypatch, op_name)
    f(np.ones((2, 3), "float32"), np.ones((3, 4), "float32"))
    (plan,) = f.plans()
    choices = [c for c in plan.specialised.choices.values() if isinstance(c.kernel, Library)]
    assert [type(c) for c in choices] == [Choice]
    assert choices[0].kernel.shapes == ((2, 3), (3, 4))
