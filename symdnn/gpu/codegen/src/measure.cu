// Helpers for timing and checking a library's kernels: random operands, and the difference of
// results from a reference. The reference is of a wider type and always (outer, channels, inner);
// arrays of type T may have the channels last.

INLINE i64 in_memory(i64 n, i64 channels, i64 inner, i64 last) {
  if (!last) return n;
  const i64 outer = n / (channels * inner), rest = n % (channels * inner);
  return (outer * inner + rest % inner) * channels + rest / inner;
}

#if defined(FILL)
// Uniform in [-1, 1), rounded to T: a hash of the index (Steele, Lea and Flood's SplitMix64).
extern "C" __global__ void __launch_bounds__(256)
    fill_random(T* y, WIDE* wide, i64 count, i64 channels, i64 inner, i64 last, i64 seed) {
  for (i64 n = global_thread(); n < count; n += thread_count()) {
    u64 z = ((u64)n + (u64)seed * 0x632be59bd9b4e019ull + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    const T value = convert<T>((float)(z >> 40) * 1.1920929e-7f - 1.0f);
    y[in_memory(n, channels, inner, last)] = value;
    wide[n] = (WIDE)widen(value);
  }
}
#elif defined(TAKE)
// TAKE: the values themselves (1), or without their signs (2).
extern "C" __global__ void __launch_bounds__(256)
    take(const T* x, WIDE* wide, i64 count, i64 channels, i64 inner, i64 last) {
  for (i64 n = global_thread(); n < count; n += thread_count()) {
    const WIDE value = (WIDE)widen(x[in_memory(n, channels, inner, last)]);
    wide[n] = TAKE == 2 ? (WIDE)fabs((double)value) : value;
  }
}

extern "C" __global__ void __launch_bounds__(256) spoil(T* y, i64 count) {
  for (i64 n = global_thread(); n < count; n += thread_count()) y[n] = convert<T>(__int_as_float(0x7fc00000));
}
#else
// Adds the sums of (a - b)^2 and of b^2 to out, and finds the largest |a - b|. NaN stays NaN.
// Infinity has no error where b is beyond the range of T.
extern "C" __global__ void __launch_bounds__(256)
    difference(const T* a, const WIDE* b, i64 count, i64 channels, i64 inner, i64 last,
               double* out) {
  double error = 0, scale = 0, largest = 0;
  for (i64 n = global_thread(); n < count; n += thread_count()) {
    const double truth = (double)b[n];
    const double found = (double)widen(a[in_memory(n, channels, inner, last)]);
    const bool beyond = isinf(found) && (double)widen(convert<T>(b[n])) == found;
    const double d = beyond ? 0 : found - truth;
    error += d * d;
    scale += truth * truth;
    largest = !(fabs(d) <= largest) ? fabs(d) : largest;
  }
  for (i32 step = 16; step; step >>= 1) {
    error += __shfl_xor_sync(0xffffffffu, error, step);
    scale += __shfl_xor_sync(0xffffffffu, scale, step);
    const double other = __shfl_xor_sync(0xffffffffu, largest, step);
    largest = !(other <= largest) ? other : largest;
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(out, error);
    atomicAdd(out + 1, scale);
    // Doubles that are not negative are in the order of their bits, with NaN as the largest.
    atomicMax((u64*)(out + 2), (u64)__double_as_longlong(largest));
  }
}
#endif
