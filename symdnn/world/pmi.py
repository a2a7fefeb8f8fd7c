"""MPI among processes that another launcher started: a small process manager for MPICH.

Launchers such as torchrun start no MPI. MPICH finds its other processes through PMI-1, lines of
text on a socket: who there is, keys and values, barriers. A process beside rank 0 answers them (MPI
starts with Python's lock held, so no thread could). It ends with the last rank: MPICH takes its
leave as a process ends, and does not survive it if nobody answers. This file is a program, too,
which imports nothing of symdnn: ``python pmi.py SIZE HOST MAPPING``, with a key on its standard
input.
"""

from __future__ import annotations

import hmac
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

_VARIABLES = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
#: How long the manager stays for the other ranks once rank 0 has ended.
_LEAVING_S = 60.0


def mapping(hosts: Sequence[str]) -> str:
    """Which ranks are on which machine, in PMI's words, from the name of each rank's machine.

    >>> mapping(["a", "a", "b", "b", "a"])
    '(vector,(0,1,2),(1,1,2),(0,1,1))'
    """
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    runs: list[list[int]] = []
    for host in hosts:
        if runs and runs[-1][0] == numbers[host]:
            runs[-1][1] += 1
        else:
            runs.append([numbers[host], 1])
    return f"(vector,{','.join(f'({node},1,{count})' for node, count in runs)})"


# -- ranks ----------------------------------------------------------------------------------------


class Manager:
    """The process beside rank 0; ``port`` is where the ranks find it."""

    def __init__(self, size: int, host: str, placement: str, key: str) -> None:
        command = [sys.executable, "-I", "-S", __file__, str(size), host, placement]
        # It lives until its standard input is closed, which the end of this process does. A file
        # object would be closed at the end of Python, and MPI ends after that.
        reads, self.writes = os.pipe()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=reads, stdout=pipe, text=True)
        os.close(reads)
        os.write(self.writes, f"{key}\n".encode())
        assert self._process.stdout is not None, "it is a pipe"
        self.port = int(self._process.stdout.readline())


def join(rank: int, size: int, host: str, port: int, key: str) -> None:
    """Start MPI as this rank of a manager's processes, by the import of mpi4py."""
    line = socket.create_connection((host, port))
    line.sendall(f"{key}\n".encode())
    # The end of MPI, at the end of the process, writes there as well: it stays open.
    values = (str(line.detach()), str(rank), str(size))
    os.environ.update(zip(_VARIABLES, values, strict=True))
    try:
        from mpi4py import MPI

        assert MPI.Is_initialized()
    finally:
        for name in _VARIABLES:  # processes that this one starts are no ranks
            os.environ.pop(name, None)


# -- the manager ----------------------------------------------------------------------------------


class _Answers:
    """What the ranks of one run have told, and who waits in a barrier."""

    def __init__(self, size: int, placement: str) -> None:
        self._size = size
        # MPICH names memory that processes of a machine share after it, so it is no other run's.
        self._name = f"symdnn_{os.getpid()}_{os.urandom(8).hex()}"
        self._values = {"PMI_process_mapping": placement}
        self._changed = threading.Condition()
        self._waiting = self._barriers = 0

    def to(self, line: str) -> str | None:
        """The answer to a line; None to one that this manager does not know."""
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        fixed = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={self._name} rc=0",
            "get_universe_size": f"cmd=universe_size size={self._size} rc=0",
            "finalize": "cmd=finalize_ack rc=0",
        }
        if command == "put":
            with self._changed:
                self._values[words["key"]] = line.split("value=", 1)[1]
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            with self._changed:
                value = self._values.get(words["key"])
            if value is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={value}"
        if command == "barrier_in":
            self._wait()
            return "cmd=barrier_out rc=0"
        return fixed.get(command)

    def _wait(self) -> None:
        with self._changed:
            self._waiting += 1
            number = self._barriers
            if self._waiting == self._size:
                self._waiting, self._barriers = 0, number + 1
                self._changed.notify_all()
            while self._barriers == number:
                self._changed.wait()


def _serve(line: socket.socket, answers: _Answers, key: str) -> None:
    with line, line.makefile("r", encoding="utf-8") as lines:
        if not hmac.compare_digest(lines.readline().strip(), key):
            return
        for text in lines:
            answer = answers.to(text.rstrip("\n"))
            if answer is None:
                return
            line.sendall(f"{answer}\n".encode())


def _main(size: int, host: str, placement: str) -> None:
    """Print the port, and answer until the standard input and the lines of all ranks end."""
    key = sys.stdin.readline().strip()
    listener = socket.create_server((host, 0), backlog=size)
    print(listener.getsockname()[1], flush=True)
    answers, serving = _Answers(size, placement), list[threading.Thread]()

    def accept() -> None:
        while True:
            line, _ = listener.accept()
            serving.append(threading.Thread(target=_serve, args=(line, answers, key), daemon=True))
            serving[-1].start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()
    end = time.monotonic() + _LEAVING_S
    for thread in serving:
        thread.join(max(0.0, end - time.monotonic()))
    os._exit(0)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
