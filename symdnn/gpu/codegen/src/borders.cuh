// Places beyond the border of an axis of size n, and what is read there: see ops/lowered/stencil.py.
INLINE i32 edge_place(i32 at, i32 n) { return at < 0 ? 0 : at < n ? at : n - 1; }

INLINE i32 reflect_place(i32 at, i32 n) { return at < 0 ? -at : at < n ? at : 2 * n - 2 - at; }

INLINE i32 symmetric_place(i32 at, i32 n) { return at < 0 ? -1 - at : at < n ? at : 2 * n - 1 - at; }
