/* cpu_table.inc.h - defines the kernel table of one instruction set: KERN_TABLE(name). */
#define KERN_TABLE(name)                                                                                               \
	const struct vfm_cpu_kern name = {                                                                             \
		.gemm_f32 = GEMM_F32,                                                                                  \
		.gemm_bf16 = GEMM_BF16,                                                                                \
		.few_rows = few_rows,                                                                                  \
		.norm = norm,                                                                                          \
		.norm_bwd = norm_bwd,                                                                                  \
		.gate = gate,                                                                                          \
		.gate_bwd = gate_bwd,                                                                                  \
		.add_row = add_row,                                                                                    \
		.add_row_bwd = add_row_bwd,                                                                            \
		.qk_norm_rope = qk_norm_rope,                                                                          \
		.qk_norm_rope_bwd = qk_norm_rope_bwd,                                                                  \
		.row_dot = row_dot,                                                                                    \
		.row_norm_rope = row_norm_rope,                                                                        \
		.row_norm_rope_bwd = row_norm_rope_bwd,                                                                \
		.unary = unary,                                                                                        \
		.axpby = axpby,                                                                                        \
		.sum_parts = sum_parts,                                                                                \
		.adamw = adamw,                                                                                        \
		.sumsq = sumsq,                                                                                        \
		.mse = mse,                                                                                            \
		.diffuse = diffuse,                                                                                    \
		.normals = normals,                                                                                    \
		.sum_into = sum_into,                                                                                  \
		.dot = dot,                                                                                            \
		.swiglu = swiglu,                                                                                      \
		.swiglu_bwd = swiglu_bwd,                                                                              \
		.geglu = geglu,                                                                                        \
		.channel_norm = channel_norm,                                                                          \
		.channel_stats = channel_stats,                                                                        \
		.softmax = softmax,                                                                                    \
		.embed3 = embed3,                                                                                      \
	}
