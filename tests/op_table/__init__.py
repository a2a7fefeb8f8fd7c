"""The op table: one record or more for every op. It drives the tests of types, values, gradients,
shapes, printing, pickling and every kernel; a new op adds a record and is tested.

Each family has a module ``tests/op_table/<family>.py`` with a list ``CASES``.
"""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from tests import seeded
from tests.op_table.record import OpCase


@cache
def families() -> dict[str, list[OpCase]]:
    """The records of each module, ids checked to be unique."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "record")
    found = {m: importlib.import_module(f"{__name__}.{m}").CASES for m in modules}
    count = Counter(c.id for cases in found.values() for c in cases)
    repeated = {i for i, n in count.items() if n > 1}
    assert not repeated, f"op table ids used twice: {repeated}"
    return found


def load() -> list[OpCase]:
    """All records of all families."""
    return [c for cases in families().values() for c in cases]


def of_each(
    cases: Sequence[OpCase], every: int = 1
) -> Callable[[Callable[[OpCase], None]], Callable[..., None]]:
    """Make of a test of one case a test for each family of ops, which names all that are wrong.

    For tests that take a few milliseconds a case, as pytest does for a test. A case may skip
    itself. Of tests that take longer, one case in ``every`` is run, others at each turn
    (``tests.seeded.part``), and those left out by ``slow``.
    """
    wanted = {c.id for c in cases}
    of = {name: [c for c in found if c.id in wanted] for name, found in families().items()}

    def made(test: Callable[[OpCase], None]) -> Callable[..., None]:
        def of_family(family: str, rest: bool) -> None:
            wrong, skipped = [], []
            chosen = seeded.part(of[family], every, rest)
            for case in chosen:
                try:
                    test(case)
                except pytest.skip.Exception as why:
                    skipped.append(str(why))
                except Exception:
                    wrong.append(f"{case.id}\n{traceback.format_exc()}")
            assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong])
            if skipped and len(skipped) == len(chosen):
                pytest.skip(skipped[0])

        of_family.__name__, of_family.__doc__ = test.__name__, test.__doc__
        of_family.__module__, of_family.__qualname__ = test.__module__, test.__qualname__
        params = [
            pytest.param(name, False, id=name)
            for name, found in of.items() if seeded.part(found, every)
        ]  # fmt: skip
        params += [
            pytest.param(name, True, id=f"{name}-rest", marks=pytest.mark.slow)
            for name, found in of.items() if seeded.part(found, every, rest=True)
        ]  # fmt: skip
        return pytest.mark.parametrize(("family", "rest"), params)(of_family)

    return made
