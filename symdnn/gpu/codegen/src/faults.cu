// Checks arrays for faulty values (NaN, infinities, large ones), several arrays in one launch: a
// value is faulty if its bits without the sign are in one of RANGES ranges. BITS is an unsigned type
// of the values' size, VECTOR the elements of a load, in words of type WORD, LOADS the loads of a
// thread, all under way at once; MOST the entries of the table. A block checks a part of one array.

struct Entry {
  const BITS* x;
  i64 size;
  i64 first;  // the array's first block
  i64 node;
};
// Of each element in a word: what clears the sign, the sign alone, and for a range the two numbers
// which carry a magnitude into the sign if it is at least the range's first, and past its last.
struct Parameters {
  i32* error_word;
  i64 count;
  u64 magnitude, sign;
  u64 from[2], past[2];
  Entry entries[MOST];
};

constexpr int WORDS = VECTOR * (int)sizeof(BITS) / (int)sizeof(WORD);
constexpr i64 CHUNK = (i64)256 * VECTOR * LOADS;

INLINE WORD faults(const Parameters& p, WORD x) {
  const WORD m = x & (WORD)p.magnitude;
  WORD found = (WORD)(m + (WORD)p.from[0]) & (WORD)~(WORD)(m + (WORD)p.past[0]);
  if (RANGES > 1) found |= (WORD)(m + (WORD)p.from[1]) & (WORD)~(WORD)(m + (WORD)p.past[1]);
  return found;
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
  Vec<WORD, WORDS> x[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const i64 at = ((i64)i * 256 + (i64)threadIdx.x) * VECTOR;
    if (at < whole) {
      x[i] = load<WORDS>((const WORD*)(e.x + start + at));
    } else {
#pragma unroll
      for (int k = 0; k < WORDS; k++) x[i].v[k] = 0;
    }
  }
  WORD found = 0;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
#pragma unroll
    for (int k = 0; k < WORDS; k++) found |= faults(p, x[i].v[k]);
  }
  if (whole + (i64)threadIdx.x < own) {
    found |= faults(p, (WORD)e.x[start + whole + (i64)threadIdx.x]);
  }
  if (found & (WORD)p.sign) report(p.error_word, VALUE_ERROR, e.node, 0, 0);
}
