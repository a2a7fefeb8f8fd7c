"""Weights of Theano's time: Lasagne's lists of arrays, and Torch7's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.variable import Shared
from symdnn.nn.formats.file import read_weights
from symdnn.nn.formats.slots import Loaded, Slot, flip_of, own_names, refuse_flipped, set_slots
from symdnn.nn.layers.conv import _Convolution, _FullConvolution
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.recurrent import Recurrent
from symdnn.nn.modules.checked import checked
from symdnn.nn.modules.module import Module

Array = np.ndarray[Any, Any]
Own = Mapping[str, Shared]


def load_theano(
    net: Module, arrays: object, *, filter_flip: bool | None = None, eps: float = 1e-4
) -> Loaded:
    """Load a list of arrays in the order of the layers, as Lasagne and most of Theano's programs.

    ``arrays`` is a list (Lasagne's ``get_all_param_values``), or a .npz file of ``arr_0``,
    ``arr_1``, ... as ``numpy.savez(path, *values)`` makes it. Each module with weights takes, in
    order: a convolution its kernel (out, in, height, width) and, if it has one, its bias; a dense
    layer W (in, out) and b; normalisation beta, gamma, mean and inverse deviation, Lasagne's
    1 / sqrt(variance + ``eps``); an embedding its rows.

    ``filter_flip=True`` says that the filters were used in a true convolution, the default of
    ``theano.tensor.nnet.conv2d`` and Lasagne's layers. They are mirrored in space here, because the
    modules compute cross-correlation. False is for filters of cuDNN layers (``Conv2DDNNLayer``,
    ``dnn_conv`` with ``conv_mode='cross'``). A file of :func:`symdnn.io.save_parameters` may say it
    itself; it is never guessed.

    Raises :class:`~symdnn.errors.InputError` if number or shapes do not fit, if ``filter_flip`` is
    unknown, and for recurrent and transposed layers, whose form differs from program to program.
    Then nothing is changed.
    """
    rest, said = _numbered(arrays)
    slots: dict[str, Slot] = {}
    given: dict[str, Array] = {}
    taken: list[str] = []
    count = len(rest)
    for prefix, module, own in _by_module(net):
        flips = _flips(module, said[count - len(rest) :], filter_flip)
        for name, value in _theano(prefix, module, own, rest, flips, eps):
            slots[prefix + name] = _slot(own[name])
            given[prefix + name] = value
    taken = [f"arr_{i}" for i in range(count - len(rest))]
    problems = [f"{len(rest)} of {count} arrays are left over"] if rest else []
    set_slots("load_theano", slots, given, problems)
    return Loaded(tuple(taken), (), ())


def _slot(variable: Shared) -> Slot:
    return Slot(variable, variable.get_value(borrow=True).shape)


def _by_module(net: Module) -> Iterator[tuple[str, Module, dict[str, Shared]]]:
    """(prefix with its dot, module, its own variables) of the modules that have some."""
    found: dict[int, tuple[str, Module, dict[str, Shared]]] = {}
    for prefix, module, name, variable in own_names(net):
        found.setdefault(id(module), (prefix, module, {}))[2][name] = variable
    return iter(found.values())


def _flips(module: Module, said: Sequence[bool | None], given: bool | None) -> bool:
    """Whether the module's weights, the next array, are filters of a true convolution."""
    if not isinstance(module, _Convolution) or isinstance(module, _FullConvolution) or not said:
        return False
    return flip_of("load_theano", f"of {type(module).__name__}", said[0], given)


def _numbered(arrays: object) -> tuple[list[Array], list[bool | None]]:
    """Arrays in order, and what their file says of filters."""
    if isinstance(arrays, list | tuple):
        return [np.asarray(a) for a in arrays], [None] * len(arrays)
    found = read_weights(arrays)
    names = [f"arr_{i}" for i in range(len(found))]
    try:
        return [found[n] for n in names], [found.filter_flip.get(n) for n in names]
    except KeyError as error:
        raise InputError(
            f"load_theano: wanted arrays named arr_0 to arr_{len(found) - 1}, no {error}; give a "
            "list in the order of the layers"
        ) from None


def _theano(
    prefix: str, module: Module, own: Own, rest: list[Array], flip: bool, eps: float
) -> Iterator[tuple[str, Array]]:
    """The module's weights by name, taken from the front of ``rest``."""
    if isinstance(module, Recurrent | _FullConvolution):
        raise InputError(
            f"load_theano: {prefix}{type(module).__name__} has no order of its own in Theano; set "
            "its weights by state_dict or set_weights. Nothing was changed"
        )
    order = ["bias", "weight", "running_mean", "running_var"]
    if "running_mean" not in own:
        order = ["weight", "bias"]
    for name in order:
        if name not in own:
            continue
        if not rest:
            raise InputError(f"load_theano: no array is left for {prefix}{name}")
        value = rest.pop(0)
        if name == "weight" and isinstance(module, _Convolution) and flip:
            value = value[(slice(None), slice(None)) + (slice(None, None, -1),) * module.ndim]
        elif name == "weight" and isinstance(module, Linear):
            value = value.T
        elif name == "running_var":
            value = 1 / value.astype("float64") ** 2 - eps
        yield name, value


@checked
def load_torch7(net: Module, source: object) -> Loaded:
    """Load weights under Torch7's names, a .t7, .npz or .safetensors file or a mapping, into
    ``net``.

    Names are paths through ``modules``, counted from 1: ``modules.1.weight``, or ``1.weight``; what
    ``net:get(1).weight`` is. Shapes may be those of older layers: a convolution's weight as a
    matrix (out, in x height x width) or with its groups apart (groups, out / groups, ...), any
    form of cuDNN's recurrent vector. ``running_std``, which older normalisation kept instead of
    ``running_var``, is 1 / sqrt(variance + eps) with the module's eps. Gradients
    (``gradWeight``, ``gradBias``) are ignored.

    Raises :class:`~symdnn.errors.InputError` with every problem, and then changes nothing.
    """
    owners = {p + n: (m, v) for p, m, n, v in own_names(net)}
    given: dict[str, Array] = {}
    loaded, problems, ignored = [], [], []
    found = read_weights(source)
    refuse_flipped("load_torch7", found.filter_flip)
    for old, value in found.items():
        name, own = _from_torch7(old)
        if own.startswith("grad"):
            ignored.append(old)
            continue
        if own == "running_std":
            name = name.removesuffix("std") + "var"
        if name not in owners:
            problems.append(f"{old} is unknown")
            continue
        module, variable = owners[name]
        if own == "running_std":
            value = 1 / value.astype("float64") ** 2 - float(getattr(module, "eps", 1e-5))
        given[name] = _reshaped(module, value, variable.get_value(borrow=True).shape)
        loaded.append(old)
    problems += [f"{n} is missing" for n in owners if n not in given]
    slots = {n: _slot(v) for n, (_, v) in owners.items()}
    set_slots("load_torch7", slots, given, problems)
    return Loaded(tuple(loaded), (), (), tuple(ignored))


def _from_torch7(name: str) -> tuple[str, str]:
    """Our name, numbers counted from 0 and without ``modules``; and its last part."""
    steps = [s for s in name.replace("/", ".").split(".") if s != "modules"]
    counted = [str(int(s) - 1) if s.isdigit() else s for s in steps]
    return ".".join(counted), counted[-1]


def _reshaped(module: Module, value: Array, shape: Sequence[int]) -> Array:
    """Another form of the same numbers, where the module is known to have had one."""
    older = isinstance(module, _Convolution | Recurrent)
    if older and value.shape != tuple(shape) and value.size == int(np.prod(shape)):
        return value.reshape(shape)
    return value
