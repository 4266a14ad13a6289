/* clones.h - compiles a function for several instruction sets.
 *
 * VFM_CLONES("avx2", "default") before a definition compiles the function, and everything inlined into it, for each
 * set.  The loader chooses the best one for the CPU.  No-op on CPUs other than x86-64, and with ThreadSanitizer, which
 * cannot run that early.
 */
#ifndef VFM_BASE_CLONES_H
#define VFM_BASE_CLONES_H

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define VFM_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define VFM_CLONES(...)
#endif

#endif
