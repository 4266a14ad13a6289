/* taped.h - a tape on the CPU for each test, and a check that no memory leaks. */
#ifndef TESTS_UNIT_TAPED_H
#define TESTS_UNIT_TAPED_H

#include "device/open/open.h"
#include "net/tape/tape.h"
#include "ok.h"

static struct vfm_device dev;
static struct vfm_tape *t;

static int setup(void **state)
{
	(void)state;
	if (vfm_device_open(&dev, "cpu", &err) < 0)
		return -1;
	t = vfm_tape_new(dev.stream);
	return 0;
}

static int teardown(void **state)
{
	int64_t left;

	(void)state;
	vfm_tape_free(t);
	left = dev.dev->mem_now;
	vfm_device_close(&dev);
	return left ? -1 : 0; /* fails the test if memory leaked */
}

#endif
