"""The official tests of onnx on the device."""

from __future__ import annotations

import pytest

from symdnn.compile.program.mode import Mode
from tests.onnx.official import cases
from tests.onnx.test_official import FILES, check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("part", range(8))
def test_nodes(cuda, part):
    check([c for i, c in enumerate(cases("node")) if i % 8 == part], Mode(target="cuda"), 1e-5)


@pytest.mark.parametrize("kind", FILES)
def test_models_in_files(cuda, kind):
    check(cases(kind), Mode(target="cuda"), 1e-5)
