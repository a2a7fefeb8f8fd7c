import io
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.place import Place
from symdnn.ops.control.scan_builder import scan
from symdnn.printing import (
    Print,
    debugprint,
    min_informative_str,
    pp,
    pprint,
    pydotprint,
    to_networkx,
)
from symdnn.printing.layout import lay_out
from symdnn.printing.network import drawing_of

# Printing is tested here, not rewriting: graphs stay as they are built.
PLAIN = symdnn.Mode(optimizer="None")


def text_of(obj, **options):
    return debugprint(obj, file="str", **options)


@pytest.fixture
def train():
    x = T.fmatrix("x")
    w = symdnn.shared(np.ones((3, 4), "float32"), "w")
    cost = (T.tanh(x.dot(w) + 2) ** 2).sum()
    updates = [(w, w - 0.5 * symdnn.grad(cost, w))]
    mode = symdnn.Mode().excluding("fusion")
    f = symdnn.function([x], cost, updates=updates, name="train", mode=mode)
    f(np.ones((2, 3), "float32"))
    return f


@pytest.fixture
def lazy():
    c, x = T.iscalar("c"), T.fmatrix("x")
    chosen = symdnn.ifelse(c, T.exp(x).sum(), (x * x).sum() + 1)
    return symdnn.function([c, x], chosen * 2, mode=PLAIN)


# --- debugprint -----------------------------------------------------------------------------------


def test_tree_of_an_expression():
    x, y = T.fvectors("x", "y")
    assert text_of(T.exp(x + y) * x) == (
        "Mul [id A]\n |Exp [id B]\n | |Add [id C]\n |   |x [id D]\n |   |y [id E]\n |x [id D]\n"
    )


def test_a_node_used_twice_is_written_once():
    x = T.fvector("x")
    y = T.exp(x)
    lines = text_of(y + T.sqr(y)).splitlines()
    assert lines[1] == " |Exp [id B]"
    assert lines[-1] == "   |Exp [id B] ..."


def test_types_names_ids_and_depth():
    x = T.fvector("x")
    y = T.exp(x)
    y.name = "y"
    z = T.log(y)
    assert text_of(z, print_type=True) == (
        "Log [id A] <float32(?,)>\n |Exp [id B] <float32(?,)> 'y'\n   |x [id C] <float32(?,)>\n"
    )
    assert text_of(z, ids="int").splitlines()[1] == " |Exp [id 1] 'y'"
    assert text_of(z, ids="").splitlines()[1] == " |Exp 'y'"
    assert f"[id {id(x)}]" in text_of(z, ids="id")
    assert text_of(z, depth=1) == "Log [id A]\n"
    assert "x [id" not in text_of(z, stop_on_name=True)
    with pytest.raises(ValueError, match="ids='letters'"):
        debugprint(z, ids="letters")


def test_more_than_26_ids():
    total = T.fscalar("x0")
    for i in range(1, 30):
        total = total + T.fscalar(f"x{i}")
    ids = re.findall(r"\[id (\w+)\]", text_of(total))
    assert len(set(ids)) == 59
    assert {"Z", "AA", "BG"} <= set(ids)


def test_done_goes_on_where_the_first_print_ended():
    x = T.fvector("x")
    y = T.exp(x)
    done = {}
    text_of(y, done=done)
    assert text_of(T.sqr(y), done=done) == "Sqr [id C]\n |Exp [id A] ...\n"


def test_where_it_is_written(capsys):
    x = T.fvector("x")
    assert debugprint(x) is None
    assert capsys.readouterr().out == "x [id A]\n"
    out = io.StringIO()
    assert debugprint([x, T.exp(x)], file=out) is out
    assert out.getvalue() == "x [id A]\nExp [id B]\n |x [id A]\n"
    assert symdnn.dprint is debugprint


def test_outputs_of_a_node_of_several():
    values, where = T.max_and_argmax(T.fmatrix("x"), axis=1)
    text = text_of([values.owner or values, where])
    assert "[id A]" in text


def test_hints_are_shown():
    x = T.fvector("x")
    node = T.exp(x).owner
    hinted = node.op(x, hints=symdnn.Hints(name="first", precision="float32"))
    assert text_of(hinted).startswith("Exp [id A] hints(name=first, precision=float32)\n")


@pytest.mark.cpu
def test_a_function_shows_order_kernels_and_what_is_overwritten(train):
    text = text_of(train)
    assert re.search(r"^w <- Sub \[id \w+\] \d+ \(", text, re.M)
    assert re.search(r"Tanh .* \(numpy\.ufunc, in place of input 0\)", text)
    assert re.search(r"DimShuffle\{pattern=\(1, 0\)\} .* \(view of input 0\)", text)


@pytest.mark.cpu
def test_a_function_that_never_ran_says_nothing_of_kernels():
    x = T.fvector("x")
    assert text_of(symdnn.function([x], T.exp(x))) == "Exp [id A] 0\n |x [id B]\n"


def test_what_runs_on_the_host_is_marked(lazy):
    x, n = T.fvector("x"), T.iscalar("n")
    f = symdnn.function([x, n], x[: n + 1], mode=PLAIN)
    assert re.search(r"Add .*\(host\)", text_of(f))
    assert re.search(r"IfElse.*\(lazy\)", text_of(lazy))


def test_a_deep_graph_prints():
    x = T.fscalar("x")
    y = x
    for _ in range(3000):
        y = T.exp(y)
    assert text_of(y, depth=2) == "Exp [id A]\n |Exp [id B]\n"
    assert pprint(y).count("exp(") == 3000
    assert min_informative_str(y).count("Exp") == 3000


def test_wrong_argument():
    with pytest.raises(TypeError, match="got a int"):
        debugprint(3)
    with pytest.raises(TypeError, match="got 3"):
        pprint(3)
    with pytest.raises(TypeError, match="cannot draw a int"):
        to_networkx(3)


# --- programs and plans ---------------------------------------------------------------------------


@pytest.mark.cpu
def test_a_program_is_a_list_of_regions(lazy):
    text = text_of(lazy.stages.program)
    assert text.startswith("program(")
    assert re.search(r"= if \S+\n    then\n      program\(x\)\n", text)
    assert text.index("Exp(x)") < text.index("    else\n") < text.index("Mul(x, x)")
    assert "  return " in text


@pytest.mark.cpu
def test_a_plan_shows_shapes_kernels_and_memory(train):
    (plan,) = train.plans()
    text = text_of(plan)
    assert "enter x: float32(2, 3)\n" in text
    assert re.search(r"float32\(2, 4\) = \w+\(x, w\)\n", text)
    assert "view of input 0" in text
    assert "in place of input 0" in text
    assert f"arena {plan.memory.arena_bytes} bytes" in text
    assert "not numpy.ufunc: " in text  # why the first kernel was not taken


@pytest.mark.cpu
def test_segments_name_their_device():
    from dataclasses import replace

    x = T.fvector("x")
    program = symdnn.function([x], T.exp(x)).stages.program
    (segment,) = program.regions
    there = replace(program, regions=(segment, replace(segment, place=Place("cuda"))))
    assert "  segment 0\n" in text_of(there)
    assert "  segment 1 on cuda0\n" in text_of(there)


@pytest.mark.cpu
def test_values_of_one_name_are_told_apart():
    a, b = T.fvector("x"), T.fvector("x")
    program = symdnn.function([a, b], a - b, mode=PLAIN).stages.program
    assert "Sub(x, x#2)" in text_of(program)


@pytest.mark.cpu
def test_a_loop_shows_its_body():
    v, s = T.fvector("v"), T.fscalar("s")
    out, _ = scan(lambda x, s: s * 2 + x, sequences=v, outputs_info=s)
    text = text_of(out)
    tree, inner = text.split("\n\n")
    assert "Scan" in tree
    assert re.match(r"Inner graph of Scan \[id \w+\] on ", inner)
    assert "Mul" not in tree
    assert "Mul" in inner
    f = symdnn.function([v, s], out, mode=PLAIN)
    f(np.ones(3, "float32"), 0)
    assert re.search(r"\n  loop .*Scan.*\n    program\(", text_of(f.stages.program))
    assert "numpy.ufunc" in text_of(f).split("\n\n")[1]
    regions = {d["region"] for _, d in to_networkx(f).nodes(data=True)}
    assert any(r.startswith("loop / each step") for r in regions)
    assert pydotprint(f, engine="symdnn").startswith("<svg")


# --- formulas -------------------------------------------------------------------------------------

X, Y, Z = (T.fmatrix(n) for n in "xyz")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (X + Y * Z, "x + y * z"),
        ((X + Y) * Z, "(x + y) * z"),
        (X - (Y - Z), "x - (y - z)"),
        (X - Y - Z, "x - y - z"),
        (X / (Y * Z), "x / (y * z)"),
        (-(X**2), "-x ** 2"),
        ((-X) ** 2, "(-x) ** 2"),
        (X ** (Y**Z), "x ** y ** z"),
        ((X**Y) ** Z, "(x ** y) ** z"),
        (2 - X, "2 - x"),
        (X * -2, "x * -2"),
        (X**-2, "x ** -2"),
        (T.lt(X, Y + 1), "x < y + 1"),
        (X.dot(Y) + Z, "x @ y + z"),
        (X.dot(Y.T), "x @ y.T"),
        ((X + Y).T, "(x + y).T"),
        (T.exp(X).sum() * 0.1, "sum(exp(x)) * 0.1"),
        (X.sum(axis=0), "sum(x, axes=(0,))"),
        (X[1:, 0], "x[1:, 0]"),
        (X[: X.shape[1]], "x[:x.shape[1], :]"),
        (X.shape[0] + 1, "x.shape[0] + 1"),
        (X.astype("float64"), "float64(x)"),
        (X + T.fvector("b"), "x + b"),
        (T.switch(T.gt(X, 0), X, 0), "switch(x > 0, x, 0)"),
    ],
)
def test_formula(expression, text):
    assert pprint(expression) == text


@pytest.mark.cpu
def test_formula_of_a_function():
    x, w = T.fvector("x"), symdnn.shared(np.float32(1), "w")
    f = symdnn.function([x], [x * w, x + 1], updates=[(w, w - x.sum())], mode=PLAIN)
    assert pp(f) == "x * w\nx + 1\nw <- w - sum(x)"


def test_long_formulas_name_what_repeats():
    y = X
    for _ in range(50):
        y = y * y + 1  # written out: 2 ** 50 terms
    lines = pprint(y).splitlines()
    assert lines[0] == "t1 = x * x + 1"
    assert lines[-1].startswith("t49 * t49 + 1")
    assert len(lines) == 50


def test_min_informative_str_forgets_names():
    def one(a, b):
        x, y = T.fvector(a), T.fvector(b)
        return min_informative_str(T.exp(x) + y + x)

    assert one("x", "y") == one("a", "b")
    x, y = T.fvector(), T.fvector()
    assert min_informative_str(T.exp(x) + y + y) != one("x", "y")


# --- networkx -------------------------------------------------------------------------------------


def test_graph_of_an_expression():
    import networkx

    x = T.fvector("x")
    graph = to_networkx(T.exp(x) * x * x)
    assert networkx.is_directed_acyclic_graph(graph)
    kinds = [d["kind"] for _, d in graph.nodes(data=True)]
    assert kinds.count("op") == 3
    assert kinds.count("input") == 1
    ops = {d["op"]: k for k, d in graph.nodes(data=True) if "op" in d}
    assert set(ops) == {"Exp", "Mul"}
    assert __file__ in graph.nodes[ops["Exp"]]["origin"]


def test_an_operand_used_twice_is_one_edge():
    x = T.fvector("x")
    assert to_networkx(x * x).edges["v0", "n0"]["inputs"] == "0,1"


def test_graph_can_be_written(train, tmp_path):
    import networkx

    graph = to_networkx(train)
    networkx.write_graphml(graph, tmp_path / "g.graphml")
    again = networkx.read_graphml(tmp_path / "g.graphml")
    assert set(again.nodes) == set(graph.nodes)
    labels = [d["label"] for _, d in graph.nodes(data=True) if d["kind"] == "output"]
    assert labels == ["output 0", "new w"]


def test_order_of_the_program_is_an_order_of_the_graph(train):
    graph = to_networkx(train)
    step = {k: d["step"] for k, d in graph.nodes(data=True) if "step" in d}
    assert all(step[a] < step[b] for a, b in graph.edges if a in step and b in step)


def test_regions_are_attributes(lazy):
    regions = {d["region"] for _, d in to_networkx(lazy).nodes(data=True)}
    assert any("then" in r for r in regions)
    assert any("else" in r for r in regions)


# --- pictures -------------------------------------------------------------------------------------


def stages(f):
    plan = [f.plans()[0]] if f.plans() else []
    return [f, f.fgraph, f.stages.program, *plan]


def boxes_of(svg):
    root = ElementTree.fromstring(svg)
    return [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("class")]


def test_every_stage_is_drawn(train, lazy):
    x = T.fmatrix("x")
    for obj in [T.exp(x) + 1, [x, T.exp(x)], *stages(train), *stages(lazy)]:
        svg = pydotprint(obj, engine="symdnn", sizes=True)
        assert len(boxes_of(svg)) == len(drawing_of(obj).boxes)


@pytest.mark.cpu
def test_what_is_computed_only_to_know_a_size_is_left_out():
    x, y = T.fmatrix("x"), T.fmatrix("y")
    f = symdnn.function([x, y], [T.exp(x).reshape((x.shape[0] * 2, -1)), y.mean()])
    ops = [b.attributes["op"] for b in drawing_of(f, sizes=False).boxes.values() if b.kind == "op"]
    assert "Reshape" in ops
    assert ops.count("ShapeI") <= 2  # what the mean divides by is a value, and stays
    assert "Mul" not in ops[: ops.index("Reshape")]
    everything = drawing_of(f).boxes
    assert len(ops) < sum(b.kind == "op" for b in everything.values())
    assert "ShapeI" in pydotprint(f, engine="symdnn", sizes=True)


@pytest.mark.cpu
def test_regions_are_frames(lazy):
    svg = pydotprint(lazy, engine="symdnn")
    titles = [t.text for t in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"then", "else", "segment 1"} <= set(titles)


def test_boxes_do_not_overlap_and_arrows_point_down(train):
    drawing = drawing_of(train)
    frames = lay_out(drawing).boxes
    boxes = list(frames.values())
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x
            assert apart or a.y + a.height <= b.y or b.y + b.height <= a.y
    for source, target in drawing.arrows:
        assert frames[source].y + frames[source].height < frames[target].y


def test_suffix_says_the_format(train, tmp_path):
    assert pydotprint(train, tmp_path / "f.svg", engine="symdnn") == tmp_path / "f.svg"
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    pydotprint(train, tmp_path / "f.dot")
    assert (tmp_path / "f.dot").read_text().startswith("digraph")
    pytest.importorskip("matplotlib")
    pydotprint(train, tmp_path / "f.png", engine="symdnn")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="format 'gif4': wanted one of"):
        pydotprint(train, format="gif4", engine="symdnn")


def test_without_graphviz(train, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert pydotprint(train).startswith("<svg")
    with pytest.raises(RuntimeError, match="Graphviz's program dot"):
        pydotprint(train, engine="dot")
    with pytest.raises(ValueError, match="engine='neato'"):
        pydotprint(train, engine="neato")


def test_with_graphviz(train, monkeypatch, tmp_path):
    program = tmp_path / "dot"  # stands for Graphviz's: gives back its option and its input
    program.write_text("#!/bin/sh\n/bin/echo $1\nexec /bin/cat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = pydotprint(train, format="dot")
    assert pydotprint(train) == f"-Tsvg\n{text}"
    assert pydotprint(train, format="pdf") == f"-Tpdf\n{text}".encode()
    assert pydotprint(train, engine="symdnn").startswith("<svg")
    program.write_text("#!/bin/sh\n/bin/echo no such format >&2; exit 1\n")
    with pytest.raises(RuntimeError, match="no such format"):
        pydotprint(train, format="pdf")


# pydot 4 calls pyparsing by names that pyparsing 3.3 deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dot_is_well_formed(lazy):
    pydot = pytest.importorskip("pydot")
    (graph,) = pydot.graph_from_dot_data(pydotprint(lazy, format="dot"))
    labels = [s.get_label() for s in graph.get_subgraphs()]
    assert labels[-1] == '"segment 1"'


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_odd_names_are_escaped():
    x = T.fvector('<x> & "y" \\')
    assert '<x> & "y"' in boxes_of(pydotprint(T.exp(x), engine="symdnn"))[0][0].text
    pydot = pytest.importorskip("pydot")
    assert pydot.graph_from_dot_data(pydotprint(T.exp(x), format="dot"))


def test_long_labels_are_cut():
    x = T.fvector("x" * 300)
    svg = pydotprint(T.exp(x), engine="symdnn", max_label_size=20)
    assert "x" * 19 + "…" in svg


# --- the same in every process --------------------------------------------------------------------

SCRIPT = """
import numpy as np, symdnn, symdnn.tensor as T
from symdnn.printing import *
x, c = T.fmatrix("x"), T.iscalar("c")
w = symdnn.shared(np.ones((3, 4), "float32"), "w")
h = T.tanh(x.dot(w) + 2)
cost = symdnn.ifelse(c, (h ** 2).sum(), T.exp(h).mean())
f = symdnn.function([x, c], [cost, h[: c + 1]], updates=[(w, w - symdnn.grad(cost, w))])
f(np.ones((2, 3), "float32"), 1)
debugprint(f); debugprint(f.stages.program); debugprint(f.plans()); print(pp(f))
print(pydotprint(f, engine="symdnn")); print(pydotprint(f, format="dot"))
"""


def test_output_is_deterministic():
    def run(seed):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("1") == run("2") != ""


def test_print_op_prints_when_it_runs(capsys):
    x = T.fvector("x")
    f = symdnn.function([x], Print("value of x", ["shape"])(x) * 2)
    assert np.array_equal(f(np.ones(3, "float32")), [2, 2, 2])
    assert "value of x" in capsys.readouterr().out


# -- notebooks ------------------------------------------------------------------------------------


def test_a_notebook_shows_formulas_graphs_and_pictures():
    x = T.fmatrix("x <y>")
    assert x._repr_html_() == "<code>x &lt;y&gt;</code> : <code>float32(?, ?)</code>"
    f = symdnn.function([x], T.tanh(x).sum(), name="total")
    for shown in (f, f.stages.fgraph):
        assert "<iframe" in shown._repr_html_()
    assert "total(x &lt;y&gt;: float32(?, ?))" in f._repr_html_()
    picture = symdnn.printing.pydotprint(f, return_image=True, engine="symdnn")
    assert picture._repr_svg_() == str(picture)
    assert picture.startswith("<svg")
    png = symdnn.printing.pydotprint(f, return_image=True, format="png", engine="symdnn")
    assert png._repr_png_().startswith(b"\x89PNG")


def test_long_texts_end_in_a_notebook():
    lines = "\n".join(map(str, range(1000)))
    text = symdnn.printing.repr_html(lines)
    assert "more lines" in text
    assert text.count("\n") < 300
