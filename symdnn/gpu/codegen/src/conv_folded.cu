// Images or filters whose squares of SH x SW pixels become the channels of one pixel, and filters
// back. The channels of a result are the square's rows, its columns, CHANNELS; then zeros up to
// DEPTH. FLIP mirrors filters.

struct Parameters {
  const T* x;
  T* y;
  // Elements to write, in pixels (unfold: in elements); the sizes before folding, zeros before them,
  // and the sizes after folding.
  i64 count, height, width, pad_height, pad_width, rows, columns;
};

INLINE i64 mirrored(i64 i, i64 size) { return FLIP ? size - 1 - i : i; }

extern "C" __global__ void __launch_bounds__(256) fold(const __grid_constant__ Parameters p) {
  for (i64 at = global_thread(); at < p.count; at += thread_count()) {
    const u32 pixel = (u32)at, column = pixel % (u32)p.columns, line = pixel / (u32)p.columns;
    const u32 row = line % (u32)p.rows;
    const i64 top = (i64)row * SH - p.pad_height, left = (i64)column * SW - p.pad_width;
    const T* image = p.x + (i64)(line / (u32)p.rows) * p.height * p.width * CHANNELS;
#pragma unroll
    for (i32 first = 0; first < DEPTH; first += WIDTH) {
      Vec<T, WIDTH> found;
#pragma unroll
      for (i32 k = 0; k < WIDTH; k++) {
        const i32 channel = (first + k) % CHANNELS, part = (first + k) / CHANNELS;
        const i64 i = top + part / SW, j = left + part % SW;
        const bool inside =
            part < SH * SW && i >= 0 && i < p.height && j >= 0 && j < p.width;
        const i64 from = mirrored(i, p.height) * p.width + mirrored(j, p.width);
        found.v[k] = inside ? image[from * CHANNELS + channel] : convert<T>(0.0f);
      }
      store<WIDTH>(p.y + at * DEPTH + first, found);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) unfold(const __grid_constant__ Parameters p) {
  for (i64 at = global_thread(); at < p.count; at += thread_count()) {
    const i64 channel = at % CHANNELS, pixel = at / CHANNELS, line = pixel / p.width;
    const i64 i = mirrored(line % p.height, p.height), j = mirrored(pixel % p.width, p.width);
    const i64 from = (line / p.height * p.rows + i / SH) * p.columns + j / SW;
    p.y[at] = p.x[from * DEPTH + (i % SH * SW + j % SW) * CHANNELS + channel];
  }
}
