"""Device code that is kept: what the driver would not take is made anew, once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from symdnn.disk.object_file import CUDA, problem
from symdnn.errors import KernelCompileError
from symdnn.gpu.binding import nvrtc
from symdnn.gpu.device import context
from symdnn.gpu.device.driver_api import CudaError

SOURCE = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] *= 2; }'


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Sources that were compiled; the folder is one of this test's own."""
    pytest.importorskip("cuda.bindings.nvrtc")
    found = []
    real = nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *a: (found.append(a), real(*a))[1])
    monkeypatch.setattr(type(nvrtc.CUBINS), "_path", lambda self, key, folder: tmp_path / key)
    return found


@pytest.mark.parametrize("refusals", [0, 1, 2])
def test_a_module_that_the_driver_refuses_is_compiled_anew_once(compiled, refusals):
    left = [refusals]

    def load(cubin):
        assert problem(cubin, CUDA) == ""
        left[0] -= 1
        if left[0] >= 0:
            raise CudaError("device kernel image is invalid")
        return "module"

    device = SimpleNamespace(capability=(9, 0), _api=SimpleNamespace(module=load))
    nvrtc.compile_cubin(SOURCE, (9, 0))
    if refusals < 2:
        assert context.Context._module(device, SOURCE, ()) == "module"
    else:
        with pytest.raises(CudaError):
            context.Context._module(device, SOURCE, ())
    assert len(compiled) == 1 + min(refusals, 1)


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x02\x01" + bytes(200)])
def test_another_content_with_a_right_checksum_is_made_anew(compiled, content):
    right = nvrtc.compile_cubin(SOURCE, (9, 0))
    key = nvrtc._key(SOURCE, nvrtc._flags((9, 0), ()))
    nvrtc.CUBINS.put(key, content)
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert nvrtc.compile_cubin(SOURCE, (9, 0)) == right
    assert len(compiled) == 2


def test_what_threads_began_is_not_compiled_again(compiled):
    others = [SOURCE + f"// {i}" for i in range(3)]
    nvrtc.begin_cubins(others, (9, 0))
    nvrtc.begin_cubins(others[:1], (9, 0))
    made = [nvrtc.compile_cubin(source, (9, 0)) for source in others]
    assert [problem(cubin, CUDA) for cubin in made] == [""] * 3
    assert sorted(source for source, _ in compiled) == others
    assert nvrtc.compile_cubin(others[0], (9, 0)) == made[0]
    assert len(compiled) == 3
    assert not nvrtc._begun


def test_an_error_of_what_threads_began_is_raised_where_it_is_asked_for(compiled):
    nvrtc.begin_cubins(["not CUDA C"], (9, 0))
    with pytest.raises(KernelCompileError, match="not CUDA C"):
        nvrtc.compile_cubin("not CUDA C", (9, 0))
