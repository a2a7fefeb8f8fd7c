// Checks arrays for faulty values (NaN, infinities, large ones), several arrays in one launch: a
// value is faulty if its bits without the sign are in one of two ranges. BITS is an unsigned type of
// the values' size, VECTOR the elements of a load, MOST the entries of the table; each block checks
// CHUNK elements of one array.

struct Entry {
  const BITS* x;
  i64 size;
  i64 first;  // the array's first block
  i64 node;
};
struct Parameters {
  i32* error_word;
  i64 count;
  u64 low[2], length[2];
  Entry entries[MOST];
};

INLINE bool is_faulty(const Parameters& p, BITS x) {
  const BITS magnitude = x & (BITS)~((BITS)1 << (8 * sizeof(BITS) - 1));
  return (BITS)(magnitude - (BITS)p.low[0]) < (BITS)p.length[0] ||
         (BITS)(magnitude - (BITS)p.low[1]) < (BITS)p.length[1];
}

extern "C" __global__ void __launch_bounds__(256)
    find_faults(const __grid_constant__ Parameters p) {
  const i64 block = (i64)blockIdx.x;
  int low = 0, high = (int)p.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.entries[middle].first <= block) low = middle; else high = middle - 1;
  }
  const Entry& e = p.entries[low];
  const i64 start = (block - e.first) * CHUNK;
  const i64 rest = e.size - start, own = rest < CHUNK ? rest : CHUNK;
  const i64 whole = own - own % VECTOR;
  bool bad = false;
  for (i64 i = (i64)threadIdx.x * VECTOR; i < whole; i += 256 * VECTOR) {
    const Vec<BITS, VECTOR> x = load<VECTOR>(e.x + start + i);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) bad |= is_faulty(p, x.v[k]);
  }
  if (whole + (i64)threadIdx.x < own) bad |= is_faulty(p, e.x[start + whole + (i64)threadIdx.x]);
  if (bad) report(p.error_word, VALUE_ERROR, e.node, 0, 0);
}
