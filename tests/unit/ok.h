/* ok.h - calls of the library that must not fail: else the test does, in the library's words. */
#ifndef TESTS_UNIT_OK_H
#define TESTS_UNIT_OK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

static struct vfm_err err;

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) < 0)                                                                                        \
			fail_msg("%s", err.msg);                                                                       \
	} while (0)

#endif
