"""Which parameters an optimiser trains, with which settings: modules, lists, groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.errors import DisconnectedInput, InputError, TypeMismatch, UnknownWord, UnusedParameter
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Shared, Variable
from symdnn.nn.modules.arguments import warn
from symdnn.nn.modules.checked import KINDS
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.naming import local_name
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.elementwise.arithmetic import sqr, sqrt


@dataclass(frozen=True)
class Parameter:
    """A trained variable: its name, the group that it is in, and its settings."""

    name: str
    variable: Shared
    group: int
    options: Mapping[str, Any]
    #: A factor of the learning rate.
    lr_scale: float = 1.0
    #: Whether weight decay applies.
    decays: bool = True

    @property
    def value(self) -> Variable:
        """What a step changes."""
        return self.variable

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """The shape of its state, and the static one."""
        return self.variable.storage.shape, self.variable.type.shape

    def norms(self, *values: Variable) -> list[Variable]:
        """The norms of values of its shape."""
        return [sqrt(total(sqr(v))) for v in values]

    def spread(self, v: Variable) -> Variable:
        """What :meth:`norms` gave, or follows from it, as a factor of such values."""
        return v


def matrices_only(name: str, parameter: Shared) -> bool:
    """Whether a parameter has two dimensions or more: no bias, and no scale of a normalisation.

    The usual ``decays=`` of an optimiser.
    """
    return int(parameter.type.ndim) > 1


def flat_parameters(
    what: str, params: Any, options: Mapping[str, Any], common: Mapping[str, Any]
) -> list[Parameter]:
    """The parameters in order, from a module, a list of variables, or a list of groups.

    A group is ``(module or variables, {option: value})``, or PyTorch's ``{"params": variables,
    option: value}``; its options go before ``options``, and ``lr_scale`` is among them. A module's
    parameters have the module's names; those of a list are named by their place. Those of which a
    program has set ``requires_grad = False`` are left out, as in PyTorch. Raises
    :class:`~symdnn.errors.InputError` for a parameter that is there twice, an unknown option, or
    none at all.
    """
    found: list[Parameter] = []
    for i, (names, own) in enumerate(_groups(what, params)):
        _check_own(what, own, options)
        settings = {**options, **own}
        for name, v in names.items():
            if not v.requires_grad:
                continue
            scale = float(settings.get("lr_scale", 1.0)) * _factor(common, name, v)
            decays = common.get("decays")
            decaying = True if decays is None else bool(decays(name, v))
            found.append(Parameter(name, v, i, settings, scale, decaying))
    if not found:
        raise InputError(f"{what}: there is no parameter to train in {params!r:.60}")
    _check_once(what, found)
    _check_factors(what, common, found)
    return found


def connected(
    what: str, found: Sequence[Parameter], grads: Sequence[Variable | None],
    common: Mapping[str, Any],
) -> tuple[list[Parameter], list[Variable]]:  # fmt: skip
    """The parameters that have a gradient, and the gradients.

    The others are named in one warning, in an error, or not at all, by ``disconnected_inputs``.
    """
    when = common.get("disconnected_inputs", "warn")
    if not isinstance(when, str) or when not in ("warn", "ignore", "raise"):
        raise UnknownWord(
            f"{what}: disconnected_inputs={when!r}; wanted 'warn', 'ignore' or 'raise'"
        )
    unused = [str(p.variable.name or p.name) for p, g in zip(found, grads) if g is None]
    text = f"{what}: the loss does not depend on {', '.join(unused)}"
    if len(unused) == len(found):
        raise DisconnectedInput(f"{text}: there is nothing to train")
    if unused and when == "raise":
        raise DisconnectedInput(f"{text} in a differentiable way")
    if unused and when == "warn":
        warn(
            f"{text}, which will stay as {'it is' if len(unused) == 1 else 'they are'}. Pass "
            "disconnected_inputs='ignore' to the optimiser if that is meant",
            UnusedParameter,
        )
    pairs = [(p, g) for p, g in zip(found, grads, strict=True) if g is not None]
    return [p for p, _ in pairs], [g for _, g in pairs]


def _groups(what: str, params: Any) -> Iterator[tuple[dict[str, Shared], Mapping[str, Any]]]:
    """The named variables of each group, and its options."""
    if isinstance(params, Module):
        yield params.named_parameters(), {}
        return
    items = _entries(params)
    if not any(_is_group(item) for item in items):
        yield _named(what, items), {}
        return
    for i, item in enumerate(items):
        inside, own = _apart(item) if _is_group(item) else (item, {})
        if isinstance(inside, Module):
            names: dict[str, Shared] = inside.named_parameters()
        else:
            names = _named(what, _entries(inside))
        yield {f"{i}.{name}": v for name, v in names.items()}, own


def _entries(params: Any) -> list[Any]:
    """As a list: the values of a dict, what an iterator gives, or one thing alone."""
    if _is_group(params):
        return [params]
    if isinstance(params, Mapping):
        return list(params.values())
    several = isinstance(params, Iterable) and not isinstance(params, Variable | str)
    return list(params) if several else [params]


#: Options that PyTorch calls otherwise.
_OWN_NAMES = {"initial_accumulator_value": "initial"}


def _is_group(item: Any) -> bool:
    if isinstance(item, Mapping):  # PyTorch's form
        return "params" in item and not isinstance(item["params"], Shared)
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping)


def _apart(group: Any) -> tuple[Any, Mapping[str, Any]]:
    """What a group trains, and its options."""
    if isinstance(group, Mapping):
        inside, own = group["params"], {k: v for k, v in group.items() if k != "params"}
    else:
        inside, own = group
    return inside, {_OWN_NAMES.get(k, k): v for k, v in own.items()}


def _named(what: str, variables: Sequence[Any]) -> dict[str, Shared]:
    for v in variables:
        if not isinstance(v, Shared):
            raise TypeMismatch(
                what, "a module, shared variables, or groups (variables, {option: value})", repr(v)
            )
        if not isinstance(v.type, TensorType) or not v.type.is_float:
            raise TypeMismatch(what, "float parameters", f"{v} of type {v.type}")
    # By the name without a path, which checkpoints had before there were paths.
    names = [local_name(v) for v in variables]
    return {f"{i}.{n}" if n else str(i): v for i, (n, v) in enumerate(zip(names, variables))}


def _check_own(what: str, own: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if unknown := sorted(map(str, set(own) - set(options) - {"lr_scale"})):
        raise InputError(
            f"{what}: a group has no option {', '.join(unknown)}; there are lr_scale, "
            f"{', '.join(options)}"
        )
    check_options(what, own)


#: Options that are no numbers, and the kind that they are.
_KINDS = {
    "lr": "Number", "betas": "Betas", "nesterov": "bool", "amsgrad": "bool", "centered": "bool",
    "decoupled_weight_decay": "bool", "etas": "Betas", "step_sizes": "Betas", "ns_steps": "int",
    "ns_coefficients": "Sequence", "adjust_lr_fn": "str",
}  # fmt: skip
#: Options of any sign, and words.
_FREE = ("adjust_lr_fn", "beta2_decay", "ns_coefficients")


def check_options(what: str, options: Mapping[str, Any]) -> None:
    """Refuse values of an optimiser's own options: of wrong types, and out of range."""
    for option, value in options.items():
        if value is None and option in ("adjust_lr_fn", "eps1"):
            continue
        wanted, takes = KINDS[_KINDS.get(option, "float")]
        if not takes(value):
            raise InputError(f"{what}: {option}={value!r:.60}; wanted {wanted}")
        bounded = option in ("betas", "rho", "alpha")
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, Variable) or option in _FREE:
                continue
            if not 0 <= number < (1 if bounded else float("inf")):
                words = "from 0 to less than 1" if bounded else "0 or more"
                raise ValueError(f"{what}: {option}={value}; wanted {words}")


def _factor(common: Mapping[str, Any], name: str, v: Shared) -> float:
    given: Mapping[Any, float] | Callable[[str, Shared], float] = common.get("lr_scale") or {}
    if callable(given):
        return float(given(name, v))
    return float(given.get(v, given.get(name, 1.0)))


def _check_factors(what: str, common: Mapping[str, Any], found: Sequence[Parameter]) -> None:
    given = common.get("lr_scale") or {}
    if callable(given):
        return
    known = {p.name for p in found} | {p.variable for p in found}
    if unknown := [str(k) for k in given if k not in known]:
        names = ", ".join(p.name for p in found)
        raise InputError(f"{what}: lr_scale has {', '.join(unknown)}; the parameters are {names}")


def _check_once(what: str, found: Sequence[Parameter]) -> None:
    seen: dict[Shared, str] = {}
    for p in found:
        if p.variable in seen:
            raise InputError(f"{what}: {p.name} is the parameter {seen[p.variable]} again")
        seen[p.variable] = p.name
