// A product of 16 x 8 and 8 x 8 numbers on tensor cores, added to 16 x 8 sums in float32 (PTX:
// mma.m16n8k8, from compute capability 8.0 on). Lane 4 g + t has of the first operand (g, t),
// (g + 8, t), (g, t + 4), (g + 8, t + 4), of the second (t, g), (t + 4, g), of the sums (g, 2 t),
// (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
//
// With PARTS 1 operands are rounded to TF32. With 3 each is a sum of two such numbers, and the three
// larger products of these are added (Ootomo and Yokota, 2022): an error of some 2^-22 of a product.

#ifdef SYMDNN_HOST
INLINE float in_tf32(float x) {
  const u32 bits = shim_bits<u32>(x);
  return x - x == 0.0f ? shim_bits<float>((bits + 0x1000u) & ~0x1fffu) : x;
}
#else
INLINE float in_tf32(float x) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}
#endif

// The numbers of a lane, as the larger and the smaller parts.
template <i32 N, i32 PARTS> struct Tiled {
  float high[N], low[N];
  __device__ __forceinline__ Tiled(const float (&x)[N], bool rounds = PARTS != 1) {
#pragma unroll
    for (i32 n = 0; n < N; n++) {
      high[n] = rounds ? in_tf32(x[n]) : x[n];
      low[n] = PARTS == 3 ? in_tf32(x[n] - high[n]) : 0.0f;
    }
  }
};

INLINE void multiply_add_once(
    float& c0, float& c1, float& c2, float& c3, const float (&a)[4], const float (&b)[2]) {
#ifdef SYMDNN_HOST
  shim_mma(c0, c1, c2, c3, a, b);
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#endif
}

// Tensor cores cut off what they add to a sum, so that of the parts is rounded to it here.
template <i32 PARTS> INLINE void multiply_add(
    float& c0, float& c1, float& c2, float& c3, const Tiled<4, PARTS>& a, const Tiled<2, PARTS>& b) {
  if (PARTS == 1) {
    multiply_add_once(c0, c1, c2, c3, a.high, b.high);
    return;
  }
  float d0 = 0.0f, d1 = 0.0f, d2 = 0.0f, d3 = 0.0f;
  multiply_add_once(d0, d1, d2, d3, a.low, b.high);
  multiply_add_once(d0, d1, d2, d3, a.high, b.low);
  multiply_add_once(d0, d1, d2, d3, a.high, b.high);
  c0 += d0, c1 += d1, c2 += d2, c3 += d3;
}
