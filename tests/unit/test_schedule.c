/* Pipelines without devices: layers are shared out fairly, every action comes once and after what it needs, nothing
 * hangs, and the bubbles are those of the papers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "ok.h"
#include "spec/layout/in_flight.h"
#include "spec/layout/schedule.h"

/* All stages of a pipeline, simulated. */
struct pipeline {
	int pp, parts;
	int64_t mb;
	struct vfm_schedule *s; /* [pp] */
	size_t *at;             /* [pp] next action */
	double *now, *busy;     /* [pp] */
	double *fwd, *bwd;      /* [parts * mb] when F and B of a part were done; < 0: not yet */
};

/* The time at which the inputs of an action are available; negative: not yet. */
static double ready_time(const struct pipeline *r, int stage, const struct vfm_action *a, double send)
{
	int part = a->chunk * r->pp + stage;
	double t, hop = r->pp > 1 ? send : 0;

	if (a->kind == VFM_DO_W)
		return r->bwd[part * r->mb + a->mb];
	if (a->kind == VFM_DO_F) {
		if (part == 0)
			return 0;
		t = r->fwd[(part - 1) * r->mb + a->mb];
		return t < 0 ? t : t + hop;
	}
	if (part == r->parts - 1)
		return r->fwd[part * r->mb + a->mb];
	t = r->bwd[(part + 1) * r->mb + a->mb];
	return t < 0 || r->fwd[part * r->mb + a->mb] < 0 ? -1 : t + hop;
}

/* Executes actions until all are done or none is ready; returns the number of those left. */
static size_t simulate(struct pipeline *r, double f, double b, double w, double send)
{
	size_t left = 0;
	bool moved = true;

	for (int s = 0; s < r->pp; s++)
		left += r->s[s].n;
	while (moved) {
		moved = false;
		for (int s = 0; s < r->pp; s++) {
			for (; r->at[s] < r->s[s].n; r->at[s]++, left--) {
				const struct vfm_action *a = &r->s[s].a[r->at[s]];
				double cost = a->kind == VFM_DO_F ? f
					: a->kind == VFM_DO_B     ? b
								  : w,
				       t = ready_time(r, s, a, send);
				int64_t slot = (a->chunk * r->pp + s) * r->mb + a->mb;

				if (t < 0)
					break;
				r->now[s] = (t > r->now[s] ? t : r->now[s]) + cost;
				r->busy[s] += cost;
				if (a->kind == VFM_DO_F)
					r->fwd[slot] = r->now[s];
				else if (a->kind == VFM_DO_B)
					r->bwd[slot] = r->now[s];
				moved = true;
			}
		}
	}
	return left;
}

/* Simulates a step: an action of a chunk takes f, b or w (B includes W where the schedule does not split them), a
 * message takes send.  Stores the time of the step and the share of it that stages are idle. */
static void schedule_time(int schedule, int pp, int vpp, int64_t mb, double f, double b, double w, double send,
	double *total, double *bubble)
{
	struct pipeline r = {.pp = pp, .parts = pp * vpp, .mb = mb};
	size_t slots = (size_t)r.parts * (size_t)mb;
	double busy = 0;

	r.s = vfm_calloc((size_t)pp, sizeof(*r.s));
	r.at = vfm_calloc((size_t)pp, sizeof(*r.at));
	r.now = vfm_calloc((size_t)pp * 2, sizeof(double));
	r.busy = r.now + pp;
	r.fwd = vfm_calloc(slots * 2, sizeof(double));
	r.bwd = r.fwd + slots;
	for (size_t i = 0; i < 2 * slots; i++)
		r.fwd[i] = -1;
	for (int s = 0; s < pp; s++)
		OK(vfm_schedule_make(&r.s[s], schedule, pp, vpp, s, mb, &err));
	if (simulate(&r, f, b, w, send) > 0)
		fail_msg("a pipeline of %d stages, %d chunks a stage and %d packs deadlocks", pp, vpp, (int)mb);
	*total = 0;
	for (int s = 0; s < pp; s++) {
		*total = r.now[s] > *total ? r.now[s] : *total;
		busy += r.busy[s];
		vfm_schedule_release(&r.s[s]);
	}
	*bubble = 1 - busy / (*total * pp);
	free(r.s);
	free(r.at);
	free(r.now);
	free(r.fwd);
}

static void test_layers(void **state)
{
	const struct vfm_preset *p;
	struct vfm_model_spec m;

	(void)state;
	for (int at = 0; (p = vfm_preset_at(at)); at++) {
		OK(vfm_model_preset(p->name, &m, &err));
		OK(vfm_model_check(&m, &err));
		for (int parts = 1; parts <= 64; parts++) {
			int64_t next = 0, least = m.layers, most = 0;

			for (int i = 0; i < parts; i++) {
				int64_t first, end;

				vfm_pp_stage_layers(&m, parts, i, &first, &end);
				assert_int_equal(first, next);
				assert_true(end >= first);
				if (end - first < least)
					least = end - first;
				if (end - first > most)
					most = end - first;
				next = end;
			}
			assert_int_equal(next, m.layers);
			if (m.layers >= parts)
				assert_true(least >= 1);
			assert_true(most - least <= 1);
		}
	}
}

/* A head as large as several layers takes layers from its part. */
static void test_layers_head(void **state)
{
	struct vfm_model_spec m;
	int64_t first, end, mid;

	(void)state;
	vfm_model_defaults(&m);
	OK(vfm_model_check(&m, &err));
	m.channels = 1024;
	m.hidden = 64;
	m.heads = 1;
	m.ffn = 256;
	m.text_len = 8;
	vfm_pp_stage_layers(&m, 4, 0, &first, &end);
	vfm_pp_stage_layers(&m, 4, 1, &first, &mid);
	assert_true(end >= 1 && end < mid - first);
	vfm_pp_stage_layers(&m, 4, 3, &first, &end);
	assert_int_equal(end, m.layers);
	assert_true(end - first >= 1 && end - first < 3);
}

/* Every F, B and W of a stage once; B after F, W after B.  Returns the most microbatches between F and B, or W. */
static int64_t check_once(const struct vfm_schedule *s, bool zb, int vpp, int64_t mb)
{
	char *seen = vfm_calloc((size_t)(mb * vpp), 1);
	int64_t held = 0, most = 0;

	assert_int_equal(s->n, mb * vpp * (zb ? 3 : 2));
	for (size_t i = 0; i < s->n; i++) {
		const struct vfm_action *a = &s->a[i];

		assert_true(a->mb >= 0 && a->mb < mb && a->chunk >= 0 && a->chunk < vpp);
		assert_int_equal(seen[a->chunk * mb + a->mb]++, (int)a->kind);
		held += a->kind == VFM_DO_F;
		held -= a->kind == (zb ? VFM_DO_W : VFM_DO_B);
		if (held > most)
			most = held;
	}
	assert_int_equal(held, 0);
	free(seen);
	return most;
}

/* The next action of the kind that has a neighbour part `by` away; its own part, or -1 at the end. */
static int next_part(const struct vfm_schedule *s, size_t *i, int stage, int pp, int vpp, enum vfm_action_kind kind,
	int by, int64_t *mb)
{
	for (; *i < s->n; ++*i) {
		int part = s->a[*i].chunk * pp + stage;

		if (s->a[*i].kind == kind && part + by >= 0 && part + by < pp * vpp) {
			*mb = s->a[(*i)++].mb;
			return part;
		}
	}
	return -1;
}

/* Messages between two stages are received in the order in which they were sent. */
static void check_order(const struct vfm_schedule *from, int from_stage, const struct vfm_schedule *to, int to_stage,
	int pp, int vpp, enum vfm_action_kind kind)
{
	int by = kind == VFM_DO_F ? 1 : -1, sent, got;
	int64_t sent_mb = 0, got_mb = 0;
	size_t i = 0, j = 0;

	do {
		sent = next_part(from, &i, from_stage, pp, vpp, kind, by, &sent_mb);
		got = next_part(to, &j, to_stage, pp, vpp, kind, -by, &got_mb);
		assert_int_equal(got, sent < 0 ? -1 : sent + by);
		assert_int_equal(got_mb, sent_mb);
	} while (sent >= 0);
}

/* The executor keeps the memory of a gradient that it sends until it is received, and lets at most `most` such messages
 * lie before it waits: whether all stages come to their ends.  got, sent: on the link from a stage to the one before.
 */
static bool ends_with(const struct vfm_schedule *all, int pp, int vpp, int64_t mb, int most)
{
	int parts = pp * vpp, got[8] = {0}, sent[8] = {0};
	bool moved = true, full[8] = {false}, ends = true;
	char *f = vfm_calloc((size_t)(parts * mb), 2), *b = f + parts * mb;
	size_t at[8] = {0};

	while (moved) {
		moved = false;
		for (int i = 0; i < pp; i++) {
			while (at[i] < all[i].n) {
				const struct vfm_action *a = &all[i].a[at[i]];
				int part = a->chunk * pp + i;

				if (full[i]) {
					if (sent[i] - got[i] > most)
						break;
				} else if (a->kind == VFM_DO_F) {
					if (part > 0 && !f[(part - 1) * mb + a->mb])
						break;
					f[part * mb + a->mb] = 1;
				} else if (a->kind == VFM_DO_B) {
					if (part < parts - 1 && !b[(part + 1) * mb + a->mb])
						break;
					got[(i + 1) % pp] += part < parts - 1;
					b[part * mb + a->mb] = 1;
					sent[i] += part > 0;
				}
				moved = true;
				full[i] = !full[i] && a->kind == VFM_DO_B && part > 0;
				at[i] += !full[i];
			}
		}
	}
	for (int i = 0; i < pp; i++)
		ends = ends && at[i] == all[i].n;
	free(f);
	return ends;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void test_all(void **state)
{
	(void)state;
	for (int pp = 1; pp <= 8; pp++)
		for (int vpp = 1; vpp <= 4; vpp++)
			for (int64_t mb = 1; mb <= 19; mb++)
				for (int zb = 0; zb < 2; zb++) {
					struct vfm_schedule all[8];
					double total, bubble;

					for (int stage = 0; stage < pp; stage++) {
						int64_t most;

						OK(vfm_schedule_make(&all[stage], zb ? VFM_PP_ZB : VFM_PP_1F1B, pp, vpp,
							stage, mb, &err));
						most = check_once(&all[stage], zb, vpp, mb);
						if (vpp == 1)
							assert_int_equal(most, least(zb ? pp : pp - stage, mb));
					}
					for (int stage = 0; stage < pp; stage++) {
						check_order(&all[stage], stage, &all[(stage + 1) % pp],
							(stage + 1) % pp, pp, vpp, VFM_DO_F);
						check_order(&all[stage], stage, &all[(stage + pp - 1) % pp],
							(stage + pp - 1) % pp, pp, vpp, VFM_DO_B);
					}
					if (pp > 1)
						assert_true(ends_with(all, pp, vpp, mb, 1) &&
							ends_with(all, pp, vpp, mb, 2));
					if (pp == 2 && vpp == 2 && mb == 2)
						assert_false(ends_with(all, pp, vpp, mb, 0));
					for (int stage = 0; stage < pp; stage++)
						vfm_schedule_release(&all[stage]);
					/* With times that differ from action to action and slow messages, too, it must
					 * end. */
					schedule_time(zb, pp, vpp, mb, 1, 2, 1, 0, &total, &bubble);
					assert_true(total >= (double)mb * vpp * (zb ? 4 : 3) - 1e-9);
					assert_true(bubble >= -1e-12 && bubble < 1);
					schedule_time(zb, pp, vpp, mb, 1, 1.7, 0.3, 9, &total, &bubble);
				}
}

static void near(double a, double b)
{
	if (!(fabs(a - b) < 1e-9))
		fail_msg("%.12g is not %.12g", a, b);
}

static void test_bubbles(void **state)
{
	(void)state;
	for (int p = 2; p <= 8; p++) {
		for (int64_t k = 1; k <= 5; k++) {
			int64_t m = k * p;
			double total, one, zb, bubble;

			/* 1F1B: (p-1)(f+b) idle, of m(f+b) + that */
			schedule_time(VFM_PP_1F1B, p, 1, m, 1, 2, 0, 0, &one, &bubble);
			near(one, 3.0 * (double)(m + p - 1));
			near(bubble, (double)(p - 1) / (double)(m + p - 1));
			/* interleaved: 1/v of the idle time */
			for (int v = 2; v <= 4; v++) {
				schedule_time(VFM_PP_1F1B, p, v, m, 1, 2, 0, 0, &total, &bubble);
				near(total, 3.0 * (double)(m * v + p - 1));
				near(bubble, (double)(p - 1) / (double)(m * v + p - 1));
				/* deferring W shortens the step further */
				schedule_time(VFM_PP_ZB, p, v, m, 1, 1, 1, 0, &zb, &bubble);
				assert_true(zb < total);
			}
			/* ZB-H1: (p-1)(f+b-w) idle; a third where they are equal */
			schedule_time(VFM_PP_ZB, p, 1, m, 1, 1, 1, 0, &zb, &bubble);
			near(zb, 3.0 * (double)m + (double)(p - 1));
			near(bubble, (double)(p - 1) / (3.0 * (double)m + (double)(p - 1)));
			/* fewer microbatches than stages: still less than 1F1B */
			for (int64_t few = 1; few < p; few++) {
				schedule_time(VFM_PP_1F1B, p, 1, few, 1, 2, 0, 0, &one, &bubble);
				schedule_time(VFM_PP_ZB, p, 1, few, 1, 1, 1, 0, &zb, &bubble);
				assert_true(zb < one);
			}
		}
	}
}

static void test_errors(void **state)
{
	struct vfm_schedule s;

	(void)state;
	assert_int_equal(vfm_schedule_make(&s, VFM_PP_1F1B, 2, 1, 0, 0, &err), VFM_EUSAGE);
	assert_int_equal(vfm_schedule_make(&s, VFM_PP_1F1B, 2, 1, 2, 4, &err), VFM_EUSAGE);
	assert_int_equal(vfm_schedule_make(&s, VFM_PP_1F1B, 2, 0, 0, 4, &err), VFM_EUSAGE);
	vfm_schedule_release(&s);
}

/* The most of each chunk, and of messages and packs, over the backwards of a stage. */
struct most {
	int64_t saved[2], deferred[2], messages, packs;
};

static struct most most_in_flight(int schedule, int pp, int vpp, int stage, int64_t packs, bool early)
{
	struct vfm_in_flights f;
	struct most m = {0};

	OK(vfm_in_flight_list(&f, schedule, pp, vpp, stage, packs, early, &err));
	for (int i = 0; i < f.n; i++) {
		const struct vfm_in_flight *x = &f.v[i];

		assert_true(x->saved[x->chunk] > 0);
		for (int k = 0; k < vpp; k++) {
			m.saved[k] = x->saved[k] > m.saved[k] ? x->saved[k] : m.saved[k];
			m.deferred[k] = x->deferred[k] > m.deferred[k] ? x->deferred[k] : m.deferred[k];
		}
		m.messages = x->messages > m.messages ? x->messages : m.messages;
		m.packs = x->packs > m.packs ? x->packs : m.packs;
	}
	vfm_in_flight_release(&f);
	return m;
}

static void test_in_flight(void **state)
{
	struct most m = most_in_flight(VFM_PP_1F1B, 1, 1, 0, 8, true);

	(void)state;
	assert_int_equal(m.saved[0], 1);
	assert_int_equal(m.messages, 0);
	assert_int_equal(m.packs, 2); /* with the next, which is uploaded */
	assert_int_equal(most_in_flight(VFM_PP_1F1B, 1, 1, 0, 8, false).packs, 1);
	m = most_in_flight(VFM_PP_1F1B, 4, 1, 0, 8, false);
	assert_int_equal(m.saved[0], 4);
	assert_int_equal(m.messages, 4); /* outputs, which are inputs of the next stage */
	m = most_in_flight(VFM_PP_1F1B, 4, 1, 3, 8, false);
	assert_int_equal(m.saved[0], 1);
	assert_int_equal(m.messages, 2 * VFM_UNRECEIVED);
	m = most_in_flight(VFM_PP_ZB, 4, 1, 3, 8, false);
	assert_int_equal(m.saved[0], 1);
	assert_int_equal(m.deferred[0], 3);
	/* interleaved: the chunks of a stage differ */
	m = most_in_flight(VFM_PP_1F1B, 2, 2, 0, 8, false);
	assert_int_equal(m.saved[0], 4);
	assert_int_equal(m.saved[1], 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layers),
		cmocka_unit_test(test_layers_head),
		cmocka_unit_test(test_all),
		cmocka_unit_test(test_bubbles),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_in_flight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
