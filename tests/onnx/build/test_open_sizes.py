"""Graphs whose sizes stay open give what the same nodes give for given sizes, also saved again."""

import numpy as np
import onnx
import onnx.parser
import pytest

import symdnn
import symdnn.onnx

WINDOW = "kernel_shape=[3,2], strides=[2,3], pads=[1,0,1,1]"
BODIES = {
    "max_pool": f"y = MaxPool<ceil_mode=1, {WINDOW}>(x)",
    "max_pool_with_places": f"y, places = MaxPool<ceil_mode=1, {WINDOW}>(x)",
    "average_pool": f"y = AveragePool<ceil_mode=1, {WINDOW}>(x)",
    "average_pool_with_padding": f"y = AveragePool<ceil_mode=1, count_include_pad=1, {WINDOW}>(x)",
    "norm_pool": f"y = LpPool<ceil_mode=1, {WINDOW}>(x)",
    "padding_of_a_convolution": 'y = Conv<auto_pad="SAME_UPPER", strides=[2,3]>(x, w)',
    "padding_of_a_pool": 'y = MaxPool<auto_pad="SAME_LOWER", kernel_shape=[3,4], strides=[2,3]>(x)',
    "transposed": 'y = ConvTranspose<auto_pad="SAME_UPPER", strides=[2,2]>(x, v)',
    "computed_scales": """s = Shape(x)
        f = Cast<to=1>(s)
        by = Constant<value=float[4] {1,1,2,1.5}>()
        larger = Mul(f, by)
        scales = Div(larger, f)
        y = Resize<mode="linear">(x, , scales)""",
    "pads_that_cut": """s = Shape(x)
        h = Gather<axis=0>(s, two)
        wanted = Constant<value=int64 {7}>()
        more = Sub(wanted, h)
        list = Unsqueeze(more, first)
        none = Constant<value=int64[3] {0,0,0}>()
        back = Neg(list)
        pads = Concat<axis=0>(none, back, none, list)
        y = Pad(x, pads)""",
    "range_of_data": """first = Constant<value=float {0.5}>()
        step = Constant<value=float {0.25}>()
        mean = ReduceMean<keepdims=0>(x)
        end = Abs(mean)
        places = Range(first, end, step)
        y = Mul(places, mean)""",
    "extremes_by_index": """flat = Constant<value=int64[1] {-1}>()
        base = Constant<value=float[2] {0.5, -3.0}>()
        axis = Constant<value=int64[1] {1}>()
        largest = ArgMax<axis=1, keepdims=0>(x)
        to = Reshape(largest, flat)
        total = ReduceSum<keepdims=0>(x, axis)
        of = Reshape(total, flat)
        y = ScatterElements<axis=0, reduction="max">(base, to, of)""",
    "kept_aspect": """sizes = Constant<value=int64[2] {20,33}>()
        y = Resize<mode="linear", axes=[2,3],
            keep_aspect_ratio_policy="not_larger">(x, , , sizes)""",
    "kept_aspect_larger": """sizes = Constant<value=int64[2] {20,33}>()
        y = Resize<axes=[2,3], keep_aspect_ratio_policy="not_smaller">(x, , , sizes)""",
}


def test_a_loop_that_appends_to_a_sequence(tmp_path):
    """As many steps as a call has rows; symdnn.onnx.compile writes the steps out."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 19]>
        g (float[rows, 3] x) => (float[a,b] y, float[c] z, int64 n, float[d] last) {
            s = Shape(x)
            n = Gather<axis=0>(s, zero)
            empty = SequenceEmpty()
            more = Constant<value=int64 {-1}>()
            state, all = Loop<body = step (int64 i, bool c, float[3] h, seq(float) l)
                => (bool d, float[3] k, seq(float) m) {
                    d = Identity(c)
                    row = Gather<axis=0>(x, i)
                    total = Add(h, row)
                    k = Tanh(total)
                    m = SequenceInsert(l, k)
                }>(n, yes, start, empty)
            y = ConcatFromSequence<axis=1, new_axis=1>(all)
            z = ConcatFromSequence<axis=0>(all)
            count = SequenceLength(all)
            last = SequenceAt(all, more)
        }""")
    start = np.zeros(3, "float32")
    for name, array in (("zero", np.int64(0)), ("yes", np.bool_(True)), ("start", start)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    model.graph.output[2].name = "count"
    graph = symdnn.onnx.load(model)
    x, outputs = graph.variables["x"], graph.expressions
    f = symdnn.function([x], [*outputs.values(), symdnn.grad((outputs["y"] ** 2).sum(), x)])
    symdnn.onnx.save(outputs, tmp_path / "again.onnx", inputs=[x])
    again = symdnn.onnx.compile(tmp_path / "again.onnx")
    written_out = symdnn.onnx.compile(model)
    for rows in (6, 3):
        value = np.random.default_rng(rows).normal(size=(rows, 3)).astype("float32")
        *found, slope = f(value)
        wanted = written_out(value)
        for a, b, c in zip(found, wanted.values(), again(value).values(), strict=True):
            assert a.shape == b.shape == c.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(c, b, rtol=1e-5, atol=1e-6)
        assert slope.shape == value.shape


def _model(body, sizes):
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 19]> g (float[{sizes}] x) => (float[a,b,c,d] y) '
        f"{{ {body} }}"
    )
    for name, shape in (("w", (3, 2, 3, 3)), ("v", (2, 3, 3, 3))):
        array = rng.normal(size=shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for name, value in (("two", 2), ("first", [0])):
        array = np.array(value, np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("name", BODIES)
def test_open_sizes_as_given_ones(name, tmp_path):
    graph = symdnn.onnx.load(_model(BODIES[name], "batch, 2, height, width"))
    x, y = graph.variables["x"], graph.expressions["y"]
    f = symdnn.function([x], [y, symdnn.grad((y**2).sum(), x)], mode="FAST_COMPILE")
    symdnn.onnx.save({"y": y}, tmp_path / "again.onnx", inputs=[x])
    again = symdnn.onnx.compile(tmp_path / "again.onnx", mode="FAST_COMPILE")
    rng = np.random.default_rng(1)
    for shape in ((1, 2, 8, 9), (2, 2, 5, 7)):
        value = rng.normal(size=shape).astype("float32")
        given = symdnn.onnx.load(_model(BODIES[name], str(shape)[1:-1]))
        v, w = given.variables["x"], given.expressions["y"]
        outs = [w, symdnn.grad((w**2).sum(), v)]
        wanted, slope = symdnn.function([v], outs, mode="FAST_COMPILE")(value)
        found, own = f(value)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(own, slope, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(again(x=value)["y"], wanted, rtol=1e-5, atol=1e-6)


NAMES = "float[rows,c] x, float[rows2,c2] y, bool[b] mask"
OF_NAMES = {
    "add": "z = Add(x, y)",
    "power": "z = Pow(x, y)",
    "largest": "z = Max(x, y, x)",
    "mean": "z = Mean(x, y)",
    "where": "z = Where(mask, x, y)",
    "logic": """p = Greater(x, y)
        q = And(p, mask)
        z = Cast<to=1>(q)""",
}


@pytest.mark.parametrize("name", OF_NAMES)
def test_open_sizes_of_different_names_that_broadcast(name, tmp_path):
    """In a graph of load no open size is 1, so they are equal."""
    text = f'<ir_version: 8, opset_import: ["": 19]> g ({NAMES}) => (float[m,n] z)'
    graph = symdnn.onnx.load(onnx.parser.parse_model(f"{text} {{ {OF_NAMES[name]} }}"))
    symdnn.onnx.save(graph.expressions, tmp_path / "a.onnx", inputs=list(graph.variables.values()))
    f = symdnn.function(list(graph.variables.values()), graph.expressions["z"],
                        on_unused_input="ignore")  # fmt: skip
    again = symdnn.onnx.compile(tmp_path / "a.onnx")
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.5, 2, (3, 4)).astype("float32") for _ in range(2))
    mask = np.array([True, False, True, True])
    wanted = {
        "add": x + y, "power": x**y, "largest": np.maximum(x, y), "mean": (x + y) / 2,
        "where": np.where(mask, x, y), "logic": ((x > y) & mask).astype("float32"),
    }  # fmt: skip
    np.testing.assert_allclose(f(x, y, mask), wanted[name], rtol=1e-5)
    (found,) = again(x, y, mask).values()
    np.testing.assert_allclose(found, wanted[name], rtol=1e-5)
    with pytest.raises(symdnn.errors.SymdnnError):
        f(x, y[:2], mask)


EQUAL = {
    "MatMul(x, y)": lambda x, y: x @ y,
    "Concat<axis=0>(x, y)": lambda x, y: np.concatenate([x, y]),
    'Einsum<equation="ij,jk->ik">(x, y)': lambda x, y: x @ y,
}


@pytest.mark.parametrize("node", EQUAL)
def test_open_sizes_of_different_names_that_a_node_wants_equal(node, tmp_path):
    """They are checked in a call; the graph has no names then."""
    text = '<ir_version: 8, opset_import: ["": 19]> g (float[a,b] x, float[c,d] y)'
    graph = symdnn.onnx.load(onnx.parser.parse_model(f"{text} => (float[m,n] z) {{ z = {node} }}"))
    variables = list(graph.variables.values())
    z = graph.expressions["z"]
    f = symdnn.function(variables, [z, symdnn.grad(z.sum(), variables[0])])
    symdnn.onnx.save({"z": z}, tmp_path / "again.onnx", inputs=variables)
    x, y = np.random.default_rng(0).normal(size=(2, 3, 3)).astype("float32")
    found, slope = f(x, y)
    np.testing.assert_allclose(found, EQUAL[node](x, y), rtol=1e-5)
    assert slope.shape == x.shape
    np.testing.assert_allclose(symdnn.onnx.compile(tmp_path / "again.onnx")(x, y)["z"], found)
    with pytest.raises(symdnn.errors.SymdnnError):
        f(x, y[:2, :2])


def test_a_rest_that_is_1_broadcasts():
    """All open sizes cancel in a Reshape to -1, beside sizes that were multiplied."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 19]>
        g (float[batch, time, 8] x) => (float[a,b,c,d] y) {
            s = Shape(x)
            b = Gather<axis=0>(s, zero)
            t = Gather<axis=0>(s, one)
            all = Mul(b, four)
            shift = Sub(t, one)
            flat = Concat<axis=0>(b, one, one, shift)
            masks = ReduceMean<keepdims=0>(x, last)
            less = Slice(masks, one, t, one)
            m = Reshape(less, flat)
            wide = Expand(m, heads)
            together = Concat<axis=0>(all, one, shift)
            w = Reshape(wide, together)
            back = Concat<axis=0>(b, four, rest, shift)
            mask = Reshape(w, back)
            scores = Concat<axis=0>(b, four, two, t)
            values = Reshape(x, scores)
            cut = Slice(values, one, t, three)
            y = Add(cut, mask)
        }""")
    for name, value in {"zero": [0], "one": [1], "two": [2], "three": [3], "four": [4],
                        "rest": [-1], "last": [2], "heads": [1, 4, 1, 1]}.items():  # fmt: skip
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    graph = symdnn.onnx.load(model)
    assert graph.expressions["y"].type.shape == (None, 4, 2, None)
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
    found = symdnn.function([graph.variables["x"]], graph.expressions["y"])(x)
    mask = x.mean(2)[:, None, None, 1:]
    np.testing.assert_allclose(found, x.reshape(3, 4, 2, 5)[..., 1:] + mask, rtol=1e-5, atol=1e-6)
