"""LLVM IR of the functions behind :mod:`symdnn.cpu.launch.fastcall`.

They have the signature of a builtin function (``_PyCFunctionFast``): ``self``, here an array of
words; the arguments; their number. The words of the table: 0 and 1 the numbers of pointer updates
and of steps, 2 whether to release Python's global lock, 3 None, 4 ``Py_IncRef``, 5
``PyEval_SaveThread``, 6 ``PyEval_RestoreThread``, 7 True, 8 False, 9 the type of arrays, 10 which
step failed. From word :data:`HEAD` on come the pointer updates (argument, offset, destination),
then the steps (index of the status word, function, block).
"""

from __future__ import annotations

__all__ = [
    "DATA_OFFSET", "FLAGS_OFFSET", "HEAD", "ITEMS_OFFSET", "MOST_AXES", "MOST_OPERANDS",
    "WHOLE_HEAD", "execute_module", "module",
]  # fmt: skip

#: Words in front of pointer updates and steps.
HEAD = 16
#: ``PyArrayObject_fields``: data, nd, dimensions, strides, base, descr, flags.
DATA_OFFSET = object.__basicsize__
FLAGS_OFFSET = DATA_OFFSET + 48
_TYPE_OFFSET = DATA_OFFSET - 8
_AXES_OFFSET, _SIZES_OFFSET, _DTYPE_OFFSET = DATA_OFFSET + 8, DATA_OFFSET + 16, DATA_OFFSET + 40
#: ``PyVarObject``: its number of items; those of a tuple follow, a list has their address there.
_COUNT_OFFSET, ITEMS_OFFSET = object.__basicsize__, object.__basicsize__ + 8
#: Axes of an argument, and arrays, that ``whole`` has room for.
MOST_AXES, MOST_OPERANDS = 8, 16
#: Words in front of the records of ``whole``, and those of a result's record.
WHOLE_HEAD, _MADE_WORDS = 20, 4

_TABLE = f"""
%table_at = getelementptr i8, ptr %self, i64 {DATA_OFFSET}
%t = load ptr, ptr %table_at
""".strip()


def _word(name: str, index: int | str, kind: str = "i64", of: str = "t") -> str:
    """Lines that load word ``index`` of table ``of`` as ``name``; its address is ``name_at``."""
    at = f"%{name}_at"
    return f"{at} = getelementptr i64, ptr %{of}, i64 {index}\n%{name} = load {kind}, ptr {at}"


def _words(first: int, names: str, kind: str = "i64") -> str:
    """Lines that load the table's words from ``first`` on as these names."""
    return "\n".join(_word(name, i, kind) for i, name in enumerate(names.split(), first))


def _dense_array(of: str, other: str) -> str:
    """Lines that load ``object``, number ``i`` of table ``of``, and whether it is ``dense``.

    They go to the label ``other`` where its type is not ``type``.
    """
    return f"""{_word("object", "%i", "ptr", of)}
%is_at = getelementptr i8, ptr %object, i64 {_TYPE_OFFSET}
%is = load ptr, ptr %is_at
%array = icmp eq ptr %is, %type
br i1 %array, label %look, label %{other}
look:
%flags_at = getelementptr i8, ptr %object, i64 {FLAGS_OFFSET}
%flags = load i32, ptr %flags_at
%order_bit = and i32 %flags, 1
%dense = icmp ne i32 %order_bit, 0"""


#: Lines for ``place``, the data pointer of the array ``object`` plus ``offset``.
_PLACE = f"""
%data_at = getelementptr i8, ptr %object, i64 {DATA_OFFSET}
%data = load ptr, ptr %data_at
%place = getelementptr i8, ptr %data, i64 %offset
""".strip()


#: Lines that load what both functions read from their table.
_LOADS = f"""
{_TABLE}
{_words(0, "moves steps")}
{_words(3, "none grab save restore", "ptr")}
%m = getelementptr i64, ptr %t, i64 {HEAD}
%m_words = mul i64 %moves, 3
%s = getelementptr i64, ptr %m, i64 %m_words
%any_move = icmp sgt i64 %moves, 0
""".strip()

#: Lines for ``place``, where pointer update ``i`` points, and ``to``, where that is stored.
_MOVE = f"""
%i3 = mul i64 %i, 3
%move_at = getelementptr i64, ptr %m, i64 %i3
%argument = load i64, ptr %move_at
{_word("offset", 1, "i64", "move_at")}
{_word("to", 2, "ptr", "move_at")}
{_word("object", "%argument", "ptr", "args")}
{_PLACE}
""".strip()

#: Blocks that run all steps: from ``begin`` to ``well``, or to ``done`` after a failure.
_STEPS = f"""
step:
%k = phi i64 [0, %begin], [%k_next, %next]
%k3 = mul i64 %k, 3
%step_at = getelementptr i64, ptr %s, i64 %k3
%status = load i64, ptr %step_at
{_word("function", 1, "ptr", "step_at")}
{_word("block", 2, "ptr", "step_at")}
%returned = call i64 %function(ptr %block)
%fallible = icmp sge i64 %status, 0
br i1 %fallible, label %look, label %next
look:
%word_at = getelementptr i64, ptr %block, i64 %status
%in_block = load i64, ptr %word_at
%by_return = icmp eq i64 %status, 0
%code = select i1 %by_return, i64 %returned, i64 %in_block
%fine = icmp eq i64 %code, 0
br i1 %fine, label %next, label %bad
bad:
%failed_at = getelementptr i64, ptr %t, i64 10
store i64 %k, ptr %failed_at
br label %done
next:
%k_next = add i64 %k, 1
%k_more = icmp slt i64 %k_next, %steps
br i1 %k_more, label %step, label %well
""".strip()

_GROUP = f"""
define ptr @group(ptr %self, ptr %args, i64 %given) {{
entry:
{_LOADS}
{_word("release", 2)}
br i1 %any_move, label %move, label %ready
move:
%i = phi i64 [0, %entry], [%i_next, %move]
{_MOVE}
store ptr %place, ptr %to
%i_next = add i64 %i, 1
%i_more = icmp slt i64 %i_next, %moves
br i1 %i_more, label %move, label %ready
ready:
%releases = icmp ne i64 %release, 0
br i1 %releases, label %let_go, label %begin
let_go:
%saved = call ptr %save()
br label %begin
begin:
%state = phi ptr [null, %ready], [%saved, %let_go]
%any_step = icmp sgt i64 %steps, 0
br i1 %any_step, label %step, label %well
{_STEPS}
well:
br label %done
done:
%result = phi ptr [%none, %well], [%self, %bad]
br i1 %releases, label %take, label %leave
take:
call void %restore(ptr %state)
br label %leave
leave:
call void %grab(ptr %result)
ret ptr %result
}}
"""

#: ``group`` many times. Word 11 is how often, 12 the address of the steps in bytes by which each
#: argument moves from one time to the next, 13 becomes the number of times that went well.
_LOOP = f"""
define ptr @loop(ptr %self, ptr %args, i64 %given) {{
entry:
{_LOADS}
{_word("times", 11)}
{_word("strides", 12, "ptr")}
%done_at = getelementptr i64, ptr %t, i64 13
%saved = call ptr %save()
br label %time
time:
%n = phi i64 [0, %entry], [%n_next, %well]
store i64 %n, ptr %done_at
br i1 %any_move, label %move, label %begin
move:
%i = phi i64 [0, %time], [%i_next, %move]
{_MOVE}
{_word("stride", "%argument", "i64", "strides")}
%far = mul i64 %n, %stride
%there = getelementptr i8, ptr %place, i64 %far
store ptr %there, ptr %to
%i_next = add i64 %i, 1
%i_more = icmp slt i64 %i_next, %moves
br i1 %i_more, label %move, label %begin
begin:
%any_step = icmp sgt i64 %steps, 0
br i1 %any_step, label %step, label %well
{_STEPS}
well:
%n_next = add i64 %n, 1
%n_more = icmp slt i64 %n_next, %times
br i1 %n_more, label %time, label %finished
finished:
store i64 %times, ptr %done_at
br label %done
done:
%result = phi ptr [%none, %finished], [%self, %bad]
call void %restore(ptr %saved)
call void %grab(ptr %result)
ret ptr %result
}}
"""

_CHECK = f"""
define ptr @check(ptr %self, ptr %args, i64 %given) {{
entry:
{_TABLE}
{_word("count", 0)}
{_word("grab", 4, "ptr")}
{_words(7, "yes no type", "ptr")}
br label %one
one:
%i = phi i64 [0, %entry], [%i_next, %next]
{_dense_array("args", "done")}
br i1 %dense, label %next, label %done
next:
%i_next = add i64 %i, 1
%more = icmp slt i64 %i_next, %count
br i1 %more, label %one, label %done
done:
%result = phi ptr [%no, %one], [%no, %look], [%yes, %next]
call void %grab(ptr %result)
ret ptr %result
}}
"""

#: A call of a function as a whole: ``(function, arguments)``, a tuple, to the list of results.
#: Words: 0 to 2 the numbers of arguments, results and operands, 3 None, 4 nothing, 5
#: ``PyObject_Vectorcall``, 6 ``PyList_New``, 7 ``Py_DecRef``, 8 ``group``, 9 its table, 10 what is
#: called where arguments are others, or flags: 12 is null, or a list whose number is the object 13
#: where they are those of now, 14 a context's variable with the value 15 then, 16
#: ``PyContextVar_Get``. Then of each argument its dtype, number of axes and sizes, of each result
#: what makes it, its number of arguments and two of these, and of each operand its index among
#: arguments and results.
_WHOLE = f"""
define ptr @whole(ptr %self, ptr %args, i64 %given) {{
entry:
{_TABLE}
{_words(0, "inputs outputs count")}
{_word("none", 3, "ptr")}
{_words(5, "vectorcall new_list drop group group_table otherwise type", "ptr")}
{_words(12, "changes change scopes scope get", "ptr")}
%held = alloca ptr
%objects = alloca [{MOST_OPERANDS} x ptr]
%operands = alloca [{MOST_OPERANDS} x ptr]
%of_inputs = getelementptr i64, ptr %t, i64 {WHOLE_HEAD}
%input_words = mul i64 %inputs, {MOST_AXES + 2}
%of_outputs = getelementptr i64, ptr %of_inputs, i64 %input_words
%output_words = mul i64 %outputs, {_MADE_WORDS}
%order = getelementptr i64, ptr %of_outputs, i64 %output_words
{_word("tuple", 1, "ptr", "args")}
%size_at = getelementptr i8, ptr %tuple, i64 {_COUNT_OFFSET}
%size = load i64, ptr %size_at
%items = getelementptr i8, ptr %tuple, i64 {ITEMS_OFFSET}
%as_many = icmp eq i64 %size, %inputs
br i1 %as_many, label %flagged, label %other
flagged:
%no_flags = icmp eq ptr %changes, null
br i1 %no_flags, label %input, label %changed
changed:
%counts_at = getelementptr i8, ptr %changes, i64 {ITEMS_OFFSET}
%counts = load ptr, ptr %counts_at
%count_now = load ptr, ptr %counts
%as_often = icmp eq ptr %count_now, %change
br i1 %as_often, label %scoped, label %other
scoped:
%got = call i32 %get(ptr %scopes, ptr null, ptr %held)
%held_now = load ptr, ptr %held
%not_got = icmp eq ptr %held_now, null
br i1 %not_got, label %other, label %compared
compared:
call void %drop(ptr %held_now)
%as_here = icmp eq ptr %held_now, %scope
br i1 %as_here, label %input, label %other
input:
%i = phi i64 [0, %flagged], [0, %compared], [%i_next, %next]
{_dense_array("items", "other")}
%record_word = mul i64 %i, {MOST_AXES + 2}
%record = getelementptr i64, ptr %of_inputs, i64 %record_word
{_word("dtype", 0, "ptr", "record")}
{_word("axes", 1, "i64", "record")}
%own_at = getelementptr i8, ptr %object, i64 {_DTYPE_OFFSET}
%own = load ptr, ptr %own_at
%axes_of_at = getelementptr i8, ptr %object, i64 {_AXES_OFFSET}
%axes_of = load i32, ptr %axes_of_at
%axes_wide = zext i32 %axes_of to i64
%same_dtype = icmp eq ptr %own, %dtype
%same_axes = icmp eq i64 %axes_wide, %axes
%fits_0 = and i1 %dense, %same_dtype
%fits = and i1 %fits_0, %same_axes
br i1 %fits, label %sized, label %other
sized:
%slot = getelementptr ptr, ptr %objects, i64 %i
store ptr %object, ptr %slot
%sizes_at = getelementptr i8, ptr %object, i64 {_SIZES_OFFSET}
%sizes = load ptr, ptr %sizes_at
%wanted = getelementptr i64, ptr %record, i64 2
%any_axis = icmp sgt i64 %axes, 0
br i1 %any_axis, label %axis, label %next
axis:
%d = phi i64 [0, %sized], [%d_next, %axis_next]
{_word("is_long", "%d", "i64", "sizes")}
{_word("must_be", "%d", "i64", "wanted")}
%same_size = icmp eq i64 %is_long, %must_be
br i1 %same_size, label %axis_next, label %other
axis_next:
%d_next = add i64 %d, 1
%d_more = icmp slt i64 %d_next, %axes
br i1 %d_more, label %axis, label %next
next:
%i_next = add i64 %i, 1
%i_more = icmp slt i64 %i_next, %inputs
br i1 %i_more, label %input, label %make
make:
%list = call ptr %new_list(i64 %outputs)
%no_list = icmp eq ptr %list, null
br i1 %no_list, label %nothing, label %listed
listed:
%made_at = getelementptr i8, ptr %list, i64 {ITEMS_OFFSET}
%made = load ptr, ptr %made_at
br label %output
output:
%j = phi i64 [0, %listed], [%j_next, %kept]
%j4 = mul i64 %j, {_MADE_WORDS}
%maker_at = getelementptr i64, ptr %of_outputs, i64 %j4
%maker = load ptr, ptr %maker_at
{_word("with", 1, "i64", "maker_at")}
%given_at = getelementptr i64, ptr %maker_at, i64 2
%new = call ptr %vectorcall(ptr %maker, ptr %given_at, i64 %with, ptr null)
%no_new = icmp eq ptr %new, null
br i1 %no_new, label %undo, label %kept
kept:
%place = getelementptr ptr, ptr %made, i64 %j
store ptr %new, ptr %place
%at_j = add i64 %inputs, %j
%out_slot = getelementptr ptr, ptr %objects, i64 %at_j
store ptr %new, ptr %out_slot
%j_next = add i64 %j, 1
%j_more = icmp slt i64 %j_next, %outputs
br i1 %j_more, label %output, label %operand
operand:
%k = phi i64 [0, %kept], [%k_next, %operand]
{_word("which", "%k", "i64", "order")}
%from = getelementptr ptr, ptr %objects, i64 %which
%taken = load ptr, ptr %from
%to = getelementptr ptr, ptr %operands, i64 %k
store ptr %taken, ptr %to
%k_next = add i64 %k, 1
%k_more = icmp slt i64 %k_next, %count
br i1 %k_more, label %operand, label %run
run:
%result = call ptr %group(ptr %group_table, ptr %operands, i64 %count)
call void %drop(ptr %result)
%well = icmp eq ptr %result, %none
br i1 %well, label %done, label %failed
done:
ret ptr %list
failed:
call void %drop(ptr %list)
br label %other
other:
%instead = call ptr %vectorcall(ptr %otherwise, ptr %args, i64 2, ptr null)
ret ptr %instead
undo:
call void %drop(ptr %list)
br label %nothing
nothing:
ret ptr null
}}
"""

#: Words: ``dnnl_primitive_execute``, ``dnnl_memory_set_data_handle``, primitive, stream, number of
#: arguments, the arguments, number of operands; bytes to copy before (0: none), from the data of
#: one array object to that of another; then for each operand: memory object, array object (0:
#: none), offset, the address that was set last.
_EXECUTE = f"""
define i64 @execute(ptr %t) {{
entry:
{_words(0, "run set primitive stream", "ptr")}
{_word("count", 4)}
{_word("arguments", 5, "ptr")}
{_words(6, "operands bytes")}
{_words(8, "source target", "ptr")}
%first = getelementptr i64, ptr %t, i64 10
%any_bytes = icmp sgt i64 %bytes, 0
br i1 %any_bytes, label %before, label %operands_of
before:
%source_at_data = getelementptr i8, ptr %source, i64 {DATA_OFFSET}
%source_data = load ptr, ptr %source_at_data
%target_at_data = getelementptr i8, ptr %target, i64 {DATA_OFFSET}
%target_data = load ptr, ptr %target_at_data
%there_already = icmp eq ptr %source_data, %target_data
br i1 %there_already, label %operands_of, label %copy
copy:
call void @llvm.memmove.p0.p0.i64(ptr %target_data, ptr %source_data, i64 %bytes, i1 false)
br label %operands_of
operands_of:
br label %operand
operand:
%i = phi i64 [0, %operands_of], [%i_next, %next]
%i4 = mul i64 %i, 4
%at = getelementptr i64, ptr %first, i64 %i4
{_word("object", 1, "ptr", "at")}
%there = icmp ne ptr %object, null
br i1 %there, label %look, label %next
look:
{_word("offset", 2, "i64", "at")}
{_word("last", 3, "ptr", "at")}
{_PLACE}
%same = icmp eq ptr %place, %last
br i1 %same, label %next, label %move
move:
%memory = load ptr, ptr %at
%moved = call i32 %set(ptr %memory, ptr %place)
store ptr %place, ptr %last_at
br label %next
next:
%i_next = add i64 %i, 1
%more = icmp slt i64 %i_next, %operands
br i1 %more, label %operand, label %go
go:
%n = trunc i64 %count to i32
%code = call i32 %run(ptr %primitive, ptr %stream, i32 %n, ptr %arguments)
%wide = zext i32 %code to i64
ret i64 %wide
}}

declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
"""


def module(name: str) -> str:
    """The module of ``group``, ``loop``, ``check`` or ``whole``."""
    return {"group": _GROUP, "loop": _LOOP, "check": _CHECK, "whole": _WHOLE}[name]


def execute_module() -> str:
    """The module of ``execute``, which runs a oneDNN primitive."""
    return _EXECUTE
