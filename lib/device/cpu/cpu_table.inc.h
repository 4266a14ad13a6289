/* cpu_table.inc.h - the kernels of the including file's instruction set, and KERN_TABLE(name), which defines their
 * table from the lists in cpu_kern.h. */
#include "device/cpu/cpu_kern.h"
#include "device/cpu/cpu_vec.h"

#include "device/cpu/cpu_rows.inc.h"
#include "device/cpu/cpu_elem.inc.h"
#include "device/cpu/cpu_encoder.inc.h"
#include "device/cpu/cpu_gemm.inc.h"
#include "device/cpu/cpu_few.inc.h"

#define KERN_ENTRY(result, name, args) .name = name,
#define ROW_ENTRY(op, operand)         .op = op,
#define KERN_TABLE(name)                                                                                               \
	const struct vfm_cpu_kern name = {.gemm_f32 = GEMM_F32,                                                        \
		.gemm_bf16 = GEMM_BF16,                                                                                \
		VFM_CPU_KERNELS(KERN_ENTRY) VFM_CPU_ROW_OPS(ROW_ENTRY) VFM_CPU_ELEMENT_OPS(ROW_ENTRY)}
