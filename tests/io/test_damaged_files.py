"""Files that are damaged, or made to harm: one class of errors, and no memory taken for them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from symdnn import nn
from symdnn.config import config
from symdnn.errors import FileFormatError, InputError
from symdnn.io import load_parameters, save_parameters
from symdnn.nn.formats import file as weights_file

from .damage import damaged, damaged_inside

TORCH = Path(__file__).parents[1] / "nn" / "torch_net.pt"
ARRAYS = {
    "w": np.arange(60, dtype="float32").reshape(12, 5), "b": np.ones(5, "float64"),
    "deep/name": np.arange(7, dtype="int64"), "yes": np.array([True, False]),
    "scalar": np.array(3, "uint8"), "none": np.zeros((0, 4), "float16"),
    "z": np.array([1 + 2j], "complex64"),
}  # fmt: skip


def net():
    """Linear, whose weights all of the readers find in ``ARRAYS``'s first two."""
    return nn.Linear(5, 12)


def _saved(folder: Path) -> dict[str, Path]:
    """A whole file of each format."""
    made = {name: folder / f"good.{name}" for name in ("npz", "safetensors")}
    for path in made.values():
        save_parameters(path, {**ARRAYS, "short": np.ones(3, "float32").astype("bfloat16")})
    made |= {k: folder / f"{k}.npz" for k in ("packed", "fortran", "keras", "theano", "torch7")}
    np.savez_compressed(made["packed"], **ARRAYS)
    np.savez(made["fortran"], a=np.asfortranarray(ARRAYS["w"]), b=ARRAYS["w"].astype(">f4"))
    weight, bias = ARRAYS["w"], np.ones(12, "float32")
    np.savez(made["keras"], **{"dense/kernel": weight.T, "dense/bias": bias})
    np.savez(made["theano"], weight.T, bias)
    np.savez(made["torch7"], weight=weight, bias=bias)
    return made | {"pt": TORCH}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    import ml_dtypes  # noqa: F401  # the name bfloat16

    return _saved(tmp_path_factory.mktemp("whole"))


READERS = {
    "npz": load_parameters, "safetensors": load_parameters, "packed": nn.read_weights,
    "fortran": nn.read_weights, "pt": lambda p: nn.read_weights(p, "state_dict"),
    "keras": lambda p: nn.load_keras(net(), p), "theano": lambda p: nn.load_theano(net(), p),
    "torch7": lambda p: nn.load_torch7(net(), p),
}  # fmt: skip


def outcome(read, path):
    """What reading gives: "read", or the class of the error. Others than ours are raised on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile's, of names that it has twice
            read(path)
    except (FileFormatError, InputError) as error:
        return type(error)
    return "read"


def check(kind, path, data):
    """That a file, damaged or not, is read or refused by the right class."""
    path.write_bytes(data)
    found = outcome(READERS[kind], path)
    if found is InputError:  # names or shapes that do not fit: then the file itself can be read
        raw = nn.read_weights if kind != "pt" else lambda p: weights_file._read(p)
        assert outcome(raw, path) in ("read", InputError)
    return found


@pytest.mark.parametrize("kind", READERS)
def test_whole_files_are_read(files, kind):
    READERS[kind](files[kind])


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("count", [200, pytest.param(2500, marks=pytest.mark.slow, id="many")])
def test_damage_of_the_file_is_one_class_of_errors(files, tmp_path, kind, count, rng):
    data = files[kind].read_bytes()
    path = tmp_path / f"bad{files[kind].suffix}"
    found = [check(kind, path, damaged(data, rng)) for _ in range(count)]
    assert FileFormatError in found


ZIPS = [k for k in READERS if k != "safetensors"]


@pytest.mark.parametrize("kind", ZIPS)
@pytest.mark.parametrize("count", [200, pytest.param(2500, marks=pytest.mark.slow, id="many")])
def test_damage_under_right_checksums_is_one_class_of_errors(files, tmp_path, kind, count, rng):
    data = files[kind].read_bytes()
    path = tmp_path / f"bad{files[kind].suffix}"
    wanted = "data.pkl" if kind == "pt" else ""
    found = [check(kind, path, damaged_inside(data, rng, wanted)) for _ in range(count)]
    assert FileFormatError in found


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt"])
def test_every_truncation_is_found(files, tmp_path, kind):
    data = files[kind].read_bytes()
    path = tmp_path / f"cut{files[kind].suffix}"
    for n in [*range(0, min(len(data), 300)), *range(300, len(data), 97), len(data) - 1]:
        assert check(kind, path, data[:n]) is FileFormatError, n


# -- files that are made to harm ------------------------------------------------------------------


def _rewritten(path, changes):
    """A zip file with members replaced or added; without checksums that are wrong."""
    with zipfile.ZipFile(path) as archive:
        members = {i.filename: archive.read(i) for i in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in {**members, **changes}.items():
            archive.writestr(name, body)


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text


def header(descr="'<f4'", shape="(1,)"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


HEADERS = {
    "2**50 elements": header(shape="(1125899906842624,)"),
    "a product beyond 64 bits": header(shape="(4294967296, 4294967296, 4294967296)"),
    "a size of 0 and a huge one": header(shape="(0, 99999999999999999999)"),
    "a negative size": header(shape="(-1,)"),
    "objects": header("'|O'"), "records": header("[('a', '<f4')]"),
    "a huge item": header("'<U1000000000'"), "void": header("'|V8'"), "times": header("'<M8[s]'"),
    "no dtype": header("'nonsense'"), "a call": header("__import__('os').getcwd()"),
    "deep": "(" * 3000 + ")" * 3000, "long": header() + " " * 60000,
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_asks_for_what_is_not_there(tmp_path, what):
    path = tmp_path / "w.npz"
    np.savez(path, b=np.ones(3, "float32"))
    _rewritten(path, {"a.npy": npy(HEADERS[what])})
    assert check("packed", path, path.read_bytes()) is FileFormatError


def test_members_that_are_there_twice_or_are_no_arrays(tmp_path):
    path = tmp_path / "w.npz"
    np.savez(path, a=np.ones(3, "float32"))
    with zipfile.ZipFile(path) as archive:
        body = archive.read("a.npy")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.npy", body)
    assert check("packed", path, path.read_bytes()) is FileFormatError
    np.savez(path, a=np.ones(3, "float32"))
    _rewritten(path, {"notes.txt": b"hello"})
    assert check("packed", path, path.read_bytes()) is FileFormatError


def test_what_would_unpack_to_too_much_is_refused_and_the_flag_says_what_that_is(tmp_path):
    path = tmp_path / "w.npz"
    np.savez_compressed(path, a=np.zeros(2**22, "uint8"))  # 4 MiB in 4 KiB
    refused = pytest.raises(FileFormatError, match=r"unpack to 4194\d+, more .* load_limit_bytes")
    with config.change_flags(load_limit_bytes=2**20), refused:
        nn.read_weights(path)
    for limit in (2**23, 0):
        with config.change_flags(load_limit_bytes=limit):
            assert nn.read_weights(path)["a"].nbytes == 2**22
    np.savez(path, a=np.zeros(2**22, "uint8"))  # what is not packed is as large as its file
    with config.change_flags(load_limit_bytes=1):
        assert nn.read_weights(path)["a"].nbytes == 2**22


LIMITED = """
import resource, sys, io, zipfile
import numpy as np
from pathlib import Path
from symdnn import nn
from symdnn.errors import FileFormatError
from symdnn.io import load_parameters
folder = Path(sys.argv[1])
out = io.BytesIO()
with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
    with archive.open("a.npy", "w", force_zip64=True) as member:
        head = "{'descr': '|u1', 'fortran_order': False, 'shape': (%d,)}" % (80 << 24)
        text = head.encode() + b"\\n"
        member.write(b"\\x93NUMPY\\1\\0" + len(text).to_bytes(2, "little") + text)
        zeros = bytes(1 << 24)
        for _ in range(80):
            member.write(zeros)
(folder / "bomb.npz").write_bytes(out.getvalue())
del out
import os
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
for read in (nn.read_weights, load_parameters, lambda p: nn.load_torch(nn.Linear(2, 2), p)):
    try:
        read(folder / "bomb.npz")
    except FileFormatError as error:
        assert "load_limit_bytes" in str(error), error
    else:
        raise AssertionError("it was read")
print((folder / "bomb.npz").stat().st_size)
"""


def test_more_than_a_gigabyte_in_a_small_file_takes_no_memory(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20 << 20


def test_tensors_that_share_one_storage_many_times_are_bounded(tmp_path):
    """A pickle of a few KB that asks for the same megabyte again and again."""
    text = pickled_tensors(400)
    path = tmp_path / "w.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", text)
        archive.writestr("m/byteorder", b"little")
        archive.writestr("m/data/0", bytes(1 << 20))
    refused = pytest.raises(FileFormatError, match="load_limit_bytes")
    with config.change_flags(load_limit_bytes=1 << 26), refused:
        nn.read_weights(path)
    with config.change_flags(load_limit_bytes=1 << 30):
        assert len(nn.read_weights(path)) == 400


def pickled_tensors(count: int) -> bytes:
    """A dict of so many tensors over the whole of storage 0, as torch.save writes each."""
    text = b"\x80\x02}"
    for k in range(count):
        name = f"w{k}".encode()
        text += b"X" + len(name).to_bytes(4, "little") + name
        text += b"ctorch._utils\n_rebuild_tensor_v2\n("
        text += b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ\0\0\4\0tQ"
        text += b"K\0J\0\0\4\0\x85K\1\x85\x89}tRs"
    return text + b"."


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, suffix, kind):
    path = tmp_path / f"w{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as s:
            here = os.getcwd()
            os.chdir(tmp_path)  # names of sockets are short
            try:
                s.bind(path.name)
            finally:
                os.chdir(here)
    began = time.monotonic()
    with pytest.raises(FileFormatError, match="no regular file"):
        nn.read_weights(path)
    if suffix != ".pt":
        with pytest.raises(FileFormatError, match="no regular file"):
            load_parameters(path)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_file_that_is_missing_is_still_that(tmp_path, suffix):
    with pytest.raises(FileNotFoundError):
        nn.read_weights(tmp_path / f"w{suffix}")


# -- names ----------------------------------------------------------------------------------------

NAMES = ["w\x00x", "\x00x", "a\\b", "é", "x" * 70000, "x" * 64000, "a/", "\ud800", "w\nx", "a.npy",
         "/", "..", "../../etc/passwd", "a//b", " ", "__metadata__", "\u202e", "x" * 65000,
         "é" * 40000, "C:w", "a.npy.npy", "data_offsets", "\U0001f600", "\r", "\x7f"]  # fmt: skip


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("name", NAMES, ids=lambda n: ascii(n[:20]))
def test_a_name_is_given_back_or_refused_at_saving(tmp_path, name, suffix):
    path = tmp_path / f"w.{suffix}"
    arrays = {name: np.ones(2, "float32"), "other": np.zeros(3)}
    if outcome(lambda p: save_parameters(p, arrays), path) == "read":
        assert list(load_parameters(path)) == [name, "other"]
    else:
        with pytest.raises(InputError, match="the name"):
            save_parameters(path, arrays)
        assert not list(tmp_path.iterdir())


def test_names_drawn_at_random_are_given_back_or_refused(tmp_path, rng):
    for suffix in ("npz", "safetensors"):
        for _ in range(100):
            draw = rng.integers(0, 0x250, int(rng.integers(1, 6)))
            name = "".join(chr(c) for c in draw)
            path = tmp_path / f"w.{suffix}"
            if outcome(lambda p, n=name: save_parameters(p, {n: np.ones(2)}), path) == "read":
                assert list(load_parameters(path)) == [name]


def test_leftovers_of_a_save_that_was_killed_are_removed_by_the_next(tmp_path):
    program = textwrap.dedent("""
        import os, signal, sys
        import numpy as np
        from symdnn.disk import atomic
        from symdnn.io import save_parameters
        atomic.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        save_parameters(sys.argv[1], {"w": np.ones(1000)})
    """)
    path = tmp_path / "w.npz"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1  # the second removed what the first left
    save_parameters(path, {"w": np.ones(1000)})
    assert list(tmp_path.iterdir()) == [path]
