"""Torch7's files: tensors of tables and modules, shared objects, damaged bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from symdnn import nn
from symdnn.errors import FileFormatError
from symdnn.nn.formats.t7 import read_t7

RNG = np.random.default_rng(7)
KINDS = {"f8": "Double", "f4": "Float", "i8": "Long", "u1": "Byte"}


class Module:
    """A Lua object of a class, to write."""

    def __init__(self, kind, fields):
        self.kind, self.fields = kind, fields


class Writer:
    """Writes what ``torch.save`` does in binary."""

    def __init__(self):
        self.out, self.known = b"", {}

    def int(self, *values):
        self.out += struct.pack(f"<{len(values)}i", *values)

    def text(self, text):
        self.int(len(text))
        self.out += text.encode()

    def object(self, value):
        if value is None:
            self.int(0)
        elif isinstance(value, bool):
            self.int(5, int(value))
        elif isinstance(value, int | float):
            self.int(1)
            self.out += struct.pack("<d", value)
        elif isinstance(value, str):
            self.int(2)
            self.text(value)
        elif id(value) in self.known:
            self.int(3 if isinstance(value, dict) else 4, self.known[id(value)])
        else:
            index = self.known[id(value)] = len(self.known) + 1
            self.compound(value, index)
        return self

    def compound(self, value, index):
        if isinstance(value, dict):
            self.int(3, index, len(value))
            for k, v in value.items():
                self.object(k).object(v)
            return
        self.int(4, index)
        self.text("V 1")
        if isinstance(value, Module):
            self.text(value.kind)
            self.object(value.fields)
            return
        name = KINDS[value.dtype.str[1:]]
        self.text(f"torch.{name}Tensor")
        self.int(value.ndim)
        strides = [s // value.itemsize for s in value.strides]
        self.out += struct.pack(f"<{2 * value.ndim + 1}q", *value.shape, *strides, 1)
        self.int(4, len(self.known) + 1)
        self.known[object()] = len(self.known) + 1
        self.text("V 1")
        self.text(f"torch.{name}Storage")
        flat = value.ravel(order="K")
        self.out += struct.pack("<q", flat.size) + flat.tobytes()


def save(path, value):
    path.write_bytes(Writer().object(value).out)
    return path


def draw(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


def net_as_lua():
    conv = {"weight": draw(4, 1, 3, 3), "bias": draw(4), "finput": draw(9), "nInputPlane": 1}
    norm = {"running_mean": draw(4), "running_var": abs(draw(4)), "weight": draw(4),
            "bias": draw(4), "save_mean": draw(4)}  # fmt: skip
    linear = {"weight": draw(2, 16, dtype="f8"), "bias": draw(2), "gradWeight": draw(2, 16)}
    modules = {1: Module("nn.SpatialConvolution", conv),
               2: Module("nn.SpatialBatchNormalization", norm),
               3: Module("nn.View", {"size": 16}), 4: Module("nn.Linear", linear)}  # fmt: skip
    return Module("nn.Sequential", {"modules": modules, "train": False}), conv, linear


def test_a_network_into_one_of_ours(tmp_path):
    lua, conv, linear = net_as_lua()
    net = nn.Sequential(nn.SpatialConvolution(1, 4, 3, 3), nn.SpatialBatchNormalization(4),
                        nn.Flatten(), nn.Linear(16, 2))  # fmt: skip
    nn.load_torch7(net, save(tmp_path / "net.t7", lua))
    state = net.state_dict()
    np.testing.assert_array_equal(state["0.weight"], conv["weight"])
    np.testing.assert_array_equal(state["3.weight"], linear["weight"].astype("f4"))


def test_tables_strides_and_shared_objects(tmp_path):
    wide = np.asfortranarray(draw(3, 5))
    table = {"a": wide, "b": {"c": wide, 1: draw(2, dtype="f8"), 2: "text"}, "n": np.arange(3)}
    table["self"] = table
    found = read_t7(save(tmp_path / "t.t7", table))
    assert list(found) == ["a", "b.c", "b.1", "n"]
    np.testing.assert_array_equal(found["a"], wide)
    assert found["a"] is found["b.c"]
    assert found["n"].dtype == np.int64


def test_functions_are_passed_over(tmp_path):
    w = Writer()
    w.int(3, 100, 2)
    w.object("f").int(8, 101)
    w.int(5)
    w.out += b"\x1bLua!"
    w.object(None).object("x").object(draw(2))
    (tmp_path / "f.t7").write_bytes(w.out)
    assert list(read_t7(tmp_path / "f.t7")) == ["x"]


def test_counts_that_do_not_fit(tmp_path):
    def refused(content):
        (tmp_path / "bad.t7").write_bytes(content)
        with pytest.raises(FileFormatError):
            read_t7(tmp_path / "bad.t7")

    refused(struct.pack("<ii", 2, 2**31 - 1))
    refused(struct.pack("<iii", 3, 1, 2**31 - 1))
    storage = b"torch.FloatStorage"
    refused(struct.pack("<ii", 4, 1) + struct.pack("<i", len(storage)) + storage
            + struct.pack("<q", 2**40))  # fmt: skip
    nested = b"".join(struct.pack("<iii", 3, i + 1, 1) for i in range(5000))
    refused(nested)
    repeated = Writer().object(draw(4)).out
    refused(repeated.replace(struct.pack("<qq", 4, 1), struct.pack("<qq", 2**30, 0)))


def test_damaged_files(tmp_path):
    lua, _, _ = net_as_lua()
    content = save(tmp_path / "net.t7", lua).read_bytes()
    rng, bad_ones = np.random.default_rng(1), 0
    for _ in range(400):
        bad = bytearray(content)
        for at in rng.integers(0, len(bad), 3):
            bad[at] = rng.integers(256)
        (tmp_path / "bad.t7").write_bytes(bytes(bad[: rng.integers(1, len(bad) + 1)]))
        try:
            read_t7(tmp_path / "bad.t7")
        except FileFormatError:
            bad_ones += 1
    assert bad_ones > 100
