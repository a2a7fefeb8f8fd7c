// Products of 16 x 16 and 16 x 8 numbers of float16 on tensor cores, added to 16 x 8 sums in float32
// (PTX: mma.m16n8k16, from compute capability 8.0 on). Lane 4 g + t has of the first operand
// (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8), of the second (2 t, g), (2 t + 8, g), each
// with its neighbour along the sum, and of the sums (g, 2 t), (g, 2 t + 1), (g + 8, 2 t),
// (g + 8, 2 t + 1).
//
// With PARTS 1 a float32 number, times a power of two, is rounded to float16, which has the digits of
// TF32. With 3 it is a sum of two such numbers, and the three larger products of these are added
// (Ootomo and Yokota, 2022): an error of some 2^-22 of a product.

// Two numbers as float16, the first one in the lower bits.
INLINE u32 two_halves(float first, float second) {
#ifdef SYMDNN_HOST
  return (u32)f16_of(first).bits | (u32)f16_of(second).bits << 16;
#else
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#endif
}
INLINE float first_half(u32 both) { return float_of(f16{(u16)both}); }
INLINE float second_half(u32 both) { return float_of(f16{(u16)(both >> 16)}); }

// Two numbers as their larger and their smaller parts.
template <i32 PARTS> INLINE void split(u32& high, u32& low, float first, float second) {
  high = two_halves(first, second);
  low = PARTS == 3 ? two_halves(first - first_half(high), second - second_half(high)) : 0;
}

// The power of two that makes the largest of some numbers 64 to 128, and its reciprocal.
struct Scale {
  float up, down;
  __device__ __forceinline__ Scale(float largest) {
    const i32 field = 260 - (i32)((u32)__float_as_int(largest) >> 23 & 255);
    up = float_of_bits((u32)(field < 253 ? field : 253) << 23);
    down = float_of_bits((u32)(254 - (field < 253 ? field : 253)) << 23);
  }
};

// Four matrices of 8 x 8 halves in shared memory: lane l gives the address of row l % 8 of matrix
// l / 8. Lane 4 g + t gets two neighbours of row g, or of column g.
template <bool OF_COLUMN> INLINE void load_matrices(u32 (&to)[4], const u16* row) {
#ifdef SYMDNN_HOST
  shim_load_matrices(to, row, OF_COLUMN);
#else
  const u32 at = (u32)__cvta_generic_to_shared(row);
  if (OF_COLUMN)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
#endif
}

INLINE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef SYMDNN_HOST
  shim_mma(c, a, b0, b1);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Parts of an operand: of 16 x 16 numbers of the first one, or twice 16 x 8 of the second.
struct Parts { u32 high[4], low[4]; };

// Two products side by side; the smaller ones first.
template <i32 PARTS> INLINE void multiply_add(
    float (&c)[4], float (&d)[4], const Parts& a, const Parts& b) {
  if (PARTS == 3) {
    multiply_add(c, a.low, b.high[0], b.high[1]);
    multiply_add(d, a.low, b.high[2], b.high[3]);
    multiply_add(c, a.high, b.low[0], b.low[1]);
    multiply_add(d, a.high, b.low[2], b.low[3]);
  }
  multiply_add(c, a.high, b.high[0], b.high[1]);
  multiply_add(d, a.high, b.high[2], b.high[3]);
}
