"""CUDA C of monoids: a struct for what a reduction or a scan keeps while it goes."""

from __future__ import annotations

from symdnn.gpu.codegen.cuda_source import CTYPES, scalar_function
from symdnn.ops.nest.monoid import Monoid


def monoid_struct(m: Monoid, name: str) -> str:
    """The struct ``name`` and its functions.

    ``start()`` makes it the state of no elements, ``take(element..., number)`` takes in a later
    element, ``merge(other)`` a stretch behind it, and ``leave(result&...)`` gives the results. With
    one result ``result()`` returns it.
    """
    fields = [f"v{i}" for i in range(len(m.state))]
    own, other = ", ".join(fields), ", ".join(f"other.{f}" for f in fields)
    given = [f"{CTYPES[d]} x{i}" for i, d in enumerate((*m.elements, m.number))]
    taken = ", ".join([*(f"x{i}" for i in range(len(m.elements))), f"x{len(m.elements)}"])
    outs = [CTYPES[d] for d in m.leave.output_dtypes]
    results = ", ".join(f"{t}& r{i}" for i, t in enumerate(outs))
    left = ", ".join(f"r{i}" for i in range(len(outs)))
    one = f"{outs[0]} r0; {name}_leave({own}, r0); return r0;"
    parts = ("start", m.start), ("step", m.step), ("combine", m.combine), ("leave", m.leave)
    return "\n".join(
        [
            "".join(scalar_function(program, f"{name}_{part}") for part, program in parts),
            f"struct {name} {{",
            *(f"  {CTYPES[d]} {f};" for d, f in zip(m.state, fields, strict=True)),
            f"  __device__ void start() {{ {name}_start({own}); }}",
            f"  __device__ void take({', '.join(given)}) {{",
            f"    {name}_step({own}, {taken}, {own});",
            "  }",
            f"  __device__ void merge(const {name}& other) {{",
            f"    {name}_combine({own}, {other}, {own});",
            "  }",
            f"  __device__ void leave({results}) const {{ {name}_leave({own}, {left}); }}",
            *([f"  __device__ {outs[0]} result() const {{ {one} }}"] if len(outs) == 1 else []),
            "};\n",
        ]
    )
