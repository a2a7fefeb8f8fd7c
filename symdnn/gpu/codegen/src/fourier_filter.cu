// The gradient of a convolution's filters by Fourier transforms of whole images, 32 x 32 numbers.
//
// A frequency of the gradient is the product of two matrices over the images of the batch, one of
// complex numbers: DW = X conj(DY). Tensor cores multiply it in float16. A number is scaled by a
// power of two and split into two of float16, high + low; a product of two is low high + high low +
// high high. The real and the imaginary part are sums of four such products:
//   Re = Xr Dr + Xi Di, Im = Xi Dr - Xr Di.
// So a sum has six parts for each image, in the order (piece, part, image). The matrix of DY has the
// parts Dr, Di, that of X (ROLE 1) rows for Re with Xr, Xi, and rows for Im with Xi, -Xr.
//
// HEIGHT x WIDTH is the size of images of x or dy, FILTER_HEIGHT x FILTER_WIDTH that of filters,
// BEFORE_HEIGHT and BEFORE_WIDTH are the zeros before. A block has CHANNELS channels of an image.

struct Parameters {
  const float* x; // (images, channels, HEIGHT, WIDTH); frequencies of the gradient for `filters`
  void* y;        // (frequencies, 6 images, channels) or twice the channels; the filters
  u32* largest;   // the bits of the largest numbers without sign of x and dy
  i64 size, images, channels, kernels;
};

#define SIDE 32
#define HALF 17

// -- scales ----------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256) largest(const __grid_constant__ Parameters p) {
  __shared__ u32 found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  u32 own = 0;
  const i64 whole = p.size / 4;
  for (i64 i = global_thread(); i < whole; i += thread_count()) {
    const Vec<float, 4> x = load<4>(p.x + 4 * i);
#pragma unroll
    for (i32 j = 0; j < 4; j++) {
      const u32 bits = (u32)__float_as_int(x.v[j]) & 0x7fffffffu;
      own = bits > own ? bits : own;
    }
  }
  for (i64 i = 4 * whole + global_thread(); i < p.size; i += thread_count()) {
    const u32 bits = (u32)__float_as_int(p.x[i]) & 0x7fffffffu;
    own = bits > own ? bits : own;
  }
  if (own) atomicMax(&found, own);
  __syncthreads();
  if (threadIdx.x == 0 && found) atomicMax(p.largest + ROLE, found);
}

// A power of two by which no frequency of 1024 numbers is larger than float16's largest.
INLINE float scale_of(const u32 bits) {
  const i32 exponent = (i32)(bits >> 23);
  if (exponent == 0 || exponent == 255) return 1.f;
  const i32 scale = 127 + 4 - (exponent - 126);
  return float_of_bits((u32)(scale < 1 ? 1 : scale > 254 ? 254 : scale) << 23);
}

// -- transforms of 32 numbers, of which number i is at place reversed(i) afterwards -----------------

static __device__ const float COSINES[SIDE] = {
  1.f, 0.98078528040323f, 0.92387953251129f, 0.83146961230255f, 0.70710678118655f,
  0.55557023301960f, 0.38268343236509f, 0.19509032201613f, 0.f, -0.19509032201613f,
  -0.38268343236509f, -0.55557023301960f, -0.70710678118655f, -0.83146961230255f,
  -0.92387953251129f, -0.98078528040323f, -1.f, -0.98078528040323f, -0.92387953251129f,
  -0.83146961230255f, -0.70710678118655f, -0.55557023301960f, -0.38268343236509f,
  -0.19509032201613f, 0.f, 0.19509032201613f, 0.38268343236509f, 0.55557023301960f,
  0.70710678118655f, 0.83146961230255f, 0.92387953251129f, 0.98078528040323f,
};
INLINE float cosine(const i32 i) { return COSINES[i & 31]; }
INLINE float sine(const i32 i) { return COSINES[(i + 24) & 31]; }

INLINE constexpr i32 reversed(const i32 i) {
  return (i & 1) << 4 | (i & 2) << 2 | (i & 4) | (i & 8) >> 2 | (i & 16) >> 4;
}

template <i32 H> INLINE void stage(float (&re)[SIDE], float (&im)[SIDE]) {
  const float c[16] = {
    1.f, 0.98078528040323f, 0.92387953251129f, 0.83146961230255f, 0.70710678118655f,
    0.55557023301960f, 0.38268343236509f, 0.19509032201613f, 0.f, -0.19509032201613f,
    -0.38268343236509f, -0.55557023301960f, -0.70710678118655f, -0.83146961230255f,
    -0.92387953251129f, -0.98078528040323f,
  };
#pragma unroll
  for (i32 i = 0; i < 16; i++) {
    const i32 j = i % H, a = i / H * 2 * H + j, b = a + H, w = j * (16 / H);
    const float r = re[a] - re[b], s = im[a] - im[b];
    re[a] += re[b], im[a] += im[b];
    if (w == 0) {
      re[b] = r, im[b] = s;
    } else if (w == 8) {
      re[b] = s, im[b] = -r;
    } else {
      const float sine_w = w < 8 ? c[8 - w] : c[w - 8];
      re[b] = r * c[w] + s * sine_w, im[b] = s * c[w] - r * sine_w;
    }
  }
}
INLINE void transform(float (&re)[SIDE], float (&im)[SIDE]) {
  stage<16>(re, im), stage<8>(re, im), stage<4>(re, im), stage<2>(re, im), stage<1>(re, im);
}

// -- images to frequencies ---------------------------------------------------------------------------

#ifdef SYMDNN_HOST
static bytes16 dynamic_shared[CHANNELS * HALF * (SIDE + 1) * 8 / 16];
#else
extern __shared__ bytes16 dynamic_shared[];
#endif

// Both float16 numbers of a float32 number: high in the low bits.
INLINE u32 halves(const float x) {
  const f16 high = f16_of(x), low = f16_of(x - float_of(high));
  return (u32)high.bits | (u32)low.bits << 16;
}
INLINE u32 highs(const u32 a, const u32 b) { return (a & 0xffffu) | b << 16; }
INLINE u32 lows(const u32 a, const u32 b) { return a >> 16 | (b & 0xffff0000u); }

// The rows of two lines are one complex transform. Then a thread has a column of frequencies.
extern "C" __global__ void __launch_bounds__(CHANNELS * HALF, BLOCKS)
images_to_frequencies(const __grid_constant__ Parameters p) {
  float* staged = (float*)dynamic_shared;
  const i32 thread = threadIdx.x;
  const i64 image = blockIdx.y, first = (i64)blockIdx.x * CHANNELS;
  const float* x = p.x + (image * p.channels + first) * (HEIGHT * WIDTH);
  for (i32 i = thread; i < CHANNELS * HEIGHT * WIDTH / 4; i += CHANNELS * HALF)
    store(staged + 4 * i, load<4>(x + 4 * i));
  __syncthreads();
  float re[SIDE], im[SIDE];
  const i32 own = thread / 16, line = 2 * (thread % 16);
  const bool rows = thread < CHANNELS * 16;
  if (rows) {
    const float* from = staged + own * (HEIGHT * WIDTH) + line * WIDTH;
#pragma unroll
    for (i32 j = 0; j < SIDE; j++) {
      re[j] = line < HEIGHT && j < WIDTH ? from[j] : 0.f;
      im[j] = line + 1 < HEIGHT && j < WIDTH ? from[WIDTH + j] : 0.f;
    }
  }
  __syncthreads();
  bytes8* half = (bytes8*)dynamic_shared;
  if (rows) {
    if (line < HEIGHT) transform(re, im);
    bytes8* to = half + own * (HALF * (SIDE + 1)) + line;
#pragma unroll
    for (i32 v = 0; v < HALF; v++) {
      const i32 a = reversed(v), b = reversed((SIDE - v) & 31);
      const float parts[4] = {0.5f * (re[a] + re[b]), 0.5f * (im[a] - im[b]),
                              0.5f * (im[a] + im[b]), 0.5f * (re[b] - re[a])};
      to[v * (SIDE + 1)] = {{(u32)__float_as_int(parts[0]), (u32)__float_as_int(parts[1])}};
      to[v * (SIDE + 1) + 1] = {{(u32)__float_as_int(parts[2]), (u32)__float_as_int(parts[3])}};
    }
  }
  __syncthreads();
  const i32 channel = thread % CHANNELS, v = thread / CHANNELS, odd = channel & 1;
  const bytes8* from = half + (channel * HALF + v) * (SIDE + 1);
#pragma unroll
  for (i32 j = 0; j < SIDE; j++) {
    const bytes8 a = from[j];
    re[j] = float_of_bits(a.v[0]), im[j] = float_of_bits(a.v[1]);
  }
  transform(re, im);
  const float scale = scale_of(p.largest[ROLE]);
  const i64 row = p.channels * (1 + ROLE), part = p.images * row, piece = 2 * part;
  f16* y = (f16*)p.y + image * row + first + channel - odd;
  // Neighbours exchange numbers, so that each stores two channels of every other frequency.
#pragma unroll
  for (i32 u = 0; u < SIDE; u += 2) {
    u32 a[2], b[2];
#pragma unroll
    for (i32 i = 0; i < 2; i++) {
      a[i] = halves(re[reversed(u + i)] * scale), b[i] = halves(im[reversed(u + i)] * scale);
    }
    const u32 ga = __shfl_xor_sync(0xffffffffu, odd ? a[0] : a[1], 1);
    const u32 gb = __shfl_xor_sync(0xffffffffu, odd ? b[0] : b[1], 1);
    const u32 ra = odd ? ga : a[0], rb = odd ? a[1] : ga, ia = odd ? gb : b[0], ib = odd ? b[1] : gb;
    f16* to = y + (v * SIDE + u + odd) * 3 * piece;
    const u32 high_re = highs(ra, rb), high_im = highs(ia, ib);
    const u32 low_re = lows(ra, rb), low_im = lows(ia, ib);
#pragma unroll
    for (i32 i = 0; i < 3; i++, to += piece) {
      const u32 r = i == 1 - ROLE ? low_re : high_re, s = i == 1 - ROLE ? low_im : high_im;
      *(u32*)to = r, *(u32*)(to + part) = s;
      if (ROLE) *(u32*)(to + p.channels) = s, *(u32*)(to + part + p.channels) = r ^ 0x80008000u;
    }
  }
}

// -- frequencies to filters --------------------------------------------------------------------------

#define LANES 32

// A thread transforms a column of frequencies of one filter, at the rows that filters have.
extern "C" __global__ void __launch_bounds__(LANES * HALF)
frequencies_to_filters(const __grid_constant__ Parameters p) {
  __shared__ float columns[HALF][2 * FILTER_HEIGHT][LANES];
  const i32 lane = threadIdx.x % LANES, v = threadIdx.x / LANES;
  const i64 size = p.channels * p.kernels, first = (i64)blockIdx.x * LANES, filter = first + lane;
  if (filter < size) {
    const float* z = p.x + (i64)v * SIDE * 2 * size + filter;
    float re[FILTER_HEIGHT], im[FILTER_HEIGHT];
#pragma unroll
    for (i32 a = 0; a < FILTER_HEIGHT; a++) re[a] = im[a] = 0.f;
#pragma unroll 8
    for (i32 u = 0; u < SIDE; u++) {
      const float r = z[2 * u * size], s = z[(2 * u + 1) * size];
#pragma unroll
      for (i32 a = 0; a < FILTER_HEIGHT; a++) {
        const i32 turn = u * (a - BEFORE_HEIGHT);
        const float c = cosine(turn), d = sine(turn);
        re[a] += r * c - s * d, im[a] += r * d + s * c;
      }
    }
#pragma unroll
    for (i32 a = 0; a < FILTER_HEIGHT; a++)
      columns[v][2 * a][lane] = re[a], columns[v][2 * a + 1][lane] = im[a];
  }
  __syncthreads();
  const float scale = 1.f / (1024.f * scale_of(p.largest[0])) / scale_of(p.largest[1]);
  const i32 taps = FILTER_HEIGHT * FILTER_WIDTH;
  for (i32 i = threadIdx.x; i < taps * LANES; i += LANES * HALF) {
    const i32 own = i / taps, tap = i - own * taps, a = tap / FILTER_WIDTH, b = tap % FILTER_WIDTH;
    if (first + own >= size) continue;
    float sum = 0.f;
    for (i32 w = 0; w < HALF; w++) {
      const i32 turn = w * (b - BEFORE_WIDTH);
      const float c = cosine(turn), d = sine(turn), twice = w == 0 || w == 16 ? 1.f : 2.f;
      sum += twice * (columns[w][2 * a][own] * c - columns[w][2 * a + 1][own] * d);
    }
    const i64 channel = (first + own) / p.kernels, kernel = first + own - channel * p.kernels;
    float* y = (float*)p.y + (kernel * p.channels + channel) * taps;
    y[FLIP ? taps - 1 - tap : tap] = sum * scale;
  }
}
