// The elementwise steps of the exponential of matrices (n rows each), by Pade approximation with
// scaling and squaring. T is float or double; a complex number is PARTS = 2 of them.

struct Parameters {
  const T* x;
  const T* second;
  const T* third;
  T* y;
  T* z;
  i32* squarings;
  i32* info;
  i64 count, n, step;
  // The largest norm that is not scaled, or factors: of the identity, x, second and third in y,
  // then in z.
  double bound, factors[8];
};

#define EACH(i, total) for (i64 i = global_thread(); i < (total); i += thread_count())

// For each matrix: how often 2 divides its 1-norm until it is within the bound, and a status where
// it is not finite. A block takes a matrix.
extern "C" __global__ void __launch_bounds__(256) norms(
    const __grid_constant__ Parameters p) {
  __shared__ T found[256];
  for (i64 b = blockIdx.x; b < p.count; b += gridDim.x) {
    const T* x = p.x + b * p.n * p.n * PARTS;
    T most = 0;
    for (i64 j = threadIdx.x; j < p.n; j += blockDim.x) {
      T sum = 0;
      for (i64 i = 0; i < p.n; i++) {
        const T* at = x + (i * p.n + j) * PARTS;
        const T re = at[0] < 0 ? -at[0] : at[0];
        sum += PARTS == 1 ? re : (T)hypot((double)at[0], (double)at[PARTS - 1]);
      }
      if (!(sum <= most)) most = sum;  // a NaN stays
      if (most != most) break;
    }
    __syncthreads();
    found[threadIdx.x] = most;
    __syncthreads();
    if (threadIdx.x != 0) continue;
    for (i64 t = 1; t < blockDim.x && most == most; t++)
      if (!(found[t] <= most)) most = found[t];
    const bool finite = most - most == 0;
    i32 power = 0;
    if (finite && most > 0) frexp((double)most / p.bound, &power);
    p.squarings[b] = power > 0 ? power : 0;
    p.info[b] = !finite;
  }
}

// y = x * 2**-squarings, or 0 where x is not finite.
extern "C" __global__ void __launch_bounds__(256) scaled(
    const __grid_constant__ Parameters p) {
  const i64 size = p.n * p.n * PARTS;
  EACH(i, p.count * size) {
    const i64 b = i / size;
    p.y[i] = p.info[b] ? (T)0 : (T)ldexp((double)p.x[i], -p.squarings[b]);
  }
}

// y and z: sums of the identity, x, second and third with their factors.
extern "C" __global__ void __launch_bounds__(256) sums(
    const __grid_constant__ Parameters p) {
  const i64 size = p.n * p.n;
  EACH(i, p.count * size) {
    const bool diagonal = i % size / p.n == i % p.n;
    for (i32 k = 0; k < PARTS; k++) {
      const i64 at = i * PARTS + k;
      const T one = diagonal && k == 0, a = p.x[at], b = p.second[at], c = p.third[at];
      const double* f = p.factors;
      p.y[at] = (T)f[0] * one + (T)f[1] * a + (T)f[2] * b + (T)f[3] * c;
      p.z[at] = (T)f[4] * one + (T)f[5] * a + (T)f[6] * b + (T)f[7] * c;
    }
  }
}

// y = second - x, z = second + x.
extern "C" __global__ void __launch_bounds__(256) sides(
    const __grid_constant__ Parameters p) {
  EACH(i, p.count * p.n * p.n * PARTS) {
    const T odd = p.x[i], even = p.second[i];
    p.y[i] = even - odd;
    p.z[i] = even + odd;
  }
}

// y = x for the matrices that are squared more than `step` times.
extern "C" __global__ void __launch_bounds__(256) squared(
    const __grid_constant__ Parameters p) {
  const i64 size = p.n * p.n * PARTS;
  EACH(i, p.count * size) if (p.squarings[i / size] > p.step) p.y[i] = p.x[i];
}
