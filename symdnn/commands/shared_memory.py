"""Shared memory that MPICH's ranks leave behind when they are killed: 2 MB for each run.

MPICH removes its files in ``/dev/shm`` itself if all ranks end as they should.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

_PREFIX = "/dev/shm/mpich_shm_"
#: Seconds between looks in the first minute, while none is found, and afterwards.
_OFTEN, _FIRST, _RARELY = 0.25, 60.0, 5.0


class SharedMemory:
    """The files of the ranks below some processes, which no other run has."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._began, self._next = time.monotonic(), 0.0

    def look(self, *processes: int) -> None:
        """Note the files that these processes and their descendants have mapped. It looks often
        until MPI starts, and then rarely."""
        now = time.monotonic()
        if now < self._next:
            return
        for process in processes:
            for one in _with_descendants(process):
                self._files |= _mapped(one)
        waits = not self._files and now < self._began + _FIRST
        self._next = now + (_OFTEN if waits else _RARELY)

    def remove(self) -> None:
        """Remove those that are still there, after all ranks have ended."""
        for name in self._files:
            Path(name).unlink(missing_ok=True)


def _with_descendants(process: int) -> list[int]:
    """Its number, and those of all that it has started."""
    found = [process]
    for one in found:
        with contextlib.suppress(OSError):  # it has ended
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def _mapped(process: int) -> set[str]:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        return {f"/{name}" for _, _, name in (line.partition("/") for line in lines)
                if f"/{name}".startswith(_PREFIX)}  # fmt: skip
    return set()
