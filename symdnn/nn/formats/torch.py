"""PyTorch's state dicts into networks, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.nn.formats.file import read_weights
from symdnn.nn.formats.slots import Loaded, Slot, own_names, refuse_flipped, set_slots
from symdnn.nn.layers.recurrent import Recurrent
from symdnn.nn.modules.checked import checked
from symdnn.nn.modules.module import Module

Array = np.ndarray[Any, Any]
#: A counter of PyTorch's batch normalisation, which symdnn does not use.
COUNTER = "num_batches_tracked"
#: Prefixes of the names of a recurrent module's weights.
_RECURRENT = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")


@checked
def load_torch(
    net: Module,
    source: object,
    *,
    strict: bool = True,
    rename: Mapping[str, str | None] | None = None,
    key: str | None = None,
) -> Loaded:
    """Load the state dict ``source``, a file or a mapping of arrays, into ``net``.

    Files are .safetensors, .npz, and .pt or .pth (see :func:`read_weights`; ``key`` as there).
    Names are the network's own, those of recurrent layers ``weight_ih_l0``, ``bias_hh_l1_reverse``
    and so on. ``rename`` maps beginnings of the source's names to others, the longest that fits
    first; None leaves these weights out: ``{"module.": "", "fc.": None}``.

    Recurrent layers without biases (PyTorch's ``bias=False``) get zeros for them.

    Returns the outcome for each name. With ``strict``, unmatched or missing names are an error.
    Values are cast to the network's dtypes. After an error nothing has changed. Raises
    :class:`~symdnn.errors.InputError` with every problem.
    """
    slots = torch_slots(net)
    found = read_weights(source, key)
    refuse_flipped("load_torch", found.filter_flip)
    given, ignored = _renamed(found, rename or {})
    _refuse_projections(given, slots)
    ignored |= {n: n for n in given if n.endswith(COUNTER) and n not in slots}
    unmatched = [n for n in given if n not in slots and n not in ignored]
    chosen = {n: v for n, v in given.items() if n in slots}
    zeros = _biases_of_none(slots, chosen)
    missing = _missing(slots, {**chosen, **zeros}, ignored)
    problems = []
    if strict:
        problems += [f"{n} is missing" for n in missing]
        problems += [f"{n} is unknown" for n in unmatched]
        if problems and not chosen:
            problems.append("no name fits; rename= may take a prefix away")
    set_slots("load_torch", slots, {**chosen, **zeros}, problems)
    return Loaded(tuple(chosen), tuple(unmatched), tuple(missing), tuple(ignored.values()))


@checked
def to_torch(net: Module) -> dict[str, Array]:
    """Copies of the network's weights under PyTorch's names, with separate recurrent weights.

    ``symdnn.io.save_parameters("net.safetensors", nn.to_torch(net))`` makes a file that
    ``safetensors.torch.load_file`` reads; ``model.load_state_dict`` takes its contents.
    """
    return {n: np.array(s.part(s.variable.get_value())) for n, s in torch_slots(net).items()}


def torch_slots(net: Module) -> dict[str, Slot]:
    """Every weight of the network by its name in PyTorch."""
    found: dict[str, Slot] = {}
    for prefix, module, name, variable in own_names(net):
        if isinstance(module, Recurrent) and variable is module.weight:
            found.update((prefix + n, slot) for n, slot in _recurrent(module).items())
        else:
            found[prefix + name] = Slot(variable, variable.get_value(borrow=True).shape)
    return found


def _recurrent(module: Recurrent) -> dict[str, Slot]:
    """The names of a recurrent layer: PyTorch joins the gates of a matrix, which are one array."""
    word = {
        "W": "weight_ih", "R": "weight_hh", "bW": "bias_ih", "bR": "bias_hh", "P": "weight_hr",
    }  # fmt: skip
    gates = len(module.layout.gates)
    return {
        f"{word[p.kind]}_l{p.layer}{'_reverse' if p.direction else ''}": Slot(
            module.weight, ((gates if p.gate else 1) * p.shape[0], *p.shape[1:]), p.offset
        )
        for p in module.parts()
        if p.gate in (module.layout.gates[0], "")
    }


def _renamed(
    given: Mapping[str, Array], rename: Mapping[str, str | None]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays by their new names, and the old names of those that are left out by the new ones."""
    kept: dict[str, Array] = {}
    out: dict[str, str] = {}
    others = {old: new for old, new in rename.items() if new is not None}
    for name, value in given.items():
        begins = _longest(name, rename)
        beginning = _longest(name, others)
        new = f"{others[beginning]}{name[len(beginning) :]}" if beginning is not None else name
        if begins is not None and rename[begins] is None:
            out[new] = name
        elif new in kept:
            raise InputError(f"load_torch: after rename two weights are called {new}")
        else:
            kept[new] = value
    return kept, out


def _longest(name: str, beginnings: Iterable[str]) -> str | None:
    return max((b for b in beginnings if name.startswith(b)), key=len, default=None)


def _biases_of_none(slots: Mapping[str, Slot], chosen: Mapping[str, Any]) -> dict[str, Array]:
    """Zeros for the biases of recurrent modules that came whole, but without a single bias."""
    modules: dict[str, list[str]] = {}
    for name in slots:
        prefix, _, own = name.rpartition(".")
        if own.startswith(_RECURRENT):
            modules.setdefault(prefix, []).append(name)
    found: dict[str, Array] = {}
    for names in modules.values():
        biases = [n for n in names if n.rpartition(".")[2].startswith("bias")]
        if all((n in chosen) is (n not in biases) for n in names):
            found.update((n, np.zeros(slots[n].shape)) for n in biases)
    return found


def _missing(
    slots: Mapping[str, Slot], chosen: Mapping[str, Any], ignored: Mapping[str, str]
) -> list[str]:
    """Names without a value, also under other names of the same variable."""
    got = {(slots[n].variable, slots[n].start) for n in chosen}
    return [n for n, s in slots.items() if (s.variable, s.start) not in got and n not in ignored]


def _refuse_projections(given: Mapping[str, Any], slots: Mapping[str, Slot]) -> None:
    names = [n for n in given if n.rpartition(".")[2].startswith("weight_hr_l")]
    if found := [n for n in names if n not in slots]:
        raise InputError(
            f"load_torch: {', '.join(found)}: the weights are those of an LSTM with projections; "
            "make the layer with proj_size=. Nothing was changed"
        )
