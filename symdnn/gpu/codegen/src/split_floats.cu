// Splits float32 matrices into bfloat16 numbers of which products are made, and adds partial sums.
//
// A float32 number is the sum of three bfloat16 numbers of its sign: a = high + middle + low, each
// the first digits of what is left; exactly, but for the least numbers. A product of two is the sum
// of six products, from the smallest:
//   low high, high low, middle middle, middle high, high middle, high high.
// (The other three are below the rounding of float32.) So a product of matrices is one of matrices
// in bfloat16 with sums six times as long: the left ones have the row `low high middle middle high
// high`, the right ones `high low middle high middle high`. All six products have one sign, so that
// what overflows is the infinity of that sign.
//
// What is not finite is in the last product only, which has its infinities and NaNs. In the other
// five it is 0: infinity times 0 would be NaN.

struct Parameters {
  const float* x; // (stack, rows, terms), of any strides
  bf16* y;        // (stack, rows, line): chunks of six pieces
  i64 rows, terms, first, stack_step, row_step, term_step;
  i64 line, stacked, piece; // steps of y's rows and stack, and the length of a piece
};

#define SIDE 32
#define WIDE 64
#define LINES 8

struct Pieces { float high, finite_high, middle, low; };

INLINE float first_digits(const float x) { return float_of_bits((u32)__float_as_int(x) & 0xffff0000u); }

INLINE Pieces split(const float x) {
  if (!(fabsf(x) <= 3.402823466e38f)) return {x, 0.f, 0.f, 0.f};
  const float high = first_digits(x), rest = x - high, middle = first_digits(rest);
  return {high, high, middle, rest - middle};
}

// A block has WIDE terms of SIDE rows, of one chunk. It reads along whichever of both are
// neighbours.
extern "C" __global__ void __launch_bounds__(SIDE * LINES)
split_floats(const __grid_constant__ Parameters p) {
  __shared__ float tile[SIDE][WIDE + 1];
  const i32 lane = threadIdx.x, line = threadIdx.y;
  const i64 parts = (p.piece + WIDE - 1) / WIDE;
  const i64 row = (i64)blockIdx.y * SIDE, chunk = blockIdx.x / parts;
  const i64 term = (blockIdx.x - chunk * parts) * WIDE;
  const i64 first = p.first + chunk * p.piece + term;
  const float* x = p.x + blockIdx.z * p.stack_step;
  const bool along = p.term_step == 1;
  for (i32 i = line; i < (along ? 2 * SIDE : WIDE); i += LINES) {
    const i32 r = along ? i / 2 : lane, t = along ? i % 2 * SIDE + lane : i;
    const bool inside = row + r < p.rows && first + t < p.terms;
    tile[r][t] = inside ? x[(row + r) * p.row_step + (first + t) * p.term_step] : 0.f;
  }
  __syncthreads();
  if (term + 2 * lane >= p.piece) return;
  bf16* y = p.y + blockIdx.z * p.stacked + chunk * 6 * p.piece + term + 2 * lane;
  for (i32 r = line; r < SIDE && row + r < p.rows; r += LINES) {
    const Pieces a = split(tile[r][2 * lane]), b = split(tile[r][2 * lane + 1]);
    const Vec<bf16, 2> high = {bf16_of(a.high), bf16_of(b.high)};
    const Vec<bf16, 2> finite = {bf16_of(a.finite_high), bf16_of(b.finite_high)};
    const Vec<bf16, 2> middle = {bf16_of(a.middle), bf16_of(b.middle)};
    const Vec<bf16, 2> low = {bf16_of(a.low), bf16_of(b.low)};
    const i64 piece = p.piece;
    bf16* to = y + (row + r) * p.line;
    store(to, RIGHT ? finite : low);
    store(to + piece, RIGHT ? low : finite);
    store(to + 2 * piece, middle);
    store(to + 3 * piece, RIGHT ? finite : middle);
    store(to + 4 * piece, RIGHT ? middle : finite);
    store(to + 5 * piece, high);
  }
}
