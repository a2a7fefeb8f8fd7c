"""Files that are damaged or lie: one clear error, whatever is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from symdnn.errors import ModelError, SymdnnError
from symdnn.onnx import compile, load
from tests.onnx.models import model

TEXT = """
g (float[batch, 4] x) => (float[batch, 3] y) {
    h = Gemm(x, w, b)
    a = Relu(h)
    s = Shape(a)
    r = Reshape(a, s)
    t = Transpose<perm = [0, 1]>(r)
    y = MatMul(t, v)
}
"""
X = np.ones((2, 4), "float32")


def sound():
    rng = np.random.default_rng(0)
    f32 = "float32"
    return model(TEXT, w=rng.normal(size=(4, 5)).astype(f32), b=np.ones(5, f32),
                 v=np.ones((5, 3), f32))  # fmt: skip


def runs_or_refuses(content) -> str:
    """What becomes of a damaged file: it runs, or one of symdnn's errors is raised."""
    try:
        f = compile(content)
        found = f(**{n: X for n in f.graph.inputs})
        assert all(isinstance(v, np.ndarray) for v in found.values())
    except SymdnnError:
        return "refused"
    return "ran"


def test_a_file_that_is_cut_off():
    content = sound().SerializeToString()
    results = [runs_or_refuses(content[:n]) for n in range(0, len(content), 7)]
    assert results.count("refused") > 0.9 * len(results)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_that_changed(seed):
    content = bytearray(sound().SerializeToString())
    rng = np.random.default_rng(seed)
    for _ in range(60):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        runs_or_refuses(bytes(damaged))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 140))
def test_more_bytes_that_changed(seed):
    test_bytes_that_changed(seed)


@pytest.mark.parametrize("text", ["Relu", "batch", "float-scores", "outer"])
def test_text_that_is_no_utf8(text):
    """A name of a node, an op, an output, a size, wherever it stands."""
    made = sound()
    made.graph.node[0].name = "float-scores"
    made.graph.doc_string = "outer"
    content = made.SerializeToString()
    assert content.count(text.encode())
    with pytest.raises(ModelError, match="no text"):
        load(content.replace(text.encode(), b"\xff" + text.encode()[1:]))


def mutated(rng):
    """A sound model with nodes, inputs, attributes and shapes exchanged."""
    made = sound()
    graph = made.graph
    names = [n for node in graph.node for n in (*node.input, *node.output)]
    for _ in range(int(rng.integers(1, 4))):
        node = graph.node[int(rng.integers(len(graph.node)))]
        kind = int(rng.integers(7))
        if kind == 0 and node.input:
            node.input[int(rng.integers(len(node.input)))] = str(rng.choice(names))
        elif kind == 1:
            node.op_type = str(rng.choice(["Conv", "Loop", "If", "Softmax", "Pad", "Gather", "?"]))
        elif kind == 2:
            node.attribute.append(helper.make_attribute(str(rng.choice(["axis", "perm"])),
                                                        [int(rng.integers(-9, 9))]))  # fmt: skip
        elif kind == 3:
            tensor = graph.initializer[int(rng.integers(len(graph.initializer)))]
            tensor.dims[0] = int(rng.choice([-1, 0, 1, 7, 1 << 40]))
        elif kind == 4:
            del node.input[:]
        elif kind == 5:
            graph.input[0].type.tensor_type.shape.dim[1].dim_value = int(rng.integers(-2, 9))
        else:
            graph.node.append(node)
    return made


@pytest.mark.parametrize("seed", range(4))
def test_structures_that_changed(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        runs_or_refuses(mutated(rng))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 140))
def test_more_structures_that_changed(seed):
    test_structures_that_changed(seed)


def refused(made, match):
    with pytest.raises(ModelError, match=match):
        run(made)


def run(made):
    f = compile(made)
    return f(**{n: X for n in f.graph.inputs})


def test_what_is_wrong_is_named(tmp_path):
    refused(b"", "no ONNX model")
    refused(b"hello, this is text", "no ONNX model|cut off")
    refused(3, "wanted a path")
    with pytest.raises(OSError, match="nothing.onnx"):
        load(tmp_path / "nothing.onnx")


def test_unknown_ops_and_opsets():
    refused(model("g (float[2, 4] x) => (y) { y = Sneeze(x) }"), r"'Sneeze|Sneeze.*knows no op")
    refused(model("g (float[2, 4] x) => (y) { y = local.f(x) }"), r"local.f.*knows no op")
    blocked = model("g (float[2, 4] x) => (y) { y = Relu(x) }")
    blocked.graph.node[0].domain = "com.microsoft.nchwc"
    blocked.opset_import.add(domain="com.microsoft.nchwc", version=1)
    refused(blocked, "Relu.*one processor.*ORT_ENABLE_EXTENDED")
    newer = sound()
    newer.opset_import[0].version = 9999
    refused(newer, "opset 9999")
    none = sound()
    del none.opset_import[:]
    refused(none, "which opset")


def test_cycles_and_order():
    made = sound()
    made.graph.node[0].input[0] = "y"
    refused(made, "only in a cycle")
    twice = sound()
    twice.graph.node[1].output[0] = "h"
    refused(twice, "another node makes too")
    lost = sound()
    lost.graph.output[0].name = "nowhere"
    refused(lost, "made by no node")


def test_functions_that_call_themselves():
    text = """<domain: "local", opset_import: ["": 21, "local": 1]>
    f (x) => (y) { y = local.f(x) }"""
    refused(model("g (float[2, 4] x) => (y) { y = local.f(x) }", functions=text), "calls itself")


def test_shapes_that_lie():
    made = sound()
    made.graph.value_info.append(helper.make_tensor_value_info("h", 1, [7, 7, 7]))
    assert runs_or_refuses(made) == "ran"  # what nodes give counts, not what the file says of it
    output = sound()
    output.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 99
    assert runs_or_refuses(output) == "ran"
    same = model("g (float[n, 4] x, float[n, 4] z) => (y) { y = Concat<axis = 0>(x, z) }")
    assert compile(same)(X, np.ones((5, 4), "float32"))["y"].shape == (7, 4)


def test_sizes_beyond_reason():
    made = sound()
    made.graph.initializer[0].dims[0] = 1 << 50
    refused(made, "'w' of shape .* is damaged")
    fill = model("g (float[2, 4] x) => (y) { y = ConstantOfShape(s) }",
                 s=np.array([1 << 30, 1 << 30]))  # fmt: skip
    refused(fill, "a tensor of shape")
    many = model("g (float[2, 4] x) => (y) { y = Range(a, b, c) }", a=0, b=1 << 60, c=1)
    refused(many, "a tensor of shape")


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", ""])
def test_external_data_outside_of_the_folder(location, tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(80))
    folder = tmp_path / "models"
    folder.mkdir()
    refused_location(folder, location, "is outside")


def refused_location(folder, location, match, **entries):
    made = sound()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    refused(folder / "m.onnx", match)


def test_external_data_that_does_not_fit(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(40))
    refused_location(tmp_path, "w.bin", "has 40 bytes, and it ends at 80")
    refused_location(tmp_path, "w.bin", "declares 8", length="8")
    refused_location(tmp_path, "w.bin", "no number of bytes", offset="-1")
    refused_location(tmp_path, "gone.bin", "is missing")
    (tmp_path / "outside").symlink_to("/etc")
    refused_location(tmp_path, "outside/passwd", "is outside")


@pytest.mark.parametrize("kind", ["uint4", "int4", "uint2", "float4_e2m1fn", "float6_e2m3fn"])
def test_packed_elements_in_another_file(kind, tmp_path):
    """Of fewer bits than 8, as the package onnx packs them."""
    import ml_dtypes
    import onnx

    wanted = np.array([1, 0, 1, 1, 0, 1, 0], "float32")
    tensor = numpy_helper.from_array(wanted.astype(getattr(ml_dtypes, kind)), "w")
    made = model("g () => (y) { y = Identity(w) }", opset=28)
    made.ir_version = 13
    made.graph.initializer.append(tensor)
    path = tmp_path / "m.onnx"
    onnx.save_model(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").exists()
    found = compile(path)()["y"]
    assert found.dtype == getattr(ml_dtypes, kind)
    np.testing.assert_array_equal(found.astype("float32"), wanted)


def test_external_data_of_bytes_is_refused(tmp_path):
    made = sound()
    tensor = made.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    refused(made, "load the model by its path")


def test_strings_are_refused():
    text = model("g (string[2] x) => (y) { y = Identity(x) }")
    refused(text, "'x'.*strings")
    made = sound()
    made.graph.initializer.append(numpy_helper.from_array(np.array(["a"], object), "s"))
    refused(made, "'s'.*strings")
