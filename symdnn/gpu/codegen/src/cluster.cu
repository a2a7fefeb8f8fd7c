// Shared memory of a kernel, and exchange between the blocks of a cluster. A cluster has CLUSTER
// blocks; 1 on GPUs without clusters.

// The launch sets the number of bytes, the same for each block.
#ifdef SYMDNN_HOST
static bytes16 kept[256 * 1024 / 16];
#else
extern __shared__ bytes16 kept[];
#endif

#if !defined(SYMDNN_HOST) && __CUDA_ARCH__ >= 900 && CLUSTER > 1
#define IN_CLUSTER __cluster_dims__(CLUSTER, 1, 1)
INLINE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
INLINE u32 address_at(u32 own, u32 rank) {
  u32 at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(own), "r"(rank));
  return at;
}

// One broadcast from each block to all blocks of the cluster. The value is written to their shared
// memory, and a barrier in that memory counts the writes. (A barrier of the cluster would first
// wait for all writes to global memory.) Call `start` first, and `started` before the first `tell`.
template <class S> struct Exchange {
  S told[CLUSTER];
  u64 barrier;
  __device__ void start() {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  }
  __device__ void started() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
  // Called by all threads of one warp, with the same `mine`.
  __device__ void tell(const S& mine) {
    const u32 own = shared_address(&barrier), lane = threadIdx.x % 32;
    if (lane == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(own),
                   "r"((u32)sizeof(S) * CLUSTER) : "memory");
    if (lane < CLUSTER) {
      const u32 to = address_at(shared_address(&told[cluster_rank()]), lane);
      const u32 counted = address_at(own, lane);
      const Vec<u32, sizeof(S) / 4> words = *(const Vec<u32, sizeof(S) / 4>*)&mine;
#pragma unroll
      for (i32 i = 0; i < (i32)sizeof(S) / 4; i++)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::
                     "r"(to + 4 * i), "r"(words.v[i]), "r"(counted) : "memory");
    }
  }
  // The value broadcast by the block of this rank.
  __device__ S heard(u32 rank) {
    u32 done = 0;
    while (!done)
      asm volatile("{\n.reg .pred p;\n"
                   "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
                   "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_address(&barrier)) : "memory");
    return told[rank];
  }
};
#else
#define IN_CLUSTER
INLINE u32 cluster_rank() { return 0; }
template <class S> struct Exchange {
  S told;
  __device__ void start() {}
  __device__ void started() {}
  __device__ void tell(const S&) {}
  __device__ S heard(u32) { return told; }
};
#endif
