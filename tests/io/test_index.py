"""Parameters in several files with an index."""

import json

import numpy as np
import pytest

import symdnn
from symdnn.errors import FileFormatError, InputError
from symdnn.io.parameters import load_parameters, save_parameters

ARRAYS = {f"layer{i}.weight": np.arange(6.0, dtype="float32") + i for i in range(5)}


def test_arrays_go_to_files_of_a_size_and_come_back(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    save_parameters(path, ARRAYS, {"epoch": 3}, max_file_bytes=50)
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == [*(f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)), path.name]
    index = json.loads(path.read_text())
    assert index["metadata"]["total_size"] == 5 * 24
    assert index["weight_map"]["layer4.weight"] == "model-00003-of-00003.safetensors"
    found = load_parameters(path)
    assert list(found) == list(ARRAYS)
    assert found.metadata == {"epoch": 3}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    v = symdnn.shared(np.zeros(6, "float32"), name="layer2.weight")
    load_parameters(path, into={"layer2.weight": v})
    np.testing.assert_array_equal(v.get_value(), ARRAYS["layer2.weight"])


def test_a_second_save_leaves_the_first_until_it_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors.index.json"
    save_parameters(path, ARRAYS, max_file_bytes=50)
    others = {n: a + 1 for n, a in ARRAYS.items()}
    from symdnn.io import index

    with monkeypatch.context() as patch:
        patch.setattr(index, "write_index", lambda *_: 1 / 0)  # killed before the last write
        with pytest.raises(ZeroDivisionError):
            save_parameters(path, others, max_file_bytes=50)
    np.testing.assert_array_equal(load_parameters(path)["layer0.weight"], ARRAYS["layer0.weight"])
    save_parameters(path, others, max_file_bytes=50)
    np.testing.assert_array_equal(load_parameters(path)["layer0.weight"], others["layer0.weight"])
    assert len(list(tmp_path.iterdir())) == 4  # the old files are gone


def test_an_index_of_another_program_is_read(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.ones(2, "float32"), "unused": np.ones(1)}, tmp_path / "m-1.safetensors")
    save_file({"b": np.zeros((1, 3), "float16")}, tmp_path / "m-2.safetensors")
    index = {"weight_map": {"b": "m-2.safetensors", "a": "m-1.safetensors"}, "metadata": {"x": 1}}
    path = tmp_path / "m.safetensors.index.json"
    path.write_text(json.dumps(index))
    found = load_parameters(path)
    assert {n: (a.dtype.name, a.shape) for n, a in found.items()} == {
        "b": ("float16", (1, 3)), "a": ("float32", (2,)),
    }  # fmt: skip
    assert found.metadata == {"x": 1}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../m-1.safetensors"}}',
        '{"weight_map": {"a": 4}}', '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"c": "m-1.safetensors"}}',
    ],
)  # fmt: skip
def test_a_damaged_index_is_refused(tmp_path, text):
    from safetensors.numpy import save_file

    save_file({"a": np.ones(2, "float32")}, tmp_path / "m-1.safetensors")
    path = tmp_path / "m.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(FileFormatError):
        load_parameters(path)


def test_arguments(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    with pytest.raises(InputError, match="max_file_bytes=0"):
        save_parameters(path, ARRAYS, max_file_bytes=0)
    path.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(OSError, match="gone"):
        load_parameters(path)
    with pytest.raises(FileFormatError, match=r"index\.json"):
        save_parameters(tmp_path / "model.json", ARRAYS)
