/* device/cuda - the CUDA device, in a plugin (libvfm_cuda.so) that device/dev/plugin.h opens: its pool, streams, copies
 * and graphs, cuBLASLt and cuDNN.  Our kernels are in kern/; the emulation (kern/emu.h) also compiles them for the
 * host.  gemm_plan, gemm_choice and fault need no CUDA header and are in the library.
 *
 * Used by: comm/device
 * Calls: base, device/dev, device/ops, io, spec/cost, spec/model
 * Read first: cuda_impl.h, kern/kern.h
 */
