#include "device/dev/plugin.h"

#include <cublasLt.h>
#include <cudnn_version.h>
#include <nccl.h>
#include <stdio.h>

#include "io/opt.h"
#include "device/cuda/cuda_sys.h"
#include "io/version.h"

size_t cudnnGetVersion(void); /* as in cudnn.h, which includes much else */

/* comm/device/comm_nccl.c, where the plugin has it. */
extern const struct vfm_transport vfm_nccl_transport __attribute__((weak));

void vfm_cuda_versions(char *buf, size_t len)
{
	unsigned lt = (unsigned)cublasLtGetVersion(), dnn = (unsigned)cudnnGetVersion();
	int cuda = 0, nccl = 0;

	if (cudaRuntimeGetVersion(&cuda) != cudaSuccess)
		cuda = CUDART_VERSION;
	ncclGetVersion(&nccl);
	snprintf(buf, len, "CUDA %d.%d, cuBLASLt %u.%u.%u, cuDNN %u.%u.%u, NCCL %d.%d.%d", cuda / 1000,
		cuda % 1000 / 10, lt / 10000, lt / 100 % 100, lt % 100, dnn / 10000, dnn / 100 % 100, dnn % 100,
		nccl / 10000, nccl / 100 % 100, nccl % 100);
}

__attribute__((visibility("default"))) const struct vfm_plugin vfm_plugin = {
	.abi = VFM_PLUGIN_ABI,
	.name = "cuda",
	.commit = vfm_commit,
	.open = vfm_cuda_open,
	.versions = vfm_cuda_versions,
	.transport = &vfm_nccl_transport,
};
