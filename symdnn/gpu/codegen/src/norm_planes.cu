// Batch normalisation of planes (NCHW) in one kernel: a cluster of blocks keeps all elements of a
// channel in shared memory while it computes their statistics, so memory is read once. GRADIENT 0:
// y, mean and invstd, with RUNNING the new running values, too; 1: dx, and the gradients of scale
// and shift. T is the type of elements, W the type of computation. A vector has V elements, a block
// THREADS threads.
//
// A plane of p.vectors vectors takes PASSES passes of p.active threads; or a pass takes BESIDE
// planes. A block computes SHARE images in ROUNDS rounds: a thread has a vector for each pass and
// round.

struct Parameters {
  const T* x;
  const T* dy;
  T* y;
  const W* gamma;
  const W* beta;
  W* given[2];     // the statistics, with GRADIENT read
  W* gradients[2]; // of scale and shift
  const W* old[2];
  W* running[2];
  const W* factor;
  double number, epsilon, unbiased;
  i64 images, channels, vectors, active;
};

#define GROUPS 4

// The state of a block's common reduction.
#if GRADIENT
struct State {
  W plain, scaled;
  __device__ void start() { plain = scaled = (W)0; }
  __device__ void merge(const State& other) { plain += other.plain, scaled += other.scaled; }
  __device__ State across(i32 mask) const {
    return {__shfl_xor_sync(0xffffffffu, plain, mask), __shfl_xor_sync(0xffffffffu, scaled, mask)};
  }
  static __device__ State either(bool second, const State& a, const State& b) {
    return {second ? b.plain : a.plain, second ? b.scaled : a.scaled};
  }
};
#else
struct State : Moments<W> {
  __device__ State across(i32 mask) const {
    State other;
    other.shift = __shfl_xor_sync(0xffffffffu, this->shift, mask);
    other.first = __shfl_xor_sync(0xffffffffu, this->first, mask);
    other.second = __shfl_xor_sync(0xffffffffu, this->second, mask);
    other.count = __shfl_xor_sync(0xffffffffu, this->count, mask);
    return other;
  }
  static __device__ State either(bool second, const State& a, const State& b) {
    State one;
    one.shift = second ? b.shift : a.shift, one.first = second ? b.first : a.first;
    one.second = second ? b.second : a.second, one.count = second ? b.count : a.count;
    return one;
  }
};
#endif

// Stores a vector in one instruction: NVRTC 13 splits such stores in this loop.
INLINE void store_whole(T* to, const Vec<T, V>& x) {
#ifndef SYMDNN_HOST
  if constexpr (V * sizeof(T) == 16) {
    const Vec<u32, 4> w = *(const Vec<u32, 4>*)&x;
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(w.v[0]), "r"(w.v[1]), "r"(w.v[2]), "r"(w.v[3]) : "memory");
    return;
  }
  if constexpr (V * sizeof(T) == 8) {
    const Vec<u32, 2> w = *(const Vec<u32, 2>*)&x;
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(w.v[0]), "r"(w.v[1]) : "memory");
    return;
  }
#endif
  store(to, x);
}

// All lanes get the same bits: always the upper lane's state is merged into the lower one's.
template <i32 LANES> INLINE void meet_in_warp(State& mine) {
#pragma unroll 1
  for (i32 half = 1; half < LANES; half *= 2) {
    const State other = mine.across(half);
    const bool upper = threadIdx.x & half;
    State lower = State::either(upper, mine, other);
    lower.merge(State::either(upper, other, mine));
    mine = lower;
  }
}

// The merged state of all threads of the cluster; each thread gets the same bits.
INLINE State all_together(State mine, Exchange<State>& exchange) {
  __shared__ State warps[32];
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  meet_in_warp<32>(mine);
  if (lane == 0) warps[warp] = mine;
  __syncthreads();
  mine.start();
  if (lane < THREADS / 32) mine = warps[lane];
  meet_in_warp<32>(mine);
  if (CLUSTER == 1) return mine;
  if (warp == 0) exchange.tell(mine);
  mine = exchange.heard((u32)lane % CLUSTER);
  meet_in_warp<CLUSTER>(mine);
  return mine;
}

#define ROUNDS ((SHARE + BESIDE - 1) / BESIDE)
#define PER_GROUP ((ROUNDS + GROUPS - 1) / GROUPS)

// The vectors of a thread: `rounds` rounds of PASSES passes, less the last pass where not `whole`.
struct Mine {
  i32 rounds, active;
  bool whole;
  i64 start, step;

  // Visits the vectors by slot and offset, one group after the other.
  template <class What>
  __device__ __forceinline__ void each(i32 group, const What& what) const {
    const i32 end = (group + 1) * PER_GROUP < rounds ? (group + 1) * PER_GROUP : rounds;
#pragma unroll 2
    for (i32 round = group * PER_GROUP; round < end; round++)
#pragma unroll
      for (i32 pass = 0; pass < PASSES; pass++)
        if (pass < PASSES - 1 || whole)
          what((round * PASSES + pass) * active, start + round * step + pass * active * V);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) IN_CLUSTER norm_planes(
    const __grid_constant__ Parameters p) {
  __shared__ Exchange<State> exchange;
  exchange.start();
  const i32 channel = blockIdx.x / CLUSTER, thread = threadIdx.x;
  const i32 vectors = (i32)p.vectors, active = (i32)p.active;
  const i32 beside = BESIDE > 1 ? thread / vectors : 0, at = thread - beside * vectors;
  const i32 first = (i32)cluster_rank() * SHARE + beside, left = (i32)p.images - first;
  // The images of this thread: every BESIDE-th of its block's.
  const i32 own = SHARE - beside < left ? SHARE - beside : left;
  const i32 rounds = thread < active && own > 0 ? (own + BESIDE - 1) / BESIDE : 0;
  const bool whole = (PASSES - 1) * active + at < vectors;
  const i64 start = (((i64)first * p.channels + channel) * vectors + at) * V;
  const Mine mine = {rounds, active, whole, start, p.channels * vectors * V * BESIDE};
  Vec<T, V>* const xs = (Vec<T, V>*)kept + thread;
  Vec<T, V>* const dys = xs + ROUNDS * PASSES * active;

#pragma unroll 1
  for (i32 group = 0; group < GROUPS; group++) {
    mine.each(group, [&](i32 slot, i64 place) {
      copy_kept<V>(xs + slot, p.x + place);
      if (GRADIENT) copy_kept<V>(dys + slot, p.dy + place);
    });
    group_copies();
  }

  const W scale = p.gamma[channel];
  State state;
  state.start();
#if GRADIENT
  const W mean = p.given[0][channel], invstd = p.given[1][channel];
  const auto see = [&](i32 slot, i64) {
    const Vec<T, V> x = xs[slot], dy = dys[slot];
#pragma unroll
    for (i32 k = 0; k < V; k++) {
      const W d = convert<W>(dy.v[k]);
      state.plain += d;
      state.scaled = multiplied_added(d, convert<W>(x.v[k]) - mean, state.scaled);
    }
  };
#else
  const W shift = p.beta[channel];
  const auto see = [&](i32 slot, i64) {
    const Vec<T, V> x = xs[slot];
    if (slot == 0) state.begin(x.v[0], (u32)(rounds * (PASSES - 1 + whole) * V));
#pragma unroll
    for (i32 k = 0; k < V; k++) state.take(x.v[k], 0);
  };
#endif
#pragma unroll 1
  for (i32 group = 0; group < GROUPS; group++) {
    if (group == 0) settled<3>();
    else if (group == 1) settled<2>();
    else if (group == 2) settled<1>();
    else settled<0>();
    mine.each(group, see);
  }
#if !GRADIENT
  state.settle();
#endif
  exchange.started();
  const State found = all_together(state, exchange);

#if GRADIENT
  const W n = (W)(p.images * vectors) * V, b = found.scaled * invstd;
  const W factor = invstd * scale, a = found.plain / n, slope = -(b / n) * invstd;
  if (cluster_rank() == 0 && thread == 0) {
    p.gradients[0][channel] = b;
    p.gradients[1][channel] = found.plain;
  }
#else
  const W mean = found.mean(), variance = found.variance();
  const W invstd = (W)1 / s_sqrt(variance + (W)p.epsilon), factor = invstd * scale;
  if (cluster_rank() == 0 && thread == 0) {
    p.given[0][channel] = mean;
    p.given[1][channel] = invstd;
#if RUNNING
    const W f = p.factor ? *p.factor : (W)p.number;
    p.running[0][channel] = p.old[0][channel] * (1 - f) + mean * f;
    p.running[1][channel] = p.old[1][channel] * (1 - f) + variance * (W)p.unbiased * f;
#endif
  }
#endif
#pragma unroll 1
  for (i32 group = 0; group < GROUPS; group++)
    mine.each(group, [&](i32 slot, i64 place) {
      const Vec<T, V> x = xs[slot];
#if GRADIENT
      const Vec<T, V> dy = dys[slot];
#endif
      Vec<T, V> y;
#pragma unroll
      for (i32 k = 0; k < V; k++) {
        const W centred = convert<W>(x.v[k]) - mean;
#if GRADIENT
        const W d = convert<W>(dy.v[k]) - a;
        y.v[k] = convert<T>(multiplied_added(centred, slope, d) * factor);
#else
        y.v[k] = convert<T>(multiplied_added(centred, factor, shift));
#endif
      }
      store_whole(p.y + place, y);
    });
}
