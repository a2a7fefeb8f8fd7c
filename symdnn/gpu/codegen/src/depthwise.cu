// Depthwise convolution with channels that are neighbours in memory (NHWC): a thread computes two
// channels of TH x TW pixels, a block has the filters of PAIRS pairs of channels in shared memory.
// T is the type of the input (HEIGHT x WIDTH pixels), Y that of the result. FLIP mirrors the filters.
// FINISH makes a result of a sum and of further operands.

struct Parameters {
  const T *x, *w;
  Y* y;
  const E0* e0;
  const E1* e1;
  const E2* e2;
  i64 items, out_height, out_width, pad_height, pad_width;
};

// Two neighbours as one integer, so that a load is no branch.
template <i32 BYTES> struct Bits { typedef u32 type; };
template <> struct Bits<8> { typedef u64 type; };
typedef Bits<2 * sizeof(T)>::type Pair;

template <class S> struct Unpacked {
  static __device__ __forceinline__ void of(Pair raw, float& a, float& b) {
    union { Pair whole; Vec<S, 2> both; } seen;
    seen.whole = raw;
    a = convert<float>(seen.both.v[0]);
    b = convert<float>(seen.both.v[1]);
  }
};
template <> struct Unpacked<bf16> {
  static __device__ __forceinline__ void of(Pair raw, float& a, float& b) {
    a = float_of_bits((u32)raw << 16);
    b = float_of_bits((u32)raw & 0xffff0000u);
  }
};

constexpr i32 TAPS = KH * KW, ROWS = (TH - 1) * SH + KH, COLUMNS = (TW - 1) * SW + KW;

// Where an operand of each kind (0: one element, 1: of channels, 2: of pixels) has a result's.
INLINE i64 place(i32 kind, i64 channel, i64 at) { return kind == 0 ? 0 : kind == 1 ? channel : at; }

extern "C" __global__ void __launch_bounds__(PAIRS* LINES) depthwise(
    const __grid_constant__ Parameters p) {
  // One more pair, so that neighbouring taps of a channel are in other banks.
  __shared__ Vec<float, 2> filters[TAPS][PAIRS + 1];
  const i32 pair = threadIdx.x % PAIRS, line = threadIdx.x / PAIRS;
  constexpr i32 tiles = CHANNELS / (2 * PAIRS);
  const i32 first = blockIdx.x % tiles * (2 * PAIRS);
  for (i32 i = threadIdx.x; i < TAPS * PAIRS * 2; i += PAIRS * LINES) {
    const i32 channel = i / TAPS, tap = i % TAPS;
    filters[FLIP ? TAPS - 1 - tap : tap][channel / 2].v[channel % 2] =
        convert<float>(p.w[(i64)first * TAPS + i]);
  }
  __syncthreads();
  const i32 channel = first + 2 * pair;
  const i32 across = ((i32)p.out_width + TW - 1) / TW, down = ((i32)p.out_height + TH - 1) / TH;
  const i32 step = gridDim.x / tiles * LINES;
  for (i32 item = blockIdx.x / tiles * LINES + line; item < (i32)p.items; item += step) {
    const i32 left = item % across * TW, top = item / across % down * TH, n = item / across / down;
    const i32 row0 = top * SH - (i32)p.pad_height, column0 = left * SW - (i32)p.pad_width;
    const T* next = p.x + (((i64)n * HEIGHT + row0) * WIDTH + column0) * CHANNELS + channel;
    bool inside[COLUMNS];
#pragma unroll
    for (i32 j = 0; j < COLUMNS; j++) inside[j] = (u32)(column0 + j) < (u32)WIDTH;
    float sums[TH][TW][2] = {};
#pragma unroll 1
    for (i32 r = 0; r < ROWS; r++) {
      const T* line = next;
      next += WIDTH * CHANNELS;
      if ((u32)(row0 + r) >= (u32)HEIGHT) continue;
      Pair raw[COLUMNS];
#pragma unroll
      for (i32 j = 0; j < COLUMNS; j++) {
        raw[j] = 0;
        if (inside[j]) raw[j] = *(const Pair*)(line + j * CHANNELS);
      }
      float x[COLUMNS][2];
#pragma unroll
      for (i32 j = 0; j < COLUMNS; j++) {
        Unpacked<T>::of(raw[j], x[j][0], x[j][1]);
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
        const i64 at = pixel * CHANNELS + channel;
        Vec<Y, 2> y;
        for (i32 v = 0; v < 2; v++) FINISH(sums[i][j][v], channel + v, at + v, y.v[v]);
        store(p.y + at, y);
      }
    }
  }
}
