#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cuda/cuda_sys.h"

/* The pool.  Memory is given out in the order of the compute stream, so what is freed may be given out again at once.
 *
 * Addresses and memory are two things.  A heap (dev/heap.h) rules over a range of addresses twice as large as the device's memory; memory
 * is mapped below it in chunks when a range is given out that has none yet.  When the device has no more, chunks that lie in holes are
 * unmapped and mapped where they are needed: so holes cost addresses, of which there are plenty, and never memory.
 * Small ranges live in a zone of their own, lest one of them cut a large hole in two.
 *
 * Where mapping is not supported, each chunk is a zone of its own, from cudaMalloc. */

enum { SMALL_BELOW = 1 << 20, SMALL_CHUNK = 2 << 20, MAX_ZONES = 512 };
static const uint64_t LARGE_CHUNK = 32 << 20, PLAIN_CHUNK = 1ull << 30;

struct zone {
	CUdeviceptr base;
	uint64_t size, chunk; /* of the addresses; chunk 0: all of it is memory from cudaMalloc */
	struct vfm_heap *heap;
	bool *mapped;    /* [size / chunk] */
	uint64_t n_mapped; /* chunks */
};

struct vfm_cuda_mem {
	struct vfm_cuda *c;
	bool vmm;
	CUmemAllocationProp prop;
	struct zone zone[MAX_ZONES]; /* vmm: small, large */
	int zones;
	struct vfm_holders holders;
	uint64_t used;
};

static const struct vfm_cuda_driver *drv(const struct vfm_cuda_mem *m)
{
	return &m->c->sys->drv;
}

/* ---- zones ---- */

static int zone_reserve(struct vfm_cuda_mem *m, uint64_t size, uint64_t chunk, uint64_t grain, struct vfm_err *err)
{
	struct zone *z = &m->zone[m->zones];

	size = (size + chunk - 1) / chunk * chunk;
	TRY(vfm_cuda_check_drv(m->c, drv(m)->reserve(&z->base, size, chunk, 0, 0), "addresses for device memory", err));
	z->size = size;
	z->chunk = chunk;
	z->heap = vfm_heap_new(size, grain);
	z->mapped = vfm_calloc(size / chunk, sizeof(*z->mapped));
	m->zones++;
	return 0;
}

/* A zone of memory from cudaMalloc that holds `bytes` at least; of just that when more cannot be had. */
static int zone_plain(struct vfm_cuda_mem *m, uint64_t bytes, struct vfm_err *err)
{
	struct zone *z = &m->zone[m->zones];
	uint64_t size = bytes > PLAIN_CHUNK ? bytes : PLAIN_CHUNK;
	void *p = NULL;
	cudaError_t e;

	if (m->zones == MAX_ZONES)
		return VFM_EENV;
	bytes = (bytes + 511) / 512 * 512;
	size = (size + 511) / 512 * 512;
	e = cudaMalloc(&p, size);
	if (e == cudaErrorMemoryAllocation && size > bytes) {
		cudaGetLastError();
		size = bytes;
		e = cudaMalloc(&p, size);
	}
	if (e == cudaErrorMemoryAllocation) {
		cudaGetLastError();
		return VFM_EENV;
	}
	TRY(vfm_cuda_check(e, "device memory", err));
	*z = (struct zone){.base = (CUdeviceptr)(uintptr_t)p, .size = size, .heap = vfm_heap_new(size, 512)};
	m->zones++;
	m->c->dev.mem_reserved += (int64_t)size;
	return 0;
}

static void zone_release(struct vfm_cuda_mem *m, struct zone *z)
{
	if (!z->chunk) {
		cudaFree((void *)(uintptr_t)z->base);
	} else {
		for (uint64_t i = 0; i < z->size / z->chunk; i++)
			if (z->mapped[i])
				drv(m)->unmap(z->base + i * z->chunk, z->chunk);
		drv(m)->unreserve(z->base, z->size);
	}
	vfm_heap_free(z->heap);
	free(z->mapped);
}

/* ---- memory below addresses ---- */

static CUresult map_chunk(struct vfm_cuda_mem *m, struct zone *z, uint64_t i)
{
	CUmemAccessDesc rw = {.location = m->prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at = z->base + i * z->chunk;
	CUmemGenericAllocationHandle h;
	CUresult e = drv(m)->create(&h, z->chunk, &m->prop, 0);

	if (e != CUDA_SUCCESS)
		return e;
	e = drv(m)->map(at, z->chunk, 0, h, 0);
	drv(m)->release(h); /* the mapping keeps it */
	if (e != CUDA_SUCCESS)
		return e;
	e = drv(m)->access(at, z->chunk, &rw, 1);
	if (e != CUDA_SUCCESS) {
		drv(m)->unmap(at, z->chunk);
		return e;
	}
	z->mapped[i] = true;
	z->n_mapped++;
	m->c->dev.mem_reserved += (int64_t)z->chunk;
	return CUDA_SUCCESS;
}

/* Unmaps the chunks of [from, to) that lie in it as a whole, until `want` bytes are free; how many were. */
static uint64_t unmap_within(struct vfm_cuda_mem *m, struct zone *z, uint64_t from, uint64_t to, uint64_t want)
{
	uint64_t got = 0;

	for (uint64_t i = (from + z->chunk - 1) / z->chunk; got < want && (i + 1) * z->chunk <= to; i++)
		if (z->mapped[i] && drv(m)->unmap(z->base + i * z->chunk, z->chunk) == CUDA_SUCCESS) {
			z->mapped[i] = false;
			z->n_mapped--;
			m->c->dev.mem_reserved -= (int64_t)z->chunk;
			got += z->chunk;
		}
	return got;
}

/* Takes chunks out of holes.  Work that uses what was freed may still run: the host waits for the stream, which nothing but this case
 * needs. */
static uint64_t reclaim(struct vfm_cuda_mem *m, struct vfm_stream *s, uint64_t want)
{
	struct vfm_heap_stats st;
	uint64_t got = 0;

	if (vfm_cuda_stream_of(s)->async ? cudaDeviceSynchronize() != cudaSuccess : cudaStreamSynchronize(vfm_cuda_stream(s)) != cudaSuccess)
		return 0;
	for (int k = m->zones - 1; k >= 0 && got < want; k--) {
		struct zone *z = &m->zone[k];
		uint64_t at = 0, size;

		vfm_heap_stats(z->heap, &st);
		got += unmap_within(m, z, st.top, z->size, want - got);
		for (; got < want && (size = vfm_heap_hole(z->heap, at, &at)) != 0; at += size)
			got += unmap_within(m, z, at, at + size, want - got);
	}
	return got;
}

/* Memory below [at, at + bytes) of the zone.  VFM_EENV with err empty: there is no more. */
static int back(struct vfm_cuda_mem *m, struct vfm_stream *s, struct zone *z, uint64_t at, uint64_t bytes, struct vfm_err *err)
{
	uint64_t first = at / z->chunk, end = (at + bytes + z->chunk - 1) / z->chunk, missing = 0;
	bool again = true;

	for (uint64_t i = first; i < end; i++)
		missing += !z->mapped[i];
	for (uint64_t i = first; i < end && missing; i++) {
		CUresult e;

		if (z->mapped[i])
			continue;
		e = map_chunk(m, z, i);
		if (e == CUDA_ERROR_OUT_OF_MEMORY && again) {
			again = false;
			reclaim(m, s, missing * z->chunk);
			e = map_chunk(m, z, i);
		}
		if (e == CUDA_ERROR_OUT_OF_MEMORY)
			return VFM_EENV;
		TRY(vfm_cuda_check_drv(m->c, e, "device memory", err));
		missing--;
	}
	return 0;
}

static int out_of_memory(struct vfm_cuda_mem *m, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_cuda *c = m->c;
	size_t free_bytes = 0, total = 0;
	uint64_t others = 0;
	char text[VFM_ERR_MAX];

	if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && total - free_bytes > (size_t)c->dev.mem_reserved)
		others = total - free_bytes - (size_t)c->dev.mem_reserved;
	cudaGetLastError();
	vfm_oom_sentence(&(struct vfm_oom){.device = c->dev.name, .what = what, .bytes = bytes, .in_use = m->used,
				 .total = (uint64_t)c->dev.mem_total, .others = others, .holders = &m->holders},
		text, sizeof(text));
	return vfm_fail(err, VFM_EENV, "%s", text);
}

/* ---- the pool ---- */

static void *given(struct vfm_cuda_mem *m, struct zone *z, uint64_t at, size_t bytes)
{
	m->used += bytes;
	return (void *)(uintptr_t)(z->base + at);
}

static void *alloc_mapped(struct vfm_cuda_mem *m, struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct zone *z = &m->zone[bytes >= SMALL_BELOW];
	struct vfm_err why = {0};
	uint32_t tag = vfm_holders_add(&m->holders, what, 0);
	int64_t at = vfm_heap_take(z->heap, bytes, tag);
	int rc = at < 0 ? VFM_EENV : back(m, s, z, (uint64_t)at, bytes ? bytes : 1, &why);

	if (rc == 0) {
		vfm_holders_add(&m->holders, what, bytes);
		return given(m, z, (uint64_t)at, bytes);
	}
	if (at >= 0)
		vfm_heap_give(z->heap, (uint64_t)at, NULL);
	if (!why.msg[0])
		out_of_memory(m, bytes, what, err);
	else if (err)
		*err = why;
	return NULL;
}

static void *alloc_plain(struct vfm_cuda_mem *m, size_t bytes, const char *what, struct vfm_err *err)
{
	uint32_t tag = vfm_holders_add(&m->holders, what, 0);
	struct vfm_err why = {0};
	int64_t at = -1;
	int k = 0;

	for (; k < m->zones && at < 0; k++)
		at = vfm_heap_take(m->zone[k].heap, bytes, tag);
	if (at < 0) {
		if (zone_plain(m, bytes, &why) < 0) {
			if (!why.msg[0])
				out_of_memory(m, bytes, what, err);
			else if (err)
				*err = why;
			return NULL;
		}
		k = m->zones;
		at = vfm_heap_take(m->zone[k - 1].heap, bytes, tag);
	}
	vfm_holders_add(&m->holders, what, bytes);
	return given(m, &m->zone[k - 1], (uint64_t)at, bytes);
}

void *vfm_cuda_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_cuda_mem *m = vfm_cuda_of(s)->sys->mem;

	if (bytes > (size_t)INT64_MAX / 2) {
		vfm_fail(err, VFM_EENV, "no memory for %s (%zu bytes)", what, bytes);
		return NULL;
	}
	return m->vmm ? alloc_mapped(m, s, bytes, what, err) : alloc_plain(m, bytes, what, err);
}

static struct zone *zone_of(const struct vfm_cuda_mem *m, const void *p)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;

	for (int k = 0; k < m->zones; k++)
		if (at >= m->zone[k].base && at - m->zone[k].base < m->zone[k].size)
			return (struct zone *)&m->zone[k];
	return NULL;
}

bool vfm_cuda_mem_holds(const struct vfm_cuda_mem *m, const void *p)
{
	return zone_of(m, p) != NULL;
}

void vfm_cuda_free(struct vfm_stream *s, void *p, size_t bytes)
{
	struct vfm_cuda_mem *m = vfm_cuda_of(s)->sys->mem;
	struct zone *z = zone_of(m, p);
	uint32_t tag;

	if (!z || !vfm_heap_give(z->heap, (CUdeviceptr)(uintptr_t)p - z->base, &tag)) {
		fprintf(stderr, "device memory %p is freed that was not allocated\n", p);
		abort();
	}
	vfm_holders_sub(&m->holders, tag, bytes);
	m->used -= bytes;
}

/* Whether there is all that mapping needs.  Exportable and reachable by network cards where the device has it: then NCCL can use it as
 * it is. */
static bool can_map(struct vfm_cuda_mem *m, uint64_t *grain)
{
	const struct vfm_cuda_driver *v = drv(m);
	size_t g = 0;
	CUdevice dev;
	int yes = 0;

	if (!v->reserve || !v->unreserve || !v->create || !v->release || !v->map || !v->unmap || !v->access || !v->granularity)
		return false;
	if (v->device_get(&dev, m->c->ordinal) != CUDA_SUCCESS ||
		v->attribute(&yes, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, dev) != CUDA_SUCCESS || !yes)
		return false;
	m->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	m->prop.location.id = m->c->ordinal;
	if (v->attribute(&yes, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, dev) == CUDA_SUCCESS && yes)
		m->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (v->attribute(&yes, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, dev) == CUDA_SUCCESS && yes)
		m->prop.allocFlags.gpuDirectRDMACapable = 1;
	if (v->granularity(&g, &m->prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS || g == 0 || (g & (g - 1)))
		return false;
	*grain = g;
	return true;
}

struct vfm_cuda_mem *vfm_cuda_mem_new(struct vfm_cuda *c, struct vfm_err *err)
{
	struct vfm_cuda_mem *m = vfm_calloc(1, sizeof(*m));
	uint64_t total = (uint64_t)c->dev.mem_total, g = 0;

	m->c = c;
	m->vmm = can_map(m, &g);
	if (!m->vmm)
		return m;
	if (zone_reserve(m, total, g > SMALL_CHUNK ? g : SMALL_CHUNK, 512, err) == 0 &&
		zone_reserve(m, 2 * total, g > LARGE_CHUNK ? g : LARGE_CHUNK, 64 << 10, err) == 0)
		return m;
	vfm_cuda_mem_free(m);
	return NULL;
}

void vfm_cuda_mem_free(struct vfm_cuda_mem *m)
{
	if (!m)
		return;
	for (int k = 0; k < m->zones; k++)
		zone_release(m, &m->zone[k]);
	vfm_holders_release(&m->holders);
	free(m);
}
