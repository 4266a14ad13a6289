/* The kernels, compiled for the default target of the compiler. */
#include "device/cpu/cpu_table.inc.h"

KERN_TABLE(vfm_cpu_kern_base);
