"""cuDNNs that can be loaded and know their versions, and nothing else. They need a C compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

PARTS = ("graph", "ops", "cnn", "adv", "heuristic")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Makes cuDNNs that can be loaded and know their version, and nothing else."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("objects")

    def shared(text, name):
        source = folder / f"{name}.c"
        source.write_text(text, encoding="utf-8")
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", str(source), "-o"]
        subprocess.run([*command, str(folder / name)], check=True)

    for part in PARTS:
        shared(f"int {part}_of_this = 1;", f"libcudnn_{part}.so.9")

    def put(into: Path, version=92800, check=0, parts=PARTS, cuda=13050):
        into.mkdir(parents=True, exist_ok=True)
        checks = "".join(
            f"int cudnn{p.capitalize()}VersionCheck(void) {{ return {check}; }}\n" for p in PARTS
        )
        numbers = {"cudnnGetVersion": version, "cudnnGetCudartVersion": cuda}
        says = "".join(f"unsigned long {f}(void) {{ return {n}; }}\n" for f, n in numbers.items())
        shared(says + checks, "main")
        shutil.copy(folder / "main", into / "libcudnn.so.9")
        for part in parts:
            shutil.copy(folder / f"libcudnn_{part}.so.9", into)
        return into

    return put
