import copy
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from symdnn import flags, nn
from symdnn.config import Config, config
from symdnn.errors import ConfigError, SymdnnError, UnknownFlagError

NO_FILE = {"SYMDNNRC": ""}
SEARCHES = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")


@pytest.fixture
def fresh() -> Config:
    """Flags that no file, environment or other test has touched."""
    return Config(NO_FILE)


def from_env(text: str) -> Config:
    return Config({**NO_FILE, "SYMDNN_FLAGS": text})


def from_file(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "rc"
    path.write_text(text)
    return Config({"SYMDNNRC": str(path), **environment})


def in_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **NO_FILE, "PYTHONWARNINGS": "default", **environment}
    if "SYMDNN_FLAGS" not in environment:
        env.pop("SYMDNN_FLAGS", None)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", flags.FLAGS.values(), ids=lambda f: f.name)
def test_each_default_is_valid_and_described(flag):
    if not flag.sets:
        assert flag.parse(flag.first_value()) == flag.first_value()
    assert flag.help.endswith(".")
    assert flag.affects in ("", "code")


def test_documented_defaults(fresh):
    assert fresh.floatX == "float32"
    assert fresh.device == "auto"
    assert fresh.dnn.conv.algo_fwd == "small"
    assert fresh.dnn.conv.algo_bwd_data == "none"
    assert fresh.dnn.conv.algo_bwd_filter == "none"
    assert fresh.dnn.conv.precision == "as_input_f32"
    assert fresh.dnn.conv.allow_tf32 is False
    assert fresh.on_unused_input == "raise"
    assert fresh.traceback.limit == 8
    assert fresh.base_compiledir.endswith("symdnn")


def test_no_name_is_both_a_flag_and_without_meaning():
    assert not set(flags.FLAGS) & set(flags.WITHOUT_MEANING)


def test_no_flag_is_also_a_group():
    groups = {n.rpartition(".")[0] for n in flags.FLAGS}
    assert not groups & set(flags.FLAGS)


def test_the_origin_of_a_value_that_symdnn_passes_on_is_the_users_line():
    net, data = nn.Linear(2, 1), [(np.ones((3, 2), "float32"), np.ones((3, 1), "float32"))]
    with pytest.raises(ConfigError, match=rf"flag amp = 'fp15' \(from code at {__file__}:"):
        nn.fit(net, nn.MSELoss(), "sgd", data, epochs=1, lr=0.1, amp="fp15")


def test_table_shows_value_default_and_origin(fresh):
    fresh.dnn.conv.algo_fwd = "time_once"
    rows = {row.name: row for row in fresh.table()}
    row = rows["dnn.conv.algo_fwd"]
    assert (row.value, row.default, row.affects) == ("time_once", "small", "code")
    assert row.origin.startswith(f"code at {__file__}:")
    assert rows["floatX"].origin == "default"
    assert list(rows) == list(flags.FLAGS)


def test_repr_of_a_group_lists_its_flags(fresh):
    assert "dnn.conv.algo_fwd = 'small'  (default)" in repr(fresh.dnn.conv)
    assert "floatX" not in repr(fresh.dnn)
    assert "floatX = 'float32'" in repr(fresh)


def test_names_can_be_completed(fresh):
    assert {"floatX", "dnn", "change_flags"} <= set(dir(fresh))
    assert {"algo_fwd", "precision"} <= set(dir(fresh.dnn.conv))


# --- sources --------------------------------------------------------------------------------------


def test_environment_later_value_wins():
    c = from_env(" floatX=float64, dnn.conv.algo_fwd=none,,dnn.conv.algo_fwd = fft")
    assert (c.floatX, c.dnn.conv.algo_fwd) == ("float64", "fft")
    assert c.origin("floatX") == "environment variable SYMDNN_FLAGS"


def test_environment_values_may_hold_colons_and_equal_signs():
    c = from_env("optimizer_including=cudnn:fusion,dnn.base_path=/a=b")
    assert c.optimizer_including == "cudnn:fusion"
    assert c.dnn.base_path == "/a=b"


def test_file_sections_and_line_numbers(tmp_path):
    text = "# mine\n[global]\ndevice = cuda\n\n[dnn.conv]\nalgo_fwd = time_once  # fast\n"
    c = from_file(tmp_path, text)
    assert (c.device, c.dnn.conv.algo_fwd) == ("cuda", "time_once")
    assert c.origin("dnn.conv.algo_fwd") == f"{tmp_path}/rc:6"


def test_file_same_key_in_two_sections(tmp_path):
    text = "[one]\nalgo_fwd = small\n[dnn.conv]\nalgo_fwd = fft\n"
    with pytest.raises(ConfigError, match="rc:2"):
        from_file(tmp_path, text)
    c = from_file(tmp_path, text.replace("[one]\nalgo_fwd = small\n", "[global]\nprofile = 1\n"))
    assert c.dnn.conv.algo_fwd == "fft"
    assert c.origin("dnn.conv.algo_fwd").endswith(":4")
    assert c.origin("profile").endswith(":2")


def test_later_file_wins(tmp_path):
    (tmp_path / "a").write_text("[global]\nfloatX = float64\ndevice = cpu\n")
    (tmp_path / "b").write_text("[global]\nfloatX = float16\n")
    c = Config({"SYMDNNRC": f"{tmp_path}/a{os.pathsep}{tmp_path}/b"})
    assert (c.floatX, c.device) == ("float16", "cpu")


def test_usual_file_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config({}).floatX == "float32"
    (tmp_path / ".symdnnrc").write_text("[global]\nfloatX = float64\n")
    assert Config({}).floatX == "float64"
    assert Config(NO_FILE).floatX == "float32"


def test_priority_of_sources(tmp_path):
    c = from_file(tmp_path, "[global]\nfloatX=float64\n", SYMDNN_FLAGS="floatX=float16")
    assert c.floatX == "float16"
    c.floatX = "float32"
    assert c.floatX == "float32"


def test_sources_are_read_at_import():
    code = "from symdnn.config import config; print(config.floatX)"
    assert in_new_process(code, SYMDNN_FLAGS="floatX=float64").stdout == "float64\n"


def test_base_compiledir_is_fixed_after_import(fresh, tmp_path):
    assert from_env(f"base_compiledir={tmp_path}").base_compiledir == str(tmp_path)
    with pytest.raises(ConfigError, match="can't be changed after import.*SYMDNN_FLAGS"):
        fresh.base_compiledir = str(tmp_path)
    with pytest.raises(ConfigError, match="can't be changed after import"):
        fresh.change_flags(base_compiledir=str(tmp_path))


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("profile", "0", False),
        ("profile", "true", True),
        ("profile", False, False),
        ("profile", 1, True),
        ("dnn.enabled", True, "True"),
        ("optimizer", None, "None"),
        ("traceback.limit", "0", 0),
        ("gpu.memory_limit", "2GiB", 2 * 2**30),
        ("gpu.memory_limit", "1.5 kB", 1500),
        ("dnn.conv.workspace_limit", 12345, 12345),
        ("device", "cuda3", "cuda3"),
        ("cast_policy", "numpy+floatX", "numpy+floatX"),
    ],
)
def test_values_are_converted(fresh, name, raw, value):
    fresh.set(name, raw)
    assert fresh.get(name) == value
    assert type(fresh.get(name)) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "allowed"),
    [
        ("floatX", "float", "float32, float64, float16"),
        ("profile", "maybe", "True or False"),
        ("traceback.limit", -1, "an integer, at least 0"),
        ("traceback.limit", 1.5, "an integer"),
        ("traceback.limit", True, "an integer"),
        ("traceback.limit", "x", "an integer"),
        ("gpu.memory_limit", "2 parsec", "a number of bytes, also as 512MB or 2GiB"),
        ("gpu.memory_limit", -1, "a number of bytes"),
        ("device", "opencl0:0", "auto, cpu, cuda, or cuda0, cuda1"),
        ("device", 0, "auto, cpu, cuda"),
        ("optimizer_including", ["cudnn"], "a string"),
        ("dnn.conv.algo_bwd_filter", "winograd", "none, deterministic, fft, small"),
    ],
)
def test_wrong_value_names_flag_origin_and_allowed(fresh, name, raw, allowed):
    with pytest.raises(ConfigError) as caught:
        fresh.set(name, raw)
    text = str(caught.value)
    assert text.startswith(f"flag {name} = {raw!r} (from code at {__file__}:")
    assert f"Allowed: {allowed}" in text
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, SymdnnError)
    assert fresh.origin(name) == "default"


def test_wrong_value_suggests_the_nearest(fresh):
    with pytest.raises(ConfigError, match="Did you mean 'time_once'"):
        fresh.dnn.conv.algo_fwd = "tme_once"
    with pytest.raises(ConfigError, match="Did you mean 'True'"):
        fresh.dnn.enabled = "true"
    with pytest.raises(ConfigError) as caught:
        fresh.dnn.conv.algo_fwd = "zzzzzz"
    assert "Did you mean" not in str(caught.value)


def test_wrong_value_in_the_environment():
    with pytest.raises(ConfigError, match=r"floatX = 'f32' \(from environment variable SYMDNN_"):
        from_env("floatX=f32")


def test_wrong_value_in_a_file(tmp_path):
    with pytest.raises(ConfigError, match=r"algo_fwd = 'quick' \(from .*/rc:3\)"):
        from_file(tmp_path, "[dnn.conv]\n\nalgo_fwd = quick\n")


def test_wrong_value_stops_the_import():
    run = in_new_process("import symdnn.config", SYMDNN_FLAGS="floatX=float31")
    assert run.returncode == 1
    assert "ConfigError: flag floatX = 'float31'" in run.stderr.splitlines()[-1]
    assert "Did you mean 'float32'?" in run.stderr


# --- names ----------------------------------------------------------------------------------------


def test_unknown_name_suggests_the_nearest(fresh):
    with pytest.raises(UnknownFlagError, match="no flag 'florX'.*Did you mean 'floatX'"):
        fresh.florX = "float32"
    with pytest.raises(UnknownFlagError, match="Did you mean 'dnn.conv.algo_fwd'"):
        _ = fresh.dnn.conv.algo_fw
    with pytest.raises(UnknownFlagError, match="Did you mean 'dnn.conv.algo_fwd'"):
        from_env("algo_fwd=none")
    with pytest.raises(UnknownFlagError, match="`symdnn config` prints all"):
        fresh.set("qqqqqqqq", 1)


def test_former_names_are_not_suggested(fresh):
    for name in (name for name, flag in flags.FLAGS.items() if flag.old):
        with pytest.raises(UnknownFlagError) as raised:
            fresh.set(f"{name}_", 1)
        assert f"'{name}'" not in str(raised.value)
    with pytest.raises(ConfigError) as group:
        fresh.set("dnn.conv", 1)
    assert "dnn.conv.objective" in str(group.value)
    assert "choose_by" not in str(group.value)


def test_unknown_name_is_an_attribute_error(fresh):
    assert not hasattr(fresh, "florX")
    assert not hasattr(fresh.dnn, "nothing")
    assert getattr(fresh, "florX", 3) == 3


def test_unknown_name_in_the_environment_and_a_file(tmp_path):
    with pytest.raises(UnknownFlagError, match="from environment variable SYMDNN_FLAGS"):
        from_env("flotX=float32")
    with pytest.raises(UnknownFlagError, match=r"'dnn.cnv.algo_fwd' \(from .*rc:2\)"):
        from_file(tmp_path, "[dnn.cnv]\nalgo_fwd=none\n")


def test_a_group_is_no_flag(fresh):
    with pytest.raises(UnknownFlagError, match=r"group of flags.*dnn\.conv\.algo_bwd, "):
        fresh.dnn.conv = "none"


def test_item_without_a_value():
    with pytest.raises(ConfigError, match=r"'profile' .*wanted flag=value"):
        from_env("floatX=float32,profile")


def test_broken_or_missing_files(tmp_path):
    with pytest.raises(ConfigError, match="can't be read.*no section"):
        from_file(tmp_path, "floatX = float32\n")
    with pytest.raises(ConfigError, match="can't be read.*line  3"):
        from_file(tmp_path, "[global]\nfloatX=float32\nfloatX=float64\n")
    with pytest.raises(ConfigError, match=r"gone can't be read"):
        Config({"SYMDNNRC": str(tmp_path / "gone")})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00[")
    with pytest.raises(ConfigError, match=r"binary can't be read"):
        Config({"SYMDNNRC": str(tmp_path / "binary")})


def test_inspection_does_not_meet_flags(fresh):
    assert not hasattr(fresh.dnn, "__array__")
    with pytest.raises(AttributeError):
        _ = fresh._private
    assert copy.copy(fresh.dnn) is not None


# --- names of old ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cxx", "no C\\+\\+ compiler"),
        ("gcc.cxxflags", "no C\\+\\+ compiler"),
        ("gpuarray.preallocate", "Use gpu.memory_limit"),
        ("openmp", "Use openmp.threads"),
        ("dnn.conv.workmem", "Use dnn.conv.algo_fwd"),
        ("vm.lazy", "no meaning in symdnn.$"),
    ],
)
def test_names_without_meaning_warn(fresh, name, advice):
    with pytest.warns(UserWarning, match=f"flag {name} .*{advice}"):
        fresh.set(name, "1")


def test_warning_points_at_the_line_that_set_it(fresh):
    with pytest.warns(UserWarning, match="gcc.cxxflags") as caught:
        fresh.gcc.cxxflags = "-O3"
    assert caught[0].filename == __file__
    assert fresh.gcc.cxxflags == "-O3"


def test_names_without_meaning_can_be_read(fresh):
    assert fresh.cxx == ""
    assert fresh.blas.ldflags == ""
    assert not fresh.openmp
    assert fresh.dnn
    assert fresh.openmp.threads == 0


def test_names_without_meaning_in_the_environment():
    with pytest.warns(UserWarning, match=r"cxx \(from environment variable SYMDNN_FLAGS\)"):
        from_env("cxx=")


def test_warn_flags_are_accepted_silently(fresh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.warn.subtensor_merge_bug = False
        fresh.warn.ignore_bug_before = "0.7"
    assert fresh.warn.ignore_bug_before == "0.7"


# --- one flag for two -----------------------------------------------------------------------------


def test_algo_bwd_sets_both(fresh):
    fresh.dnn.conv.algo_bwd = "fft"
    assert fresh.dnn.conv.algo_bwd_data == "fft"
    assert fresh.dnn.conv.algo_bwd_filter == "fft"
    assert fresh.dnn.conv.algo_bwd == "fft"


def test_algo_bwd_order_in_the_environment():
    c = from_env("dnn.conv.algo_bwd=time_once,dnn.conv.algo_bwd_data=none")
    assert c.dnn.conv.algo_bwd_data == "none"
    assert c.dnn.conv.algo_bwd_filter == "time_once"
    assert c.dnn.conv.algo_bwd == ""


def test_algo_bwd_takes_what_both_take():
    data, both, filters = (
        set(flags.FLAGS[f"dnn.conv.{n}"].choices)
        for n in ("algo_bwd_data", "algo_bwd", "algo_bwd_filter")
    )
    assert both == data & filters
    assert set(SEARCHES) < both
    with pytest.raises(ConfigError, match=r"algo_bwd = 'small'.*Allowed: none, deterministic"):
        from_env("dnn.conv.algo_bwd=small")


def test_algo_bwd_in_change_flags_and_files(fresh, tmp_path):
    with fresh.change_flags(**{"dnn.conv.algo_bwd": "deterministic"}):
        assert fresh.dnn.conv.algo_bwd_filter == "deterministic"
    assert fresh.dnn.conv.algo_bwd_filter == "none"
    c = from_file(tmp_path, "[dnn.conv]\nalgo_bwd = time_once\n")
    assert c.dnn.conv.algo_bwd_data == "time_once"
    assert c.origin("dnn.conv.algo_bwd") == f"{tmp_path}/rc:2"


def test_algo_bwd_is_in_the_key_by_what_it_sets(fresh):
    assert "dnn.conv.algo_bwd" not in dict(fresh.compile_key())


# --- change_flags ---------------------------------------------------------------------------------


def test_change_flags_nests(fresh):
    with fresh.change_flags(floatX="float64"):
        with fresh.change_flags(floatX="float16", **{"dnn.conv.algo_fwd": "none"}):
            assert (fresh.floatX, fresh.dnn.conv.algo_fwd) == ("float16", "none")
        assert (fresh.floatX, fresh.dnn.conv.algo_fwd) == ("float64", "small")
    assert fresh.floatX == "float32"


def test_change_flags_takes_a_mapping(fresh):
    with fresh.change_flags({"dnn.conv.algo_fwd": "fft"}, floatX="float64"):
        assert (fresh.dnn.conv.algo_fwd, fresh.floatX) == ("fft", "float64")


def test_change_flags_restores_after_an_exception(fresh):
    with pytest.raises(RuntimeError), fresh.change_flags(floatX="float64"):  # noqa: PT012
        fresh.floatX = "float16"
        raise RuntimeError
    assert fresh.floatX == "float32"


def test_change_flags_can_be_entered_again(fresh):
    change = fresh.change_flags(floatX="float64")
    with change, change:
        assert fresh.floatX == "float64"
    assert fresh.floatX == "float32"
    with change:
        assert fresh.floatX == "float64"


def test_change_flags_decorates(fresh):
    @fresh.change_flags(floatX="float64")
    def depth(n: int) -> list[str]:
        """Says what it sees."""
        return [fresh.floatX, *(depth(n - 1) if n else [])]

    assert depth(2) == ["float64"] * 3
    assert fresh.floatX == "float32"
    assert depth.__doc__ == "Says what it sees."


def test_change_flags_is_checked_before_it_is_entered(fresh):
    with pytest.raises(ConfigError, match=rf"from code at {__file__}"):
        fresh.change_flags(floatX="float8")
    with pytest.raises(UnknownFlagError):
        fresh.change_flags(flootX="float32")


def test_assignment_within_a_block(fresh):
    with fresh.change_flags(floatX="float64"):
        fresh.floatX = "float16"  # the block's own flag: undone at its end
        fresh.device = "cpu"  # another: stays
        assert fresh.floatX == "float16"
    assert (fresh.floatX, fresh.device) == ("float32", "cpu")


def test_assignment_in_an_inner_block_reaches_the_outer_one(fresh):
    with fresh.change_flags(floatX="float64"):
        with fresh.change_flags(device="cpu"):
            fresh.floatX = "float16"
        assert fresh.floatX == "float16"
    assert fresh.floatX == "float32"


def test_other_threads_do_not_see_a_block(fresh):
    seen: list[str] = []
    with fresh.change_flags(floatX="float64"):
        thread = threading.Thread(target=lambda: seen.append(fresh.floatX))
        thread.start()
        thread.join()
    assert seen == ["float32"]


def test_threads_share_a_decorator(fresh):
    barrier, seen = threading.Barrier(4), []

    @fresh.change_flags(floatX="float64")
    def look() -> None:
        barrier.wait()
        seen.append(fresh.floatX)

    def run() -> None:
        look()
        seen.append(fresh.floatX)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(seen) == ["float32"] * 4 + ["float64"] * 4


def test_other_threads_see_an_assignment(fresh):
    fresh.floatX = "float64"
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(fresh.floatX))
    thread.start()
    thread.join()
    assert seen == ["float64"]


# --- the key of compiled code ---------------------------------------------------------------------


def test_compile_key_follows_flags_that_change_code(fresh):
    before = fresh.compile_key()
    assert hash(before) == hash(Config(NO_FILE).compile_key())
    with fresh.change_flags(exception_verbosity="high", profile=True):
        assert fresh.compile_key() == before
    with fresh.change_flags(**{"dnn.conv.algo_bwd": "time_once"}):
        assert fresh.compile_key() != before
    assert fresh.compile_key() == before


def test_the_shared_object_is_a_config():
    assert isinstance(config, Config)


def test_import_is_light():
    # A bare package of the same path: only what the flags themselves import is looked at.
    code = f"""
import sys
sys.modules["symdnn"] = package = type(sys)("symdnn")
package.__path__ = [{str(Path(flags.__file__).parent)!r}]
import symdnn.config
print({{"platformdirs", "rich", "scipy"}} & set(sys.modules))
"""
    run = in_new_process(code)
    assert run.stdout == "set()\n", run.stderr


def test_a_setting_comes_back_with_its_origin():
    name = "dnn.conv.algo_fwd"
    before, origin = config.setting(name), config.origin(name)
    config.set(name, "fft")
    kept = config.setting(name)
    config.set(name, "large")
    config.restore(name, kept)
    assert config.get(name) == "fft"
    config.restore(name, before)
    assert (config.setting(name), config.origin(name)) == (before, origin)


def test_a_setting_comes_back_within_a_block():
    with config.change_flags(floatX="float64"):
        kept = config.setting("floatX")
        config.floatX = "float16"
        config.restore("floatX", kept)
        assert config.floatX == "float64"
        config.restore("floatX", None)
        assert config.floatX == "float32"
    assert config.floatX == "float32"


def test_a_reader_gives_what_get_does():
    read = config.reader("openmp.threads")
    assert read() == config.get("openmp.threads")
    with config.change_flags(**{"openmp.threads": 7}):
        assert read() == 7
    before = config.setting("openmp.threads")
    config.set("openmp.threads", 3)
    try:
        assert read() == 3
    finally:
        config.restore("openmp.threads", before)
    assert read() == config.get("openmp.threads")


# --- setting and undoing --------------------------------------------------------------------------

SETTABLE = [f for f in flags.FLAGS.values() if not f.fixed and not f.old]


def other_value(flag):
    """A value that the flag takes and that is not its default."""
    by_kind = {
        "bool": True,
        "int": 3,
        "float": 1.5,
        "bytes": 1000,
        "str": "x",
        "device": "cuda1",
        "objective": "energy",
    }
    if flag.kind == "bool":
        return not flag.first_value()
    return flag.choices[-1] if flag.choices else by_kind[flag.kind]


def holder_of(c, name):
    """The object and the attribute that are a flag."""
    *groups, last = name.split(".")
    for group in groups:
        c = getattr(c, group)
    return c, last


def settings_of(c, flag):
    return [c.setting(name) for name in flag.sets or (flag.name,)]


@pytest.mark.parametrize("flag", SETTABLE, ids=lambda f: f.name)
@pytest.mark.parametrize("first", [False, True], ids=["untouched", "set in code"])
def test_what_monkeypatch_and_mock_change_they_bring_back(fresh, flag, first):
    holder, name = holder_of(fresh, flag.name)
    if first:
        setattr(holder, name, other_value(flag))
    before = settings_of(fresh, flag)
    with pytest.MonkeyPatch.context() as outer, pytest.MonkeyPatch.context() as inner:
        outer.setattr(holder, name, other_value(flag))
        inner.setattr(holder, name, other_value(flag))
        inner.setattr(holder, name, other_value(flag))
        assert getattr(holder, name) == fresh.get(flag.name) == flag.parse(other_value(flag))
    assert settings_of(fresh, flag) == before
    with mock.patch.object(holder, name, other_value(flag)):
        assert getattr(holder, name) == flag.parse(other_value(flag))
    assert settings_of(fresh, flag) == before


def test_del_undoes_what_code_set_and_no_more():
    c = from_env("floatX=float64,dnn.conv.algo_bwd_data=fft")
    del c.floatX  # code has not set it
    c.floatX = "float16"
    c.floatX = "float32"
    del c.floatX
    assert c.floatX == "float16"
    del c.floatX, c.floatX
    assert c.floatX == "float64"
    assert c.origin("floatX") == "environment variable SYMDNN_FLAGS"
    c.dnn.conv.algo_bwd = "none"
    del c.dnn.conv.algo_bwd
    assert (c.dnn.conv.algo_bwd_data, c.dnn.conv.algo_bwd_filter) == ("fft", "none")
    with pytest.raises(UnknownFlagError, match="floatX"):
        del c.floatx


def test_del_in_a_block_undoes_what_was_set_there(fresh):
    fresh.floatX = "float16"
    with fresh.change_flags(floatX="float64"):
        del fresh.floatX  # set outside
        assert fresh.floatX == "float64"
        fresh.floatX = "float32"
        del fresh.floatX
        assert fresh.floatX == "float64"
    assert fresh.floatX == "float16"
    del fresh.floatX
    assert fresh.floatX == "float32"


def test_a_fixed_flag_that_a_test_wants_to_change_leaves_no_second_error(fresh, tmp_path):
    m = pytest.MonkeyPatch()
    with pytest.raises(ConfigError, match="can't be changed"):
        m.setattr(fresh, "base_compiledir", str(tmp_path))
    m.undo()
    assert fresh.base_compiledir != str(tmp_path)


# --- files that are none, and Theano's flags ------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
def test_a_file_of_flags_that_never_ends_is_an_error_at_once(tmp_path, kind):
    path = tmp_path / "rc"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match=r"can't be read: .*(regular|bytes|directory)"):
        Config({"SYMDNNRC": str(path)})


def test_no_file_of_flags_can_be_named_by_the_null_device():
    assert Config({"SYMDNNRC": os.devnull}).floatX == "float32"


def test_theanos_flags_are_noticed_once():
    theanos = "floatX=float64, device=gpu0,openmp.threads=2,cxx="
    done = in_new_process("import symdnn; print(symdnn.config.floatX)", THEANO_FLAGS=theanos)
    assert done.stdout == "float32\n"
    assert done.stderr.count("UserWarning") == 1
    assert "<string>:1: UserWarning: THEANO_FLAGS is set" in done.stderr
    assert "SYMDNN_FLAGS=floatX=float64,openmp.threads=2." in done.stderr
    assert "does not take device=gpu0, cxx=" in done.stderr
    for flags_ in ("", "floatX=float64"):
        done = in_new_process("import symdnn", THEANO_FLAGS=theanos, SYMDNN_FLAGS=flags_)
        assert done.stderr == ""
