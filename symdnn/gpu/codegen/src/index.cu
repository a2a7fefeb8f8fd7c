// Scatter by index arrays. Each element of an iteration space has an offset in x, which
// the indices determine, and one in y. T is copied (ADDS 0), or summed in A (1), or combined by
// COMBINE in words of WORD's type, which is as large (2), V neighbours at a time; OWNER is the type
// of numbers of elements. With CHECKED 0 an index out of range is not reported, but not
// used either. A GUARDED kernel writes nothing once the error word is set. Where it is CLAIMED, each
// target of the index arrays has an owner: the number of the last of their positions that sets it.

struct Parameters {
  T* x;
  T* y;
  A* sums;
  OWNER* owner;
  i64 count;
  i32* error_word;
  i64 node;
  const void* index[ARRAYS];
  i64 kind[ARRAYS], limit[ARRAYS], jump[ARRAYS];
  i64 size[D], x_step[D], y_step[D];
  i64 index_step[ARRAYS][D];
#if CLAIMED
  i64 owner_jump[ARRAYS], position_step[D];
#endif
};

INLINE i64 index_value(const void* p, i64 kind, i64 at) {
  switch (kind) {
    case 0: return ((const i8*)p)[at];
    case 1: return ((const i16*)p)[at];
    case 2: return ((const i32*)p)[at];
    case 3: return ((const i64*)p)[at];
    case 4: return ((const u8*)p)[at];
    case 5: return ((const u16*)p)[at];
    case 6: return ((const u32*)p)[at];
    default: return index_number(((const u64*)p)[at]);
  }
}

#if CLAIMED
// Whether no later position of the index arrays has the same target.
INLINE bool is_last(const Parameters& p, COUNT n) {
  i64 target = 0;
#pragma unroll
  for (int a = 0; a < ARRAYS; a++) {
    const i64 k = index_value(p.index[a], p.kind[a], place(n, p.size, p.index_step[a]));
    target += (k < 0 ? k + p.limit[a] : k) * p.owner_jump[a];
  }
  return p.owner[target] == (OWNER)(place(n, p.size, p.position_step) + 1);
}
#else
INLINE bool is_last(const Parameters&, COUNT) { return true; }
#endif

// The offset of the indexed element of x; false if an index is out of range, which is reported.
INLINE bool chosen(const Parameters& p, COUNT n, i64& at) {
  at = place(n, p.size, p.x_step);
  bool inside = true;
#pragma unroll
  for (int a = 0; a < ARRAYS; a++) {
    const i64 k = index_value(p.index[a], p.kind[a], place(n, p.size, p.index_step[a]));
    inside &= selected(k, p.limit[a], p.jump[a], CHECKED ? p.error_word : (i32*)0, p.node, at);
  }
  return inside;
}

#define EACH(n) \
  for (COUNT n = (COUNT)global_thread(); n < (COUNT)p.count; n += (COUNT)thread_count())

// Of several values for one target the last one stays: first each target finds its last position.
extern "C" __global__ void __launch_bounds__(256) claim(const __grid_constant__ Parameters p) {
  EACH(n) {
    i64 at;
    if (chosen(p, n, at)) atomicMax(p.owner + at, (OWNER)(n + 1));
  }
}
extern "C" __global__ void __launch_bounds__(256) settle(const __grid_constant__ Parameters p) {
  if (GUARDED && *p.error_word != 0) return;
  EACH(n) {
    i64 at;
    if (chosen(p, n, at) && is_last(p, n)) p.x[at] = p.y[place(n, p.size, p.y_step)];
  }
}

#if ADDS == 2
// Extremes and products: the old bits are exchanged for the new ones if they are still there.
INLINE void combined(T* at, T y) {
  WORD seen = *(volatile WORD*)at;
  while (true) {
    T old;
    *(WORD*)&old = seen;
    const T made = convert<T>(COMBINE(widen(old), widen(y)));
    const WORD now = *(const WORD*)&made;
    if (now == seen) return;
    const WORD found = atomicCAS((WORD*)at, seen, now);
    if (found == seen) return;
    seen = found;
  }
}
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ Parameters p) {
  if (GUARDED && *p.error_word != 0) return;
  EACH(n) {
    i64 at;
    if (!chosen(p, n, at)) continue;
    const Vec<T, V> y = load<V>(p.y + place(n, p.size, p.y_step) * V);
#pragma unroll
    for (int k = 0; k < V; k++) combined(p.x + at * V + k, y.v[k]);
  }
}
#elif ADDS
// Offsets count vectors of V elements.
extern "C" __global__ void __launch_bounds__(256) add(const __grid_constant__ Parameters p) {
  if (GUARDED && *p.error_word != 0) return;
  EACH(n) {
    i64 at;
    if (!chosen(p, n, at)) continue;
    const Vec<T, V> y = load<V>(p.y + place(n, p.size, p.y_step) * V);
    Vec<A, V> values;
#pragma unroll
    for (int k = 0; k < V; k++) values.v[k] = convert<A>(y.v[k]);
    added(p.sums + at * V, values);
  }
}

// The sum in an order that does not depend on the threads' timing. Each position of the index
// arrays is a row. `rank` makes the keys for sorting: the offset of its row in x, and its number.
// The columns of a row are the rest of the iteration space.
extern "C" __global__ void __launch_bounds__(256) rank(const __grid_constant__ Parameters p) {
  EACH(n) {
    i64 at;
    const bool inside = chosen(p, n, at);
    p.owner[n] = (OWNER)(inside ? (u64)at << 32 | (u64)n : ~0ull);
  }
}
#endif
