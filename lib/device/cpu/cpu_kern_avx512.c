/* The kernels, compiled for avx512 (flags: Makefile, ISA_avx512). */
#ifdef __x86_64__
#include "device/cpu/cpu_table.inc.h"

KERN_TABLE(vfm_cpu_kern_avx512);
#endif
