"""A test on this machine's processor, and on a card with cuDNN and without."""

import pytest

from symdnn.config import config
from tests.gpu import agreement

_card = pytest.mark.gpu
EACH = ["cpu", pytest.param("cudnn", marks=_card), pytest.param("own kernels", marks=_card)]


@pytest.fixture(params=EACH)
def device(request, monkeypatch):
    """The target of :func:`tests.gpu.agreement.assert_agree`; on a card with cuDNN, or without."""
    if request.param != "cpu":
        request.getfixturevalue("cuda")
    monkeypatch.setattr(agreement, "TARGET", "cpu" if request.param == "cpu" else "cuda")
    enabled = "False" if request.param == "own kernels" else "auto"
    prefer = "cudnn" if request.param == "cudnn" else "own"
    with config.change_flags({"dnn.enabled": enabled, "gpu.prefer": prefer}):
        yield request.param
