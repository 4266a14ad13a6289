/* cuda_copy.c - pinned memory, and copies of pageable memory through a pinned ring. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cuda/cuda_mem.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"

/* ---- pinned memory ---- */

void *vfm_cuda_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_cuda *c = (struct vfm_cuda *)d;
	struct vfm_cuda_sys *y = c->sys;
	void *p = NULL;
	cudaError_t e;

	if (vfm_cuda_use(c, err) < 0)
		return NULL;
	bytes = bytes ? bytes : 1;
	e = cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
	if (e == cudaErrorMemoryAllocation) {
		cudaGetLastError();
		vfm_fail(err, VFM_EENV, "cannot allocate pinned host memory for %s (%.2f GiB)", what,
			(double)bytes / (1 << 30));
		return NULL;
	}
	if (vfm_cuda_check(e, what, err) < 0) {
		vfm_err_context(err, "%.2f GiB of pinned host memory", (double)bytes / (1 << 30));
		return NULL;
	}
	pthread_mutex_lock(&y->lock);
	vfm_ranges_add(&y->host, p, bytes);
	pthread_mutex_unlock(&y->lock);
	return p;
}

void vfm_cuda_free_host(struct vfm_dev *d, void *p, size_t bytes)
{
	struct vfm_cuda *c = (struct vfm_cuda *)d;
	struct vfm_cuda_sys *y = c->sys;

	(void)bytes;
	if (!p || vfm_cuda_use(c, NULL) < 0)
		return;
	pthread_mutex_lock(&y->lock);
	vfm_ranges_remove(&y->host, p);
	pthread_mutex_unlock(&y->lock);
	cudaFreeHost(p);
}

/* ---- copies of ordinary memory ---- */

enum { SEGMENTS = 16, SEGMENT = 4 << 20 };

struct vfm_cuda_staged {
	struct vfm_staging at;
	char *ring; /* pinned, [SEGMENTS * SEGMENT] */
	cudaEvent_t ev[SEGMENTS];
	int n_ev;
};

void vfm_cuda_staged_free(struct vfm_cuda_staged *g)
{
	if (!g)
		return;
	for (int i = 0; i < g->n_ev; i++)
		cudaEventDestroy(g->ev[i]);
	if (g->ring)
		cudaFreeHost(g->ring);
	free(g);
}

static struct vfm_cuda_staged *staged_new(struct vfm_err *err)
{
	struct vfm_cuda_staged *g = vfm_calloc(1, sizeof(*g));
	void *ring = NULL;
	int rc;

	g->at = (struct vfm_staging){.segment = SEGMENT, .n = SEGMENTS};
	rc = vfm_cuda_check(cudaHostAlloc(&ring, (size_t)SEGMENTS * SEGMENT, cudaHostAllocPortable),
		"pinned memory for copies", err);
	g->ring = ring;
	while (rc == 0 && g->n_ev < SEGMENTS) {
		rc = vfm_cuda_check(
			cudaEventCreateWithFlags(&g->ev[g->n_ev], cudaEventDisableTiming), "an event for copies", err);
		g->n_ev += rc == 0;
	}
	if (rc == 0)
		return g;
	vfm_cuda_staged_free(g);
	return NULL;
}

static int copy_staged(struct vfm_cuda_stream *s, char *dst, const char *host, size_t bytes, struct vfm_err *err)
{
	struct vfm_cuda_staged *g;

	TRY(vfm_cuda_refuse(vfm_cuda_of(&s->s), s->st, "a copy of ordinary memory", false, err));
	if (!s->staged)
		s->staged = staged_new(err);
	g = s->staged;
	if (!g)
		return VFM_EENV;
	while (bytes) {
		struct vfm_staging_chunk p = vfm_staging_next(&g->at, bytes);

		if (p.leave >= 0)
			TRY(vfm_cuda_check(cudaEventRecord(g->ev[p.leave], s->st), "a copy to the device", err));
		if (p.enter >= 0) {
			double t0 = vfm_now();

			TRY(vfm_cuda_check(cudaEventSynchronize(g->ev[p.enter]), "a copy to the device", err));
			s->s.dev->behind_s += vfm_now() - t0;
		}
		memcpy(g->ring + p.at, host, p.bytes);
		TRY(vfm_cuda_check(cudaMemcpyAsync(dst, g->ring + p.at, p.bytes, cudaMemcpyHostToDevice, s->st),
			"a copy to the device", err));
		dst += p.bytes;
		host += p.bytes;
		bytes -= p.bytes;
	}
	return 0;
}

/* Returns whether p is pageable: neither memory of alloc_host nor of a device. */
static bool ordinary(struct vfm_cuda *c, const void *p, size_t bytes)
{
	struct cudaPointerAttributes a;
	bool locked;

	if (vfm_cuda_mem_holds(c->sys->mem, p))
		return false;
	pthread_mutex_lock(&c->sys->lock);
	locked = vfm_ranges_hold(&c->sys->host, p, bytes);
	pthread_mutex_unlock(&c->sys->lock);
	if (locked)
		return false;
	/* CUDA knows memory that libraries allocated.  Memory that others have pinned may be changed by its owner at
	 * once, so it counts as pageable. */
	if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
		cudaGetLastError();
		return true;
	}
	return a.type != cudaMemoryTypeDevice && a.type != cudaMemoryTypeManaged;
}

int vfm_cuda_to_device(struct vfm_stream *stream, void *dst, const void *host, size_t bytes, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);

	if (!bytes)
		return 0;
	if (!s->async && ordinary(vfm_cuda_of(stream), host, bytes))
		return copy_staged(s, dst, host, bytes, err);
	return vfm_cuda_check(cudaMemcpyAsync(dst, host, bytes, cudaMemcpyDefault, s->st), "a copy to the device", err);
}

/* A copy to pageable memory blocks the host until it is complete. */
int vfm_cuda_to_host(struct vfm_stream *stream, void *host, const void *src, size_t bytes, struct vfm_err *err)
{
	if (!bytes)
		return 0;
	if (vfm_cuda_of(stream)->sys->capturing && ordinary(vfm_cuda_of(stream), host, bytes))
		TRY(vfm_cuda_refuse(
			vfm_cuda_of(stream), vfm_cuda_stream(stream), "a copy to ordinary memory", false, err));
	return vfm_cuda_check(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDefault, vfm_cuda_stream(stream)),
		"a copy to the host", err);
}

int vfm_cuda_zero(struct vfm_stream *stream, void *dst, size_t bytes, struct vfm_err *err)
{
	if (!bytes)
		return 0;
	return vfm_cuda_check(cudaMemsetAsync(dst, 0, bytes, vfm_cuda_stream(stream)), "zeroing", err);
}
