"""For tests that need the real libcudnn; none of them needs a GPU."""

import pytest

from symdnn.errors import CudnnError
from symdnn.gpu.binding import cudnn_library, frontend


@pytest.fixture(scope="session")
def real_cudnn() -> cudnn_library.CudnnLibrary:
    try:
        return cudnn_library.library()
    except CudnnError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.fixture
def real_frontend(real_cudnn: cudnn_library.CudnnLibrary) -> None:
    """cuDNN's frontend can be used, too."""
    if problem := frontend.unavailable():
        pytest.skip(problem)
