/* Ranks for tests of parallel code: each test forks its own job. */
#ifndef TESTS_UNIT_RANKS_H
#define TESTS_UNIT_RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/host/comm_host.h"
#include "device/ops/tensor.h"
#include "io/hash.h"
#include "spec/layout/parallel.h"

struct layout {
	const char *name;
	struct vfm_parallel p;
	enum vfm_dtype dtype;
};

/* tp, cp, pp, dp, ep, vpp, shard */
#define P(t, c, s, d, e, v, sh, ...)                                                                                   \
	{                                                                                                              \
		.tp = t, .cp = c, .pp = s, .dp = d, .ep = e, .vpp = v, .cp_a2a = 1, .shard = sh, __VA_ARGS__           \
	}

static int world_of(const struct vfm_parallel *p)
{
	return (int)(p->tp * p->cp * p->pp * p->dp);
}

static struct vfm_err err;

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) < 0) {                                                                                      \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, err.msg);                                   \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#define MUST(what, ...)                                                                                                \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fputc('\n', stderr);                                                                           \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

/* Runs fn in the ranks of a layout.  Returns their status. */
static int status_of(const struct layout *lay, int (*fn)(struct vfm_launch *l, const void *arg))
{
	int n = world_of(&lay->p), st;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct vfm_launch l;
		int rc = vfm_launch_init(&l, n > 1 ? n : 0, &err);

		if (rc < 0)
			fprintf(stderr, "%s\n", err.msg);
		_exit(rc == 0 ? fn(&l, lay) : rc == 1 ? l.status : 1);
	}
	assert_int_equal(waitpid(pid, &st, 0), pid);
	return WIFEXITED(st) ? WEXITSTATUS(st) : -WTERMSIG(st);
}

static void in_ranks(const struct layout *lay, int (*fn)(struct vfm_launch *l, const void *arg))
{
	int st = status_of(lay, fn);

	if (st)
		fail_msg("%s: the ranks ended with %d", lay->name, st);
}

/* Returns a number for an element of a parameter, exact in f32, different for each rank, step and pack. */
static inline double contribution(int rank, int step, int pack, const char *name, int64_t i)
{
	uint64_t x = vfm_fnv64(name, strlen(name)) + (uint64_t)i * 0x9E3779B97F4A7C15u +
		(uint64_t)(rank * 64 + step * 8 + pack + 1) * 0xD1342543DE82EF95u;

	x ^= x >> 29;
	x *= 0xBF58476D1CE4E5B9u;
	x ^= x >> 32;
	return (double)(float)((double)(x & 0xffffff) * 0x1p-24 - 0.4);
}

static inline double value_at(const struct vfm_tensor *t, int64_t i)
{
	return t->dtype == VFM_F32 ? (double)((const float *)t->data)[i]
				   : (double)vfm_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

#endif
