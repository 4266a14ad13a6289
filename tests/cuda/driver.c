/* driver.c - a libcuda.so.1 with which cuDNN builds plans without an NVIDIA driver.
 *
 * Plans for a described device (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) are compiled on the host, but cuDNN asks a driver
 * to load the result.  This one accepts every image, has no device, and logs the requested kernels to $VFM_DRIVER_LOG.
 * Only tests/cuda/cudnn_plans uses it.
 */
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, NO_DEVICE = 100 };

/* Symbols that are looked up at load time; calls return an error. */
#define REFUSES(name)                                                                                                  \
	int name(void);                                                                                                \
	int name(void)                                                                                                 \
	{                                                                                                              \
		return NO_DEVICE;                                                                                      \
	}
#define ACCEPTS(name)                                                                                                  \
	int name(void);                                                                                                \
	int name(void)                                                                                                 \
	{                                                                                                              \
		return SUCCESS;                                                                                        \
	}

static int image, kernel;

int cuDriverGetVersion(int *v);
int cuDriverGetVersion(int *v)
{
	*v = 13000;
	return SUCCESS;
}

int cuGetErrorName(int e, const char **s);
int cuGetErrorName(int e, const char **s)
{
	(void)e;
	*s = "no device";
	return SUCCESS;
}

int cuGetErrorString(int e, const char **s);
int cuGetErrorString(int e, const char **s)
{
	return cuGetErrorName(e, s);
}

int cuLibraryLoadData(void **lib);
int cuLibraryLoadData(void **lib)
{
	*lib = &image;
	return SUCCESS;
}

int cuLibraryGetKernel(void **k, void *lib, const char *name);
int cuLibraryGetKernel(void **k, void *lib, const char *name)
{
	const char *path = getenv("VFM_DRIVER_LOG");
	FILE *f = path ? fopen(path, "a") : NULL;

	(void)lib;
	*k = &kernel;
	if (f) {
		fprintf(f, "%s\n", name);
		fclose(f);
	}
	return SUCCESS;
}

ACCEPTS(cuLibraryUnload)
ACCEPTS(cuKernelSetAttribute)
ACCEPTS(cuFuncSetAttribute)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetDevice)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuDeviceGet)
REFUSES(cuDeviceGetAttribute)
REFUSES(cuDeviceGetCount)
REFUSES(cuDevicePrimaryCtxRelease)
REFUSES(cuDevicePrimaryCtxReset)
REFUSES(cuDevicePrimaryCtxRetain)
REFUSES(cuFuncGetAttribute)
REFUSES(cuInit)
REFUSES(cuKernelGetAttribute)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLibraryLoadFromFile)
REFUSES(cuLinkAddData)
REFUSES(cuLinkAddData_v2)
REFUSES(cuLinkAddFile_v2)
REFUSES(cuLinkComplete)
REFUSES(cuLinkCreate)
REFUSES(cuLinkCreate_v2)
REFUSES(cuLinkDestroy)
REFUSES(cuMemcpyDtoH_v2)
REFUSES(cuModuleGetFunction)
REFUSES(cuModuleGetGlobal_v2)
REFUSES(cuModuleLoadData)
REFUSES(cuModuleLoadDataEx)
REFUSES(cuModuleLoadFatBinary)
REFUSES(cuModuleUnload)
REFUSES(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSES(cuOccupancyMaxPotentialClusterSize)
REFUSES(cuStreamGetCtx)
REFUSES(cuStreamSynchronize)
REFUSES(cuTensorMapEncodeTiled)
