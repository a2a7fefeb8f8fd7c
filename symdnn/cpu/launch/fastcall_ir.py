"""LLVM IR of the functions behind :mod:`symdnn.cpu.launch.fastcall`.

They have the signature of a builtin function (``_PyCFunctionFast``): ``self``, here an array of
words; the arguments; their number. The words of the table: 0 and 1 the numbers of pointer updates
and of steps, 2 whether to release Python's global lock, 3 None, 4 ``Py_IncRef``, 5
``PyEval_SaveThread``, 6 ``PyEval_RestoreThread``, 7 True, 8 False, 9 the type of arrays, 10 which
step failed. From word :data:`HEAD` on come the pointer updates (argument, offset, destination),
then the steps (index of the status word, function, block).
"""

from __future__ import annotations

from symdnn.cpu.ir.builder import FunctionBuilder

#: Words in front of pointer updates and steps.
HEAD = 16
#: ``PyArrayObject_fields``: data, nd, dimensions, strides, base, descr, flags.
DATA_OFFSET = object.__basicsize__
FLAGS_OFFSET = DATA_OFFSET + 48
_TYPE_OFFSET = DATA_OFFSET - 8
_AXES_OFFSET, _SIZES_OFFSET, _DTYPE_OFFSET = DATA_OFFSET + 8, DATA_OFFSET + 16, DATA_OFFSET + 40
_STRIDES_OFFSET = DATA_OFFSET + 24
#: Flags of an array: contiguous in C order, aligned.
DENSE, ALIGNED = 1, 0x100
#: ``PyVarObject``: its number of items; those of a tuple follow, a list has their address there.
_COUNT_OFFSET, ITEMS_OFFSET = object.__basicsize__, object.__basicsize__ + 8
#: Axes of an argument, and arrays, that ``whole`` has room for.
MOST_AXES, MOST_OPERANDS = 8, 32
#: Words in front of the records of ``whole``, and those of a result's and of an argument's record.
WHOLE_HEAD, _MADE_WORDS, GIVEN_WORDS = 24, 4, 2 * MOST_AXES + 3


class _Function(FunctionBuilder):
    """Builds a function of pointers to tables and objects."""

    def __init__(self, signature: str) -> None:
        super().__init__()
        self.signature = signature

    def text(self) -> str:
        """The module of the function."""
        declared = sorted(self.declared)
        return "\n".join([*declared, f"define {self.signature} {{", "entry:", *self.lines, "}"])

    def word_at(self, table: str, index: str | int) -> str:
        """The address of word ``index`` of a table."""
        return self.new(f"getelementptr i64, ptr {table}, i64 {index}")

    def word(self, table: str, index: str | int, kind: str = "ptr") -> str:
        """Load word ``index`` of a table."""
        return self.new(f"load {kind}, ptr {self.word_at(table, index)}")

    def words(self, table: str, first: int, count: int, kind: str = "ptr") -> list[str]:
        """Load ``count`` words from ``first`` on."""
        return [self.word(table, first + k, kind) for k in range(count)]

    def field(self, array: str, offset: int, kind: str = "ptr") -> str:
        """Load what an object has ``offset`` bytes from its beginning."""
        return self.new(f"load {kind}, ptr {self.bytes_at(array, offset)}")

    def place(self, array: str, offset: str) -> str:
        """The data pointer of an array object plus ``offset`` bytes."""
        return self.bytes_at(self.field(array, DATA_OFFSET), offset)

    def same(self, a: str, b: str | int, kind: str = "ptr") -> str:
        """Whether two values are equal."""
        return self.new(f"icmp eq {kind} {a}, {b}")

    def go_on(self, condition: str, other: str) -> None:
        """Go on where the condition holds, else to the label ``other``."""
        following = f"after_{condition[1:]}"
        self.put(f"br i1 {condition}, label %{following}, label %{other}")
        self.label(following)

    def dense_array(
        self, objects: str, i: str, kind: str, other: str, flag: str | int = DENSE
    ) -> str:
        """Object ``i`` of a list; to the label ``other`` where it is no dense array, or none with
        another ``flag``."""
        array = self.word(objects, i)
        self.go_on(self.same(self.field(array, _TYPE_OFFSET), kind), other)
        flags = self.field(array, FLAGS_OFFSET, "i32")
        self.go_on(self.new(f"icmp ne i32 {self.new(f'and i32 {flags}, {flag}')}, 0"), other)
        return array


class _Builtin(_Function):
    """Builds a builtin function, whose table is in the data of ``self``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"ptr @{name}(ptr %self, ptr %args, i64 %given)")
        self.table = self.field("%self", DATA_OFFSET)

    def give(self, grab: str, value: str) -> None:
        """Return one more reference to an object."""
        self.call(grab, f"ptr {value}")
        self.put(f"ret ptr {value}")


class _Steps(_Builtin):
    """Builds a function that runs all steps; the label ``failed`` is where it ends after a failure.

    ``%saved`` has what says how Python's lock was held.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.moves, self.steps = self.words(self.table, 0, 2, "i64")
        self.none, self.grab, self.save, self.restore = self.words(self.table, 3, 4)
        self.first_move = self.word_at(self.table, HEAD)
        self.first_step = self.word_at(self.first_move, self.times(self.moves, 3))
        self.put("%saved = alloca ptr")

    def let_go(self) -> None:
        """Release Python's lock."""
        self.put(f"store ptr {self.call(self.save, gives='ptr')}, ptr %saved")

    def take(self) -> None:
        """Take it again."""
        self.call(self.restore, f"ptr {self.new('load ptr, ptr %saved')}")

    def set_pointers(self, time: str = "", strides: str = "") -> None:
        """Store where each pointer points, at the time given by the strides of arguments."""

        def move(i: str) -> int:
            at = self.word_at(self.first_move, self.times(i, 3))
            argument, offset = self.words(at, 0, 2, "i64")
            to = self.word(at, 2)
            place = self.place(self.word("%args", argument), offset)
            if time:
                place = self.bytes_at(place, (time, self.word(strides, argument, "i64")))
            self.put(f"store ptr {place}, ptr {to}")
            return 1

        self.upto("move", 0, self.moves, move)

    def run_steps(self) -> None:
        """Call the functions of all steps, until one fails."""

        def step(k: str) -> int:
            at = self.word_at(self.first_step, self.times(k, 3))
            status, (function, block) = self.word(at, 0, "i64"), self.words(at, 1, 2)
            returned = self.call(function, f"ptr {block}", gives="i64")
            with self.when("fallible", self.new(f"icmp sge i64 {status}, 0")):
                in_block, by_return = self.word(block, status, "i64"), self.same(status, 0, "i64")
                code = self.new(f"select i1 {by_return}, i64 {returned}, i64 {in_block}")
                self.go_on(self.same(code, 0, "i64"), "bad")
            return 1

        self.upto("step", 0, self.steps, step)

    def end(self, releases: str = "true") -> None:
        """Return None, or after a failure the table, with the step."""
        before = self.block
        self.put("br label %done")
        self.label("bad")
        self.put(f"store i64 %i_step, ptr {self.word_at(self.table, 10)}", "br label %done")
        self.label("done")
        result = self.new(f"phi ptr [{self.none}, %{before}], [%self, %bad]")
        with self.when("taken", releases):
            self.take()
        self.give(self.grab, result)


def _group() -> str:
    """``group``: all steps, once."""
    s = _Steps("group")
    release = s.word(s.table, 2, "i64")
    s.set_pointers()
    releases = s.new(f"icmp ne i64 {release}, 0")
    with s.when("released", releases):
        s.let_go()
    s.run_steps()
    s.end(releases)
    return s.text()


def _loop() -> str:
    """``loop``: the same many times.

    Word 11 is how often, 12 the address of the steps in bytes by which each argument moves from one
    time to the next, 13 becomes the number of times that went well.
    """
    s = _Steps("loop")
    times, strides = s.word(s.table, 11, "i64"), s.word(s.table, 12)
    went_well = s.word_at(s.table, 13)
    s.let_go()
    with s.each("time", 0, times) as n:
        s.put(f"store i64 {n}, ptr {went_well}")
        s.set_pointers(n, strides)
        s.run_steps()
    s.put(f"store i64 {times}, ptr {went_well}")
    s.end()
    return s.text()


def _check() -> str:
    """``check``: whether all of ``count`` arguments are dense arrays."""
    s = _Builtin("check")
    count, grab = s.word(s.table, 0, "i64"), s.word(s.table, 4)
    yes, no, kind = s.words(s.table, 7, 3)
    with s.each("one", 0, count) as i:
        s.dense_array("%args", i, kind, "other")
    s.give(grab, yes)
    s.label("other")
    s.give(grab, no)
    return s.text()


class _Whole(_Builtin):
    """A call of a function as a whole: ``(function, arguments)``, a tuple, to the list of results.

    Words: 0 to 2 the numbers of arguments, results and operands, 3 None, 4 nothing, 5
    ``PyObject_Vectorcall``, 6 ``PyList_New``, 7 ``Py_DecRef``, 8 ``group``, 9 its table, 10 what is
    called where arguments are others, or flags: 12 is null, or a list whose number is the object 13
    where they are those of now, 14 a context's variable with the value 15 then, 16
    ``PyContextVar_Get``, 17 is null, or a list whose number is the object 18 where kept operands
    are those of now, 19 an object with the value 21 of the attribute 20 where no call runs, 22
    ``PyObject_GetAttr``. Then of each argument its dtype, number of axes, flag, sizes and strides
    (those of a dense one are not compared), of each result what makes it, its number of arguments
    and two of these, of each operand its index among arguments and results, and of each operand
    the array that is kept for it, or null.
    """

    def __init__(self) -> None:
        super().__init__("whole")
        t = self.table
        self.inputs, self.outputs, self.count = self.words(t, 0, 3, "i64")
        self.none = self.word(t, 3)
        self.vectorcall, self.new_list, self.drop = self.words(t, 5, 3)
        self.group, self.group_table, self.otherwise, self.type = self.words(t, 8, 4)
        self.put("%held = alloca ptr", *(
            f"%{name} = alloca [{MOST_OPERANDS} x ptr]" for name in ("objects", "operands")
        ))  # fmt: skip
        self.of_inputs = self.word_at(t, WHOLE_HEAD)
        input_words = self.times(self.inputs, GIVEN_WORDS)
        self.of_outputs = self.word_at(self.of_inputs, input_words)
        self.order = self.word_at(self.of_outputs, self.times(self.outputs, _MADE_WORDS))
        self.kept = self.word_at(self.order, self.count)

    def whole(self) -> str:
        """The module."""
        arguments = self.word("%args", 1)
        items = self.bytes_at(arguments, ITEMS_OFFSET)
        size = self.field(arguments, _COUNT_OFFSET, "i64")
        self.go_on(self.same(size, self.inputs, "i64"), "other")
        self._look_at_flags()
        self._look_at_kept()
        with self.each("input", 0, self.inputs) as i:
            self._look_at_input(items, i)
        made = self.call(self.new_list, f"i64 {self.outputs}", gives="ptr")
        self.go_on(self.new(f"icmp ne ptr {made}, null"), "nothing")
        slots = self.field(made, ITEMS_OFFSET)
        with self.each("output", 0, self.outputs) as j:
            self._make_output(slots, j)
        with self.each("operand", 0, self.count) as k:
            taken = self.word("%objects", self.word(self.order, k, "i64"))
            kept = self.word(self.kept, k)
            given = self.new(f"icmp eq ptr {kept}, null")
            taken = self.new(f"select i1 {given}, ptr {taken}, ptr {kept}")
            self.put(f"store ptr {taken}, ptr {self.word_at('%operands', k)}")
        given = f"ptr {self.group_table}, ptr %operands, i64 {self.count}"
        result = self.call(self.group, given, gives="ptr")
        self.call(self.drop, f"ptr {result}")
        self.go_on(self.same(result, self.none), "failed")
        self.put(f"ret ptr {made}")
        for name, after in (("failed", "other"), ("undo", "nothing")):
            self.label(name)
            self.call(self.drop, f"ptr {made}")
            self.put(f"br label %{after}")
        self.label("other")
        instead = self._called(self.otherwise, "%args", 2)
        self.put(f"ret ptr {instead}")
        self.label("nothing")
        self.put("ret ptr null")
        return self.text()

    def _called(self, function: str, given: str, count: str | int) -> str:
        """What a Python function returns for so many arguments."""
        arguments = f"ptr {function}", f"ptr {given}", f"i64 {count}", "ptr null"
        return self.call(self.vectorcall, *arguments, gives="ptr")

    def _look_at_flags(self) -> None:
        changes, change, scopes, scope, get = self.words(self.table, 12, 5)
        with self.when("flags", self.new(f"icmp ne ptr {changes}, null")):
            now = self.word(self.field(changes, ITEMS_OFFSET), 0)
            self.go_on(self.same(now, change), "other")
            self.call(get, f"ptr {scopes}", "ptr null", "ptr %held", gives="i32")
            held = self.new("load ptr, ptr %held")
            self.go_on(self.new(f"icmp ne ptr {held}, null"), "other")
            self.call(self.drop, f"ptr {held}")
            self.go_on(self.same(held, scope), "other")

    def _look_at_kept(self) -> None:
        changes, change, runtime, name, idle, get = self.words(self.table, 17, 6)
        with self.when("kept", self.new(f"icmp ne ptr {changes}, null")):
            now = self.word(self.field(changes, ITEMS_OFFSET), 0)
            self.go_on(self.same(now, change), "other")
            found = self.call(get, f"ptr {runtime}", f"ptr {name}", gives="ptr")
            self.go_on(self.new(f"icmp ne ptr {found}, null"), "nothing")
            self.call(self.drop, f"ptr {found}")
            self.go_on(self.same(found, idle), "other")

    def _look_at_input(self, items: str, i: str) -> None:
        """Keep an argument that is as its record says."""
        record = self.word_at(self.of_inputs, self.times(i, GIVEN_WORDS))
        flag = self.new(f"trunc i64 {self.word(record, 2, 'i64')} to i32")
        array = self.dense_array(items, i, self.type, "other", flag)
        axes = self.word(record, 1, "i64")
        self.go_on(self.same(self.field(array, _DTYPE_OFFSET), self.word(record, 0)), "other")
        own = self.new(f"zext i32 {self.field(array, _AXES_OFFSET, 'i32')} to i64")
        self.go_on(self.same(own, axes, "i64"), "other")
        self.put(f"store ptr {array}, ptr {self.word_at('%objects', i)}")
        self._compare("size", self.field(array, _SIZES_OFFSET), self.word_at(record, 3), axes)
        with self.when("strided", self.new(f"icmp ne i32 {flag}, {DENSE}")):
            wanted = self.word_at(record, 3 + MOST_AXES)
            self._compare("stride", self.field(array, _STRIDES_OFFSET), wanted, axes)

    def _compare(self, name: str, numbers: str, wanted: str, count: str) -> None:
        """To the label ``other`` where one of so many numbers is another one."""

        def one(d: str) -> int:
            number, due = (self.word(of, d, "i64") for of in (numbers, wanted))
            self.go_on(self.same(number, due, "i64"), "other")
            return 1

        self.upto(name, 0, count, one)

    def _make_output(self, slots: str, j: str) -> None:
        at = self.word_at(self.of_outputs, self.times(j, _MADE_WORDS))
        maker, count, given = self.word(at, 0), self.word(at, 1, "i64"), self.word_at(at, 2)
        array = self._called(maker, given, count)
        self.go_on(self.new(f"icmp ne ptr {array}, null"), "undo")
        slot = self.word_at("%objects", self.plus(self.inputs, j))
        for place in (self.word_at(slots, j), slot):
            self.put(f"store ptr {array}, ptr {place}")


def module(name: str) -> str:
    """The module of ``group``, ``loop``, ``check`` or ``whole``."""
    return _Whole().whole() if name == "whole" else _MODULES[name]()


_MODULES = {"group": _group, "loop": _loop, "check": _check}


def execute_module() -> str:
    """The module of ``execute``, which runs a oneDNN primitive.

    Words: ``dnnl_primitive_execute``, ``dnnl_memory_set_data_handle``, primitive, stream, number of
    arguments, the arguments, number of operands; bytes to copy before (0: none), from the data of
    one array object to that of another; then for each operand: memory object, array object (0:
    none), offset, the address that was set last.
    """
    s = _Function("i64 @execute(ptr %t)")
    s.declared.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
    run, put, primitive, stream = s.words("%t", 0, 4)
    count, arguments = s.word("%t", 4, "i64"), s.word("%t", 5)
    operands, nbytes = s.words("%t", 6, 2, "i64")
    source, target = s.words("%t", 8, 2)
    first = s.word_at("%t", 10)
    with s.when("copies", s.new(f"icmp sgt i64 {nbytes}, 0")):
        pair = [s.field(a, DATA_OFFSET) for a in (target, source)]
        with s.when("apart", s.new(f"icmp ne ptr {pair[0]}, {pair[1]}")):
            to, source = (f"ptr {p}" for p in pair)
            s.call("llvm.memmove.p0.p0.i64", to, source, f"i64 {nbytes}", "i1 false")
    with s.each("operand", 0, operands) as i:
        at = s.word_at(first, s.times(i, 4))
        array = s.word(at, 1)
        with s.when("there", s.new(f"icmp ne ptr {array}, null")):
            place, last_at = s.place(array, s.word(at, 2, "i64")), s.word_at(at, 3)
            last = s.new(f"load ptr, ptr {last_at}")
            with s.when("elsewhere", s.new(f"icmp ne ptr {place}, {last}")):
                s.call(put, f"ptr {s.word(at, 0)}", f"ptr {place}", gives="i32")
                s.put(f"store ptr {place}, ptr {last_at}")
    n = s.new(f"trunc i64 {count} to i32")
    given = f"ptr {primitive}", f"ptr {stream}", f"i32 {n}", f"ptr {arguments}"
    code = s.call(run, *given, gives="i32")
    s.put(f"ret i64 {s.new(f'zext i32 {code} to i64')}")
    return s.text()
