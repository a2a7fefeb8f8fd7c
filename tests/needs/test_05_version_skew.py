"""Need 5: all of cuDNN comes from one folder, and a mixed set is an error that names both."""

from __future__ import annotations

from tests.gpu.binding.test_cudnn_library import run  # noqa: F401
from tests.gpu.small_cudnn import build  # noqa: F401

USED = """
import ctypes
attempt()
mapped = {str(pathlib.Path(p).parent) for p in detect.mapped_files() if "libcudnn" in p}
print(sorted(mapped))
print(ctypes.CDLL(None).graph_of_this)  # RTLD_GLOBAL
"""


def test_two_sets_on_the_loaders_path_give_one(run, build, tmp_path):  # noqa: F811
    one, other = build(tmp_path / "one", 91900), build(tmp_path / "other", 92800)
    (other / "libcudnn_engines_tensor_ir.so.9").symlink_to("libcudnn_ops.so.9")
    path = f"{one}:{other}"
    out = run("import pathlib\n" + USED, LD_LIBRARY_PATH=path)
    first, *rest = out.splitlines()
    assert first == f"cuDNN 9.19.0 at {one}/libcudnn.so.9 (LD_LIBRARY_PATH)"
    assert f"['{one}']" in rest
    assert "_FuncPtr" in rest[-1]


def test_a_part_of_another_set_is_an_error_with_both_paths(run, build, tmp_path):  # noqa: F811
    one, other = build(tmp_path / "one"), build(tmp_path / "other")
    code = f"""
import ctypes  # as other libraries of the process might
ctypes.CDLL("{one}/libcudnn.so.9")
ctypes.CDLL("{other}/libcudnn_engines_tensor_ir.so.9")
attempt()
"""
    (other / "libcudnn_engines_tensor_ir.so.9").write_bytes(
        (other / "libcudnn_heuristic.so.9").read_bytes()
    )
    out = run(code)
    assert out.startswith("CudnnMixed: two sets of cuDNN's libraries are in this process")
    assert f"{one}/libcudnn" in out
    assert f"{other}/libcudnn" in out


def test_a_library_older_than_the_table_is_an_error(run, build, tmp_path):  # noqa: F811
    build(tmp_path, 8907)
    out = run("attempt()", LD_LIBRARY_PATH=str(tmp_path))
    assert out.startswith("CudnnVersionError: cuDNN 8.9.7")
    assert "needs cuDNN 9.0.0 or a newer 9" in out
