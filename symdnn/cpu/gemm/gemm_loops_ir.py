"""The GEMM kernel for any sizes and threads, around the blocks of :mod:`symdnn.cpu.gemm.gemm_ir`.

The result is divided into parts: matrices of the stack, rows and columns. A task is one part. It is
divided into blocks of terms and of columns whose panels stay in the L2 cache. The division of terms
is the same in every task and for any number of threads, so results depend on neither.
"""

from __future__ import annotations

from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.gemm.gemm_ir import TileShape, attributes, declared, functions, shape_of
from symdnn.cpu.ir.builder import ROWS
from symdnn.cpu.ir.loops_ir import THREADS, data_of, next_task, word

__all__ = ["ARRAY_WORDS", "WORDS", "gemm_ir"]

#: The words of the kernel's block: the numbers of threads and tasks, 1; array objects of operands,
#: bias and addend (0: none) and scratch memory, of which each thread has ``own`` bytes; numbers of
#: rows, columns and terms; rows and columns of a part, and numbers of parts along both; terms and
#: columns (whole panels) of a block; strides in bytes; whether ``b`` is packed, whether rows of
#: ``a`` are packed, whether the epilogue is a ReLU; bytes from one panel of ``b`` to the next where
#: it is not packed here (it may be in panels already, see :mod:`symdnn.cpu.gemm.gemm_kept`).
WORDS = (
    "threads", "tasks", "one", "a", "b", "bias", "more", "c", "scratch", "own", "m", "n", "k",
    "part_m", "part_n", "parts_m", "parts_n", "block_k", "block_n", "a_stack", "a_row", "a_term",
    "b_stack", "b_term", "b_column", "c_stack", "c_row", "more_stack", "more_row", "packs",
    "copies", "relu", "b_panel_kept",
)  # fmt: skip
#: The words that are array objects.
ARRAY_WORDS = ("a", "b", "bias", "more", "c", "scratch")


def gemm_ir(width: int) -> str:
    """The module of ``kernel`` with vectors of ``width`` float32."""
    shape = shape_of(width)
    lines = [
        *declared(shape),
        *functions(shape, keeps=True),
        *THREADS,
        *_rows(shape),
        attributes(shape),
        "",
    ]
    return SKIP_PASSES + "\n".join(lines)


def _rows(shape: TileShape) -> list[str]:
    """The function ``rows``, a task of which is one part."""
    lines = [ROWS, "entry:"]
    for at, name in enumerate(WORDS):
        if name in ("bias", "more"):
            lines += _data_if_any(name, at)
        elif name in ARRAY_WORDS:
            lines += data_of(f"%{name}", at)
        else:
            lines += word(f"%{name}", at)
    sizes = {"ROWS": shape.rows, "COLUMNS": shape.columns, "PANEL_BYTES": 4 * shape.columns}
    for line in (*_SCRATCH_LINES, *_PART_LINES, *_BLOCK_LINES, *_ROW_LINES, *_END_LINES):
        lines.append(" ".join(str(sizes.get(x, x)) for x in line.split(" ")))
    return [*lines, *next_task("task")]


def _data_if_any(name: str, at: int) -> list[str]:
    """Lines for the data pointer of an array, or null if there is none."""
    return [
        *word(f"%{name}_is", at), f"%{name}_any = icmp ne i64 %{name}_is, 0",
        f"br i1 %{name}_any, label %{name}_there, label %{name}_not", f"{name}_there:",
        *data_of(f"%{name}_data", at), f"br label %{name}_known", f"{name}_not:",
        f"br label %{name}_known", f"{name}_known:",
        f"%{name} = phi ptr [%{name}_data, %{name}_there], [null, %{name}_not]",
    ]  # fmt: skip


#: Lines for a thread's scratch memory: panels of the second operand, then packed rows of the first.
_SCRATCH_LINES = """
%alone = icmp eq i64 %threads, 1
br i1 %alone, label %own_known, label %numbered
numbered:
%thread32 = call i32 @omp_get_thread_num()
%thread_here = zext i32 %thread32 to i64
br label %own_known
own_known:
%thread = phi i64 [0, %more_known], [%thread_here, %numbered]
%own_at = mul i64 %thread, %own
%panels = getelementptr i8, ptr %scratch, i64 %own_at
%panels_k = mul i64 %block_n, %block_k
%copy = getelementptr float, ptr %panels, i64 %panels_k
%of_matrix = mul i64 %parts_m, %parts_n
%copied = icmp ne i64 %copies, 0
%packs_is = icmp ne i64 %packs, 0
%b_dense = icmp eq i64 %b_column, 4
%may_keep = and i1 %packs_is, %b_dense
%turns = xor i1 %may_keep, %packs_is
br label %task
""".strip().splitlines()

#: Lines for the position and size of a part.
_PART_LINES = """
task:
%r = phi i64 [%r0, %own_known], [%r_next, %task_end]
%only = icmp eq i64 %tasks, 1
br i1 %only, label %placed, label %place
place:
%at_s = udiv i64 %r, %of_matrix
%of_s = urem i64 %r, %of_matrix
%at_m = udiv i64 %of_s, %parts_n
%at_n = urem i64 %of_s, %parts_n
br label %placed
placed:
%s = phi i64 [0, %task], [%at_s, %place]
%p_m = phi i64 [0, %task], [%at_m, %place]
%p_n = phi i64 [0, %task], [%at_n, %place]
%m_0 = mul i64 %p_m, %part_m
%n_0 = mul i64 %p_n, %part_n
%m_left = sub i64 %m, %m_0
%n_left = sub i64 %n, %n_0
%m_rest = icmp slt i64 %m_left, %part_m
%n_rest = icmp slt i64 %n_left, %part_n
%m_here = select i1 %m_rest, i64 %m_left, i64 %part_m
%n_here = select i1 %n_rest, i64 %n_left, i64 %part_n
%a_s = mul i64 %s, %a_stack
%a_m = mul i64 %m_0, %a_row
%a_o = add i64 %a_s, %a_m
%a_0 = getelementptr i8, ptr %a, i64 %a_o
%b_s = mul i64 %s, %b_stack
%b_n = mul i64 %n_0, %b_column
%b_o = add i64 %b_s, %b_n
%b_0 = getelementptr i8, ptr %b, i64 %b_o
%n_bytes = mul i64 %n_0, 4
%c_s = mul i64 %s, %c_stack
%c_m = mul i64 %m_0, %c_row
%c_sm = add i64 %c_s, %c_m
%c_o = add i64 %c_sm, %n_bytes
%c_0 = getelementptr i8, ptr %c, i64 %c_o
%more_s = mul i64 %s, %more_stack
%more_m = mul i64 %m_0, %more_row
%more_sm = add i64 %more_s, %more_m
%more_o = add i64 %more_sm, %n_bytes
%more_at = getelementptr i8, ptr %more, i64 %more_o
%bias_at = getelementptr i8, ptr %bias, i64 %n_bytes
%first_from = select i1 %bias_any, ptr %bias_at, ptr %more_at
%first_row = select i1 %bias_any, i64 0, i64 %more_row
%first_adds = or i1 %bias_any, %more_any
%m_tile = icmp sge i64 %m_here, ROWS
%keeps = and i1 %may_keep, %m_tile
%packed = or i1 %keeps, %turns
%by_tiles = or i1 %copied, %keeps
%some_m = icmp sgt i64 %m_here, 0
%some_n = icmp sgt i64 %n_here, 0
%some = and i1 %some_m, %some_n
br i1 %some, label %terms, label %task_over
""".strip().splitlines()

#: Loops over blocks of terms and of columns.
_BLOCK_LINES = """
terms:
%t = phi i64 [0, %placed], [%t_next, %terms_end]
%t_left = sub i64 %k, %t
%t_rest = icmp slt i64 %t_left, %block_k
%k_here = select i1 %t_rest, i64 %t_left, i64 %block_k
%t_next = add i64 %t, %block_k
%t_more = icmp slt i64 %t_next, %k
%first = icmp eq i64 %t, 0
%cut_off = select i1 %t_more, i64 0, i64 %relu
%a_t = mul i64 %t, %a_term
%a_1 = getelementptr i8, ptr %a_0, i64 %a_t
%b_t = mul i64 %t, %b_term
%b_1 = getelementptr i8, ptr %b_0, i64 %b_t
%packed_panel = mul i64 %k_here, PANEL_BYTES
br i1 %copied, label %copy_rows, label %columns
copy_rows:
call void @gemm_pack(ptr %a_1, i64 %a_term, i64 %a_row, ptr %copy, i64 %packed_panel,
  i64 PANEL_BYTES , i64 %m_here, i64 %k_here)
br label %columns
columns:
%j = phi i64 [0, %terms], [0, %copy_rows], [%j_next, %columns_end]
%j_left = sub i64 %n_here, %j
%j_rest = icmp slt i64 %j_left, %block_n
%j_here = select i1 %j_rest, i64 %j_left, i64 %block_n
%b_j = mul i64 %j, %b_column
%b_2 = getelementptr i8, ptr %b_1, i64 %b_j
%c_1 = getelementptr float, ptr %c_0, i64 %j
%first_j = getelementptr float, ptr %first_from, i64 %j
%first_at = select i1 %first_adds, ptr %first_j, ptr null
%from = select i1 %first, ptr %first_at, ptr %c_1
%from_row = select i1 %first, i64 %first_row, i64 %c_row
br i1 %turns, label %pack, label %ready
pack:
call void @gemm_pack(ptr %b_2, i64 %b_term, i64 %b_column, ptr %panels, i64 %packed_panel,
  i64 PANEL_BYTES , i64 %j_here, i64 %k_here)
br label %ready
ready:
%b_3 = select i1 %packed, ptr %panels, ptr %b_2
%b_panel = select i1 %packed, i64 %packed_panel, i64 %b_panel_kept
%b_step = select i1 %packed, i64 PANEL_BYTES , i64 %b_term
br i1 %by_tiles, label %row, label %all
all:
call void @gemm_block(ptr %a_1, i64 %a_row, i64 %a_term, ptr %b_3, i64 %b_panel, i64 %b_step,
  ptr %c_1, i64 %c_row, ptr %from, i64 %from_row, i64 %m_here, i64 %j_here, i64 %k_here,
  i64 %cut_off)
br label %columns_end
""".strip().splitlines()

#: The loop over rows of a block, if the first rows also pack ``b``, or if rows of ``a`` are packed.
_ROW_LINES = """
row:
%i = phi i64 [0, %ready], [%i_next, %row_end]
%i_left = sub i64 %m_here, %i
%i_panel = udiv i64 %i, COLUMNS
%i_in = urem i64 %i, COLUMNS
%i_to = sub i64 COLUMNS , %i_in
%i_some = icmp slt i64 %i_left, %i_to
%i_most = select i1 %i_some, i64 %i_left, i64 %i_to
%i_these = select i1 %copied, i64 %i_most, i64 %i_left
%i_first = icmp eq i64 %i, 0
%i_keeps = and i1 %i_first, %keeps
%i_here = select i1 %i_keeps, i64 ROWS , i64 %i_these
%a_i = mul i64 %i, %a_row
%a_2 = getelementptr i8, ptr %a_1, i64 %a_i
%a_panel = mul i64 %i_panel, %packed_panel
%copy_0 = getelementptr i8, ptr %copy, i64 %a_panel
%copy_1 = getelementptr float, ptr %copy_0, i64 %i_in
%a_3 = select i1 %copied, ptr %copy_1, ptr %a_2
%a_3_row = select i1 %copied, i64 4, i64 %a_row
%a_3_term = select i1 %copied, i64 PANEL_BYTES , i64 %a_term
%c_i = mul i64 %i, %c_row
%c_2 = getelementptr i8, ptr %c_1, i64 %c_i
%from_i = mul i64 %i, %from_row
%from_1 = getelementptr i8, ptr %from, i64 %from_i
%from_is = icmp ne ptr %from, null
%from_2 = select i1 %from_is, ptr %from_1, ptr null
br i1 %i_keeps, label %keep_row, label %plain_row
keep_row:
call void @gemm_keep(ptr %a_3, i64 %a_3_row, i64 %a_3_term, ptr %b_2, i64 PANEL_BYTES ,
  i64 %b_term, ptr %c_2, i64 %c_row, ptr %from_2, i64 %from_row, i64 %i_here, i64 %j_here,
  i64 %k_here, i64 %cut_off, ptr %panels, i64 %packed_panel)
br label %row_end
plain_row:
call void @gemm_block(ptr %a_3, i64 %a_3_row, i64 %a_3_term, ptr %b_3, i64 %b_panel, i64 %b_step,
  ptr %c_2, i64 %c_row, ptr %from_2, i64 %from_row, i64 %i_here, i64 %j_here, i64 %k_here,
  i64 %cut_off)
br label %row_end
row_end:
%i_next = add i64 %i, %i_here
%i_more = icmp slt i64 %i_next, %m_here
br i1 %i_more, label %row, label %columns_end
""".strip().splitlines()

_END_LINES = """
columns_end:
%j_next = add i64 %j, %block_n
%j_more = icmp slt i64 %j_next, %n_here
br i1 %j_more, label %columns, label %terms_end
terms_end:
br i1 %t_more, label %terms, label %task_over
task_over:
""".strip().splitlines()
