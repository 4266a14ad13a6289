/* device/cpu - the CPU device.
 *
 * Our own kernels, selected at run time by instruction set; oneDNN's products on request.
 *
 * Used by: device/open, train/predict, vfm-bench
 * Calls: base, device/dev, device/ops, spec/model
 * Read first: cpu.h, cpu_gemm.c, cpu_attn.h
 */
