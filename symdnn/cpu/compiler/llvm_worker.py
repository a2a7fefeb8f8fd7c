"""Compile a module's text to object code by llvmlite; also the program of the worker process.

Nothing of symdnn is imported here, so that the worker starts in 0.05 s:

    python llvm_worker.py FOLDER_OF_LLVMLITE

The worker reads frames: four bytes of length, then a module's text. It answers each by a frame: a
byte 1 and the object code, or a byte 0 and LLVM's message. It ends at the end of its input.
"""

from __future__ import annotations

import platform
import signal
import struct
import sys
from typing import Any, BinaryIO

#: First line of a module that is written in vectors already and needs no optimisation passes: they
#: would take twice as long as the rest of compiling, and gain nothing.
SKIP_PASSES = "; as written\n"
#: First line of a module that reads constants by their addresses: see :func:`_near`.
FAR_CONSTANTS = "; far constants\n"
_LENGTH = struct.Struct("<I")
#: A longer frame is an error: a module's text has some ten thousand bytes.
_MAX_FRAME_BYTES = 1 << 28


class Compiler:
    """LLVM's target machine for this processor; importing llvmlite may raise any exception."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.processor = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        self.machine, self._far = self._machine(_near()), self._machine({})
        self.version = f"{llvmlite.__version__} {llvm.llvm_version_info}"
        self._engine: Any = None

    def _machine(self, model: dict[str, str]) -> Any:
        target = self.llvm.Target.from_default_triple()
        return target.create_target_machine(
            cpu=self.processor, features=self.features, opt=3, jit=True, **model
        )

    def compile(self, text: str) -> bytes:
        """The object code of a module; raises ``RuntimeError`` with LLVM's message."""
        # A context of its own: a module's constants and metadata are freed with the context only.
        module = self.llvm.parse_assembly(text, self.llvm.create_context())
        module.verify()
        machine = self._far if text.startswith(FAR_CONSTANTS) else self.machine
        if not text.startswith(SKIP_PASSES):
            self._optimise(module, machine)
        return bytes(machine.emit_object(module))

    def load(self, code: bytes, name: str) -> int:
        """Load object code by LLVM's loader; the address of a function, 0 if it has none."""
        if self._engine is None:
            self._engine = self.llvm.create_mcjit_compiler(
                self.llvm.parse_assembly(""),
                self.machine,
                use_lmm=True,  # all near each other
            )
        self._engine.add_object_file(self.llvm.object_file.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        return int(self._engine.get_function_address(name))

    def _optimise(self, module: Any, machine: Any) -> None:
        options = self.llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = True
        builder = self.llvm.create_pass_builder(machine, options)
        passes = builder.getModulePassManager()
        passes.run(module, builder)
        _dispose(passes)


def _near() -> dict[str, str]:
    """The model of code that reads constants by their distance, on x86-64.

    LLVM's own model of code that is made at run time has an instruction of ten bytes for the
    address of each constant, in the loop where there are more than registers. An exponential in a
    loop over rows took twice as many instructions. But it keeps apart the vectors of long
    polynomials that are unrolled, which LLVM's scheduler else does one after the other.
    """
    near = platform.machine() == "x86_64"
    return {"reloc": "pic", "codemodel": "small"} if near else {}


def _dispose(passes: Any) -> None:
    """Free a pass manager. llvmlite 0.44 to 0.48 leaks 70 KB for each module without it.

    There the empty ``_dispose`` of a base class hides that of pass managers.
    """
    from llvmlite.binding import newpassmanagers

    owner: Any = getattr(newpassmanagers, "NewPassManager", None)
    if hasattr(owner, "_dispose") and not passes.closed:
        owner._dispose(passes)
        passes.detach()


def read_frame(file: BinaryIO) -> bytes | None:
    """The next frame; None at the end of the file, or if it is none."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_FRAME_BYTES:
        return None  # something else wrote into the pipe
    body = file.read(length)
    return body if len(body) == length else None


def write_frame(file: BinaryIO, body: bytes) -> None:
    """Write one frame and flush."""
    file.write(_LENGTH.pack(len(body)) + body)
    file.flush()


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    compiler = Compiler()
    while (text := read_frame(requests)) is not None:
        try:
            answer = b"\1" + compiler.compile(text.decode())
        except RuntimeError as error:
            answer = b"\0" + str(error).encode()
        write_frame(answers, answer)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    sys.path.append(sys.argv[1])
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        sys.exit(1)  # the parent process has ended
