/* cuda_mem.c - the pool of device memory, mapped to virtual addresses or in pieces of cudaMalloc. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cuda/cuda_mem.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"

/* The memory pool, in the order of the compute stream.  It is mapped into a range of addresses twice as large as the
 * memory of the device (device/dev/mapped.h).  Small allocations have their own zone, so that they do not fragment
 * large free ranges.  Without support for mapping, the pool is a list of large pieces from cudaMalloc. */

enum { SMALL, LARGE, ZONES, SMALL_BELOW = 1 << 20, SMALL_CHUNK = 2 << 20, MAX_PIECES = 512 };
static const uint64_t LARGE_CHUNK = 32 << 20, PIECE = 1ull << 30;
/* Left to the driver and to libraries, which load kernels and allocate workspaces at their first use. */
static const size_t HEADROOM = 512 << 20;

struct pool_piece {
	char *base;
	uint64_t size;
	struct vfm_heap *heap;
};

struct vfm_cuda_mem {
	struct vfm_cuda *c;
	struct vfm_stream *stream; /* error of the current allocation */
	CUmemAllocationProp prop;
	struct vfm_mapped mapped;
	CUdeviceptr base[ZONES]; /* granularity of mappings; 0: mapping is not supported */
	struct pool_piece piece[MAX_PIECES];
	int pieces;
	struct vfm_holders holders;
	uint64_t used;
	int64_t lent; /* from vfm_cuda_mem_lent; included in used */
};

static const struct vfm_cuda_driver *drv(const struct vfm_cuda_mem *m)
{
	return &m->c->sys->drv;
}

/* ---- memory below addresses ---- */

/* Returns whether a chunk would leave less than the headroom; asks the driver only when most memory is mapped. */
static bool needs_headroom(const struct vfm_cuda_mem *m, uint64_t chunk)
{
	size_t free_bytes = 0, total = 0;

	if (m->mapped.bytes < (uint64_t)m->c->dev.mem_total / 8 * 7)
		return false;
	if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
		cudaGetLastError();
		return false;
	}
	return free_bytes < chunk + HEADROOM;
}

/* Maps new memory at reserved addresses. */
static CUresult map_memory(const struct vfm_cuda_mem *m, CUdeviceptr at, size_t bytes)
{
	CUmemAccessDesc rw = {.location = m->prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle h;
	CUresult e = drv(m)->create(&h, bytes, &m->prop, 0);

	if (e != CUDA_SUCCESS)
		return e;
	e = drv(m)->map(at, bytes, 0, h, 0);
	drv(m)->release(h); /* the mapping keeps a reference */
	if (e != CUDA_SUCCESS)
		return e;
	e = drv(m)->access(at, bytes, &rw, 1);
	if (e != CUDA_SUCCESS)
		drv(m)->unmap(at, bytes);
	return e;
}

static int map(void *ctx, int zone, uint64_t i, struct vfm_err *err)
{
	struct vfm_cuda_mem *m = ctx;
	uint64_t chunk = m->mapped.zone[zone].chunk;
	CUresult e;

	if (needs_headroom(m, chunk))
		return VFM_MAPPED_FULL;
	e = map_memory(m, m->base[zone] + i * chunk, chunk);
	if (e == CUDA_ERROR_OUT_OF_MEMORY)
		return VFM_MAPPED_FULL;
	return vfm_cuda_check_drv(m->c, e, "device memory", err);
}

static int unmap(void *ctx, int zone, uint64_t i)
{
	struct vfm_cuda_mem *m = ctx;
	uint64_t chunk = m->mapped.zone[zone].chunk;

	return drv(m)->unmap(m->base[zone] + i * chunk, chunk) == CUDA_SUCCESS ? 0 : VFM_EENV;
}

/* Waits for work on freed memory; the compute stream has waited for the other streams before. */
static int drain_streams(void *ctx)
{
	struct vfm_cuda_mem *m = ctx;
	cudaError_t e;

	if (m->c->sys->capturing) { /* the error of a full device is reported by the caller */
		m->c->dev.graph_first = true;
		return VFM_EENV;
	}
	e = !m->stream || vfm_cuda_stream_of(m->stream)->async ? cudaDeviceSynchronize()
							       : cudaStreamSynchronize(vfm_cuda_stream(m->stream));

	return e == cudaSuccess ? 0 : VFM_EENV;
}

static const struct vfm_mapped_table mapping = {map, unmap, drain_streams};

static int zone_new(struct vfm_cuda_mem *m, uint64_t size, uint64_t chunk, uint64_t grain, struct vfm_err *err)
{
	size = (size + chunk - 1) / chunk * chunk;
	TRY(vfm_cuda_check_drv(m->c, drv(m)->reserve(&m->base[m->mapped.zones], size, chunk, 0, 0),
		"addresses for device memory", err));
	vfm_mapped_zone(&m->mapped, size, chunk, grain);
	return 0;
}

/* ---- pieces of cudaMalloc ---- */

/* Adds a piece of at least `bytes`; of exactly that if no more is available.  Returns 0, FULL, or a negative code. */
static int piece_new(struct vfm_cuda_mem *m, uint64_t bytes, struct vfm_err *err)
{
	uint64_t want = (bytes + 512) / 512 * 512, size = want > PIECE ? want : PIECE;
	void *p = NULL;
	cudaError_t e;

	if (m->pieces == MAX_PIECES)
		return VFM_MAPPED_FULL;
	e = cudaMalloc(&p, size);
	if (e == cudaErrorMemoryAllocation && size > want) {
		cudaGetLastError();
		size = want;
		e = cudaMalloc(&p, size);
	}
	if (e == cudaErrorMemoryAllocation) {
		cudaGetLastError();
		return VFM_MAPPED_FULL;
	}
	TRY(vfm_cuda_check(e, "device memory", err));
	m->piece[m->pieces++] = (struct pool_piece){p, size, vfm_heap_new(size, 512)};
	m->c->dev.mem_reserved += (int64_t)size;
	return 0;
}

static int report_full_pool(struct vfm_cuda_mem *m, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_cuda *c = m->c;
	size_t free_bytes = 0, total = 0;
	uint64_t others = 0;
	char text[VFM_ERR_MAX];

	if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && total - free_bytes > (size_t)c->dev.mem_reserved)
		others = total - free_bytes - (size_t)c->dev.mem_reserved;
	cudaGetLastError();
	vfm_oom_sentence(&(struct vfm_oom){.device = c->dev.name,
				 .what = what,
				 .bytes = bytes,
				 .in_use = m->used,
				 .total = (uint64_t)c->dev.mem_total,
				 .others = others,
				 .holders = &m->holders,
				 .oom_hints = &c->dev.oom_hints},
		text, sizeof(text));
	return vfm_fail(err, VFM_EENV, "%s", text);
}

/* ---- the pool ---- */

static int take_mapped(
	struct vfm_cuda_mem *m, struct vfm_stream *s, size_t bytes, uint32_t tag, void **p, struct vfm_err *err)
{
	int zone = bytes >= SMALL_BELOW ? LARGE : SMALL, rc;
	uint64_t at;

	m->stream = s;
	vfm_mapped_set_limit(&m->mapped, m->c->dev.mem_limit);
	rc = vfm_mapped_take(&m->mapped, zone, bytes, tag, &at, err);
	m->c->dev.mem_reserved = (int64_t)m->mapped.bytes + m->lent;
	m->c->dev.mem_compactions = m->mapped.compactions;
	if (rc == 0)
		*p = (void *)(uintptr_t)(m->base[zone] + at);
	return rc;
}

static int take_piece(struct vfm_cuda_mem *m, size_t bytes, uint32_t tag, void **p, struct vfm_err *err)
{
	for (int k = 0;; k++) {
		int64_t at;

		if (k == m->pieces) {
			int rc = piece_new(m, bytes, err);

			if (rc != 0)
				return rc;
		}
		at = vfm_heap_take(m->piece[k].heap, bytes, tag);
		if (at >= 0) {
			*p = m->piece[k].base + at;
			return 0;
		}
	}
}

void *vfm_cuda_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_cuda_mem *m = vfm_cuda_of(s)->sys->mem;
	uint32_t tag = vfm_holders_add(&m->holders, what, 0);
	void *p = NULL;
	int rc = bytes > (size_t)INT64_MAX / 2 ? VFM_MAPPED_FULL
		: m->base[LARGE]               ? take_mapped(m, s, bytes, tag, &p, err)
					       : take_piece(m, bytes, tag, &p, err);

	if (rc == VFM_MAPPED_FULL)
		report_full_pool(m, bytes, what, err);
	if (rc != 0)
		return NULL;
	m->holders.v[tag].bytes += bytes;
	m->used += bytes;
	return p;
}

void vfm_cuda_mem_lent(struct vfm_stream *s, const char *what, int64_t bytes)
{
	struct vfm_cuda_mem *m = vfm_cuda_of(s)->sys->mem;
	uint32_t tag = vfm_holders_add(&m->holders, what, 0);

	m->holders.v[tag].bytes += (uint64_t)bytes;
	m->used += (uint64_t)bytes;
	m->lent += bytes;
	m->c->dev.mem_reserved += bytes;
}

/* Returns the zone or piece that contains p; -1: not of this pool. */
static int find_zone(const struct vfm_cuda_mem *m, const void *ptr, uint64_t *at)
{
	CUdeviceptr p = (CUdeviceptr)(uintptr_t)ptr;

	for (int k = 0; k < m->mapped.zones; k++) {
		*at = p - m->base[k];
		if (p >= m->base[k] && *at < m->mapped.zone[k].size)
			return k;
	}
	for (int k = 0; k < m->pieces; k++) {
		*at = p - (CUdeviceptr)(uintptr_t)m->piece[k].base;
		if (p >= (CUdeviceptr)(uintptr_t)m->piece[k].base && *at < m->piece[k].size)
			return k;
	}
	return -1;
}

bool vfm_cuda_mem_holds(const struct vfm_cuda_mem *m, const void *p)
{
	uint64_t at;

	return find_zone(m, p, &at) >= 0;
}

void vfm_cuda_free(struct vfm_stream *s, void *p, size_t bytes)
{
	struct vfm_cuda_mem *m = vfm_cuda_of(s)->sys->mem;
	uint64_t at, size = 0;
	int k = find_zone(m, p, &at);
	uint32_t tag;

	if (k >= 0)
		size = m->mapped.zones ? vfm_mapped_give(&m->mapped, k, at, &tag)
				       : vfm_heap_give(m->piece[k].heap, at, &tag);
	if (!size || bytes > size) {
		fprintf(stderr, "device memory %p (%zu bytes) is freed that was not allocated\n", p, bytes);
		abort();
	}
	vfm_holders_sub(&m->holders, tag, bytes);
	m->used -= bytes;
}

/* Frees the pieces without allocated ranges. */
static void free_idle_pieces(struct vfm_cuda_mem *m)
{
	struct vfm_heap_stats st;

	for (int k = m->pieces - 1; k >= 0; k--) {
		vfm_heap_stats(m->piece[k].heap, &st);
		if (st.used)
			continue;
		cudaFree(m->piece[k].base);
		vfm_heap_free(m->piece[k].heap);
		m->c->dev.mem_reserved -= (int64_t)m->piece[k].size;
		m->piece[k] = m->piece[--m->pieces];
	}
}

void vfm_cuda_trim(struct vfm_stream *s)
{
	struct vfm_cuda_mem *m = vfm_cuda_of(s)->sys->mem;

	if (m->c->sys->capturing)
		return;
	m->stream = s;
	if (m->mapped.zones) {
		vfm_mapped_trim(&m->mapped);
		m->c->dev.mem_reserved = (int64_t)m->mapped.bytes + m->lent;
	} else if (drain_streams(m) == 0) {
		free_idle_pieces(m);
	}
}

/* Maps one chunk as a test: in a container the system may refuse what the device supports. */
static bool maps(struct vfm_cuda_mem *m, size_t bytes)
{
	CUdeviceptr at = 0;
	bool ok;

	if (drv(m)->reserve(&at, bytes, bytes, 0, 0) != CUDA_SUCCESS)
		return false;
	ok = map_memory(m, at, bytes) == CUDA_SUCCESS;
	if (ok)
		drv(m)->unmap(at, bytes);
	drv(m)->unreserve(at, bytes);
	return ok;
}

/* Returns whether mapping is supported.  Memory is exportable and accessible to network cards if the device supports
 * it: NCCL can then register it. */
static bool can_map(struct vfm_cuda_mem *m, uint64_t *grain)
{
	const struct vfm_cuda_driver *v = drv(m);
	size_t g = 0;
	CUdevice dev;
	int yes = 0;

	if (!vfm_cuda_asked("VFM_CUDA_MAP", true))
		return false;
	if (!v->reserve || !v->unreserve || !v->create || !v->release || !v->map || !v->unmap || !v->access ||
		!v->granularity)
		return false;
	if (v->device_get(&dev, m->c->ordinal) != CUDA_SUCCESS ||
		v->attribute(&yes, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, dev) != CUDA_SUCCESS ||
		!yes)
		return false;
	m->prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	m->prop.location.id = m->c->ordinal;
	if (v->attribute(&yes, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, dev) == CUDA_SUCCESS &&
		yes)
		m->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (v->attribute(&yes, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, dev) == CUDA_SUCCESS && yes)
		m->prop.allocFlags.gpuDirectRDMACapable = 1;
	if (v->granularity(&g, &m->prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS || g == 0 ||
		(g & (g - 1)))
		return false;
	*grain = g;
	if (maps(m, g))
		return true;
	m->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	m->prop.allocFlags.gpuDirectRDMACapable = 0;
	return maps(m, g);
}

struct vfm_cuda_mem *vfm_cuda_mem_new(struct vfm_cuda *c, struct vfm_err *err)
{
	struct vfm_cuda_mem *m = vfm_calloc(1, sizeof(*m));
	uint64_t total = (uint64_t)c->dev.mem_total, g = 0;

	m->c = c;
	vfm_mapped_init(&m->mapped, &mapping, m);
	if (!can_map(m, &g))
		return m;
	if (zone_new(m, total, g > SMALL_CHUNK ? g : SMALL_CHUNK, 512, err) == 0 &&
		zone_new(m, 2 * total, g > LARGE_CHUNK ? g : LARGE_CHUNK, 64 << 10, err) == 0)
		return m;
	vfm_cuda_mem_free(m);
	return NULL;
}

void vfm_cuda_mem_free(struct vfm_cuda_mem *m)
{
	uint64_t size[ZONES] = {0};

	if (!m)
		return;
	for (int k = 0; k < m->mapped.zones; k++)
		size[k] = m->mapped.zone[k].size;
	vfm_mapped_release(&m->mapped);
	for (int k = 0; k < ZONES; k++)
		if (size[k])
			drv(m)->unreserve(m->base[k], size[k]);
	for (int k = 0; k < m->pieces; k++) {
		cudaFree(m->piece[k].base);
		vfm_heap_free(m->piece[k].heap);
	}
	vfm_holders_release(&m->holders);
	free(m);
}
