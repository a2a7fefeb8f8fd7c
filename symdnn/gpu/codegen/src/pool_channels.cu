// Pooling of (N, sizes, C): a thread computes V neighbouring channels of ROWS by STRIP results, so
// that elements of several windows are read once.

struct Parameters { const T* x; T* y; i64 images; i64 groups; Sizes in, out; };

// Maxima are computed in the stored type, sums in the type of computation.
#if MODE == 0
typedef T Kind;
typedef Vec<T, V> Held;
INLINE Held joined_to(const Held& held, const Vec<T, V>& x) { return larger(held, x); }
#else
typedef A Kind;
typedef Vec<A, V> Held;
INLINE Held joined_to(const Held& held, const Vec<T, V>& x) {
  Held sum;
#pragma unroll
  for (i32 k = 0; k < V; k++) sum.v[k] = held.v[k] + convert<A>(x.v[k]);
  return sum;
}
#endif

// One line of the windows, from column `w` on, and which of its columns are inside.
struct Line {
  Vec<T, V> x[SPAN];
  bool inside[SPAN];
};

INLINE Line read_line(const Parameters& p, const T* from, bool there, i32 w) {
  Line line;
#pragma unroll
  for (i32 c = 0; c < SPAN; c++) {
    line.inside[c] = CLAMPED || (there && within(w + c, p.in.w));
    const i32 at = PLACE(w + c, p.in.w);
    if (line.inside[c]) line.x[c] = load<V>(from + (i64)at * p.groups * V);
  }
  return line;
}

// Joins the line into the results whose windows contain it.
INLINE void join_line(const Line& line, i32 number, Held (&held)[ROWS][STRIP]) {
#pragma unroll
  for (i32 j = 0; j < ROWS; j++) {
    if (number < j * SH || number >= j * SH + WH) continue;
#pragma unroll
    for (i32 k = 0; k < STRIP; k++)
#pragma unroll
      for (i32 c = k * SW; c < k * SW + WW; c++)
        if (line.inside[c]) held[j][k] = joined_to(held[j][k], line.x[c]);
  }
}

INLINE void pool_at(const Parameters& p, i64 image, i32 d, i32 h, i32 w, u32 group) {
  Held held[ROWS][STRIP];
#pragma unroll
  for (i32 j = 0; j < ROWS * STRIP; j++)
#pragma unroll
    for (i32 k = 0; k < V; k++) held[j / STRIP][j % STRIP].v[k] = convert<Kind>(start_of());
#pragma unroll
  for (i32 a = 0; a < WD; a++) {
    const i32 xd = PLACE(d * SD - PD + a, p.in.d);
#pragma unroll
    for (i32 b = 0; b < LINES; b++) {
      const i32 xh = PLACE(h * SH - PH + b, p.in.h);
      const bool there = CLAMPED || (within(xd, p.in.d) && within(xh, p.in.h));
      const T* from = p.x + (((image * p.in.d + xd) * p.in.h + xh) * p.in.w * p.groups + group) * V;
      join_line(read_line(p, from, there, w * SW - PW), b, held);
    }
  }
#pragma unroll
  for (i32 j = 0; j < ROWS; j++)
#pragma unroll
    for (i32 k = 0; k < STRIP; k++) {
      if (h + j >= (i32)p.out.h || w + k >= (i32)p.out.w) continue;
      const i64 at = ((image * p.out.d + d) * p.out.h + h + j) * p.out.w + w + k;
#if MODE == 0
      store(p.y + (at * p.groups + group) * V, held[j][k]);
#else
      const A divisor = elements_of(p.in, d, h + j, w + k);
      Vec<T, V> y;
#pragma unroll
      for (i32 n = 0; n < V; n++) y.v[n] = convert<T>(held[j][k].v[n] / divisor);
      store(p.y + (at * p.groups + group) * V, y);
#endif
    }
}

// A block has a part of a row of results, a band of ROWS rows (of one depth), and an image.
extern "C" __global__ void __launch_bounds__(256) pool_channels(
    const __grid_constant__ Parameters p) {
  const u32 strips = ((u32)p.out.w + STRIP - 1) / STRIP, bands = ((u32)p.out.h + ROWS - 1) / ROWS;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, strip = i / (u32)p.groups;
  if (strip >= strips) return;
  for (i64 image = blockIdx.z; image < p.images; image += gridDim.z)
    for (u32 band = blockIdx.y; band < bands * (u32)p.out.d; band += gridDim.y)
      pool_at(p, image, band / bands, band % bands * ROWS, strip * STRIP, i - strip * (u32)p.groups);
}
