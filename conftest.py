"""What all tests share: seeded random numbers, and a cache folder that is not the user's own.

``--seed N`` (0 by default) draws other numbers in every test that uses ``rng`` or
:func:`tests.seeded.new_rng`; a failure prints its seed. ``--cases-in N`` runs one case in N of each
parametrised test, or fewer if these have each parameter's values (see
:func:`tests.seeded.covering`). ``--turn N`` (0 by default) chooses the cases, and the part of long
tables that a run takes. The run prints it.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
from collections.abc import Generator, Hashable, Iterator
from pathlib import Path

import numpy as np
import pytest
from _pytest.doctest import DoctestModule

from tests import seeded

#: Rooms whose tests, but for those marked ``gpu``, name their device: ``--device`` is not for them.
ONE_DEVICE = ("tests/benchmarks/", "tests/cpu/", "tests/gpu/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of all random test data")
    parser.addoption("--one-in", type=int, default=1, help="run one test in so many, by --turn")
    parser.addoption("--cases-in", type=int, default=1, help="of each test one case in so many")
    parser.addoption("--turn", type=int, default=0, help="which part of sampled tables to run")
    parser.addoption(
        "--device", help="for what tests compile that name no target: cpu (default), cuda, emulated"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled code in a folder of this run, and read no user's settings.

    Workers of pytest-xdist inherit the folder; ``SYMDNN_TESTS_CACHE`` names one that stays.
    """
    # With workers pytest says nothing about a path that is not there, and runs no test.
    paths = [Path(config.invocation_params.dir, a.partition("::")[0]) for a in config.args]
    if absent := [str(p) for p in paths if not p.exists() and not config.option.pyargs]:
        raise pytest.UsageError(f"no such file or folder: {', '.join(absent)}")
    seeded.start(config.option.seed, config.option.turn)
    folder = os.environ.get("SYMDNN_TESTS_CACHE")
    if folder is None:
        made = tempfile.TemporaryDirectory(prefix="symdnn-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(made.cleanup)
        folder = os.environ["SYMDNN_TESTS_CACHE"] = made.name
        config.add_cleanup(lambda: os.environ.pop("SYMDNN_TESTS_CACHE", None))
    os.environ["XDG_CACHE_HOME"] = folder
    os.environ["SYMDNNRC"] = ""
    if config.getoption("numprocesses", None):  # workers share the processors, and inherit this
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    _compile_for(config.getoption("--device") or _default_device(config.option.markexpr))


def _default_device(marks: str) -> str:
    """The processor, but for ``-m gpu``, also as a part of an expression (``gpu and not gpu2``)."""
    return "auto" if re.search(r"(?<!not )\bgpu", marks) else "cpu"


def _compile_for(device: str) -> None:
    """Have ``device=auto`` mean the same on all machines, in processes that tests start too.

    ``emulated`` is a GPU whose kernels are the references (``tests.gpu.reference_device``).
    """
    os.environ["SYMDNN_TESTS_DEVICE"] = device
    flags = os.environ.get("SYMDNN_FLAGS", "")
    if device == "emulated":  # whatever a test that starts this process runs on
        os.environ["SYMDNN_FLAGS"] = ",".join(filter(None, [flags, "device=cuda"]))
    elif "device=" not in flags:
        os.environ["SYMDNN_FLAGS"] = ",".join(filter(None, [flags, f"device={device}"]))
    if device == "emulated":
        from tests.gpu.reference_device import by_reference

        by_reference()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take one test in ``--one-in``, and of each function one case in ``--cases-in``."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in seeded.part(items, config.option.one_in):
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    every = config.option.cases_in
    taken = {
        same[i] for same in cases.values() for i in seeded.covering([*map(_case, same)], every)
    }
    if len(taken) < len(items):
        config.hook.pytest_deselected(items=[i for i in items if i not in taken])
        items[:] = [i for i in items if i in taken]


def _case(item: pytest.Item) -> dict[str, Hashable]:
    """A test's parameters: equal ones of simple types are the same, others if one object."""
    parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return {
        name: repr(v) if isinstance(v, bool | int | float | str | tuple | None) else id(v)
        for name, v in parameters.items()
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Also of a quiet run: how to take the same part of sampled tables again."""
    terminalreporter.line(f"sampled tables: --turn {seeded.turn()}")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator whose seed is made of the test's id and ``--seed``."""
    return seeded.new_rng()


@pytest.fixture
def own_garbage() -> None:
    """``gc`` sees only new objects: collecting those of all earlier tests takes a second.

    Frozen objects stay frozen, also those that :func:`pytest_collection` froze, which are most.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    device = os.environ["SYMDNN_TESTS_DEVICE"]
    if device in ("cuda", "emulated") and item.get_closest_marker("cpu"):
        pytest.skip("it is about the processor")
    if (
        device == "cuda"
        and item.nodeid.startswith(ONE_DEVICE)
        and not item.get_closest_marker("gpu")
    ):
        pytest.skip("it is about the processor, or about a GPU that need not be there")
    seeded.enter(item.nodeid)
    if init := sys.modules.get("symdnn.nn.init"):  # initial values of modules
        init.seed(seeded.number())


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """A test that leaves flags or the environment's flags changed fails, not one after it.

    Other processes on the machine do not change how many threads run a test's kernels.
    """
    contention = sys.modules.get("symdnn.cpu.threads.contention")
    if contention is not None:
        contention.CONTENTION.next_check = float("inf")
    environment, before = os.environ.get("SYMDNN_FLAGS"), _settings()
    yield
    assert os.environ.get("SYMDNN_FLAGS") == environment, "the environment's flags stay changed"
    after = _settings()
    if after is not None and before != after:
        if before is None:  # the test was the first to import it
            before = _settings(first=True)
        assert _said(after) == _said(before or {}), "the test leaves flags changed"


def _settings(first: bool = False) -> dict[str, object] | None:
    """The values of flags that were set, or their values at ``first``; None if no flag was read
    yet.
    """
    module = sys.modules.get("symdnn.config")
    if module is None:
        return None
    config = module.Config(os.environ) if first else module.config
    return {n: s.value for n, s in config._global.items()}


def _said(values: dict[str, object]) -> dict[str, object]:
    """Without those that are the flag's own first value."""
    from symdnn.flags import FLAGS

    return {n: v for n, v in values.items() if n in FLAGS and v != FLAGS[n].first_value()}


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Examples are in docstrings of the package: tests, and modules without, are not searched."""
    found = yield
    package = Path(__file__).parent / "symdnn" in file_path.parents
    searched = package and b">>>" in file_path.read_bytes()
    return [c for c in found if searched or not isinstance(c, DoctestModule)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tens of thousands of tests live until the end, so the garbage collector need not
    visit them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    outcome = yield
    report = outcome.get_result()
    if report.failed and seeded.drew():
        report.sections.append(("random data", seeded.description()))
