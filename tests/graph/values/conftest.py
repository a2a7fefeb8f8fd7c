"""The emulated device."""

from tests.gpu.fake_device import fake_device

__all__ = ["fake_device"]
