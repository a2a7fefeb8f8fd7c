"""Keras's weights into networks: filters with channels last, dense weights (in, out), its gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.io.parameters import mirrored
from symdnn.nn.formats.file import read_weights
from symdnn.nn.formats.slots import Loaded, Slot, flip_of, own_names, set_slots
from symdnn.nn.layers.conv import _Convolution, _FullConvolution
from symdnn.nn.layers.linear import Linear, LookupTable
from symdnn.nn.layers.recurrent import Recurrent
from symdnn.nn.modules.module import Module

Array = np.ndarray[Any, Any]
Group = dict[str, Array]
#: Keras's names of the variables of normalisation.
NORMS = {
    "gamma": "weight", "beta": "bias", "moving_mean": "running_mean",
    "moving_variance": "running_var",
}  # fmt: skip
#: The order of the gates in Keras's columns, by cuDNN's letters: i, f, c, o and z, r, h.
GATES = {
    "lstm": ("i", "f", "g", "o"), "gru": ("z", "r", "n"), "rnn_tanh": ("h",), "rnn_relu": ("h",),
}  # fmt: skip


def load_keras(
    net: Module,
    source: object,
    *,
    layers: Mapping[str, str] | None = None,
    flattened: Mapping[str, Sequence[int]] | None = None,
    filter_flip: bool | None = None,
) -> Loaded:
    """Load Keras's weights, a .h5, .keras, .npz or .safetensors file or a mapping of arrays, into
    ``net``.

    h5py reads the files of Keras 1, 2 and 3 (``save``, ``save_weights``), and none of their code
    runs. Keras 1's names become Keras 2's. Names are those of Keras's variables, ``v.path`` in
    Keras 3 or ``v.name`` in Keras 2, as in ``numpy.savez("net.npz", **{v.path: v.numpy() for v in
    model.weights})``. The part before the last slash names a layer. Layers are matched with the
    modules that have weights, in order, or by ``layers``: Keras's layer (a part of its path is
    enough) to the module's name. A recurrent module of several layers or two directions takes that
    many layers of Keras, forward before backward.

    Converted are kernels of convolutions (height, width, in, out), of transposed ones (height,
    width, out, in), of depthwise ones, dense kernels (in, out), batch normalisation, embeddings,
    and recurrent kernels with their gates: i, f, c, o of an LSTM, z, r, h of a GRU, which must have
    ``reset_after=True`` (Keras's default).

    ``filter_flip`` is False for kernels of cross-correlations, which Keras's convolutions are on
    TensorFlow, JAX and PyTorch, as here. It is True for those trained by Keras 1 or 2 on Theano,
    whose convolutions are true ones: such kernels are mirrored. A file of
    :func:`symdnn.io.save_parameters` may say it itself; it is never guessed.

    Keras flattens (height, width, channels), symdnn (channels, height, width):
    ``flattened={"dense": (7, 7, 64)}`` reorders the rows of a dense kernel after a flatten. Keras's
    normalisation has an eps of 1e-3 by default. It is not a weight: pass it to the module.

    Returns the outcome for each name; every weight of the network must be found. Raises
    :class:`~symdnn.errors.InputError` with every problem, and then changes nothing.
    """
    found = read_weights(source)
    groups, flips, modules = _groups(found), _groups(found.filter_flip), modules_of(net)
    pairs = _matched(modules, groups, layers or {})
    for prefix, names in pairs:
        module = modules[prefix]
        if isinstance(module, _Convolution):
            said = next(iter(flips.get(names[0], {}).values()), None)
            if flip_of("load_keras", f"of {names[0]}", said, filter_flip):
                groups[names[0]] = _mirrored(groups[names[0]], module.ndim)
    return load_groups("load_keras", modules, groups, pairs, flattened or {})


def load_groups(
    who: str,
    modules: Mapping[str, Module],
    groups: Mapping[str, Group],
    pairs: Sequence[tuple[str, Sequence[str]]],
    flattened: Mapping[str, Sequence[int]],
) -> Loaded:
    """Load layers in Keras's form; ``pairs`` has the names of modules, each with its layers' names.

    Raises :class:`~symdnn.errors.InputError` with every problem, and then changes nothing.
    """
    slots: dict[str, Slot] = {}
    given: Group = {}
    problems: list[str] = []
    taken: list[str] = []
    for prefix, names in pairs:
        module = modules[prefix]
        shapes = [named_for(flattened, n) for n in names]
        try:
            parts = _converted(module, [dict(groups[n]) for n in names], shapes)
        except InputError as error:
            problems.append(f"{' and '.join(names)} for {prefix or 'the network'}: {error}")
            continue
        taken += [f"{n}/{w}" for n in names for w in groups[n]]
        for own, (slot, value) in parts.items():
            name = f"{prefix}.{own}" if prefix else own
            slots[name], given[name] = slot, value
    used = {n for _, names in pairs for n in names}
    problems += [f"{n} fits no module of the network" for n in groups if n not in used]
    problems += [f"{p or 'the network'} got no layer" for p in modules if p not in dict(pairs)]
    set_slots(who, slots, given, problems)
    return Loaded(tuple(taken), (), ())


def _mirrored(group: Group, ndim: int) -> Group:
    """The kernels of a layer, (..., in, out), turned round in space."""
    return {k: mirrored(v, range(min(ndim, v.ndim))) if "kernel" in k else v
            for k, v in group.items()}  # fmt: skip


def _groups(arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Arrays (or their descriptions) by layer, then by the weight's own name."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in arrays.items():
        layer, _, own = name.partition(":")[0].rpartition("/")
        if own != "seed_generator_state":
            found.setdefault(layer, {})[own] = value
    return found


def modules_of(net: Module) -> dict[str, Module]:
    """Modules that have weights of their own, by name."""
    return {prefix.removesuffix("."): module for prefix, module, _, _ in own_names(net)}


def named_for(table: Mapping[str, Any], layer: str) -> Any:
    """The entry of ``table`` for a layer: by its path, or by the longest part of it."""
    fits = [k for k in table if f"/{k}/" in f"/{layer}/"]
    return table[max(fits, key=len)] if fits else None


def _matched(
    modules: Mapping[str, Module], groups: Mapping[str, Group], layers: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """Each module's name with its layers of Keras's: those named first, the others in order."""
    named: dict[str, list[str]] = {}
    for layer in groups:
        wanted = named_for(layers, layer)
        if wanted is None:
            continue
        if wanted not in modules:
            raise InputError(
                f"load_keras: layers= says {wanted}, which has no weights; there are "
                f"{', '.join(modules)}"
            )
        named.setdefault(wanted, []).append(layer)
    chosen = {layer for names in named.values() for layer in names}
    rest = (layer for layer in groups if layer not in chosen)
    pairs = []
    for prefix, module in modules.items():
        names = named.get(prefix) or list(islice(rest, wanted_by(module)))
        pairs += [(prefix, names)] if names else []
    return pairs


def wanted_by(module: Module) -> int:
    """How many layers of Keras's make this module."""
    if isinstance(module, Recurrent):
        return module.numberOfLayers * module.directions
    return 1


Parts = dict[str, tuple[Slot, Array]]


def _converted(module: Module, groups: Sequence[Group], shapes: Sequence[Any]) -> Parts:
    """The module's weights by name, from its layers of Keras's."""
    if isinstance(module, Recurrent):
        return _recurrent(module, groups)
    group = groups[0]
    if isinstance(module, _Convolution):
        return _whole(module, {"weight": _kernel(module, group), "bias": _bias(group)}, group)
    if isinstance(module, Linear):
        weight = _dense(_taken(group, "kernel"), shapes[0])
        return _whole(module, {"weight": weight, "bias": _bias(group)}, group)
    if isinstance(module, LookupTable):
        return _whole(module, {"weight": _taken(group, "embeddings")}, group)
    if hasattr(module, "weight") and set(group) <= set(NORMS):
        return _whole(module, {NORMS[k]: group.pop(k) for k in list(group)}, group)
    raise InputError(f"{type(module).__name__} has no rule for {', '.join(group)}")


def _taken(group: Group, *names: str) -> Array:
    """Remove and return the first of these weights that the layer has."""
    for name in names:
        if name in group:
            return group.pop(name)
    raise InputError(f"wanted a {names[0]}, got {', '.join(group) or 'nothing'}")


def _bias(group: Group) -> Array | None:
    return group.pop("bias", None)


def _whole(module: Module, values: Mapping[str, Array | None], rest: Group) -> Parts:
    """Values for all weights of a module; Keras omits constant ones (1 or 0)."""
    own = {n: v for _, m, n, v in own_names(module) if m is module}
    given = {n: np.asarray(v) for n, v in values.items() if v is not None}
    if unknown := [*rest, *(n for n in given if n not in own)]:
        raise InputError(f"{type(module).__name__} has no place for {', '.join(unknown)}")
    parts = {}
    for name, variable in own.items():
        shape = variable.get_value(borrow=True).shape
        neutral = np.ones if name in ("weight", "running_var") else np.zeros
        parts[name] = (Slot(variable, shape), given.get(name, neutral(shape)))
    return parts


def _kernel(module: Any, group: Group) -> Array:
    """The filter of Keras's kernel (window..., in, out), in the layout of ``module``."""
    depthwise = "depthwise_kernel" in group
    kernel = _taken(group, "kernel", "depthwise_kernel")
    n = module.ndim
    if kernel.ndim != n + 2:
        raise InputError(f"wanted a kernel of {n + 2} dimensions, got shape {kernel.shape}")
    if isinstance(module, _FullConvolution):
        return kernel.transpose(n + 1, n, *range(n))  # (..., out, in) to (in, out, ...)
    per_input = module.nOutputPlane // module.nInputPlane
    apart = module.groups == module.nInputPlane
    if depthwise or (apart and kernel.shape[n:] == (module.nInputPlane, per_input) != (1, 1)):
        moved = kernel.transpose(n, n + 1, *range(n))  # (..., in, each) to (in * each, 1, ...)
        return moved.reshape(-1, 1, *kernel.shape[:n])
    return kernel.transpose(n + 1, n, *range(n))


def _dense(kernel: Array, shape: Sequence[int] | None) -> Array:
    """(in, out) to (out, in); rows of (height, width, channels) become channel-first."""
    if kernel.ndim != 2:
        raise InputError(f"wanted a dense kernel (in, out), got shape {kernel.shape}")
    if shape is None:
        return kernel.T
    if int(np.prod(shape)) != len(kernel):
        raise InputError(f"flattened={tuple(shape)} has other than {len(kernel)} entries")
    maps = kernel.reshape(*shape, -1)
    order = (maps.ndim - 2, *range(maps.ndim - 2), maps.ndim - 1)
    return maps.transpose(order).reshape(kernel.shape).T


def _recurrent(module: Recurrent, groups: Sequence[Group]) -> Parts:
    """All matrices and biases of a recurrent module, from one layer of Keras's for each part."""
    wanted = wanted_by(module)
    if len(groups) != wanted:
        raise InputError(f"wanted {wanted} recurrent layers, got {len(groups)}")
    parts: Parts = {}
    for index, group in enumerate(groups):
        layer, direction = divmod(index, module.directions)
        values = _gates(module, group)
        for part in module.parts():
            if (part.layer, part.direction) == (layer, direction):
                slot = Slot(module.weight, part.shape, part.offset)
                parts[part.name] = (slot, values[part.kind](part.gate))
    return parts


def _gates(module: Recurrent, group: Group) -> dict[str, Callable[[str], Array]]:
    """For each kind of part, its value by gate."""
    mode, hidden = module.rnn_mode, module.outputDim
    order = GATES[mode]
    kernel = _taken(group, "kernel").T
    recurrent = _taken(group, "recurrent_kernel").T
    bias = _bias(group)
    if group:
        raise InputError(f"{', '.join(group)} have no place")
    for what, value in (("kernel", kernel), ("recurrent_kernel", recurrent)):
        if value.ndim != 2 or len(value) != len(order) * hidden:
            raise InputError(
                f"wanted a {what} with {len(order)} x {hidden} columns for {mode}, got shape "
                f"{value.T.shape}"
            )
    both = _two_biases(bias, mode, len(kernel))
    if module.proj_size:
        raise InputError("it has no projections (proj_size)")
    if not module.bias and both.any():
        raise InputError("it has biases, and the layer is made with bias=False")

    def rows(value: Array) -> Callable[[str], Array]:
        return lambda gate: value[order.index(gate) * hidden :][:hidden]

    named = {"W": kernel, "R": recurrent, "bW": both[0], "bR": both[1]}
    return {kind: rows(value) for kind, value in named.items()}


def _two_biases(bias: Array | None, mode: str, count: int) -> Array:
    """The biases of the input and recurrent matrix products, (2, gates * hidden)."""
    if bias is None:
        return np.zeros((2, count))
    if mode == "gru" and bias.ndim == 1:
        raise InputError(
            "a GRU with reset_after=False multiplies by the reset gate before the product, which "
            "no layer here does; train it with reset_after=True"
        )
    both = bias if bias.ndim == 2 else np.stack([bias, np.zeros_like(bias)])
    if both.shape != (2, count):
        raise InputError(f"wanted a bias of {count}, got shape {bias.shape}")
    return both
