"""What tests of the CUDA target share: a device, or the reason why there is none; a fake cuDNN."""

from __future__ import annotations

import pytest

from .fake_cudnn import fake

__all__ = ["cuda", "fake"]


@pytest.fixture(scope="session")
def cuda():
    """The runtime of device 0; tests that need it are skipped, with the reason, without one."""
    pytest.importorskip("pycuda.driver", reason="PyCUDA is not installed")
    from symdnn.gpu.context import CudaUnavailable
    from symdnn.gpu.runtime import runtime

    try:
        return runtime(0)
    except CudaUnavailable as error:
        pytest.skip(str(error))
