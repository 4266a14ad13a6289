/* The planner of train.recompute=auto against the best of all choices, on stages of few blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ok.h"
#include "spec/cost/keep_plan.h"

enum { MOST = 1500 };

struct kind {
	double device, host, running, seconds;
};

struct total {
	double device, host, all_host, running, seconds; /* host: of one block, at most */
};

static void spec_of(struct vfm_model_spec *m, const char *preset)
{
	OK(vfm_model_preset(preset, m, &err));
	OK(vfm_model_check(m, &err));
}

static struct kind kind_of(const struct vfm_keep_plan_in *in, struct vfm_keeps k)
{
	struct vfm_saved_how how = in->how;
	struct vfm_block_again again;
	double host;

	how.keep = k.keep;
	again = vfm_block_again(in->model, &how);
	host = vfm_block_saved_part(in->model, &how, k.offload);
	return (struct kind){.device = vfm_block_saved_bytes(in->model, &how) - host,
		.host = host,
		.running = vfm_keep_plan_running(in->model, &how),
		.seconds = again.flops / in->rates.flops + again.traffic / in->rates.mem};
}

/* All kinds of a block, offloaded parts only if `offload`. */
static int all_kinds(const struct vfm_keep_plan_in *in, bool offload, struct kind *v)
{
	int n = 0;

	v[n++] = kind_of(in, (struct vfm_keeps){VFM_KEEP_ALL, 0});
	for (unsigned keep = 0; keep < VFM_KEEP_REST; keep++) {
		unsigned may = offload ? (keep | VFM_KEEP_INPUT) & ~(unsigned)VFM_KEEP_OTHER : 0;

		for (unsigned part = may;; part = (part - 1) & may) {
			assert_in_range(n, 0, MOST - 1);
			v[n++] = kind_of(in, (struct vfm_keeps){keep, part});
			if (!part)
				break;
		}
	}
	return n;
}

struct best {
	const struct vfm_keep_plan_in *in;
	const struct kind *v;
	int n;
	double seconds; /* INFINITY: nothing fits */
	double host_limit;
};

/* Tries every multiset of kinds. */
static void try_all(struct best *b, int first, int64_t left, int64_t offloading, struct total sum)
{
	if (left == 0) {
		if (sum.device * b->in->copies + sum.running + b->in->staged * sum.host <= b->in->room)
			b->seconds = sum.seconds;
		return;
	}
	for (int i = first; i < b->n; i++) {
		const struct kind *x = &b->v[i];
		struct total next = {sum.device + x->device, fmax(sum.host, x->host), sum.all_host + x->host,
			fmax(sum.running, x->running), sum.seconds + x->seconds};
		int64_t may = offloading - (x->host > 0);

		if (next.seconds < b->seconds && may >= 0 && x->host <= b->host_limit &&
			next.all_host * b->in->copies <= b->in->host_room && next.device * b->in->copies <= b->in->room)
			try_all(b, i, left - 1, may, next);
	}
}

/* The peak of a plan by its parts, the bytes on the host and the seconds. */
static struct total total_of(const struct vfm_keep_plan_in *in, const struct vfm_keep_plan *p)
{
	struct total sum = {0};
	int64_t blocks = 0, offloading = 0;

	for (int i = 0; i < p->n; i++) {
		struct kind x = kind_of(in, p->part[i].keeps);
		double n = (double)p->part[i].blocks;

		blocks += p->part[i].blocks;
		offloading += x.host > 0 ? p->part[i].blocks : 0;
		sum.device += n * x.device;
		sum.seconds += n * x.seconds;
		sum.all_host += n * x.host * in->copies;
		sum.host = fmax(sum.host, x.host);
		sum.running = fmax(sum.running, x.running);
	}
	assert_int_equal(blocks, in->blocks);
	assert_in_range(offloading, 0, in->offloading);
	sum.device = sum.device * in->copies + sum.running + in->staged * sum.host;
	return sum;
}

/* The most bytes of a block that a copy under the forward of the next one may offload. */
static double most_offloaded(const struct vfm_keep_plan_in *in)
{
	return 0.9 * in->rates.host * kind_of(in, (struct vfm_keeps){0}).seconds;
}

/* Makes a plan and checks that it says what it is. */
static struct vfm_keep_plan plan_of(const char *what, const struct vfm_keep_plan_in *in)
{
	struct vfm_keep_plan p;
	struct total sum;

	vfm_keep_plan_make(in, &p);
	sum = total_of(in, &p);
	assert_true(fabs(sum.device - p.device) <= 1e-6 * sum.device);
	assert_true(fabs(sum.all_host - p.host) <= 1e-6 * sum.all_host);
	assert_true(fabs(sum.seconds - p.again_s) <= 1e-6 * sum.seconds);
	if (p.host > in->host_room * (1 + 1e-9) || sum.host > most_offloaded(in) * (1 + 1e-9))
		fail_msg("%s: the plan offloads %.3g of %.3g bytes, %.3g of a block", what, p.host, in->host_room,
			sum.host);
	if (p.fits && p.device > in->room * (1 + 1e-9))
		fail_msg("%s: the plan takes %.3g of %.3g bytes", what, p.device, in->room);
	return p;
}

/* Compares a plan with the best of all choices from kinds v [n]. */
static struct vfm_keep_plan compare_best(
	const char *what, const struct vfm_keep_plan_in *in, const struct kind *v, int n, double worse)
{
	struct vfm_keep_plan p = plan_of(what, in);
	struct best b = {.in = in, .v = v, .n = n, .seconds = INFINITY, .host_limit = most_offloaded(in)};

	try_all(&b, 0, in->blocks, in->offloading, (struct total){0});
	if (p.fits != (b.seconds < INFINITY))
		fail_msg(
			"%s, %.4g and %.4g bytes: a choice fits, but the plan does not", what, in->room, in->host_room);
	if (p.fits && p.again_s > worse * b.seconds + 1e-12)
		fail_msg("%s, %.4g and %.4g bytes: the plan recomputes %.4g s, the best choice %.4g s", what, in->room,
			in->host_room, p.again_s, b.seconds);
	return p;
}

/* The bytes of blocks that keep everything, beside one that keeps nothing. */
static double all_bytes(const struct vfm_keep_plan_in *in)
{
	struct kind all = kind_of(in, (struct vfm_keeps){VFM_KEEP_ALL, 0});

	return (double)in->blocks * all.device * in->copies + kind_of(in, (struct vfm_keeps){0}).running;
}

static void compare(const char *what, struct vfm_keep_plan_in *in, bool offload, double worse)
{
	static struct kind v[MOST];
	double all = all_bytes(in), last = INFINITY;
	int n = all_kinds(in, offload, v);

	for (double part = 0.1; part < 1.05; part += 0.075) {
		struct vfm_keep_plan p;

		in->room = part * all;
		in->host_room = offload ? 1e18 : 0;
		p = compare_best(what, in, v, n, worse);
		if (!p.fits)
			continue;
		assert_true(p.again_s <= last * (1 + 1e-9)); /* more memory is never slower */
		last = p.again_s;
	}
	assert_true(last == 0); /* with room for everything nothing is recomputed */
}

static struct vfm_keep_plan_in input_of(const struct vfm_model_spec *m, int t, int side, int64_t blocks)
{
	struct vfm_keep_plan_in in = {.model = m,
		.how = {.dtype = VFM_BF16, .residual = VFM_BF16},
		.blocks = blocks,
		.copies = 1,
		.offloading = blocks,
		.staged = 2,
		.rates = vfm_keep_plan_h200};

	vfm_pack_sums_add(&in.how.pack, (int32_t[]){t, side, side}, 512);
	return in;
}

static void test_optimum(void **state)
{
	struct vfm_model_spec m;

	(void)state;
	for (int i = 0; vfm_arch_names[i]; i++) { /* its first preset */
		const struct vfm_preset *preset = vfm_archs[i]->presets;
		struct vfm_keep_plan_in in;

		spec_of(&m, preset->name);
		in = input_of(&m, 16, 16, 2);
		compare(preset->name, &in, false, 1.02);
		in.blocks = 3;
		in.copies = 2.5;
		in.how.residual = VFM_F32;
		compare(preset->name, &in, false, 1.02);
	}
}

static void test_offload(void **state)
{
	struct vfm_model_spec m;
	struct vfm_keep_plan_in in;

	(void)state;
	spec_of(&m, "dit-7b");
	in = input_of(&m, 64, 32, 1);
	compare("dit-7b at 65,536 tokens", &in, true, 1.02);
}

/* Random rooms on the device and on the host. */
static void test_two_rooms(void **state)
{
	static const char *const preset[] = {"dit-7b", "moviegen-5b", "wan-1.3b"};
	static struct kind v[MOST];
	uint32_t random = 1;
	int fits = 0, offload = 0;

	(void)state;
	for (int i = 0; i < 240; i++) {
		struct vfm_model_spec m;
		struct vfm_keep_plan_in in;
		struct vfm_keep_plan p;
		double part[4];

		for (int k = 0; k < 4; k++) {
			random = random * 1664525 + 1013904223;
			part[k] = (random >> 8) / 0x1p24;
		}
		spec_of(&m, preset[i % 3]);
		in = input_of(&m, 64, 32, 1 + i / 3 % 3);
		in.copies = i % 4 ? 1 : 2.5;
		in.staged = (int)(3 * part[0]);
		in.offloading -= part[1] < 0.5;
		in.room = (0.1 + 0.8 * part[2]) * all_bytes(&in);
		in.host_room = 0.5 * part[3] * all_bytes(&in);
		p = compare_best(preset[i % 3], &in, v, all_kinds(&in, true, v), 1.02);
		fits += p.fits;
		offload += p.fits && p.host > 0;
	}
	assert_in_range(fits, 100, 230);
	assert_in_range(offload, 40, fits - 20);
}

/* More room on the host never makes a plan slower, and every byte that lacks on the device is found there. */
static void test_host_room(void **state)
{
	struct vfm_model_spec m;
	struct vfm_keep_plan_in in;
	struct vfm_keep_plan p;
	double last = INFINITY, input, least;

	(void)state;
	spec_of(&m, "dit-7b");
	in = input_of(&m, 64, 32, 28);
	in.offloading = 27;
	in.staged = 1;
	input = kind_of(&in, (struct vfm_keeps){0, VFM_KEEP_INPUT}).host;
	p = plan_of("no room", &in);
	least = p.device;
	assert_true(!p.fits && p.host == 0);
	in.room = least - 2.5 * input;
	for (int n = 0; n <= 128; n++) {
		in.host_room = n * input / 2;
		p = plan_of("inputs", &in);
		assert_int_equal(p.fits, n >= 8); /* three of four inputs leave the device */
		if (!p.fits)
			continue;
		assert_true(p.again_s <= last * (1 + 1e-9));
		last = p.again_s;
	}
	in.room = least;
	p = plan_of("room for all", &in);
	assert_true(p.fits);
	in.room = all_bytes(&in);
	p = plan_of("room for everything", &in);
	assert_true(p.fits && p.host == 0 && p.again_s == 0); /* nothing is offloaded that need not be */
}

/* One H200: 139.8 GiB, of which the state of dit-7b takes 103 at 14 bytes a parameter. */
static void test_dit_7b(void **state)
{
	struct vfm_keeps how[28];
	struct vfm_model_spec m;
	struct vfm_keep_plan_in in;
	struct vfm_keep_plan p;
	int all = 0;
	char text[64];

	(void)state;
	spec_of(&m, "dit-7b");
	in = input_of(&m, 32, 16, 28);
	in.room = 33 * 0x1p30;
	vfm_keep_plan_make(&in, &p);
	assert_true(p.fits && p.n == 2);
	vfm_keeps_text(p.part[0].keeps, text, sizeof(text));
	assert_string_equal(text, "everything");
	vfm_keeps_text(p.part[1].keeps, text, sizeof(text));
	assert_string_equal(text, "light");
	assert_in_range(p.part[0].blocks, 7, 14);
	vfm_keep_plan_spread(&p, how);
	for (int i = 0; i < 28; i++) {
		all += how[i].keep == VFM_KEEP_ALL;
		/* Evenly: at most one block off its share. */
		assert_true(llabs(28 * all - (i + 1) * (long long)p.part[0].blocks) <= 28);
	}
	assert_int_equal(all, p.part[0].blocks);

	in = input_of(&m, 64, 32, 28);
	in.room = 33 * 0x1p30;
	in.host_room = 200 * 0x1p30;
	p = plan_of("offloading", &in);
	assert_true(p.fits && p.again_s < 0.3 * 28 * kind_of(&in, (struct vfm_keeps){0}).seconds && p.host > 0);
	in.host_room = 0;
	p = plan_of("no room on the host", &in);
	assert_true(p.host == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_optimum),
		cmocka_unit_test(test_offload),
		cmocka_unit_test(test_two_rooms),
		cmocka_unit_test(test_host_room),
		cmocka_unit_test(test_dit_7b),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
