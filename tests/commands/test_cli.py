import json
import os
import pty
import subprocess
import sys

import pytest

import symdnn
from symdnn import cli, doctor
from symdnn.config import config
from symdnn.detect import ABSENT, FOUND, Candidate
from symdnn.errors import CudnnMixed, CudnnNotFound, GpuNotFound
from symdnn.flags import FLAGS
from tests.forked import forked

QUIET = {**os.environ, "SYMDNNRC": "", "SYMDNN_FLAGS": ""}


def command(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from symdnn.cli import main; sys.exit(main(sys.argv[1:]))"
    return forked(program, *args, env=QUIET | environment)


# --- config ---------------------------------------------------------------------------------------


def test_config_lists_every_flag_when_piped():
    done = command("config", SYMDNN_FLAGS="dnn.conv.algo_fwd=time_once")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines[0] == ["flag", "value", "default", "origin"]
    assert [line[0] for line in lines[1:]] == list(FLAGS)
    origin = "environment variable SYMDNN_FLAGS"
    assert ["dnn.conv.algo_fwd", "time_once", "small", origin] in lines
    assert done.returncode == 0


def test_config_prints_a_table_on_a_terminal(monkeypatch):
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "symdnn", "config", "dnn.conv"]
    process = subprocess.Popen(line, env=QUIET | {"COLUMNS": "120"}, stdout=theirs)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:  # how Linux says that the other side was closed
        pass
    os.close(ours)
    assert process.wait() == 0
    assert "│ dnn.conv.algo_fwd" in text.decode()


@pytest.mark.parametrize("flags", ["flotX=float64", "floatX=float65", "floatX"])
def test_a_wrong_flag_is_one_line_of_the_command(flags):
    """A program that imports the package sees where: its traceback."""
    for line, status in [(["-m", "symdnn", "config"], 2), (["-c", "import symdnn"], 1)]:
        environment = QUIET | {"SYMDNN_FLAGS": flags}
        done = subprocess.run([sys.executable, *line], env=environment, capture_output=True)
        assert done.returncode == status
        (text, *more) = done.stderr.decode().splitlines()
        assert ("environment variable SYMDNN_FLAGS" in text) == (not more) == (status == 2)


def test_config_of_one_flag(capsys):
    with config.change_flags(floatX="float64"):
        assert cli.main(["config", "floatX"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("floatX = float64\n")
    assert "allowed: float32, float64, float16" in text
    assert f"origin:  code at {__file__}" in text
    assert "compiled anew" in text


def test_config_of_a_group(capsys):
    assert cli.main(["config", "onednn"]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["flag", "onednn.library_path", "onednn.conv.algo"]


def test_config_of_a_name_without_meaning(capsys):
    assert cli.main(["config", "gcc.cxxflags"]) == 0
    assert "gcc.cxxflags has no meaning here" in capsys.readouterr().out


def test_config_of_an_unknown_name(capsys):
    assert cli.main(["config", "algo_fw"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "symdnn: there is no flag 'algo_fw'" in told.err
    assert "Did you mean 'dnn.conv.algo_fwd'?" in told.err


def test_a_closed_pipe_is_no_error():
    line = f"{sys.executable} -m symdnn config | head -n 1"
    done = subprocess.run(line, shell=True, env=QUIET, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"SYMDNN_FLAGS": "nonsense"}, "wanted flag=value"),
        ({"SYMDNN_FLAGS": "floatX=float17"}, "Did you mean 'float16'?"),
        ({"SYMDNNRC": "/nowhere"}, "file of flags /nowhere can't be read"),
    ],
)
def test_wrong_flags_are_one_line(variables, wanted):
    for module in ("symdnn", "symdnn.doctor"):
        line = [sys.executable, "-m", module, "doctor"]
        done = subprocess.run(line, env=QUIET | variables, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert wanted in done.stderr
    program = [sys.executable, "-c", "import symdnn"]  # a program shows where it imports symdnn
    done = subprocess.run(program, env=QUIET | variables, capture_output=True, text=True)
    assert done.stderr.startswith("Traceback")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("tune --import FILE", "symdnn: FILE: No such file or directory"),
        ("tune --export .", ": Is a directory"),
        ("tune FILE", "symdnn tune: there is no file FILE"),
        ("launch -n 2 FILE", "symdnn launch: there is no file FILE"),
        ("serve FILE", "symdnn: FILE: No such file or directory"),
        ("algos", "symdnn algos: wanted --input and --filter, --function"),
        ("demo --load FILE.npz", "symdnn: FILE.npz: No such file or directory"),
    ],
)
def test_what_a_command_refuses_is_one_line(line, wanted, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(line.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("symdnn")
    assert wanted in told
    assert told.count("\n") == 1


def test_an_error_of_a_script_shows_its_lines(capfd, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def step():\n    open('nowhere')\n\nstep()\n")
    assert cli.main(["tune", str(script)]) == 1
    told = capfd.readouterr().err
    assert "line 2, in step" in told
    assert "FileNotFoundError" in told


def test_ctrl_c_ends_a_command_quietly(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "doctor_report", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_user_without_a_home_has_flags_and_a_cache():
    program = (
        "import os, pwd, sys\n"
        "def unknown(user): raise KeyError(user)\n"
        "pwd.getpwuid = unknown\n"
        "for name in ('HOME', 'XDG_CACHE_HOME', 'SYMDNNRC'): os.environ.pop(name, None)\n"
        "from symdnn.cli import main\n"
        "sys.exit(main(['config', 'base_compiledir']))\n"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, env=QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"symdnn-{os.geteuid()}" in done.stdout


# --- kernels --------------------------------------------------------------------------------------


def test_where_an_op_is(capsys):
    import symdnn.compat.theano.names.class_names  # noqa: F401  (it has classes of these names)

    assert cli.main(["kernels", "softmax", "--where"]) == 0
    lines = capsys.readouterr().out.replace("kernel, ", "").replace("test record", "record")
    found = [line.split(None, 1) for line in lines.splitlines()]
    files = {(what, rest.partition(":")[0]) for what, rest in found}
    assert {
        ("op", "symdnn/ops/nn/softmax.py"),
        ("gradient", "symdnn/ops/nn/softmax.py"),
        ("cpu", "symdnn/cpu/reduce/softmax.py"),
        ("cuda", "symdnn/gpu/kernels/softmax.py"),
        ("rewrite", "symdnn/stable/softmax.py"),
        ("record", "tests/op_table/softmax.py"),
    } <= files
    assert any("log_of_softmax (stabilize)" in rest for _, rest in found)


@pytest.mark.parametrize(
    ("op", "own"), [("exp", ["Exp.slope"]), ("logaddexp", ["LogAddExp.scalar_vjp"])]
)
def test_where_the_gradient_of_an_elementwise_op_is(op, own, capsys):
    assert cli.main(["kernels", op, "--where"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("gradient")] == own


@pytest.mark.parametrize("name", ["LogAddExp", "ExpRel"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_an_op_has_the_kernels_of_its_bases(target, name, capsys):
    assert cli.main(["kernels", name.lower(), "--target", target]) == 0
    ((op, kernels),) = (line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert op == name
    assert "elementwise" in kernels


def test_where_the_builder_and_the_public_name_are(capsys):
    assert cli.main(["kernels", "LogAddExp", "--where"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (builder,) = (line for line in lines if line[0] == "builder")
    (public,) = (line for line in lines if line[0] == "public")
    assert builder[1].startswith("symdnn/ops/elementwise/math.py:")
    assert builder[2] == "logaddexp"
    assert public[2].startswith("symdnn/tensor/elementwise.py:")


def test_an_op_is_found_by_the_name_of_its_function(capsys):
    assert cli.main(["kernels", "linear_recurrence"]) == 0
    assert capsys.readouterr().out.split()[0] == "LinearRecurrence"
    assert cli.main(["kernels", "linear_recurrence", "--where"]) == 0


@pytest.mark.parametrize(
    ("function", "builder", "op"),
    [
        ("conv2d", "symdnn/ops/nn/conv_builders.py", "Conv"),
        ("pool_2d", "symdnn/ops/nn/pool.py", "Pool"),
        ("concatenate", "symdnn/ops/array/join.py", "Join"),
    ],
)
def test_where_the_op_of_a_function_is(function, builder, op, capsys):
    assert cli.main(["kernels", function, "--where"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][0] == "function"
    assert lines[0][1].startswith(f"{builder}:")
    assert [line[2] for line in lines if line[0] == "op"] == [op]


def test_where_says_which_op_of_a_library_a_neutral_one_becomes(capsys):
    assert cli.main(["kernels", "Conv", "--where"]) == 0
    assert "(lower), to GpuDnnConv\n" in capsys.readouterr().out


def test_where_of_an_unknown_op_names_similar_ones(capsys):
    assert cli.main(["kernels", "softm", "--where"]) == 2
    assert "LogSoftmax" in capsys.readouterr().err
    for arguments in (["sofmax"], ["sofmax", "--where"]):
        assert cli.main(["kernels", *arguments]) == 2
        assert "Did you mean 'Softmax'?" in capsys.readouterr().err


# --- doctor ---------------------------------------------------------------------------------------


def test_doctor_reports_and_succeeds_where_the_cpu_works():
    done = command("doctor")
    assert done.returncode == 0, done.stderr
    words = (
        "Python ",
        "BLAS ",
        "LLVM ",
        "oneDNN ",
        "NVRTC ",
        "cuDNN ",
        "libcuda.so.1",
        "CPU:  works",
    )
    for word in words:
        assert word in done.stdout


def test_doctor_says_where_functions_run(bare, monkeypatch, capsys):
    with config.change_flags(device="cpu"):
        assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("Functions run on the CPU (device=cpu)\n")

    def none():
        raise GpuNotFound("no GPU: the driver sleeps\nand more")

    monkeypatch.setattr(doctor, "resolve_target", none)
    with config.change_flags(device="cuda"):
        assert cli.main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert told.endswith("Functions run on nothing: no GPU: the driver sleeps (device=cuda)\n")


def test_doctor_says_why_nothing_is_compiled_for_the_cpu(bare, monkeypatch, capsys):
    monkeypatch.setattr(doctor.jit, "problem", lambda: "llvmlite is of another age")
    assert cli.main(["doctor"]) == 0
    assert "LLVM        off, elementwise work is NumPy's: llvmlite is of" in capsys.readouterr().out


def test_doctor_as_json():
    known = json.loads(command("doctor", "--json").stdout)
    assert known["cpu_works"] is True
    assert "numpy" in known["packages"]
    names = [library["name"] for library in known["cuda_libraries"]]
    assert names == ["CUDA driver", "NVRTC", "cuBLASLt", "cuDNN"]
    assert {"source", "path", "state"} == set(known["cuda_libraries"][3]["tried"][0])


@pytest.fixture
def bare(monkeypatch):
    """A machine without a GPU whose loader knows nothing."""
    monkeypatch.setattr(doctor.detect, "_loader_cache", dict)
    monkeypatch.setattr(doctor, "_kernel_driver", lambda: "")
    monkeypatch.setattr(doctor, "_version", lambda name: "")


def test_doctor_says_what_is_missing_for_what(bare, capsys, tmp_path):
    with config.change_flags({"dnn.library_path": str(tmp_path)}):
        assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert f"flag dnn.library_path: {tmp_path}/libcudnn.so.9: not there" in text
    assert "CUDA: can't be used" in text
    assert "missing: NVIDIA's kernel driver" in text
    assert "missing: the Python package cuda-bindings: pip install 'symdnn[cuda]'" in text
    assert "the Python package pycuda" not in text
    assert "Runtime     cuda-bindings missing (gpu.runtime=auto); without PyCUDA" in text


@pytest.mark.parametrize(
    ("flag", "there", "line"),
    [
        ("auto", ("pycuda", "cuda-bindings"), "Runtime     PyCUDA 1.0 (gpu.runtime=auto)\n"),
        ("auto", ("cuda-bindings",), "Runtime     cuda-bindings 1.0 (gpu.runtime=auto); without"),
        ("pycuda", ("cuda-bindings",), "      missing: the Python package pycuda: make cuda"),
        ("cuda-bindings", ("pycuda", "cuda-bindings"), "cuda-bindings 1.0 (gpu.runtime=cuda-bin"),
    ],
)
def test_doctor_says_what_would_drive_a_gpu(bare, monkeypatch, capsys, flag, there, line):
    monkeypatch.setattr(doctor, "_version", lambda name: "1.0" if name in there else "")
    with config.change_flags({"gpu.runtime": flag}):
        assert cli.main(["doctor"]) == 0
    assert line in capsys.readouterr().out


def test_doctor_names_what_is_wrong_with_cudnn(bare, monkeypatch, capsys):
    tried = [Candidate("CUDNN_PATH", "/c/libcudnn.so.9", "can't be loaded: libz.so.1")]

    def refuse():
        raise CudnnNotFound("cuDNN 9 was not found.", tried)

    monkeypatch.setattr(doctor.cudnn_library, "library", refuse)
    assert cli.main(["doctor"]) == 0  # the CPU works
    assert "CUDNN_PATH: /c/libcudnn.so.9: can't be loaded: libz.so.1" in capsys.readouterr().out
    with config.change_flags({"dnn.enabled": "True"}):
        assert cli.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "CUDNN_PATH: /c/libcudnn.so.9: can't be loaded: libz.so.1" in text
    assert "dnn.enabled=True insists on cuDNN" in text


def test_doctor_says_why_a_cudnn_that_is_there_can_t_be_used(bare, monkeypatch, capsys):
    there = [Candidate("CUDNN_PATH", "/c/libcudnn.so.9", FOUND)]

    def refuse():
        raise CudnnMixed("two sets: /a and /b")

    monkeypatch.setattr(doctor.cudnn_library, "search", lambda: there)
    monkeypatch.setattr(doctor.cudnn_library, "library", refuse)
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "can't be used: two sets: /a and /b" in text
    assert "missing: cuDNN, needed for convolution" in text


def test_doctor_on_a_machine_with_everything(bare, monkeypatch, capsys):
    there = [Candidate("loader", "/x/lib.so", FOUND)]
    libraries = [doctor.Library("cuDNN", "convolution", "get it", there)]
    monkeypatch.setattr(doctor, "_kernel_driver", lambda: "NVRM version: 580")
    monkeypatch.setattr(doctor, "_version", lambda name: "1.0")
    monkeypatch.setattr(doctor, "_cuda_libraries", lambda: libraries)
    assert cli.main(["doctor"]) == 0
    assert "CUDA: all files are there" in capsys.readouterr().out


def test_doctor_says_whether_the_graph_api_is_on(bare, monkeypatch, capsys):
    monkeypatch.setattr(
        doctor.frontend, "unavailable", lambda: "it is of another age. Tried in this order:"
    )
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "Graph API   off: it is of another age" in text
    assert "missing: the Python package nvidia-cudnn-frontend" not in text  # CUDA works without
    monkeypatch.setattr(doctor.frontend, "unavailable", lambda: "")
    monkeypatch.setattr(doctor, "_version", lambda name: "1.32")
    assert cli.main(["doctor"]) == 0
    assert "Graph API   on, nvidia-cudnn-frontend 1.32" in capsys.readouterr().out


def test_doctor_fails_where_the_cpu_does_not_work(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_REQUIRED_PACKAGES", ("numpy", "no_such_package"))
    assert cli.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "no_such_package can't be imported: ModuleNotFoundError" in text
    assert "CPU:  does not work" in text


def test_library_path_is_the_first_found():
    tried = [Candidate("a", "/a", ABSENT), Candidate("b", "/b", FOUND), Candidate("c", "/c", FOUND)]
    assert doctor.Library("x", "y", "z", tried).path == "/b"
    assert doctor.Library("x", "y", "z", tried[:1]).path == ""


def test_cache_folder_is_judged(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert doctor._folder_state(tmp_path) == "can be written"
    assert doctor._folder_state(tmp_path / "a/b") == "will be made when needed"
    assert doctor._folder_state(tmp_path / "file/b") == f"{tmp_path}/file is not a folder"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "may not be written" in doctor._folder_state(tmp_path)


# --- the command itself ---------------------------------------------------------------------------


def test_help_and_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    assert "doctor" in capsys.readouterr().out
    for wrong in ([], ["nonsense"], ["config", "floatX", "more"], ["doctor", "--jason"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(wrong)
        assert stop.value.code == 2


def test_demo_gets_all_its_arguments(monkeypatch):
    seen: list[list[str]] = []
    demo = type(sys)("symdnn.demo")
    demo.main = seen.append
    demo.__spec__ = type(sys.__spec__)("symdnn.demo", None)
    monkeypatch.setitem(sys.modules, "symdnn.demo", demo)
    assert cli.main(["demo", "--seeds", "5", "--help"]) == 0
    assert seen == [["--seeds", "5", "--help"]]


def test_doctor_is_a_module_too():
    done = subprocess.run([sys.executable, "-m", "symdnn.doctor"], env=QUIET, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CPU:  works" in done.stdout


def test_doctor_notices_flags_of_theano(bare, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("THEANO_FLAGS", raising=False)
    monkeypatch.setenv("THEANORC", str(tmp_path / "rc"))
    cli.main(["doctor"])
    assert "Theano " not in capsys.readouterr().out
    (tmp_path / "rc").write_text("[global]\nfloatX=float64\n")
    monkeypatch.setenv("THEANO_FLAGS", "floatX=float64")
    cli.main(["doctor"])
    assert f"Theano      THEANO_FLAGS, {tmp_path}/rc: not read" in capsys.readouterr().out


# --- version, cache -------------------------------------------------------------------------------


def test_version():
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"symdnn {symdnn.__version__}\n")


def test_cache_is_shown_checked_and_cleared(tmp_path):
    flags = f"base_compiledir={tmp_path},cpu.compile=always"
    program = (
        "import numpy as np, symdnn, symdnn.tensor as T\n"
        "from symdnn.tuning import store\n"
        "x = T.fvector()\n"
        "symdnn.function([x], T.exp(x) * 2, mode=symdnn.Mode(target='cpu'))(np.ones(9, 'f'))\n"
        "store.remember({'card': 'none'}, {'ms': 1.0})\n"
    )
    assert forked(program, env={**QUIET, "SYMDNN_FLAGS": flags}).returncode == 0

    def told(action):
        return command("cache", *action, SYMDNN_FLAGS=flags)

    shown = told([]).stdout
    assert f"folder  {tmp_path}\n" in shown
    counts = {line.split()[0]: int(line.split()[1]) for line in shown.splitlines()[1:5]}
    assert counts["object"] >= 2  # facts of LLVM, and code
    assert (counts["cubin"], counts["tuning"]) == (0, 1)
    assert "limit   2.0 GiB" in shown
    assert told(["check"]).returncode == 0
    (record,) = tmp_path.rglob("*.json")
    code = next(tmp_path.rglob("*.o"))
    record.write_text(record.read_text().replace("1.0", "2.0"))
    code.write_bytes(code.read_bytes()[:-1])
    (tmp_path / "object" / "notes.txt").write_text("the user's")
    checked = told(["check"])
    assert checked.returncode == 1
    assert f"removed {record}: is damaged" in checked.stdout
    assert f"removed {code}: is damaged" in checked.stdout
    assert told(["check"]).returncode == 0
    assert told(["clear"]).returncode == 0
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [".bounded", "notes.txt"]
    assert "all          0        0 B" in told([]).stdout


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users")
def test_cache_that_stands_in_is_the_one_that_is_used(tmp_path):
    """A folder into which others may write is not used: shown and cleared is what is."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "tmp").mkdir()
    flags = f"base_compiledir={tmp_path}/open/cache,cpu.compile=always"
    env = {"SYMDNN_FLAGS": flags, "TMPDIR": str(tmp_path / "tmp")}
    program = (
        "import numpy as np, symdnn, symdnn.tensor as T\n"
        "x = T.fvector()\n"
        "f = symdnn.function([x], T.exp(x) * 2, mode=symdnn.Mode(target='cpu'))\n"
        "try:\n    f(np.ones(9, 'f'))\n"
        "except RuntimeWarning as said:\n    print(said)\n"
        "f(np.ones(9, 'f'))\n"
        "from symdnn.cpu.compiler import jit; print('problem', repr(jit.problem()))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], env={**QUIET, **env},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert "can be written to by other users" in done.stdout  # once, as an error
    assert "problem ''" in done.stdout  # it says nothing of LLVM
    assert not done.stderr
    stands_in = tmp_path / "tmp" / f"symdnn-{os.geteuid()}"
    shown = command("cache", **env).stdout
    assert f"is not used; {stands_in} is" in shown
    assert int(shown.split("object", 1)[1].split()[0]) >= 2
    command("cache", "clear", **env)
    assert not [p for p in stands_in.rglob("*.o")]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users")
def test_cache_of_a_user_without_a_home(tmp_path, monkeypatch):
    """As in containers: the folder for temporary files has it, and kernels are compiled."""
    monkeypatch.setattr("symdnn.flags.tempfile.gettempdir", lambda: str(tmp_path))

    def homeless(*_, **__):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_cache_dir", homeless)
    assert FLAGS["base_compiledir"].default() == f"{tmp_path}/symdnn-{os.geteuid()}"
