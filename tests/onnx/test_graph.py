"""Graphs of models: sizes, parameters, functions, choices and loops."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.onnx
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import ModelError
from symdnn.onnx import compile, load
from symdnn.onnx.backend import run_node, supports_device
from tests.onnx.models import model

MLP = """
g (float[batch, 4] x) => (float[batch, 3] y) {
    h = Gemm(x, w, b)
    a = Relu(h)
    y = MatMul(a, v)
}
"""


def mlp(rng):
    f32 = "float32"
    return {"w": rng.normal(size=(4, 5)).astype(f32), "b": rng.normal(size=5).astype(f32),
            "v": rng.normal(size=(5, 3)).astype(f32)}  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_inputs_outputs_and_parameters_have_names(rng):
    arrays = mlp(rng)
    graph = load(model(MLP, **arrays))
    assert [str(p) for p in graph.inputs.values()] == ["x: float32(batch, 4)"]
    assert graph.outputs == ["y"]
    assert graph.dims == ("batch",)
    assert list(graph.parameters) == ["w", "b", "v"]
    assert str(graph.expressions["y"].type) == "float32(batch, 3)"
    x = rng.normal(size=(7, 4)).astype("float32")
    wanted = np.maximum(x @ arrays["w"] + arrays["b"], 0) @ arrays["v"]
    np.testing.assert_allclose(compile(graph)(x=x)["y"], wanted, rtol=1e-5)


def test_a_loaded_graph_trains(rng):
    graph = load(model(MLP, **mlp(rng)))
    x, t = graph.variables["x"], T.matrix("t", dtype="float32")
    loss = T.mean(T.sqr(graph.expressions["y"] - t))
    params = graph.trainable
    updates = [(p, p - 0.05 * g) for p, g in zip(params, T.grad(loss, params))]
    step = symdnn.function([x, t], loss, updates=updates)
    data = rng.normal(size=(32, 4)).astype("float32"), rng.normal(size=(32, 3)).astype("float32")
    losses = [float(step(*data)) for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]


def test_batch_and_dtype(rng):
    arrays = mlp(rng)
    graph = load(model(MLP, **arrays), batch=6, dtype="float64")
    assert str(graph.expressions["y"].type) == "float64(6, 3)"
    assert graph.parameters["w"].type.dtype == "float64"
    x = rng.normal(size=(6, 4))
    wanted = np.maximum(x @ arrays["w"].astype("float64") + arrays["b"], 0) @ arrays["v"]
    np.testing.assert_allclose(compile(graph)(x)["y"], wanted, rtol=1e-12)


@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_of_a_file_in_another_dtype(kind, dtype, rng):
    """Also a cast in the file, and arrays of the dtype that the file has."""
    text = f"""
    g ({kind}[batch, 4] x) => ({kind}[batch, 5] y) {{
        h = Gemm(x, w, b)
        a = Cast<to = 10>(h)
        c = CastLike(a, x)
        y = Relu(c)
    }}
    """
    held = {"float": "float32"}.get(kind, kind)
    arrays = {n: a.astype(held) for n, a in mlp(rng).items() if n != "v"}
    graph = load(model(text, **arrays), dtype=dtype)
    assert str(graph.expressions["y"].type) == f"{dtype}(batch, 5)"
    assert {p.type.dtype for p in graph.parameters.values()} == {dtype}
    x = rng.normal(size=(7, 4)).astype(held)
    wide = {n: a.astype("float64") for n, a in arrays.items()}
    wanted = np.maximum(x.astype("float64") @ wide["w"] + wide["b"], 0)
    f = compile(graph)
    for given in (x, x.astype("float32")):
        found = f(x=given)["y"].astype("float64")
        tight = held == dtype == "float32"
        np.testing.assert_allclose(found, wanted, atol=1e-5 if tight else 4e-2)


def test_batch_statistics_that_save_wrote_are_not_trainable(tmp_path):
    net = nn.Sequential(nn.SpatialConvolution(1, 4, 3, 3), nn.SpatialBatchNormalization(4))
    images = T.tensor("float32", ("batch", 1, 6, 6), name="images")
    symdnn.onnx.save({"y": net.evaluate()(images)}, tmp_path / "m.onnx")
    names = {p.name for p in symdnn.onnx.load(tmp_path / "m.onnx").trainable}
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_batch_statistics_are_not_trainable():
    text = "g (float[n, 2, 3] x) => (y) { y = BatchNormalization(x, s, b, m, v) }"
    ones = {k: np.ones(2, "float32") for k in "sbmv"}
    graph = load(model(text, **ones))
    assert {p.name for p in graph.trainable} == {"s", "b"}
    assert set(graph.parameters) == set("sbmv")


def test_a_function_for_each_pattern_of_ones():
    f = compile(model("g (float[n, m] x, float[k, m] y) => (z) { z = Add(x, y) }"))
    for n, k in ((3, 3), (3, 1), (1, 4), (5, 5), (5, 1)):
        x, y = np.ones((n, 2), "float32"), np.full((k, 2), 2, "float32")
        assert f(x, y)["z"].shape == (max(n, k), 2)
    assert len(f.functions) == 3


def test_derived_sizes_that_turn_out_1_broadcast():
    text = """g (float[n, 4] x, float[m, 4] y) => (z) {
        s = MaxPool<kernel_shape = [2], strides = [2]>(xx)
        z = Add(s, yy)
    }""".replace("s = Max", "xx = Unsqueeze(xt, zero)\n yy = Unsqueeze(yt, zero)\n s = Max")
    text = text.replace("xx = Uns", "xt = Transpose(x)\n yt = Transpose(y)\n xx = Uns")
    f = compile(model(text, zero=np.array([0])))
    for n, m in ((6, 3), (2, 5), (3, 5)):
        x, y = np.ones((n, 4), "float32"), np.ones((m, 4), "float32")
        assert f(x, y)["z"].shape == (1, 4, max(n // 2, m))


def test_chains_of_shapes_keep_names():
    text = """g (float[batch, seq, 8] x) => (y) {
        s = Shape(x)
        b = Gather<axis = 0>(s, zero)
        n = Gather<axis = 0>(s, one)
        bu = Unsqueeze(b, axes)
        nu = Unsqueeze(n, axes)
        shape = Concat<axis = 0>(bu, nu, heads, rest)
        h = Reshape(x, shape)
        y = Transpose<perm = [0, 2, 1, 3]>(h)
    }"""
    ints = dict(zero=0, one=1, axes=[0], heads=[2], rest=[4])
    graph = load(model(text, **{k: np.array(v) for k, v in ints.items()}))
    assert str(graph.expressions["y"].type) == "float32(batch, 2, seq, 4)"


def test_a_shape_that_is_an_input_is_settled_by_its_value():
    f = compile(model("g (float[n] x, int64[k] shape) => (y) { y = Reshape(x, shape) }"))
    x = np.arange(12, dtype="float32")
    for shape in ([3, 4], [2, 2, 3], [-1], [6, -1]):
        y = f(x, np.array(shape))["y"]
        np.testing.assert_array_equal(y, x.reshape(shape))


RANK = """g (float[n] x) => (y) {
    d = %s
    p = NonZero(d)
    q = Squeeze(p, axes)
    y = Reshape(x, q)
}"""


def test_an_input_that_decides_a_rank_is_settled_by_its_value():
    f = compile(model(RANK % "Identity(x)", axes=np.array([0])))
    x = np.float32([0, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(f(x)["y"], x.reshape(2, 3))


def test_data_that_decides_a_rank_is_refused_by_name():
    f = compile(model(RANK % "RandomNormal<shape = [4]>()", axes=np.array([0])))
    with pytest.raises(ModelError, match=r"node 'y' \(Reshape.*must be known"):
        f(np.float32([0, 1, 1]))


def test_sizes_of_data():
    f = compile(model("g (float[n] x) => (y) { y = NonZero(x) }"))
    for x in ([0, 1, 2], [0, 0, 0], [1, 0, 0]):
        np.testing.assert_array_equal(f(np.float32(x))["y"], np.array(np.nonzero(x)))


def test_local_functions_and_their_attributes():
    f = """<domain: "local", opset_import: ["": 21]>
    scaled <alpha> (x) => (y) { l = LeakyRelu<alpha: float = @alpha>(x) y = Add(l, l) }"""
    made = model("g (float[2] x) => (y) { y = local.scaled<alpha = 0.5>(x) }", functions=f)
    np.testing.assert_array_equal(compile(made)(np.float32([-1, 3]))["y"], [-1, 6])


BRANCHES = """g (bool c, float[n] x) => (y) {
    y = If (c) <
        then_branch = a () => (u) { u = Add(x, x) },
        else_branch = b () => (v) { v = %s }
    >
}"""


def test_a_choice_is_made_in_the_call():
    f = compile(model(BRANCHES % "Neg(x)"))
    x = np.float32([1, 2, 3])
    np.testing.assert_array_equal(f(np.array(True), x)["y"], x + x)
    np.testing.assert_array_equal(f(np.array(False), x)["y"], -x)
    assert len(f.functions) == 1


def test_branches_of_different_ranks_are_settled_by_the_condition():
    f = compile(model(BRANCHES % "Unsqueeze(x, axes)", axes=np.array([0])))
    x = np.float32([1, 2, 3])
    assert f(np.array(True), x)["y"].shape == (3,)
    assert f(np.array(False), x)["y"].shape == (1, 3)


LOOP = """g (int64 m, float[2] x) => (last, all) {
    t = Constant<value = bool {1}>()
    last, all = Loop (m, t, x) <
        body = b (int64 i, bool c, float[2] s) => (bool go, float[2] n, float[2] o) {
            n = Add(s, s)
            o = Neg(n)
            limit = Constant<value = float {100}>()
            z = ReduceMax<keepdims = 0>(n)
            go = Less(z, limit)
        }
    >
}"""


@pytest.mark.parametrize("steps", [0, 1, 3, 9, 50])
def test_a_loop_ends_by_its_number_or_condition(steps):
    x = np.float32([1, 2])
    s, collected = x, []
    for _ in range(steps):
        s = s + s
        collected.append(-s)
        if s.max() >= 100:
            break
    found = compile(model(LOOP))(np.array(steps), x)
    np.testing.assert_array_equal(found["last"], s)
    np.testing.assert_array_equal(found["all"], np.array(collected, "float32").reshape(-1, 2))


def test_a_state_that_grows_is_collected():
    text = """g (int64 m, float[1, 2] x) => (y) {
        t = Constant<value = bool {1}>()
        y = Loop (m, t, x) <
            body = b (int64 i, bool c, float[k, 2] s) => (bool c2, float[j, 2] n) {
                c2 = Identity(c)
                f = Cast<to = 1>(i)
                shape = Constant<value = int64[2] {1, 2}>()
                piece = Expand(f, shape)
                n = Concat<axis = 0>(s, piece)
            }
        >
    }"""
    f = compile(model(text))
    for m in (0, 2, 7):
        wanted = np.repeat([9, *range(m)], 2).reshape(-1, 2)
        np.testing.assert_array_equal(f(np.array(m), np.full((1, 2), 9, "float32"))["y"], wanted)


def test_external_data(tmp_path, rng):
    import onnx

    arrays = mlp(rng)
    onnx.save(model(MLP, **arrays), tmp_path / "m.onnx", save_as_external_data=True,
              location="w.bin", size_threshold=0)  # fmt: skip
    x = rng.normal(size=(2, 4)).astype("float32")
    wanted = compile(model(MLP, **arrays))(x)["y"]
    np.testing.assert_array_equal(compile(tmp_path / "m.onnx")(x)["y"], wanted)


def test_random_draws_have_the_statistics_that_they_should():
    f = compile(model("g (float[n] p) => (y) { y = Bernoulli(p) }"))
    p = np.repeat(np.float32([0.2, 0.7]), 5000)
    first, second = f(p)["y"], f(p)["y"]
    np.testing.assert_allclose(first.reshape(2, -1).mean(axis=1), [0.2, 0.7], atol=0.03)
    assert (first != second).any()
    text = """g (float[n] x) => (y, mask) {
        r = Constant<value = float {0.3}>()
        t = Constant<value = bool {1}>()
        y, mask = Dropout(x, r, t)
    }"""
    found = compile(model(text))(np.ones(9000, "float32"))
    assert abs(found["mask"].mean() - 0.7) < 0.02
    np.testing.assert_allclose(found["y"], found["mask"] / np.float32(0.7), rtol=1e-6)


def test_calls_say_what_is_wrong():
    f = compile(model("g (float[n, 4] x) => (y) { y = Neg(x) }"))
    with pytest.raises(ModelError, match="are missing"):
        f()
    with pytest.raises(ModelError, match="no inputs"):
        f(z=1)
    with pytest.raises(ModelError, match="array of shape"):
        f(np.ones((2, 5), "float32"))
    with pytest.raises(ModelError, match="wanted float32, got int64"):
        f(np.ones((2, 4), "int64"))


def test_one_node_runs_alone():
    from onnx import helper

    (y,) = run_node(helper.make_node("Add", ["a", "b"], ["c"]), [np.ones(3), np.ones(3)])
    np.testing.assert_array_equal(y, 2 * np.ones(3))
    assert supports_device("CPU")


def test_values_of_the_file_are_defaults_of_inputs(rng):
    arrays = mlp(rng)
    text = MLP.replace(" x) =>", " x, float[4, 5] w, int64[1] axis) =>")
    text = text.replace("a = Relu(h)", "r = ReduceMax(h, axis)\n    a = Sub(h, r)")
    f = compile(model(text, **arrays, axis=np.array([0])))
    assert list(f.graph.inputs) == ["x"]
    assert list(f.graph.defaults) == ["w", "axis"]
    x, other = (rng.normal(size=s).astype("float32") for s in ((7, 4), (4, 5)))
    for given in ({}, {"w": other}, {"axis": np.array([1])}, {}):
        h = x @ given.get("w", arrays["w"]) + arrays["b"]
        wanted = (h - h.max(int(given.get("axis", [0])[0]), keepdims=True)) @ arrays["v"]
        np.testing.assert_allclose(f(x=x, **given)["y"], wanted, rtol=1e-4, atol=1e-5)
    y = f.graph(x=T.fmatrix("x"), w=T.fmatrix("w"))["y"]
    assert y.ndim == 2
    with pytest.raises(ModelError, match="no inputs"):
        f(x=x, v=arrays["v"])


def test_a_layer_norm_without_a_shift(rng):
    f = compile(model("g (float[n, 4] x) => (y) { y = LayerNormalization(x, w) }",
                      w=np.arange(4, dtype="float32")))  # fmt: skip
    x = rng.normal(size=(3, 4)).astype("float32")
    centred = x - x.mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * np.arange(4)
    np.testing.assert_allclose(f(x)["y"], wanted, rtol=1e-4, atol=1e-5)
    ops = [type(a.op).__name__ for a in f.functions[0].fgraph.apply_nodes]
    assert len([name for name in ops if "Norm" in name]) == 1


def test_nodes_in_any_order(rng):
    inner = """y = If(c) <then_branch = g1 () => (t) { s = Tanh(r) t = Neg(s) },
                          else_branch = g2 () => (e) { e = Neg(late) }>"""
    text = f"""g (float[n, 4] x, bool c) => (y) {{
        r = Relu(x)
        late = Exp(r)
        {inner}
    }}"""
    made = model(text)
    inside = made.graph.node[2].attribute[0].g.node
    for nodes in (made.graph.node, inside):
        nodes.sort(key=lambda n: n.op_type, reverse=True)  # Tanh, Neg; Relu, If, Exp
        turned = list(nodes)[::-1]
        del nodes[:]
        nodes.extend(turned)
    assert [n.op_type for n in made.graph.node] == ["Exp", "If", "Relu"]
    given = made.SerializeToString()
    x = rng.normal(size=(2, 4)).astype("float32")
    r = np.maximum(x, 0)
    for source in (made, given):
        f = compile(source)
        for c, wanted in ((True, -np.tanh(r)), (False, -np.exp(r))):
            np.testing.assert_allclose(f(x, np.array(c))["y"], wanted, rtol=1e-5)
    assert made.SerializeToString() == given  # the caller's model is left as it was


def test_calls_of_the_same_shapes_and_of_others(rng):
    """A repeated call goes straight to its function; other arrays find theirs."""
    f = compile(model("g (float[n, m] x, float[k, m] y) => (z) { z = Add(x, y) }"))
    for n, k in ((3, 3), (3, 3), (3, 1), (3, 1), (2, 2), (3, 3), (3, 3)):
        x, y = (rng.normal(size=(i, 4)).astype("float32") for i in (n, k))
        np.testing.assert_array_equal(f(x=x, y=y)["z"], x + y)
    assert len(f.functions) == 2
    np.testing.assert_allclose(f(x=x, y=y.tolist())["z"], x + y, rtol=1e-6)
    with pytest.raises(ModelError, match="missing"):
        f(x=x)
    with pytest.raises(ModelError, match="wanted float32"):
        f(x=x, y=y.astype(int))
    narrow = compile(model("g (int4[n] x) => (y) { y = Cast<to = 1>(x) }"))
    for value in ([1, -2], [3, 7]):
        codes = np.array(value, "int8")
        np.testing.assert_array_equal(narrow(x=codes)["y"], value)


@pytest.mark.parametrize(
    ("n", "factor", "rounding", "want"),
    [(10, 0.7, "floor", [0, 1, 3, 4, 5, 7, 8]),  # 10 * 0.7 is 7, of which float64 makes 6.99999988
     (49, 1 / 49, "floor", [24]),
     (5, 0.6, "floor", [0, 2, 3]),  # (1 + 0.5) / 0.6 - 0.5 is 2, not 1.9999999
     (7, 0.3, "round_prefer_floor", [1, 4]),
     (9, 0.2, "ceil", [2])],
)  # fmt: skip
@pytest.mark.parametrize("open_size", [False, True])
def test_factors_of_a_resize_are_of_float32(n, factor, rounding, want, open_size):
    """Those of a file are: sizes and places follow as in ONNX's shape inference and its Runtime."""
    body = (
        f"g (float[1, {'n' if open_size else n}] x) => (float[p, q] y) {{ y = Resize "
        f'<mode="nearest", nearest_mode="{rounding}"> (x, , s) }}'
    )
    f = compile(model(body, s=np.array([1, factor], "float32")))
    assert f(x=np.arange(n, dtype="float32")[None])["y"].tolist() == [want]


def test_a_resize_to_one_element_takes_the_first():
    for given in ("s", ", m"):
        body = (
            'g (float[1, 5] x) => (float[p, q] y) { y = Resize <mode="linear", '
            f'coordinate_transformation_mode="pytorch_half_pixel"> (x, , {given}) }}'
        )
        scales, sizes = np.array([1, 0.3], "float32"), np.array([1, 1])
        f = compile(model(body, s=scales, m=sizes))
        assert f(x=np.arange(5, dtype="float32")[None] + 2)["y"].tolist() == [[2]]


@pytest.mark.parametrize(("n", "m"), [(49, 7), (100, 30)])
def test_corners_of_a_resize_to_a_size_are_kept(n, m):
    body = (
        'g (float[1, n] x) => (float[p, q] y) { y = Resize <mode="nearest", nearest_mode="floor", '
        'coordinate_transformation_mode="align_corners"> (x, , , m) }'
    )
    found = compile(model(body, m=np.array([1, m])))(x=np.arange(n, dtype="float32")[None])["y"]
    assert found.tolist() == [[(n - 1) * i // (m - 1) for i in range(m)]]


def test_places_of_a_resize_are_rounded_as_in_the_definition():
    body = (
        'g (float[n, m] x) => (float[p, q] y) { y = Resize <mode="nearest", nearest_mode="floor", '
        'coordinate_transformation_mode="half_pixel_symmetric"> (x, , s) }'
    )
    f = compile(model(body, s=np.array([1, 1.5], "float32")))
    found = f(x=np.arange(5, dtype="float32")[None])["y"]
    assert found.tolist() == [[0, 0, 1, 2, 2, 3, 4]]
