"""A cuBLASLt that records what it is asked and has no device: descriptors, choices, launches."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding import libcublaslt
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.gemm import choice as gemm_choice

_WORDS = {
    "MatmulDesc": {n: w for w, n in libcublaslt.MATMUL.items()},
    "MatrixLayout": {n: w for w, n in libcublaslt.LAYOUT.items()},
    "MatmulPreference": {n: w for w, n in libcublaslt.PREFERENCE.items()},
}
_EPILOGUES = {n: w for w, n in libcublaslt.EPILOGUE.items()}


@dataclass
class FakeCublasLt:
    """Stands for the library: ``things`` are what was created, ``runs`` the products enqueued.

    ``without`` are epilogues for which there is no algorithm; ``algorithms`` how many there are.
    """

    things: dict[int, dict[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    without: frozenset[str] = frozenset()
    algorithms: int = 3
    next: int = 0x1000

    def __getattr__(self, name: str) -> Any:
        """A function of the C API."""
        assert name.startswith("cublasLt"), name
        if name == "cublasLtGetVersion":
            return lambda: 130002
        short = name.removeprefix("cublasLt")
        for verb in ("Create", "Destroy", "SetAttribute"):
            if short.endswith(verb):
                kind = short.removesuffix(verb)
                return lambda *args: getattr(self, f"_{verb.lower()}")(kind, *args) or 0
        return lambda *args: {
            "MatmulAlgoGetHeuristic": self._heuristic, "Matmul": self._matmul,
            "MatmulAlgoConfigGetAttribute": self._algorithm_attribute,
        }[short](*args) or 0  # fmt: skip

    def _create(self, kind: str, out: Any, *args: Any) -> None:
        self.next += 0x10
        out._obj.value = self.next
        self.things[self.next] = {"kind": kind, "made": [a.value for a in args]}

    def _destroy(self, kind: str, what: Any) -> None:
        assert self.things.pop(what.value)["kind"] == kind

    def _setattribute(self, kind: str, what: Any, n: Any, value: Any, size: Any) -> None:
        thing = self.things[what.value]
        assert thing["kind"] == kind
        assert size.value == ctypes.sizeof(value._obj)
        thing[_WORDS[kind][n.value]] = value._obj.value

    def epilogue(self, description: Any) -> str:
        """The word of a descriptor's epilogue."""
        return _EPILOGUES[self.things[description.value].get("epilogue", 1)]

    def _heuristic(self, handle, description, a, b, c, d, preference, count, results, found) -> int:
        self.asked.append(dict(self.things[preference.value]))
        if self.epilogue(description) in self.without:
            return 15
        for i in range(min(count.value, self.algorithms)):
            results[i].algo.data[0] = i
            results[i].workspace_bytes = 64 * i
        found._obj.value = min(count.value, self.algorithms)
        return 0

    def _matmul(self, handle, description, alpha, a, la, b, lb, beta, c, lc, d, ld, algorithm,
                workspace, workspace_bytes, stream) -> None:  # fmt: skip
        layouts = [dict(self.things[v.value]) for v in (la, lb, lc, ld)]
        self.runs.append({
            **self.things[description.value], "epilogue": self.epilogue(description),
            "pointers": [v.value for v in (a, b, c, d)], "layouts": layouts,
            "factors": (alpha._obj.value, beta._obj.value),
            "algorithm": algorithm._obj.data[0], "workspace": workspace_bytes.value,
            "workspace_at": workspace.value,
        })  # fmt: skip

    def _algorithm_attribute(self, algorithm, n, value, size, written) -> None:
        value._obj.value = 1


@dataclass
class FakeGemmEnv:
    """A launch's surroundings; ``contents`` are what ``download`` finds, by address."""

    contents: dict[int, Any] = field(default_factory=dict)
    did: list[tuple[Any, ...]] = field(default_factory=list)
    stream: int = 1
    workspace: int = 1 << 40
    error_word: int = 2
    node: int = 0
    cublaslt: int = 7
    next: int = 0x7000_0000
    context: Any = field(
        default_factory=lambda: SimpleNamespace(current=contextlib.nullcontext, capability=(9, 0))
    )

    def zero(self, ptr: int, nbytes: int) -> None:
        self.did.append(("zero", ptr, nbytes))

    def empty(self, shape: tuple[int, ...], dtype: str) -> RawArray:
        self.next += 0x100000
        return RawArray(self.next, shape, dtype)

    def download(self, array: RawArray) -> Any:
        return np.asarray(self.contents.get(array.ptr, 0))

    def module(self, source: str, name: str, options: Any = ()) -> str:
        return name

    def launch(self, function: Any, grid: Any, block: Any, shared: int, args: Any) -> None:
        fields = np.frombuffer(args[0].tobytes(), np.int64).tolist()
        self.did.append(("launch", function, fields))


@pytest.fixture
def lt(monkeypatch):
    """cuBLASLt replaced by a :class:`FakeCublasLt`."""
    made = FakeCublasLt()
    monkeypatch.setattr(libcublaslt, "library", lambda: made)
    gemm_choice.forget()
    yield made
    gemm_choice.forget()
