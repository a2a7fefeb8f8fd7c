"""The values of modules: copies by name, files, copies of whole modules, other dtypes."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from symdnn.compile.shared import shared
from symdnn.errors import InputError
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Shared
from symdnn.io.parameters import PathLike, load_parameters, save_parameters
from symdnn.nn.modules.inside import replaced

__all__ = ["State", "set_values"]


class State:
    """Methods of :class:`Module` for the values of its shared variables."""

    def named_parameters(self) -> dict[str, Shared]:
        """The trained variables by name."""
        raise NotImplementedError

    def named_buffers(self) -> dict[str, Shared]:
        """The saved variables that are not trained."""
        raise NotImplementedError

    def named_modules(self, prefix: str = "") -> Any:
        """This module and all inside, by name."""
        raise NotImplementedError

    # -- by name ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copies of the values of parameters and buffers, as NumPy arrays by name."""
        named = {**self.named_parameters(), **self.named_buffers()}
        return {name: np.array(v.get_value()) for name, v in named.items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Self:
        """Set values by name: all of them, or none if one does not fit.

        ``strict`` refuses names that are missing or unknown; a variable that several modules have
        may be named by each, with one value. Raises :class:`~symdnn.errors.InputError`, which names
        the values that do not fit.
        """
        named = {**self.named_parameters(), **self.named_buffers()}
        if isinstance(state, Mapping):
            state = self._by_first_name(named, state)
        set_values(f"{type(self).__name__}.load_state_dict", named, state, strict)
        return self

    def _by_first_name(
        self, named: Mapping[str, Shared], state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """``state`` with each variable under the first of its names."""
        first = {id(v): name for name, v in named.items()}
        values = dict(state)
        for name, value in state.items():
            if name in named or (own := first.get(id(self._at(name)))) is None:
                continue
            del values[name]
            if not _same(values.setdefault(own, value), value):
                raise InputError(
                    f"{type(self).__name__}.load_state_dict: {own} and {name} are one variable, "
                    "and their values differ. Nothing was changed"
                )
        return values

    def _at(self, name: object) -> Shared | None:
        """The variable that one path of names leads to; not only the first one does."""
        *path, own = str(name).split(".")
        module: Any = self
        for part in path:
            if (module := module.children().get(part)) is None:
                return None
        return dict(module.own_variables()).get(own)

    # -- files -----------------------------------------------------------------------------------

    def save(self, path: PathLike, metadata: Mapping[str, Any] | None = None) -> Self:
        """Write :meth:`state_dict` to a file, .safetensors or .npz; returns the module.

        ``metadata`` is anything that JSON can hold. See :func:`symdnn.io.save_parameters`.
        """
        save_parameters(path, self.state_dict(), metadata)
        return self

    def load(self, path: PathLike, strict: bool = True) -> Self:
        """Set the values from a file of :meth:`save`; returns the module.

        Raises :class:`~symdnn.errors.InputError` if names or shapes differ,
        :class:`~symdnn.errors.FileFormatError` for a damaged file; then nothing is changed.
        """
        return self.load_state_dict(load_parameters(path), strict)

    # -- copies and dtypes -----------------------------------------------------------------------

    def clone(self, *names: str) -> Self:
        """A copy with new variables.

        Parameters and buffers of these ``names`` ("weight", "bias") remain those of the original,
        as in Torch7: both are trained then.
        """
        made = copy.deepcopy(self)
        for (_, old), (_, new) in zip(self.named_modules(), made.named_modules(), strict=True):
            kept = dict(old.own_variables())
            copies = {v: kept[n] for n, v in new.own_variables() if n.partition(".")[0] in names}
            new._replace(copies)
        return made

    def own_variables(self) -> Any:
        """The shared variables of this module itself, by attribute."""
        raise NotImplementedError

    def _replace(self, new: Mapping[Shared, Shared]) -> None:
        """Replace some variables by others."""

        def change(v: object) -> Any:
            return new.get(v, v) if isinstance(v, Shared) else v

        for name, value in list(vars(self).items()):
            if new and (changed := replaced(value, change)) is not value:
                setattr(self, name, changed)

    def convert_dtype(self, dtype: str) -> str:
        """The dtype of this module's own variables in ``astype(dtype)``."""
        return dtype

    def astype(self, dtype: str) -> Self:
        """Convert all float parameters and buffers to this dtype; returns the module.

        They become new variables: expressions that were built before keep the old ones. Scales and
        statistics of normalisation stay float32 if ``dtype`` has 16 bits.
        """
        if not TensorType(dtype).is_float:
            raise InputError(f"{type(self).__name__}.astype: wanted a float dtype, got {dtype!r}")
        made: dict[Shared, Shared] = {}
        for _, module in self.named_modules():
            wanted = module.convert_dtype(TensorType(dtype).dtype)
            own = [v for _, v in module.own_variables() if _is_float(v)]
            module._replace({v: made.setdefault(v, _cast(v, wanted)) for v in own})
        return self

    def double(self) -> Self:
        """:meth:`astype` float64."""
        return self.astype("float64")

    def float(self) -> Self:
        """:meth:`astype` float32."""
        return self.astype("float32")

    def half(self) -> Self:
        """:meth:`astype` float16."""
        return self.astype("float16")

    def bfloat16(self) -> Self:
        """:meth:`astype` bfloat16."""
        return self.astype("bfloat16")


#: PyTorch's names of the parameters of recurrent layers, which have one variable here.
_OF_PYTORCH = re.compile(r"(weight|bias)_[ih]h_l\d|num_batches_tracked$")


def _is_float(v: Shared) -> bool:
    return isinstance(v.type, TensorType) and v.type.is_float


def _cast(v: Shared, dtype: str) -> Shared:
    """``v``, or its value in another dtype as a new variable."""
    if v.type.dtype == dtype:
        return v
    made = shared(v.get_value().astype(TensorType(dtype).numpy), v.name, shape=v.type.shape)
    made._tag, made.requires_grad = copy.copy(v._tag), v.requires_grad
    return made


def set_values(
    what: str,
    named: Mapping[str, Shared],
    values: Mapping[str, Any],
    strict: bool = True,
    *,
    exact: bool = False,
) -> None:
    """Set each variable to the value of its name: all of them, or none if one does not fit.

    ``strict`` refuses missing and unknown names, which are ignored otherwise. Values are cast to
    the variables' dtypes, or with ``exact`` must have them. Raises
    :class:`~symdnn.errors.InputError`, which begins with ``what`` and names the first eight values
    that do not fit.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{what}: wanted a dict of arrays by name, got {values!r:.60}")
    problems = [f"{n} is missing" for n in named if strict and n not in values]
    problems += [f"{n} is unknown" for n in values if strict and n not in named]
    taken: dict[str, Any] = {}
    for name in [n for n in named if n in values]:
        value, old = _array_of(values[name]), named[name].storage
        if value is None or (value.dtype.kind == "c" and old.dtype.kind != "c"):
            problems.append(f"{name} is {values[name]!r:.40}, wanted an array of {old.dtype}")
            continue
        if exact and (value.shape, value.dtype) != (old.shape, old.dtype):
            problems.append(f"{name} is {_form(value)}, wanted {_form(old)}")
        elif value.shape != old.shape:
            problems.append(f"{name} has shape {value.shape}, wanted {old.shape}")
        taken[name] = value.astype(old.dtype)
    if problems:
        shown = "; ".join(problems[:8]) + ("; ..." if len(problems) > 8 else "")
        pytorchs = any(n not in named and _OF_PYTORCH.search(n) for n in values)
        hint = ". nn.load_torch(net, state) takes PyTorch's names" if pytorchs else ""
        raise InputError(f"{what}: {shown}. Nothing was changed{hint}")
    for name, value in taken.items():
        named[name].set_value(value)


def _array_of(value: Any) -> Any:
    """``value`` as an array of numbers; None if it is none."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors that record gradients
        return None
    return None if array.dtype.kind in "OSUMm" else array


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    a, b = _array_of(a), _array_of(b)
    return a is not None and b is not None and np.array_equal(a, b, equal_nan=True)


def _form(array: Any) -> str:
    return f"{array.dtype}{array.shape}"
