// Lets g++ compile the device text of symdnn/gpu, and runs its kernels block after block on a CPU.
// The threads of a block are coroutines that change over at __syncthreads, so a barrier that not
// all threads reach, or a missing one, shows as it would on a device (or as a wrong result).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

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
static dim3_ blockIdx, blockDim, gridDim;
static dim3_* shim_thread;
#define threadIdx (*shim_thread)

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

// -- running a block ------------------------------------------------------------------------------

static ucontext_t shim_scheduler;
static ucontext_t* shim_current;
struct shim_fiber {
  ucontext_t context;
  dim3_ thread;
  char* stack;
  bool done;
  long waits;
};
static shim_fiber* shim_fibers;
static int shim_running;
static void (*shim_kernel)(const void*);
static const void* shim_parameters;
// Whether the last thread of a block comes first between two barriers.
extern "C" int shim_backwards;
int shim_backwards = 0;

static void __syncthreads() {
  shim_fibers[shim_running].waits++;
  swapcontext(&shim_fibers[shim_running].context, &shim_scheduler);
}
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
static void shim_enter() {
  shim_kernel(shim_parameters);
  shim_fibers[shim_running].done = true;
}

static int shim_run_block(int threads, dim3_ block) {
  const size_t stack = 1 << 16;
  for (int t = 0; t < threads; t++) {
    shim_fiber& f = shim_fibers[t];
    f.done = false;
    f.waits = 0;
    f.thread = {t % block.x, t / block.x % block.y, t / (block.x * block.y)};
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = stack;
    f.context.uc_link = &shim_scheduler;
    makecontext(&f.context, shim_enter, 0);
  }
  for (int left = threads; left;) {
    left = 0;
    long waits = -1;
    int arrived = 0;
    for (int i = 0; i < threads; i++) {
      const int t = shim_backwards ? threads - 1 - i : i;
      if (shim_fibers[t].done) continue;
      shim_running = t;
      shim_thread = &shim_fibers[t].thread;
      swapcontext(&shim_scheduler, &shim_fibers[t].context);
      if (shim_fibers[t].done) continue;
      left++;
      arrived++;
      if (waits < 0) waits = shim_fibers[t].waits;
      if (waits != shim_fibers[t].waits) return 1;
    }
    // A barrier that some threads of the block never reach.
    if (arrived && arrived != threads) return 2;
  }
  return 0;
}

extern "C" int shim_emulate(void (*kernel)(const void*), const void* parameters,
                            const unsigned* grid, const unsigned* block, int barriers) {
  const size_t stack = 1 << 16;
  int threads = block[0] * block[1] * block[2], status = 0;
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
  shim_kernel = kernel;
  shim_parameters = parameters;
  if (barriers) {
    shim_fibers = new shim_fiber[threads];
    for (int t = 0; t < threads; t++) shim_fibers[t].stack = (char*)malloc(stack);
  }
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0] && !status; x++) {
        blockIdx = {x, y, z};
        if (barriers) {
          status = shim_run_block(threads, blockDim);
          continue;
        }
        for (int t = 0; t < threads; t++) {
          dim3_ thread = {t % block[0], t / block[0] % block[1], t / (block[0] * block[1])};
          shim_thread = &thread;
          kernel(parameters);
        }
      }
  if (barriers) {
    for (int t = 0; t < threads; t++) free(shim_fibers[t].stack);
    delete[] shim_fibers;
  }
  return status;
}
