"""LLVM IR of a radix sort of unsigned integers, by digits of 8 bits, the lowest first.

It takes a nanosecond for each digit of a number, in memory that a cache has, whatever their order.
A sort by comparisons takes the more the longer the line. What a digit writes to are 256 places, so
that their cache lines stay in the first cache.
"""

from __future__ import annotations

import re

__all__ = ["radix_function"]

_TEXT = """
define internal ptr @radix{bits}(ptr %a, ptr %b, i64 %n, i64 %digits) noinline #0 {
entry:
%count = alloca [256 x i64], align 64
%count_next = alloca [256 x i64], align 64
%end = shl i64 %digits, 3
%some = icmp ne i64 %digits, 0
br i1 %some, label %begin, label %sorted
begin:
call void @llvm.memset.p0.i64(ptr %count, i8 0, i64 2048, i1 false)
br label %first
first:
%f = phi i64 [0, %begin], [%f1, %first]
%fp = getelementptr i{bits}, ptr %a, i64 %f
%fk = load i{bits}, ptr %fp, align 1
%fw = {wide} %fk{to64}
%fd = and i64 %fw, 255
{count of %fd in %count}
%f1 = add i64 %f, 1
%fm = icmp ult i64 %f1, %n
br i1 %fm, label %first, label %pass
pass:
%from = phi ptr [%a, %first], [%to, %passed]
%to = phi ptr [%b, %first], [%from, %passed]
%own = phi ptr [%count, %first], [%other, %passed]
%other = phi ptr [%count_next, %first], [%own, %passed]
%shift = phi i64 [0, %first], [%shift_next, %passed]
%shift_next = add i64 %shift, 8
%next = and i64 %shift_next, 63
call void @llvm.memset.p0.i64(ptr %other, i8 0, i64 2048, i1 false)
br label %places
places:
%p = phi i64 [0, %pass], [%p1, %places]
%sum = phi i64 [0, %pass], [%sum1, %places]
%pp = getelementptr i64, ptr %own, i64 %p
%pc = load i64, ptr %pp
store i64 %sum, ptr %pp
%sum1 = add i64 %sum, %pc
%p1 = add i64 %p, 1
%pm = icmp ult i64 %p1, 256
br i1 %pm, label %places, label %move
move:
%i = phi i64 [0, %places], [%i1, %move]
%ip = getelementptr i{bits}, ptr %from, i64 %i
%key = load i{bits}, ptr %ip, align 1
%wide = {wide} %key{to64}
%high = lshr i64 %wide, %shift
%d = and i64 %high, 255
{count of %d in %own}
%kp = getelementptr i{bits}, ptr %to, i64 %d.before
store i{bits} %key, ptr %kp, align 1
%higher = lshr i64 %wide, %next
%e = and i64 %higher, 255
{count of %e in %other}
%i1 = add i64 %i, 1
%im = icmp ult i64 %i1, %n
br i1 %im, label %move, label %passed
passed:
%more = icmp ult i64 %shift_next, %end
br i1 %more, label %pass, label %sorted
sorted:
%found = phi ptr [%a, %entry], [%to, %passed]
ret ptr %found
}
"""


def _counted(found: re.Match[str]) -> str:
    """One more of a digit in a table, whose entry before is ``digit.before``."""
    digit, table = found.groups()
    lines = (
        f"{digit}.at = getelementptr i64, ptr {table}, i64 {digit}",
        f"{digit}.before = load i64, ptr {digit}.at",
        f"{digit}.after = add i64 {digit}.before, 1",
        f"store i64 {digit}.after, ptr {digit}.at",
    )
    return "\n".join(lines)


def radix_function(bits: int) -> list[str]:
    """The function ``radix32`` or ``radix64``: (line, as much memory, n, digits) -> where they are.

    It sorts ``n`` integers, at least one, by so many of their lowest digits.
    """
    wide = ("zext i32", " to i64") if bits == 32 else ("or i64", ", 0")
    text = re.sub(r"\{count of (\S+) in (\S+)\}", _counted, _TEXT)
    for name, word in (("{bits}", str(bits)), ("{wide}", wide[0]), ("{to64}", wide[1])):
        text = text.replace(name, word)
    return ["declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)", *text.strip().splitlines()]
