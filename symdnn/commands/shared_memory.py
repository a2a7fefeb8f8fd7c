"""Shared memory that MPICH's ranks leave behind when they are killed: 2 MB for each run.

MPICH removes its files in ``/dev/shm`` itself if all ranks end as they should.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

__all__ = ["SharedMemory"]

_PREFIX = "/dev/shm/mpich_shm_"
#: Seconds between the first looks, which become twice as many each time, and the most.
_FIRST, _MOST = 0.1, 5.0


class SharedMemory:
    """The files of the ranks below some processes, which no other run has."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._next, self._pause = 0.0, _FIRST

    def look(self, *processes: int) -> None:
        """Note the files that these processes and their descendants have mapped. It looks often at
        the beginning, when MPI starts, and then rarely."""
        if time.monotonic() < self._next:
            return
        self._next, self._pause = time.monotonic() + self._pause, min(2 * self._pause, _MOST)
        for process in processes:
            for one in _with_descendants(process):
                self._files |= _mapped(one)

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
