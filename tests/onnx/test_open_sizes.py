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
