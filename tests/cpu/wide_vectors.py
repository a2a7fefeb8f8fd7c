"""A plugin of pytest by which kernels are written for vectors of 16 float32 on any processor, ::

    python -m pytest -p tests.cpu.wide_vectors tests/cpu

LLVM divides the vectors into those that there are. So what a processor with AVX-512 computes is
tested where there is none: all but its one instruction for an approximate reciprocal.

Being imported changes nothing: pytest imports it as any module to look for doctests.
"""

import atexit
import os
import shutil
import tempfile

_FLOATS, _VECTOR = 16, "<16 x float>"


#: x 2^n of a whole n from -126 to 127.
_SCALED = f"""define private {_VECTOR} @symdnn_scale(
    {_VECTOR} %x, {_VECTOR} %n, {_VECTOR} %kept, i16 %mask, i32 %rounding) {{
%i = fptosi {_VECTOR} %n to <16 x i32>
%e = add <16 x i32> %i, <{", ".join(["i32 127"] * _FLOATS)}>
%b = shl <16 x i32> %e, <{", ".join(["i32 23"] * _FLOATS)}>
%p = bitcast <16 x i32> %b to {_VECTOR}
%q = fmul {_VECTOR} %x, %p
ret {_VECTOR} %q
}}"""


def pretend():
    """From now on; to be called before symdnn is imported."""
    folder = tempfile.mkdtemp(prefix="symdnn-wide-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["SYMDNN_FLAGS"] = f"{os.environ.get('SYMDNN_FLAGS', '')},base_compiledir={folder}"

    from symdnn.cpu.compiler import compile_queue, jit
    from symdnn.cpu.ir import vector_activations_ir as activations

    compile_queue._start_process = lambda: None  # another process would write narrow vectors
    jit.vector_width = lambda: _FLOATS
    name, reciprocal = activations._RECIPROCAL, "symdnn_reciprocal"
    scale, activations._SCALE = activations._SCALE, "symdnn_scale"
    activations._RECIPROCAL = reciprocal
    declared = activations.activation_declarations

    def declarations(width):
        found = [line for line in declared(width) if "symdnn_" not in line]
        one = f"<{', '.join(['float 1.0'] * _FLOATS)}>"
        body = f"%q = fdiv {_VECTOR} {one}, %x\nret {_VECTOR} %q"
        arguments = f"{_VECTOR} %x, {_VECTOR} %kept, i16 %mask"
        found.append(f"define private {_VECTOR} @{reciprocal}({arguments}) {{\n{body}\n}}")
        return [*found, _SCALED]

    for module in _users_of("activation_declarations"):
        module.activation_declarations = declarations
    assert all(n.startswith("llvm.x86") for n in (name, scale)), "what other processors lack"


def _users_of(name):
    """The modules of the CPU's kernels that have imported a function."""
    import importlib
    import pkgutil

    import symdnn.cpu

    found = pkgutil.walk_packages(symdnn.cpu.__path__, "symdnn.cpu.")
    modules = [importlib.import_module(m.name) for m in found]
    return [m for m in modules if hasattr(m, name)]


def pytest_load_initial_conftests(early_config):
    """Called of what ``-p`` names, before any test is looked for."""
    pretend()
