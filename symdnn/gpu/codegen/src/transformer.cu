// The spatial transformer: the grid of source points, sampling at these, and the gradients of both.
// All operands are contiguous: theta (N, 2, 3), grid (N, h, w, 2), image (N, C, H, W), y (N, C, h,
// w). T is their type, W the type of computation. For determinism every sum has a fixed order, or
// is a sum of integers.

struct Parameters {
  const T* theta;  // of the gradient of theta: the gradient of the grid
  T* grid;         // of the gradient of theta: that gradient
  const T* image;
  const T* dy;
  T* y;       // of the gradient: dimage
  T* dgrid;
  u64* peaks;  // one for each image: the bits of the largest |dy|
  i64* sums;   // dimage in units of unit(peak)
  i64 n, channels, height, width, rows, columns;
};

// -1 to 1 over `size` points; a single one is in the middle.
INLINE W coordinate(i64 i, i64 size) { return size > 1 ? (W)2 * (W)i / (W)(size - 1) - (W)1 : (W)0; }

extern "C" __global__ void __launch_bounds__(256) make_grid(const __grid_constant__ Parameters p) {
  const i64 points = p.rows * p.columns;
  for (i64 k = global_thread(); k < p.n * points; k += thread_count()) {
    const i64 image = k / points, at = k - image * points;
    const W y = coordinate(at / p.columns, p.rows), x = coordinate(at % p.columns, p.columns);
    const T* theta = p.theta + image * 6;
    for (int i = 0; i < 2; i++)
      p.grid[2 * k + i] = convert<T>(convert<W>(theta[3 * i]) * x + convert<W>(theta[3 * i + 1]) * y +
                                     convert<W>(theta[3 * i + 2]));
  }
}

// A block for each image: a thread sums every 256th point, then the block's sums are added in a
// tree.
extern "C" __global__ void __launch_bounds__(256) grid_gradient(
    const __grid_constant__ Parameters p) {
  __shared__ W kept[6][256];
  const i64 points = p.rows * p.columns;
  for (i64 image = blockIdx.x; image < p.n; image += gridDim.x) {
    W sum[6] = {(W)0, (W)0, (W)0, (W)0, (W)0, (W)0};
    for (i64 at = threadIdx.x; at < points; at += 256) {
      const W y = coordinate(at / p.columns, p.rows), x = coordinate(at % p.columns, p.columns);
      for (int i = 0; i < 2; i++) {
        const W d = convert<W>(p.theta[2 * (image * points + at) + i]);
        sum[3 * i] += d * x, sum[3 * i + 1] += d * y, sum[3 * i + 2] += d;
      }
    }
    for (int i = 0; i < 6; i++) kept[i][threadIdx.x] = sum[i];
    for (int half = 128; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half)
        for (int i = 0; i < 6; i++) kept[i][threadIdx.x] += kept[i][threadIdx.x + half];
    }
    __syncthreads();
    if (threadIdx.x < 6) p.grid[image * 6 + threadIdx.x] = convert<T>(kept[threadIdx.x][0]);
    __syncthreads();
  }
}

// The position of a grid point in its image: the pixel above and left of it, and the offset from
// it.
struct Spot {
  i64 row, column;
  W down, right;
};

INLINE W bounded(W x, W limit) { return x >= -limit ? (x <= limit ? x : limit) : -limit; }  // NaN too

INLINE Spot spot_of(const Parameters& p, i64 k) {
  const W x = (convert<W>(p.grid[2 * k]) + (W)1) * ((W)(p.width - 1) / (W)2);
  const W y = (convert<W>(p.grid[2 * k + 1]) + (W)1) * ((W)(p.height - 1) / (W)2);
  const W limit = (W)((p.width > p.height ? p.width : p.height) + 2);
  Spot s;
  s.column = (i64)s_floor(bounded(x, limit)), s.row = (i64)s_floor(bounded(y, limit));
  s.right = x - s_floor(x), s.down = y - s_floor(y);
  return s;
}

// Corner 0 to 3: above left, above right, below left, below right. False: outside of the image.
INLINE bool corner(const Parameters& p, const Spot& s, int i, i64* at, W* across, W* along) {
  const i64 row = s.row + (i >> 1), column = s.column + (i & 1);
  *at = row * p.width + column;
  *across = i & 1 ? s.right : (W)1 - s.right;
  *along = i >> 1 ? s.down : (W)1 - s.down;
  return row >= 0 && row < p.height && column >= 0 && column < p.width;
}

extern "C" __global__ void __launch_bounds__(256) sample(const __grid_constant__ Parameters p) {
  const i64 points = p.rows * p.columns, pixels = p.height * p.width;
  for (i64 k = global_thread(); k < p.n * points; k += thread_count()) {
    const i64 image = k / points, at = k - image * points;
    const Spot s = spot_of(p, k);
    for (i64 c = 0; c < p.channels; c++) {
      const T* plane = p.image + (image * p.channels + c) * pixels;
      W sum = (W)0;
      for (int i = 0; i < 4; i++) {
        i64 pixel;
        W across, along;
        if (corner(p, s, i, &pixel, &across, &along))
          sum += convert<W>(plane[pixel]) * (across * along);
      }
      p.y[(image * p.channels + c) * points + at] = convert<T>(sum);
    }
  }
}

template <class Bits, class X> INLINE u64 bits_of(X x) {
  union { X x; Bits bits; } both;
  both.x = x;
  return (u64)both.bits;
}
INLINE u64 bits_of(float x) { return bits_of<u32>(x); }
INLINE u64 bits_of(double x) { return bits_of<u64>(x); }

// x * 2**power, also for powers that are out of the range of a double's exponent.
INLINE double scaled(double x, int power) {
  const int half = power / 2;
  return x * double_of_bits((u64)(half + 1023) << 52) *
         double_of_bits((u64)(power - half + 1023) << 52);
}

// Numbers that are not negative are in the order of their bits, with NaN above infinity.
extern "C" __global__ void __launch_bounds__(256) find_peaks(const __grid_constant__ Parameters p) {
  const i64 each = p.channels * p.rows * p.columns;
  for (i64 k = global_thread(); k < p.n * each; k += thread_count())
    atomicMax(p.peaks + k / each, bits_of(s_abs(convert<W>(p.dy[k]))));
}

// log2 of the number of units in 1: a pixel's sum is at most the number of points times the peak.
INLINE int unit(const Parameters& p, u64 peak) {
  const int exponent = sizeof(W) == 4 ? (int)(peak >> 23) - 126 : (int)(peak >> 52) - 1022;
  int points = 1;
  while ((p.rows * p.columns) >> points) points++;
  return 61 - points - exponent;
}

INLINE bool is_finite_peak(u64 peak) {
  return sizeof(W) == 4 ? peak < 0x7f800000ull : peak < 0x7ff0000000000000ull;
}

extern "C" __global__ void __launch_bounds__(256) sample_gradient(
    const __grid_constant__ Parameters p) {
  const i64 points = p.rows * p.columns, pixels = p.height * p.width;
  for (i64 k = global_thread(); k < p.n * points; k += thread_count()) {
    const i64 image = k / points, at = k - image * points;
    const u64 peak = p.peaks[image];
    const int units = unit(p, peak);
    const Spot s = spot_of(p, k);
    W dx = s.down * (W)0, dy = s.right * (W)0;  // NaN for a point without a position
    for (i64 c = 0; c < p.channels; c++) {
      const i64 plane = (image * p.channels + c) * pixels;
      const W d = convert<W>(p.dy[(image * p.channels + c) * points + at]);
      for (int i = 0; i < 4; i++) {
        i64 pixel;
        W across, along;
        if (!corner(p, s, i, &pixel, &across, &along)) continue;
        const W seen = convert<W>(p.image[plane + pixel]) * d;
        dx += i & 1 ? seen * along : -seen * along;
        dy += i >> 1 ? seen * across : -seen * across;
        const double part = (double)(d * (across * along));
        if (is_finite_peak(peak) && part != 0.0 && part == part)
          atomicAdd((u64*)(p.sums + plane + pixel), (u64)(i64)scaled(part, units));
      }
    }
    p.dgrid[2 * k] = convert<T>(dx * ((W)(p.width - 1) / (W)2));
    p.dgrid[2 * k + 1] = convert<T>(dy * ((W)(p.height - 1) / (W)2));
  }
}

extern "C" __global__ void __launch_bounds__(256) collect(const __grid_constant__ Parameters p) {
  const i64 each = p.channels * p.height * p.width;
  for (i64 k = global_thread(); k < p.n * each; k += thread_count()) {
    const u64 peak = p.peaks[k / each];
    const double sum = scaled((double)p.sums[k], -unit(p, peak));
    p.y[k] = convert<T>(is_finite_peak(peak) ? (W)sum : (W)NAN_f);
  }
}
