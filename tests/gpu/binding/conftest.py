"""Fixtures that tests of other folders use, too."""

from tests.gpu.small_cudnn import build  # noqa: F401
