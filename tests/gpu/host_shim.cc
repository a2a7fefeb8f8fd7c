// Runs a kernel of device text block after block on a CPU. The threads of a block are coroutines
// that change over at __syncthreads, so a barrier that not all threads reach, or a missing one,
// shows as it would on a device (or as a wrong result).
#include <stdlib.h>
#include <ucontext.h>

#include "host_shim.h"

dim3_ blockIdx, blockDim, gridDim;
dim3_* shim_thread;
int shim_running;

static ucontext_t shim_scheduler;
struct shim_fiber {
  ucontext_t context;
  dim3_ thread;
  char* stack;
  bool done;
  long waits;
};
static shim_fiber* shim_fibers;
static void (*shim_kernel)(const void*);
static const void* shim_parameters;
// Whether the last thread of a block comes first between two barriers.
extern "C" int shim_backwards;
int shim_backwards = 0;
// Accesses at addresses that are no multiples of their size. Compilers call the function before one.
extern "C" int shim_misaligned;
int shim_misaligned = 0;
extern "C" void __ubsan_handle_type_mismatch_v1(void*, unsigned long) { shim_misaligned++; }

void __syncthreads() {
  shim_fibers[shim_running].waits++;
  swapcontext(&shim_fibers[shim_running].context, &shim_scheduler);
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
