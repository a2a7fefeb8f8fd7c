/* Counts the bytes that a process has allocated, and the most so far. Loaded by LD_PRELOAD.

   Of large blocks that one library asked for (its code is between two addresses), those that are
   still there are counted, too. */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

#define SLOTS (1 << 18)
#define LARGE 256
static atomic_long live, most, of_library;
static uintptr_t library_from, library_to;
static _Atomic(void *) blocks[SLOTS];

static unsigned slot_of(void *p) { return (unsigned)(((uintptr_t)p >> 4) * 2654435761u) % SLOTS; }

static void *counted(void *p, void *caller) {
    if (!p) return p;
    long own = (long)malloc_usable_size(p), now = atomic_fetch_add(&live, own) + own;
    long before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {}
    if (own >= LARGE && (uintptr_t)caller >= library_from && (uintptr_t)caller < library_to)
        for (unsigned i = slot_of(p), tries = 0; tries < 64; i = (i + 1) % SLOTS, tries++) {
            void *none = NULL;
            if (atomic_compare_exchange_strong(&blocks[i], &none, p)) {
                atomic_fetch_add(&of_library, own);
                break;
            }
        }
    return p;
}

static void dropped(void *p) {
    if (!p) return;
    long own = (long)malloc_usable_size(p);
    atomic_fetch_sub(&live, own);
    if (own >= LARGE && library_to)
        for (unsigned i = slot_of(p), tries = 0; tries < 64; i = (i + 1) % SLOTS, tries++) {
            void *found = p;
            if (atomic_compare_exchange_strong(&blocks[i], &found, NULL)) {
                atomic_fetch_sub(&of_library, own);
                break;
            }
        }
}

#define CALLER __builtin_return_address(0)
void *malloc(size_t n) { return counted(__libc_malloc(n), CALLER); }
void *calloc(size_t n, size_t each) { return counted(__libc_calloc(n, each), CALLER); }
void *memalign(size_t at, size_t n) { return counted(__libc_memalign(at, n), CALLER); }
void *aligned_alloc(size_t at, size_t n) { return counted(__libc_memalign(at, n), CALLER); }

int posix_memalign(void **p, size_t at, size_t n) {
    *p = counted(__libc_memalign(at, n), CALLER);
    return *p ? 0 : ENOMEM;
}

void free(void *p) {
    dropped(p);
    __libc_free(p);
}

void *realloc(void *p, size_t n) {
    dropped(p);
    return counted(__libc_realloc(p, n), CALLER);
}

long allocated_now(void) { return atomic_load(&live); }
long allocated_most(void) { return atomic_load(&most); }
long allocated_by_library(void) { return atomic_load(&of_library); }
void allocated_forget(void) { atomic_store(&most, atomic_load(&live)); }
void allocated_watch(uintptr_t from, uintptr_t to) { library_from = from, library_to = to; }
