/* The kernels, compiled for avx2 (flags: Makefile, ISA_avx2). */
#ifdef __x86_64__
#include "device/cpu/cpu_table.inc.h"

KERN_TABLE(vfm_cpu_kern_avx2);
#endif
