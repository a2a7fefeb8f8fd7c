"""The kernel contract, and the table (op type, target kind) -> kernels that can run it.

Kernels enter the table when ``compile`` loads their target, never when ``opt`` runs. The kernels of
a target are one ordered tuple (``symdnn/cpu/registry.py``, ``symdnn/gpu/registry.py``), which
``symdnn kernels`` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from symdnn.errors import SymdnnError
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.op import Op
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import OpT

if TYPE_CHECKING:
    from symdnn.graph.variable import Apply, Variable

__all__ = [
    "FOREIGN", "Alternative", "Call", "Kernel", "Launch", "OperandMemory", "Row", "Traits",
    "Versions", "enter", "kernels_for", "load_by", "own_kernels_for", "register_default_kernel",
    "register_kernel", "sized", "table",
]  # fmt: skip

#: What a target computes on: an array of NumPy's, or of a device.
BufferT = TypeVar("BufferT")
#: Runs a bound kernel on (input buffers, output buffers). An output buffer is None if the kernel
#: itself makes that output; then it returns all outputs.
Launch = Callable[[Sequence[BufferT], Sequence[BufferT]], Sequence[BufferT] | None]

#: Values -> a number that changes when the value does; None if changes can't be detected.
Versions = Mapping["Variable", Callable[[], "int | None"]]


if TYPE_CHECKING:

    class SizedType(TensorType):
        """A tensor's type in a plan: every size is a number."""

        shape: tuple[int, ...]


def sized(*types: Type) -> tuple[SizedType, ...]:
    """The types of a plan, typed as those of a :class:`Call`; they are not changed."""
    return cast("tuple[SizedType, ...]", types)


@dataclass(frozen=True)
class Call(Generic[OpT]):
    """One node at a plan's shapes: the subject of an oracle's answers, and of a bound kernel.

    The types are those of the plan, with all sizes. Before there is a plan, sizes may be None
    (:attr:`has_sizes` is False). An op may have inputs or outputs of
    :class:`~symdnn.graph.type.OpaqueType`, which have no dtype and no shape.

    ``node`` is the node itself, if there is one: a choice may be kept for all its shapes.
    ``versions`` say whether values that were computed earlier and kept have changed. Neither counts
    in the comparison of two calls.
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
    """Properties of a kernel that do not depend on the call: each kernel class has ``traits``.

    ``backend`` is the word of a hint's ``backend``: ``"numpy"``, ``"llvm"`` (compiled here),
    ``"cuda"`` (CUDA C of symdnn), or a library: ``"onednn"``, ``"cudnn"``, ``"cublaslt"``.
    ``asks_threads``: :meth:`Kernel.bind` reads how many threads it gets, or it runs on one.
    ``runs_user_code``: it may run a user's code, or call BLAS. ``calls_blas``: it may call BLAS,
    and runs no user's code. ``quiet``: NumPy has nothing to warn about in it.

    >>> from symdnn.cpu.elementwise.elementwise import ElementwiseKernel
    >>> ElementwiseKernel.traits.threaded, ElementwiseKernel.traits.closed
    (True, True)
    """

    backend: str
    asks_threads: bool = False
    runs_user_code: bool = False
    calls_blas: bool = False
    quiet: bool = False

    @property
    def vendor(self) -> bool:
        """Whether it is a vendor's library of layers (BLAS does not count)."""
        return self.backend in ("cudnn", "onednn")

    @property
    def threaded(self) -> bool:
        """Whether threads of the OpenMP pool may run it."""
        return self.backend in ("llvm", "onednn")

    @property
    def closed(self) -> bool:
        """Whether it runs no user's code."""
        return not self.runs_user_code

    @property
    def has_pool(self) -> bool:
        """Whether it may run threads of another pool than OpenMP's."""
        return self.runs_user_code or self.calls_blas

    @property
    def compiled(self) -> bool:
        """Whether LLVM compiles it here."""
        return self.backend == "llvm"

    @property
    def replaceable(self) -> bool:
        """Whether a compiled kernel may take its place once a plan has been called often."""
        return self.backend == "numpy" or self.vendor


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


class OperandMemory(Protocol):
    """Memory of a library, such as one that is registered with other ranks; it can be hashed."""

    def address(self, nbytes: int) -> int:
        """That of so many bytes, the same in each call; 0 if there is none."""

    @property
    def why_none(self) -> str:
        """Why there is none; empty if there is."""


#: The traits of a kernel of which nothing is known.
FOREIGN = Traits("foreign", runs_user_code=True)


class Kernel(Generic[OpT]):
    """One way to run an op on one target; ``Kernel[Conv]`` runs calls of :class:`Conv`.

    A kernel has a ``name``, ``traits``, :meth:`refuses` and :meth:`bind`; all other methods have
    defaults. Its answers depend on the call and on flags alone.
    """

    #: Its name in reports, such as ``numpy.im2col`` or ``cudnn.fft_tiling``.
    name: str = ""
    traits: Traits = FOREIGN
    #: Inputs that have to be contiguous (True: all): a plan on a GPU copies strided ones first.
    contiguous_inputs: bool | frozenset[int] = False
    #: Whether rows of its results may have padding between them, where its plan says so, and
    #: whether it is faster on matrices whose rows begin at multiples of 16 bytes. Whether it writes
    #: the axes of its result in any order as well as another kernel would copy them; whether it is
    #: as fast on one operand whose axes lie in any order.
    pads_rows: bool = False
    aligned_rows: bool = False
    writes_any_layout: bool = False
    reads_any_order: bool = False

    def refuses(self, call: Call[OpT]) -> str | None:
        """The reason why it cannot run this call; None if it can.

        It is called when nodes are placed, for the types of a graph, and again for the shapes of a
        plan. If ``call.has_sizes`` is False, sizes may be None: reasons that need them are left
        out.
        """
        return None

    def settled(self, call: Call[OpT]) -> Kernel[OpT]:
        """The kernel with its choices for this call made, such as an algorithm."""
        return self

    def chosen(self, call: Call[OpT]) -> Kernel[OpT] | str:
        """:meth:`settled`, or the reason of :meth:`refuses`.

        A plan asks this. Kernels whose refusal and choice are one search search here once.
        """
        reason = self.refuses(call)
        return self.settled(call) if reason is None else reason

    def workspace_bytes(self, call: Call[OpT]) -> int:
        """Scratch memory that it needs besides inputs and outputs."""
        return 0

    def operand_memory(self, call: Call[OpT]) -> tuple[OperandMemory, int, bool] | None:
        """Where the operands and results of a collective should lie, how many bytes of scratch
        memory it needs there, and whether results take the operands' places; None: anywhere. All
        ranks answer alike."""
        return None

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
        """The launch (:data:`Launch`; on a GPU its first argument is an environment), with
        everything computed that does not depend on data."""
        raise NotImplementedError(f"kernel {self.name} has no bind(call)")

    @property
    def has_choices(self) -> bool:
        """Whether it has choices of its own, which may depend on more than the call and flags:
        on measurements, as those of libraries do."""
        library = self.traits.vendor or self.traits.backend == "cublaslt"
        return library or self._defines("settled") or self._defines("chosen")

    def _defines(self, method: str) -> bool:
        """Whether its class overrides a method of this one."""
        return getattr(type(self), method) is not getattr(Kernel, method)

    # -- what plans ask besides ---------------------------------------------------------------

    @property
    def begins(self) -> bool:
        """Whether :meth:`begin` does anything."""
        return self._defines("begin")

    def begin(self, call: Call[OpT]) -> None:
        """Start to compile code that serves all shapes, while a function with this node is made."""

    def fuses(self, op: Op) -> bool:
        """Whether fusion should make this fused op; only kernels of a CPU are asked."""
        return False

    def accepts(self, index: int, array: Any) -> bool:
        """Whether it reads this strided input on a GPU; else it gets a contiguous copy."""
        which = self.contiguous_inputs
        return bool(array.contiguous) or not (which if isinstance(which, bool) else index in which)

    @property
    def reads_any_layout(self) -> bool:
        """Whether :meth:`accepts` is always true."""
        return not self._defines("accepts") and self.contiguous_inputs is False

    def writes(self, call: Call[OpT], index: int, array: Any) -> bool:
        """Whether it writes a result in this layout on a GPU, between values of other kernels.

        ``array`` has a shape, ``strides`` in bytes, and ``ptr``, a distance to aligned memory.
        """
        return self.writes_any_layout

    def result_axes(self, call: Call[OpT], index: int) -> Sequence[int] | None:
        """The axes of a result in the order, outermost first, in which it is best written on a
        GPU; None for C order. The plan follows where all readers read it so."""
        return None

    def capturable(self, call: Call[OpT]) -> bool:
        """Whether a CUDA graph may record its launch: the host reads nothing in each call."""
        return True

    def writes_updates(self, call: Call[OpT]) -> bool:
        """Whether it may write the new value of a shared variable: it never fails, and on a GPU
        :meth:`bind_guarded` gives a launch that writes nothing after another one failed."""
        return False

    def never_fails(self, call: Call[OpT]) -> bool:
        """Whether it raises no error for any data."""
        return self.writes_updates(call)

    def bind_guarded(self, call: Call[OpT]) -> Any:
        """:meth:`bind` for new values of shared variables on a GPU."""
        raise NotImplementedError(f"kernel {self.name} writes no shared variables")

    def bind_beside(self, call: Call[OpT]) -> Any:
        """:meth:`bind` for results between others, whose padding may not be written."""
        return self.bind(call)

    # -- what reports ask ---------------------------------------------------------------------

    def details(self, call: Call[OpT]) -> str:
        """Algorithm, settings and workspace in words, for reports and errors."""
        return str(call)

    def library_use(self, call: Call[OpT]) -> LibraryUse | None:
        """The call's row in ``f.dnn_report()``; None if there was nothing to choose."""
        return None


class _OutsideKernel(Kernel):
    """A user's kernel, an object of any class with ``name``, ``refuses`` and ``bind``."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.name = kernel, str(kernel.name)
        for name, default in vars(Kernel).items():
            own = name.startswith("_") or name == "refuses" or isinstance(default, property)
            if not own and hasattr(kernel, name):
                setattr(self, name, getattr(kernel, name))

    def _defines(self, method: str) -> bool:
        return hasattr(self._kernel, method)

    @property
    def has_choices(self) -> bool:
        """True: nothing is known of a user's kernel."""
        return True

    def refuses(self, call: Call) -> str | None:
        """The kernel's own reason. Without sizes it may fail on a None, which is no reason."""
        try:
            return cast("str | None", self._kernel.refuses(call))
        except TypeError:
            if call.has_sizes:
                raise
            return None


# -- the table ------------------------------------------------------------------------------------

#: A row of the table: ops, and their kernels in order of preference.
Row = tuple[tuple[type[Op], ...], tuple[Kernel, ...]]

_table: dict[tuple[type[Op], str], list[Kernel]] = {}
_default: dict[str, Kernel] = {}
_loaders: list[Callable[[str], None]] = []


def load_by(load: Callable[[str], None]) -> None:
    """Set the function that loads the kernels of a kind of target; ``compile`` calls this."""
    _loaders[:] = [load]


def enter(target_kind: str, rows: Iterable[Row]) -> None:
    """Add rows, each after the kernels that the table has for its ops."""
    for ops, kernels in rows:
        for op in ops:
            for kernel in kernels:
                _insert(op, target_kind, kernel)


def register_kernel(
    op_type: type[Op],
    target_kind: str,
    kernel: object,
    *,
    before: str | None = None,
    after: str | None = None,
) -> None:
    """Add a kernel of an op to a target: a :class:`Kernel`, or any object with ``name``,
    ``refuses(call)`` and ``bind(call)``.

    The order is the order of preference: the kernel comes last, or ``before`` or ``after`` the
    kernel of that name. The target's own kernels are loaded first. Raises
    :class:`~symdnn.errors.SymdnnError` for a second kernel of one name, and for a ``before`` or
    ``after`` that is no kernel's name.
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
        raise SymdnnError("register_kernel: wanted before or after, got both; give one of them")
    wanted = before if before is not None else str(after)
    if wanted not in names:
        known = ", ".join(names) or "none"
        raise SymdnnError(f"register_kernel: no {wanted!r} among the {whose}: {known}")
    return names.index(wanted) + (before is None)


def register_default_kernel(target_kind: str, kernel: Kernel) -> None:
    """Set the kernel of a target for ops that have no other."""
    if target_kind in _default:
        raise SymdnnError(f"target {target_kind} has a default kernel already")
    _default[target_kind] = kernel


def own_kernels_for(op_type: type[Op], target_kind: str) -> list[Kernel]:
    """Candidates in order of preference: those of the type, of its bases."""
    found: list[Kernel] = []
    for base in op_type.__mro__:
        if issubclass(base, Op):
            found += _table.get((base, target_kind), [])
    return found


def kernels_for(op_type: type[Op], target_kind: str) -> list[Kernel]:
    """:func:`own_kernels_for`, then the default, which runs any op."""
    found = own_kernels_for(op_type, target_kind)
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
