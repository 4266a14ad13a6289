/* plugin.c - the exported symbol. */
#include "device/dev/plugin.h"

#include "device/cuda/cuda_dev.h"
#include "io/version.h"

/* comm/device/comm_nccl.c, where the plugin has it. */
extern const struct vfm_transport vfm_nccl_transport __attribute__((weak));

__attribute__((visibility("default"))) const struct vfm_plugin vfm_plugin = {
	.abi = VFM_PLUGIN_ABI,
	.name = "cuda",
	.commit = vfm_commit,
	.open = vfm_cuda_open,
	.versions = vfm_cuda_versions,
	.transport = &vfm_nccl_transport,
};
