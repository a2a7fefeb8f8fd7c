"""Programs in processes of their own, without the time of imports: children of a process that has
imported symdnn and called nothing.

Flags and other variables are those of the call. State of the import itself (the seed of Python's
hashes) is shared by all children: tests of it start Python.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.environment import ROOT, environment

__all__ = ["forked"]


def forked(
    code: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    seconds: float = 300,
) -> subprocess.CompletedProcess[str]:
    """``python -c code *arguments``, with what it wrote; one that takes longer fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        said = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        order = [code, list(map(str, arguments)), dict(env or os.environ), str(cwd or Path.cwd())]
        status = _answer(json.dumps([*order, *said]), seconds)
        out, errors = (Path(path).read_text() for path in said)
    if status is None:
        pytest.fail(f"a program took longer than {seconds} s. It said:\n{out}{errors}")
    return subprocess.CompletedProcess(code, status, out, errors)


def _answer(order: str, seconds: float) -> int | None:
    """The exit status; None of a program that is ended because it takes longer."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(order + "\n")
    server.stdin.flush()
    if select.select([server.stdout], [], [], seconds)[0]:
        return int(server.stdout.readline())
    _end(server)
    _server.cache_clear()
    return None


@cache
def _server() -> subprocess.Popen[str]:
    """The process that this one's programs are children of."""
    server = subprocess.Popen(
        [sys.executable, "-c", "from tests.forked import _serve; _serve()"], cwd=ROOT,
        env=environment(SYMDNN_FLAGS=""), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    """End it and the program that runs."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


def _serve() -> None:
    """Fork for each line of the input, and write how the child ended; a child runs its program."""
    import symdnn.tensor

    del symdnn
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            answers.close()
            return _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def _run(
    code: str, arguments: list[str], env: dict[str, str], folder: str, out: str, errors: str
) -> None:
    """What ``python -c`` does; then this process ends as any other does."""
    from symdnn.config import Config, config

    for number, path in enumerate((os.devnull, out, errors)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    config._global.clear()
    config._global.update(Config(os.environ)._global)
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(main))
