"""PyTorch's state dicts: files of torch.save and others, recurrent layers, names, and back."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import FileFormatError, InputError
from symdnn.io import save_parameters
from tests.nn.weights_checks import output

HERE = Path(__file__).parents[1]
FILE = HERE / "torch_net.pt"
RECURRENT = np.load(HERE / "torch_rnn.npz")


def small_net():
    return nn.Sequential(
        nn.SpatialConvolution(2, 4, 3, 3, 1, 1, 1, 1), nn.SpatialBatchNormalization(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(100, 3),
    )  # fmt: skip


def entry(name):
    return nn.read_weights(FILE, name) if name in ("kinds", "forms", "state_dict") else None


# -- files ----------------------------------------------------------------------------------------


def stored():
    """The whole checkpoint, by the reader that takes containers apart."""
    from symdnn.nn.formats.zip import read_torch_zip

    return read_torch_zip(FILE)


@pytest.mark.parametrize("form", ["pt", "safetensors", "npz", "mapping"])
def test_a_pytorch_net_computes_the_same(form, tmp_path):
    state, checkpoint = entry("state_dict"), stored()
    source = {"pt": FILE, "mapping": state}.get(form, tmp_path / f"net.{form}")
    if form == "safetensors":
        save_parameters(source, state)
    elif form == "npz":
        np.savez(source, **state)
    net = small_net()
    loaded = nn.load_torch(net, source, key="state_dict" if form == "pt" else None)
    assert loaded.ignored == ("1.num_batches_tracked",)
    assert not loaded.missing
    assert not loaded.unmatched
    np.testing.assert_allclose(output(net, checkpoint["x"]), checkpoint["y"], rtol=1e-5, atol=1e-6)


def test_every_dtype_of_a_checkpoint():
    kinds = entry("kinds")
    assert len(kinds) == 12
    for name, value in kinds.items():
        assert value.dtype.name == name
        real = value.real if value.dtype.kind == "c" else value
        np.testing.assert_array_equal(real.astype("float64"), [0, 1, 1 if name == "bool" else 3])


def test_tensors_that_share_or_stride_over_their_numbers():
    forms, n = entry("forms"), np.arange(12.0)
    wanted = {
        "numbers": n, "transposed": n.reshape(3, 4).T, "part": n[5:9], "steps": n[1::3],
        "scalar": np.array(7.0), "empty": np.zeros((0, 3)), "parameter": n[:2],
    }  # fmt: skip
    assert set(forms) == set(wanted)
    for name, value in forms.items():
        assert value.shape == wanted[name].shape
        np.testing.assert_array_equal(value, wanted[name])
    forms["part"][...] = -1
    assert forms["numbers"][5] == 5


def zipped(path, pickled, *, storages=(), compress=zipfile.ZIP_STORED, byteorder=b"little"):
    """A file as torch.save lays it out, with this pickle."""
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr("net/data.pkl", pickled)
        archive.writestr("net/byteorder", byteorder)
        for i, raw in enumerate(storages):
            archive.writestr(f"net/data/{i}", raw)
    return path


def a_global(module, name):
    """The bytes of a reference to a global."""
    return f"c{module}\n{name}\n".encode()


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("builtins", "eval"), ("builtins", "getattr"), ("posix", "system"),
     ("torch.nn.modules.linear", "Linear"), ("torch", "load"), ("collections", "Counter")],
)  # fmt: skip
def test_a_file_that_would_run_code_is_refused(module, name, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("os.system", lambda *a: ran.append(a))
    text = b"\x80\x02" + a_global(module, name) + b"X\x04\x00\x00\x00true\x85R."
    with pytest.raises(FileFormatError, match=f"needs {module}.{name}; only tensors.*safetensors"):
        nn.read_weights(zipped(tmp_path / "bad.pt", text))
    assert not ran


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\x80\x02(ios\nsystem\n.", "has a INST"),
        (b"\x80\x02(cos\nsystem\no.", "has a OBJ"),
        (b"\x80\x02ctorch\nSize\n)\x81.", "has a NEWOBJ"),
        (b"\x80\x02\x82\x01.", "has a EXT1"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "remembers value 2147483647"),
    ],
)
def test_other_steps_of_a_pickle_are_refused(text, said, tmp_path):
    with pytest.raises(FileFormatError, match=said):
        nn.read_weights(zipped(tmp_path / "bad.pt", text))


def tensor_text(offset, shape, strides, count=4, kind="FloatStorage", key="0"):
    """The pickle of {"w": tensor}, opcode by opcode."""

    def number(n):
        return b"J" + int(n).to_bytes(4, "little", signed=True)

    def text(s):
        return b"X" + len(s).to_bytes(4, "little") + s.encode()

    def numbers(ns):
        return b"(" + b"".join(number(n) for n in ns) + b"t"

    saved = (
        b"(" + text("storage") + a_global("torch", kind) + text(key) + text("cpu") + number(count)
        + b"tQ"
    )  # fmt: skip
    rebuilt = a_global("torch._utils", "_rebuild_tensor_v2")
    arguments = b"(" + saved + number(offset) + numbers(shape) + numbers(strides) + b"\x89"
    arguments += a_global("collections", "OrderedDict") + b")R" + b"t"
    return b"\x80\x02}" + text("w") + rebuilt + arguments + b"Rs."


FOUR = np.arange(4, dtype="float32")


def test_a_tensor_written_by_hand(tmp_path):
    path = zipped(tmp_path / "w.pth", tensor_text(1, (3,), (1,)), storages=[FOUR.tobytes()])
    np.testing.assert_array_equal(nn.read_weights(path)["w"], [1, 2, 3])


def test_a_file_of_a_machine_of_the_other_byte_order(tmp_path):
    raw = FOUR.astype(">f4").tobytes()
    path = zipped(tmp_path / "w.pt", tensor_text(0, (4,), (1,)), storages=[raw], byteorder=b"big")
    np.testing.assert_array_equal(nn.read_weights(path)["w"], FOUR)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"offset": 2, "shape": (3,), "strides": (1,)}, r"shape \(3,\) in a storage of 4"),
        ({"offset": -1, "shape": (2,), "strides": (1,)}, "offset -1"),
        ({"offset": 0, "shape": (2,), "strides": (-1,)}, "strides"),
        ({"offset": 0, "shape": (2**30, 2**30), "strides": (0, 0)}, "in a storage of 4"),
        ({"offset": 0, "shape": (2,), "strides": (1, 1)}, "damaged"),
        ({"offset": 0, "shape": (2,), "strides": (1,), "count": 9}, "has 4 elements, wanted 9"),
        ({"offset": 0, "shape": (2,), "strides": (1,), "key": "7"}, "no storage 7"),
        ({"offset": 0, "shape": (2,), "strides": (1,), "kind": "QUInt8Storage"}, "QUInt8Storage"),
    ],
)
def test_a_tensor_outside_of_its_storage_is_refused(given, said, tmp_path):
    path = zipped(tmp_path / "w.pt", tensor_text(**given), storages=[FOUR.tobytes()])
    with pytest.raises(FileFormatError, match=said):
        nn.read_weights(path)


def test_damaged_and_older_files_say_how_to_make_a_new_one(tmp_path):
    whole = FILE.read_bytes()
    for i, data in enumerate((whole[: len(whole) // 2], b"\x80\x02\x8a\x0alegacy", b"")):
        path = tmp_path / f"{i}.pt"
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match="safetensors.torch.save_file"):
            nn.read_weights(path)
    for text in (b"", b"\x80\x02", b"\x80\x02}.rubbish"[:3], b"\x80\x02K\x01.", b"\x80\x02Kt."):
        with pytest.raises(FileFormatError):
            nn.read_weights(zipped(tmp_path / "x.pt", text))
    with pytest.raises(FileFormatError, match="compressed"):
        nn.read_weights(zipped(tmp_path / "c.pt", b"\x80\x02}.", compress=zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme", "no model")
    with pytest.raises(FileFormatError, match="no data.pkl"):
        nn.read_weights(tmp_path / "other.pt")


def test_any_cut_of_a_file_is_an_error_or_the_file(tmp_path):
    """Bytes changed at random: nothing but FileFormatError and InputError leaves the reader."""
    whole, rng = bytearray(FILE.read_bytes()), np.random.default_rng(0)
    where = bytes(whole).find(b"state_dict")
    for _ in range(150):
        data = bytearray(whole)
        for at in rng.integers(where - 50, where + 1500, 3):
            data[at] = rng.integers(256)
        path = tmp_path / "changed.pt"
        path.write_bytes(data)
        try:
            nn.read_weights(path, "state_dict")
        except (FileFormatError, InputError):
            pass


def test_which_files_and_entries_are_meant(tmp_path):
    with pytest.raises(InputError, match="no arrays: state_dict, kinds, forms.*key='state_dict'"):
        nn.read_weights(FILE)
    with pytest.raises(InputError, match="has no 'model'; it has epoch, state_dict, x"):
        nn.read_weights(FILE, "model")
    for name, said in (("w.pb", "suffix"), ("w.txt", "suffix")):
        with pytest.raises(FileFormatError, match=said):
            nn.read_weights(tmp_path / name)
    with pytest.raises(InputError, match="wanted a path or a mapping"):
        nn.read_weights(3)


# -- names ----------------------------------------------------------------------------------------


def test_every_unmatched_and_missing_name_is_reported():
    state = entry("state_dict")
    wrong = {k: v for k, v in state.items() if k != "4.bias"} | {"5.weight": np.zeros(2)}
    net = small_net()
    before = net.state_dict()
    with pytest.raises(InputError, match=r"4.bias is missing; 5.weight is unknown.*Nothing was"):
        nn.load_torch(net, wrong)
    wrong["4.weight"] = np.zeros((3, 99))
    with pytest.raises(InputError, match=r"4.weight has shape \(3, 99\), wanted \(3, 100\)"):
        nn.load_torch(net, wrong, strict=False)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    del wrong["4.weight"]
    loaded = nn.load_torch(net, wrong, strict=False)
    assert loaded.missing == ("4.weight", "4.bias")
    assert loaded.unmatched == ("5.weight",)
    assert "2 missing: 4.weight, 4.bias" in str(loaded)
    np.testing.assert_array_equal(net[0].weight.get_value(), state["0.weight"])
    np.testing.assert_array_equal(net[4].weight.get_value(), before["4.weight"])


def test_names_with_other_beginnings():
    state = {f"module.body.{k}": v for k, v in entry("state_dict").items()}
    net = small_net()
    with pytest.raises(InputError, match="no name fits; rename="):
        nn.load_torch(net, state)
    head = net[4].weight.get_value()
    loaded = nn.load_torch(net, state, rename={"module.body.": "", "module.body.4.": None})
    assert loaded.ignored[:2] == ("module.body.4.weight", "module.body.4.bias")
    np.testing.assert_array_equal(net[4].weight.get_value(), head)
    np.testing.assert_array_equal(net[0].bias.get_value(), state["module.body.0.bias"])
    with pytest.raises(InputError, match=r"two weights are called weight"):
        nn.load_torch(net, state, rename={"module.body.0.": "", "module.body.1.": ""})


def test_a_mapping_of_tensors_by_numpys_protocol():
    class Tensor:
        def __init__(self, value):
            self.value = value

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.value, dtype)

    net = nn.Linear(2, 1)
    nn.load_torch(net, {"weight": Tensor([[1, 2]]), "bias": Tensor([3])})
    np.testing.assert_array_equal(net.weight.get_value(), [[1, 2]])


def test_one_variable_under_two_names():
    net = nn.models.lstm_lm(5, 3, 3, tied=True)
    state = nn.to_torch(net)
    assert state["encoder.weight"].shape == state["decoder.weight"].shape == (5, 3)
    both = np.arange(15.0).reshape(5, 3)
    nn.load_torch(net, {**state, "encoder.weight": both, "decoder.weight": both})
    np.testing.assert_array_equal(net.encoder.weight.get_value(), both)
    nn.load_torch(net, {k: v for k, v in state.items() if k != "decoder.weight"})
    with pytest.raises(InputError, match="decoder.weight and encoder.weight are one variable"):
        nn.load_torch(net, {**state, "encoder.weight": both})


# -- recurrent layers -----------------------------------------------------------------------------


def pytorchs(name):
    """The weights of one of make_torch_rnn.py's nets."""
    start = f"{name}/w/"
    return {k.removeprefix(start): RECURRENT[k] for k in RECURRENT if k.startswith(start)}


KINDS = ["RNNReLU", "RNNTanh", "LSTM", "GRU", "BRNNReLU", "BRNNTanh", "BLSTM", "BGRU"]


@pytest.mark.parametrize("kind", KINDS)
def test_gates_layers_and_directions_are_pytorchs(kind):
    state = pytorchs(kind)
    assert len(state) == 8 * (1 + kind.startswith("B"))
    net = getattr(nn, kind)(4, 3, 2)
    assert len(nn.load_torch(net, state).loaded) == len(state)
    x, states = T.tensor3("x"), [RECURRENT[f"{kind}/hx"]]
    states += [RECURRENT[f"{kind}/cx"]] if "LSTM" in kind else []
    y = symdnn.function([x], net(x, None, *states))(RECURRENT[f"{kind}/x"])
    np.testing.assert_allclose(y, RECURRENT[f"{kind}/y"], rtol=1e-5, atol=1e-6)
    back = nn.to_torch(net)
    assert set(back) == set(state)
    for name, value in state.items():
        np.testing.assert_array_equal(back[name], value)


def test_parts_of_a_recurrent_layer_and_what_has_no_layer_here():
    net, state = nn.LSTM(4, 3, 2), pytorchs("LSTM")
    before = net.named_weights()
    loaded = nn.load_torch(net, {"bias_hh_l1": state["bias_hh_l1"]}, strict=False)
    assert len(loaded.missing) == 7
    after = net.named_weights()
    changed = {n for n in after if not np.array_equal(after[n], before[n])}
    assert changed == {f"layer1.bR_{g}" for g in "ifgo"}
    with pytest.raises(InputError, match="weight_hr_l0: .* make the layer with proj_size"):
        nn.load_torch(net, {**state, "weight_hr_l0": np.zeros((2, 3))})
    skipped = nn.GRU(3, 3, 1, inputMode="skip")
    assert set(nn.to_torch(skipped)) == {"weight_hh_l0", "bias_ih_l0", "bias_hh_l0"}


def test_recurrent_layers_without_biases_get_zeros():
    net = nn.Sequential(nn.GRU(4, 3, 2))
    state = {f"0.{n}": v for n, v in pytorchs("GRU").items() if not n.startswith("bias")}
    loaded = nn.load_torch(net, state)
    assert loaded.loaded == tuple(state)
    assert not loaded.missing
    weights = net[0].named_weights()
    assert not any(v.any() for n, v in weights.items() if ".b" in n)
    with pytest.raises(InputError, match="0.bias_hh_l0 is missing"):
        nn.load_torch(net, {**state, "0.bias_ih_l0": np.zeros(9)})


def test_to_torch_gives_copies_that_load_again(tmp_path):
    net = nn.Sequential(nn.BLSTM(4, 3, 2), nn.Linear(6, 2))
    state = nn.to_torch(net)
    save_parameters(tmp_path / "net.safetensors", state)
    other = nn.Sequential(nn.BLSTM(4, 3, 2), nn.Linear(6, 2))
    nn.load_torch(other, tmp_path / "net.safetensors")
    state["1.weight"][...] = 0
    for name, value in net.state_dict().items():
        assert value.any()
        np.testing.assert_array_equal(other.state_dict()[name], value)
