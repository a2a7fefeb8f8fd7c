"""Acceptance tests of what users of cuDNN front ends asked for, by the needs' numbers."""

from tests.gpu.conftest import card, cuda, quiet_card
from tests.gpu.fake_cudnn import fake
from tests.needs.fake_card import fake_card

__all__ = ["card", "cuda", "fake", "fake_card", "quiet_card"]
