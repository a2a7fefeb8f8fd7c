"""Tests stand where their subject stands: ``tests/opt/fuse`` has those of ``symdnn/opt/fuse``."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.sources import PACKAGE, SOURCES

TESTS = Path(__file__).parent

#: Rooms without tests of their own name -> the file or folder that tests them as a part of another.
ELSEWHERE = {
    "ops": "ops/elementwise",  # the base of elementwise ops
    "ops/nest": "cpu/nest/test_nest.py",  # each schedule is compared with ``Nest.evaluate``
}

ROOMS = sorted(
    {str(p.parent.relative_to(PACKAGE)) for p in SOURCES if p.name != "__init__.py"} - {"."}
)


def has_tests(path: Path) -> bool:
    """Whether it is a test file, or a folder that has one itself."""
    return path.is_file() or any(path.glob("test_*.py"))


def faults(rooms: Iterable[str], elsewhere: dict[str, str]) -> Iterator[str]:
    """What is wrong with the places of tests."""
    for room in rooms:
        own = has_tests(TESTS / room)
        if own and room in elsewhere:
            yield f"tests/{room} has tests: take {room} out of ELSEWHERE"
        if not own and room not in elsewhere:
            yield f"symdnn/{room}: tests/{room} has no test, and ELSEWHERE names no other place"
    for room, place in elsewhere.items():
        if room not in rooms:
            yield f"ELSEWHERE: there is no room symdnn/{room}"
        if not has_tests(TESTS / place):
            yield f"ELSEWHERE: {room} is tested in tests/{place}, where no test is"


def test_every_room_has_tests():
    assert not [*faults(ROOMS, ELSEWHERE)]


def test_wrong_places_are_noticed():
    (text,) = faults(["ops/array", "ops/new"], {})
    assert text == "symdnn/ops/new: tests/ops/new has no test, and ELSEWHERE names no other place"
    (text,) = faults(["ops/new"], {"ops/new": "ops/gone"})
    assert text == "ELSEWHERE: ops/new is tested in tests/ops/gone, where no test is"
    (text,) = faults(["ops/array"], {"ops/array": "ops/array"})
    assert text == "tests/ops/array has tests: take ops/array out of ELSEWHERE"
    (text,) = faults([], {"ops/new": "ops/array"})
    assert text == "ELSEWHERE: there is no room symdnn/ops/new"
