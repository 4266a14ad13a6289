/* cuda_plugin.c - the symbol that libvfm_cuda.so exports: its device and its transport. */
#include "device/dev/plugin.h"

#include "comm/device/comm_nccl.h"
#include "device/cuda/cuda_dev.h"
#include "io/version.h"

__attribute__((visibility("default"))) const struct vfm_plugin vfm_plugin = {
	.abi = VFM_PLUGIN_ABI,
	.name = "cuda",
	.commit = vfm_commit,
	.open = vfm_cuda_open,
	.versions = vfm_cuda_versions,
	.transport = &vfm_nccl_transport,
};
