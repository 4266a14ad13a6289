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
#include "spec/keep_plan.h"

enum { MOST = 1500 };

struct kind {
	double device, host, running, seconds;
};

static void spec_of(struct vfm_model_spec *m, const char *preset)
{
	OK(vfm_model_preset(preset, m, &err));
	OK(vfm_model_check(m, &err));
}

static struct kind kind_of(const struct vfm_keep_plan_in *in, struct vfm_keeps k)
{
	struct vfm_saved_how how = {.keep = k.keep, .dtype = in->dtype, .residual = in->residual, .pack = in->pack};
	struct vfm_block_again again = vfm_block_again(in->model, &how);
	double host = vfm_block_saved_part(in->model, &how, k.offload);

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
static void try_all(struct best *b, int first, int64_t left, struct kind sum)
{
	if (left == 0) {
		if (sum.device * b->in->copies + sum.running + 2 * sum.host <= b->in->room && sum.seconds < b->seconds)
			b->seconds = sum.seconds;
		return;
	}
	for (int i = first; i < b->n; i++) {
		const struct kind *x = &b->v[i];
		struct kind next = {sum.device + x->device, fmax(sum.host, x->host), fmax(sum.running, x->running),
			sum.seconds + x->seconds};

		if (x->host <= b->host_limit && next.device * b->in->copies <= b->in->room && next.seconds < b->seconds)
			try_all(b, i, left - 1, next);
	}
}

/* The peak of a plan by its parts, and the seconds. */
static struct kind total_of(const struct vfm_keep_plan_in *in, const struct vfm_keep_plan *p)
{
	struct kind sum = {0};
	int64_t blocks = 0;

	for (int i = 0; i < p->n; i++) {
		struct kind x = kind_of(in, p->part[i].keeps);

		blocks += p->part[i].blocks;
		sum.device += (double)p->part[i].blocks * x.device;
		sum.seconds += (double)p->part[i].blocks * x.seconds;
		sum.host = fmax(sum.host, x.host);
		sum.running = fmax(sum.running, x.running);
	}
	assert_int_equal(blocks, in->blocks);
	sum.device = sum.device * in->copies + sum.running + 2 * sum.host;
	return sum;
}

static void compare(const char *what, struct vfm_keep_plan_in *in, bool offload, double worse)
{
	static struct kind v[MOST];
	struct best b = {.in = in, .v = v};
	struct vfm_saved_how how = {
		.keep = VFM_KEEP_ALL, .dtype = in->dtype, .residual = in->residual, .pack = in->pack};
	double all = (double)in->blocks * vfm_block_saved_bytes(in->model, &how) * in->copies, last = INFINITY;

	how.keep = 0;
	all += vfm_keep_plan_running(in->model, &how);
	b.n = all_kinds(in, offload, v);
	for (double part = 0.1; part < 1.05; part += 0.075) {
		struct vfm_keep_plan p;
		struct kind sum;

		in->room = part * all;
		in->host_room = offload ? 1e18 : 0;
		vfm_keep_plan_make(in, &p);
		b.seconds = INFINITY;
		b.host_limit = offload ? 0.9 * in->rates.host * p.forward_s : 0;
		try_all(&b, 0, in->blocks, (struct kind){0});
		assert_int_equal(p.fits, b.seconds < INFINITY);
		sum = total_of(in, &p);
		assert_true(fabs(sum.device - p.device) <= 1e-6 * sum.device);
		assert_true(fabs(sum.seconds - p.again_s) <= 1e-6 * sum.seconds);
		if (!p.fits)
			continue;
		if (p.device > in->room * (1 + 1e-9) || sum.host > b.host_limit * (1 + 1e-9))
			fail_msg("%s, room for %.0f %%: the plan takes %.3g of %.3g bytes", what, 100 * part, p.device,
				in->room);
		if (p.again_s > worse * b.seconds + 1e-12)
			fail_msg("%s, room for %.0f %%: the plan recomputes %.4g s, the best choice %.4g s", what,
				100 * part, p.again_s, b.seconds);
		assert_true(p.again_s <= last * (1 + 1e-9)); /* more memory is never slower */
		last = p.again_s;
	}
	assert_true(last == 0); /* with room for everything nothing is recomputed */
}

static struct vfm_keep_plan_in input_of(const struct vfm_model_spec *m, int t, int side, int64_t blocks)
{
	struct vfm_keep_plan_in in = {.model = m,
		.dtype = VFM_BF16,
		.residual = VFM_BF16,
		.blocks = blocks,
		.copies = 1,
		.rates = vfm_keep_plan_h200};

	vfm_pack_sums_add(&in.pack, (int32_t[]){t, side, side}, 512);
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
		in.residual = VFM_F32;
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
	assert_true(p.fits && p.again == 0 && p.n == 2);
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
	vfm_keep_plan_make(&in, &p);
	assert_true(p.fits && p.again < 0.3 * p.flops && p.host > 0 && p.offload_s <= 0.9 * p.forward_s);
	in.host_room = 0;
	vfm_keep_plan_make(&in, &p);
	assert_true(p.host == 0 && p.offload_s == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_optimum),
		cmocka_unit_test(test_offload),
		cmocka_unit_test(test_dit_7b),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
