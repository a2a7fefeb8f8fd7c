"""The kernel contract, and the table (op type, target kind) -> kernels that can run it.

Kernels enter the table when ``compile`` loads their target, never when ``opt`` runs. A target's are
one ordered tuple (``symdnn/cpu/registry.py``, ``symdnn/gpu/registry.py``), which ``symdnn kernels``
prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from symdnn.errors import SymdnnError
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.op import Op
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import OpT

if TYPE_CHECKING:
    from symdnn.graph.variable import Apply, Variable

__all__ = [
    "FOREIGN", "Alternative", "Call", "Kernel", "Launch", "Row", "Traits", "Versions", "enter",
    "kernels_for", "load_by", "register_default_kernel", "register_kernel", "sized", "table",
]  # fmt: skip

#: What a target computes on: an array of NumPy's, or of a device.
BufferT = TypeVar("BufferT")
#: Runs a bound kernel on (input buffers, output buffers). A buffer is None where size or content is
#: the kernel's own; then it returns all outputs.
Launch = Callable[[Sequence[BufferT], Sequence[BufferT]], Sequence[BufferT] | None]

#: Values -> a number that changes when the value does; None where that can't be told.
Versions = Mapping["Variable", Callable[[], "int | None"]]


if TYPE_CHECKING:

    class SizedType(TensorType):
        """A tensor's type in a plan: every size is a number."""

        shape: tuple[int, ...]


def sized(*types: Type) -> tuple[SizedType, ...]:
    """Types of a plan as a :class:`Call` has them; nothing is done to them."""
    return cast("tuple[SizedType, ...]", types)


@dataclass(frozen=True)
class Call(Generic[OpT]):
    """One node at a plan's shapes: what an oracle is asked about and a kernel is bound to.

    The types are those of the plan, with all sizes; a kernel that is asked before there is a plan
    (:attr:`has_sizes`) finds None among them. An op may have inputs or outputs of
    :class:`~symdnn.graph.type.OpaqueType`, which have no dtype and no shape.

    ``node`` is the node itself, where there is one: a choice may be kept for all its shapes.
    ``versions`` tell of values that are computed before and kept whether they have changed. Both
    are no part of what makes two calls equal.
    """

    op: OpT
    inputs: tuple[SizedType, ...]
    outputs: tuple[SizedType, ...]
    hints: Hints
    node: Apply | None = field(default=None, compare=False, repr=False)
    versions: Versions = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.inputs))})"

    @property
    def has_sizes(self) -> bool:
        """Whether every size is known, as it is in a plan."""
        types = (*self.inputs, *self.outputs)
        return all(t.is_static for t in types if isinstance(t, TensorType))


@dataclass(frozen=True)
class Traits:
    """What a plan has to know of a kernel whatever the call: each kernel class has ``traits``.

    ``backend`` is whose kernel it is, the word of a hint's ``backend``: ``"numpy"``, ``"llvm"``
    (compiled here), ``"cuda"`` (CUDA C of ours), or a library: ``"onednn"``, ``"cudnn"``,
    ``"cublaslt"``. ``asks_threads``: it asks at :meth:`Kernel.bind` how many threads it gets, or
    runs alone. ``runs_user_code``: it may run what a user wrote, or call BLAS.

    >>> from symdnn.cpu.elementwise.elementwise import ElementwiseKernel
    >>> ElementwiseKernel.traits.threaded, ElementwiseKernel.traits.closed
    (True, True)
    """

    backend: str
    asks_threads: bool = False
    runs_user_code: bool = False

    @property
    def vendor(self) -> bool:
        """Whether it is a library of layers; products of matrices are BLAS's for everybody."""
        return self.backend in ("cudnn", "onednn")

    @property
    def threaded(self) -> bool:
        """Whether threads of the OpenMP pool may run it."""
        return self.backend in ("llvm", "onednn")

    @property
    def closed(self) -> bool:
        """Whether it runs nothing of a user's, and no BLAS."""
        return not self.runs_user_code

    @property
    def compiled(self) -> bool:
        """Whether LLVM compiles it here."""
        return self.backend == "llvm"

    @property
    def replaceable(self) -> bool:
        """Whether a compiled kernel may take its place once a plan has been called often."""
        return self.backend == "numpy"


@dataclass(frozen=True)
class Alternative:
    """One way to run a call, of those that a kernel leaves to a choice for the whole plan.

    ``kernel`` is settled to it. Its scratch memory is in bytes, its time in milliseconds and its
    energy in millijoules (None: not measured), ``error`` is the relative error of its result.
    """

    kernel: Kernel[Any]
    workspace_bytes: int
    ms: float | None = None
    millijoules: float | None = None
    error: float = 0.0


#: Of a kernel that nothing is known of.
FOREIGN = Traits("foreign", runs_user_code=True)


class Kernel(Generic[OpT]):
    """One way to run an op on one target; ``Kernel[Conv]`` runs calls of :class:`Conv`.

    A kernel has a ``name``, ``traits``, :meth:`refuses` and :meth:`bind`; all else has a default
    that suits most. What it answers follows from the call and from flags alone.
    """

    #: What reports call it, such as ``numpy.im2col`` or ``cudnn.fft_tiling``.
    name: str = ""
    traits: Traits = FOREIGN
    #: Inputs that have to be contiguous (True: all of them): a plan on a GPU copies others before.
    contiguous_inputs: bool | frozenset[int] = False

    def refuses(self, call: Call[OpT]) -> str | None:
        """Why it cannot run this call; None when it can.

        It is asked when nodes are placed, for the types of a graph, and again for the shapes of a
        plan. Where ``call.has_sizes`` is False, sizes may be None: reasons that need them are left
        out.
        """
        return None

    def settled(self, call: Call[OpT]) -> Kernel[OpT]:
        """The kernel with its own choices made for this call, such as an algorithm."""
        return self

    def workspace_bytes(self, call: Call[OpT]) -> int:
        """Scratch memory that it needs besides inputs and outputs."""
        return 0

    def alternatives(self, call: Call[OpT], room_bytes: int) -> Sequence[Alternative]:
        """What a choice for the whole plan may take in place of :meth:`settled`; empty where this
        kernel leaves nothing to it.

        An alternative with more than ``room_bytes`` of scratch memory will not be taken; it may be
        among them, as a reason for others.
        """
        return ()

    @property
    def leaves_choice(self) -> bool:
        """Whether :meth:`alternatives` does anything."""
        return self._defines("alternatives")

    def bind(self, call: Call[OpT]) -> Any:
        """The launch (:data:`Launch`; on a GPU an environment comes first), with everything settled
        that does not depend on data."""
        raise NotImplementedError(f"kernel {self.name} has no bind(call)")

    def _defines(self, method: str) -> bool:
        """Whether it has a method of its own for a default here."""
        return getattr(type(self), method) is not getattr(Kernel, method)

    # -- what plans ask besides ---------------------------------------------------------------

    @property
    def begins(self) -> bool:
        """Whether :meth:`begin` does anything."""
        return self._defines("begin")

    def begin(self, call: Call[OpT]) -> None:
        """Have code compiled that serves all shapes: a function with this node is being made."""

    def fuses(self, op: Op) -> bool:
        """Whether a fused op is worth making for it; a CPU's is asked."""
        return False

    def accepts(self, index: int, array: Any) -> bool:
        """Whether it reads an input of a GPU where it is; else it gets a contiguous copy."""
        which = self.contiguous_inputs
        return bool(array.contiguous) or not (which if isinstance(which, bool) else index in which)

    @property
    def reads_any_layout(self) -> bool:
        """Whether :meth:`accepts` never says no."""
        return not self._defines("accepts") and self.contiguous_inputs is False

    def capturable(self, call: Call[OpT]) -> bool:
        """Whether a launch on a GPU depends on nothing that the host reads at each call."""
        return True

    def writes_updates(self, call: Call[OpT]) -> bool:
        """Whether it may write the new value of a shared variable: it never fails, and on a GPU
        :meth:`bind_guarded` gives a launch that writes nothing after another one failed."""
        return False

    def never_fails(self, call: Call[OpT]) -> bool:
        """Whether it finds no fault with any data."""
        return self.writes_updates(call)

    def bind_guarded(self, call: Call[OpT]) -> Any:
        """:meth:`bind` for new values of shared variables on a GPU."""
        raise NotImplementedError(f"kernel {self.name} writes no shared variables")

    # -- what reports ask ---------------------------------------------------------------------

    def details(self, call: Call[OpT]) -> str:
        """Algorithm, settings and workspace in words, for reports and errors."""
        return str(call)

    def library_use(self, call: Call[OpT]) -> LibraryUse | None:
        """What a vendor's library runs for the call; None where there was nothing to choose."""
        return None


class _OutsideKernel(Kernel):
    """A kernel of somebody else's, of any class that has ``name``, ``refuses`` and ``bind``."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.name = kernel, str(kernel.name)
        for name, default in vars(Kernel).items():
            own = name.startswith("_") or name == "refuses" or isinstance(default, property)
            if not own and hasattr(kernel, name):
                setattr(self, name, getattr(kernel, name))

    def _defines(self, method: str) -> bool:
        return hasattr(self._kernel, method)

    def refuses(self, call: Call) -> str | None:
        """The kernel's own reason. Without sizes it may compare with None: that says nothing."""
        try:
            return cast("str | None", self._kernel.refuses(call))
        except TypeError:
            if call.has_sizes:
                raise
            return None


# -- the table ------------------------------------------------------------------------------------

#: Rows of a module: ops, and the kernels that they have in order of preference.
Row = tuple[tuple[type[Op], ...], tuple[Kernel, ...]]

_table: dict[tuple[type[Op], str], list[Kernel]] = {}
_default: dict[str, Kernel] = {}
_loaders: list[Callable[[str], None]] = []


def load_by(load: Callable[[str], None]) -> None:
    """How the kernels of a kind of target are entered: ``compile`` says it, which loads targets."""
    _loaders[:] = [load]


def enter(target_kind: str, rows: Iterable[Row]) -> None:
    """Add rows, each behind what the table has for its ops."""
    for ops, kernels in rows:
        for op in ops:
            for kernel in kernels:
                _insert(op, target_kind, kernel)


def register_kernel(
    op_type: type[Op],
    target_kind: str,
    kernel: Any,
    *,
    before: str | None = None,
    after: str | None = None,
) -> None:
    """Add a kernel of an op to a target: a :class:`Kernel`, or any object with ``name``,
    ``refuses(call)`` and ``bind(call)``.

    Order is preference: it comes last, or ``before`` or ``after`` the kernel of that name. The
    target's own kernels are loaded first. Raises :class:`~symdnn.errors.SymdnnError` for a second
    kernel of one name, and where there is no kernel of the name that is given.
    """
    for load in _loaders:
        load(target_kind)
    _insert(op_type, target_kind, kernel, before, after)


def _insert(
    op_type: type[Op],
    target_kind: str,
    kernel: Any,
    before: str | None = None,
    after: str | None = None,
) -> None:
    entries = _table.setdefault((op_type, target_kind), [])
    names = [k.name for k in entries]
    if kernel.name in names:
        raise SymdnnError(f"kernel {kernel.name} for {op_type.__name__} is registered already")
    place = len(entries)
    if before is not None or after is not None:
        place = _place(names, before, after, f"{target_kind} kernels of {op_type.__name__}")
    entries.insert(place, kernel if isinstance(kernel, Kernel) else _OutsideKernel(kernel))


def _place(names: list[str], before: str | None, after: str | None, whose: str) -> int:
    if before is not None and after is not None:
        raise SymdnnError("register_kernel: before and after are given, one at most is wanted")
    wanted = before if before is not None else str(after)
    if wanted not in names:
        known = ", ".join(names) or "none"
        raise SymdnnError(f"register_kernel: no {wanted!r} among the {whose}: {known}")
    return names.index(wanted) + (before is None)


def register_default_kernel(target_kind: str, kernel: Kernel) -> None:
    """The kernel for ops that have no other on this target."""
    if target_kind in _default:
        raise SymdnnError(f"target {target_kind} has a default kernel already")
    _default[target_kind] = kernel


def kernels_for(op_type: type[Op], target_kind: str) -> list[Kernel]:
    """Candidates in order of preference: those of the type, of its bases, then the default."""
    found: list[Kernel] = []
    for base in op_type.__mro__:
        if issubclass(base, Op):
            found += _table.get((base, target_kind), [])
    if target_kind in _default:
        found.append(_default[target_kind])
    return found


def table(target_kind: str) -> list[tuple[str, tuple[str, ...]]]:
    """(op, names of its kernels in order of preference) for each op that has kernels of its own;
    last ``("any op", ...)``, where the target has a default."""
    rows = sorted(
        (op.__name__, tuple(k.name for k in kernels))
        for (op, kind), kernels in _table.items()
        if kind == target_kind
    )
    default = _default.get(target_kind)
    return rows if default is None else [*rows, ("any op", (default.name,))]
