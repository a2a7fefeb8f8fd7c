"""Keras's own files, .h5 and .keras, by h5py: arrays under the names of Keras 2's variables.

Only numbers are read: links to other files, data kept elsewhere and objects are refused, sizes are
checked before anything is read, and configurations are not made into models.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import decompressobj

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.io.reading import checked_members, opened, refuse_more

Array = np.ndarray[Any, Any]
ADVICE = 'Where Keras runs: numpy.savez("net.npz", **{v.name: v.numpy() for v in model.weights})'
#: How a heap of texts begins: its signature, its version and three zeros.
_HEAP = b"GCOL\x01\0\0\0"
_PIECE_BYTES, _MOST_HEAP_BYTES = 1 << 24, 1 << 28
#: HDF5's numbers of what may be done to the parts of a dataset: gzip, shuffle, checksums.
_DEFLATE, _FILTERS = 1, (1, 2, 3)
#: Its class of types of variable length, and the flag of a type that stands elsewhere.
_VARIABLE, _SHARED_TYPE = 9, 1
#: gzip makes of a byte at most so many.
_MOST_DEFLATED = 1032
#: At so many places of a file its configuration is looked for.
_MOST_STARTS = 64
#: So many datasets a file may have.
_MOST_DATASETS = 100_000
#: Keras 1's names of weights by Keras 2's.
_OF_KERAS_1 = {
    "W": "kernel", "b": "bias", "U": "recurrent_kernel", "gamma": "gamma", "beta": "beta",
    "running_mean": "moving_mean", "running_std": "moving_variance",
}  # fmt: skip
#: Keras 1 kept the gates of recurrent layers apart; Keras 2 has them side by side in this order.
_GATES = {"lstm": "ifco", "gru": "zrh"}


def read_h5(path: Path) -> dict[str, Array]:
    """The weights of ``model.save`` or ``save_weights`` of Keras 1, 2 or 3, by ``layer/weight``.

    Raises :class:`~symdnn.errors.FileFormatError` for other and for damaged files, and
    ``ImportError`` without h5py.
    """
    with opened(path, "HDF5 file of Keras", ADVICE) as (file, size):
        return _of_file(file, size, {})


def read_keras_zip(path: Path) -> dict[str, Array]:
    """The weights of a ``.keras`` file of Keras 3: a zip with ``model.weights.h5``."""
    with (
        opened(path, "zip file of Keras 3", ADVICE) as (file, size),
        zipfile.ZipFile(file) as archive,
    ):
        checked_members(archive, size)
        names = archive.namelist()
        if "model.weights.h5" not in names:
            raise FileFormatError(f"{path} holds no model.weights.h5. {ADVICE}")
        config = json.loads(archive.read("config.json")) if "config.json" in names else {}
        content = archive.read("model.weights.h5")
        return _of_file(io.BytesIO(content), len(content), config)


def _of_file(file: object, size: int, config: object) -> dict[str, Array]:
    try:
        import h5py
    except ImportError:
        raise FileFormatError(
            "files of Keras (.h5, .keras) need h5py: pip install 'symdnn[keras]'"
        ) from None
    _check_heaps(file, size)
    for name in ("layer_names", "weight_names"):
        _check_texts(file, size, name)
    with h5py.File(file, "r") as root:
        datasets = dict(_datasets(root, h5py))
        refuse_more(sum(d.size * d.dtype.itemsize for d in datasets.values()), size)
        for path, dataset in datasets.items():
            _check_chunks(path, dataset, size)
        group = root.get("model_weights", root)
        prefix = "model_weights/" if "model_weights" in root else ""
        if "layer_names" not in group.attrs:
            return _of_keras_3(datasets, _order_3(config))
        found: dict[str, Array] = {}
        for layer in _texts(_attribute(group, "layer_names", size)):
            names = _texts(_attribute(group[layer], "weight_names", size))
            arrays = {n: datasets[f"{prefix}{layer}/{n}"][()] for n in names}
            if any("/" in n for n in names):
                found.update({n.partition(":")[0]: a for n, a in arrays.items()})
            else:
                order = _image_order(_configuration(file, size), layer)
                found.update(_of_keras_1(layer, arrays, order))
        return found


def _attribute(item: Any, name: str, size: int) -> Any:
    """The texts of an attribute, none if there is none.

    Raises ``ValueError`` for an attribute that claims more bytes than the file has, and for one of
    anything but text.
    """
    if name not in item.attrs:
        return ()
    attribute = item.attrs.get_id(name)
    dtype, count = attribute.dtype, math.prod(attribute.shape or ())
    if not count:
        return ()
    # Texts of variable length are str or bytes in the dtype's metadata.
    text = dtype.kind == "S" or (dtype.metadata or {}).get("vlen") in (str, bytes)
    if not text or count * max(dtype.itemsize, 1) > size:
        raise ValueError(f"an attribute {name} of {count} x {dtype}, wanted texts")
    return item.attrs[name]


def _check_chunks(path: str, dataset: Any, size: int) -> None:
    """Raise ``ValueError`` where a compressed part holds more than its numbers.

    HDF5's library makes room for whatever zlib finds in it.
    """
    if dataset.chunks is None:
        return
    given = dataset.id.get_create_plist()
    filters = [given.get_filter(i)[0] for i in range(given.get_nfilters())]
    if any(f not in _FILTERS for f in filters) or filters.count(_DEFLATE) > 1:
        raise ValueError(f"{path} is compressed by filters {filters}, wanted gzip's alone")
    most = math.prod(dataset.chunks) * dataset.dtype.itemsize + 4  # and a checksum
    for i in range(dataset.id.get_num_chunks()):
        part = dataset.id.get_chunk_info(i)
        if part.size > size:
            raise ValueError(f"{path}: a part of {part.size} bytes")
        if _DEFLATE not in filters or part.size * _MOST_DEFLATED <= most:
            continue
        rest, total, zlib_ = dataset.id.read_direct_chunk(part.chunk_offset)[1], 0, decompressobj()
        while rest and not zlib_.eof:
            total += len(zlib_.decompress(rest, _PIECE_BYTES))
            rest = zlib_.unconsumed_tail
            if total > most:
                raise ValueError(f"{path}: a compressed part unpacks to more than {most} bytes")


def _check_texts(file: Any, size: int, name: str) -> None:
    """Raise ``ValueError`` where texts of attributes of this name claim more than is allowed.

    HDF5's library makes room for a text of variable length before it looks. An attribute's message
    has the sizes of its name, type and shape (2 bytes each; version 1 pads each to 8), these, and
    for each text its length (4 bytes) and its place (12). (HDF5 file format specification, IV.A.2)
    """
    word = name.encode() + b"\0"
    for at in _found(file, size, word):
        for version, before, pad in ((1, 8, 8), (2, 8, 1), (3, 9, 1)):
            file.seek(max(at - before, 0))
            head = file.read(before)
            sizes = [int.from_bytes(head[i : i + 2], "little") for i in (2, 4, 6)]
            if head[0] != version or sizes[0] != len(word):
                continue
            name_, kind, shape = (-(-n // pad) * pad for n in sizes)
            file.seek(at + name_)
            type_, form = file.read(kind), file.read(shape)
            if not head[1] & _SHARED_TYPE and type_[0] & 15 != _VARIABLE:
                continue
            sides = np.frombuffer(form[8 if form[:1] == b"\1" else 4 :][: 8 * form[1]], "<u8")
            count = math.prod(int(n) for n in sides)
            if count * 16 > size:
                raise ValueError(f"an attribute {name} of {count} texts")
            lengths = np.frombuffer(file.read(16 * count), "<u4")[::4]
            refuse_more(int(lengths.sum(dtype=np.int64)), size)


def _check_heaps(file: Any, size: int) -> None:
    """Raise ``ValueError`` where a heap of texts is damaged: HDF5's library can walk it for ever.

    A heap is 16 bytes, with its size in the last 8, then objects: 16 bytes, with the size of what
    follows in the last 8, padded to 8. An object of index 0 is the rest of the heap. (HDF5 file
    format specification, III.E.) A heap of other objects may be compressed, attributes too.
    """
    for at in _found(file, size, b"FRHP\0"):
        file.seek(at + 7)
        if any(file.read(2)):
            raise ValueError(f"a compressed heap at {at}")
    for at in _found(file, size, _HEAP):
        file.seek(at + 8)
        length = int.from_bytes(file.read(8), "little")
        if not 16 <= length <= min(size - at, _MOST_HEAP_BYTES):
            raise ValueError(f"a heap of {length} bytes at {at}")
        heap, place = file.read(length - 16), 0
        while place + 16 <= len(heap):
            index = int.from_bytes(heap[place : place + 2], "little")
            inside = int.from_bytes(heap[place + 8 : place + 16], "little")
            if inside > len(heap) - place or (not index and inside < 16):
                raise ValueError(f"an object of {inside} bytes in the heap at {at}")
            if not index:
                break
            place += 16 + (inside + 7) // 8 * 8


def _found(file: Any, size: int, word: bytes) -> Iterator[int]:
    """Where ``word`` begins in the file, which is read piece by piece."""
    for start in range(0, size, _PIECE_BYTES):
        file.seek(start)
        piece = file.read(_PIECE_BYTES + len(word) - 1)
        at = piece.find(word)
        while at >= 0:
            yield start + at
            at = piece.find(word, at + 1)


def _configuration(file: Any, size: int) -> Any:
    """The saved configuration of a model of Keras 1, as it stands in the file's bytes, or None.

    It is a text of variable length, which may be long.
    """
    file.seek(0)
    text = file.read(size).decode("latin-1")
    end = text.find('"dim_ordering"')
    decoder = json.JSONDecoder()
    for start in islice(re.finditer(r'\{"', text[: max(end, 0)]), _MOST_STARTS):
        try:
            return decoder.raw_decode(text, start.start())[0]
        except (ValueError, RecursionError):
            continue
    return None


def _texts(values: Any) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v) for v in values]


def _datasets(root: Any, h5py: Any) -> Iterator[tuple[str, Any]]:
    """All datasets of numbers by path; raises ``ValueError`` for what leads out of the file."""
    rest, count = deque([("", root)]), 0
    seen = set()
    while rest:
        path, group = rest.popleft()
        for name in group:
            count += 1
            if count > _MOST_DATASETS:
                raise ValueError(f"more than {_MOST_DATASETS} entries")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{path}{name} is a link to elsewhere")
            item = group[name]
            if isinstance(item, h5py.Group):
                if item.id in seen:
                    raise ValueError(f"{path}{name} contains itself")
                seen.add(item.id)
                rest.append((f"{path}{name}/", item))
            elif isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub":
                if item.external or item.is_virtual:
                    raise ValueError(f"the numbers of {path}{name} are in another file")
                yield f"{path}{name}", item


def _image_order(config: object, layer: str) -> str | None:
    """``"th"`` or ``"tf"``, as the saved configuration says of the layer's kernels; None if not."""
    rest, words = [config], []
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            if item.get("name") == layer and "dim_ordering" in item:
                words.append(str(item["dim_ordering"]))
            rest += item.values()
        elif isinstance(item, list):
            rest += item
    return words[0] if words else None


def _of_keras_1(layer: str, arrays: dict[str, Array], order: str | None) -> dict[str, Array]:
    """Keras 1's weights of a layer, ``layer_W``, as Keras 2 has them."""
    own = {n.removeprefix(layer).lstrip("_"): a for n, a in arrays.items()}
    gates = {frozenset(f"{w}_{g}" for w in "WUb" for g in word): word for word in _GATES.values()}
    word = gates.get(frozenset(own))
    if word:
        parts = {w: np.concatenate([own[f"{w}_{g}"] for g in word], axis=-1) for w in "WUb"}
        return {f"{layer}/{_OF_KERAS_1[w]}": parts[w] for w in "WUb"}
    found = {}
    for name, array in own.items():
        if name == "W" and array.ndim in (4, 5):
            array = _channels_last(layer, array, order)
        if name == "W" and set(own) == {"W"} and "embedding" in layer:
            name = "embeddings"
        found[f"{layer}/{_OF_KERAS_1.get(name, name)}"] = array
    return found


def _channels_last(layer: str, kernel: Array, order: str | None) -> Array:
    """A kernel (out, in, height, width) or (height, width, in, out) as the latter."""
    if order is None:
        sides = [max(kernel.shape[:2]) <= 11, max(kernel.shape[-2:]) <= 11]
        if sides[0] == sides[1]:
            raise FileFormatError(
                f"{layer}: its kernel of shape {kernel.shape} may be of Theano's order or of "
                f"TensorFlow's, and the file does not say. {ADVICE}"
            )
        order = "tf" if sides[0] else "th"
    return kernel if order == "tf" else np.moveaxis(kernel, (1, 0), (-2, -1))


def _order_3(config: object) -> list[str]:
    """The layers of a configuration in the model's order, by the names that files have of them."""
    found: list[str] = []
    counts: dict[str, int] = {}
    inside = config.get("config", {}) if isinstance(config, dict) else {}
    layers = inside.get("layers", []) if isinstance(inside, dict) else []
    for layer in layers if isinstance(layers, list) else []:
        name = re.sub(
            r"\W+", "", str(layer.get("class_name", "")) if isinstance(layer, dict) else ""
        )
        name = re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name))
        snake = name.lower()
        again = counts.get(snake, 0)
        counts[snake] = again + 1
        found.append(f"{snake}_{again}" if again else snake)
    return found


def _of_keras_3(datasets: dict[str, Any], order: Sequence[str] = ()) -> dict[str, Array]:
    """Keras 3's numbered variables, ``layers/dense/vars/0``, under Keras 2's names."""
    place = {name: i for i, name in enumerate(order)}
    layers: dict[str, dict[int, Any]] = {}
    for path, dataset in datasets.items():
        parts = path.split("/")
        if "vars" in parts[:-1] and parts[-1].isdigit() and parts[0] != "optimizer":
            layer = "/".join(
                p for p in parts[:-2] if p not in ("layers", "_layer_checkpoint_dependencies")
            )
            layers.setdefault(layer, {})[int(parts[-1])] = dataset
    if not layers:
        raise FileFormatError(f"an HDF5 file without Keras's weights. {ADVICE}")
    found = {}
    inner = sorted(layers, key=lambda n: place.get(n.partition("/")[0], len(place)))
    for layer in inner:
        numbered = layers[layer]
        values = [numbered[i][()] for i in sorted(numbered)]
        for name, value in zip(_names_3(layer, values), values):
            if name != "seed_generator_state":
                found[f"{layer}/{name}"] = value
    return found


def _names_3(layer: str, values: Sequence[Array]) -> list[str]:
    """Names of a layer's variables, which Keras 3 only numbers."""
    kind = re.sub(r"_\d+$", "", layer.rpartition("/")[2])
    sizes = [v.ndim for v in values]
    if kind == "cell":
        return ["kernel", "recurrent_kernel", "bias"][: len(values)]
    if kind == "embedding":
        return ["embeddings"]
    if kind == "batch_normalization" and len(values) == 4:
        return ["gamma", "beta", "moving_mean", "moving_variance"]
    if kind == "layer_normalization" and len(values) == 2:
        return ["gamma", "beta"]
    if sizes and sizes[0] >= 2 and sizes[1:] in ([], [1]):
        return ["kernel", "bias"][: len(values)]
    return ["seed_generator_state" if s == 1 and v.dtype.kind == "u" else f"variable_{i}"
            for i, (s, v) in enumerate(zip(sizes, values))]  # fmt: skip
