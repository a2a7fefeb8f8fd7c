// Draws by rejection, the same as those of symdnn.ops.random.rejection: proposal t of an element
// reads the words of the block with the counter (element, tag, t). After philox.cuh, special.cuh.

#define MOST_PROPOSALS 1000

INLINE double open_of_two(u32 low, u32 high) { return open52((u64)low | (u64)high << 32); }

// The logarithm of a gamma variate of this shape (Marsaglia and Tsang 2000).
static __device__ double log_gamma_draw(double shape, u64 element, u64 key) {
  if (shape == 0) return -INF_d;
  if (!(shape > 0 && shape < INF_d)) return NAN_d;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * d);
  double found = NAN_d;
  for (u32 t = 1; t < MOST_PROPOSALS; t++) {
    const Words w = philox(element, 0x6A, key, t);
    const double z = normcdfinv(open_of_two(w.v[0], w.v[1])), log_v = 3 * log1p(z * c);
    if (log(open_of_two(w.v[2], w.v[3])) < 0.5 * z * z + d * (log_v - expm1(log_v))) {
      found = log(d) + log_v;
      break;
    }
  }
  if (shape >= 1) return found;
  const Words w = philox(element, 0x6A, key);
  return found + log(open_of_two(w.v[0], w.v[1])) / shape;
}

// An angle of von Mises' distribution of mean 0 (Best and Fisher 1979).
static __device__ double von_mises_draw(double concentration, u64 element, u64 key) {
  if (!(concentration >= 0 && concentration < INF_d)) return NAN_d;
  const double k = fmax(concentration, 1e-9), tau = 1 + sqrt(1 + 4 * k * k);
  const double rho = (tau - sqrt(2 * tau)) / (2 * k);
  const double over = k < 1e-4 ? 1 / k + k - 1 : (1 - rho) * (1 - rho) / (2 * rho);
  for (u32 t = 1; t < MOST_PROPOSALS; t++) {
    const Words w = philox(element, 0x76, key, t);
    const double sine = sin(0.5 * PI * open_of_two(w.v[0], w.v[1])), rest = 2 * sine * sine;
    const double part = over * rest / (over + 2 - rest), c = k * (over + part);
    const double u = ((double)w.v[2] + 0.5) * 0x1p-32;
    if (c * (2 - c) > u || log(c / u) + 1 - c >= 0) {
      const double angle = 2 * asin(sqrt(fmin(part / 2, 1.0)));
      return w.v[3] >> 31 ? angle : -angle;
    }
  }
  return NAN_d;
}

// The least number whose probability (of that and all below) is u or more.
static __device__ double poisson_quantile(double rate, double u) {
  if (u <= exp(-rate)) return 0;
  // By its normal approximation, corrected by Cornish and Fisher's first term; then step by step.
  const double z = normcdfinv(u);
  double k = fmax(floor(rate + sqrt(rate) * z + (z * z - 1) / 6), 0.0);
  while (gammaincc(k + 1, rate) < u) k += 1;
  while (k > 0 && gammaincc(k, rate) >= u) k -= 1;
  return k;
}
