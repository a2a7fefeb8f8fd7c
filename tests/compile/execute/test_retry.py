"""A call without memory: plans with smaller workspaces are tried before it fails."""

from types import SimpleNamespace

import pytest

from symdnn.compile.execute.retry import run_segment
from symdnn.config import config


class Cache:
    """Plans that run when their workspace fits into ``room`` bytes."""

    def __init__(self, room, wanted):
        self.room, self.wanted = room, wanted
        self.made, self.forgotten = [], 0

    def get(self, entering, values):
        return self._plan()

    def remake(self, plan, values):
        return self._plan()

    def forget(self, plan):
        self.forgotten += 1

    def _plan(self):
        limit = int(config.dnn.conv.workspace_limit)
        nbytes = min(self.wanted, limit) if limit else self.wanted
        self.made.append((nbytes, str(config.dnn.conv.on_unsupported)))

        def run(entering, watcher):
            if nbytes > self.room:
                raise MemoryError(f"no room for {nbytes}")
            return [nbytes]

        memory = SimpleNamespace(carried={}, workspaces={0: SimpleNamespace(nbytes=nbytes)})
        return SimpleNamespace(bound=SimpleNamespace(run=run), memory=memory)


def test_workspaces_are_cut_until_the_plan_fits():
    cache = Cache(room=2 << 20, wanted=1 << 30)
    assert run_segment(cache, [], {}) == [1 << 20]
    assert [n for n, _ in cache.made] == [1 << 30, 64 << 20, 1 << 20]
    assert cache.made[1][1] == "fallback"
    assert int(config.dnn.conv.workspace_limit) == 0


def test_a_limit_of_the_user_is_never_raised():
    with config.change_flags(**{"dnn.conv.workspace_limit": 3 << 20}):
        cache = Cache(room=1, wanted=1 << 30)
        assert run_segment(cache, [], {}) == [1]
    assert max(n for n, _ in cache.made) == 3 << 20


def test_the_first_error_says_what_was_tried():
    cache = Cache(room=0, wanted=1 << 21)
    with pytest.raises(MemoryError, match="no room for 2097152") as caught:
        run_segment(cache, [], {})
    assert len(caught.value.__notes__) == 2
    assert "at most 1 bytes" in caught.value.__notes__[1]
    assert cache.forgotten == 1


def test_without_workspaces_there_is_nothing_to_cut():
    cache = Cache(room=-1, wanted=0)
    with pytest.raises(MemoryError):
        run_segment(cache, [], {})
    assert len(cache.made) == 1
