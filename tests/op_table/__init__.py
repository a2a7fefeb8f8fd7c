"""The op table: one record or more for every op. It drives the tests of types, values, gradients,
shapes, printing, pickling and every kernel; a new op adds a record and is tested.

Each family has a module ``tests/op_table/<family>.py`` with a list ``CASES``.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.op_table.record import OpCase


def load() -> list[OpCase]:
    """All records of all families, ids checked to be unique."""
    cases: list[OpCase] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        if module != "record":
            cases += importlib.import_module(f"{__name__}.{module}").CASES
    ids = [c.id for c in cases]
    repeated = {i for i in ids if ids.count(i) > 1}
    assert not repeated, f"op table ids used twice: {repeated}"
    return cases
