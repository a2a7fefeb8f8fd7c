/* A libcuda.so.1 for tests: device memory is this machine's, kernels do nothing, and each call that
 * changes something is a line in the file $FAKE_LIBCUDA_LOG. A kernel whose name ends in _8_4 has
 * parameters of 8 and 4 bytes, which its line shows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t ptr;
typedef void *handle;

static __thread uintptr_t stack[64];
static __thread int depth;
static long made;        /* streams, events, functions: counted, so that two runs print the same */
static ptr blocks[4096]; /* allocations, printed by number */
static long nblocks;

static int say(const char *format, ...) {
    const char *path = getenv("FAKE_LIBCUDA_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (!log) return 0;
    va_list rest;
    va_start(rest, format);
    vfprintf(log, format, rest);
    va_end(rest);
    fputc('\n', log);
    fclose(log);
    return 0;
}

static long number_of(ptr p) {
    for (long i = 0; i < nblocks; i++)
        if (blocks[i] == p) return i;
    return -1;
}

static ptr block(size_t n) {
    ptr p = (ptr)aligned_alloc(512, (n + 511) / 512 * 512);
    blocks[nblocks++] = p;
    return p;
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuGetErrorName(int e, const char **s) { *s = "CUDA_ERROR"; return 0; }
int cuGetErrorString(int e, const char **s) { *s = "an error"; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i ? 101 : 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Fake"); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1 << 28; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return 0; }

int cuDevicePrimaryCtxRetain(handle *c, int d) { *c = (handle)0x1000; return say("retain %d", d); }
int cuCtxGetCurrent(handle *c) { *c = (handle)(depth ? stack[depth - 1] : 0); return 0; }
int cuCtxGetDevice(int *d) { *d = 0; return depth ? 0 : 201; }
int cuCtxPushCurrent_v2(handle c) {
    stack[depth++] = (uintptr_t)c;
    return say("push %p", c);
}
int cuCtxPopCurrent_v2(handle *c) {
    if (!depth) return 201;
    *c = (handle)stack[--depth];
    return say("pop");
}

int cuStreamCreate(handle *s, unsigned flags) {
    *s = (handle)(0x2000 + ++made);
    return depth ? say("stream %u", flags) : 201;
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return depth ? 0 : 201;
}
int cuStreamCreateWithPriority(handle *s, unsigned flags, int priority) {
    *s = (handle)(0x2000 + ++made);
    return depth ? say("stream %u of priority %d: %p", flags, priority, *s) : 201;
}
static int questions;
int cuStreamQuery(handle s) { return ++questions % 3 ? 600 : say("stream %p is done", s); }
int cuEventQuery(handle e) { return ++questions % 3 ? 600 : say("event %p is done", e); }
int cuStreamDestroy_v2(handle s) { return say("destroy stream %p", s); }
int cuStreamSynchronize(handle s) { return say("wait for stream %p", s); }
int cuStreamIsCapturing(handle s, int *status) { *status = 0; return 0; }
int cuStreamWaitEvent(handle s, handle e, unsigned f) { return say("stream %p waits for %p", s, e); }
int cuEventCreate(handle *e, unsigned flags) {
    *e = (handle)(0x3000 + ++made);
    return depth ? say("event %u", flags) : 201;
}
int cuEventRecord(handle e, handle s) { return say("record %p on %p", e, s); }
int cuEventSynchronize(handle e) { return say("wait for event %p", e); }
int cuEventDestroy_v2(handle e) { return say("destroy %p", e); }

int cuMemAlloc_v2(ptr *p, size_t n) {
    if (!depth) return 201;
    if (n > 1 << 26) return 2;
    *p = block(n);
    return say("allocate %zu: %ld", n, number_of(*p));
}
int cuMemFree_v2(ptr p) {
    say("free %ld", number_of(p));
    return number_of(p) < 0 || !depth;
}
int cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    *p = (void *)block(n);
    return say("pinned %zu, %u: %ld", n, flags, number_of((ptr)*p));
}
int cuMemFreeHost(void *p) {
    say("free pinned %ld", number_of((ptr)p));
    return number_of((ptr)p) < 0;
}
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = *t = 1 << 28; return 0; }
int cuMemsetD32_v2(ptr p, unsigned v, size_t n) {
    for (size_t i = 0; i < n; i++) ((unsigned *)p)[i] = v;
    return say("set %ld: %zu times %u", number_of(p), n, v);
}
int cuMemsetD32Async(ptr p, unsigned v, size_t n, handle s) {
    for (size_t i = 0; i < n; i++) ((unsigned *)p)[i] = v;
    return say("set %ld: %zu times %u on %p", number_of(p), n, v, s);
}
int cuMemsetD8Async(ptr p, unsigned char v, size_t n, handle s) {
    memset((void *)p, v, n);
    return say("set %ld: %zu bytes %u on %p", number_of(p), n, v, s);
}
int cuMemcpyHtoDAsync_v2(ptr to, const void *from, size_t n, handle s) {
    memcpy((void *)to, from, n);
    return say("in: %ld to %ld, %zu on %p", number_of((ptr)from), number_of(to), n, s);
}
int cuMemcpyDtoHAsync_v2(void *to, ptr from, size_t n, handle s) {
    memcpy(to, (void *)from, n);
    return say("out: %ld to %ld, %zu on %p", number_of(from), number_of((ptr)to), n, s);
}
int cuMemcpyDtoDAsync_v2(ptr to, ptr from, size_t n, handle s) {
    memcpy((void *)to, (void *)from, n);
    return say("copy: %ld to %ld, %zu on %p", number_of(from), number_of(to), n, s);
}
int cuPointerGetAttribute(void *data, int attribute, ptr p) {
    if (number_of(p) < 0) return 1;
    if (attribute == 1) *(uintptr_t *)data = 0x1000;
    else *(int *)data = 0; /* the ordinal of the device */
    return 0;
}

int cuMemGetAllocationGranularity(size_t *n, const void *prop, int option) { *n = 1 << 21; return 0; }
int cuMemAddressReserve(ptr *p, size_t n, size_t a, ptr at, unsigned long long f) {
    *p = 0x7000000000;
    return 0;
}

int cuModuleLoadData(handle *m, const void *image) {
    *m = (handle)0x4000;
    return memcmp(image, "\177ELF", 4) ? 200 : say("load");
}
int cuModuleGetFunction(handle *f, handle m, const char *name) {
    *f = strdup(name); /* so that a launch knows it */
    return say("function %s of %p", name, m);
}
int cuFuncSetAttribute(handle f, int attribute, int value) {
    return say("attribute %d of %s: %d", attribute, (char *)f, value);
}
int cuLaunchKernel(handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, handle s, void **params, void **extra) {
    char shown[1024];
    int at = 0, i = 0;
    const unsigned char *buffer = extra ? extra[1] : NULL; /* CU_LAUNCH_PARAM_BUFFER_POINTER */
    size_t used = 0;
    for (const char *c = strchr(f, '_'); c; c = strchr(c + 1, '_'), i++) {
        size_t n = (size_t)atol(c + 1), align = n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : 1;
        used = (used + align - 1) / align * align;
        const unsigned char *v = extra ? buffer + used : params[i];
        used += n;
        at += snprintf(shown + at, sizeof shown - at, " ");
        if (n == 8 && number_of(*(ptr *)v) >= 0) { /* an address */
            at += snprintf(shown + at, sizeof shown - at, "%ld", number_of(*(ptr *)v));
            continue;
        }
        for (size_t k = 0; k < n; k++) at += snprintf(shown + at, sizeof shown - at, "%02x", v[k]);
    }
    shown[at] = 0;
    return say("launch %s (%u, %u, %u) (%u, %u, %u) %u on %p:%s", (char *)f, gx, gy, gz, bx, by, bz,
               shared, s, shown);
}

int cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
    char longer[128];
    snprintf(longer, sizeof longer, "%s_v2", name);
    Dl_info own;
    dladdr((void *)cuInit, &own);
    void *self = dlopen(own.dli_fname, RTLD_NOW);
    *f = dlsym(self, longer);
    if (!*f) *f = dlsym(self, name);
    if (status) *status = *f ? 0 : 1;
    return 0;
}
