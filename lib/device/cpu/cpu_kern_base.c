/* The kernels, compiled for the default target of the compiler. */
#include "device/cpu/cpu_kern.h"
#include "device/cpu/cpu_vec.h"

#include "device/cpu/cpu_rows.inc.h"
#include "device/cpu/cpu_elem.inc.h"
#include "device/cpu/cpu_encoder.inc.h"
#include "device/cpu/cpu_gemm.inc.h"
#include "device/cpu/cpu_few.inc.h"
#include "device/cpu/cpu_table.inc.h"

KERN_TABLE(vfm_cpu_kern_base);
