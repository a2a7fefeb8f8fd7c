// Lets g++ compile the device text of symdnn/gpu. host_shim.cc runs its kernels; that is compiled
// once, and this in front of each of them.
#include <math.h>
#include <string.h>

#define SYMDNN_HOST 1
#define __device__
#define __global__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __restrict__
#define __launch_bounds__(...)

struct dim3_ { unsigned x, y, z; };
extern dim3_ blockIdx, blockDim, gridDim;
extern dim3_* shim_thread;
extern int shim_running;  // the number of the thread that runs
#define threadIdx (*shim_thread)
void __syncthreads();
extern "C" int shim_emulate(void (*kernel)(const void*), const void* parameters,
                            const unsigned* grid, const unsigned* block, int barriers);

// -- instructions of the device ------------------------------------------------------------------

template <class To, class From> static To shim_bits(From x) {
  To y;
  static_assert(sizeof(To) == sizeof(From), "");
  memcpy(&y, &x, sizeof y);
  return y;
}
struct f16;
struct bf16;
static inline float float_of(f16 h);
static inline f16 f16_of(float x);
static inline f16 f16_of(double x);
static inline bf16 bf16_of(float x);
static inline float float_of_bits(unsigned bits) { return shim_bits<float>(bits); }
static inline double double_of_bits(unsigned long long bits) { return shim_bits<double>(bits); }
static inline unsigned long long high_product(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline int __float_as_int(float x) { int n; __builtin_memcpy(&n, &x, 4); return n; }
static inline float __int_as_float(int n) { float x; __builtin_memcpy(&x, &n, 4); return x; }
static inline void __threadfence() {}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)((((unsigned long long)high << 32) | low) >> (shift & 31));
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long all = ((unsigned long long)high << 32) | low;
  unsigned found = 0;
  for (int i = 0; i < 4; i++) found |= (unsigned)(all >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return found;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> static T atomicCAS(T* p, T expected, T value) {
  T old = *p;
  if (old == expected) *p = value;
  return old;
}
template <class T> static T atomicAdd(T* p, T value) {
  T old = *p;
  *p = old + value;
  return old;
}
template <class T> static T atomicMax(T* p, T value) {
  T old = *p;
  if (value > old) *p = value;
  return old;
}

// -- functions that CUDA has and C has not --------------------------------------------------------

static double erfcx(double x) {
  if (x < 20) return (double)(expl((long double)x * x) * erfcl(x));
  double u = 1 / (2 * x * x);
  return (1 - u * (1 - 3 * u * (1 - 5 * u))) / (x * 1.7724538509055160273);
}
static double erfcinv(double y) {
  if (!(y >= 0 && y <= 2)) return NAN;
  if (y == 0 || y == 2) return y == 0 ? INFINITY : -INFINITY;
  if (y > 1) return -erfcinv(2 - y);
  double low = 0, high = 30;
  for (int i = 0; i < 200; i++) {
    double middle = 0.5 * (low + high);
    (erfc(middle) > y ? low : high) = middle;
  }
  return 0.5 * (low + high);
}
static double erfinv(double y) {
  if (fabs(y) > 1) return NAN;
  if (fabs(y) > 0.5) return y > 0 ? erfcinv(1 - y) : -erfcinv(1 + y);
  double x = y * 0.88622692545275801365;
  for (int i = 0; i < 8; i++) x -= (erf(x) - y) / (1.1283791670955125739 * exp(-x * x));
  return x;
}
static double normcdf(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static float normcdff(float x) { return (float)normcdf(x); }
static double normcdfinv(double p) { return -1.4142135623730950488 * erfcinv(2 * p); }
static float erfcxf(float x) { return (float)erfcx(x); }
static float erfinvf(float x) { return (float)erfinv(x); }
static float erfcinvf(float x) { return (float)erfcinv(x); }
static void sincospi(double x, double* s, double* c) {
  long double angle = 3.14159265358979323846264338327950288L * x;
  *s = (double)sinl(angle);
  *c = (double)cosl(angle);
}

// -- shuffles --------------------------------------------------------------------------------------

// All threads of the block come to a shuffle together, as device text of ours does.
template <class T> static T shim_shuffled(T value, int other) {
  static char slots[1024][16];
  const int me = shim_running;
  memcpy(slots[me], &value, sizeof value);
  __syncthreads();
  memcpy(&value, slots[(me & ~31) | other], sizeof value);
  __syncthreads();
  return value;
}
template <class T> static T __shfl_xor_sync(unsigned, T value, int mask) {
  return shim_shuffled(value, (shim_running ^ mask) & 31);
}
template <class T> static T __shfl_sync(unsigned, T value, int lane) {
  return shim_shuffled(value, lane & 31);
}
template <class T> static T __shfl_up_sync(unsigned, T value, int distance) {
  const int lane = shim_running & 31;
  return shim_shuffled(value, lane >= distance ? lane - distance : lane);
}

static unsigned __ballot_sync(unsigned, bool on) {
  static bool all[1024];
  const int first = shim_running & ~31;
  all[shim_running] = on;
  __syncthreads();
  unsigned found = 0;
  for (int lane = 0; lane < 32; lane++) found |= (unsigned)all[first + lane] << lane;
  __syncthreads();
  return found;
}
static void __syncwarp() { __syncthreads(); }

// mma.m16n8k16 of float16 numbers.
static float shim_half(unsigned both, int second) {
  return (float)shim_bits<_Float16>((unsigned short)(second ? both >> 16 : both));
}
static void shim_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static unsigned of_a[1024][4], of_b[1024][2];
  const int me = shim_running, warp = me & ~31, g = (me & 31) / 4, t = me & 3;
  memcpy(of_a[me], a, sizeof a);
  of_b[me][0] = b0, of_b[me][1] = b1;
  __syncthreads();
  for (int k = 0; k < 16; k++)
    for (int n = 0; n < 4; n++) {
      const unsigned row = of_a[warp + g * 4 + k % 8 / 2][n / 2 + k / 8 * 2];
      const unsigned column = of_b[warp + (2 * t + n % 2) * 4 + k % 8 / 2][k / 8];
      c[n] += shim_half(row, k % 2) * shim_half(column, k % 2);
    }
  __syncthreads();
}

// ldmatrix of four matrices.
static void shim_load_matrices(unsigned (&to)[4], const unsigned short* row, bool of_column) {
  static const unsigned short* rows[1024];
  const int me = shim_running, warp = me & ~31, g = (me & 31) / 4, t = me & 3;
  rows[me] = row;
  __syncthreads();
  for (int m = 0; m < 4; m++) {
    const unsigned short* const* const lines = &rows[warp + 8 * m];
    const unsigned first = of_column ? lines[2 * t][g] : lines[g][2 * t];
    to[m] = first | (unsigned)(of_column ? lines[2 * t + 1][g] : lines[g][2 * t + 1]) << 16;
  }
  __syncthreads();
}
