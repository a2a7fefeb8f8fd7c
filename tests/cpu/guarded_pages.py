"""A plugin of pytest: what compiled kernels read and write ends where a page does, and the next one
belongs to nobody. A kernel that goes a byte too far ends the process, at the test that ran it, ::

    python -m pytest -p tests.cpu.guarded_pages tests/cpu/gemm/test_gemm.py

With ``GUARDED_PAGES=start`` in the environment an operand begins where a page does, and the page
before is protected. Inputs are read-only. Bytes of results and of scratch memory are 0xFF before a
launch, which is NaN. So are the other bytes of their pages, which must not change.
"""

import ctypes
import mmap
import os

import numpy as np
from numpy.lib.array_utils import byte_bounds

from symdnn.cpu.execution import runtime  # noqa: F401, enters the kernels into their table
from symdnn.graph import kernel as kernels

AT_START = os.environ.get("GUARDED_PAGES", "end") == "start"
BYTE = 0xFF
_NOTHING, _READ, _WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
#: Pages that no launch has now, by how many they are.
_free = {}


class Pages:
    """This many pages between two protected ones, for the time of a launch."""

    def __init__(self, count):
        self.count = count
        whole = np.frombuffer(mmap.mmap(-1, (count + 2) * mmap.PAGESIZE), np.uint8)
        self._at = whole.ctypes.data
        self.bytes = whole[mmap.PAGESIZE : -mmap.PAGESIZE]
        for first in (0, count + 1):
            self._protect(first, 1, _NOTHING)

    @classmethod
    def of(cls, nbytes):
        """Pages for this many bytes."""
        count = max(1, -(-nbytes // mmap.PAGESIZE))
        kept = _free.setdefault(count, [])
        pages = kept.pop() if kept else cls(count)
        pages.bytes[:] = BYTE
        return pages

    def _protect(self, first, count, what):
        at = self._at + first * mmap.PAGESIZE
        if _libc.mprotect(at, count * mmap.PAGESIZE, what):
            raise OSError(ctypes.get_errno(), "mprotect")

    def allow(self, what):
        """From now on."""
        self._protect(1, self.count, what)

    def begin(self, nbytes, unit, odd=0):
        """The address of this many bytes, ``odd`` bytes after a multiple of ``unit``."""
        if AT_START:
            return odd
        last = len(self.bytes) - nbytes
        return last - (last - odd) % unit


class Region:
    """Operands that share memory, and where they are meanwhile."""

    def __init__(self, low):
        self.low = self.high = low
        self.arrays, self.is_read, self.is_written = [], False, False

    def add(self, array, is_read, is_written):
        """One more."""
        self.high = max(self.high, byte_bounds(array)[1])
        self.arrays.append(array)
        self.is_read |= is_read
        self.is_written |= is_written

    def enter(self):
        """{id of an operand: the array that takes its place}"""
        self.size = self.high - self.low
        unit = max(a.dtype.itemsize for a in self.arrays)
        self.pages = Pages.of(self.size + unit)
        self.first = self.pages.begin(self.size, unit, self.low % unit)
        if self.is_read:
            there = (ctypes.c_ubyte * self.size).from_address(self.low)
            self.pages.bytes[self.first : self.first + self.size] = np.frombuffer(there, np.uint8)
        self.made = {id(a): self._moved(a) for a in self.arrays}
        self.pages.allow(_WRITE if self.is_written else _READ)
        return self.made

    def _moved(self, a):
        at = a.__array_interface__["data"][0] - self.low + self.first
        return np.ndarray(a.shape, a.dtype, self.pages.bytes, at, a.strides)

    def leave(self, outputs):
        """Check the bytes around it, and copy the results back."""
        self.pages.allow(_WRITE)
        beside = np.delete(self.pages.bytes, np.s_[self.first : self.first + self.size])
        assert (beside == BYTE).all(), "something is written beside an operand"
        for a in outputs:
            if id(a) in self.made:
                np.copyto(a, self.made[id(a)])
        _free[self.pages.count].append(self.pages)


class Guarded:
    """A launch with guarded operands. It has no ``native`` one, and takes them in two lists."""

    def __init__(self, launch):
        self._launch = launch

    def __getattr__(self, name):
        if name in ("native", "direct"):
            raise AttributeError(name)
        return getattr(self._launch, name)

    def __call__(self, inputs, outputs, *workspace):
        """Run it; results that are of its own making are copied."""
        regions = _regions(inputs, outputs)
        scratch = []
        if workspace and workspace[0] is not None and workspace[0].nbytes:
            pages = Pages.of(workspace[0].nbytes)
            first = pages.begin(workspace[0].nbytes, 64)
            scratch, workspace = [pages], [pages.bytes[first : first + workspace[0].nbytes]]
        made = {k: v for region in regions for k, v in region.enter().items()}
        given, results = ([made.get(id(a), a) for a in some] for some in (inputs, outputs))
        try:
            found = self._launch(given, results, *workspace)
            if found is not None:
                theirs = {id(moved): a for a, moved in zip(outputs, results)}
                found = [theirs[id(r)] if id(r) in theirs else _own(r) for r in found]
        finally:
            for region in regions:
                region.leave(outputs)
        for pages in scratch:
            _free[pages.count].append(pages)
        return found


def _own(result):
    return result.copy() if isinstance(result, np.ndarray) else result


def _regions(inputs, outputs):
    """The memory of all operands, each part once."""
    arrays = {id(a): a for a in (*inputs, *outputs) if isinstance(a, np.ndarray)}
    read, written = ({id(a) for a in some} for some in (inputs, outputs))
    found = []
    fit = [a for a in arrays.values() if a.size and a.dtype.itemsize and not a.dtype.hasobject]
    for a in sorted(fit, key=lambda a: byte_bounds(a)[0]):
        low = byte_bounds(a)[0]
        if not found or low >= found[-1].high:
            found.append(Region(low))
        found[-1].add(a, id(a) in read, id(a) in written)
    return found


def guard(kind):
    """Guard all launches of a class of kernels."""
    bind = kind.bind

    def guarded(self, call):
        launch = bind(self, call)
        return launch if isinstance(launch, Guarded) else Guarded(launch)

    kind.bind = guarded


def pretend():
    """All kernels that are compiled here, from now on."""
    cpu = [k for (_, target), found in kernels._table.items() if target == "cpu" for k in found]
    for kind in {type(k) for k in cpu if k.name.startswith("llvm.")}:
        guard(kind)


def pytest_load_initial_conftests(early_config):
    """Called for a module named by ``-p``; importing it for doctests changes nothing."""
    pretend()
