"""Files that appear complete or not at all; what killed writers left is cleaned up."""

from __future__ import annotations

import os
from pathlib import Path

from symdnn.disk import atomic

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, then rename it: a reader sees the old file or the new one.

    What a writer of this file left there when it was killed is removed, and leftovers of a day's
    age of other files in the folder.
    """
    target = Path(os.path.realpath(path))
    atomic.clean(target.parent, target.name)
    atomic.write_atomically(target, data)
