/* calibrate_gpu.h - measures the rates of GPUs for a machine file (vfm-machine(5)).
 *
 * The file begins as a copy of another machine.  Keys that are not measured, such as the tiles of products, keep their
 * values and sources.  Measured keys:
 *   - name, capacity_bytes, gemm_bf16_tflops, gemm_f32_tflops, copy_gb_s, kernel_of_copy, the rows of attention,
 *     gap_us, graph_gap_us, launch_host_us, pcie_gb_s
 *   - with several ranks, which must fill whole nodes: nvlink_gb_s, collective_us, hop_us
 *   - on several nodes: network_gb_s
 */
#ifndef CMD_CALIBRATE_GPU_H
#define CMD_CALIBRATE_GPU_H

#include "io/json.h"
#include "train/job/context.h"

struct gpu_calibration {
	const char *like; /* the machine, as for vfm_machine_load */
	int repeat;       /* runs of each measurement */
	bool tiny;        /* small sizes with meaningless rates, for tests */
};

/* Sets *out to the file on rank 0, which the caller frees; NULL on other ranks.  Collective.  Requires
 * vfm_context_device. */
int calibrate_gpus(struct vfm_context *x, const struct gpu_calibration *c, json_t **out, struct vfm_err *err);

#endif
