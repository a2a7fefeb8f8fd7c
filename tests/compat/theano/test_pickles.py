"""Values out of pickles that Theano wrote; nothing that a pickle names is looked up."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import types

import numpy as np
import pytest

from symdnn.compat.theano import TheanoObject, load_pickle
from symdnn.errors import FileFormatError

RNG = np.random.default_rng(2)


@pytest.fixture
def like_theanos(monkeypatch):
    """Modules with classes that pickle as those of Theano 1.0 do."""

    def module(name, *classes):
        made = types.ModuleType(name)
        for c in classes:
            kind = type(c, (object,), {"__module__": name})
            setattr(made, c, kind)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    shared = module("theano_sharedvar", "TensorSharedVariable")
    link = module("theano_link", "Container")
    var = module("theano_var", "TensorConstant")
    model = module("my_models", "MLP")

    def make(value, name=None):
        made, box = shared.TensorSharedVariable(), link.Container()
        box.storage, box.readonly = [value], False
        made.container, made.name, made.type = box, name, None
        return made

    constant = var.TensorConstant()
    constant.data, constant.name = np.arange(3.0), None
    return make, constant, model.MLP


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_variables_in_containers_and_objects(like_theanos, protocol):
    make, constant, MLP = like_theanos
    w, b = RNG.standard_normal((3, 4)), RNG.standard_normal(4).astype("float32")
    net = MLP()
    net.params, net.name, net.depth = [make(w, "W"), make(b, "b")], "net", 2
    content = pickle.dumps({"net": net, "c": constant, "w": net.params[0], "n": np.float32(2.5)},
                           protocol)  # fmt: skip
    found = load_pickle(io.BytesIO(content))
    assert isinstance(found["net"], TheanoObject)
    assert found["net"].name == "net"
    assert found["net"].depth == 2
    assert found["net"].class_name == "my_models.MLP"
    np.testing.assert_array_equal(found["net"].params[0], w)
    assert found["w"] is found["net"].params[0]
    assert found["net"].params[1].dtype == np.float32
    np.testing.assert_array_equal(found["c"], [0, 1, 2])
    assert found["n"] == np.float32(2.5)


def test_arrays_of_a_gpu_and_of_python_2(tmp_path):
    # What Python 2 writes of [CudaNdarray, a Fortran array, big-endian numbers], by hand.
    inner = pickle.dumps([np.ones((2, 2), order="F"), np.arange(3, dtype=">i4")], 2)
    path = tmp_path / "old.pkl"
    path.write_bytes(inner.replace(b"numpy._core", b"numpy.core"))
    fortran, big = load_pickle(path)
    np.testing.assert_array_equal(fortran, np.ones((2, 2)))
    np.testing.assert_array_equal(big, [0, 1, 2])
    array = pickle.dumps(np.arange(4.0, dtype="float32"), 2)[2:-1]
    cuda = b"\x80\x02ctheano.sandbox.cuda.type\nCudaNdarray_unpickler\n" + array + b"\x85R."
    np.testing.assert_array_equal(load_pickle(io.BytesIO(cuda)), np.arange(4.0))


class Evil:
    """What a malicious pickle calls."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def test_nothing_runs(tmp_path):
    import builtins
    import os
    import subprocess

    flag = tmp_path / "ran"
    for function, args in (
        (os.system, (f"touch {flag}",)),
        (subprocess.check_output, ([f"touch {flag}"],)),
        (eval, (f"open({str(flag)!r}, 'w')",)),
        (exec, (f"open({str(flag)!r}, 'w')",)),
        (builtins.open, (str(flag), "w")),
        (getattr, (os, "system")),
        (__import__, ("antigravity",)),
        (np.load, (str(flag),)),
        (pickle.loads, (b"x",)),
    ):
        for protocol in (0, 2, 4):
            try:
                content = pickle.dumps(Evil(function, *args), protocol)
            except (TypeError, pickle.PicklingError):
                continue
            found = load_pickle(io.BytesIO(content))
            assert isinstance(found, TheanoObject)
            assert not flag.exists()
    assert "antigravity" not in sys.modules
    nested = pickle.dumps([Evil(os.system, "true"), {"a": Evil(eval, "1")}])
    assert all(isinstance(v, TheanoObject) for v in (load_pickle(io.BytesIO(nested))[0],))


def test_setting_state_changes_nothing_outside():
    # BUILD on a class, and attributes of names that Python reads.
    content = b"\x80\x02cnumpy\nndarray\n}X\x05\x00\x00\x00hacksK\x01sb."
    with pytest.raises(FileFormatError):
        load_pickle(io.BytesIO(content))
    assert not hasattr(np.ndarray, "hacks")
    content = b"\x80\x02cos\nsystem\n}X\x05\x00\x00\x00stateK\x01sb."
    try:
        load_pickle(io.BytesIO(content))
    except FileFormatError:
        pass
    assert "state" not in vars(TheanoObject)


def test_sizes_that_do_not_fit():
    def refused(content):
        with pytest.raises(FileFormatError):
            load_pickle(io.BytesIO(content))

    good = pickle.dumps(np.arange(4.0), 2)
    refused(good.replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85", 1))
    refused(b"\x80\x02r\xff\xff\xff\x7fN.")  # LONG_BINPUT far away
    refused(b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".")  # BINBYTES8
    refused(b"\x80\x02\x82\x01.")  # a registered extension
    refused(b"Ppersistent\n.")
    refused(pickle.dumps(np.array([("a", 1)], dtype=[("x", "U1"), ("y", "i4")])))
    refused(pickle.dumps(range(10**9)).replace(b"range", b"bytearray"))


def test_damaged_bytes(like_theanos):
    make, constant, _ = like_theanos
    content = pickle.dumps([make(RNG.standard_normal((5, 5))), constant, {"a": (1, "b", None)}], 2)
    refused = 0
    for seed in range(600):
        rng, bad = np.random.default_rng(seed), bytearray(content)
        for at in rng.integers(0, len(bad), 3):
            bad[at] = rng.integers(256)
        try:
            load_pickle(io.BytesIO(bytes(bad[: rng.integers(1, len(bad) + 1)])))
        except FileFormatError:
            refused += 1
    assert refused > 100


def test_zips_of_pkl_utils(theano, tmp_path):
    from theano.misc import pkl_utils

    shareds = [theano.shared(np.ones((2, 3)), "W"), theano.shared(np.zeros(2)),
               theano.shared(np.full(2, 7.0), "W")]  # fmt: skip
    path = tmp_path / "model.zip"
    with open(path, "wb") as file:
        content = {"params": shareds, "x": np.arange(2), "note": "hello", "again": shareds[0]}
        pkl_utils.dump(content, file)
    import zipfile

    assert {"W", "W_2", "pkl"} <= set(zipfile.ZipFile(path).namelist())
    with open(path, "rb") as file:
        again = pkl_utils.load(file)
    found = load_pickle(path)
    np.testing.assert_array_equal(found["params"][0], np.ones((2, 3)))
    np.testing.assert_array_equal(found["params"][2], [7, 7])
    assert found["note"] == again["note"] == "hello"
    # As in Theano, what was a shared variable is one again.
    assert [v.name for v in again["params"]] == ["W", None, "W"]
    assert again["again"] is again["params"][0]
    for loaded, v in zip(again["params"], shareds, strict=True):
        np.testing.assert_array_equal(loaded.get_value(), v.get_value())
    np.testing.assert_array_equal(again["x"], np.arange(2))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_functions_and_graphs_pickle_by_every_protocol(theano, T, protocol):
    w, x = theano.shared(np.ones(3), "w"), T.vector("x")
    f = theano.function([x], T.tanh(x * w), updates=[(w, w + 1)])
    f([1.0, 2.0, 3.0])
    again, again_x, again_y = pickle.loads(pickle.dumps((f, x, T.exp(x) * w), protocol))
    np.testing.assert_allclose(again([1.0, 1.0, 1.0]), np.tanh(np.full(3, 2.0)))
    values = theano.function([again_x], again_y)([0.0, 0.0, 0.0])
    np.testing.assert_allclose(values, [3.0, 3.0, 3.0])  # of the same w, which f has updated


def test_the_arguments_of_a_function_are_dumped(theano, T, tmp_path):
    x, w = T.vector("x"), theano.shared(2.0)
    path = str(tmp_path / "f.pkl")
    theano.function_dump(path, [x], x * w, updates=[(w, w + 1)], name="twice")
    with open(path, "rb") as file:
        f = theano.function(**pickle.load(file))
    assert f.name == "twice"
    assert [float(f([3.0])[0]) for _ in range(2)] == [6.0, 9.0]
    assert w.get_value() == 2.0


def test_our_own_pickles_of_variables_and_functions(theano, T):
    w = theano.shared(np.ones(3), "w")
    x = T.vector("x")
    f = theano.function([x], (w * x).sum(), updates=[(w, w + x)])
    copy = pickle.loads(pickle.dumps(f))
    assert float(copy([1.0, 2.0, 3.0])) == 6.0
    assert float(copy([1.0, 2.0, 3.0])) == 20.0
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(w)).get_value(), w.get_value())
    np.testing.assert_array_equal(w.get_value(), np.ones(3))
