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

/* Functions of libcuda: field, name, version.  The plugin does not link libcuda, so that it loads without a driver. */
#define VFM_CUDA_DRIVER(X)                                                                                             \
	X(error_string, GetErrorString, 6000)                                                                          \
	X(device_get, DeviceGet, 2000)                                                                                 \
	X(attribute, DeviceGetAttribute, 2000)                                                                         \
	X(write_value, StreamWriteValue32, 11070)                                                                      \
	X(wait_value, StreamWaitValue32, 11070)                                                                        \
	X(granularity, MemGetAllocationGranularity, 10020)                                                             \
	X(reserve, MemAddressReserve, 10020)                                                                           \
	X(unreserve, MemAddressFree, 10020)                                                                            \
	X(create, MemCreate, 10020)                                                                                    \
	X(release, MemRelease, 10020)                                                                                  \
	X(map, MemMap, 10020)                                                                                          \
	X(unmap, MemUnmap, 10020)                                                                                      \
	X(access, MemSetAccess, 10020)
struct vfm_cuda_driver {
#define X(field, name, version) PFN_cu##name##_v##version field;
	VFM_CUDA_DRIVER(X)
#undef X
};

enum { VFM_CUDA_STREAMS = 64 }; /* maximum number of streams: bits of a mask */

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
	/* State of several threads; under the lock. */
	pthread_mutex_t lock;
	struct vfm_ranges host;                           /* memory of alloc_host */
	struct vfm_cuda_stream *stream[VFM_CUDA_STREAMS]; /* by slot */
	uint32_t generation[VFM_CUDA_STREAMS];            /* number of streams that have used the slot */
	atomic_int failures;                              /* mask of failed streams: 0 is the fast path */
};

#endif
