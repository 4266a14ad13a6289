/* cuda_sys.h - shared by the files that implement the device itself: cuda_dev.c, cuda_stream.c, cuda_copy.c,
 * cuda_mem.c. */
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

/* A stream.  cuda_stream.c implements calls on the host; other files read only st, async and dev. */
struct vfm_cuda_stream {
	struct vfm_stream s; /* first */
	cudaStream_t st;
	bool async;
	int slot;
	uint64_t deps; /* slots of the streams that it has waited for, directly or not (under the lock) */
	int rc;        /* error of the first failed call on the host (under the lock) */
	struct vfm_err err;
	struct vfm_cuda_calls *calls;   /* asynchronous streams: created by the first call */
	struct vfm_cuda_staged *staged; /* compute streams: created by the first copy of pageable memory */
	void *ws;
	size_t ws_bytes;
};

static inline struct vfm_cuda_stream *vfm_cuda_stream_of(struct vfm_stream *s)
{
	return (struct vfm_cuda_stream *)s;
}

/* Selects this device for the calling thread; otherwise CUDA would use device 0. */
int vfm_cuda_use(struct vfm_cuda *c, struct vfm_err *err);
/* The same for error codes of the driver. */
int vfm_cuda_check_drv(struct vfm_cuda *c, CUresult e, const char *what, struct vfm_err *err);
/* Reports a sticky error of the context, after which every CUDA call fails. */
bool vfm_cuda_broken(void);

/* cuda_stream.c */
struct vfm_stream *vfm_cuda_stream_new(struct vfm_dev *d, bool async, struct vfm_err *err);
void vfm_cuda_stream_free(struct vfm_stream *s);
int vfm_cuda_stream_sync(struct vfm_stream *s, struct vfm_err *err);
int vfm_cuda_host_call(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg, size_t bytes,
	struct vfm_err *err);
struct vfm_event *vfm_cuda_event_new(struct vfm_dev *d, struct vfm_err *err);
struct vfm_event *vfm_cuda_event_new_timed(struct vfm_dev *d, struct vfm_err *err);
void vfm_cuda_event_free(struct vfm_event *e);
int vfm_cuda_event_record(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);
int vfm_cuda_event_wait(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);
int vfm_cuda_event_sync(struct vfm_event *e, struct vfm_err *err);
bool vfm_cuda_event_passed(struct vfm_event *e);
int vfm_cuda_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err);

/* cuda_graph.c */
int vfm_cuda_graph_begin(struct vfm_stream *s, struct vfm_err *err);
int vfm_cuda_graph_end(struct vfm_stream *s, bool run, struct vfm_err *err);
void vfm_cuda_graphs_free(struct vfm_cuda_graphs *g);

/* cuda_copy.c */
void *vfm_cuda_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err);
void vfm_cuda_free_host(struct vfm_dev *d, void *p, size_t bytes);
int vfm_cuda_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err);
int vfm_cuda_to_host(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err);
int vfm_cuda_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err);
void vfm_cuda_staged_free(struct vfm_cuda_staged *g);

/* cuda_mem.c */
struct vfm_cuda_mem *vfm_cuda_mem_new(struct vfm_cuda *c, struct vfm_err *err);
void vfm_cuda_mem_free(struct vfm_cuda_mem *m); /* no work may use the memory any more; NULL is fine */
void *vfm_cuda_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err);
void vfm_cuda_free(struct vfm_stream *s, void *p, size_t bytes);
bool vfm_cuda_mem_holds(const struct vfm_cuda_mem *m, const void *p);

/* ops.c: the op table; `ranges` adds an NVTX range around each op. */
const struct vfm_ops *vfm_cuda_ops_table(bool ranges);

/* first_use.c: loads all our kernels, before the first collective. */
void vfm_cuda_load_kernels(void);

/* plugin.c: see plugin.h */
void vfm_cuda_versions(char *buf, size_t len);

/* cuda_dev.c */
struct vfm_dev *vfm_cuda_open(const struct vfm_plugin_opts *o, struct vfm_err *err);

#endif
