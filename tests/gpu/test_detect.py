"""``dnn_present``, ``dnn_available``, ``version`` and the machine as a ``Target``."""

import pytest

from symdnn.config import config
from symdnn.errors import CudnnNotFound
from symdnn.gpu import detect as gpu
from symdnn.gpu.binding import cuda_version, cudnn_library
from symdnn.gpu.binding.libcuda import Device, Driver
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

H200 = Device(0, "H200", (9, 0), 150_000_000_000)
OLD = Device(1, "P100", (6, 0), 16_000_000_000)


@pytest.fixture
def gpus(monkeypatch):
    """A described driver with an H200 and a GPU that is too old."""
    monkeypatch.setattr(gpu, "driver", lambda: Driver((13, 0), (H200, OLD), ""))


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "driver", lambda: Driver(None, (), "libcuda.so.1 is not there"))


@pytest.fixture
def no_cudnn(monkeypatch):
    def refuse():
        raise CudnnNotFound("cuDNN 9 was not found. Tried in this order:\n  a: b: c\nget it")

    monkeypatch.setattr(cudnn_library, "library", refuse)
    gpu._why_not.cache_clear()
    yield
    gpu._why_not.cache_clear()


@pytest.mark.usefixtures("gpus")
def test_all_is_well(real_cudnn):  # noqa: F811
    assert gpu.dnn_present()
    assert (gpu.dnn_present.avail, gpu.dnn_present.msg) == (True, "")
    assert gpu.dnn_available()
    assert gpu.dnn_available("cuda0")
    assert gpu.dnn_available.msg == ""
    major, minor, patch = real_cudnn.version
    assert gpu.version() == major * 10000 + minor * 100 + patch
    target = gpu.cuda_target()
    assert (str(target), target.cudnn, target.notes) == ("cuda0:sm_90", real_cudnn.version, ())
    assert target.memory_bytes == H200.memory_bytes


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda1", "cuda1, P100: compute capability 6.0, needs 7.5"),
        (2, "cuda2: this machine has 0: H200, 1: P100"),
        ("gpu", "'gpu' is no device"),
    ],
)
def test_a_device_that_can_t_be_used(name, message, real_cudnn):  # noqa: F811
    assert not gpu.dnn_available(name)
    assert message in gpu.dnn_available.msg


def test_a_driver_that_is_older_than_the_python_packages(monkeypatch, real_cudnn):  # noqa: F811
    monkeypatch.setattr(gpu, "driver", lambda: Driver((12, 4), (H200,), ""))
    monkeypatch.setattr(cuda_version, "_bindings_major", lambda: 13)
    assert not gpu.dnn_available()
    assert gpu.dnn_available.msg == (
        "cuda0, H200: the driver serves CUDA 12.4, and cuda-bindings is of CUDA 13: update the "
        "driver, or pip install 'symdnn[cuda12]'"
    )
    monkeypatch.setattr(cuda_version, "_bindings_major", lambda: 12)
    assert gpu.dnn_available()


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu(real_cudnn):  # noqa: F811
    assert gpu.dnn_present()
    assert not gpu.dnn_available()
    assert gpu.dnn_available.msg == "no GPU: libcuda.so.1 is not there"
    assert not gpu.gpu_available()
    with pytest.raises(gpu.GpuNotFound, match=r"no GPU: libcuda.so.1 is not there.*symdnn doctor"):
        gpu.cuda_target()


@pytest.mark.usefixtures("gpus", "no_cudnn")
def test_without_cudnn():
    assert not gpu.dnn_present()
    assert gpu.dnn_present.avail is False
    message = "cuDNN 9 was not found (1 places tried; `symdnn doctor` lists them)"
    assert gpu.dnn_present.msg == message
    assert not gpu.dnn_available()
    assert gpu.dnn_available.msg == message
    assert gpu.version(raises=False) == -1
    with pytest.raises(CudnnNotFound):
        gpu.version()
    assert gpu.gpu_available()
    target = gpu.cuda_target()  # the GPU is still there, and knows why it has no cuDNN
    assert not target.has("cudnn")
    assert "\n  a: b: c\n" in target.notes[0]


@pytest.mark.usefixtures("gpus")
def test_switched_off(real_cudnn):  # noqa: F811
    with config.change_flags({"dnn.enabled": "False"}):
        assert not gpu.dnn_present()
        assert not gpu.dnn_available()
        assert gpu.dnn_available.msg == "cuDNN is switched off by dnn.enabled=False"
        assert gpu.cuda_target().cudnn is None
        assert gpu.cuda_target().notes == (gpu.dnn_present.msg,)
    assert gpu.dnn_present()


@pytest.mark.usefixtures("no_cudnn")
def test_believed_without_a_look():
    with config.change_flags({"dnn.enabled": "no_check"}):
        assert gpu.dnn_present()
    assert not gpu.dnn_present()


def test_an_answer_is_kept(monkeypatch):
    asked = []
    monkeypatch.setattr(cudnn_library, "library", lambda: asked.append(1))
    gpu._why_not.cache_clear()
    assert gpu.dnn_present()
    assert gpu.dnn_present()
    assert len(asked) == 1
    monkeypatch.setenv("CUDNN_PATH", "/elsewhere")  # another question
    assert gpu.dnn_present()
    assert len(asked) == 2
    gpu._why_not.cache_clear()


@pytest.mark.usefixtures("no_gpu", "no_cudnn")
def test_everything_that_keeps_auto_from_the_gpu():
    package, card, dnn = gpu.why_no_gpu(["pycuda"])
    assert package == "the Python package pycuda is not installed"
    assert card.startswith("no GPU: libcuda.so.1 is not there. The driver was looked for in")
    assert "\n  loader: libcuda.so.1: " in card
    assert dnn == "cuDNN 9 was not found. Tried in this order:\n  a: b: c\nget it"


@pytest.mark.usefixtures("gpus")
def test_what_is_there_is_said_too(real_cudnn):  # noqa: F811
    assert gpu.why_no_gpu() == (f"{real_cudnn} could be used",)
