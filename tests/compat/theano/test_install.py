"""``install()`` and ``python -m symdnn.compat.theano``, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from symdnn.compat.theano.__main__ import main
from tests.compat.theano.in_process import run


def test_defaults_are_theanos_and_a_second_call_does_nothing():
    out = run("""
        c.install()
        x = T.matrix("x")
        print(theano.config.floatX, theano.config.device, x.dtype, T.constant(3).dtype)
        print(theano.__version__.startswith("1.0"), theano.config.cast_policy)
    """)
    assert out.split() == ["float64", "cpu", "float64", "int8", "True", "custom"]


def test_the_package_is_theano_where_it_is_imported_as_theano():
    head = """
import symdnn.compat.theano as theano
assert not hasattr(theano, "pytest_plugins") and theano.__version__.startswith("1.0")
import sys
assert "theano" not in sys.modules  # nothing of Theano was read yet
import symdnn.compat.theano.tensor as T
from symdnn.compat.theano.tensor.signal.pool import pool_2d
from symdnn.compat.theano import config
"""
    out = run(
        """
        x = T.matrix("x")
        assert theano.function([x], T.nnet.sigmoid(x).sum())([[0.0]]) == 0.5
        import theano as installed
        assert installed.tensor is T and T.__spec__.name == "theano.tensor"
        assert installed.tensor.signal.pool.pool_2d is pool_2d
        assert (config.floatX, theano.install.__name__) == ("float64", "install")
        theano.breakpoints
        """,
        head=head,
        fails=True,
    )
    assert "module 'symdnn.compat.theano' has no 'breakpoints'" in out
    assert "the nearest module is theano.breakpoint" in out


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
    assert "no flag 'no.such'" in first
    assert first.count("flag") == 1
    assert rest == ["float16 gpu0 fft", "True -O3 -ffast-math", "cuda0"]


def test_symdnn_does_not_warn_of_theanos_flags_where_they_are_read():
    environment = {**os.environ, "THEANO_FLAGS": "floatX=float32"}
    environment.pop("SYMDNN_FLAGS", None)
    code = "import symdnn.compat.theano"
    command = [sys.executable, "-W", "error", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr


def test_another_theano_is_refused(tmp_path):
    (tmp_path / "theano.py").write_text("")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    head = "import theano\nimport symdnn.compat.theano as c\nc.install()\n"
    said = run("", head=head, fails=True, environment={"PYTHONPATH": path})
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


@pytest.mark.parametrize(("args", "code"), [([], 2), (["--help"], 0), (["-m"], 2), (["no.py"], 2)])
def test_how_it_is_called(monkeypatch, capsys, args, code):
    monkeypatch.setattr(sys, "argv", ["compat", *args])
    monkeypatch.setattr("symdnn.compat.theano.__main__.install", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    said = capsys.readouterr()
    assert ("no file" in said.err) == (args == ["no.py"])
