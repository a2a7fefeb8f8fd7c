"""The kernels of attention and of its gradient as LLVM IR; see :mod:`.tasks_ir`."""

from __future__ import annotations

from symdnn.cpu.attention import rows_ir
from symdnn.cpu.attention.draws_ir import draw_rows
from symdnn.cpu.attention.plan import AttentionPlan, words
from symdnn.cpu.attention.scores_ir import passes
from symdnn.cpu.attention.tasks_ir import SIZE, TaskSource
from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.gemm import gemm_ir
from symdnn.cpu.ir.builder import DECLARED
from symdnn.cpu.ir.loops_ir import data_of, kernel_entry, word
from symdnn.cpu.ir.math_ir import declarations, definitions
from symdnn.cpu.ir.vector_activations_ir import activation_declarations

#: Gradients of keys, and the lengths of their rows.
_OF_KEYS = {"dk": "%features", "dv": "%values"}


def attention_ir(plan: AttentionPlan) -> str:
    """The module of ``kernel`` for a pass; its block has the words of :func:`.plan.words`."""
    shape = gemm_ir.shape_of(plan.width)
    made, declared = passes(plan)
    source = _Backward(plan) if plan.backward else _Forward(plan)
    lines = dict.fromkeys([
        *DECLARED, *activation_declarations(plan.width), *gemm_ir.declared(shape), *declared,
        *sorted(declarations({"s_log"})),
    ])  # fmt: skip
    return SKIP_PASSES + "\n".join([
        *lines, *gemm_ir.functions(shape), *_rows(plan), *made, *source.source(), *_kernel(plan),
        gemm_ir.attributes(shape), "",
    ])  # fmt: skip


def _rows(plan: AttentionPlan) -> list[str]:
    """The functions of rows that a plan needs."""
    lines = [*rows_ir.zero_rows(), *rows_ir.scale_all()]
    if plan.dtype != "float32":
        lines += rows_ir.convert("widen_rows", plan.dtype, "float32")
    if plan.mask not in ("", "float32"):
        lines += rows_ir.convert("open_rows", plan.mask, "float32")
    if plan.drops:
        lines += draw_rows()
    if plan.backward:
        lines += [*rows_ir.convert("narrow_rows", "float32", plan.dtype), *rows_ir.add_rows()]
        return [*lines, *rows_ir.dot_rows(), *rows_ir.backward_stats()]
    lines += [*rows_ir.put_rows("shrink_rows", "float32"), *rows_ir.forward_stats()]
    lines += definitions({"s_log"})
    return [*lines, *rows_ir.put_rows("finish_rows", plan.dtype)]


def _pool(name: str, task: str, tasks: str) -> list[str]:
    """A function for each thread, which takes tasks from a counter until there are none."""
    names = words()
    at = {n: names.index(n) for n in ("next", "own", tasks, "scratch")}
    return [
        f"define internal void @{name}(ptr %w) #0 {{", "entry:",
        *data_of("%scratch", at["scratch"]), *word("%own", at["own"]), *word("%tasks", at[tasks]),
        f"%next = getelementptr i64, ptr %w, i64 {at['next']}",
        "%t0 = call i32 @omp_get_thread_num()", "%t = zext i32 %t0 to i64",
        "%from = mul i64 %t, %own", "%here = getelementptr i8, ptr %scratch, i64 %from",
        "br label %take", "take:", "%r = atomicrmw add ptr %next, i64 1 monotonic",
        "%more = icmp slt i64 %r, %tasks", "br i1 %more, label %run, label %done", "run:",
        f"call void @{task}(ptr %w, ptr %here, i64 %r)", "br label %take", "done:", "ret void", "}",
    ]  # fmt: skip


def _kernel(plan: AttentionPlan) -> list[str]:
    """The function ``kernel``: all tasks, then backward those that add up parts, if there are."""
    names = words()
    begin = [f"%next = getelementptr i64, ptr %w, i64 {names.index('next')}"]
    begin.append("store i64 0, ptr %next")
    lines = [
        "declare void @GOMP_parallel(ptr, ptr, i32, i32)", "declare i32 @omp_get_thread_num()",
        *_pool("worker", "task", "tasks"), *_in_threads("tasks_of_all", "worker"),
    ]  # fmt: skip
    after = ["ret void"]
    if plan.backward:
        lines += [*_pool("gatherer", "gather", "gathers"), *_in_threads("gather_all", "gatherer")]
        after = [
            *word("%gathers", names.index("gathers")), "%any = icmp sgt i64 %gathers, 0",
            "br i1 %any, label %parts, label %done", "parts:", "store i64 0, ptr %next",
            "call void @gather_all(ptr %w)", "br label %done", "done:", "ret void",
        ]  # fmt: skip
    head = "define void @kernel(ptr %w) #0 {"
    return [*lines, head, *begin, "call void @tasks_of_all(ptr %w)", *after, "}"]


def _in_threads(name: str, worker: str) -> list[str]:
    """The function ``name``, which runs a worker in all threads."""
    entry = kernel_entry(f"call void @{worker}(ptr %w)")
    return [x.replace("@kernel(", f"@{name}(").replace("@worker,", f"@{worker},") for x in entry]


class _Forward(TaskSource):
    """A task: the results of a block of queries of one head."""

    def source(self) -> list[str]:
        """The lines of the function ``task``."""
        self.begin()
        turn, bh = self.new("urem i64 %r, %blocks_q"), self.new("udiv i64 %r, %blocks_q")
        # The last queries first: a causal mask leaves them most keys.
        block = self.minus(self.minus("%blocks_q", 1), turn)
        self.batch, self.head = (self.new(f"{o} i64 {bh}, %heads") for o in ("udiv", "urem"))
        self.group = self.new(f"udiv i64 {self.head}, %share")
        self.q0 = self.times(block, "%block_q")
        self.lengths(self.batch)
        here, self.count, low, high = self.span(self.q0)
        with self.when("any", self.new(f"icmp sgt i64 {self.count}, 0")):
            self._attend(low, high)
        self._results(here)
        self.put("ret void", "}")
        return self.lines

    def _attend(self, low: str, high: str) -> None:
        """All keys of the block."""
        q = self.row_of("q", self.head_of("q", self.batch, self.head), self.q0)
        rows = self.floats("q", q, self.count, "%features")
        self.pack_turned(rows, "%b_qt", self.count, "%features")
        self.scale_turned(self.count)
        line = self.times("%block_q", 4)
        self.call("open_stats", f"ptr %b_stats, i64 {line}, i64 %block_q")
        width = self.times("%values", 4)
        self.call("zero_rows", f"ptr %b_acc, i64 {width}, i64 {self.count}, i64 {width}")
        self.upto("each_key", low, high, lambda j: self._keys(j, high))

    def _keys(self, j: str, high: str) -> str:
        tile, row = self.tile(self.q0, self.count, j, high), self.times("%values", 4)
        n, count = tile.rows, tile.count
        k = self.row_of("k", self.head_of("k", self.batch, self.group), j)
        rows = self.floats("k", k, n, "%features")
        queries = self.bytes_at("%b_qt", (tile.first, self.times("%features", 4)))
        sizes = (n, count, "%features")
        self.multiply((*rows, "4"), (queries, "%features"), ("%b_st", "%line"), sizes)
        self.mask_tile(self.batch, self.head, tile, j)
        self.keep_tile(self.batch, self.head, tile, j)
        changed = self.touch("soften", "i1", tile, "")
        v = self.row_of("v", self.head_of("v", self.batch, self.group), j)
        self.pack(self.floats("v", v, n, "%values"), "%b_vp", n, "%values")
        shrink = self.bytes_at("%b_stats", ("%block_q", 8), (tile.first, 4))
        acc = self.bytes_at("%b_acc", (tile.first, row))
        given = f"ptr {acc}, i64 {row}, ptr {acc}, i64 {row}, i64 {count}, i64 %values"
        with self.when("shrinks", changed):
            self.call("shrink_rows", f"{given}, ptr {shrink}")
        sizes = (count, "%values", n)
        self.multiply(("%b_st", "4", "%line"), ("%b_vp", n), (acc, row), sizes, acc)
        return n

    def _results(self, here: str) -> None:
        """Divide by the sums; queries that see nothing have 0 and -inf."""
        lse = self.per_query("lse", self.batch, self.head, self.q0)
        line = self.times("%block_q", 4)
        given = f"ptr %b_stats, i64 {line}, ptr {lse}, i64 {self.count}, i64 {here}"
        self.call("close_stats", given)
        out = self.row_of("out", self.head_of("out", self.batch, self.head), self.q0)
        row, factors = self.times("%values", 4), self.bytes_at("%b_stats", line)
        given = f"ptr %b_acc, i64 {row}, ptr {out}, i64 %out_t, i64 {self.count}, i64 %values"
        self.call("finish_rows", f"{given}, ptr {factors}")
        rest, width = self.minus(here, self.count), self.times("%values", SIZE[self.plan.dtype])
        last = self.row_of("out", out, self.count)
        self.call("zero_rows", f"ptr {last}, i64 %out_t, i64 {rest}, i64 {width}")


class _OfKeys(TaskSource):
    """What tasks with gradients of keys and values share."""

    batch = group = ""

    def begin(self, name: str = "task") -> None:
        """Append the head, and ``%shared``, the sums of parts behind the buffers of threads."""
        super().begin(name)
        self.lines += data_of("%scratch", words().index("scratch"))
        self.put("%all_own = mul i64 %threads, %own")
        self.put("%shared = getelementptr i8, ptr %scratch, i64 %all_own")

    def partial(self, index: str) -> str:
        """The sums of a part."""
        return self.bytes_at("%shared", (index, "%partial"))

    def sum_of(self, name: str, base: str) -> tuple[str, str]:
        """(address, stride of rows) of one of the sums at ``base``."""
        before = self.times(self.times("%keys", "%features"), 4) if name == "dv" else 0
        return self.bytes_at(base, before), self.times(_OF_KEYS[name], 4)

    def put_sums(self, first: str, count: str, sums: dict[str, tuple[str, str]]) -> None:
        """Round the sums of ``count`` keys from ``first`` on."""
        for name, n in _OF_KEYS.items():
            at, row = sums[name]
            head = self.row_of(name, self.head_of(name, self.batch, self.group), first)
            given = f"ptr {self.bytes_at(at, (first, row))}, i64 {row}, ptr {head}, i64 %{name}_t"
            self.call("narrow_rows", f"{given}, i64 {count}, i64 {n}")


class _Gather(_OfKeys):
    """A task: the sums of all parts of a block of keys."""

    def source(self) -> list[str]:
        """The lines of the function ``gather``."""
        self.begin("gather")
        blocks = self.new(f"udiv i64 {self.plus('%keys', self.minus('%block_k', 1))}, %block_k")
        bg, block = (self.new(f"{o} i64 %r, {blocks}") for o in ("udiv", "urem"))
        self.batch, self.group = (self.new(f"{o} i64 {bg}, %groups") for o in ("udiv", "urem"))
        first = self.times(block, "%block_k")
        count = self.least("%block_k", self.minus("%keys", first))
        begin = self.times(bg, "%parts")
        sums = {name: self.sum_of(name, self.partial(begin)) for name in _OF_KEYS}

        def add(part: str) -> int:
            for name, n in _OF_KEYS.items():
                at, row = self.sum_of(name, self.partial(self.plus(begin, part)))
                to = self.bytes_at(sums[name][0], (first, row))
                given = f"ptr {self.bytes_at(at, (first, row))}, i64 {row}, ptr {to}, i64 {row}"
                self.call("add_rows", f"{given}, i64 {count}, i64 {n}")
            return 1

        self.upto("each_part", 1, "%parts", add)
        self.put_sums(first, count, sums)
        self.put("ret void", "}")
        return self.lines


class _Backward(_OfKeys):
    """A task: the gradients of a head of keys and values, and of queries that share it."""

    def source(self) -> list[str]:
        """The lines of the function ``task``, and of ``gather``."""
        self.begin()
        bg, part = (self.new(f"{o} i64 %r, %parts") for o in ("udiv", "urem"))
        self.batch, self.group = (self.new(f"{o} i64 {bg}, %groups") for o in ("udiv", "urem"))
        self.lengths(self.batch)
        single = self.new("icmp eq i64 %parts, 1")
        mine = self.new(f"select i1 {single}, ptr %b_sums, ptr {self.partial('%r')}")
        self.sums = {}
        for name, n in _OF_KEYS.items():
            at, row = self.sum_of(name, mine)
            if not self.wide:
                to = self.head_of(name, self.batch, self.group)
                at = self.new(f"select i1 {single}, ptr {to}, ptr {at}")
                row = self.new(f"select i1 {single}, i64 %{name}_t, i64 {row}")
            self.sums[name] = at, row
            self.call("zero_rows", f"ptr {at}, i64 {row}, i64 %keys, i64 {self.times(n, 4)}")
        every = self.times("%share", "%blocks_q")
        first, end = (
            self.new(f"udiv i64 {self.times(every, p)}, %parts") for p in (part, self.plus(part, 1))
        )
        self.upto("each_block", first, end, self._block)
        if self.wide:
            with self.when("alone", single):
                self.put_sums("0", "%keys", self.sums)
        self.put("ret void", "}")
        return [*self.lines, *_Gather(self.plan).source()]

    def _block(self, unit: str) -> int:
        turn, block = (self.new(f"{o} i64 {unit}, %blocks_q") for o in ("udiv", "urem"))
        self.head = self.plus(self.times(self.group, "%share"), turn)
        self._queries(self.times(block, "%block_q"))
        return 1

    def _queries(self, q0: str) -> None:
        self.q0 = q0
        here, self.count, low, high = self.span(q0)
        dq = self.row_of("dq", self.head_of("dq", self.batch, self.head), q0)
        row = self.times("%features", 4)
        self.dq = ("%b_dqw", row) if self.wide else (dq, "%dq_t")
        with self.when("any", self.new(f"icmp sgt i64 {self.count}, 0")):
            self._attend(low, high)
        if self.wide:
            given = f"ptr %b_dqw, i64 {row}, ptr {dq}, i64 %dq_t, i64 {self.count}, i64 %features"
            self.call("narrow_rows", given)
        last, rest = self.row_of("dq", dq, self.count), self.minus(here, self.count)
        width = self.times("%features", SIZE[self.plan.dtype])
        self.call("zero_rows", f"ptr {last}, i64 %dq_t, i64 {rest}, i64 {width}")

    def _attend(self, low: str, high: str) -> None:
        """Pack the queries and cotangents both ways, then run over the keys."""
        count, at = self.count, {}
        for name in ("q", "dout", "out"):
            at[name] = self.row_of(name, self.head_of(name, self.batch, self.head), self.q0)
        q = self.floats("q", at["q"], count, "%features")
        self.pack_turned(q, "%b_qt", count, "%features")
        self.pack(q, "%b_qp", count, "%features")
        self.scale_turned(count)
        dout = self.floats("dout", at["dout"], count, "%values")
        self.pack_turned(dout, "%b_dot", count, "%values")
        self.pack(dout, "%b_dop", count, "%values")
        out = self.floats("out", at["out"], count, "%values", "%b_wide2")
        total = self.bytes_at("%b_stats", ("%block_q", 4))
        given = f"ptr {dout[0]}, i64 {dout[1]}, ptr {out[0]}, i64 {out[1]}, ptr {total}"
        self.call("dot_rows", f"{given}, i64 {count}, i64 %values")
        lse, slope = (self.per_query(n, self.batch, self.head, self.q0)
                      for n in ("lse", "dlse" if self.plan.of_lse else "lse"))  # fmt: skip
        slope = slope if self.plan.of_lse else "null"
        given = f"ptr {lse}, ptr {slope}, ptr %b_stats, ptr {total}, i64 {count}"
        self.call("begin_slopes", given)
        given = f"ptr {self.dq[0]}, i64 {self.dq[1]}, i64 {count}, i64 {self.times('%features', 4)}"
        self.call("zero_rows", given)
        self.upto("each_key", low, high, lambda j: self._keys(j, high))

    def _keys(self, j: str, high: str) -> str:
        tile = self.tile(self.q0, self.count, j, high)
        n, count, first = tile.rows, tile.count, tile.first
        d, e, score, grad = "%features", "%values", ("%b_st", "%line"), ("%b_dt", "%line")
        k = self.row_of("k", self.head_of("k", self.batch, self.group), j)
        rows = self.floats("k", k, n, d)
        queries = self.bytes_at("%b_qt", (first, self.times(d, 4)))
        self.multiply((*rows, "4"), (queries, d), score, (n, count, d))
        self.pack(rows, "%b_kp", n, d)
        v = self.row_of("v", self.head_of("v", self.batch, self.group), j)
        slopes = self.bytes_at("%b_dot", (first, self.times(e, 4)))
        self.multiply((*self.floats("v", v, n, e), "4"), (slopes, e), grad, (n, count, e))
        self.mask_tile(self.batch, self.head, tile, j)
        self.keep_tile(self.batch, self.head, tile, j)
        self.touch("slope", "void", tile, ", ptr %b_dt, float %scale")
        for name, source, packed, size in (("dv", score, "%b_dop", e), ("dk", grad, "%b_qp", d)):
            at, row = self.sums[name]
            to, given = self.bytes_at(at, (j, row)), self.bytes_at(packed, (first, self.panel))
            sizes = (n, size, count)
            self.multiply((*source, "4"), (given, self.count), (to, row), sizes, to)
        at, row = self.dq
        to = self.bytes_at(at, (first, row))
        self.multiply((grad[0], "4", grad[1]), ("%b_kp", n), (to, row), (count, d, n), to)
        return n
