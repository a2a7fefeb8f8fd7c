// Uniform numbers of MRG31k3p: a thread has one stream, whose numbers are every `streams`-th
// element of y. T is the type of the values, FLOAT16 set where that is f16.

struct Parameters {
  const i32* state;
  i32* next;
  T* y;
  i64 count, streams;
};

#define M1 2147483647LL
#define M2 2147462579LL

// z modulo m = 2^31 - c; the products of the recurrences are small enough for one fold.
INLINE i64 folded(i64 z, i64 c, i64 m) {
  z = (z & M1) + c * (z >> 31);
  return z >= m ? z - m : z;
}

INLINE T value(i64 x, i64 y) {
  const i64 z = x - y + (x <= y ? M1 : 0);
#if FLOAT16
  return convert<T>((double)((z & 0x7fff) + 1) * 0x1.ffp-16);
#elif FLOAT32
  return (float)z * 0x1.fffffep-32f;
#else
  return (double)z * 0x1p-31;
#endif
}

extern "C" __global__ void __launch_bounds__(256) draw(const __grid_constant__ Parameters p) {
  for (i64 s = global_thread(); s < p.streams; s += thread_count()) {
    const i32* from = p.state + 6 * s;
    i64 x1 = from[0], x2 = from[1], x3 = from[2], y1 = from[3], y2 = from[4], y3 = from[5];
    for (i64 i = s; i < p.count; i += p.streams) {
      const i64 x = folded((x2 << 22) + 129 * x3, 1, M1);
      const i64 y = folded((y1 << 15) + 32769 * y3, 21069, M2);
      x3 = x2; x2 = x1; x1 = x;
      y3 = y2; y2 = y1; y1 = y;
      p.y[i] = value(x, y);
    }
    if (p.next != 0) {
      i32* to = p.next + 6 * s;
      to[0] = (i32)x1; to[1] = (i32)x2; to[2] = (i32)x3;
      to[3] = (i32)y1; to[4] = (i32)y2; to[5] = (i32)y3;
    }
  }
}
