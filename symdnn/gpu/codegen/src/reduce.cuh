INLINE float multiplied_added(float a, float b, float c) { return fmaf(a, b, c); }
INLINE double multiplied_added(double a, double b, double c) { return fma(a, b, c); }

INLINE float about_reciprocal(float x) { return fast_reciprocal(x); }
INLINE double about_reciprocal(double x) { return 1.0 / x; }

INLINE float about_exp(float x) { return fast_exp2(x * 1.442695041f); }
INLINE double about_exp(double x) { return exp(x); }

// The states of reductions, a struct for each kind. take() adds an element, given with its number
// in C order over the reduced axes; merge() adds the state of other elements.

template <class T> struct Sum {
  T total;
  __device__ void start() { total = (T)0; }
  template <class X> __device__ void take(X x, i64) { total = s_add(total, convert<T>(x)); }
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

// The state of an extreme has a flag for "no element yet", since a type may lack a smallest number.
template <class T> struct Max {
  T best;
  bool any;
  __device__ void start() { best = (T)0, any = false; }
  template <class X> __device__ void take(X x, i64) {
    T v = convert<T>(x);
    best = any ? s_max(best, v) : v;
    any = true;
  }
  __device__ void merge(const Max& other) {
    if (other.any) take(other.best, 0);
  }
  __device__ T result() const { return best; }
};

template <class T> struct Min {
  T best;
  bool any;
  __device__ void start() { best = (T)0, any = false; }
  template <class X> __device__ void take(X x, i64) {
    T v = convert<T>(x);
    best = any ? s_min(best, v) : v;
    any = true;
  }
  __device__ void merge(const Min& other) {
    if (other.any) take(other.best, 0);
  }
  __device__ T result() const { return best; }
};

template <class T> struct AllTrue {
  bool truth;
  __device__ void start() { truth = true; }
  template <class X> __device__ void take(X x, i64) { truth = truth && convert<bool>(x); }
  __device__ void merge(const AllTrue& other) { truth = truth && other.truth; }
  __device__ bool result() const { return truth; }
};

template <class T> struct AnyTrue {
  bool truth;
  __device__ void start() { truth = false; }
  template <class X> __device__ void take(X x, i64) { truth = truth || convert<bool>(x); }
  __device__ void merge(const AnyTrue& other) { truth = truth || other.truth; }
  __device__ bool result() const { return truth; }
};

// An element that is hardly below the largest one so far, and the sum of exp(x - it), which handles
// inf - inf. Another element takes its place only where it is larger by 4, which is seldom.
template <class T> struct LogSumExp {
  T top, total;
  __device__ void start() { top = -(T)INF_f, total = (T)0; }
  template <class X> __device__ void take(X x, i64) {
    const T v = convert<T>(x);
    if (v > top + (T)4) total *= about_exp(top - v), top = v;
    total += v == top ? (T)1 : about_exp(v - top);
  }
  // Several elements: whether one is larger by so much is asked once.
  template <class X, int N> __device__ __forceinline__ void take_all(const X (&x)[N]) {
    T most = convert<T>(x[0]);
#pragma unroll
    for (i32 i = 1; i < N; i++) most = convert<T>(x[i]) > most ? convert<T>(x[i]) : most;
    if (most > top + (T)4) total *= about_exp(top - most), top = most;
    T sums[2] = {};
#pragma unroll
    for (i32 i = 0; i < N; i++) {
      const T v = convert<T>(x[i]);
      sums[i % 2] += v == top ? (T)1 : about_exp(v - top);
    }
    total += sums[0] + sums[1];
  }
  __device__ void merge(const LogSumExp& other) { add(other.top, other.total); }
  // One exponential, without a branch. Equal infinities are no distance apart.
  __device__ void add(T x, T weight) {
    const T d = x == top ? (T)0 : x - top;
    const T e = s_exp(-s_abs(d));
    total = d > (T)0 ? multiplied_added(total, e, weight) : multiplied_added(weight, e, total);
    top = d > (T)0 ? x : top;
  }
  __device__ T result() const {
    if (total != total) return total;
    return top == (T)INF_f || top == -(T)INF_f ? top : top + s_log(total);
  }
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
