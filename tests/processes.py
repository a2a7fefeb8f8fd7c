"""Programs of several processes that must end in time, and say why where they do not."""

import os
import signal
import subprocess

import pytest

__all__ = ["ended"]

#: Seconds between the signals to a program that takes too long: it says where it is meanwhile.
_TO_SAY = 15


def ended(command, seconds, **options):
    """(exit status, output and errors together) of a program. One that takes longer fails the test,
    with all that its processes said: at SIGTERM a launcher ends its ranks, each with its stack."""
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, **options,
    ) as running:  # fmt: skip
        try:
            said, _ = running.communicate(timeout=seconds)
            return running.returncode, said
        except subprocess.TimeoutExpired:
            said = _stopped(running)
    pytest.fail(f"{command} took longer than {seconds} s. It said:\n{said}")


def _stopped(running):
    """All that was said until the end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(running.pid, number)
        try:
            said, _ = running.communicate(timeout=_TO_SAY)
            return said
        except subprocess.TimeoutExpired as late:
            said = late.stdout or b""
    return said if isinstance(said, str) else said.decode(errors="replace")
