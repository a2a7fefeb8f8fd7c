// Which of sorted boxes stay, a block for each example: a box that stays drops later ones that
// overlap it.

struct Parameters {
  const X* x;
  bool* y;
  i64 examples, boxes;
  double overlap;
};

struct Box {
  T low[2], high[2], area;
};

INLINE Box box_at(const X* x) {
  Box b;
  for (int d = 0; d < 2; d++) {
    const T a = convert<T>(x[d]), c = convert<T>(x[2 + d]);
    b.low[d] = s_min(a, c);
    b.high[d] = s_max(a, c);
  }
  b.area = (b.high[0] - b.low[0]) * (b.high[1] - b.low[1]);
  return b;
}

INLINE T common_side(const Box& a, const Box& b, int d) {
  return s_max(s_min(a.high[d], b.high[d]) - s_max(a.low[d], b.low[d]), (T)0);
}

extern "C" __global__ void __launch_bounds__(THREADS) kept_boxes(
    const __grid_constant__ Parameters p) {
  for (i64 n = blockIdx.x; n < p.examples; n += gridDim.x) {
    const X* x = p.x + n * p.boxes * 4;
    bool* y = p.y + n * p.boxes;
    for (i64 k = threadIdx.x; k < p.boxes; k += blockDim.x) y[k] = true;
    __syncthreads();
    for (i64 k = 0; k + 1 < p.boxes; k++) {
      if (y[k]) {
        const Box best = box_at(x + 4 * k);
        for (i64 j = k + 1 + threadIdx.x; j < p.boxes; j += blockDim.x) {
          const Box other = box_at(x + 4 * j);
          const T common = common_side(best, other, 0) * common_side(best, other, 1);
          if (common > (T)p.overlap * (best.area + other.area - common)) y[j] = false;
        }
        __syncthreads();
      }
    }
  }
}
