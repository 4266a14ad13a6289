/* cpu_table.inc.h - defines the kernel table of one instruction set, KERN_TABLE(name), from the lists of cpu_kern.h. */
#define KERN_ENTRY(result, name, args) .name = name,
#define ROW_ENTRY(op, operand)         .op = op,
#define KERN_TABLE(name)                                                                                               \
	const struct vfm_cpu_kern name = {.gemm_f32 = GEMM_F32,                                                        \
		.gemm_bf16 = GEMM_BF16,                                                                                \
		VFM_CPU_KERNELS(KERN_ENTRY) VFM_CPU_ROW_OPS(ROW_ENTRY) VFM_CPU_ELEMENT_OPS(ROW_ENTRY)}
