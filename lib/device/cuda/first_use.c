/* Loads kernels when the device opens, and times ops when it is idle.
 *
 * CUDA loads a kernel at its first launch (CUDA_MODULE_LOADING=LAZY, the default), and the driver may wait for running
 * work to do so ("Lazy Loading" in NVIDIA's CUDA programming guide).  That is a deadlock if the running work is a
 * collective whose other ranks wait for this one.  nvcc's code registers each kernel with __cudaRegisterFunction when
 * the plugin is loaded; the linker replaces this call by the function below (--wrap in the Makefile). */
#include <time.h>

#include "base/clock.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"

enum { MOST_KERNELS = 4096 };

static struct {
	const void *at[MOST_KERNELS]; /* the host's functions that represent them */
	int n;
} kernels;

void __real___cudaRegisterFunction(void **module, const void *host, char *device, const char *name, int threads,
	void *tid, void *bid, void *block, void *grid, int *warp);
void __wrap___cudaRegisterFunction(void **module, const void *host, char *device, const char *name, int threads,
	void *tid, void *bid, void *block, void *grid, int *warp);
void __wrap___cudaRegisterFunction(void **module, const void *host, char *device, const char *name, int threads,
	void *tid, void *bid, void *block, void *grid, int *warp)
{
	__real___cudaRegisterFunction(module, host, device, name, threads, tid, bid, block, grid, warp);
	if (kernels.n < MOST_KERNELS)
		kernels.at[kernels.n++] = host;
}

void vfm_cuda_load_kernels(void)
{
	struct cudaFuncAttributes a;

	for (int i = 0; i < kernels.n; i++)
		(void)cudaFuncGetAttributes(&a, kernels.at[i]);
	cudaGetLastError(); /* a launch reports it */
}

/* Returns whether stream i has work.  The lock keeps it from being freed meanwhile. */
static bool has_work(struct vfm_cuda_sys *y, int i)
{
	bool busy;

	pthread_mutex_lock(&y->lock);
	busy = y->stream[i] && cudaStreamQuery(y->stream[i]->st) == cudaErrorNotReady;
	pthread_mutex_unlock(&y->lock);
	if (busy)
		cudaGetLastError(); /* cudaErrorNotReady is none */
	return busy;
}

bool vfm_cuda_idle(struct vfm_cuda *c, double most_s)
{
	const struct timespec nap = {0, 20000};
	double t0 = vfm_now();

	if (c->sys->capturing)
		return false;
	for (int i = 0; i < VFM_CUDA_STREAMS; i++)
		while (has_work(c->sys, i)) {
			if (vfm_now() - t0 >= most_s)
				return false;
			nanosleep(&nap, NULL);
		}
	return true;
}
