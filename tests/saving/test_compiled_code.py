"""Files with compiled code: no compiler is used, and files of another machine are errors that say
why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, nn
from symdnn.errors import FileFormatError, InputError
from symdnn.saving import code, container
from tests.seeded import new_rng

WITHOUT_COMPILER = """
    import sys
    import numpy as np, symdnn
    from symdnn.cpu.compiler import compile_queue, jit, llvm_worker

    def asked(*args, **kwargs):
        raise AssertionError("a compiler was asked")

    llvm_worker.Compiler.__init__ = llvm_worker.Compiler.compile = asked
    compile_queue.Queue.add = compile_queue.Queue.wake = asked
    f = symdnn.load(sys.argv[1], target="cpu", compiled=True)
    x = np.load(sys.argv[2])
    y = f(x)
    for _ in range(1010):
        last = f(x)
    assert "llvmlite.binding" not in sys.modules
    np.savez(sys.argv[3], y=y, last=last)
"""


def step():
    """A training step with kernels that are generated: convolution, reductions, a loop."""
    x = T.tensor("float32", ("batch", 2, 6, 6), name="x")
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4))
    states, _ = symdnn.scan(lambda h: T.tanh(h) * 0.5, outputs_info=net(x), n_steps=3)
    loss = T.nnet.softmax(states[-1])[:, 0].sum() + (x**2).mean()
    return symdnn.function([x], loss, updates=nn.optim.adam(loss, net), mode=Mode(target="cpu"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    f, x = step(), new_rng().standard_normal((2, 2, 6, 6)).astype("float32")
    np.save(folder / "x.npy", x)
    before = [v.get_value() for v in f.get_shared()]
    symdnn.save(f, folder / "f", compiled=True, examples=[[x]])
    for v, value in zip(f.get_shared(), before, strict=True):
        np.testing.assert_array_equal(v.get_value(), value)  # a copy was called
    return folder, x


@pytest.mark.cpu
def test_no_compiler_is_asked(saved, tmp_path):
    folder, x = saved
    flags = f"base_compiledir={tmp_path / 'empty'},device=cpu"
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_COMPILER), folder / "f", folder / "x.npy",
         tmp_path / "y.npz"],
        check=True, timeout=300,  # sets have another order there
        env={**os.environ, "SYMDNN_FLAGS": flags, "PYTHONHASHSEED": "12345"},
    )  # fmt: skip
    g, found = symdnn.load(folder / "f", target="cpu"), np.load(tmp_path / "y.npz")
    np.testing.assert_array_equal(found["y"], g(x))
    for _ in range(1010):
        last = g(x)
    np.testing.assert_allclose(found["last"], last, rtol=1e-4)  # Adam makes much of little


@pytest.mark.cpu
def test_kernels_in_use_are_saved_as_well(tmp_path):
    x = T.matrix("x")
    y = nn.Linear(64, 64)(x).reshape((8, 8, 8, 8))
    loss = T.tanh(nn.Conv2d(8, 8, 3)(y)).sum()
    f = symdnn.function([x], loss, mode=Mode(target="cpu"))
    value = new_rng().standard_normal((64, 64)).astype("float32")

    def entries(path):
        symdnn.save(f, path, compiled=True, examples=[[value]])
        with path.open("rb") as file:
            return set(container.unpack(file, path.stat().st_size, path, with_code=True).compiled)

    before = entries(tmp_path / "before")
    f(value)
    assert entries(tmp_path / "after") == before


def with_fingerprint(path, **changes):
    """The file with another fingerprint; where it is."""
    with path.open("rb") as file:
        contents = container.unpack(file, path.stat().st_size, path, with_code=True)
    old = json.loads(contents.compiled[code.FINGERPRINT])
    contents.compiled[code.FINGERPRINT] = json.dumps({**old, **changes}).encode()
    other = path.with_name("other")
    other.write_bytes(container.pack(contents))
    return other


@pytest.mark.cpu
def test_another_machines_code_is_refused(saved):
    folder, x = saved
    other = with_fingerprint(folder / "f", processor="AuthenticAMD 25 1 (0)", NumPy="1.0")
    words = rf"NumPy: 1.0 there, {np.__version__} here; processor: AuthenticAMD 25 1 \(0\) there, "
    with pytest.raises(FileFormatError, match=words):
        symdnn.load(other, target="cpu", compiled=True)
    g = symdnn.load(other, target="cpu")  # compiled from the graph
    assert np.isfinite(g(x))
    with pytest.raises(FileFormatError, match="target: cpu there, cuda0:sm_90 here"):
        symdnn.load(folder / "f", target="cuda:sm_90", compiled=True)


@pytest.mark.cpu
def test_code_has_to_be_there(tmp_path):
    x = T.fvector("x")
    f = symdnn.function([x], x + 1)
    symdnn.save(f, tmp_path / "f")
    with pytest.raises(FileFormatError, match="no compiled code: save it with compiled=True"):
        symdnn.load(tmp_path / "f", compiled=True)
    with pytest.raises(InputError, match="needs examples"):
        symdnn.save(f, tmp_path / "f", compiled=True)


@pytest.mark.cpu
def test_damaged_code_is_compiled_anew(saved):
    folder, _ = saved
    path = folder / "f"
    with path.open("rb") as file:
        contents = container.unpack(file, path.stat().st_size, path, with_code=True)
    for name, body in contents.compiled.items():
        if name.endswith(".o"):
            contents.compiled[name] = body[: len(body) // 2]
    bad = path.with_name("bad")
    bad.write_bytes(container.pack(contents))
    script = (
        "import sys, numpy as np, symdnn\n"
        "f = symdnn.load(sys.argv[1], target='cpu', compiled=True)\n"
        "assert np.isfinite(f(np.load(sys.argv[2])))"
    )
    subprocess.run([sys.executable, "-c", script, bad, folder / "x.npy"], check=True, timeout=300)


@pytest.mark.gpu
def test_no_compiler_is_asked_on_a_gpu(tmp_path):
    x = T.tensor("float32", ("batch", 2, 6, 6), name="x")
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4))
    f = symdnn.function([x], T.nnet.softmax(net(x)), mode=Mode(target="cuda"))
    value = new_rng().standard_normal((2, 2, 6, 6)).astype("float32")
    symdnn.save(f, tmp_path / "f", compiled=True, examples=[[value]])
    np.save(tmp_path / "x.npy", value)
    script = """
        import sys
        import numpy as np, symdnn
        from symdnn.gpu.binding import nvrtc

        def asked(*args):
            raise AssertionError("a compiler was asked")

        nvrtc._compile = asked
        f = symdnn.load(sys.argv[1], target="cuda", compiled=True)
        np.save(sys.argv[3], f(np.load(sys.argv[2])))
    """
    flags = f"base_compiledir={tmp_path / 'empty'},device=cuda"
    flags = f"{os.environ.get('SYMDNN_FLAGS', '')},{flags}"
    arguments = [tmp_path / "f", tmp_path / "x.npy", tmp_path / "y.npy"]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        check=True, timeout=300, env={**os.environ, "SYMDNN_FLAGS": flags},
    )  # fmt: skip
    g = symdnn.load(tmp_path / "f", target="cuda")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), g(value), rtol=0, atol=1e-6)
