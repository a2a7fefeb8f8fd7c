// Softmax of short rows whose length is no multiple of a vector: a block copies LINES rows of N
// elements through shared memory, so that global memory is read and written in vectors. A thread
// computes one row.

struct Parameters { const T* x; const T* dy; T* y; i64 rows; };

#define BYTES (LINES * N * (i32)sizeof(T))

INLINE void copied(void* to, const void* from, i32 nbytes) {
  const i32 vectors = nbytes / 16;
  for (i32 i = threadIdx.x; i < vectors; i += LINES) ((bytes16*)to)[i] = ((const bytes16*)from)[i];
  const i32 start = vectors * (i32)(16 / sizeof(T)), count = nbytes / (i32)sizeof(T);
  for (i32 i = start + threadIdx.x; i < count; i += LINES) ((T*)to)[i] = ((const T*)from)[i];
}

extern "C" __global__ void __launch_bounds__(LINES) softmax_tile(
    const __grid_constant__ Parameters p) {
  __shared__ bytes16 shared[BYTES / 16], dshared[GRADIENT ? BYTES / 16 : 1];
  T* mine = (T*)shared + threadIdx.x * N;
  const T* dmine = (const T*)dshared + threadIdx.x * N;
  for (i64 tile = (i64)blockIdx.x * LINES; tile < p.rows; tile += (i64)gridDim.x * LINES) {
    const i32 rows = p.rows - tile < LINES ? (i32)(p.rows - tile) : LINES;
    const i32 nbytes = rows * N * (i32)sizeof(T);
    copied(shared, p.x + tile * N, nbytes);
    if (GRADIENT) copied(dshared, p.dy + tile * N, nbytes);
    __syncthreads();
    if ((i32)threadIdx.x < rows) {
      W x[N], dy[GRADIENT ? N : 1];
#pragma unroll
      for (i32 k = 0; k < N; k++) {
        x[k] = convert<W>(mine[k]);
        if (GRADIENT) dy[k] = convert<W>(dmine[k]);
      }
      softmax_of<Alone>(x, dy, N);
#pragma unroll
      for (i32 k = 0; k < N; k++) mine[k] = convert<T>(x[k]);
    }
    __syncthreads();
    copied(p.y + tile * N, shared, nbytes);
    __syncthreads();
  }
}
