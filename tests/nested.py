"""Rooms of tests run again in another process: under a plugin, or on another device.

Such a run takes of each parametrised test cases that have each value of each parameter, others at
each ``--turn``. All cases: ``pytest -p PLUGIN ROOMS``.
"""

from __future__ import annotations

import sys

from tests import seeded
from tests.environment import ROOT, environment
from tests.processes import ended

__all__ = ["passes"]

#: Of each test's cases one in so many is taken, and more if these have not each parameter's values.
CASES_IN = 3
#: Seconds of processor time: other work on the machine does not make it fail.
SECONDS = 900
#: Seconds until a run that waits for ever is ended.
PATIENCE = 4 * SECONDS


def passes(*words: object, **variables: str) -> None:
    """``pytest *words`` with these variables of the environment runs tests, and none fails."""
    chosen = ["--turn", seeded.turn(), "--cases-in", CASES_IN, "-p", "no:cacheprovider"]
    limited = ["sh", "-c", f'ulimit -t {SECONDS}; exec "$@"', "sh"]
    command = [*limited, sys.executable, "-m", "pytest", "-q", *chosen, *words]
    status, said = ended(command, PATIENCE, cwd=ROOT, env=environment(**variables))
    assert status == 0, f"exit status {status}\n{said[-6000:]}"
    assert " passed" in said
