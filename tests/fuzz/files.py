"""Files of weights and functions, damaged: they load, or raise ``FileFormatError`` and no other."""

from __future__ import annotations

import io
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import FileFormatError
from symdnn.graph.type import numpy_dtype
from symdnn.io import load_parameters, save_parameters
from tests.fuzz.areas import Area, Context, Failure

#: Written by torch.save; it has tensors of all kinds.
TORCH = Path(__file__).parents[1] / "nn" / "torch_net.pt"
LONGEST = 20.0  # seconds for one file, on a busy machine
MOST = 64  # times the size of the file that its arrays may take (deflated ones are larger)

Reader = Callable[[Path], Any]


@cache
def originals() -> dict[str, tuple[bytes, Reader]]:
    """Whole files by name, each with what reads it."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((5, 3)).astype("f4"), "b": np.arange(4.0), "n": np.array(7),
        "empty": np.zeros((0, 2), "i2"), "h": np.arange(6).astype(numpy_dtype("bfloat16")),
    }  # fmt: skip
    plain = {k: v for k, v in arrays.items() if k != "h"}
    found: dict[str, tuple[bytes, Reader]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".npz", ".safetensors"):
            path = Path(folder) / f"a{suffix}"
            save_parameters(path, arrays, {"epoch": 3})
            found[path.name] = path.read_bytes(), load_parameters
            found[f"weights{suffix}"] = path.read_bytes(), nn.read_weights
    for name, write in (("foreign.npz", np.savez), ("deflated.npz", np.savez_compressed)):
        out = io.BytesIO()
        write(out, **plain)
        found[name] = out.getvalue(), nn.read_weights
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "function"
        symdnn.save(_function(), path)
        found["function.symdnn"] = path.read_bytes(), _load
    found["torch.pt"] = TORCH.read_bytes(), lambda p: nn.read_weights(p, "state_dict")
    return found


def _function() -> symdnn.Function:
    """A step of a small network, with a loop."""
    x = T.fmatrix("x")
    w = symdnn.shared(np.ones((3, 3), "float32"), name="w")
    h, _ = symdnn.scan(lambda h: T.tanh(T.dot(h, w)), outputs_info=x, n_steps=3)
    cost = T.nnet.softmax(h[-1])[:, 0].sum()
    return symdnn.function([x], cost, updates=[(w, w - 0.1 * symdnn.grad(cost, w))])


def _load(path: Path) -> dict[str, Any]:
    shared = symdnn.load(path, target="cpu").get_shared()
    return {str(i): v.get_value() for i, v in enumerate(shared)}


def damaged(rng: np.random.Generator, data: bytes, how: str) -> bytes:
    """The file with one kind of damage."""
    at = int(rng.integers(len(data)))
    length = int(rng.integers(1, 24))
    noise = bytes(rng.integers(0, 256, length, "uint8"))
    other = int(rng.integers(len(data)))
    if how == "bit":
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if how == "byte":
        value = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
        return data[:at] + bytes([value]) + data[at + 1 :]
    if how == "cut":
        return data[:at]
    if how == "insert":
        return data[:at] + noise + data[at:]
    if how == "delete":
        return data[:at] + data[at + length :]
    if how == "noise":
        return data[:at] + noise + data[at + length :]
    if how == "move":
        return data[:at] + data[other : other + length] + data[at + length :]
    if how == "number":  # a little-endian number of the file replaced by an extreme one
        size = int(rng.choice([2, 4, 8]))
        value = int(rng.choice([0, 1, 2**15 - 1, 2**16 - 1])) if size == 2 else int(
            rng.choice([0, 1, 2**31 - 1, 2**31]))  # fmt: skip
        return data[:at] + value.to_bytes(size, "little") + data[at + size :]
    return data + noise


KINDS = ["bit", "byte", "byte", "cut", "insert", "delete", "noise", "move", "number", "append"]


def rezipped(rng: np.random.Generator, data: bytes) -> bytes:
    """A zip whose members are damaged and whose checksums are right again."""
    members = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            members[info.filename] = archive.read(info)
    name = str(rng.choice([n for n, m in members.items() if m]))
    members[name] = damaged(rng, members[name], str(rng.choice(KINDS)))
    if rng.random() < 0.1:
        del members[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for n, m in members.items():
            archive.writestr(n, m)
    return out.getvalue()


def check(ctx: Context) -> list[Failure]:
    """One damaged file of each kind."""
    rng = ctx.rng
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (data, read) in originals().items():
            inside = not name.endswith(".safetensors") and rng.random() < 0.5
            how = "rezipped" if inside else str(rng.choice(KINDS))
            bad = rezipped(rng, data) if inside else damaged(rng, data, how)
            path = Path(folder) / name
            path.write_bytes(bad)
            said = judged(path, read, len(bad))
            if said:
                failures.append(ctx.fail(f"{name}, {how}: {said}", script(name, bad, read)))
            ctx.count("files")
    return failures


def judged(path: Path, read: Reader, size: int) -> str:
    """What is wrong with reading a file, or ``""``."""
    started = time.monotonic()
    try:
        found = read(path)
    except Exception as error:
        if type(error) is not FileFormatError:
            return f"raises {type(error).__name__}: {str(error).splitlines()[:1]}"
        if path.name not in str(error):
            return f"the error does not name the file: {error}"
        found = {}
    if time.monotonic() - started > LONGEST:
        return f"takes {time.monotonic() - started:.0f} s"
    total = sum(np.asarray(a).nbytes for a in found.values())
    if total > MOST * max(size, 4096):
        return f"{size} bytes become {total}"
    if not all(isinstance(n, str) and isinstance(a, np.ndarray) for n, a in found.items()):
        return "not arrays by name"
    return ""


def script(name: str, bad: bytes, read: Reader) -> str:
    """Python that shows it."""
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(bad, 9)).decode()
    calls = {load_parameters: "load_parameters", _load: "symdnn.load"}
    call = calls.get(read, "nn.read_weights")
    key = ", 'state_dict'" if name.endswith(".pt") else ""
    return "\n".join([
        "import base64, zlib, pathlib, tempfile",
        "import symdnn",
        "from symdnn import nn",
        "from symdnn.io import load_parameters",
        f"path = pathlib.Path(tempfile.mkdtemp()) / {name!r}",
        f"path.write_bytes(zlib.decompress(base64.b64decode({packed!r})))",
        f"print({call}(path{key}))",
    ])  # fmt: skip


AREA = Area("files", "files", check, in_tests=700)
