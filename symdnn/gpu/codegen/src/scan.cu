// Scans along one axis: what is kept is `Fold`, printed from a monoid, elements of it come from
// `element`. X is the type of the INPUTS operands, Y the result's; VEC elements are one access.
// EXCLUSIVE leaves each element out of its own result. With BACKWARDS an operand's first element is
// the last in memory.
//
// A line may be cut into chunks: then `totals` of the chunks come first, `starts` makes of them what
// each comes after, and the results are made from that. All merges come in an order that follows
// from sizes alone.

struct Parameters {
  const X *x0, *x1;
  Y* y;
  Fold* totals;
  i64 lines, length, chunks, part, x0_step, x1_step, y_step;
  i64 size[D], x0_line[D], x1_line[D], y_line[D];
};

// Elements that one access of a thread brings.
struct Loaded {
  Vec<X, VEC> a;
#if INPUTS == 2
  Vec<X, VEC> b;
#endif
};

INLINE void take(Fold& s, const Loaded& e, i32 v, i64 number) {
  E0 e0;
#if INPUTS == 2
  E1 e1;
  element(e.a.v[v], e.b.v[v], e0, e1);
  s.take(e0, e1, number);
#else
  element(e.a.v[v], e0);
  s.take(e0, number);
#endif
}
INLINE Y taken(Fold& s, const Loaded& e, i32 v, i64 number) {
  Y found = s.result();
  take(s, e, v, number);
  if (!EXCLUSIVE) found = s.result();
  return found;
}

// The state of the thread `distance` lanes before this one, or of lane `lane`.
union FoldWords {
  Fold fold;
  u32 word[(sizeof(Fold) + 3) / 4];
};
INLINE Fold from_before(const Fold& s, i32 distance) {
  FoldWords w;
  w.fold = s;
#pragma unroll
  for (i32 i = 0; i < (i32)sizeof(w) / 4; i++)
    w.word[i] = __shfl_up_sync(0xffffffffu, w.word[i], distance);
  return w.fold;
}
INLINE Fold from_lane(const Fold& s, i32 lane) {
  FoldWords w;
  w.fold = s;
#pragma unroll
  for (i32 i = 0; i < (i32)sizeof(w) / 4; i++) w.word[i] = __shfl_sync(0xffffffffu, w.word[i], lane);
  return w.fold;
}
// What comes before this thread among WIDTH lanes that are STRIDE apart; `own` becomes what is up to
// it.
template <i32 STRIDE, i32 WIDTH = 32> INLINE Fold scanned(Fold& own) {
  const i32 lane = threadIdx.x % WIDTH;
#pragma unroll
  for (i32 distance = STRIDE; distance < WIDTH; distance *= 2) {
    Fold sum = from_before(own, distance);
    sum.merge(own);
    if (lane >= distance) own = sum;
  }
  Fold before;
  if (STRIDE < WIDTH) before = from_before(own, STRIDE);
  if (STRIDE == WIDTH || lane < STRIDE) before.start();
  return before;
}

constexpr i32 WARPS = THREADS / 32;
// Blocks that should fit on a multiprocessor.
constexpr i32 RESIDENT = !ROWS || INPUTS > 1 ? 1 : LOOSE ? 3 : 4;

#if ROWS
// -- neighbours in memory are neighbours along the axis: a block for each chunk of each line ------

// A LOOSE line begins anywhere: its vectors are aligned, and the first one has `skip` elements before
// the line. Places are counted from there.

INLINE Vec<X, VEC> along(const X* x, i64 step, i64 k) {
  if (VEC == 1) return load<VEC>(x + k * step);
  if (!BACKWARDS) return load<VEC>(x + k);
  const Vec<X, VEC> turned = load<VEC>(x - k - (VEC - 1));
  Vec<X, VEC> found;
#pragma unroll
  for (i32 v = 0; v < VEC; v++) found.v[v] = turned.v[VEC - 1 - v];
  return found;
}
INLINE void leave(Y* y, i64 step, i64 k, const Vec<Y, VEC>& found) {
  if (VEC == 1) {
    y[k * step] = found.v[0];
  } else if (!BACKWARDS) {
    store<VEC>(y + k, found);
  } else {
    Vec<Y, VEC> turned;
#pragma unroll
    for (i32 v = 0; v < VEC; v++) turned.v[v] = found.v[VEC - 1 - v];
    store<VEC>(y - k - (VEC - 1), turned);
  }
}

struct Line {
  const X *x0, *x1;
  Y* y;
  i64 high, end;  // behind the chunk, and behind the line
  i32 skip;
  // Of a vector the elements that are in the line: from which one on, and how many to their end.
  __device__ __forceinline__ i32 begin_of(i64 k) const { return LOOSE && k == 0 ? skip : 0; }
  __device__ __forceinline__ i32 end_of(i64 k) const {
    return LOOSE && end - k < VEC ? (i32)(end - k) : VEC;
  }
};
INLINE Line line_of(const Parameters& p, i64 n, i64 c) {
  Line l = {p.x0 + place((COUNT)n, p.size, p.x0_line), p.x1, p.y + place((COUNT)n, p.size, p.y_line)};
  if (INPUTS == 2) l.x1 += place((COUNT)n, p.size, p.x1_line);
  if (LOOSE) {
    const i32 at = (i32)((u64)l.x0 / sizeof(X) % VEC), by = BACKWARDS ? VEC - 1 - at : at;
    l.skip = by;
    l.x0 += BACKWARDS ? by : -by;
    l.x1 += BACKWARDS ? by : -by;
    l.y += BACKWARDS ? by : -by;
  }
  l.end = p.length + l.skip;
  l.high = c == p.chunks - 1 ? l.end : (c + 1) * p.part;
  return l;
}
// Threads that have neighbouring vectors of a line.
constexpr i32 NEAR = GROUP ? GROUP : 32;

INLINE void fetch(const Parameters& p, const Line& l, i64 first, Loaded (&e)[DEEP]) {
#pragma unroll
  for (i32 j = 0; j < DEEP; j++) {
    const i64 k = first + j * NEAR * VEC;
    if (k >= l.high) continue;
    e[j].a = along(l.x0, p.x0_step, k);
#if INPUTS == 2
    e[j].b = along(l.x1, p.x1_step, k);
#endif
  }
}
// What comes before each of a thread's vectors among those of its neighbours, and what they all are.
INLINE void before_each(const Line& l, i64 first, const Loaded (&e)[DEEP], Fold (&before)[DEEP],
                        Fold& sum) {
  const i32 last = (i32)threadIdx.x % 32 / NEAR * NEAR + NEAR - 1;
  sum.start();
#pragma unroll
  for (i32 j = 0; j < DEEP; j++) {
    const i64 k = first + j * NEAR * VEC;
    Fold own;
    own.start();
    if (k < l.high) {
      const i32 begin = l.begin_of(k), end = l.end_of(k);
      if (begin == 0 && end == VEC) {
#pragma unroll
        for (i32 v = 0; v < VEC; v++) take(own, e[j], v, k + v - l.skip);
      } else {
#pragma unroll
        for (i32 v = 0; v < VEC; v++)
          if (v >= begin && v < end) take(own, e[j], v, k + v - l.skip);
      }
    }
    const Fold earlier = scanned<1, NEAR>(own);
    before[j] = sum;
    before[j].merge(earlier);
    sum.merge(from_lane(own, last));
  }
}
INLINE void leave_each(const Parameters& p, const Line& l, i64 first, const Loaded (&e)[DEEP],
                       const Fold (&before)[DEEP], const Fold& earlier) {
#pragma unroll
  for (i32 j = 0; j < DEEP; j++) {
    const i64 k = first + j * NEAR * VEC;
    if (k >= l.high) continue;
    const i32 begin = l.begin_of(k), end = l.end_of(k);
    Fold sofar = earlier;
    sofar.merge(before[j]);
    if (begin == 0 && end == VEC) {
      Vec<Y, VEC> found;
#pragma unroll
      for (i32 v = 0; v < VEC; v++) found.v[v] = taken(sofar, e[j], v, k + v - l.skip);
      leave(l.y, p.y_step, k, found);
      continue;
    }
    Y* const y = l.y + k * p.y_step;
#pragma unroll
    for (i32 v = 0; v < VEC; v++)
      if (v >= begin && v < end) y[BACKWARDS ? -v : v] = taken(sofar, e[j], v, k + v - l.skip);
  }
}

#if GROUP
INLINE Line short_line(const Parameters& p, i64 n) {
  Line l = line_of(p, n < p.lines ? n : 0, 0);
  if (n >= p.lines) l.high = 0;
  return l;
}
// A group of threads has one short line after the other, and reads the next one ahead.
template <bool TOTALS> INLINE void scan(const Parameters& p) {
  constexpr i32 LINES = THREADS / GROUP;
  const i32 first = threadIdx.x % GROUP * VEC;
  i64 n = (i64)blockIdx.x * LINES + threadIdx.x / GROUP;
  Line l = short_line(p, n);
  Loaded e[DEEP], ahead[DEEP];
  fetch(p, l, first, e);
  for (i64 base = (i64)blockIdx.x * LINES; base < p.lines; base += (i64)gridDim.x * LINES) {
    n += (i64)gridDim.x * LINES;
    const Line next = short_line(p, n);
    fetch(p, next, first, ahead);
    Fold before[DEEP], sum, none;
    none.start();
    before_each(l, first, e, before, sum);
    leave_each(p, l, first, e, before, none);
    l = next;
#pragma unroll
    for (i32 j = 0; j < DEEP; j++) e[j] = ahead[j];
  }
}
#else
// A warp has a stretch of the tile, its lanes neighbouring vectors of each of DEEP parts of it.
template <bool TOTALS> INLINE void scan(const Parameters& p) {
  __shared__ Fold shared[WARPS];
  const i64 n = blockIdx.x / p.chunks, c = blockIdx.x % p.chunks;
  const Line l = line_of(p, n, c);
  const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Fold carried;
  carried.start();
  if (!TOTALS && p.chunks > 1) carried = p.totals[blockIdx.x];
  Loaded e[DEEP], ahead[DEEP];
  constexpr i32 TILE = THREADS * DEEP * VEC;
  const i32 own_first = (warp * DEEP * 32 + lane) * VEC;
  fetch(p, l, c * p.part + own_first, e);
  for (i64 tile = c * p.part; tile < l.high; tile += TILE) {
    const i64 first = tile + own_first;
    fetch(p, l, first + TILE, ahead);
    Fold before[DEEP], sum;
    before_each(l, first, e, before, sum);
    if (lane == 0) shared[warp] = sum;
    __syncthreads();
    Fold earlier = carried;
#pragma unroll
    for (i32 w = 0; w < WARPS; w++) {
      if (w == warp) earlier = carried;
      carried.merge(shared[w]);
    }
    __syncthreads();
    if (!TOTALS) leave_each(p, l, first, e, before, earlier);
#pragma unroll
    for (i32 j = 0; j < DEEP; j++) e[j] = ahead[j];
  }
  if (TOTALS && threadIdx.x == 0) p.totals[blockIdx.x] = carried;
}
#endif
#else
// -- neighbours in memory are lines: a block for each chunk of LANES vectors of lines -------------

// Groups of LANES threads have DEEP neighbours along the axis each.
constexpr i32 GROUPS = THREADS / LANES, TILE = GROUPS * DEEP;

struct Block {
  const X *x0, *x1;
  i64 high;
  bool some;
};
INLINE void fetch(const Parameters& p, const Block& b, i64 first, Loaded (&e)[DEEP]) {
#pragma unroll
  for (i32 r = 0; r < DEEP; r++) {
    if (!b.some || first + r >= b.high) continue;
    e[r].a = load<VEC>(b.x0 + (first + r) * p.x0_step);
#if INPUTS == 2
    e[r].b = load<VEC>(b.x1 + (first + r) * p.x1_step);
#endif
  }
}

template <bool TOTALS> INLINE void scan(const Parameters& p) {
  __shared__ Fold shared[WARPS][LANES * VEC];
  const i64 blocks = (p.lines + LANES * VEC - 1) / (LANES * VEC);
  const i64 c = blockIdx.x / blocks;
  const i32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES, warp = threadIdx.x / 32;
  const i64 n = (blockIdx.x % blocks * LANES + lane) * VEC, low = c * p.part;
  Block b = {p.x0, p.x1, low + p.part < p.length ? low + p.part : p.length, n < p.lines};
  Y* y = p.y;
  if (b.some) {
    b.x0 += place((COUNT)n, p.size, p.x0_line);
    if (INPUTS == 2) b.x1 += place((COUNT)n, p.size, p.x1_line);
    y += place((COUNT)n, p.size, p.y_line);
  }
  Fold carried[VEC];
#pragma unroll
  for (i32 v = 0; v < VEC; v++) {
    carried[v].start();
    if (!TOTALS && p.chunks > 1 && b.some) carried[v] = p.totals[(n + v) * p.chunks + c];
  }
  Loaded e[DEEP], ahead[DEEP];
  fetch(p, b, low + group * DEEP, e);
  for (i64 tile = low; tile < b.high; tile += TILE) {
    const i64 first = tile + group * DEEP;
    fetch(p, b, first + TILE, ahead);
    Fold before[VEC];
#pragma unroll
    for (i32 v = 0; v < VEC; v++) {
      Fold own;
      own.start();
#pragma unroll
      for (i32 r = 0; r < DEEP; r++)
        if (b.some && first + r < b.high) take(own, e[r], v, first + r);
      before[v] = scanned<LANES>(own);
      if (threadIdx.x % 32 >= 32 - LANES) shared[warp][lane * VEC + v] = own;
    }
    __syncthreads();
#pragma unroll
    for (i32 v = 0; v < VEC; v++) {
      Fold earlier = carried[v];
#pragma unroll
      for (i32 w = 0; w < WARPS; w++) {
        if (w == warp) earlier = carried[v];
        carried[v].merge(shared[w][lane * VEC + v]);
      }
      earlier.merge(before[v]);
      before[v] = earlier;
    }
    __syncthreads();
    if (!TOTALS && b.some) {
#pragma unroll
      for (i32 r = 0; r < DEEP; r++) {
        if (first + r >= b.high) continue;
        Vec<Y, VEC> found;
#pragma unroll
        for (i32 v = 0; v < VEC; v++) found.v[v] = taken(before[v], e[r], v, first + r);
        store<VEC>(y + (first + r) * p.y_step, found);
      }
    }
#pragma unroll
    for (i32 r = 0; r < DEEP; r++) e[r] = ahead[r];
  }
  if (TOTALS && b.some && group == 0) {
#pragma unroll
    for (i32 v = 0; v < VEC; v++) p.totals[(n + v) * p.chunks + c] = carried[v];
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) results(
    const __grid_constant__ Parameters p) {
  scan<false>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) totals(
    const __grid_constant__ Parameters p) {
  scan<true>(p);
}

// Replaces the totals of a line's chunks by the combinations of the chunks before each.
extern "C" __global__ void __launch_bounds__(256) starts(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.lines; n += thread_count()) {
    Fold sofar;
    sofar.start();
    for (i64 c = 0; c < p.chunks; c++) {
      const Fold next = p.totals[n * p.chunks + c];
      p.totals[n * p.chunks + c] = sofar;
      sofar.merge(next);
    }
  }
}
