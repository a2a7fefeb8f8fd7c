// Random draws: y and the next state from a state (key, counter). T is the type of the values, P
// that of parameters. KIND 0: uniform, 1: normal, 2: truncated normal, 3: bernoulli, 4: integers,
// 5: 64-bit words, 6: categorical, 7: multinomial, 8: exponential race, 9: dropout's mask, 10:
// uniform of 52 bits, 11: logarithms of gamma variates, 12: von Mises, 13: Poisson. BITS is the precision of the uniforms.

struct Parameters {
  const u64* state;
  u64* next;
  T* y;
  const P* a;   // probabilities, lower bounds
  const P* b;   // upper bounds
  i64 count, drawn, classes, class_step, draws;
  i32* error_word;
  i64 node;
  i64 size[D], a_step[D], b_step[D];
};

INLINE void advance(const Parameters& p) {
  if (p.next != 0 && global_thread() == 0) {
    p.next[0] = p.state[0];
    p.next[1] = p.state[1] + (u64)p.drawn;
  }
}

#define EACH(n, total) for (i64 n = global_thread(); n < (total); n += thread_count())

#if KIND == 0 || KIND == 3 || KIND == 9
#if KIND == 9
INLINE double threshold(const Parameters& p, i64 n) { return (1.0 - (double)*p.a) * 0x1p32; }
#elif KIND == 3
INLINE double threshold(const Parameters& p, i64 n) {
  return (double)widen(p.a[place((u64)n, p.size, p.a_step)]) * 0x1p32;
}
#endif
INLINE T value(const Parameters& p, i64 n, u32 word) {
#if KIND == 0
  return convert<T>(open_cells(word, BITS));
#else
  return convert<T>((double)word < threshold(p, n));
#endif
}
// A thread computes the four words of a block, which may begin before the first element.
extern "C" __global__ void __launch_bounds__(256) draw(const __grid_constant__ Parameters p) {
  const u64 key = p.state[0], counter = p.state[1];
  const i64 skip = (i64)(counter % 4), blocks = (skip + p.count + 3) / 4;
  EACH(b, blocks) {
    const Words w = philox(counter / 4 + (u64)b, 1, key);
    const i64 first = 4 * b - skip;
#pragma unroll
    for (int lane = 0; lane < 4; lane++)
      if (first + lane >= 0 && first + lane < p.count)
        p.y[first + lane] = value(p, first + lane, w.v[lane]);
  }
  advance(p);
}

#elif KIND == 1
// Pairs of normal values by Box and Muller; an odd counter begins with the second of a pair.
extern "C" __global__ void __launch_bounds__(256) draw(const __grid_constant__ Parameters p) {
  const u64 key = p.state[0], counter = p.state[1];
  const i64 odd = (i64)(counter & 1), pairs = (odd + p.count + 1) / 2;
  EACH(j, pairs) {
#if BITS == 52
    const Words w = philox((counter - (u64)odd) / 2 + (u64)j, 2, key);
    const double u = open52((u64)w.v[0] | (u64)w.v[1] << 32);
    const double v = open52((u64)w.v[2] | (u64)w.v[3] << 32);
#else
    i32 lane;
    const u64 block = block_of<1>(counter - (u64)odd, (u64)(2 * j), &lane);
    const Words w = philox(block, 1, key);
    const double u = fine_uniform(w.v[lane]), v = fine_uniform(w.v[lane + 1]);
#endif
    const double radius = sqrt(-2 * log(u));
    double sine, cosine;
    sincospi(2 * v, &sine, &cosine);
    const i64 at = 2 * j - odd;
    if (at >= 0) p.y[at] = convert<T>(radius * cosine);
    if (at + 1 < p.count) p.y[at + 1] = convert<T>(radius * sine);
  }
  advance(p);
}

#elif KIND == 6 || KIND == 7
// The first class whose cumulated weight exceeds u times the sum of all.
INLINE i64 pick(const Parameters& p, const P* weights, double u) {
  double total = 0;
  i64 last = -1;
  bool sound = true;
  for (i64 c = 0; c < p.classes; c++) {
    const double w = (double)widen(weights[c * p.class_step]);
    sound = sound && w >= 0;
    if (w > 0) last = c;
    total += w;
  }
  if (!sound || !(total > 0)) {
    report(p.error_word, WEIGHT_ERROR, p.node, 0, p.classes);
    return 0;
  }
  double sofar = 0;
  for (i64 c = 0; c < last; c++) {
    sofar += (double)widen(weights[c * p.class_step]);
    if (sofar > u * total) return c;
  }
  return last;
}
extern "C" __global__ void __launch_bounds__(256) draw(const __grid_constant__ Parameters p) {
  const u64 key = p.state[0], counter = p.state[1];
  EACH(n, p.count) {
    const P* weights = p.a + place((u64)n, p.size, p.a_step);
#if KIND == 6
    p.y[n] = convert<T>(pick(p, weights, open52(word64_of(key, counter, (u64)n))));
#else
    for (i64 c = 0; c < p.classes; c++) p.y[n * p.classes + c] = convert<T>(0);
    for (i64 j = 0; j < p.draws; j++) {
      const u64 element = (u64)(n * p.draws + j);
      const i64 at = n * p.classes + pick(p, weights, open52(word64_of(key, counter, element)));
      p.y[at] = convert<T>(widen(p.y[at]) + 1);
    }
#endif
  }
  advance(p);
}

#else
INLINE T value(const Parameters& p, i64 n, u64 key, u64 counter) {
#if KIND == 10
  return convert<T>(open52(word64_of(key, counter, (u64)n)));
#elif KIND == 2
#if BITS == 52
  const double u = open52(word64_of(key, counter, (u64)n));
#else
  const double u = open_cells(word_of(key, counter, (u64)n), 23);
#endif
  const double low = 0.022750131948179195;  // below -2
  return convert<T>(normcdfinv(low + u * (1 - 2 * low)));
#elif KIND == 4
  const i64 low = p.a[place((u64)n, p.size, p.a_step)], high = p.b[place((u64)n, p.size, p.b_step)];
  if (low >= high) {
    report(p.error_word, RANGE_ERROR, p.node, low, high);
    return convert<T>(low);
  }
  const u64 offset = high_product(word64_of(key, counter, (u64)n), (u64)high - (u64)low);
  return convert<T>((i64)((u64)low + offset));
#elif KIND == 5
  return word64_of(key, counter, (u64)n);
#elif KIND == 11 || KIND == 12
  const double parameter = (double)widen(p.a[place((u64)n, p.size, p.a_step)]);
#if KIND == 11
  return convert<T>(log_gamma_draw(parameter, counter + (u64)n, key));
#else
  return convert<T>(von_mises_draw(parameter, counter + (u64)n, key));
#endif
#elif KIND == 13
  const double rate = (double)widen(p.a[place((u64)n, p.size, p.a_step)]);
  if (!(rate >= 0 && rate < 1e15)) {
    report(p.error_word, RATE_ERROR, p.node, 0, 0);
    return convert<T>(0);
  }
  return convert<T>(poisson_quantile(rate, open52(word64_of(key, counter, (u64)n))));
#else
  const double w = (double)widen(p.a[place((u64)n, p.size, p.a_step)]);
  if (n % p.classes == 0) {  // the thread of a row's first class checks that there are enough
    i64 possible = 0;
    for (i64 c = 0; c < p.classes; c++)
      possible += widen(p.a[place((u64)(n + c), p.size, p.a_step)]) > 0;
    if (possible < p.draws) report(p.error_word, WEIGHT_ERROR, p.node, possible, p.draws);
  }
  return -log(open52(word64_of(key, counter, (u64)n))) / (w > 0 ? w : 0.0);
#endif
}
extern "C" __global__ void __launch_bounds__(256) draw(const __grid_constant__ Parameters p) {
  const u64 key = p.state[0], counter = p.state[1];
  EACH(n, p.count) p.y[n] = value(p, n, key, counter);
  advance(p);
}
#endif
