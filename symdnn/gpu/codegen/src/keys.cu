// Keys of elements for sorts. T is the type of the elements, U the unsigned type of their size. NaN
// is larger than all numbers; with LARGEST the largest come first. With PAIRS, where an element's
// number goes with its key, zeros are equal, and so are NaNs. Without, keys are all the bits of the
// elements, and -0 is before 0.

#define SIGN ((U)1 << (8 * sizeof(U) - 1))
// How many bit patterns are negative NaNs.
#define NANS (U)(((U)1 << MANTISSA) - 1)

template <class To, class From> INLINE To same_bits(From x) {
  union { From x; To bits; } same;
  same.x = x;
  return same.bits;
}

INLINE U key_of(T x) {
  U key = same_bits<U>(x);
#if FLOATING
  const auto v = widen(x);
  if (PAIRS && v == 0) key = 0;
  key = key & SIGN ? (U)~key : (U)(key | SIGN);
  key = PAIRS && v != v ? (U)~(U)0 : (U)(key - NANS);  // negative NaNs are the last ones
#elif SIGNED
  key ^= SIGN;
#endif
  return LARGEST ? (U)~key : key;
}

// The element with a key, which without PAIRS has all of its bits.
INLINE T element_of(U key) {
  if (LARGEST) key = (U)~key;
#if FLOATING
  key = (U)(key + NANS);
  key = key & SIGN ? (U)(key ^ SIGN) : (U)~key;
#elif SIGNED
  key ^= SIGN;
#endif
  return same_bits<T>(key);
}

