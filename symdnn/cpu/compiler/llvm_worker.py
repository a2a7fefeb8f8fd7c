"""LLVM by llvmlite: a module's text to object code. Also a program that does so for another.

Nothing of symdnn is imported here, so that a process that runs this file is there in 0.05 s:

    python llvm.py FOLDER_OF_LLVMLITE

It reads frames, four bytes of length and a module's text, and answers each by a frame: a byte, 1
for object code and 0 for LLVM's words, and that. It ends with its input.
"""

from __future__ import annotations

import signal
import struct
import sys
from typing import Any, BinaryIO

__all__ = ["AS_WRITTEN", "Compiler", "read_frame", "write_frame"]

#: How text begins that is in vectors already: LLVM's passes would take twice as long as the rest of
#: compiling, and gain nothing.
AS_WRITTEN = "; as written\n"
_LENGTH = struct.Struct("<I")
#: No frame is longer: a module's text has some ten thousand bytes.
_MOST_BYTES = 1 << 28


class Compiler:
    """The target machine of this processor; importing llvmlite may raise anything."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.processor = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        self.machine = target.create_target_machine(
            cpu=self.processor, features=self.features, opt=3, jit=True
        )
        self.version = f"{llvmlite.__version__} {llvm.llvm_version_info}"
        self._engine: Any = None

    def compile(self, text: str) -> bytes:
        """The object code of a module; raises ``RuntimeError`` with LLVM's words."""
        # What a module leaves in a context (constants, metadata) stays as long as that does.
        module = self.llvm.parse_assembly(text, self.llvm.create_context())
        module.verify()
        if not text.startswith(AS_WRITTEN):
            self._optimise(module)
        return bytes(self.machine.emit_object(module))

    def load(self, code: bytes, name: str) -> int:
        """Where a function of object code is, loaded by LLVM itself; 0 where there is none."""
        if self._engine is None:
            self._engine = self.llvm.create_mcjit_compiler(
                self.llvm.parse_assembly(""), self.machine
            )
        self._engine.add_object_file(self.llvm.object_file.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        return int(self._engine.get_function_address(name))

    def _optimise(self, module: Any) -> None:
        options = self.llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = True
        builder = self.llvm.create_pass_builder(self.machine, options)
        passes = builder.getModulePassManager()
        passes.run(module, builder)
        _dispose(passes)


def _dispose(passes: Any) -> None:
    """llvmlite (0.44 to 0.48): the empty ``_dispose`` of a base class hides that of pass managers,
    so that 70 KB of each module stay for ever."""
    from llvmlite.binding import newpassmanagers

    owner: Any = getattr(newpassmanagers, "NewPassManager", None)
    if hasattr(owner, "_dispose") and not passes.closed:
        owner._dispose(passes)
        passes.detach()


def read_frame(file: BinaryIO) -> bytes | None:
    """The next frame; None where the file has ended."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MOST_BYTES:
        return None  # no frame: something else wrote into the pipe
    body = file.read(length)
    return body if len(body) == length else None


def write_frame(file: BinaryIO, body: bytes) -> None:
    """Write a frame."""
    file.write(_LENGTH.pack(len(body)) + body)
    file.flush()


def _serve(asked: BinaryIO, answers: BinaryIO) -> None:
    compiler = Compiler()
    while (text := read_frame(asked)) is not None:
        try:
            answer = b"\1" + compiler.compile(text.decode())
        except RuntimeError as error:
            answer = b"\0" + str(error).encode()
        write_frame(answers, answer)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for who asked
    sys.path.append(sys.argv[1])
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        sys.exit(1)  # who asked has gone
