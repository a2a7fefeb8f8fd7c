// Images or filters whose windows of WH x WW pixels, in steps of SH x SW, become the channels of one
// pixel, and filters back. The channels of a result are the window's rows, its columns, CHANNELS;
// then zeros up to DEPTH. FLIP mirrors filters.

struct Parameters {
  const T* x;
  T* y;
  // Vectors to write (unfold: elements); the sizes before folding, zeros before them, and the sizes
  // after folding.
  i64 count, height, width, pad_height, pad_width, rows, columns;
};

constexpr i32 VECTORS = DEPTH / WIDTH, LINE = WW * CHANNELS;

extern "C" __global__ void __launch_bounds__(256) fold(const __grid_constant__ Parameters p) {
  const i32 height = (i32)p.height, width = (i32)p.width, length = width * CHANNELS;
  for (i64 at = global_thread(); at < p.count; at += thread_count()) {
    const u32 pixel = (u32)at / VECTORS, first = (u32)at % VECTORS * WIDTH;
    const u32 column = pixel % (u32)p.columns, line = pixel / (u32)p.columns;
    const i32 top = (i32)(line % (u32)p.rows) * SH - (i32)p.pad_height;
    const i32 left = ((i32)column * SW - (i32)p.pad_width) * CHANNELS;
    const T* image = p.x + (i64)(line / (u32)p.rows) * height * length;
    Vec<T, WIDTH> found;
#pragma unroll
    for (i32 k = 0; k < WIDTH; k++) {
      const i32 part = (i32)(first + k) / LINE, i = top + part;
      const i32 j = left + (i32)(first + k) % LINE;  // in elements
      const bool inside = part < WH && i >= 0 && i < height && j >= 0 && j < length;
#if FLIP
      const i32 from = (height - 1 - i) * length + (width - 1 - j / CHANNELS) * CHANNELS + j % CHANNELS;
#else
      const i32 from = i * length + j;
#endif
      found.v[k] = inside ? image[from] : convert<T>(0.0f);
    }
    store<WIDTH>(p.y + at * WIDTH, found);
  }
}

extern "C" __global__ void __launch_bounds__(256) unfold(const __grid_constant__ Parameters p) {
  for (i64 at = global_thread(); at < p.count; at += thread_count()) {
    const i64 channel = at % CHANNELS, pixel = at / CHANNELS, line = pixel / p.width;
    i64 i = line % p.height, j = pixel % p.width;
#if FLIP
    i = p.height - 1 - i, j = p.width - 1 - j;
#endif
    const i64 from = (line / p.height * p.rows + i / WH) * p.columns + j / WW;
    p.y[at] = p.x[from * DEPTH + (i % WH * WW + j % WW) * CHANNELS + channel];
  }
}
