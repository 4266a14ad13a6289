/* dev_stub.h - for tests of ops that call cuDNN (dnn_ref.c): the functions of a CUDA device that these ops need,
 * without captures and with the NULL stream; and the devices and cases of such a test.  Included by one file of a
 * program. */
#ifndef TESTS_CUDA_DEV_STUB_H
#define TESTS_CUDA_DEV_STUB_H

#include "cpu/cpu.h"
#include "cuda/cuda_dev.h"
#include "ops/cases.h"
#include "../ops/emu_dev.h"

static struct vfm_dev *cpu, *emu;
static struct vfm_stream *cpu_s;
static struct vfm_cases cases;

int vfm_cuda_refuse(struct vfm_cuda *c, cudaStream_t st, const char *what, bool first, struct vfm_err *err)
{
	(void)c, (void)st, (void)what, (void)first, (void)err;
	return 0; /* there are no captures */
}

bool vfm_cuda_captured(const struct vfm_cuda *c, cudaStream_t st)
{
	(void)c, (void)st;
	return false;
}

cudaStream_t vfm_cuda_stream(struct vfm_stream *s)
{
	(void)s;
	return NULL;
}

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
