"""Where programs run: the CPU, a GPU, or a GPU whose kernels are the references.

The last shows on any machine whether graphs for a GPU are lowered, placed, planned and captured
right; with a folder it also compiles the device code that a card would run into a cache there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.errors import KernelCompileError
from symdnn.graph.kernel import Call

EMULATED = "emulated"


def use(device: str, prepare: str = "") -> None:
    """Compile for this device from now on; ``prepare`` is a folder for device code."""
    if not device and not prepare:
        return
    if device == EMULATED or prepare:
        _emulate(Path(prepare) if prepare else None)
        device = "cuda"
    config.device = device


def cache_environment(folder: str) -> None:
    """Have the cache folder of this process and its children there; before anything is compiled."""
    given = os.environ.get("SYMDNN_FLAGS", "")
    wanted = f"base_compiledir={Path(folder).absolute()}"
    if wanted not in given:
        os.environ["SYMDNN_FLAGS"] = ",".join(filter(None, [given, wanted]))
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]])


def _emulate(folder: Path | None) -> None:
    from tests.gpu import reference_device as R

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)

        class Prepared(R.ByReference):
            """A chosen kernel that also compiles what a card would launch."""

            def _launcher(self, call: Call, bind: Any, guarded: bool) -> Any:
                inner = super()._launcher(call, bind, guarded)

                def launch(env: Any, inputs: Any, outputs: Any) -> Any:
                    if not env.load_only:
                        _compile(self.kernel, call, inputs, outputs, folder)
                    return inner(env, inputs, outputs)

                return launch

        R.ByReference = Prepared  # type: ignore[misc]
    R.by_reference()


def _compile(
    kernel: Any, call: Call, inputs: Sequence[Any], outputs: Sequence[Any], folder: Path
) -> None:
    """The device code of this launch, into the cache."""
    from symdnn.gpu.binding.nvrtc import compile_cubin
    from symdnn.gpu.codegen.launches import CudaKernel, view_of

    if not isinstance(kernel, CudaKernel):
        return  # a library's
    operands = (*inputs, *outputs)
    at = [getattr(a, "ptr", -1) for a in operands]
    views = [view_of(i, a, at.index(p)) for i, (a, p) in enumerate(zip(operands, at))]
    with suppress(KernelCompileError):
        for k in kernel.launches(call, views[: len(inputs)], views[len(inputs) :]):
            compile_cubin(k.source, (9, 0), (), folder)


__all__ = ["EMULATED", "cache_environment", "use"]
