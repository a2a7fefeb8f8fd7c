"""JAX's weights into networks: the trees of Flax."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.io.parameters import mirrored
from symdnn.nn.formats.file import read_weights
from symdnn.nn.formats.keras import GATES, Group, load_groups, modules_of, named_for, wanted_by
from symdnn.nn.formats.slots import Loaded, refuse_flipped
from symdnn.nn.layers.conv import _Convolution, _FullConvolution
from symdnn.nn.layers.linear import Linear, LookupTable
from symdnn.nn.layers.recurrent import Recurrent
from symdnn.nn.modules.module import Module

Path = tuple[str, ...]
#: Collections of variables, which stand in front of a path and say nothing of the layer.
COLLECTIONS = ("params", "batch_stats")
#: Flax's names of what normalisation has, and Keras's, whose rules are used from there on.
NORMS = {"scale": "gamma", "bias": "beta", "mean": "moving_mean", "var": "moving_variance"}
#: Flax's letters of a cell's gates, by cuDNN's.
LETTERS = {
    "lstm": {"i": "i", "f": "f", "g": "g", "o": "o"}, "gru": {"z": "z", "r": "r", "n": "n"},
}  # fmt: skip


def load_flax(
    net: Module,
    source: object,
    *,
    layers: Mapping[str, str] | None = None,
    flattened: Mapping[str, Sequence[int]] | None = None,
) -> Loaded:
    """Load the variables of a Flax model into ``net``: a tree, or a file of its flattened paths.

    ``source`` is the tree itself (``{"params": {"Conv_0": {"kernel": ...}}, "batch_stats": ...}``,
    or what is under ``params``), with arrays of JAX or NumPy; a flat mapping with ``/`` or ``.``
    between names, or with tuples as keys; or a .npz or .safetensors file of such a mapping, as
    ``numpy.savez("net.npz", **flax.traverse_util.flatten_dict(variables, sep="/"))`` makes it.

    JAX sorts the names of trees, so layers are matched with modules by kind: the convolutions in
    the order of their numbers (``Conv_0``, ``Conv_1``; as they come where one has none), and so
    the dense layers, normalisations, embeddings and cells. ``layers`` names the module of a layer,
    and ``flattened`` says the maps, (height, width, channels), that a dense layer flattens, as in
    :func:`load_keras`.

    Converted are kernels (..., in, out) of ``Conv``, also grouped and depthwise ones, and of
    ``ConvTranspose`` without ``transpose_kernel``, which are mirrored; dense kernels (in, out);
    ``BatchNorm`` with its statistics; ``Embed``; ``LSTMCell``, ``OptimizedLSTMCell`` and
    ``GRUCell``. JAX's convolutions are cross-correlations, as here. Flax's normalisation has an
    eps of 1e-5.

    Raises :class:`~symdnn.errors.InputError` naming every problem, and changes nothing then.
    """
    arrays = _flat(source)
    modules = modules_of(net)
    groups = _groups(arrays)
    pairs = _matched(modules, groups, layers or {})
    for prefix, names in pairs:
        for layer in names:
            groups[layer] = _as_keras(modules[prefix], layer, groups[layer])
    return load_groups("load_flax", modules, groups, pairs, flattened or {})


def _flat(source: object) -> dict[str, Any]:
    """Arrays by path, with slashes."""
    if isinstance(source, str | os.PathLike):
        found = read_weights(source)
        refuse_flipped("load_flax", found.filter_flip)
        return dict(found)
    if not isinstance(source, Mapping):
        raise InputError(f"load_flax: wanted a tree, a mapping or a file, got {source!r:.80}")
    leaves = dict(_leaves(source, ()))
    return dict(read_weights({"/".join(path): value for path, value in leaves.items()}))


def _leaves(
    tree: Mapping[Any, Any], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        path = (*above, *(map(str, key) if isinstance(key, tuple) else [str(key)]))
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, getattr(value, "value", value)  # a leaf of nnx, or one with a partitioning


def _groups(arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Arrays by layer; those of a cell's gates under ``gate/kernel``."""
    found: dict[str, dict[str, Any]] = {}
    paths = {name: [s for s in re.split(r"[/.]", name) if s] for name in arrays}
    cells = {tuple(p[:-2]) for p in paths.values() if _is_gate(p, "h")}
    cells &= {tuple(p[:-2]) for p in paths.values() if _is_gate(p, "i")}
    for name, value in arrays.items():
        steps = paths[name]
        count = 2 if tuple(steps[:-2]) in cells else 1
        steps = steps[1:] if steps[0] in COLLECTIONS else steps
        found.setdefault("/".join(steps[:-count]), {})["/".join(steps[-count:])] = value
    return found


def _is_gate(path: Sequence[str], side: str) -> bool:
    """Whether a path ends as that of a gate's matrix or bias."""
    return len(path) > 2 and bool(re.fullmatch(f"{side}[ifgozrn]", path[-2]))


def _kind_of_layer(group: Mapping[str, Any]) -> str:
    if any("/" in own for own in group):
        return "recurrent"
    if "embedding" in group:
        return "embedding"
    if "kernel" in group:
        return "dense" if np.ndim(group["kernel"]) == 2 else "convolution"
    return "norm"


def _kind_of(module: Module) -> str:
    kinds = {"recurrent": Recurrent, "embedding": LookupTable, "dense": Linear}
    kinds["convolution"] = _Convolution
    return next((name for name, kind in kinds.items() if isinstance(module, kind)), "norm")


def _matched(
    modules: Mapping[str, Module], groups: Mapping[str, Group], layers: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """Each module's name with its layers: those named first, the others in order of each kind."""
    rest: dict[str, list[str]] = {}
    named: dict[str, list[str]] = {}
    for layer, group in groups.items():
        wanted = named_for(layers, layer)
        if wanted is None:
            rest.setdefault(_kind_of_layer(group), []).append(layer)
        elif wanted in modules:
            named.setdefault(wanted, []).append(layer)
        else:
            known = ", ".join(modules)
            raise InputError(f"load_flax: layers= says {wanted}, no module; there are {known}")
    for names in rest.values():
        if all(re.search(r"_\d+$", n) for n in names):
            names.sort(key=_numbers)
    pairs = []
    for prefix, module in modules.items():
        queue = rest.get(_kind_of(module), [])
        chosen = named.get(prefix) or [queue.pop(0) for _ in range(wanted_by(module)) if queue]
        pairs += [(prefix, chosen)] if chosen else []
    return pairs


def _numbers(path: str) -> list[Any]:
    """A path whose numbers sort as such."""
    return [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", path)]


def _as_keras(module: Module, layer: str, group: Mapping[str, Any]) -> Group:
    given = dict(group)
    if isinstance(module, Recurrent):
        return _cell(module, layer, given)
    if isinstance(module, _FullConvolution) and "kernel" in given:
        # JAX does not mirror the kernel of a transposed convolution, and it is (..., in, out).
        turned = mirrored(given["kernel"], range(np.ndim(given["kernel"]) - 2))
        given["kernel"] = np.swapaxes(turned, -1, -2)
    if "embedding" in given:
        given["embeddings"] = given.pop("embedding")
    if _kind_of(module) == "norm":
        given = {NORMS.get(k, k): v for k, v in given.items()}
    return given


def _cell(module: Recurrent, layer: str, group: dict[str, Any]) -> Group:
    """A cell's matrices side by side, gates in Keras's order."""
    letters = LETTERS.get(module.rnn_mode)
    if letters is None:
        raise InputError(f"load_flax: {layer}: Flax has no cell for {module.rnn_mode}")
    order = [letters[g] for g in GATES[module.rnn_mode]]
    parts: dict[str, list[Any]] = {}
    for side in "ih":
        for gate in order:
            kernel = group.pop(f"{side}{gate}/kernel", None)
            if kernel is None:
                raise InputError(f"load_flax: {layer} lacks {side}{gate}/kernel")
            bias = group.pop(f"{side}{gate}/bias", None)
            parts.setdefault(f"{side} kernel", []).append(kernel)
            zeros = np.zeros(np.shape(kernel)[1])
            parts.setdefault(f"{side} bias", []).append(zeros if bias is None else bias)
    both = np.stack([np.concatenate(parts[f"{side} bias"]) for side in "ih"])
    return {
        "kernel": np.concatenate(parts["i kernel"], axis=1),
        "recurrent_kernel": np.concatenate(parts["h kernel"], axis=1),
        "bias": both,
        **group,
    }
