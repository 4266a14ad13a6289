/* cuda_sys.h - the state of the device, for the files that implement it: cuda_dev.c, cuda_stream.c, cuda_copy.c,
 * cuda_graph.c, cuda_mem.c. */
#ifndef VFM_DEVICE_CUDA_CUDA_SYS_H
#define VFM_DEVICE_CUDA_CUDA_SYS_H

#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device/cuda/cuda_dev.h"
#include "device/cuda/fault.h"
#include "device/dev/heap.h"
#include "device/dev/holders.h"
#include "device/dev/mapped.h"
#include "device/dev/plugin.h"
#include "device/dev/staging.h"

/* Functions of libcuda.  The plugin does not link it, so that it can be loaded without a driver. */
struct vfm_cuda_driver {
	PFN_cuGetErrorString_v6000 error_string;
	PFN_cuDeviceGet_v2000 device_get;
	PFN_cuDeviceGetAttribute_v2000 attribute;
	PFN_cuStreamWriteValue32_v11070 write_value;
	PFN_cuStreamWaitValue32_v11070 wait_value;
	PFN_cuMemGetAllocationGranularity_v10020 granularity;
	PFN_cuMemAddressReserve_v10020 reserve;
	PFN_cuMemAddressFree_v10020 unreserve;
	PFN_cuMemCreate_v10020 create;
	PFN_cuMemRelease_v10020 release;
	PFN_cuMemMap_v10020 map;
	PFN_cuMemUnmap_v10020 unmap;
	PFN_cuMemSetAccess_v10020 access;
};

enum { VFM_CUDA_STREAMS = 64 }; /* most streams at a time: bits of a mask */

struct vfm_cuda_graphs;
struct vfm_cuda_mem;
struct vfm_cuda_stream;

struct vfm_cuda_sys {
	struct vfm_cuda_driver drv;
	struct vfm_cuda_mem *mem;
	struct vfm_cuda_graphs *graphs; /* NULL: none yet */
	bool capturing;                 /* a capture is in progress */
	uint64_t graph_number;          /* its number */
	void (*thread_start)(void);
	uint64_t *faults; /* [VFM_OP_N], pinned: fault.h */
	/* State of several threads, under the lock. */
	pthread_mutex_t lock;
	struct vfm_ranges host;                           /* memory of alloc_host */
	struct vfm_cuda_stream *stream[VFM_CUDA_STREAMS]; /* by slot */
	uint32_t generation[VFM_CUDA_STREAMS];            /* streams that have used the slot */
	atomic_int failures;                              /* mask of failed streams: 0 is the fast path */
};

#endif
