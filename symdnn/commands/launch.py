"""``symdnn launch``: a program in several processes of one machine.

symdnn launch -n 4 train.py --epochs 10

Without GPUs the processes are started by the MPI of this environment (``pip install
'symdnn[mpi]'``). With GPUs, or ``--engine nccl``, symdnn starts them itself, one for each GPU, and
ends all when one fails. The program calls ``symdnn.distributed.init()``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from symdnn.commands.shared_memory import SharedMemory
from symdnn.config import config
from symdnn.errors import DistributedError
from symdnn.world import launcher

#: Seconds between looks at the processes, and those that they get to end by themselves, and
#: to say where they are.
_LOOK, _TO_END, _TO_SAY = 0.05, 5.0, 1.0
#: The status after Ctrl-C, after which nothing starts again.
_INTERRUPTED = 130
#: MPICH's launcher would start processes on the machines of a batch job.
_ONE_MACHINE = {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "launch", help="run a program in several processes of this machine", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("-n", type=int, required=True, help="how many processes")
    words = ["auto", "mpi", "nccl"]
    parser.add_argument("--engine", choices=words, default="auto", help="what connects them")
    parser.add_argument(
        "--restarts", type=int, default=0, help="how often to start all again after a failure (0)"
    )
    parser.add_argument("script", help="a Python script, followed by its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the script and return its exit status."""
    if args.n < 1:
        raise DistributedError(f"symdnn launch: -n {args.n}; wanted 1 or more")
    if args.restarts < 0:
        raise DistributedError(f"symdnn launch: --restarts {args.restarts}; wanted 0 or more")
    if not os.path.exists(args.script):
        raise DistributedError(f"symdnn launch: there is no file {args.script}")
    for number in range(args.restarts + 1):
        status = _once(args, number)
        if status in (0, _INTERRUPTED) or number == args.restarts:
            break
        print(f"symdnn launch: restart {number + 1} of {args.restarts}", file=sys.stderr)
    return status


def _once(args: argparse.Namespace, number: int) -> int:
    """Run all processes once; ``number`` runs have failed before."""
    command = [sys.executable, args.script, *args.arguments]
    environment = {k: v for k, v in os.environ.items() if k not in launcher.variables()}
    environment["SYMDNN_RESTARTS"] = str(number)
    for name, word in _ONE_MACHINE.items():
        environment.setdefault(name, word)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, _processors() // args.n)))
    if args.engine == "mpi" or (args.engine == "auto" and not _gpus()):
        mpiexec = _mpiexec()
        status = _by_mpi([mpiexec, "-n", str(args.n), *command], environment)
        if status not in (0, _INTERRUPTED):
            _say(f"mpiexec {_in_words(status)}")
        return status
    return _Processes(command, args.n, environment).wait()


def _by_mpi(command: Sequence[str], environment: dict[str, str]) -> int:
    """The status of ``mpiexec``, which ends all ranks at a signal; signals are passed on to it.

    It has a process group of its own, and no terminal to read from: a terminal would send it the
    same Ctrl-C, and a second one ends the ranks at once.
    """
    terminal = subprocess.DEVNULL if os.isatty(0) else None
    found = subprocess.Popen(command, env=environment, stdin=terminal, process_group=0)
    _at_the_end(lambda number, _: sys.exit(128 + number))
    memory = SharedMemory()
    try:
        while found.poll() is None:
            memory.look(found.pid)
            time.sleep(_LOOK)
        return found.returncode
    except (KeyboardInterrupt, SystemExit) as error:
        first = signal.SIGTERM if isinstance(error, SystemExit) else signal.SIGINT
        with contextlib.suppress(KeyboardInterrupt):  # once more: at once
            for number in (first, signal.SIGTERM):
                found.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    found.wait(_TO_END)
        found.kill()
        found.wait()
        if isinstance(error, SystemExit):
            raise
        return _INTERRUPTED
    finally:
        memory.remove()


def _at_the_end(handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle SIGTERM, and SIGHUP of a terminal that is closed: processes in groups of their own
    get none. ``nohup`` ignores it."""
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _gpus() -> int:
    if str(config.device) == "cpu":
        return 0
    from symdnn.gpu.binding import libcuda

    return len(libcuda.driver().devices)


def _mpiexec() -> str:
    """The launcher of the MPI of this environment, or of the machine's."""
    own = Path(sys.executable).parent / "mpiexec"
    found = str(own) if own.exists() else shutil.which("mpiexec")
    if found is None:
        raise DistributedError(
            "symdnn launch: there is no mpiexec. pip install 'symdnn[mpi]' brings MPI"
        )
    return found


class _Processes:
    """Processes that this one starts, and ends when one of them fails.

    Each has a process group of its own, so that what it has started ends with it.
    """

    def __init__(self, command: Sequence[str], count: int, environment: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {
            **environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "SYMDNN_STORE_KEY": secrets.token_hex(16), "SYMDNN_SIZE": str(count),
            "SYMDNN_LOCAL_SIZE": str(count),
        }  # fmt: skip
        self._running = [
            subprocess.Popen(
                command,
                env={**common, "SYMDNN_RANK": str(r), "SYMDNN_LOCAL_RANK": str(r)},
                process_group=0,
            )
            for r in range(count)
        ]
        self._memory = SharedMemory()
        _at_the_end(self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._end(number)
        sys.exit(128 + number)

    def wait(self) -> int:
        """The first status that is not 0, or 0 once all have ended."""
        try:
            while True:
                states = [p.poll() for p in self._running]
                failed = [(r, s) for r, s in enumerate(states) if s]
                if failed:
                    _say("; ".join(f"rank {r} {_in_words(s)}" for r, s in failed))
                    self._end()
                    _, status = failed[0]
                    return status if status > 0 else 128 - status
                if all(s == 0 for s in states):
                    return 0
                self._memory.look(*(p.pid for p in self._running))
                time.sleep(_LOOK)
        except KeyboardInterrupt:
            self._end(signal.SIGINT)
            return _INTERRUPTED

    def _end(self, first: int | None = None) -> None:
        """Send a signal to all, if any; let them end by themselves; then end them, by SIGTERM, at
        which they say where they are, and by SIGKILL."""
        if first is not None:
            self._send(first)
        with contextlib.suppress(KeyboardInterrupt):  # once more: at once
            for number, seconds in ((signal.SIGTERM, _TO_END), (signal.SIGKILL, _TO_SAY)):
                self._wait(seconds)
                if left := self._left():
                    _say(f"{left} did not end within {seconds:g} s: {number.name}")
                self._send(number)
        self._send(signal.SIGKILL)
        self._wait(_TO_END)
        if left := self._left():  # the kernel waits for a driver
            _say(f"{left} can't be ended")
        self._memory.remove()

    def _left(self) -> str:
        """The ranks that have not ended, in words."""
        left = [f"{r} (process {p.pid})" for r, p in enumerate(self._running) if p.poll() is None]
        return f"rank {', '.join(left)}" if left else ""

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._left():
            time.sleep(_LOOK)

    def _send(self, number: int) -> None:
        """A signal to all processes of all ranks that are there."""
        for p in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(p.pid, number)


def _say(text: str) -> None:
    print(f"symdnn launch: {text}", file=sys.stderr, flush=True)


def _in_words(status: int) -> str:
    """How a process ended.

    >>> _in_words(9), _in_words(-9)
    ('exited with 9', 'was ended by SIGKILL')
    """
    return f"exited with {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"
