/* clones.h - functions that are compiled for several instruction sets.  VFM_CLONES("avx2", "default") before a
 * definition makes a copy of it, and of all that is inlined, for each set; the loader chooses the best that the CPU
 * has.  No-op on other CPUs than x86-64, and with ThreadSanitizer, which cannot run that early.
 */
#ifndef VFM_BASE_CLONES_H
#define VFM_BASE_CLONES_H

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define VFM_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define VFM_CLONES(...)
#endif

#endif
