#include "device/cpu/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "device/cpu/cpu_impl.h"
#include "device/dev/holders.h"

/* ---- memory: freed blocks are kept, because fresh pages cost as much as the work on them ---- */

enum {
	CLASSES = 64 * 8,
	LEAST = 4096,
	SLACK = 256 << 20, /* idle bytes that are always kept */
};

struct free_block {
	struct free_block *next;
};

struct vfm_cpu_pool {
	struct free_block *free[CLASSES];
	size_t live, peak, idle;
};

/* Eight size classes an octave: at most an eighth is wasted. */
static size_t class_size(size_t bytes, int *cls)
{
	int shift;
	size_t step;

	if (bytes < LEAST)
		bytes = LEAST;
	shift = 63 - __builtin_clzl(bytes);
	step = (size_t)1 << (shift - 3);
	bytes = (bytes + step - 1) / step * step;
	shift = 63 - __builtin_clzl(bytes);
	*cls = shift * 8 + (int)(bytes >> (shift - 3) & 7);
	return bytes;
}

static void pool_trim(struct vfm_cpu_pool *p, size_t keep)
{
	for (int c = CLASSES - 1; c >= 0 && p->idle > keep; c--) {
		size_t size = ((size_t)8 + (size_t)(c & 7)) << (c / 8 - 3);

		while (p->free[c] && p->idle > keep) {
			struct free_block *b = p->free[c];

			p->free[c] = b->next;
			p->idle -= size;
			vfm_big_free(b, size);
		}
	}
}

static void say_what_helps(const struct vfm_dev *d, struct vfm_err *err)
{
	struct vfm_buf b = {0};

	if (!err || !d->oom_hints.savings)
		return;
	vfm_buf_adds(&b, err->msg);
	vfm_oom_add_hints(&d->oom_hints, 0, &b);
	vfm_fail(err, err->code, "%s", b.data);
	vfm_buf_release(&b);
}

static void *cpu_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_cpu_pool *p = vfm_cpu_of(s)->pool;
	int cls;
	size_t size;
	void *r;

	if (bytes > SIZE_MAX / 4) {
		vfm_fail(err, VFM_EENV, "no memory for %s (%zu bytes)", what, bytes);
		return NULL;
	}
	size = class_size(bytes, &cls);
	if (p->free[cls]) {
		r = p->free[cls];
		p->free[cls] = p->free[cls]->next;
		p->idle -= size;
	} else {
		size_t room = p->peak / 2 + SLACK;

		if (p->idle > room)
			pool_trim(p, room);
		r = vfm_big_alloc(size, what, err);
		if (!r && p->idle) {
			pool_trim(p, 0);
			r = vfm_big_alloc(size, what, err);
		}
		if (!r) {
			say_what_helps(s->dev, err);
			return NULL;
		}
	}
	p->live += size;
	if (p->live > p->peak)
		p->peak = p->live;
	return r;
}

static void cpu_free(struct vfm_stream *s, void *ptr, size_t bytes)
{
	struct vfm_cpu_pool *p = vfm_cpu_of(s)->pool;
	struct free_block *b = ptr;
	int cls;
	size_t size = class_size(bytes, &cls);

	b->next = p->free[cls];
	p->free[cls] = b;
	p->live -= size;
	p->idle += size;
}

void *vfm_cpu_ws(struct vfm_stream *s, enum vfm_ws slot, size_t bytes, struct vfm_err *err)
{
	struct vfm_cpu *c = vfm_cpu_of(s);

	if (c->ws[slot].size < bytes) {
		vfm_big_free(c->ws[slot].p, c->ws[slot].size);
		c->ws[slot].size = 0;
		c->ws[slot].p = vfm_big_alloc(bytes + bytes / 8, "a workspace", err);
		if (!c->ws[slot].p)
			return NULL;
		c->ws[slot].size = bytes + bytes / 8;
	}
	return c->ws[slot].p;
}

static pthread_key_t scratch_key; /* frees the scratch memory of a thread when it ends */

static void create_scratch_key(void)
{
	if (pthread_key_create(&scratch_key, free) != 0)
		vfm_out_of_memory();
}

void *vfm_cpu_scratch(size_t bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static _Thread_local void *p;
	static _Thread_local size_t size;

	if (size < bytes) {
		pthread_once(&once, create_scratch_key);
		free(p);
		size = (bytes + 63) / 64 * 64;
		if (posix_memalign(&p, 64, size) || pthread_setspecific(scratch_key, p) != 0)
			vfm_out_of_memory();
	}
	return p;
}

/* All memory is host memory.  Any thread may call this, so it does not use the pool. */
static void *cpu_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err)
{
	(void)d;
	return vfm_big_alloc(bytes, what, err);
}

static void cpu_free_host(struct vfm_dev *d, void *p, size_t bytes)
{
	(void)d;
	vfm_big_free(p, bytes);
}

/* ---- the device ---- */

static void cpu_drop_copies(struct vfm_stream *s)
{
	vfm_cpu_drop_held(vfm_cpu_of(s));
}

static void cpu_dev_free(struct vfm_dev *d)
{
	struct vfm_cpu *c = (struct vfm_cpu *)d;

	if (!d)
		return;
	pool_trim(c->pool, 0);
	free(c->pool);
	vfm_cpu_drop_held(c);
	for (int i = 0; i < VFM_WS_N; i++)
		vfm_big_free(c->ws[i].p, c->ws[i].size);
	free(c);
}

static const struct vfm_dev_table cpu_table = {
	.name = "cpu",
	.ops = &vfm_cpu_ops,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.alloc_host = cpu_alloc_host,
	.free_host = cpu_free_host,
	.to_device = vfm_cpu_copy,
	.to_host = vfm_cpu_copy,
	.zero = vfm_cpu_zero,
	.stream_new = vfm_cpu_stream_new,
	.stream_free = vfm_cpu_stream_free,
	.stream_sync = vfm_cpu_stream_sync,
	.host_call = vfm_cpu_host_call,
	.event_new = vfm_cpu_event_new,
	.event_new_timed = vfm_cpu_event_new_timed,
	.event_free = vfm_cpu_event_free,
	.event_record = vfm_cpu_event_record,
	.event_wait = vfm_cpu_event_wait,
	.event_sync = vfm_cpu_event_sync,
	.event_passed = vfm_cpu_event_passed,
	.event_elapsed = vfm_cpu_event_elapsed,
	.drop_copies = cpu_drop_copies,
	.dev_free = cpu_dev_free,
};

static const struct vfm_cpu_kern *const kernels[VFM_ISA_N] = {
	[VFM_ISA_BASE] = &vfm_cpu_kern_base,
#ifdef __x86_64__
	[VFM_ISA_AVX2] = &vfm_cpu_kern_avx2,
	[VFM_ISA_AVX512] = &vfm_cpu_kern_avx512,
	[VFM_ISA_AVX512_BF16] = &vfm_cpu_kern_avx512bf16,
	[VFM_ISA_AMX] = &vfm_cpu_kern_avx512bf16,
#endif
};

void vfm_cpu_set_gemm(struct vfm_cpu *c, const struct vfm_gemm_kern *f32, const struct vfm_gemm_kern *bf16)
{
	c->gemm_f32 = *f32;
	c->gemm_bf16 = *bf16;
	if (!f32->epilogue)
		c->gemm_f32.epilogue = c->kern->gemm_f32.epilogue;
	if (!bf16->epilogue)
		c->gemm_bf16.epilogue = c->kern->gemm_bf16.epilogue;
}

struct vfm_dev *vfm_cpu_open(struct vfm_err *err)
{
	enum vfm_isa isa;
	struct vfm_cpu *c;

	if (vfm_isa_choose(&isa, err) < 0)
		return NULL;
	c = vfm_calloc(1, sizeof(*c));
	c->dev.t = &cpu_table;
	c->dev.host_memory = true;
	c->isa = isa;
	c->kern = kernels[isa];
	c->pool = vfm_calloc(1, sizeof(*c->pool));
	vfm_cpu_set_gemm(c, &c->kern->gemm_f32, &c->kern->gemm_bf16);
#ifdef __x86_64__
	if (isa == VFM_ISA_AMX)
		vfm_cpu_set_gemm(c, &vfm_gemm_amx_f32, &vfm_gemm_amx);
#endif
	snprintf(c->dev.name, sizeof(c->dev.name), "cpu");
	snprintf(c->dev.descr, sizeof(c->dev.descr), "%d threads, %s", vfm_par_threads(), vfm_isa_name(isa));
	return &c->dev;
}
