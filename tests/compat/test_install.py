"""``install()`` and ``python -m symdnn.compat.theano``, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.compat.in_process import run


def test_defaults_are_theanos_and_a_second_call_does_nothing():
    out = run("""
        c.install()
        x = T.matrix("x")
        print(theano.config.floatX, theano.config.device, x.dtype, T.constant(3).dtype)
        print(theano.__version__.startswith("1.0"), theano.config.cast_policy)
    """)
    assert out.split() == ["float64", "cpu", "float64", "int8", "True", "custom"]


def test_flags_of_files_and_of_the_environment(tmp_path):
    rc = tmp_path / "rc"
    rc.write_text("[global]\nfloatX = float32\nopenmp = True\n[dnn.conv]\nalgo_fwd = fft\n")
    environment = {
        "THEANORC": str(rc),
        "THEANO_FLAGS": "device=gpu0,floatX=float16,gcc.cxxflags='-O3 -ffast-math',no.such=1",
    }
    out = run(
        """
        print(theano.config.floatX, theano.config.device, theano.config.dnn.conv.algo_fwd)
        print(theano.config.openmp, theano.config.gcc.cxxflags)
        import symdnn
        print(symdnn.config.device)
        """,
        head="import warnings\nimport symdnn.compat.theano as c\nwith warnings.catch_warnings("
        "record=True) as w:\n    warnings.simplefilter('always')\n    c.install()\n"
        "print([str(x.message) for x in w])\nimport theano\n",
        environment=environment,
    )
    first, *rest = out.splitlines()
    assert "no flag 'no.such'" in first and first.count("flag") == 1
    assert rest == ["float16 gpu0 fft", "True -O3 -ffast-math", "cuda0"]


def test_theanos_flags_are_noticed_by_symdnn_alone():
    code = "import symdnn"
    environment = {**os.environ, "THEANO_FLAGS": "floatX=float32"}
    environment.pop("SYMDNN_FLAGS", None)
    for text, said in ((code, True), (code + ".compat.theano", False)):
        found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True,
                               env=environment)  # fmt: skip
        assert ("THEANO_FLAGS is set" in found.stderr) == said, found.stderr


def test_another_theano_is_refused(tmp_path):
    (tmp_path / "theano.py").write_text("")
    said = run("", head="import theano\nimport symdnn.compat.theano as c\nc.install()\n", fails=True,
               environment={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})  # fmt: skip
    assert "theano is imported already" in said
    assert str(tmp_path / "theano.py") in said
    assert "-m symdnn.compat.theano" in said


def test_a_script_with_arguments(tmp_path):
    script = tmp_path / "program.py"
    (tmp_path / "beside.py").write_text("import theano.tensor as T\nx = T.vector('x')\n")
    script.write_text(
        "import sys, theano\nfrom beside import x\n"
        "print(__name__, sys.argv[1:], theano.function([x], x * 2)([1.0, 2.0]))\n"
    )
    command = [sys.executable, "-m", "symdnn.compat.theano", str(script), "a", "-b"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout.strip() == "__main__ ['a', '-b'] [2. 4.]", found.stderr
    for args, code in (([], 2), (["--help"], 0), (["no_such.py"], 2)):
        found = subprocess.run([*command[:3], *args], capture_output=True, text=True)
        assert found.returncode == code
