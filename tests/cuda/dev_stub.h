/* dev_stub.h - for tests of ops that call cuDNN (dnn_ref.c): the functions of a CUDA device that these ops need, with
 * the NULL stream, host memory, and captures in name only; and the devices and cases of such a test.  Included by one
 * file of a program. */
#ifndef TESTS_CUDA_DEV_STUB_H
#define TESTS_CUDA_DEV_STUB_H

#include <stdlib.h>
#include <string.h>

#include "../ops/emu_dev.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda_dev.h"
#include "device/cuda/cuda_stream.h"
#include "device/ops/cases.h"
#include "dnn_ref.h"

static struct vfm_dev *cpu, *emu;
static struct vfm_stream *cpu_s;
static struct vfm_cases cases;

static bool capturing; /* set by tests */

int vfm_cuda_refuse(struct vfm_cuda *c, cudaStream_t st, const char *what, bool first, struct vfm_err *err)
{
	(void)st;
	if (!capturing)
		return 0;
	c->dev.graph_first = first;
	return vfm_fail(err, VFM_EENV, "%s cannot be captured", what);
}

bool vfm_cuda_captured(const struct vfm_cuda *c, cudaStream_t st)
{
	(void)c, (void)st;
	return capturing;
}

bool vfm_cuda_idle(struct vfm_cuda *c, double most_s)
{
	(void)c, (void)most_s;
	return true;
}

cudaStream_t vfm_cuda_stream(struct vfm_stream *s)
{
	(void)s;
	return NULL;
}

/* ---- a device whose memory is that of the host ---- */

struct vfm_event {
	double at;
};

static bool no_memory; /* set by tests */

static void *stub_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	(void)s;
	if (no_memory) {
		vfm_fail(err, VFM_EENV, "no memory for %s", what);
		return NULL;
	}
	return memset(vfm_malloc(bytes), 0xa5, bytes);
}

static void stub_free(struct vfm_stream *s, void *p, size_t bytes)
{
	(void)s, (void)bytes;
	free(p);
}

static int stub_copy(struct vfm_stream *s, void *to, const void *from, size_t bytes, struct vfm_err *err)
{
	(void)s, (void)err;
	memcpy(to, from, bytes);
	return 0;
}

static int stub_sync(struct vfm_stream *s, struct vfm_err *err)
{
	(void)s;
	return capturing ? vfm_fail(err, VFM_EENV, "waiting for a stream cannot be captured") : 0;
}

static struct vfm_event *stub_event_new(struct vfm_dev *d, struct vfm_err *err)
{
	(void)d, (void)err;
	return vfm_calloc(1, sizeof(struct vfm_event));
}

static void stub_event_free(struct vfm_event *e)
{
	free(e);
}

static int stub_event_record(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err)
{
	(void)s, (void)err;
	e->at = dnn_ref_now;
	return 0;
}

static int stub_event_sync(struct vfm_event *e, struct vfm_err *err)
{
	(void)e, (void)err;
	return 0;
}

static int stub_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err)
{
	(void)err;
	*s = b->at - a->at;
	return 0;
}

static const struct vfm_dev_table stub_table = {
	.name = "stub",
	.alloc = stub_alloc,
	.free = stub_free,
	.to_device = stub_copy,
	.to_host = stub_copy,
	.stream_sync = stub_sync,
	.event_new_timed = stub_event_new,
	.event_free = stub_event_free,
	.event_record = stub_event_record,
	.event_sync = stub_event_sync,
	.event_elapsed = stub_elapsed,
};

/* Setup and teardown of a group of tests. */
static int start(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	cpu = vfm_cpu_open(&err);
	emu = vfm_emu_open(&err);
	cpu_s = cpu ? cpu->t->stream_new(cpu, false, &err) : NULL;
	vfm_cases_init(&cases);
	return cpu_s && emu ? 0 : -1;
}

static int end(void **state)
{
	(void)state;
	vfm_cases_release(&cases);
	cpu->t->stream_free(cpu_s);
	cpu->t->dev_free(cpu);
	emu->t->dev_free(emu);
	return 0;
}

#endif
