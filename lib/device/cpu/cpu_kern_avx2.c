/* The kernels, compiled for avx2 (flags: Makefile, ISA_avx2). */
#ifdef __x86_64__
#include "device/cpu/cpu_kern.h"
#include "device/cpu/cpu_vec.h"

#include "device/cpu/cpu_rows.inc.h"
#include "device/cpu/cpu_elem.inc.h"
#include "device/cpu/cpu_encoder.inc.h"
#include "device/cpu/cpu_gemm.inc.h"
#include "device/cpu/cpu_few.inc.h"
#include "device/cpu/cpu_table.inc.h"

KERN_TABLE(vfm_cpu_kern_avx2);
#endif
