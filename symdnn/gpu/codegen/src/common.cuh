// The prelude of every kernel: types by their names in symdnn, NumPy's conversions, 16-byte
// vectors, and the error word. It includes no files, since users of symdnn have no CUDA toolkit.
//
// SYMDNN_HOST is set when the same text is compiled for a CPU, which then defines the instructions
// of the device.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

struct alignas(8) bytes8 { u32 v[2]; };
struct alignas(16) bytes16 { u32 v[4]; };

#define INLINE static __device__ __forceinline__

#ifndef SYMDNN_HOST
INLINE float float_of(f16 h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  return x;
}
INLINE f16 f16_of(float x) {
  f16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
INLINE f16 f16_of(double x) {
  f16 h;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(h.bits) : "d"(x));
  return h;
}
INLINE bf16 bf16_of(float x) {
  bf16 h;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
#else
  const u32 bits = __float_as_uint(x);
  h.bits = x != x ? 0x7fff : (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
  return h;
}
INLINE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
INLINE double double_of_bits(u64 bits) { return __longlong_as_double((i64)bits); }
INLINE u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }
#endif

INLINE float float_of(bf16 h) { return float_of_bits((u32)h.bits << 16); }

#define NAN_f float_of_bits(0x7fc00000u)
#define INF_f float_of_bits(0x7f800000u)
#define NAN_d double_of_bits(0x7ff8000000000000ull)
#define INF_d double_of_bits(0x7ff0000000000000ull)

// -- conversions: a stored 16-bit float is first widened to float --------------------------------

template <class T> INLINE T widen(T x) { return x; }
INLINE float widen(f16 x) { return float_of(x); }
INLINE float widen(bf16 x) { return float_of(x); }

template <class To> struct Narrow {
  template <class T> static __device__ __forceinline__ To of(T x) { return (To)x; }
};
template <> struct Narrow<bool> {
  template <class T> static __device__ __forceinline__ bool of(T x) { return x != (T)0; }
};
template <> struct Narrow<f16> {
  static __device__ __forceinline__ f16 of(double x) { return f16_of(x); }
  template <class T> static __device__ __forceinline__ f16 of(T x) { return f16_of((float)x); }
};
template <> struct Narrow<bf16> {
  template <class T> static __device__ __forceinline__ bf16 of(T x) { return bf16_of((float)x); }
};

template <class To, class From> struct Convert {
  static __device__ __forceinline__ To of(From x) { return Narrow<To>::of(widen(x)); }
};
template <class T> struct Convert<T, T> {
  static __device__ __forceinline__ T of(T x) { return x; }
};
template <class To, class From> INLINE To convert(From x) { return Convert<To, From>::of(x); }

// -- vectors -------------------------------------------------------------------------------------

// No access is wider than 16 bytes, and addresses need no larger alignment.
// Those of 3, 5, 6 or 7 elements, which are only held, have that of the largest power of two.
#define LOWEST_BIT(n) ((n) & -(n))
template <class T, int N>
struct alignas(LOWEST_BIT(sizeof(T) * N) < 16 ? LOWEST_BIT(sizeof(T) * N) : 16) Vec { T v[N]; };

template <int N, class T> INLINE Vec<T, N> load(const T* p) { return *(const Vec<T, N>*)p; }
template <int N, class T> INLINE void store(T* p, const Vec<T, N>& x) { *(Vec<T, N>*)p = x; }

// Stores of 16 or 8 bytes. The compiler would write the members one by one behind a branch.
#ifdef SYMDNN_HOST
template <class Held> INLINE void store_whole(void* line, const Held& held) { *(Held*)line = held; }
#else
template <class Held> INLINE void store_whole(void* line, const Held& held) {
  constexpr i32 COUNT = sizeof(held) / 4, EACH = COUNT < 4 ? COUNT : 4;
  if constexpr (COUNT < 2) {
    *(Held*)line = held;
  } else {
    u32 w[COUNT];
    memcpy(w, &held, sizeof(held));
#pragma unroll
    for (i32 i = 0; i < COUNT; i += EACH) {
      u32* const to = (u32*)line + i;
      if constexpr (EACH == 4)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                     :: "l"(to), "r"(w[i]), "r"(w[i + 1]), "r"(w[i + 2]), "r"(w[i + 3]) : "memory");
      else
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" :: "l"(to), "r"(w[i]), "r"(w[i + 1]) : "memory");
    }
  }
}
#endif

// Aligned words that the kernel does not write, in one instruction: the compiler would read words one
// by one where some of them may not be used. Volatile: it stays behind the kernel's wait for the one
// before.
template <int N> INLINE Vec<u32, N> load_words(u64 at) {
#ifndef SYMDNN_HOST
  Vec<u32, N> w;
  if constexpr (N == 4) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3]) : "l"(at));
    return w;
  }
  if constexpr (N == 2) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(w.v[0]), "=r"(w.v[1]) : "l"(at));
    return w;
  }
#endif
  return *(const Vec<u32, N>*)at;
}

// The words of two vectors from a byte of the first one on, as many as one of them has.
template <int WORDS> INLINE Vec<u32, WORDS> from_words(
    const Vec<u32, WORDS>& low, const Vec<u32, WORDS>& high, const u32 byte) {
  u32 w[2 * WORDS];
#pragma unroll
  for (i32 i = 0; i < WORDS; i++) w[i] = low.v[i], w[WORDS + i] = high.v[i];
  i32 used = 2 * WORDS;
#pragma unroll
  for (i32 by = WORDS / 2; by > 0; by /= 2) {
    used -= by;
    const bool on = byte / 4 & by;
#pragma unroll
    for (i32 i = 0; i < used; i++) w[i] = on ? w[i + by] : w[i];
  }
  Vec<u32, WORDS> found;
#pragma unroll
  for (i32 i = 0; i < WORDS; i++) found.v[i] = __funnelshift_r(w[i], w[i + 1], byte % 4 * 8);
  return found;
}

// The one or two aligned vectors of 4, 8 or 16 bytes that have the bytes of a vector that begins
// anywhere: nothing is read that has none of them. The kernel does not write there.
template <int WORDS> struct AnyWords {
  Vec<u32, WORDS> low, high;
  u32 byte;
  __device__ __forceinline__ Vec<u32, WORDS> words() const { return from_words(low, high, byte); }
};
template <int N, class T> INLINE AnyWords<N * sizeof(T) / 4> any_words(const T* p) {
  constexpr u64 BYTES = N * sizeof(T);
  const u64 at = (u64)p;
  return {
      load_words<BYTES / 4>(at & ~(BYTES - 1)),
      load_words<BYTES / 4>((at + BYTES - 1) & ~(BYTES - 1)),
      (u32)at & (u32)(sizeof(T) < 4 ? BYTES - 1 : BYTES - 4)};
}
template <int N, class T> INLINE Vec<T, N> load_any(const T* p) {
  const Vec<u32, N * sizeof(T) / 4> found = any_words<N>(p).words();
  return *(const Vec<T, N>*)&found;
}

// Some neighbours that begin anywhere, likewise.
template <int N, class T> INLINE Vec<T, N> load_anywhere(const T* p) {
  constexpr i32 BYTES = N * sizeof(T), PART = BYTES < 4 ? 1 : BYTES < 16 ? N : 16 / sizeof(T);
  Vec<T, N> found;
#pragma unroll
  for (i32 i = 0; i < N; i += PART)
    if constexpr (BYTES < 4) {
      found.v[i] = p[i];
    } else {
      const Vec<T, PART> part = load_any<PART>(p + i);
#pragma unroll
      for (i32 k = 0; k < PART; k++) found.v[i + k] = part.v[k];
    }
  return found;
}

// -- errors of data: the first one is kept; nothing is accessed out of bounds ---------------------

enum {
  INDEX_ERROR = 1, ASSERT_ERROR = 2, LABEL_ERROR = 3, RANGE_ERROR = 4, WEIGHT_ERROR = 5,
  VALUE_ERROR = 6, RATE_ERROR = 10
};

INLINE i32 clamp32(i64 x) {
  return x > 2147483647ll ? 2147483647 : x < -2147483647ll ? -2147483647 : (i32)x;
}
INLINE void report(i32* word, i32 code, i64 node, i64 value, i64 limit) {
  if (word != 0 && atomicCAS(word, 0, code) == 0) {
    word[1] = (i32)node;
    word[2] = clamp32(value);
    word[3] = clamp32(limit);
  }
}

// -- the block's position in the grid -------------------------------------------------------------

INLINE i64 global_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
INLINE i64 thread_count() { return (i64)gridDim.x * blockDim.x; }
