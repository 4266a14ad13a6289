/* A pool whose memory is mapped below its addresses, on a device with little of it: what is in use always has memory,
 * no chunk is taken from under it, and a request fails only when what is in use leaves too little, wherever that lies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/dev/mapped.h"

enum {
	GRAIN = 512,
	SMALL_CHUNK = 8 * GRAIN,
	LARGE_CHUNK = 64 * GRAIN,
	SMALLS = 2000,
	LARGES = 400,
	IDS = 120,
	LARGEST = 40 * LARGE_CHUNK
};

struct device {
	uint64_t limit, used; /* bytes of memory */
	bool small[SMALLS], large[LARGES];
	int maps, unmaps, drained;
	bool broken, fails;
};

static uint64_t chunk_of(int zone)
{
	return zone ? LARGE_CHUNK : SMALL_CHUNK;
}

static bool *cell(struct device *d, int zone, uint64_t i)
{
	assert_true(i < (uint64_t)(zone ? LARGES : SMALLS));
	return zone ? &d->large[i] : &d->small[i];
}

static int map(void *ctx, int zone, uint64_t i, struct vfm_err *err)
{
	struct device *d = ctx;

	if (d->fails)
		return vfm_fail(err, VFM_EENV, "the device fell off the bus");
	if (d->limit - d->used < chunk_of(zone))
		return VFM_MAPPED_FULL;
	assert_false(*cell(d, zone, i));
	*cell(d, zone, i) = true;
	d->used += chunk_of(zone);
	d->maps++;
	return 0;
}

static int unmap(void *ctx, int zone, uint64_t i)
{
	struct device *d = ctx;

	assert_true(*cell(d, zone, i));
	*cell(d, zone, i) = false;
	d->used -= chunk_of(zone);
	d->unmaps++;
	return 0;
}

static int drain(void *ctx)
{
	struct device *d = ctx;

	d->drained++;
	return d->broken ? VFM_EENV : 0;
}

static const struct vfm_mapped_table table = {map, unmap, drain};

static void pool_init(struct vfm_mapped *m, struct device *d, uint64_t limit)
{
	memset(d, 0, sizeof(*d));
	d->limit = limit;
	vfm_mapped_init(m, &table, d);
	assert_int_equal(vfm_mapped_zone(m, (uint64_t)SMALLS * SMALL_CHUNK, SMALL_CHUNK, GRAIN), 0);
	assert_int_equal(vfm_mapped_zone(m, (uint64_t)LARGES * LARGE_CHUNK, LARGE_CHUNK, GRAIN), 1);
}

struct range {
	bool live;
	int zone;
	uint64_t at, bytes;
};

static uint64_t seed;

static uint32_t next(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % below;
}

/* Bytes of the chunks that the ranges lie in, every one of which is mapped. */
static uint64_t needed(struct device *d, const struct range *r)
{
	static bool in_use[2][SMALLS];
	uint64_t n = 0;

	memset(in_use, 0, sizeof(in_use));
	for (int id = 0; id < IDS; id++)
		if (r[id].live)
			for (uint64_t i = r[id].at / chunk_of(r[id].zone);
				i <= (r[id].at + r[id].bytes - 1) / chunk_of(r[id].zone); i++) {
				assert_true(*cell(d, r[id].zone, i));
				n += in_use[r[id].zone][i] ? 0 : chunk_of(r[id].zone);
				in_use[r[id].zone][i] = true;
			}
	return n;
}

static void test_random(void **state)
{
	struct vfm_mapped m;
	static struct device d;
	struct range r[IDS] = {0};
	struct vfm_err err = {0};
	int full = 0;
	uint32_t tag;
	(void)state;

	seed = 3;
	pool_init(&m, &d, 200 * LARGE_CHUNK);
	for (int i = 0; i < 20000; i++) {
		struct range *x = &r[next(IDS)];
		int rc;

		if (x->live) {
			assert_true(vfm_mapped_give(&m, x->zone, x->at, &tag) >= x->bytes);
			assert_int_equal(tag, x - r);
			x->live = false;
			continue;
		}
		*x = (struct range){.zone = (int)next(2)};
		x->bytes = 1 + next(x->zone ? LARGEST : SMALL_CHUNK * 2);
		rc = vfm_mapped_take(&m, x->zone, x->bytes, (uint32_t)(x - r), &x->at, &err);
		x->live = rc == 0;
		assert_int_equal(d.used, m.bytes);
		if (rc == 0) {
			assert_int_equal(needed(&d, r), m.used);
			assert_true(m.used <= d.used && m.used <= m.used_peak);
		} else {
			assert_int_equal(rc, VFM_MAPPED_FULL);
			full++;
			/* Whole chunks at both ends of it, and what less than a chunk of the other zone cannot make up
			 * for. */
			assert_true(needed(&d, r) + x->bytes + 2 * chunk_of(x->zone) + LARGE_CHUNK > d.limit);
		}
	}
	assert_true(full > 100 && d.unmaps > 1000); /* it was tight */
	vfm_mapped_release(&m);
	assert_int_equal(d.used, 0);
	assert_int_equal(d.maps, d.unmaps);
}

/* The case that a plain pool loses: half of the memory is free, in holes that are all too small. */
static void test_holes(void **state)
{
	enum { N = 32 };
	struct vfm_mapped m;
	static struct device d;
	struct vfm_err err = {0};
	uint64_t at[N], big;
	(void)state;

	pool_init(&m, &d, N * 2 * LARGE_CHUNK);
	for (int i = 0; i < N; i++)
		assert_int_equal(vfm_mapped_take(&m, 1, 2 * LARGE_CHUNK, 0, &at[i], &err), 0);
	assert_int_equal(vfm_mapped_take(&m, 1, 1, 0, &big, &err), VFM_MAPPED_FULL);
	assert_int_equal(d.drained, 1);
	for (int i = 0; i < N; i += 2)
		assert_true(vfm_mapped_give(&m, 1, at[i], NULL) > 0);
	assert_int_equal(vfm_mapped_take(&m, 1, N * LARGE_CHUNK, 0, &big, &err), 0);
	assert_int_equal(d.drained, 2);
	assert_int_equal(vfm_mapped_take(&m, 1, 1, 0, &at[0], &err), VFM_MAPPED_FULL);
	/* The same again fits without anything being moved. */
	assert_true(vfm_mapped_give(&m, 1, big, NULL) > 0);
	d.drained = d.unmaps = 0;
	for (int i = 0; i < 5; i++) {
		uint64_t again;

		assert_int_equal(vfm_mapped_take(&m, 1, N * LARGE_CHUNK, 0, &again, &err), 0);
		assert_int_equal(again, big);
		assert_true(vfm_mapped_give(&m, 1, again, NULL) > 0);
	}
	assert_int_equal(d.drained + d.unmaps, 0);
	/* A device that cannot be waited for gives nothing up; one that fails says so. */
	d.broken = true;
	assert_int_equal(vfm_mapped_take(&m, 1, (N + 1) * LARGE_CHUNK, 0, &big, &err), VFM_MAPPED_FULL);
	d.fails = true;
	assert_int_equal(vfm_mapped_take(&m, 1, (N + 1) * LARGE_CHUNK, 0, &big, &err), VFM_EENV);
	assert_string_equal(err.msg, "the device fell off the bus");
	vfm_mapped_release(&m);
	assert_int_equal(d.used, 0);
}

/* With a limit free memory is moved before more is mapped; what is in use exceeds it, once. */
static void test_limit(void **state)
{
	static struct device d;
	struct vfm_err err = {0};
	struct vfm_mapped m;
	uint64_t at[4];
	(void)state;

	pool_init(&m, &d, 8 * LARGE_CHUNK);
	vfm_mapped_set_limit(&m, 4 * LARGE_CHUNK);
	for (int i = 0; i < 4; i++)
		assert_int_equal(vfm_mapped_take(&m, 1, LARGE_CHUNK, 0, &at[i], &err), 0);
	vfm_mapped_give(&m, 1, at[0], NULL);
	vfm_mapped_give(&m, 1, at[2], NULL);
	assert_int_equal(vfm_mapped_take(&m, 1, 2 * LARGE_CHUNK, 0, &at[0], &err), 0); /* in no hole */
	assert_int_equal(m.bytes, 4 * LARGE_CHUNK);
	assert_int_equal(m.compactions, 1);
	assert_int_equal(vfm_mapped_take(&m, 1, LARGE_CHUNK, 0, &at[2], &err), 0);
	assert_int_equal(m.bytes, 5 * LARGE_CHUNK);
	vfm_mapped_give(&m, 1, at[2], NULL);
	vfm_mapped_set_limit(&m, 4 * LARGE_CHUNK);
	assert_int_equal(vfm_mapped_take(&m, 1, LARGE_CHUNK, 0, &at[2], &err), 0);
	assert_int_equal(m.compactions, 2); /* not again for the five chunks that it has */
	assert_int_equal(m.bytes, 5 * LARGE_CHUNK);
	vfm_mapped_release(&m);
}

/* Trimming unmaps chunks without ranges, wherever they lie, and keeps chunks that a small range uses. */
static void test_trim(void **state)
{
	enum { N = 6 };
	static struct device d;
	struct vfm_err err = {0};
	struct vfm_mapped m;
	uint64_t at[N], small;
	(void)state;

	pool_init(&m, &d, 2 * N * LARGE_CHUNK);
	assert_int_equal(vfm_mapped_trim(&m), 0);
	assert_int_equal(vfm_mapped_take(&m, 0, GRAIN, 0, &small, &err), 0);
	for (int i = 0; i < N; i++)
		assert_int_equal(vfm_mapped_take(&m, 1, LARGE_CHUNK, 0, &at[i], &err), 0);
	assert_int_equal(vfm_mapped_trim(&m), 0);
	assert_int_equal(d.drained, 0); /* nothing to unmap: no wait */
	for (int i = 0; i < N; i += 2)
		vfm_mapped_give(&m, 1, at[i], NULL);
	vfm_mapped_give(&m, 1, at[N - 1], NULL);
	assert_int_equal(vfm_mapped_take(&m, 1, GRAIN, 0, &at[0], &err), 0); /* shares a chunk with nothing */
	assert_int_equal(vfm_mapped_trim(&m), 3 * LARGE_CHUNK);
	assert_int_equal(d.used, 3 * LARGE_CHUNK + SMALL_CHUNK);
	assert_int_equal(m.bytes, d.used);
	assert_int_equal(d.drained, 1);
	assert_int_equal(m.compactions, 0);
	assert_int_equal(vfm_mapped_take(&m, 1, 3 * LARGE_CHUNK, 0, &at[2], &err), 0); /* mapped again */
	assert_int_equal(m.bytes, d.used);
	vfm_mapped_give(&m, 1, at[2], NULL);
	d.broken = true; /* a device that cannot be waited for keeps its memory */
	assert_int_equal(vfm_mapped_trim(&m), 0);
	vfm_mapped_release(&m);
	assert_int_equal(d.used, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_holes),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_trim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
