/* What a device's memory needs that is no device: staging of copies, ranges, holders, the words when it is full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <malloc.h>

#include "device/cpu/cpu.h"
#include "device/dev/holders.h"
#include "device/dev/dev.h"
#include "device/dev/staging.h"

/* The ring as a device sees it: a segment is written to only when all copies out of it have run, and those run when
 * somebody waits for an event behind them. */
static void test_staging(void **state)
{
	enum { SEG = 4096, N = 5, COPIES = 20000 };
	struct vfm_staging s = {.segment = SEG, .n = N};
	uint64_t event[N] = {0}, passed = 0, done = 0; /* copies; an event is the number of copies before it */
	static uint64_t last[N * SEG];                 /* the copy that reads this byte last */
	uint64_t seed = 1, waits = 0;
	(void)state;

	for (int c = 0; c < COPIES; c++) {
		size_t want;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		want = 1 + (seed >> 40) % (c % 10 ? 300 : 3 * SEG);
		while (want) {
			struct vfm_staging_chunk p = vfm_staging_next(&s, want);

			assert_true(p.bytes > 0 && p.bytes <= want);
			assert_int_equal(p.at % 64, 0);
			assert_int_equal(p.at / SEG, (p.at + p.bytes - 1) / SEG); /* within one segment */
			assert_true(p.at + p.bytes <= N * SEG);
			assert_true((p.leave < 0) == (p.enter < 0));
			if (p.leave >= 0)
				event[p.leave] = done;
			if (p.enter >= 0) {
				assert_int_equal(p.enter, p.at / SEG);
				waits += event[p.enter] > passed;
				passed = event[p.enter] > passed ? event[p.enter] : passed;
			}
			done++;
			for (size_t i = p.at; i < p.at + p.bytes; i++) {
				assert_true(last[i] <= passed); /* its last reader has passed */
				last[i] = done;
			}
			want -= p.bytes;
		}
	}
	assert_true(waits > 100);
}

static void test_ranges(void **state)
{
	static char mem[1000];
	struct vfm_ranges r = {0};
	(void)state;

	assert_false(vfm_ranges_hold(&r, mem, 1));
	for (int i = 9; i >= 0; i -= 2)
		vfm_ranges_add(&r, mem + i * 100, 100);
	for (int i = 0; i < 10; i += 2)
		vfm_ranges_add(&r, mem + i * 100, 50);
	for (int i = 0; i < 10; i++) {
		assert_true(vfm_ranges_hold(&r, mem + i * 100 + 10, 40));
		assert_int_equal(vfm_ranges_hold(&r, mem + i * 100 + 10, 41), i % 2);
		assert_int_equal(vfm_ranges_hold(&r, mem + i * 100 + 60, 1), i % 2);
		assert_false(vfm_ranges_hold(&r, mem + i * 100 + 99, SIZE_MAX));
	}
	assert_false(vfm_ranges_remove(&r, mem + 1));
	assert_true(vfm_ranges_remove(&r, mem + 300));
	assert_false(vfm_ranges_hold(&r, mem + 310, 1));
	assert_true(vfm_ranges_hold(&r, mem + 210, 1) && vfm_ranges_hold(&r, mem + 500, 100));
	assert_false(vfm_ranges_remove(&r, mem + 300));
	vfm_ranges_release(&r);
}

static void test_holders(void **state)
{
	struct vfm_holders h = {0};
	char name[80];
	uint32_t a, b;
	(void)state;

	a = vfm_holders_add(&h, "blocks.3.fc1", 10);
	b = vfm_holders_add(&h, "blocks.17.fc1", 5);
	assert_int_equal(a, b);
	assert_string_equal(h.v[a].name, "blocks.N.fcN");
	assert_int_equal(h.v[a].bytes, 15);
	vfm_holders_sub(&h, a, 10);
	assert_int_equal(h.v[a].bytes, 5);
	for (int i = 0; i < 500; i++) { /* names enough for the table to grow, and longer than a name is kept */
		snprintf(name, sizeof(name), "%c%c a name that is quite a bit longer than what is kept of it",
			'a' + i / 26 % 26, 'a' + i % 26);
		assert_int_equal(vfm_holders_add(&h, name, 1), 1 + i);
	}
	assert_int_equal(vfm_holders_add(&h, "blocks.0.fc2", 1), a);
	vfm_holders_release(&h);
}

static const uint64_t GIB = 1ull << 30;

static void says(const struct vfm_oom *o, const char *text)
{
	char buf[1024];

	vfm_oom_sentence(o, buf, sizeof(buf));
	assert_string_equal(buf, text);
}

/* Too little to be worth a word; nothing. */
static int savings(void *ctx, struct vfm_dev_saving *v, int n)
{
	(void)ctx;
	assert_true(n >= 5);
	v[0] = (struct vfm_dev_saving){"a", (int64_t)GIB, false};
	v[1] = (struct vfm_dev_saving){"b", 9 * (int64_t)GIB, true};
	v[2] = (struct vfm_dev_saving){"c", 7 * (int64_t)GIB, false};
	v[3] = (struct vfm_dev_saving){"little", (int64_t)GIB / 2, false};
	v[4] = (struct vfm_dev_saving){"nothing", 0, true};
	return 5;
}

static void test_oom(void **state)
{
	struct vfm_holders h = {0};
	struct vfm_oom o = {.device = "NVIDIA H200",
		.what = "activations",
		.bytes = 3 * GIB / 2,
		.in_use = 139 * GIB,
		.total = 140 * GIB,
		.holders = &h};
	struct vfm_dev_oom_hints oom_hints = {.savings = savings};
	char cut[40];
	(void)state;

	vfm_holders_add(&h, "the loss", 8);
	vfm_holders_add(&h, "parameters", 26 * GIB);
	vfm_holders_add(&h, "activations", 61 * GIB);
	vfm_holders_add(&h, "gradients", 13 * GIB);
	vfm_holders_add(&h, "AdamW's first moments", 39 * GIB);
	says(&o,
		"out of memory on NVIDIA H200: 1.50 GiB for activations do not fit in addition to the 139.00 GiB in "
		"use, of "
		"140.00 GiB (activations 61.00 GiB, "
		"AdamW's first moments 39.00 GiB, parameters 26.00 GiB, gradients 13.00 GiB); to make room: smaller "
		"packs or a smaller model");
	vfm_holders_sub(&h, 2, 61 * GIB);
	o.others = 60 * GIB;
	o.oom_hints = &oom_hints;
	o.what = "the moving average of the weights";
	o.bytes = 26 * GIB;
	says(&o,
		"out of memory on NVIDIA H200: 26.00 GiB for the moving average of the weights do not fit in addition "
		"to the "
		"139.00 GiB in use, of 140.00 GiB "
		"(AdamW's first moments 39.00 GiB, parameters 26.00 GiB, gradients 13.00 GiB, the loss 8 bytes); "
		"others hold 60.00 GiB of the device; "
		"approximate savings: c (7.00 GiB), a (1.00 GiB); with twice the ranks: b (9.00 GiB)");
	/* The first allocation of all. */
	vfm_holders_release(&h);
	o = (struct vfm_oom){.device = "x", .what = "a test operand", .bytes = 7, .total = 5};
	says(&o,
		"out of memory on x: 7 bytes for a test operand do not fit in addition to the 0 bytes in use, of 5 "
		"bytes; to "
		"make room: smaller packs or a smaller model");
	vfm_oom_sentence(&o, cut, sizeof(cut));
	assert_int_equal(strlen(cut), sizeof(cut) - 1);
}

/* ---- the rate of copies: a device that only keeps time ---- */

static struct {
	struct vfm_dev dev;
	struct vfm_stream s;
	double now, up, down; /* seconds; bytes/s */
	int copies, held;
	bool full; /* it has no pinned memory */
} slow;

static void *give(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	(void)s, (void)what, (void)err;
	slow.held++;
	return calloc(1, bytes);
}

static void take(struct vfm_stream *s, void *p, size_t bytes)
{
	(void)s, (void)bytes;
	slow.held--;
	free(p);
}

static void *give_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err)
{
	(void)d;
	return slow.full ? NULL : give(NULL, bytes, what, err);
}

static void take_host(struct vfm_dev *d, void *p, size_t bytes)
{
	(void)d;
	take(NULL, p, bytes);
}

static int copy_up(struct vfm_stream *s, void *dst, const void *src, size_t bytes, struct vfm_err *err)
{
	(void)s, (void)dst, (void)src, (void)err;
	slow.now += (double)bytes / slow.up * (slow.copies++ ? 1 : 100); /* the first is slow */
	return 0;
}

static int copy_down(struct vfm_stream *s, void *dst, const void *src, size_t bytes, struct vfm_err *err)
{
	(void)s, (void)dst, (void)src, (void)err;
	slow.now += (double)bytes / slow.down;
	return 0;
}

static int synced(struct vfm_stream *s, struct vfm_err *err)
{
	(void)s, (void)err;
	return 0;
}

static double time_of(struct vfm_dev *d)
{
	(void)d;
	return slow.now;
}

static double rate_of_link(double up, double down, bool full)
{
	static const struct vfm_dev_table table = {.alloc = give,
		.free = take,
		.alloc_host = give_host,
		.free_host = take_host,
		.to_device = copy_up,
		.to_host = copy_down,
		.stream_sync = synced,
		.now = time_of};
	double rate;

	memset(&slow, 0, sizeof(slow));
	slow.dev.t = &table;
	slow.s.dev = &slow.dev;
	slow.up = up, slow.down = down, slow.full = full;
	rate = vfm_dev_host_rate(&slow.s);
	assert_int_equal(slow.held, 0);
	assert_int_equal(slow.dev.mem_peak, 0);
	return rate;
}

static void test_host_rate(void **state)
{
	double rate = rate_of_link(60e9, 52e9, false);
	int copies = slow.copies;

	(void)state;
	assert_true(rate <= 52e9 && rate > 52e9 / 1.2);         /* the slower direction, rounded down */
	assert_true(rate == rate_of_link(51.8e9, 60e9, false)); /* most runs find the same */
	assert_true(rate == vfm_dev_host_rate(&slow.s) && slow.copies == copies);
	assert_true(rate_of_link(15e9, 15e9, false) < 15e9);
	assert_true(rate_of_link(15e9, 15e9, true) == 0);
}

/* The CPU keeps freed blocks until vfm_dev_trim.  Blocks of this size have mappings of their own. */
static void test_trim(void **state)
{
	enum { BYTES = 64 << 20 };
	struct vfm_err err = {0};
	struct vfm_dev *d = vfm_cpu_open(&err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	size_t mapped[3];
	void *p;
	(void)state;

	p = vfm_dev_alloc(s, BYTES, "a test", &err);
	assert_non_null(p);
	mapped[0] = mallinfo2().hblkhd;
	vfm_dev_free(s, p, BYTES);
	mapped[1] = mallinfo2().hblkhd;
	vfm_dev_trim(s);
	mapped[2] = mallinfo2().hblkhd;
	assert_int_equal(mapped[1], mapped[0]);
	assert_true(mapped[2] + BYTES <= mapped[0]);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_staging),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_holders),
		cmocka_unit_test(test_oom),
		cmocka_unit_test(test_host_rate),
		cmocka_unit_test(test_trim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
