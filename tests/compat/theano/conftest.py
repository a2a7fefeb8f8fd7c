"""Theano's paths in this process, for the time of one test."""

from __future__ import annotations

import importlib
import sys

import pytest

from symdnn.compat.theano import finder, settings
from symdnn.config import config
from symdnn.graph.values.numpy_functions import numpy_calls
from tests.gpu.conftest import card, cuda

__all__ = ["T", "card", "cuda", "theano"]


@pytest.fixture
def theano():
    """The module ``theano``; flags have Theano's defaults in this thread during the test."""
    assert "theano" not in sys.modules
    with config.change_flags(settings.DEFAULTS):
        finder.install()
        try:
            yield importlib.import_module("theano")
        finally:
            sys.meta_path.remove(finder._FINDER)
            numpy_calls.clear()
            for of_variables in finder.CLASS_NAMES:
                of_variables.__name__ = of_variables.__qualname__
            for name in [m for m in sys.modules if m.partition(".")[0] == "theano"]:
                del sys.modules[name]
            settings.config._own.clear()


@pytest.fixture
def T(theano):
    """``theano.tensor``."""
    return importlib.import_module("theano.tensor")
