// Ranges, vectors of scalars, and the check of an assertion.

#if defined(RANGE)
struct Parameters {
  T* y;
  i64 count, start, step;
};
extern "C" __global__ void __launch_bounds__(256) range(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.count; n += thread_count())
    p.y[n] = convert<T>((i64)((u64)p.start + (u64)n * (u64)p.step));
}
#elif defined(VECTOR)
struct Parameters {
  T* y;
  const T* x[VECTOR];
};
extern "C" __global__ void __launch_bounds__(256) vector_of(const __grid_constant__ Parameters p) {
  for (i32 n = threadIdx.x; n < VECTOR; n += blockDim.x) p.y[n] = *p.x[n];
}
#else
struct Parameters {
  const T* x;
  i64 count;
  i32* error_word;
  i64 node, condition;
  i64 size[D], x_step[D];
};
extern "C" __global__ void __launch_bounds__(256) check(const __grid_constant__ Parameters p) {
  for (i64 n = global_thread(); n < p.count; n += thread_count())
    if (!convert<bool>(p.x[place((COUNT)n, p.size, p.x_step)]))
      report(p.error_word, ASSERT_ERROR, p.node, p.condition, 0);
}
#endif
