import json
import os
import stat
import zipfile

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import FileFormatError, InputError, TypeMismatch
from symdnn.graph.type import DTYPES, numpy_dtype
from symdnn.io import load_parameters, save_parameters
from symdnn.io.atomic import write_atomically

SUFFIXES = (".npz", ".safetensors")
both = pytest.mark.parametrize("suffix", SUFFIXES)


def some(dtype):
    values = np.arange(12).reshape(3, 4)
    return (values % 2 if dtype == "bool" else values).astype(numpy_dtype(dtype))


def small_file(folder, suffix):
    path = folder / f"p{suffix}"
    save_parameters(path, {"w": some("float32"), "b": some("bfloat16")}, {"epoch": 3})
    return path


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(tmp_path, suffix, dtype):
    path = tmp_path / f"p{suffix}"
    if (suffix, dtype) == (".safetensors", "complex128"):
        with pytest.raises(
            FileFormatError, match=r"no dtype complex128, which w has; write an \.np"
        ):
            save_parameters(path, {"w": some(dtype)})
        return
    save_parameters(path, {"w": some(dtype)})
    (name, back), *rest = load_parameters(path).items()
    assert (name, rest) == ("w", [])
    assert back.dtype.name == dtype
    assert np.array_equal(back, some(dtype))
    back[...] = 0  # the user's own: writable


@both
def test_odd_shapes_names_and_layouts(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    given = {
        "scalar": np.float32(3),
        "empty": np.zeros((0, 3), "float32"),
        "file": some("int8"),
        "block 1/größe.w": some("float64").T,
        "every other": some("float32")[:, ::2],
        "other end first": some("float32").astype(">f4"),
        "16 bits, of one": np.asarray(1.5, ml_dtypes.bfloat16),
    }
    save_parameters(path, given)
    back = load_parameters(path)
    assert list(back) == list(given)
    for name, array in given.items():
        assert back[name].shape == np.shape(array)
        assert np.array_equal(back[name], array)
        assert back[name].dtype == np.asarray(array).dtype.newbyteorder("=")


@both
def test_shared_variables_and_metadata(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    w, b = symdnn.shared(some("float32"), "w"), symdnn.shared(some("float16"), "b")
    save_parameters(path, [w, b], {"note": "größer", "history": [1.5, {"a": None}]})
    w.set_value(np.zeros((3, 4), "float32"))
    b.zero()
    found = load_parameters(path, into={"w": w, "b": b})
    assert found.metadata == {"note": "größer", "history": [1.5, {"a": None}]}
    assert np.array_equal(w.get_value(), some("float32"))
    assert np.array_equal(b.get_value(), some("float16"))


@both
def test_equal_parameters_give_equal_bytes(tmp_path, suffix):
    small_file(tmp_path, suffix).rename(tmp_path / "first")
    assert small_file(tmp_path, suffix).read_bytes() == (tmp_path / "first").read_bytes()


def test_others_can_read_them(tmp_path):
    from safetensors.numpy import load_file

    arrays = {"w": some("float32"), "n": some("int64")}
    save_parameters(tmp_path / "p.npz", arrays)
    save_parameters(tmp_path / "p.safetensors", arrays)
    with np.load(tmp_path / "p.npz", allow_pickle=False) as theirs:
        assert np.array_equal(theirs["w"], arrays["w"])
    assert np.array_equal(load_file(tmp_path / "p.safetensors")["n"], arrays["n"])


def test_safetensors_of_another_program(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": some("float32")}, tmp_path / "p.safetensors", metadata={"format": "pt"})
    found = load_parameters(tmp_path / "p.safetensors")
    assert np.array_equal(found["w"], some("float32"))
    assert found.metadata == {"format": "pt"}


# --- what is no such file -------------------------------------------------------------------------


@both
def test_every_cut_is_noticed(tmp_path, suffix):
    path = small_file(tmp_path, suffix)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match="damaged|no header"):
            load_parameters(path)


def test_a_changed_byte_of_the_data_is_noticed(tmp_path):
    path = small_file(tmp_path, ".npz")  # a zip has check sums, safetensors has none
    data = bytearray(path.read_bytes())
    data[data.index(some("float32").tobytes()) + 5] ^= 255
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="damaged"):
        load_parameters(path)


@both
@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(40), b"text\n" * 100])
def test_other_files(tmp_path, suffix, content):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="damaged or cut short"):
        load_parameters(path)


def test_one_format_under_the_other_suffix(tmp_path):
    small_file(tmp_path, ".npz").rename(tmp_path / "q.safetensors")
    small_file(tmp_path, ".safetensors").rename(tmp_path / "q.npz")
    for suffix in SUFFIXES:
        with pytest.raises(FileFormatError, match=r"q\.\w+ is no "):
            load_parameters(tmp_path / f"q{suffix}")


def test_an_npz_of_another_program(tmp_path):
    np.savez(tmp_path / "p.npz", w=some("float32"))
    with pytest.raises(FileFormatError, match="no parameters of symdnn: it has no header"):
        load_parameters(tmp_path / "p.npz")
    np.save(tmp_path / "q.npy", some("float32"))
    (tmp_path / "q.npy").rename(tmp_path / "q.npz")
    with pytest.raises(FileFormatError, match="a single array"):
        load_parameters(tmp_path / "q.npz")


class Trap:
    def __reduce__(self):
        return os.abort, ()


def test_a_pickle_is_not_opened(tmp_path):
    np.savez(tmp_path / "p.npz", w=np.array([Trap()], dtype=object))
    with pytest.raises(FileFormatError, match="pickled objects, which are never opened"):
        load_parameters(tmp_path / "p.npz")


def with_header(path, change):
    """The .npz with another header."""
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(bytes(arrays.pop("__symdnn__")))
    change(header)
    text = json.dumps(header).encode()
    np.savez(path, __symdnn__=np.frombuffer(text, np.uint8), **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(version=2), "format version 2, this symdnn reads up to 1; update"),
        (lambda h: h.update(kind="symdnn plan"), "holds 'symdnn plan', wanted 'symdnn parameters'"),
        (lambda h: h.pop("arrays"), "the header is damaged"),
        (lambda h: h["arrays"].update(v=["float32", [1]]), "v are not as its header says"),
        (lambda h: h["arrays"].update(w=["float32", [4, 3]]), "w are not as its header says"),
        (lambda h: h["arrays"].pop("b"), "b are not as its header says"),
    ],
)
def test_headers_that_do_not_fit(tmp_path, change, message):
    path = small_file(tmp_path, ".npz")
    with_header(path, change)
    with pytest.raises(FileFormatError, match=message):
        load_parameters(path)


def test_a_missing_member(tmp_path):
    path = small_file(tmp_path, ".npz")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "q.npz", "w") as new:
        for name in old.namelist():
            if name != "w.npy":
                new.writestr(name, old.read(name))
    with pytest.raises(FileFormatError, match="w are not as its header says"):
        load_parameters(tmp_path / "q.npz")


# --- what cannot be saved or set ------------------------------------------------------------------


def test_wrong_suffix(tmp_path):
    for act in (lambda p: save_parameters(p, {}), load_parameters):
        with pytest.raises(FileFormatError, match=r"one of \.npz, \.safetensors, .* got '\.pkl'"):
            act(tmp_path / "p.pkl")
    with pytest.raises(FileNotFoundError):
        load_parameters(tmp_path / "missing.npz")


@pytest.mark.parametrize(
    ("parameters", "metadata", "message"),
    [
        ({"x": T.fvector("x")}, None, r"'x' is a symbolic float32\(\?,\); give a shared"),
        ({"x": "text"}, None, "'x' has dtype <U4"),
        ({"x": object()}, None, "'x' has dtype object"),
        ({"": 1.0}, None, "has no name"),
        ({3: 1.0}, None, "has no name"),
        ({"__x": 1.0}, None, "is reserved"),
        ([symdnn.shared(1.0)], None, "has no name"),
        ([symdnn.shared(1.0, "a"), symdnn.shared(2.0, "a")], None, "two parameters are named 'a'"),
        ({"x": 1.0}, {"when": object()}, "metadata must be what JSON can hold"),
    ],
)
def test_what_cannot_be_saved(tmp_path, parameters, metadata, message):
    path = small_file(tmp_path, ".npz")
    before = path.read_bytes()
    with pytest.raises(InputError, match=message):
        save_parameters(path, parameters, metadata)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p.npz"]


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("c", np.zeros(2, "float32"), InputError, r"has no c; it has v, w, b"),
        ("b", np.zeros((3, 4), "float32"), TypeMismatch, r"b: wanted float32\(\?, \?\), got bfl"),
        ("w", np.zeros((3, 5), "float32"), InputError, r"shape \(3, 4\), the variable \(3, 5\)"),
    ],
)
def test_all_are_set_or_none(tmp_path, name, value, error, message):
    path = tmp_path / "p.npz"
    save_parameters(path, {"v": some("int8"), "w": some("float32"), "b": some("bfloat16")})
    good, bad = symdnn.shared(np.zeros((3, 4), "int8")), symdnn.shared(value)
    into = {"v": good, name: bad}
    with pytest.raises(error, match=message):
        load_parameters(path, into)
    assert not good.get_value().any()


# --- the file appears complete or not at all ------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = small_file(tmp_path, ".npz")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_parameters(path, {"w": some("float64")})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p.npz"]


def test_permissions_and_links_are_the_users(tmp_path):
    old = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", b"1")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "link").symlink_to(tmp_path / "new")
    write_atomically(tmp_path / "link", b"2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_bytes() == b"2"
