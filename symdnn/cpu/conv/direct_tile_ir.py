"""Tiles of a convolution in NHWC with 256-bit vectors as LLVM IR.

A tile of results, six pixels times 16 channels, has its sums in registers. For each tap of the
filter it reads the addresses of its pixels of the input from a list. It goes through *terms*, the
channels of the input. Filters are read from a panel (:mod:`symdnn.cpu.conv.direct_ir`), of which
some of the next one is fetched meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import VECTOR, WIDTH, Builder, splat
from symdnn.cpu.ir.vector_activations_ir import activation_declarations, sigmoid

#: A tile: pixels, and vectors of channels. A rest of at most so many pixels is a tile of its own.
PIXELS, REST = 6, 2
#: Float32 of a vector.
LANES = 8
#: Channels of a panel.
PANEL = 2 * LANES
#: The attribute group ``#0``, which keeps vectors as wide as they are written.
ATTRIBUTES = 'attributes #0 = { "prefer-vector-width"="256" "min-legal-vector-width"="256" }'
#: Terms of one iteration of the unrolled loop.
_UNROLL_TERMS = 4
#: Bytes of the next panel that an iteration fetches: so many tiles fetch all of it.
_FETCH_BYTES = 64
FETCH_SHARES = 4 * PANEL * _UNROLL_TERMS // _FETCH_BYTES
#: An entry of the list: the addresses of six pixels, where the tap's filters begin in a panel (in
#: bytes), and nothing.
ENTRY_BYTES = 8 * (PIXELS + 2)
#: How an activation function is computed, by oneDNN's names: limits, a hard sigmoid, x times it, a
#: sigmoid, x times it.
KINDS = {
    "": 0, "relu": 0, "clip": 0, "hardsigmoid": 1, "hardswish": 2, "logistic": 3, "swish": 4,
}  # fmt: skip

_TILE = (
    "(ptr %list, i64 %count, i64 %first, i64 %terms, i64 %second, ptr %panel, ptr %c_0, "
    "i64 %c_row, ptr %from_0, ptr %bias, i64 %rows, i64 %cols, i64 %kind, float %low, float %high, "
    "ptr %ahead)"
)


class _Tile(Builder):
    """The function of a tile: ``rows`` of its pixels exist, and the first ``cols`` channels."""

    def __init__(self, pixels: int, vectors: int, paired: bool) -> None:
        super().__init__(LANES)
        self.pixels, self.vectors, self.paired = pixels, vectors, paired

    def source(self) -> list[str]:
        """The lines of the function."""
        name = tile_name(self.pixels, self.vectors, self.paired)
        self.put(f"define internal void @{name}{_TILE} #0 {{", "entry:")
        self.put("%some = icmp sgt i64 %count, 0", "%last = sub i64 %rows, 1")
        self.put("%end = add i64 %first, %terms", f"%rounds = and i64 %terms, {-_UNROLL_TERMS}")
        self.put("%whole_end = add i64 %first, %rounds", "%any_round = icmp sgt i64 %rounds, 0")
        self.put("%any_left = icmp slt i64 %rounds, %terms")
        count = self.pixels * self.vectors
        zeros = ["zeroinitializer"] * count
        self.put("br i1 %some, label %tap, label %summed", "tap:")
        at = len(self.lines)
        self.put(*[""] * (3 + count))
        before = [f"%tap_sum{i}" for i in range(count)]
        places = [
            self.new(f"load ptr, ptr {self.bytes_at('%list_now', 8 * i)}")
            for i in range(self.pixels)
        ]
        begin = self.new(f"load i64, ptr {self.bytes_at('%list_now', 8 * PIXELS)}")
        filters = self.bytes_at("%panel", begin)
        self.put("br i1 %any_round, label %round, label %between")
        sums, b = self._terms("round", "tap", before, "%first", "%whole_end", filters, places,
                              _UNROLL_TERMS, "between")  # fmt: skip
        self.put("between:")
        ahead = self._phi("ptr", [("tap", "%ahead_now"), ("round", "%round_ahead_next")])
        b = self._phi("ptr", [("tap", filters), ("round", b)])
        sums = [self._phi(self.vector, [("tap", x), ("round", y)]) for x, y in zip(before, sums)]
        self.put("br i1 %any_left, label %one, label %tap_end")
        more, _ = self._terms("one", "between", sums, "%whole_end", "%end", b, places, 1, "tap_end")
        self.put("tap_end:")
        done = [self._phi(self.vector, [("between", x), ("one", y)]) for x, y in zip(sums, more)]
        following = self.bytes_at("%list_now", ENTRY_BYTES)
        less = self.minus("%taps_left", 1)
        go_on = self.new(f"icmp sgt i64 {less}, 0")
        self.put(f"br i1 {go_on}, label %tap, label %summed", "summed:")
        arms = [("%list_now", "ptr", "%list", following), ("%taps_left", "i64", "%count", less)]
        arms.append(("%ahead_now", "ptr", "%ahead", ahead))
        arms += [(x, self.vector, "zeroinitializer", y) for x, y in zip(before, done)]
        for n, (register, kind, enters, returns) in enumerate(arms):
            self.lines[at + n] = (
                f"{register} = phi {kind} [{enters}, %entry], [{returns}, %tap_end]"
            )
        sums = [self._phi(self.vector, [("entry", z), ("tap_end", x)]) for z, x in zip(zeros, done)]
        self._finish(sums)
        return self.lines

    def _phi(self, kind: str, arms: Sequence[tuple[str, str]]) -> str:
        return self.new(f"phi {kind} {', '.join(f'[{x}, %{block}]' for block, x in arms)}")

    def _terms(
        self, name: str, before: str, sums: Sequence[str], low: str, high: str, filters: str,
        places: Sequence[str], terms: int, after: str,
    ) -> tuple[list[str], str]:  # fmt: skip
        """A loop over terms from ``low`` to ``high``; the sums, and where the filters go on."""
        self.put(f"{name}:")
        at = len(self.lines)
        fetches = terms > 1
        self.put(*[""] * (2 + fetches + len(sums)))
        held = now = [f"%{name}_sum{i}" for i in range(len(sums))]
        i, b = f"%{name}_i", f"%{name}_b"
        starts = [i] + ([self.plus(i, "%second")] if self.paired else [])
        if fetches:
            self.put(f"call void @llvm.prefetch.p0(ptr %{name}_ahead, i32 0, i32 2, i32 1)")
            self.put(
                f"%{name}_ahead_next = getelementptr i8, ptr %{name}_ahead, i64 {_FETCH_BYTES}"
            )
        for t in range(terms):
            now = self._term(now, places, starts, self.bytes_at(b, 4 * PANEL * t), t)
        following, more_b = self.plus(i, terms), self.bytes_at(b, 4 * PANEL * terms)
        more = self.new(f"icmp slt i64 {following}, {high}")
        self.put(f"br i1 {more}, label %{name}, label %{after}")
        arms = [(i, "i64", low, following), (b, "ptr", filters, more_b)]
        if fetches:
            arms.append((f"%{name}_ahead", "ptr", "%ahead_now", f"%{name}_ahead_next"))
        arms += [(h, self.vector, x, y) for h, x, y in zip(held, sums, now)]
        for n, (register, kind, enters, returns) in enumerate(arms):
            self.lines[at + n] = (
                f"{register} = phi {kind} [{enters}, %{before}], [{returns}, %{name}]"
            )
        return now, more_b

    def _term(
        self, sums: Sequence[str], places: Sequence[str], starts: Sequence[str], b: str, t: int
    ) -> list[str]:
        """Append one term: a vector or two of filters times an element of each pixel."""
        filters = [self.load(self.at(b, LANES * j)) for j in range(self.vectors)]
        made = []
        for p, place in enumerate(places):
            every = [self.broadcast(self.at(place, i, t)) for i in starts] * self.vectors
            for j, x in enumerate(filters):
                made.append(self.multiply_add(every[j], x, sums[p * self.vectors + j]))
        return made

    # -- results ----------------------------------------------------------------------------------

    def _finish(self, sums: list[str]) -> None:
        """Append the epilogue and the stores. Pixels that do not exist are stored as the last one,
        before it is."""
        masks = [""] * (self.vectors - 1)
        first = str((self.vectors - 1) * LANES)
        masks.append(self.lanes_below(first, "%cols"))
        offsets = []
        for p in range(self.pixels):
            inside = self.least(p, "%last") if p else "0"
            offsets.append(self.times(inside, "%c_row"))
        self.put("%biased = icmp ne ptr %bias, null", "br i1 %biased, label %add, label %added")
        self.put("add:")
        bias = [self.load(self.at("%bias", LANES * j), m) for j, m in enumerate(masks)]
        more = [self.add(x, bias[n % self.vectors]) for n, x in enumerate(sums)]
        self.put("br label %added", "added:")
        sums = [self._phi(self.vector, [("summed", x), ("add", y)]) for x, y in zip(sums, more)]
        self.put("%adds = icmp ne ptr %from_0, null", "br i1 %adds, label %join, label %joined")
        self.put("join:")
        more = []
        for n, x in enumerate(sums):
            p, j = divmod(n, self.vectors)
            place = self.at(self.bytes_at("%from_0", offsets[p]), LANES * j)
            more.append(self.add(x, self.load(place, masks[j])))
        self.put("br label %joined", "joined:")
        sums = [self._phi(self.vector, [("added", x), ("join", y)]) for x, y in zip(sums, more)]
        sums = self._activated(sums)
        self.put(f"%full = icmp sge i64 %cols, {self.vectors * LANES}")
        self.put("br i1 %full, label %whole_row, label %part_row", "whole_row:")
        self._store(sums, offsets, [""] * self.vectors)
        self.put("ret void", "part_row:")
        self._store(sums, offsets, masks)
        self.put("ret void", "}")

    def _store(self, sums: Sequence[str], offsets: Sequence[str], masks: Sequence[str]) -> None:
        for p in reversed(range(self.pixels)):
            for j, mask in enumerate(masks):
                place = self.at(self.bytes_at("%c_0", offsets[p]), LANES * j)
                self.store(sums[p * self.vectors + j], place, mask)

    def _activated(self, sums: Sequence[str]) -> list[str]:
        """Append the activation function of all sums; NaN stays."""
        low, high = self.splat("%low"), self.splat("%high")
        self.put("switch i64 %kind, label %limit [i64 1, label %hard i64 2, label %hard "
                 "i64 3, label %smooth i64 4, label %smooth]", "limit:")  # fmt: skip
        limited = [self._limited(x, low, high) for x in sums]
        self.put("br label %made", "hard:", "%times = icmp eq i64 %kind, 2")
        hard = []
        for x in sums:
            line = self.scale_add(1 / 6, x, splat(0.5, self.width))
            hard.append(self._times("%times", x, self._limited(line, low, high)))
        self.put("br label %made", "smooth:", "%times_smooth = icmp eq i64 %kind, 4")
        smooth = [self._times("%times_smooth", x, y) for x, y in zip(sums, self._sigmoids(sums))]
        self.put("br label %made", "made:")
        return [
            self._phi(self.vector, [("limit", x), ("hard", y), ("smooth", z)])
            for x, y, z in zip(limited, hard, smooth)
        ]

    def _times(self, condition: str, x: str, y: str) -> str:
        """x * y where a condition holds, else y"""
        product = self.new(f"fmul {self.vector} {x}, {y}")
        return self.new(f"select i1 {condition}, {self.vector} {product}, {self.vector} {y}")

    def _sigmoids(self, sums: Sequence[str]) -> list[str]:
        """Append the sigmoid of all sums, two vectors at a time."""
        made: list[str] = []
        lanes = [", ".join(f"i32 {i}" for i in range(n, n + LANES)) for n in (0, LANES)]
        for a, b in zip(sums[::2], sums[1::2]):
            both = f"{self.vector} {a}, {self.vector} {b}, <{WIDTH} x i32> <{', '.join(lanes)}>"
            both = self.new(f"shufflevector {both}")
            both = self.new(f"call {VECTOR} @conv_sigmoid({VECTOR} {both})")
            for chosen in lanes:
                half = f"{VECTOR} {both}, {VECTOR} poison, <{LANES} x i32> <{chosen}>"
                made.append(self.new(f"shufflevector {half}"))
        return made

    def _limited(self, x: str, low: str, high: str) -> str:
        for compare, end in (("olt", low), ("ogt", high)):
            beyond = self.new(f"fcmp {compare} {self.vector} {x}, {end}")
            x = self.new(f"select {self.mask} {beyond}, {self.vector} {end}, {self.vector} {x}")
        return x


def tile_name(pixels: int, vectors: int, paired: bool) -> str:
    """The name of a tile's function."""
    return f"conv_tile_{pixels}x{vectors}{'_paired' * paired}"


def tiles(width: int) -> tuple[set[str], list[str]]:
    """Declarations, and the functions of all tiles."""
    smooth = Builder(WIDTH)
    smooth.put(f"define internal {VECTOR} @conv_sigmoid({VECTOR} %x) noinline #0 {{")
    smooth.put(f"ret {VECTOR} {sigmoid(smooth, '%x', width)}", "}")
    kinds = ((1, False), (2, False), (2, True))
    made = [_Tile(pixels, *kind) for pixels in (PIXELS, REST) for kind in kinds]
    lines = [*smooth.lines, *(line for tile in made for line in tile.source())]
    declared = {_PREFETCH, *activation_declarations(width), *smooth.declared}
    return declared.union(*(tile.declared for tile in made)), lines


_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
