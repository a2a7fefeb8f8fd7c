// Depthwise convolution with channels that are neighbours in memory (NHWC): a thread computes two
// channels of TH x TW pixels, a block has the filters of PAIRS pairs of channels in shared memory.
// T is the type of the input, Y that of the result. FLIP mirrors the filters. `finish` makes a
// result of a sum and of the EXTRAS, each of which has an element for all, a channel or a pixel.

struct Parameters {
  const T *x, *w;
  Y* y;
  const E0* e0;
  const E1* e1;
  const E2* e2;
  i64 items, height, width, channels, out_height, out_width, pad_height, pad_width;
};

constexpr i32 TAPS = KH * KW, ROWS = (TH - 1) * SH + KH, COLUMNS = (TW - 1) * SW + KW;

// Where an operand of each kind (0: one element, 1: of channels, 2: of pixels) has a result's.
INLINE i64 place(i32 kind, i64 channel, i64 at) { return kind == 0 ? 0 : kind == 1 ? channel : at; }

extern "C" __global__ void __launch_bounds__(PAIRS* LINES) depthwise(
    const __grid_constant__ Parameters p) {
  __shared__ Vec<float, 2> filters[TAPS][PAIRS];
  const i32 pair = threadIdx.x % PAIRS, line = threadIdx.x / PAIRS;
  const i32 tiles = (i32)p.channels / (2 * PAIRS), first = blockIdx.x % tiles * (2 * PAIRS);
  for (i32 i = threadIdx.x; i < TAPS * PAIRS * 2; i += PAIRS * LINES) {
    const i32 channel = i / TAPS, tap = i % TAPS;
    filters[FLIP ? TAPS - 1 - tap : tap][channel / 2].v[channel % 2] =
        convert<float>(p.w[(i64)first * TAPS + i]);
  }
  __syncthreads();
  const i32 channel = first + 2 * pair, height = (i32)p.height, width = (i32)p.width;
  const i32 across = ((i32)p.out_width + TW - 1) / TW, down = ((i32)p.out_height + TH - 1) / TH;
  const i32 step = gridDim.x / tiles * LINES;
  for (i32 item = blockIdx.x / tiles * LINES + line; item < (i32)p.items; item += step) {
    const i32 left = item % across * TW, top = item / across % down * TH, n = item / across / down;
    const T* image = p.x + (i64)n * height * width * p.channels + channel;
    const i32 row0 = top * SH - (i32)p.pad_height, column0 = left * SW - (i32)p.pad_width;
    float sums[TH][TW][2] = {};
#pragma unroll 1
    for (i32 r = 0; r < ROWS; r++) {
      const i32 row = row0 + r;
      if (row < 0 || row >= height) continue;
      float x[COLUMNS][2];
#pragma unroll
      for (i32 j = 0; j < COLUMNS; j++) {
        const i32 column = column0 + j;
        Vec<T, 2> raw = {};
        if (column >= 0 && column < width)
          raw = load<2>(image + ((i64)row * width + column) * p.channels);
        x[j][0] = convert<float>(raw.v[0]);
        x[j][1] = convert<float>(raw.v[1]);
      }
#pragma unroll
      for (i32 i = 0; i < TH; i++) {
        const i32 tap = r - i * SH;
        if (tap < 0 || tap >= KH) continue;
#pragma unroll
        for (i32 k = 0; k < KW; k++) {
          const Vec<float, 2> filter = filters[tap * KW + k][pair];
#pragma unroll
          for (i32 j = 0; j < TW; j++) {
            sums[i][j][0] = fmaf(filter.v[0], x[j * SW + k][0], sums[i][j][0]);
            sums[i][j][1] = fmaf(filter.v[1], x[j * SW + k][1], sums[i][j][1]);
          }
        }
      }
    }
#pragma unroll
    for (i32 i = 0; i < TH; i++) {
      if (top + i >= (i32)p.out_height) continue;
#pragma unroll
      for (i32 j = 0; j < TW; j++) {
        if (left + j >= (i32)p.out_width) continue;
        const i64 pixel = ((i64)n * p.out_height + top + i) * p.out_width + left + j;
        const i64 at = pixel * p.channels + channel;
        Vec<Y, 2> y;
        for (i32 v = 0; v < 2; v++) FINISH(sums[i][j][v], channel + v, at + v, y.v[v]);
        store(p.y + at, y);
      }
    }
  }
}
