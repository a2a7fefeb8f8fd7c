INLINE float multiplied_added(float a, float b, float c) { return fmaf(a, b, c); }
INLINE double multiplied_added(double a, double b, double c) { return fma(a, b, c); }

INLINE float about_reciprocal(float x) { return fast_reciprocal(x); }
INLINE double about_reciprocal(double x) { return 1.0 / x; }

INLINE float about_exp(float x) { return fast_exp2(x * 1.442695041f); }
INLINE double about_exp(double x) { return exp(x); }

INLINE float largest(float) { return float_of_bits(0x7f7fffffu); }
INLINE double largest(double) { return double_of_bits(0x7fefffffffffffffull); }

// The larger one; a NaN is none.
INLINE float larger_number(float a, float b) { return fmaxf(a, b); }
INLINE double larger_number(double a, double b) { return fmax(a, b); }

template <class A, class B> struct SameType { static constexpr bool value = false; };
template <class A> struct SameType<A, A> { static constexpr bool value = true; };

// The sum of four bytes of type B, plus another.
template <class B> INLINE i32 bytes_added(u32 word, i32 other) {
#ifdef SYMDNN_HOST
  for (i32 k = 0; k < 4; k++) other += (i32)(IsSigned<B>::value ? (i8)(word >> 8 * k) : (u8)(word >> 8 * k));
#else
  if (IsSigned<B>::value) asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(other) : "r"(word), "r"(0x01010101));
  else asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(other) : "r"(word), "r"(0x01010101));
#endif
  return other;
}
// A bit of each byte that is zero, and no other bit.
INLINE u32 zero_bytes(u32 word) { return ~(((word & 0x7f7f7f7f) + 0x7f7f7f7f) | word) & 0x80808080; }

// The states of reductions, a struct for each kind. take() adds an element, given with its number
// in C order over the reduced axes; merge() adds the state of other elements. take_bytes() adds all
// bytes of some words, of_bytes() gives for each place in a word what take() adds for these bytes.

template <class T> struct Sum {
  T total;
  __device__ void start() { total = (T)0; }
  template <class X> __device__ void take(X x, i64) { total = s_add(total, convert<T>(x)); }
  template <class B, int N> __device__ __forceinline__ void take_bytes(const u32 (&words)[N]) {
    i32 sums[2] = {};
#pragma unroll
    for (i32 i = 0; i < N; i++) sums[i % 2] = bytes_added<B>(words[i], sums[i % 2]);
    take(sums[0] + sums[1], 0);
  }
  // Bytes are added in pairs of 16 bits, signed ones by 128 larger; those of up to 256 booleans in one.
  template <class B, int N> static __device__ __forceinline__ void of_bytes(const u32 (&words)[N], i32 (&sums)[4]) {
    constexpr u32 MORE = IsSigned<B>::value ? 0x80808080 : 0;
    constexpr bool SMALL = SameType<B, bool>::value;
    u32 even = 0, odd = 0;
#pragma unroll
    for (i32 i = 0; i < N; i++) {
      const u32 w = words[i] ^ MORE;
      even += SMALL ? w : w & 0x00ff00ff;
      if (!SMALL) odd += w >> 8 & 0x00ff00ff;
    }
    if (SMALL) odd = even >> 8 & 0x00ff00ff, even &= 0x00ff00ff;
#pragma unroll
    for (i32 k = 0; k < 4; k++)
      sums[k] = (i32)((k % 2 ? odd : even) >> k / 2 * 16 & 0xffff) - (MORE ? 128 * N : 0);
  }
  __device__ void merge(const Sum& other) { total = s_add(total, other.total); }
  __device__ T result() const { return total; }
};

template <class T> struct Prod {
  T total;
  __device__ void start() { total = (T)1; }
  template <class X> __device__ void take(X x, i64) { total = s_mul(total, convert<T>(x)); }
  __device__ void merge(const Prod& other) { total = s_mul(total, other.total); }
  __device__ T result() const { return total; }
};

// The numbers of a type that no other one is below, or above.
template <class T> struct Ends {
  static constexpr T LOW = IsSigned<T>::value ? (T)((u64)1 << (sizeof(T) * 8 - 1)) : (T)0;
  static __device__ __forceinline__ T low() { return LOW; }
  static __device__ __forceinline__ T high() { return (T)~LOW; }
};
template <> struct Ends<bool> {
  static __device__ __forceinline__ bool low() { return false; }
  static __device__ __forceinline__ bool high() { return true; }
};
template <> struct Ends<float> {
  static __device__ __forceinline__ float low() { return -INF_f; }
  static __device__ __forceinline__ float high() { return INF_f; }
};
template <> struct Ends<double> {
  static __device__ __forceinline__ double low() { return -INF_d; }
  static __device__ __forceinline__ double high() { return INF_d; }
};

template <class T> struct Max {
  T best;
  __device__ void start() { best = Ends<T>::low(); }
  template <class X> __device__ void take(X x, i64) { best = s_max(best, convert<T>(x)); }
  __device__ void merge(const Max& other) { best = s_max(best, other.best); }
  __device__ T result() const { return best; }
};

template <class T> struct Min {
  T best;
  __device__ void start() { best = Ends<T>::high(); }
  template <class X> __device__ void take(X x, i64) { best = s_min(best, convert<T>(x)); }
  __device__ void merge(const Min& other) { best = s_min(best, other.best); }
  __device__ T result() const { return best; }
};

template <class T> struct AllTrue {
  bool truth;
  __device__ void start() { truth = true; }
  template <class X> __device__ void take(X x, i64) { truth = truth & convert<bool>(x); }
  template <class B, int N> __device__ __forceinline__ void take_bytes(const u32 (&words)[N]) {
    u32 zeros = 0;
#pragma unroll
    for (i32 i = 0; i < N; i++) zeros |= zero_bytes(words[i]);
    truth = truth & (zeros == 0);
  }
  template <class B, int N> static __device__ __forceinline__ void of_bytes(const u32 (&words)[N], i32 (&all)[4]) {
    u32 zeros = 0;
#pragma unroll
    for (i32 i = 0; i < N; i++) zeros |= zero_bytes(words[i]);
#pragma unroll
    for (i32 k = 0; k < 4; k++) all[k] = (zeros & 0x80u << 8 * k) == 0;
  }
  __device__ void merge(const AllTrue& other) { truth = truth && other.truth; }
  __device__ bool result() const { return truth; }
};

template <class T> struct AnyTrue {
  bool truth;
  __device__ void start() { truth = false; }
  template <class X> __device__ void take(X x, i64) { truth = truth | convert<bool>(x); }
  template <class B, int N> __device__ __forceinline__ void take_bytes(const u32 (&words)[N]) {
    u32 any = 0;
#pragma unroll
    for (i32 i = 0; i < N; i++) any |= words[i];
    truth = truth | (any != 0);
  }
  template <class B, int N> static __device__ __forceinline__ void of_bytes(const u32 (&words)[N], i32 (&any)[4]) {
    u32 all = 0;
#pragma unroll
    for (i32 i = 0; i < N; i++) all |= words[i];
#pragma unroll
    for (i32 k = 0; k < 4; k++) any[k] = all & 0xffu << 8 * k;
  }
  __device__ void merge(const AnyTrue& other) { truth = truth || other.truth; }
  __device__ bool result() const { return truth; }
};

// A number that is hardly below the largest element so far, and the sum of exp(x - it). Another
// element takes its place only where it is larger by 4, which is seldom. It is finite, so that no
// difference is inf - inf: the sum is 0 where all elements are -inf, and inf where one is.
template <class T> struct LogSumExp {
  T top, total;
  __device__ void start() { top = -largest((T)0), total = (T)0; }
  __device__ void rise(T v) {
    if (v > top + (T)4) {
      const T next = v < largest(v) ? v : largest(v);
      total *= about_exp(top - next), top = next;
    }
  }
  template <class X> __device__ void take(X x, i64) {
    const T v = convert<T>(x);
    rise(v);
    total += about_exp(v - top);
  }
  // Several elements: whether one is larger by so much is asked once.
  template <int N> __device__ __forceinline__ void take_all(const T (&x)[N]) {
    T most = x[0];
#pragma unroll
    for (i32 i = 1; i < N; i++) most = larger_number(most, x[i]);
    rise(most);
    T sums[2] = {};
#pragma unroll
    for (i32 i = 0; i < N; i++) sums[i % 2] += about_exp(x[i] - top);
    total += sums[0] + sums[1];
  }
  // One exponential, without a branch.
  __device__ void merge(const LogSumExp& other) {
    const T d = other.top - top, e = about_exp(-s_abs(d));
    total = d > (T)0 ? multiplied_added(total, e, other.total) : multiplied_added(other.total, e, total);
    top = d > (T)0 ? other.top : top;
  }
  __device__ T result() const { return top + s_log(total); }
};

// Mean and variance in one pass. A shift is subtracted from the elements, so that a large mean costs
// no digits. begin() sets it to the first element and gets the number of elements. settle() moves it
// to about their mean. A state that is merged is moved to the shift of the other one.
template <class T> struct Moments {
  T shift, first, second;
  u32 count;
  __device__ void start() { shift = first = second = (T)0, count = 0; }
  template <class X> __device__ void begin(X x, u32 coming) {
    shift = convert<T>(x), count = coming;
  }
  template <class X> __device__ void take(X x, i64) {
    const T d = convert<T>(x) - shift;
    first += d;
    second = multiplied_added(d, d, second);
  }
  __device__ void settle() {
    const T n = (T)count, mean = first * about_reciprocal(count == 0 ? (T)1 : n), left = first - n * mean;
    second -= mean * (first + left);
    shift += mean;
    first = left;
  }
  __device__ void merge(const Moments& other) {
    if (count == 0) shift = other.shift;
    const T apart = other.shift - shift, n = (T)other.count;
    first += other.first + n * apart;
    second += other.second + apart * ((T)2 * other.first + n * apart);
    count += other.count;
  }
  __device__ T mean() const { return count == 0 ? (T)NAN_f : shift + first / (T)count; }
  __device__ T variance() const {
    const T left = (second - first * (first / (T)count)) / (T)count;
    return left < (T)0 ? (T)0 : left;
  }
};
