"""Keras's own files: layouts of Keras 1, 2 and 3; damaged ones, and ones that lead elsewhere."""

from __future__ import annotations

import io
import json
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from symdnn import nn
from symdnn.errors import FileFormatError

RNG = np.random.default_rng(5)


def draw(*shape):
    return RNG.standard_normal(shape).astype("float32")


def group_of(parent, layer, weights):
    group = parent.create_group(layer)
    group.attrs["weight_names"] = [n.encode() for n in weights]
    for name, value in weights.items():
        group[name] = value


def keras_2(path, layers, inside=""):
    with h5py.File(path, "w") as file:
        root = file.create_group(inside) if inside else file
        root.attrs["layer_names"] = [n.encode() for n in layers]
        for layer, weights in layers.items():
            group_of(root, layer, {f"{layer}/{k}:0": v for k, v in weights.items()})


def dense_and_conv():
    return {
        "conv2d_1": {"kernel": draw(3, 3, 1, 4), "bias": draw(4)},
        "flatten_1": {},
        "dense_1": {"kernel": draw(16, 2), "bias": draw(2)},
    }


def network():
    return nn.Sequential(nn.SpatialConvolution(1, 4, 3, 3), nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("inside", ["", "model_weights"])
def test_a_file_of_keras_2(tmp_path, inside):
    layers, net = dense_and_conv(), network()
    keras_2(tmp_path / "net.h5", layers, inside)
    nn.load_keras(net, tmp_path / "net.h5", flattened={"dense_1": (2, 2, 4)}, filter_flip=False)
    weight = net.state_dict()["0.weight"]
    np.testing.assert_array_equal(weight, layers["conv2d_1"]["kernel"].transpose(3, 2, 0, 1))
    other = network()
    arrays = {f"{n}/{k}": v for n, ws in layers.items() for k, v in ws.items()}
    nn.load_keras(other, arrays, flattened={"dense_1": (2, 2, 4)}, filter_flip=False)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])


def test_a_file_of_keras_1_and_its_gates(tmp_path):
    gates = {f"lstm_1_{w}_{g}": draw(*s) for g in "icfo"
             for w, s in (("W", (3, 5)), ("U", (5, 5)), ("b", (5,)))}  # fmt: skip
    conv = draw(4, 1, 3, 3)
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["layer_names"] = [b"convolution2d_1", b"lstm_1", b"bn_1", b"dense_2"]
        group_of(file, "convolution2d_1", {"convolution2d_1_W": conv, "convolution2d_1_b": draw(4)})
        group_of(file, "lstm_1", gates)
        group_of(file, "bn_1", {f"bn_1_{n}": draw(4) for n in
                                ("gamma", "beta", "running_mean", "running_std")})  # fmt: skip
        group_of(file, "dense_2", {"dense_2_W": draw(5, 2), "dense_2_b": draw(2)})
        config = {"layers": [{"config": {"name": "convolution2d_1", "dim_ordering": "th"}}]}
        file.attrs["model_config"] = json.dumps(config)
    found = nn.read_weights(tmp_path / "old.h5")
    np.testing.assert_array_equal(found["convolution2d_1/kernel"], conv.transpose(2, 3, 1, 0))
    wanted = np.concatenate([gates[f"lstm_1_W_{g}"] for g in "ifco"], axis=1)
    np.testing.assert_array_equal(found["lstm_1/kernel"], wanted)
    assert found["lstm_1/recurrent_kernel"].shape == (5, 20)
    assert {"bn_1/moving_variance", "bn_1/gamma", "dense_2/kernel"} <= set(found)


def test_kernels_whose_order_nothing_says(tmp_path):
    def save(shape):
        with h5py.File(tmp_path / "net.h5", "w") as file:
            file.attrs["layer_names"] = [b"c"]
            group_of(file, "c", {"c_W": draw(*shape)})
        return tmp_path / "net.h5"

    assert nn.read_weights(save((32, 16, 3, 3)))["c/kernel"].shape == (3, 3, 16, 32)
    assert nn.read_weights(save((3, 3, 16, 32)))["c/kernel"].shape == (3, 3, 16, 32)
    with pytest.raises(FileFormatError, match="does not say"):
        nn.read_weights(save((4, 3, 3, 3)))


def test_a_zip_of_keras_3(tmp_path):
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for path, value in {
            "layers/dense/vars/0": draw(16, 2), "layers/dense/vars/1": draw(2),
            "layers/conv2d/vars/0": draw(3, 3, 1, 4), "layers/conv2d/vars/1": draw(4),
            **{f"layers/batch_normalization/vars/{i}": draw(2) for i in range(4)},
            "layers/dropout/seed_generator/vars/0": np.zeros(2, "uint32"),
            "optimizer/vars/0": np.zeros(3, "float32"),
        }.items():  # fmt: skip
            file[path] = value
    with zipfile.ZipFile(tmp_path / "net.keras", "w") as archive:
        classes = ["InputLayer", "Conv2D", "Flatten", "BatchNormalization", "Dense", "Dropout"]
        layers = [{"class_name": c} for c in classes]
        archive.writestr("config.json", json.dumps({"config": {"layers": layers}}))
        archive.writestr("model.weights.h5", memory.getvalue())
    found = nn.read_weights(tmp_path / "net.keras")
    norm = ("gamma", "beta", "moving_mean", "moving_variance")
    assert list(found) == [
        "conv2d/kernel", "conv2d/bias", *(f"batch_normalization/{n}" for n in norm),
        "dense/kernel", "dense/bias",
    ]  # fmt: skip


def test_files_that_lead_elsewhere_are_refused(tmp_path):
    def refused(build, match):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.attrs["layer_names"] = [b"a"]
            group_of(file, "a", {"a/kernel:0": draw(2, 2)})
            build(file)
        with pytest.raises(FileFormatError, match=match):
            nn.read_weights(tmp_path / "x.h5")

    refused(lambda f: f.__setitem__("b", h5py.ExternalLink("/etc/passwd", "/")), "elsewhere")
    refused(lambda f: f.__setitem__("b", h5py.SoftLink("/a")), "elsewhere")
    refused(lambda f: f["a"].__setitem__("again", f), "itself")
    refused(
        lambda f: f.create_dataset("b", (4,), "f4", external=[("/etc/hostname", 0, 16)]),
        "another file",
    )
    refused(lambda f: f.create_dataset("b", (2**40,), "f4", chunks=(1024,)), "would unpack")


def test_damaged_files(tmp_path):
    keras_2(tmp_path / "net.h5", dense_and_conv())
    content = (tmp_path / "net.h5").read_bytes()
    rng, path, read = np.random.default_rng(0), tmp_path / "bad.h5", 0
    for _ in range(150):
        bad = bytearray(content)
        for at in rng.integers(0, len(bad), 4):
            bad[at] = rng.integers(256)
        path.write_bytes(bytes(bad[: rng.integers(len(bad) // 2, len(bad) + 1)]))
        try:
            nn.read_weights(path)
            read += 1
        except FileFormatError:
            pass
    assert read < 150


def test_damaged_heaps_and_attributes_end(tmp_path):
    """HDF5's library walks a heap of texts without an end where an object's size is 0."""
    path = tmp_path / "net.h5"
    keras_2(path, dense_and_conv())
    content = path.read_bytes()
    heap = content.index(b"GCOL")
    for place, value in ((8, 2**62), (8, 3), (16, 0), (24, 2**63 - 1), (24, 2**40)):
        bad = bytearray(content)
        width = 8 if place != 16 else 16
        bad[heap + place : heap + place + width] = value.to_bytes(width, "little")
        path.write_bytes(bytes(bad))
        with pytest.raises(FileFormatError, match="heap"):
            nn.read_weights(path)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.arange(3)
    with pytest.raises(FileFormatError, match="wanted texts"):
        nn.read_weights(path)


@pytest.mark.parametrize("version", ["earliest", "latest"])
@pytest.mark.parametrize("others", [0, 40])
def test_texts_that_claim_more_than_they_have(tmp_path, version, others):
    """HDF5's library makes room for a text of variable length before it reads it."""
    path, text = tmp_path / "net.h5", h5py.string_dtype()
    with h5py.File(path, "w", libver=version) as file:
        file.attrs.create("layer_names", ["dense_1", "b"], dtype=text)
        file.attrs.create("keras_version", "2.3.1", dtype=text)
        for layer, names in (("dense_1", ["kernel", "bias"]), ("b", ["bias"])):
            group = file.create_group(layer)
            for i in range(others):  # with many they are kept in another form
                group.attrs[f"other_{i}"] = i
            group.attrs.create("weight_names", [f"{layer}/{n}:0" for n in names], dtype=text)
            for n in names:
                group[f"{layer}/{n}:0"] = draw(2)
    assert set(nn.read_weights(path)) == {"dense_1/kernel", "dense_1/bias", "b/bias"}
    content = path.read_bytes()
    heap = content.index(b"GCOL").to_bytes(8, "little")
    elsewhere = b"\xff" * 4 + heap[4:]
    for length in (len("dense_1"), len("dense_1/kernel:0"), len("b/bias:0")):
        at = content.index(length.to_bytes(4, "little") + heap)
        for claimed, address in ((2**31 + 5, heap), (2**32 - 1, heap), (2**31, elsewhere)):
            bad = bytearray(content)
            bad[at : at + 12] = claimed.to_bytes(4, "little") + address
            path.write_bytes(bytes(bad))
            with pytest.raises(FileFormatError, match="would unpack"):
                nn.read_weights(path)


@pytest.mark.parametrize("filters", [{"compression": "gzip"}, {"compression": "gzip",
                         "shuffle": True, "fletcher32": True}, {"shuffle": True}])  # fmt: skip
def test_compressed_weights(tmp_path, filters):
    path, kernel = tmp_path / "net.h5", np.zeros((300, 200), "float32")
    kernel[3] = draw(200)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [b"dense_1"]
        group = file.create_group("dense_1")
        group.attrs["weight_names"] = [b"dense_1/kernel:0"]
        group.create_dataset("dense_1/kernel:0", data=kernel, chunks=(100, 200), **filters)
    np.testing.assert_array_equal(nn.read_weights(path)["dense_1/kernel"], kernel)


def test_compressed_parts_that_hold_more_than_their_numbers(tmp_path):
    """HDF5's library would make room for all that zlib finds."""
    path = tmp_path / "net.h5"
    for filters in (
        {"many": 1 << 22, "compression": "gzip"},
        {"many": 200, "compression": "gzip"},
        {"many": 20, "compression": "lzf"},
        {"many": 20, "scaleoffset": 3, "compression": "gzip"},
    ):
        many = filters.pop("many")
        with h5py.File(path, "w") as file:
            file.attrs["layer_names"] = [b"dense_1"]
            group = file.create_group("dense_1")
            group.attrs["weight_names"] = [b"dense_1/kernel:0"]
            made = group.create_dataset("dense_1/kernel:0", (4, 3), "f4", chunks=(4, 3), **filters)
            made.id.write_direct_chunk((0, 0), zlib.compress(bytes(many)))
        with pytest.raises(FileFormatError, match=r"more than 52 bytes|wanted gzip's alone"):
            nn.read_weights(path)
