"""Loops that append to a sequence or a tensor, pieces of one size or of another at each step."""

import numpy as np
import onnx
import onnx.parser
import pytest

import symdnn
import symdnn.onnx
from symdnn.ops.control.scan import Scan

#: What step ``i`` appends, of ``x`` and the state ``k``, which begins at 1 and counts.
PIECES = {
    "of_the_step": ("end = Add(i, one) ends = Unsqueeze(end, axes) p = Slice(x, axes, ends)",
                    lambda x, i, k: x[: i + 1]),
    "of_a_state": ("f = Cast<to=1>(k) o = Constant<value=float {1}>() z = Sub(o, o) "
                   "p = Range(z, f, o)",
                   lambda x, i, k: np.arange(k, dtype="float32")),
    "of_data": ("f = Cast<to=1>(i) more = Greater(x, f) p = Compress<axis=0>(x, more)",
                lambda x, i, k: x[x > i]),
    "of_one_size": ("end = Add(i, one) ends = Unsqueeze(end, axes) starts = Unsqueeze(i, axes) "
                    "p = Slice(x, starts, ends)",
                    lambda x, i, k: x[i : i + 1]),
    "of_the_input": ("f = Cast<to=1>(i) p = Mul(x, f)", lambda x, i, k: x * np.float32(i)),
}  # fmt: skip
STEPS = {
    "as_an_input": ("int64 n, ", ""),
    "as_a_constant": ("", "n = Constant<value=int64 {7}>()"),
    "as_a_size": ("", "s = Shape(x) n = Squeeze(s)"),
}
LISTS = {
    "sequence": ("empty = SequenceEmpty()", "seq(float)", "m = SequenceInsert(l, p)",
                 "y = ConcatFromSequence<axis=0>(all)"),
    "tensor": ("empty = Constant<value=float[0] {}>()", "float[e]", "m = Concat<axis=0>(l, p)",
               "y = Identity(all)"),
}  # fmt: skip


def _model(piece, steps, form):
    empty, kind, append, end = LISTS[form]
    given, before = STEPS[steps]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 19]>
        g ({given}float[rows] x) => (float[a] y) {{
            {before} {empty}
            t = Constant<value=int64 {{1}}>()
            state, all = Loop<body = step (int64 i, bool c, int64 k, {kind} l)
                => (bool d, int64 k2, {kind} m) {{
                    d = Identity(c)
                    one = Constant<value=int64 {{1}}>()
                    axes = Constant<value=int64[1] {{0}}>()
                    k2 = Add(k, one)
                    {PIECES[piece][0]}
                    {append}
                }}>(n, yes, t, empty)
            {end}
        }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(True), "yes"))
    if form == "tensor":
        empty = onnx.numpy_helper.from_array(np.zeros(0, "float32"), "empty")
        del model.graph.node[[n.output[0] for n in model.graph.node].index("empty")]
        model.graph.initializer.append(empty)
    return model


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("piece", PIECES)
def test_what_a_loop_appends(piece, steps, form):
    """It is written out where sizes may differ, and stays a loop where they can't."""
    f = symdnn.onnx.compile(_model(piece, steps, form), mode="FAST_COMPILE")
    for rows in (7, 9):
        x = np.random.default_rng(rows).uniform(0, 9, rows).astype("float32")
        count = {"as_an_input": rows - 1, "as_a_constant": 7, "as_a_size": rows}[steps]
        inputs = {"n": np.int64(count)} if steps == "as_an_input" else {}
        found = f(x=x, **inputs)["y"]
        wanted = np.concatenate([PIECES[piece][1](x, i, i + 1) for i in range(count)])
        np.testing.assert_array_equal(found, wanted)
        scans = any(isinstance(n.op, Scan) for n in f.functions[-1].fgraph.nodes)
        if form == "tensor":
            assert scans == (piece in ("of_one_size", "of_the_input"))


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("piece", ["of_one_size", "of_the_input"])
def test_a_loop_whose_number_of_steps_stays_open(piece, form):
    graph = symdnn.onnx.load(_model(piece, "as_an_input", form))
    f = symdnn.function(list(graph.variables.values()), graph.expressions["y"])
    for rows, steps in ((4, 3), (6, 6)):
        x = np.random.default_rng(rows).normal(size=rows).astype("float32")
        wanted = np.concatenate([PIECES[piece][1](x, i, 0) for i in range(steps)])
        np.testing.assert_array_equal(f(np.int64(steps), x), wanted)


@pytest.mark.parametrize("where", ["as_an_input", "as_a_constant"])
def test_a_state_that_grows_and_is_read(where):
    """Its sums are collected, so that it is more than what is appended to it."""
    given, before = STEPS[where]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 19]>
        g ({given}float[rows, columns] x) => (float[a, columns] y, float[b] sums) {{
            {before} yes = Constant<value=int64 {{1}}>() c = Cast<to=9>(yes)
            y, sums = Loop<body = step (int64 i, bool c, float[r, q] s)
                => (bool d, float[t, q] m, float p) {{
                d = Identity(c)
                m = Concat<axis=0>(s, x)
                p = ReduceSum<keepdims=0>(s)
            }}>(n, c, x)
        }}""")
    f = symdnn.onnx.compile(model, mode="FAST_COMPILE")
    x = np.arange(6, dtype="float32").reshape(2, 3)
    for count in (0, 1, 3, 7) if where == "as_an_input" else (7,):
        found = f(x=x, **({"n": np.int64(count)} if where == "as_an_input" else {}))
        np.testing.assert_array_equal(found["y"], np.concatenate([x] * (count + 1)))
        np.testing.assert_array_equal(found["sums"], [x.sum() * (k + 1) for k in range(count)])


def test_a_loop_whose_condition_is_false_has_no_step():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 19]>
        g (float[rows] x) => (float[rows] y) {
            zero = Constant<value=int64 {0}>() c = Cast<to=9>(zero)
            y = Loop<body = step (int64 i, bool c, float[r] s) => (bool d, float[r] m) {
                d = Identity(c)
                m = Add(s, s)
            }>("", c, x)
        }""")
    x = np.arange(3, dtype="float32")
    np.testing.assert_array_equal(symdnn.onnx.compile(model)(x=x)["y"], x)
