"""The value of a shared variable, with copies on devices that are updated on use."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np

from symdnn.graph.place import HOST, Place
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.borrow import Given, Lent
from symdnn.graph.values.dlpack import HostExport

Array = np.ndarray[Any, Any]

_count = count(1)
#: A number that grows when any storage gets or replaces a buffer, or a copy becomes stale.
#: While it stays the same, every valid copy remains valid at its address; values may have been
#: written in place in their only valid copy. Steady calls compare it, so it is read without a call.
CHANGES = [0]
#: A number that grows when a user may get memory of any storage, who may then write it. While it
#: stays the same, no :attr:`Storage.version` becomes None.
LENDINGS = [0]
_writes = [0]


def _changed() -> None:
    CHANGES[0] = next(_count)


def _lends() -> None:
    LENDINGS[0] = next(_count)


def writes() -> int:
    """A number that grows when any storage gets a value, or lends memory that a user may write.

    While it stays the same, no :attr:`Storage.version` changes.
    """
    return _writes[0]


def note_writes(counter: list[int]) -> None:
    """Note a write to all storages that count by ``counter`` (:meth:`Storage.counts`)."""
    counter[0] += 1
    _writes[0] = next(_count)


def _new_version() -> int:
    _writes[0] = version = next(_count)
    return version


class DeviceMemory(Protocol):
    """The interface of a target by which storages keep copies on its device."""

    #: The device; storages key their copies by it.
    place: Place

    def upload(self, array: Array, into: object) -> Any:
        """Copy to the device, into the buffer ``into`` (a new one when None); the buffer."""

    def download(self, buffer: object) -> Array:
        """A fresh host array with the buffer's content."""

    def lend(self, buffer: object) -> Any:
        """The buffer itself as an array of a type for users."""

    def export(self, buffer: object) -> Any:
        """The buffer itself as an object with ``__dlpack__``."""


class Placed(Protocol):
    """An array of another library on a device."""

    @property
    def memory(self) -> DeviceMemory:
        """The memory of its device."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> str:
        """Its dtype, a name of ``TensorType``."""

    def copied(self, into: object) -> Any:
        """Its content in the buffer ``into`` (a new one when None); the buffer."""

    def itself(self) -> Any:
        """The array as a buffer, without a copy; None if its layout is not that of buffers."""

    def shown(self) -> Any:
        """The array as one that users know, without a copy."""


class _Cell(Sequence[Any]):
    """A list of one, the value of a storage, which may be assigned."""

    def __init__(self, owner: Storage) -> None:
        self._owner = owner

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return [self._owner.data][index]

    def __setitem__(self, index: int, value: Any) -> None:
        self._owner.data = value


class Storage:
    """Holds one array. Addresses are stable: values of the same shape go to the same buffer.

    ``generation`` grows whenever a buffer is replaced (another shape, or a borrowed array), by
    which plans detect that they were bound to an old buffer.
    """

    def __init__(self, array: Array, borrow: bool = False) -> None:
        self.generation = 0
        self._keep(array, borrow)
        self._version = _new_version()
        self._counters: list[list[int]] = []
        self._devices: dict[Place, tuple[DeviceMemory, Any]] = {}
        self._valid: set[Place] = {HOST}
        #: The device whose buffer a user holds and may write at any time.
        self._lent: Place | None = None

    @classmethod
    def placed(cls, placed: Placed, borrow: bool = False) -> Storage:
        """A storage whose value is on a device; see :meth:`take`."""
        storage = cls(np.empty(placed.shape, numpy_dtype(placed.dtype)), borrow=True)
        storage.take(placed, borrow)
        return storage

    @property
    def storage(self) -> _Cell:
        """The value in a list of one: Theano's name."""
        return _Cell(self)

    @property
    def version(self) -> int | None:
        """A number that changes whenever the value does; None if changes can't be detected.

        They can't while a user holds an array of the memory (``borrow=True``) and may write it.
        """
        return self.version_on(HOST)

    def version_on(self, place: Place) -> int | None:
        """:attr:`version` of the value that functions at ``place`` read.

        They see a user's writes to the host's array only after ``set_value``.
        """
        if self._lent or (place == HOST and self._outside and not self._back()):
            return None
        return self._version + sum([c[0] for c in self._counters])

    def is_lent_off(self, place: Place) -> bool:
        """Whether the value is in memory of another device that a user holds: it may be written at
        any time, which :func:`changes` does not count."""
        return self._lent is not None and self._lent != place and self._lent in self._valid

    def is_only_on(self, place: Place) -> bool:
        """Whether there is no copy elsewhere that a write there makes stale."""
        return self._valid == {place}

    def counts(self, counter: list[int]) -> None:
        """Let ``counter[0]``, which may only grow, count writes of the value too.

        So a function that writes many storages in each call notes them by one number.
        """
        if all(c is not counter for c in self._counters):
            self._counters.append(counter)

    def _keep(self, array: Array, borrow: bool) -> None:
        """Use a copy of ``array``, or with ``borrow`` its memory if the layout permits it."""
        self._face: Given | Lent
        if borrow and array.flags.writeable and array.flags.c_contiguous:
            self._face = Given(array)
            self._host: Array = self._face.inside
        else:
            self._host = np.array(array, order="C", copy=True)
            self._face = Lent(self._host)
        #: Whether a user held the host's array at the last check.
        self._outside = isinstance(self._face, Given)
        if self._outside:
            _lends()

    def _hand_out(self) -> Array:
        """The host's array for a user, who may write it at any time."""
        self.host()
        if not self._outside:
            self._outside, _writes[0] = True, next(_count)
            _lends()
        return self._face.array()

    def _back(self) -> bool:
        """Whether no user holds the host's array any more; it may have been written."""
        if not self._face.held:
            self._outside, self._version = False, _new_version()
        return not self._outside

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return tuple(self._host.shape)

    @property
    def dtype(self) -> Any:
        """NumPy dtype of the value."""
        return self._host.dtype

    def get(
        self, borrow: bool = False, internal: bool = False, home: DeviceMemory | None = None
    ) -> Any:
        """The value: a copy unless ``borrow``; with ``internal`` the memory on a device itself.

        A user may write the device's memory through that array, so from then on the host's copy
        counts as stale while the value is there. The device is one with a copy, else ``home``, else
        the host.
        """
        if internal and (memory := self._first_memory(home)):
            return memory.lend(self._inside(memory))
        return self._hand_out() if borrow else self.host().copy()

    def export(self, home: DeviceMemory | None = None) -> Any:
        """The value's own memory as an object with ``__dlpack__``, as :meth:`get` gives it
        with ``borrow`` and ``internal``."""
        memory = self._first_memory(home)
        return memory.export(self._inside(memory)) if memory else HostExport(self._hand_out())

    def _first_memory(self, home: DeviceMemory | None) -> DeviceMemory | None:
        return next(iter(self._devices.values()))[0] if self._devices else home

    def _inside(self, memory: DeviceMemory) -> Any:
        """The buffer on a device for a user, who may write to it at any time."""
        buffer = self.on(memory)
        self.written(memory.place)
        self._lent = memory.place
        _lends()
        return buffer

    def set(self, array: Array, borrow: bool = False) -> None:
        """Replace the value; every other copy becomes stale."""
        changed = borrow or self._valid != {HOST}
        if borrow or array.shape != self._host.shape:
            self._keep(array, borrow)
            self._devices.clear()
            self._lent, changed = None, True
            self.generation += 1
        else:
            np.copyto(self._host, array)
        self._valid = {HOST}
        self._version = _new_version()
        if changed:
            _changed()
        if self._lent:  # who holds that memory sees the new value, as on the host
            self.on(self._devices[self._lent][0])

    def take(self, placed: Placed, borrow: bool = False) -> None:
        """Replace the value by one on a device, and leave it there.

        With ``borrow`` the array's memory becomes the variable's, if possible.
        """
        memory, same = placed.memory, placed.shape == self.shape
        lent = placed.itself() if borrow else None
        if lent is None:
            buffer = placed.copied(self._devices[memory.place][1] if self._has(placed) else None)
        else:
            buffer = lent
        if lent is not None or not same:
            self._devices.clear()
            self._lent = memory.place if lent is not None else None
            self.generation += 1
            _lends()
        if not same:
            self._keep(np.empty(placed.shape, self.dtype), False)
        self._devices[memory.place] = memory, buffer
        self._valid = {memory.place}
        self._version = _new_version()
        _changed()

    def _has(self, placed: Placed) -> bool:
        return placed.shape == self.shape and placed.memory.place in self._devices

    def host(self) -> Array:
        """The host's copy, updated first if it is stale."""
        if HOST not in self._valid or self._lent in self._valid:
            newest = self._lent if self._lent in self._valid else next(iter(self._valid))
            memory, buffer = self._devices[newest]
            np.copyto(self._host, memory.download(buffer))
            self._valid.add(HOST)
            _changed()
        return self._host

    def on(self, memory: DeviceMemory) -> Any:
        """The buffer on ``memory``'s device, updated first if it is stale."""
        place = memory.place
        if place == HOST:
            return self.host()
        elsewhere = self._lent in self._valid and place != self._lent
        if place not in self._valid or elsewhere:
            old = self._devices.get(place)
            buffer = memory.upload(self.host(), old[1] if old else None)
            self._devices[place] = (memory, buffer)
            self._valid.add(place)
            _changed()
        return self._devices[place][1]

    def written(self, place: Place) -> None:
        """Note that a function wrote the copy at ``place``: all others are stale."""
        self._version = _new_version()
        if self._valid != {place}:
            self._valid = {place}
            _changed()

    @property
    def data(self) -> Array:
        """The value itself (Theano's ``container.data``)."""
        return self._hand_out()

    @data.setter
    def data(self, array: Array) -> None:
        self.set(np.asarray(array, dtype=self.dtype))

    value = data  # what Theano's containers call it too

    def __reduce__(self) -> tuple[object, ...]:
        return Storage, (self.host().copy(),)

    def __deepcopy__(self, memo: dict[int, object]) -> Storage:
        return Storage(self.host())
