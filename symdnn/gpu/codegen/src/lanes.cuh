// Reductions over the lanes of a row, which are neighbours in a one-dimensional block: every lane
// gets the result. All threads of the block must call them. LANES is a power of two.

// The larger of two; a NaN loses against any number.
struct Larger {
  static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
  static __device__ __forceinline__ double of(double a, double b) { return fmax(a, b); }
};
struct Added {
  template <class W> static __device__ __forceinline__ W of(W a, W b) { return a + b; }
};

template <class How, int LANES, class W> INLINE W together(W value) {
#pragma unroll
  for (i32 half = (LANES < 32 ? LANES : 32) / 2; half > 0; half /= 2)
    value = How::of(value, __shfl_xor_sync(0xffffffffu, value, half));
  if (LANES > 32) {
    constexpr i32 WARPS = LANES > 32 ? LANES / 32 : 1;
    __shared__ W all[32];
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    if (lane == 0) all[warp] = value;
    __syncthreads();
    value = all[warp / WARPS * WARPS + lane % WARPS];
#pragma unroll
    for (i32 half = WARPS / 2; half > 0; half /= 2)
      value = How::of(value, __shfl_xor_sync(0xffffffffu, value, half));
  }
  return value;
}

// The exponential, as exact as the stored type needs it.
template <class T> struct Exponential {
  static __device__ __forceinline__ float of(float x) { return expf(x); }
};
template <> struct Exponential<f16> {
  static __device__ __forceinline__ float of(float x) { return s_short_exp(x); }
};
template <> struct Exponential<bf16> {
  static __device__ __forceinline__ float of(float x) { return s_short_exp(x); }
};
template <> struct Exponential<double> {
  static __device__ __forceinline__ double of(double x) { return exp(x); }
};
