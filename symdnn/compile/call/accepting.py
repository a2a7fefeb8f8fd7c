"""Arguments that need no conversion, taken by generated code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.compile.call.fast import Calls
from symdnn.compile.execute.retry import smaller_limits
from symdnn.graph.values.storage import CHANGES, writes

__all__ = ["accepting", "shortcut"]


def accepting(calls: Calls, strided: bool = False) -> Any:
    """``accept(args, trusted, dense)``: (shapes, inputs of the plan), or None to bind them anew.

    It is generated code for these arguments: a loop over them takes as long as a small kernel.
    Values that are no arrays of an input's dtype are converted, except ``trusted`` ones.
    Arguments that are not contiguous are copied by ``dense``. With ``strided`` only those that are
    not aligned are, and a third value has the strides of the others, or is None for contiguous
    arguments.
    """
    names = [f"a{i}" for i in range(len(calls.slots))]
    scope: dict[str, Any] = {"ndarray": np.ndarray, "numbers": (float, int, np.generic)}
    lines = ["def accept(args, trusted, dense):", f" if len(args) != {len(names)}: return None"]
    if names:
        lines.append(f" {', '.join(names)}, = args")
    if strided:
        lines.append(" strided = False")
    for i, (a, slot) in enumerate(zip(names, calls.slots)):
        scope[f"d{i}"] = slot.dtype
        dense = [f"   if not {a}.flags.c_contiguous: {a} = dense({a})"]
        if strided:
            dense = [
                f"  if not {a}.flags.c_contiguous:",
                f"   if {a}.flags.aligned: strided = True",
                f"   else: {a} = dense({a})",
            ]
        lines += [
            f" if type({a}) is ndarray:",
            "  if not trusted:",
            f"   if {a}.dtype is not d{i} and {a}.dtype != d{i} or {a}.ndim != {slot.ndim}:",
            f"    {a} = t{i}({a})",
            f"    if {a} is None: return None",
            *dense,
        ]
        if slot.dtype is not None and slot.ndim == 0:
            scope[f"c{i}"] = _converter(slot, calls.allow_downcast)
            lines.append(f" elif isinstance({a}, numbers): {a} = c{i}({a})")
        scope[f"t{i}"] = _conversion(slot, calls.allow_downcast)
        lines += [
            " elif trusted: return None",
            " else:",
            f"  {a} = t{i}({a})",
            f"  if {a} is None: return None",
        ]
    found = f"{_key(names)}, [{', '.join(names)}]"
    if strided:
        steps = "".join(f"{a}.strides, " for a in names)
        found += f", ({steps}) if strided else None"
    lines.append(f" return {found}")
    # The text consists of numbers and the words above; it has nothing from the user.
    exec(compile("\n".join(lines), "<arguments>", "exec"), scope)
    return scope["accept"]


def _key(names: Sequence[str]) -> str:
    shapes = [f"{a}.shape" for a in names]
    return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"


def shortcut(
    calls: Any, otherwise: Any, places: Sequence[int], only_arguments: bool, may_be_one: bool
) -> Any:
    """``attempt(function, args)`` of contiguous arrays; of others ``otherwise(function, args)``.

    One function has all that a call does, since each call of Python costs a tenth of a small one.
    It runs a plan that is one call itself, and of other plans their ``run``.
    The outputs are those of the plan at ``places``, all in order where these are empty. A plan
    whose inputs are arguments and shared variables ``may_be_one`` compiled function, which then
    takes over.
    """
    names = [f"a{i}" for i in range(len(calls.slots))]
    scope: dict[str, Any] = {"ndarray": np.ndarray, "calls": calls, "otherwise": otherwise,
                             "CHANGES": CHANGES, "smaller_limits": smaller_limits}  # fmt: skip
    scope |= {f"d{i}": slot.dtype for i, slot in enumerate(calls.slots)}
    dense = [
        f"type({a}) is ndarray and {a}.dtype is d{i} and {a}.flags.c_contiguous"
        for i, a in enumerate(names)
    ]
    entering = f"[{', '.join(names)}]" if only_arguments else "entering"
    key, made = _key(names), list[str]()
    current = "" if only_arguments else " and stamp == CHANGES[0]"
    if calls.by_value:
        dense += [f"{a}.ndim == {slot.ndim}" for a, slot in zip(names, calls.slots)]
        sizes = [f"n{k}" for k in range(len(calls.segment.dims))]
        hosts = [f"h{k}" for k in range(len(calls.from_host))]
        scope |= {"host": calls.from_integers} | {f"s{k}": v for k, v in enumerate(calls.shared)}
        given = [*names, *(f"s{k}.storage.host()" for k in range(len(calls.shared)))]
        made = [f"   {''.join(f'{v}, ' for v in (*sizes, *hosts))}= host({', '.join(given)})"]
        if calls.shared:  # whose values another thread may write before this one has the lock
            scope["writes"], current = writes, f"{current} and wrote == writes()"
            made.insert(0, "   wrote = writes()")
        key = f"({', '.join((key, *sizes))},)"
    numbers = list[str]()
    for i, slot in enumerate(calls.slots):
        if slot.dtype is not None and slot.ndim == 0:
            scope[f"c{i}"] = slot.taker(calls.allow_downcast)
            numbers.append(f"  if type(a{i}) is not ndarray: a{i} = c{i}(a{i})")
    lines = _SHORTCUT_BEGIN.format(
        count=len(names), names="".join(f"{a}, " for a in names), dense=" and ".join(dense),
        key=key, current=current, numbers="\n".join(numbers), host="\n".join(made),
    ).splitlines()  # fmt: skip
    if not only_arguments:
        lines.append("      entering = entering.copy()")
        lines += [f"      entering[{k}] = a{i}" for i, k in calls.entries_of]
        lines += [f"      entering[{k}] = h{j}" for j, (k, _) in enumerate(calls.from_host)]
    shown = f"[{', '.join(f'outputs[{k}]' for k in places)}]" if places else "outputs"
    if calls.updates:
        scope["update"] = calls.update
        shown = f"update(function, {shown})"
    listed = f"[{', '.join(names)}]"
    more = _TAKE_OVER.format(arguments=listed, entering=entering) if may_be_one else ""
    lines += _SHORTCUT_END.format(entering=entering, shown=shown, more=more).splitlines()
    exec(compile("\n".join(lines), "<short call>", "exec"), scope)
    return scope["attempt"]


#: The text of :func:`shortcut`; numbers and names of its own fill it.
_SHORTCUT_BEGIN = """\
def attempt(function, args):
 if len(args) == {count}:
  {names}= args
{numbers}
  if {dense}:
{host}
   entry = calls.entries.get({key})
   if entry is not None:
    plan, bound, cache, entering, stamp, closed, plain = entry
    runtime = bound.runtime
    with runtime.lock:
     if plain and runtime.depth < 0 and plan is cache.latest{current}:
      count = bound.calls + 1
      quick = (bound.quick and count != bound.next_look
               and bound.scratch is runtime.arenas[0].bytes
               and not (bound.parallel and bound.must_look()))
"""
_SHORTCUT_END = """\
      cache.hits += 1
      runtime.depth = 0
      try:
       if not quick:
        outputs = (bound.run({entering}) if bound.silent
                   else runtime.quietly(bound.run, {entering}, closed))
        return {shown}
       bound.calls = count
       outputs = bound.run_all({entering})
{more}       return {shown}
      except Exception as error:
       if isinstance(error, MemoryError) and smaller_limits(plan.memory):
        return None  # the full path tries smaller workspaces
       if quick:
        bound.step_function.explain(error)
       raise
      finally:
       runtime.depth = -1
 return otherwise(function, args)
"""
#: Once a plan is hot, one compiled function may take over.
_TAKE_OVER = """\
       if bound.direct is not False and count > bound.next_look:
        calls.take_over(function, bound, {arguments}, {entering})
"""


def _conversion(slot: Any, allow_downcast: bool | None) -> Any:
    """The function that converts a value to an argument's array; None where that is an error."""

    def convert(value: Any) -> Any:
        try:
            with np.errstate(all="ignore"):
                return slot.convert(value, allow_downcast)
        except Exception:
            return None  # the full path raises it

    return convert if slot.dtype is not None else lambda value: None


def _converter(slot: Any, allow_downcast: bool | None) -> Any:
    take = slot.taker(allow_downcast)

    def convert(value: Any) -> Any:
        made = take(value)
        return slot.convert(value, allow_downcast) if made is value else made

    return convert
