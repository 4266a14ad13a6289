/* cuda_stream.h - streams, events and calls on the host. */
#ifndef VFM_DEVICE_CUDA_CUDA_STREAM_H
#define VFM_DEVICE_CUDA_CUDA_STREAM_H

#include "device/cuda/cuda_dev.h"

/* A stream.  Other files read only st, async and dev. */
struct vfm_cuda_stream {
	struct vfm_stream s; /* first */
	cudaStream_t st;
	bool async;
	int slot;
	uint64_t deps; /* slots of the streams that it has waited for, directly or indirectly (under the lock) */
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

#endif
