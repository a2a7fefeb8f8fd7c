// Asynchronous copies to shared memory; `group_copies` ends a group of them. `settled` waits for
// all but the last LEFT groups. Then a thread can read its own copies.
#if !defined(SYMDNN_HOST) && __CUDA_ARCH__ >= 800
#define COPIES_ARE_LATE 1
#else
#define COPIES_ARE_LATE 0
#endif
template <int N, class E> INLINE void copy_kept(Vec<E, N>* to, const E* from) {
#if COPIES_ARE_LATE
  constexpr i32 BYTES = N * (i32)sizeof(E);
  if constexpr (BYTES >= 4) {
    const u32 at = (u32)__cvta_generic_to_shared(to);
    if constexpr (BYTES % 16 == 0)
#pragma unroll
      for (i32 i = 0; i < BYTES; i += 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + i), "l"((u64)from + i)
                     : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES)
                   : "memory");
    return;
  }
#endif
  *to = load<N>(from);
}
INLINE void group_copies() {
#if COPIES_ARE_LATE
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <i32 LEFT> INLINE void settled() {
#if COPIES_ARE_LATE
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
