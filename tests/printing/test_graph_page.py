"""The page of a graph: its data, and what its script does in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, nn
from symdnn.printing import graph_page
from symdnn.printing.graph_page import page_data
from symdnn.printing.notebook import repr_html

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
HOSTILE = "</script><script>document.title='bad'</script><b>&amp;"


def network() -> nn.Sequential:
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(nn.Linear(6, 8), block, nn.Linear(8, 3))


def training(**options: Any) -> symdnn.Function:
    x, labels = T.tensor("float32", ("batch", 6), name="x"), T.ivector("labels")
    net = network()
    loss = nn.CrossEntropyCriterion()(net(x), labels)
    updates = nn.optim.adam(loss, net)
    f = symdnn.function(
        [x, labels], loss, updates=updates, mode=Mode(target="cpu"), name="train", **options
    )
    f(np.ones((2, 6), "float32"), np.array([0, 1], "int32"))
    return f


def data_in(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


# -- data ------------------------------------------------------------------------------------------


def test_every_node_is_there_with_its_facts():
    f = training(profile=True)
    f.profile.shown = True
    data = page_data(f)
    nodes = {n["id"]: n for n in data["nodes"]}
    assert len(nodes) == len(data["nodes"])
    assert all(a in nodes and b in nodes for a, b, _ in data["edges"])
    ops = [n for n in nodes.values() if n["kind"] == "op"]
    assert all("test_graph_page.py" in n["origin"] and n["type"] for n in ops)
    kernels = {c.kernel.name for p in f.plans() for c in p.specialised.choices.values()}
    shown = " ".join(n["kernel"] for n in ops)
    assert all(k in shown for k in kernels)
    timed = sum(n["us"] for n in ops if n["us"])
    total = sum(n.seconds for n in f.profile.nodes.values()) / f.profile.calls * 1e6
    assert timed == pytest.approx(total)
    assert data_in(graph_page(f)) == json.loads(json.dumps(data))


def test_modules_are_groups_and_gradients_are_parts_of_their_own():
    data = page_data(training())
    paths = {tuple(n["path"]) for n in data["nodes"] if n["kind"] == "op"}
    firsts = {p[:1] for p in paths}
    assert {("Sequential",), ("Sequential · after",), ("CrossEntropyCriterion",)} <= firsts
    assert any(p[:3] == ("Sequential", "1", "0") for p in paths)
    shared = {n["label"].split(" ")[0]: n["path"] for n in data["nodes"] if n["kind"] == "shared"}
    assert shared["0.weight"] == ["Sequential", "0"]


def test_groups_have_no_circles():
    for f in (training(), symdnn.function([], looped(), mode=Mode(target="cpu"))):
        data = page_data(f)
        path = {n["id"]: n["path"] for n in data["nodes"]}
        kind = {n["id"]: n["kind"] for n in data["nodes"]}
        for depth in range(1, 1 + max(map(len, path.values()))):
            arrows = set()
            for a, b, _ in data["edges"]:
                p, q = path[a], path[b]
                ops = kind[a] == kind[b] == "op"
                if ops and min(len(p), len(q)) >= depth and p[: depth - 1] == q[: depth - 1]:
                    arrows |= (
                        {(tuple(p[:depth]), tuple(q[:depth]))} if p[:depth] != q[:depth] else set()
                    )
            assert_acyclic(arrows)


def assert_acyclic(arrows: set[tuple[Any, Any]]) -> None:
    left = set(arrows)
    while left:
        ends = {b for _, b in left}
        free = {(a, b) for a, b in left if a not in ends}
        assert free, left
        left -= free


def looped() -> Any:
    w = symdnn.shared(np.eye(3, dtype="float32"), name="w")
    states, _ = symdnn.scan(
        lambda h: T.tanh(T.dot(h, w)), outputs_info=[T.ones((2, 3), "float32")], n_steps=4
    )
    return [states[-1], symdnn.grad(states.sum(), w)]


def test_loops_are_groups():
    f = symdnn.function([], looped(), mode=Mode(target="cpu"))
    paths = {tuple(n["path"]) for n in page_data(f)["nodes"]}
    assert {("loop", "each step"), ("loop (2)", "each step")} <= {p[:2] for p in paths}


def test_names_cannot_break_out_of_the_page(tmp_path):
    x = T.vector(HOSTILE)
    page = graph_page(T.exp(x), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "<b>&amp;" not in page
    assert page.count("</script>") == 2
    assert HOSTILE in {n["label"] for n in data_in(page)["nodes"]}


def test_stages_and_expressions_have_pages():
    f = training()
    x = T.vector("x")
    for obj in (f, f.stages.program, f.stages.fgraph, f.plans()[0], x + 1, [x, T.exp(x)]):
        assert data_in(graph_page(obj))["nodes"]
    with pytest.raises(TypeError, match="wanted a variable"):
        graph_page("no graph")


def test_a_notebook_shows_functions_and_graphs_as_pages():
    f = training()
    for shown in (f, f.stages.fgraph):
        html = repr_html(shown)
        assert '<iframe sandbox="allow-scripts"' in html
        assert "<script>" not in html  # it is the value of an attribute
        page = unescape(re.search('srcdoc="(.*?)"', html, re.DOTALL)[1])
        assert page == graph_page(shown)


def test_graphs_inside_of_ops_are_groups():
    x, w = T.fmatrix("x"), T.fmatrix("w")
    gate = symdnn.OpFromGraph([x, w], [T.tanh(x) * w], name="gate")
    last = symdnn.scan(
        lambda h, w: T.nnet.sigmoid(T.dot(h, w)),
        outputs_info=[gate(gate(x, w), w)], non_sequences=[w], n_steps=4,
    )[0][-1]  # fmt: skip
    data = page_data(last)
    ops = {n["id"]: n for n in data["nodes"] if n["kind"] == "op"}
    inside = {tuple(n["path"]): [] for n in ops.values()}
    for n in ops.values():
        inside[tuple(n["path"])].append(n["label"].partition("{")[0])
    assert sorted(inside["gate",]) == sorted(inside["gate (2)",]) == ["Mul", "Tanh", "gate"]
    assert sorted(inside["Scan",]) == ["Dot", "Scan", "Sigmoid"]
    labels = {(ops[a]["label"], ops[b]["label"].partition("{")[0]) for a, b, _ in data["edges"]
              if a in ops}  # fmt: skip
    assert {("Mul", "gate"), ("Sigmoid", "Scan")} <= labels
    compiled = page_data(symdnn.function([x, w], last, mode=Mode(target="cpu")))
    assert {"gate", "each step"} <= {p for n in compiled["nodes"] for p in n["path"]}


def test_a_module_within_a_graph_within_a_module_has_one_path():
    inner, x = nn.Sequential(nn.Tanh()), T.fmatrix("x")

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = inner

        def forward(self, x: Any) -> Any:
            return symdnn.OpFromGraph([x], [self.cell(x) + 1], name="a.b")(x * 2)

    paths = {n["label"]: n["path"] for n in page_data(Outer()(x))["nodes"] if n["kind"] == "op"}
    assert paths["Tanh"] == ["Outer", "a_b", "cell", "0"]
    assert paths["Mul"] == ["Outer"]


def convolution(target: str) -> tuple[dict[str, Any], Any]:
    """The data of an op that convolves, and its row of the report."""
    x, w = T.ftensor4("x"), symdnn.shared(np.ones((4, 3, 3, 3), "float32"), name="w")
    f = symdnn.function([x], T.nnet.conv2d(x, w), mode=Mode(target=target))
    f(np.ones((1, 3, 8, 8), "float32"))
    (row,) = f.dnn_report().rows
    (node,) = (n for n in page_data(f)["nodes"] if "Conv{" in n["label"])
    return node, row


def test_nodes_have_devices_and_algorithms():
    node, row = convolution("cpu")
    assert node["algorithm"] == row.use.used
    assert node["facts"]["device"] == "cpu"


@pytest.mark.gpu
def test_devices_and_algorithms_on_a_card():
    node, row = convolution("cuda")
    assert node["algorithm"] == row.use.used
    assert node["facts"]["device"].startswith("cuda")


def test_nodes_know_their_modules():
    net = network()
    y = net(T.matrix("x"))
    assert y.owner.origin.module == "Sequential.2"
    assert (y + 1).owner.origin.module == ""
    inner = y.owner.inputs[0]
    while inner.owner.origin.module == "Sequential.2":
        inner = inner.owner.inputs[0]
    assert inner.owner.origin.module == "Sequential.1.1"
    gradient = symdnn.grad(y.sum(), net.parameters()[0])
    assert gradient.owner.origin.module.startswith("Sequential.")


# -- in a browser ----------------------------------------------------------------------------------

SCRIPT = """
<script>
const errors = [], seen = {};
addEventListener("error", event => errors.push(event.message));
const boxes = () => document.querySelectorAll(".box").length;
const click = id => document.querySelector(`[data-id="${id}"]`).dispatchEvent(
  new MouseEvent("click", {bubbles: true}));
const type = text => {
  by("search").value = text;
  by("search").dispatchEvent(new Event("input", {bubbles: true}));
};
const checks = async () => {
  seen.loaded = performance.now();
  seen.first = boxes();
  by("unfold").click();
  seen.unfolded = boxes();
  seen.plain = document.querySelectorAll(".box:not(.open)").length;
  seen.edges = document.querySelectorAll("path.edge").length;
  const frame = [...document.querySelectorAll(".box:not(.open) > rect:first-child")].map(
    r => ["x", "y", "width", "height"].map(a => +r.getAttribute(a)));
  seen.overlaps = 0;
  frame.forEach(([x, y, w, h], i) => frame.slice(i + 1).forEach(([u, v, s, t]) => {
    seen.overlaps += x < u + s && u < x + w && y < v + t && v < y + h; }));
  by("fold").click();
  seen.folded = boxes();
  type(SEARCHED);
  seen.hits = by("hits").textContent;
  seen.marked = document.querySelectorAll(".box.found").length;
  by("search").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
  seen.about = by("aside").textContent;
  seen.picked = document.querySelectorAll(".box.picked").length;
  const before = view.k;
  dispatchEvent(new KeyboardEvent("keydown", {key: "+"}));
  seen.zoomed = view.k / before;
  const left = view.x;
  dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  seen.moved = view.x - left;
  const group = document.querySelector(".box.closed");
  if (group) {
    const was = boxes();
    group.focus();
    group.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
    seen.opened = boxes() - was;
    seen.focused = document.activeElement.dataset.id === group.dataset.id;
    click(group.dataset.id);
    seen.closed = boxes() === was;
  }
  const start = performance.now();
  draw();
  seen.ms = performance.now() - start;
};
checks().catch(e => errors.push(String(e))).finally(() => {
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify({errors, seen, title: document.title});
  document.body.appendChild(out);
});
</script>
"""


def in_browser(page: str, searched: str, folder: Path) -> dict[str, Any]:
    script = SCRIPT.replace("SEARCHED", json.dumps(searched).replace("<", "\\u003c"))
    return result_of(page.replace("</body>", script + "</body>"), folder)


def result_of(page: str, folder: Path) -> dict[str, Any]:
    """What the page writes as JSON into an element with the id ``result``."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    for attempt in range(5):  # a busy browser may print the page before its frames have answered
        command = [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={folder / f'profile{attempt}'}",
            f"--virtual-time-budget={5000 * 4**attempt}", "--dump-dom",
            (folder / "page.html").as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
        if found:
            return json.loads(unescape(found[1]))
    raise AssertionError(done.stdout[-2000:])


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_the_page_works_in_a_browser(tmp_path):
    page = graph_page(training())
    data = data_in(page)
    found = in_browser(page, "labels", tmp_path)
    assert (found["errors"], found["title"]) == ([], "train")
    seen = found["seen"]
    assert seen["plain"] == len(data["nodes"])
    assert seen["overlaps"] == 0
    assert seen["folded"] < seen["first"] <= seen["unfolded"]
    hits = sum("labels" in json.dumps(n).lower() for n in data["nodes"])
    assert int(seen["hits"].split()[0]) == hits >= 1
    assert seen["marked"] >= 1
    assert seen["picked"] >= 1
    assert "labels" in seen["about"]
    assert seen["zoomed"] == pytest.approx(1.25)
    assert seen["moved"] == pytest.approx(-60)
    assert seen["opened"] >= 1
    assert (seen["focused"], seen["closed"]) == (True, True)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_hostile_names_stay_text_in_a_browser(tmp_path):
    found = in_browser(graph_page(T.exp(T.vector(HOSTILE)) + 1), HOSTILE.split()[0], tmp_path)
    assert (found["errors"], found["title"]) == ([], "expression")
    assert HOSTILE in found["seen"]["about"]


FRAME_SCRIPT = """
<script>
addEventListener("message", event => {
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(event.data);
  document.body.appendChild(out);
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_notebook_frame_works_in_a_browser(tmp_path):
    f = training()
    report = escape(
        '<script>parent.postMessage([data.title, document.querySelectorAll(".box").length], "*")'
        "</script></body>"
    )
    frame = repr_html(f).replace(escape("</body>"), report)
    title, boxes = result_of(f"<body>{FRAME_SCRIPT}{frame}</body>", tmp_path)
    assert title == "train"
    assert boxes >= 4


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_graph_of_thousands_of_nodes_opens(tmp_path):
    x = T.matrix("x")
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(300)]
    y = nn.Sequential(*layers)(x)
    page = graph_page([y, *symdnn.grad(y.sum(), [x])])
    data = data_in(page)
    assert len(data["nodes"]) > 2000
    found = in_browser(page, "x", tmp_path)
    assert found["errors"] == []
    assert found["seen"]["plain"] == len(data["nodes"])
    assert found["seen"]["loaded"] < 2000  # milliseconds
