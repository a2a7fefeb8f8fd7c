"""A plugin of pytest by which LLVM sees a processor without AVX-512, as oneDNN does when
``ONEDNN_MAX_CPU_ISA=AVX2`` says so: all of the CPU's tests run as there, ::

    python -m pytest -p tests.cpu.older_processor tests/cpu

Being imported changes nothing: pytest imports it as any module to look for doctests.
"""

import atexit
import os
import shutil
import tempfile

#: What a Haswell of 2013 has.
FEATURES = frozenset(
    {"64bit", "avx", "avx2", "bmi", "bmi2", "cmov", "cx16", "cx8", "f16c", "fma", "fxsr", "lzcnt"}
    | {"mmx", "movbe", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3"}
    | {"xsave"}
)


class Features(dict):
    """Whether the processor has a feature, by its name."""

    def flatten(self, sort=True):
        """As LLVM's target machine takes them."""
        return ",".join(("+" if has else "-") + name for name, has in sorted(self.items()))


def _folder():
    """Where code for that processor is kept: beside what other tests keep, else for this run."""
    if kept := os.environ.get("SYMDNN_TESTS_CACHE"):
        return os.path.join(os.path.expanduser(kept), "older")
    folder = tempfile.mkdtemp(prefix="symdnn-older-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def pretend():
    """From now on; to be called before symdnn is imported."""
    import llvmlite.binding as llvm

    os.environ["SYMDNN_FLAGS"] = f"{os.environ.get('SYMDNN_FLAGS', '')},base_compiledir={_folder()}"
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
    here = llvm.get_host_cpu_features()
    there = Features({name: has and name in FEATURES for name, has in here.items()})
    llvm.get_host_cpu_name = lambda: "haswell"
    llvm.get_host_cpu_features = lambda: there

    from symdnn.cpu.compiler import compile_queue

    compile_queue._start_process = lambda: None  # another process would see this processor


def pytest_load_initial_conftests(early_config):
    """Called of what ``-p`` names, before any test is looked for."""
    pretend()
