"""Convolution in NHWC with 256-bit vectors as LLVM IR: one module for all sizes.

Tiles read the addresses of their pixels of the input from a list, tap for tap, so strides,
dilations, borders (a row of zeros) and pixels of several rows need no code of their own. The list
of some tiles is made once for all panels of filters. A tap that is beyond the border for all pixels
of a tile is left out.

Filters are in *panels* of 16 channels of the result: (panel, tap, term, channel), zeros where there
are fewer. A *term* is a channel of the input. Of groups with 8 channels of the result a panel has
two, whose vectors of sums have terms of their own (``second`` floats further).
"""

from __future__ import annotations

from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.conv.direct_tile_ir import (
    ATTRIBUTES,
    ENTRY_BYTES,
    FETCH_SHARES,
    LANES,
    PANEL,
    PIXELS,
    REST,
    tile_name,
    tiles,
)
from symdnn.cpu.ir.builder import ROWS, Builder
from symdnn.cpu.ir.loops_ir import THREADS, data_if_any, data_of, next_task, word

#: Memory of the list of addresses, on the stack, and the most tiles in it.
LIST_BYTES, MAX_BLOCK_TILES = 1 << 15, 32
#: A row that no image has, of pixels behind the last one.
_NOWHERE = -(1 << 60)

#: The words of the kernel's block: the numbers of threads and tasks, 1; array objects of operands
#: (0: none); sizes of input, filter and result; strides, padding before and dilation; pixels of all
#: results, channels of a sample and of a result; terms; floats to the terms of a panel's second
#: vector (0: the same terms); panels of a group, and floats of input and of result from a group to
#: the next; all panels; tiles and panels of a part, numbers of parts of panels; tiles of a list;
#: the activation function (``KINDS``) and its limits, as bits of float32; whether each pixel of the
#: result is one of the input, at the same place.
WORDS = (
    "threads", "tasks", "one", "x", "filters", "zeros", "bias", "more", "y", "in_h", "in_w", "k_h",
    "k_w", "out_h", "out_w", "stride_h", "stride_w", "pad_h", "pad_w", "step_h", "step_w", "pixels",
    "channels", "results", "terms", "second", "group_panels", "group_in", "group_out", "panels",
    "part_tiles", "part_panels", "parts_panels", "block_tiles", "kind", "low", "high",
    "same",
)  # fmt: skip
#: The words that are array objects.
_ARRAY_WORDS = ("x", "filters", "zeros", "bias", "more", "y")


def direct_ir(width: int) -> str:
    """The module of ``kernel``; ``width`` is 8, the float32 of a vector."""
    declared, lines = tiles(width)
    rows = _Rows(width)
    lines += rows.source()
    declared |= rows.declared
    return SKIP_PASSES + "\n".join([*sorted(declared), *lines, *THREADS, ATTRIBUTES, ""])


class _Rows(Builder):
    """The function ``rows``, a task of which is a part: some tiles and some panels."""

    def source(self) -> list[str]:
        """The lines of the function."""
        entry = [
            f"%list = alloca [{LIST_BYTES // 8} x i64], align 64",
            f"%counts = alloca [{MAX_BLOCK_TILES} x i64], align 64",
            *(f"%{n} = alloca [{PIXELS} x i64], align 64" for n in ("corners", "tops", "lefts")),
        ]
        for at, name in enumerate(WORDS):
            load = data_of if name in _ARRAY_WORDS else word
            entry += (data_if_any if name in ("bias", "more") else load)(f"%{name}", at)
        for name in ("low", "high"):
            entry.append(f"%{name}_bits = trunc i64 %{name} to i32")
            entry.append(f"%{name}_is = bitcast i32 %{name}_bits to float")
        entry += [
            "%is_same = icmp ne i64 %same, 0",
            "%taps = mul i64 %k_h, %k_w", "%tap_floats = mul i64 %terms, 16",
            "%tap_bytes = mul i64 %tap_floats, 4", "%panel_bytes = mul i64 %taps, %tap_bytes",
            f"%share_bytes = udiv i64 %panel_bytes, {FETCH_SHARES}",
            f"%tile_bytes = mul i64 %taps, {ENTRY_BYTES}",
            "%row_bytes = mul i64 %results, 4", "%pixel_bytes = mul i64 %channels, 4",
            "%in_size = mul i64 %in_h, %in_w", "%image_bytes = mul i64 %in_size, %pixel_bytes",
            "%out_size = mul i64 %out_h, %out_w", f"%tiles_5 = add i64 %pixels, {PIXELS - 1}",
            f"%tiles = udiv i64 %tiles_5, {PIXELS}",
        ]  # fmt: skip
        self.tasks(entry)
        self.put("%at_t = udiv i64 %r, %parts_panels", "%at_p = urem i64 %r, %parts_panels")
        self.put(
            "%tile_0 = mul i64 %at_t, %part_tiles", "%tile_over = add i64 %tile_0, %part_tiles"
        )
        self.put("%panel_0 = mul i64 %at_p, %part_panels")
        self.put("%panel_over = add i64 %panel_0, %part_panels")
        tile_end, panel_end = (
            self.least("%tile_over", "%tiles"), self.least("%panel_over", "%panels")
        )  # fmt: skip
        some = self.new(f"icmp slt i64 %tile_0, {tile_end}")
        some = self.new(f"and i1 {some}, {self.new(f'icmp slt i64 %panel_0, {panel_end}')}")
        with self.when("part", some):
            left = self.minus(tile_end, "%tile_0")
            up = self.new(f"sub i64 {self.new(f'add i64 {left}, %block_tiles')}, 1")
            with self.each("block", 0, self.new(f"udiv i64 {up}, %block_tiles")) as n:
                first = self.new(f"add i64 %tile_0, {self.new(f'mul i64 {n}, %block_tiles')}")
                end = self.least(self.plus(first, "%block_tiles"), tile_end)
                with self.each("listed", first, end) as t:
                    self._listed(t, first)
                with self.each("panel", "%panel_0", panel_end) as p:
                    self._panel(p, first, end)
        return [*self.lines, *next_task("task")]

    # -- lists ------------------------------------------------------------------------------------

    def _place(self, base: str, index: str | int, words: int = 1) -> str:
        at = index if isinstance(index, int) else self.times(index, words)
        return self.new(f"getelementptr i64, ptr {base}, i64 {at}")

    def _listed(self, tile: str, first: str) -> None:
        """Append the list of a tile: an entry for each tap that some pixel has."""
        local = self.minus(tile, first)
        begin = self.bytes_at("%list", (local, "%tile_bytes"))
        pixel_0 = self.times(tile, PIXELS)
        self.choose("same", "%is_same", lambda same, _: (
            self._same_pixels(begin, pixel_0, local) if same else
            self._taps_of(begin, pixel_0, local)
        ))  # fmt: skip

    def _same_pixels(self, begin: str, pixel_0: str, local: str) -> None:
        """The entry of a tap that each pixel has at its own place."""
        at = self.bytes_at("%x", (pixel_0, "%pixel_bytes"))
        left = self.minus("%pixels", pixel_0)
        for i in range(PIXELS):
            exists = self.new(f"icmp sgt i64 {left}, {i}")
            place = self.new(f"select i1 {exists}, ptr {at}, ptr %zeros")
            self.put(f"store ptr {place}, ptr {self._place(begin, i)}")
            at = self.bytes_at(at, "%pixel_bytes")
        self.put(f"store i64 0, ptr {self._place(begin, PIXELS)}")
        self.put(f"store i64 1, ptr {self._place('%counts', local)}")

    def _taps_of(self, begin: str, pixel_0: str, local: str) -> None:
        inner = self.new(f"urem i64 {pixel_0}, %out_size")
        image = self.new(f"mul i64 {self.new(f'udiv i64 {pixel_0}, %out_size')}, %image_bytes")
        row, column = self.new(f"udiv i64 {inner}, %out_w"), self.new(f"urem i64 {inner}, %out_w")
        left = self.minus("%pixels", pixel_0)
        for i in range(PIXELS):
            if i:
                image, row, column = self._following(image, row, column)
            top = self.new(f"sub i64 {self.new(f'mul i64 {row}, %stride_h')}, %pad_h")
            side = self.new(f"sub i64 {self.new(f'mul i64 {column}, %stride_w')}, %pad_w")
            pixel = self.new(f"add i64 {self.new(f'mul i64 {top}, %in_w')}, {side}")
            at = self.new(f"add i64 {self.new(f'mul i64 {pixel}, %pixel_bytes')}, {image}")
            self.put(f"store ptr {self.bytes_at('%x', at)}, ptr {self._place('%corners', i)}")
            exists = self.new(f"icmp sgt i64 {left}, {i}")
            top = self.new(f"select i1 {exists}, i64 {top}, i64 {_NOWHERE}")
            self.put(f"store i64 {top}, ptr {self._place('%tops', i)}")
            self.put(f"store i64 {side}, ptr {self._place('%lefts', i)}")

        def row_of_taps(k: str, carried: list[str]) -> list[str]:
            down = self.times(k, "%step_h")
            return self.counted("tap_x", 0, "%k_w", lambda m, now: self._tap(k, m, down, now),
                                carried, ["ptr", "i64"])  # fmt: skip

        _, count = self.counted("tap_y", 0, "%k_h", row_of_taps, [begin, "0"], ["ptr", "i64"])
        self.put(f"store i64 {count}, ptr {self._place('%counts', local)}")

    def _following(self, image: str, row: str, column: str) -> tuple[str, str, str]:
        """The pixel of the results behind this one: its sample's offset, row and column."""
        column = self.plus(column, 1)
        over = self.new(f"icmp eq i64 {column}, %out_w")
        column = self.new(f"select i1 {over}, i64 0, i64 {column}")
        row = self.new(f"add i64 {row}, {self.new(f'zext i1 {over} to i64')}")
        over = self.new(f"icmp eq i64 {row}, %out_h")
        row = self.new(f"select i1 {over}, i64 0, i64 {row}")
        more = self.new(f"select i1 {over}, i64 %image_bytes, i64 0")
        return self.plus(image, more), row, column

    def _tap(self, k: str, m: str, down: str, carried: list[str]) -> list[str]:
        entry, count = carried
        right = self.times(m, "%step_w")
        pixel = self.new(f"add i64 {self.new(f'mul i64 {down}, %in_w')}, {right}")
        moved, some = self.times(pixel, "%pixel_bytes"), ""
        for i in range(PIXELS):
            corner = self.new(f"load ptr, ptr {self._place('%corners', i)}")
            top = self.new(f"load i64, ptr {self._place('%tops', i)}")
            left = self.new(f"load i64, ptr {self._place('%lefts', i)}")
            row, column = self.plus(top, down), self.plus(left, right)
            exists = self.new(
                f"and i1 {self.new(f'icmp ult i64 {row}, %in_h')}, "
                f"{self.new(f'icmp ult i64 {column}, %in_w')}"
            )
            there = self.bytes_at(corner, moved)
            place = self.new(f"select i1 {exists}, ptr {there}, ptr %zeros")
            self.put(f"store ptr {place}, ptr {self._place(entry, i)}")
            some = self.new(f"or i1 {some}, {exists}") if some else exists
        tap = self.new(f"add i64 {self.new(f'mul i64 {k}, %k_w')}, {m}")
        begin = self.times(tap, "%tap_bytes")
        self.put(f"store i64 {begin}, ptr {self._place(entry, PIXELS)}")
        following = self.bytes_at(entry, ENTRY_BYTES)
        return [
            self.new(f"select i1 {some}, ptr {following}, ptr {entry}"),
            self.new(f"add i64 {count}, {self.new(f'zext i1 {some} to i64')}"),
        ]

    # -- panels -----------------------------------------------------------------------------------

    def _panel(self, panel: str, first: str, end: str) -> None:
        """Append the tiles from ``first`` to ``end`` of a panel."""
        group = self.new(f"udiv i64 {panel}, %group_panels")
        inner = self.new(f"urem i64 {panel}, %group_panels")
        begin = self.times(group, "%group_in")
        within = self.times(inner, PANEL)
        channel = self.new(f"add i64 {self.new(f'mul i64 {group}, %group_out')}, {within}")
        of_group = self.minus("%group_out", within)
        cols = self.least(of_group, self.minus("%results", channel))
        filters = self.bytes_at("%filters", (panel, "%panel_bytes"))
        bias, more, y = (
            self.new(f"getelementptr float, ptr %{n}, i64 {channel}") for n in ("bias", "more", "y")
        )
        bias = self.new(f"select i1 %bias_any, ptr {bias}, ptr null")
        fetched = self.bytes_at(filters, "%panel_bytes")
        paired = self.new("icmp ne i64 %second, 0")
        wide = self.new(f"icmp sgt i64 {cols}, {LANES}")
        both = self.new(f"and i1 {paired}, {wide}")
        kind = self.new(f"select i1 {both}, i64 2, i64 {self.new(f'zext i1 {wide} to i64')}")
        with self.each("tile", first, end) as t:
            local = self.minus(t, first)
            listed = self.bytes_at("%list", (local, "%tile_bytes"))
            count = self.new(f"load i64, ptr {self._place('%counts', local)}")
            pixel = self.times(t, PIXELS)
            rows = self.minus("%pixels", pixel)
            down = self.times(pixel, "%row_bytes")
            c, from_ = self.bytes_at(y, down), self.bytes_at(more, down)
            from_ = self.new(f"select i1 %more_any, ptr {from_}, ptr null")
            rest = self.new(f"icmp sle i64 {rows}, {REST}")
            case = self.new(f"add i64 {kind}, {self.new(f'select i1 {rest}, i64 4, i64 0')}")
            share = self.new(f"urem i64 {local}, {FETCH_SHARES}")
            ahead = self.bytes_at(fetched, (share, "%share_bytes"))
            given = (
                f"(ptr {listed}, i64 {count}, i64 {begin}, i64 %terms, i64 %second, "
                f"ptr {filters}, ptr {c}, i64 %row_bytes, ptr {from_}, ptr {bias}, i64 {rows}, "
                f"i64 {cols}, i64 %kind, float %low_is, float %high_is, ptr {ahead})"
            )
            names = {
                n + 4 * (pixels == REST): tile_name(pixels, *which)
                for pixels in (PIXELS, REST)
                for n, which in enumerate(((1, False), (2, False), (2, True)))
            }
            arms = " ".join(f"i64 {n}, label %do{n}" for n in names)
            self.put(f"switch i64 {case}, label %do0 [{arms}]")
            for n, name in names.items():
                self.put(f"do{n}:", f"call void @{name}{given}", "br label %tile_done")
            self.label("tile_done")


# -- filters ---------------------------------------------------------------------------------------

#: The words of the block that packs filters: threads, panels, 1, filters (results, terms, taps),
#: where to; terms and taps; a group's panels and results as in :data:`WORDS`; all results; whether
#: filters are mirrored.
PACK_WORDS = (
    "threads", "tasks", "one", "filters", "to", "terms", "taps", "group_panels", "group_out",
    "results", "mirrored",
)  # fmt: skip


def pack_ir(width: int) -> str:
    """The module of ``kernel`` that packs filters into panels; a task is one panel."""
    b = Builder(width)
    b.put(ROWS, "entry:")
    for at, name in enumerate(PACK_WORDS):
        b.lines += (data_of if name in ("filters", "to") else word)(f"%{name}", at)
    b.put("%last_tap = sub i64 %taps, 1", "%is_mirrored = icmp ne i64 %mirrored, 0")
    b.put("%tap_floats = mul i64 %terms, 16", "%panel_floats = mul i64 %tap_floats, %taps")
    b.put("%filter = mul i64 %terms, %taps")
    b.put("br label %task", "task:", "%r = phi i64 [%r0, %entry], [%r_next, %task_end]")
    b.block = "task"
    group, inner = b.new("udiv i64 %r, %group_panels"), b.new("urem i64 %r, %group_panels")
    within = b.times(inner, PANEL)
    channel = b.new(f"add i64 {b.new(f'mul i64 {group}, %group_out')}, {within}")
    of_group = b.minus("%group_out", within)
    cols = b.least(of_group, b.minus("%results", channel))
    cols = b.least(cols, PANEL)
    panel = b.at("%to", b.times("%r", "%panel_floats"))
    first = b.at("%filters", b.times(channel, "%filter"))
    nbytes = b.times("%panel_floats", 4)
    with b.when("part", b.new(f"icmp slt i64 {cols}, {PANEL}")):
        b.put(f"call void @llvm.memset.p0.i64(ptr {panel}, i8 0, i64 {nbytes}, i1 0)")

    with b.each("term", 0, "%terms") as c:
        source = b.at(first, b.times(c, "%taps"))
        target = b.at(panel, b.times(c, PANEL))
        with b.each("tap", 0, "%taps") as t:
            turned = b.minus("%last_tap", t)
            begin = b.at(source, b.new(f"select i1 %is_mirrored, i64 {turned}, i64 {t}"))
            to = b.at(target, b.times(t, "%tap_floats"))
            with b.each("column", 0, cols) as j:
                place = b.at(begin, b.times(j, "%filter"))
                x = b.new(f"load float, ptr {place}, align 4")
                b.put(f"store float {x}, ptr {b.at(to, j)}, align 4")
    lines = [_CLEAR, *b.lines, *next_task("task")]
    return SKIP_PASSES + "\n".join([*sorted(b.declared), *lines, *THREADS, ATTRIBUTES, ""])


_CLEAR = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
