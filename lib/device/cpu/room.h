/* device/cpu - the CPU device.
 *
 * Kernels, selected at run time by instruction set.
 *
 * Used by: device/open, train/predict, vfm-bench
 * Calls: base, device/dev, device/ops, spec/model
 * Read first: cpu.h, cpu_gemm.c, cpu_attn.c
 */
