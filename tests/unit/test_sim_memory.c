/* The memory of a simulated device by owner: sums, peaks and times; on several ranks; in JSON and on a page. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"
#include "ok.h"
#include "device/sim/sim_memory.h"
#include "train/predict/dry_run.h"
#include "train/predict/dry_run_page.h"
#include "train/predict/memory_chart.h"

static struct vfm_machine h100;

static int load_h100(void **state)
{
	(void)state;
	return vfm_machine_load(&h100, "share/machines/h100-dgx.json", &err);
}

static void check_sums(const struct vfm_sim_memory *m)
{
	int64_t peak = 0;

	for (int k = 0; k < m->owners; k++)
		peak += m->owner[k].at_peak;
	assert_int_equal(peak, m->peak);
	for (int i = 0; i < m->points; i++) {
		int64_t sum = 0;

		for (int k = 0; k < m->owners; k++)
			sum += m->bytes[(size_t)i * (size_t)m->owners + (size_t)k];
		assert_int_equal(sum, m->point[i].used);
		assert_true(m->point[i].used <= m->peak);
		assert_true(i == 0 || m->point[i].s >= m->point[i - 1].s);
	}
}

static int64_t highest_point(const struct vfm_sim_memory *m, double *s)
{
	int64_t most = -1;

	for (int i = 0; i < m->points; i++)
		if (m->point[i].used > most) {
			most = m->point[i].used;
			*s = m->point[i].s;
		}
	return most;
}

/* ---- one device ---- */

static void *launch_zero(struct vfm_stream *s, size_t bytes, const char *what)
{
	void *p = vfm_dev_alloc(s, bytes, what, &err);

	assert_non_null(p);
	OK(s->dev->t->zero(s, p, bytes, &err));
	return p;
}

enum { KEPT = 64, LAUNCHES = 50000 };

static uint32_t next_random(uint32_t *x)
{
	*x = *x * 1664525u + 1013904223u;
	return *x >> 8;
}

/* Allocates and frees as n launches go; returns the largest mem_now of each launch in most [n + 1]. */
static void allocate_at_random(struct vfm_stream *s, size_t n, int64_t *most)
{
	static const char *const owners[] = {"activations", "gradients", "blocks.3.fc1", "blocks.17.fc1", "scratch"};
	void *p[KEPT] = {NULL};
	size_t bytes[KEPT];
	uint32_t x = 1;

	for (size_t i = 0; i <= n; i++)
		most[i] = -1;
	for (size_t i = 0; i < n; i++) {
		uint32_t k = next_random(&x) % KEPT;
		int64_t before = s->dev->mem_now;

		most[i] = before > most[i] ? before : most[i];
		if (p[k])
			vfm_dev_free(s, p[k], bytes[k]);
		bytes[k] = 1 + next_random(&x) % (i % 9 ? 1000 : 3 << 20);
		p[k] = vfm_dev_alloc(s, bytes[k], owners[next_random(&x) % 5], &err);
		assert_non_null(p[k]);
		if (s->dev->mem_now > most[i])
			most[i] = s->dev->mem_now;
		OK(s->dev->t->zero(s, p[k], 16, &err));
	}
	most[n] = s->dev->mem_now;
	for (int k = 0; k < KEPT; k++)
		vfm_dev_free(s, p[k], bytes[k]);
}

static void check_random(size_t n)
{
	struct vfm_dev *d = vfm_sim_open(&h100, NULL, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	int64_t *most = vfm_calloc(n + 1, sizeof(*most)), highest = 0;
	const struct vfm_sim_launch *l;
	struct vfm_sim_memory m;
	size_t n_launches;
	double at = -1;

	vfm_sim_record_memory(d);
	allocate_at_random(s, n, most);
	OK(d->t->stream_sync(s, &err));
	vfm_sim_memory(d, 0, &m);
	check_sums(&m);
	assert_int_equal(m.owners, 4); /* the blocks are one */
	assert_int_equal(m.peak, d->mem_peak);
	assert_int_equal(highest_point(&m, &at), d->mem_peak);
	assert_true(at == m.peak_s);
	assert_true(m.points <= VFM_SIM_MEMORY_POINTS && m.points > VFM_SIM_MEMORY_POINTS / 3);
	l = vfm_sim_launches(d, &n_launches);
	assert_int_equal(n_launches, n);
	for (size_t i = 0, k = 0; i < n; i++) { /* nowhere less than there was */
		double begin = l[i].begin[VFM_MID];

		while (k + 1 < (size_t)m.points && m.point[k + 1].s <= begin)
			k++;
		if (n < VFM_SIM_MEMORY_POINTS)
			assert_true(m.point[k].used <= most[i] && m.point[k].s <= begin);
		highest = most[i] > highest ? most[i] : highest;
	}
	assert_int_equal(highest, m.peak);
	vfm_sim_memory_release(&m);
	free(most);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

static void test_random(void **state)
{
	(void)state;
	check_random(1500);
	check_random(LAUNCHES);
}

/* A step has the memory from before; a peak that no step reaches again is before it. */
static void test_steps(void **state)
{
	struct vfm_dev *d = vfm_sim_open(&h100, NULL, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	size_t mib = (size_t)1 << 20;
	struct vfm_sim_memory m;
	double at = -1, begin[VFM_ESTIMATES];
	void *p, *x;

	(void)state;
	vfm_sim_memory(d, 0, &m); /* not recorded */
	assert_int_equal(m.owners, 0);
	vfm_sim_record_memory(d);
	p = launch_zero(s, 100 * mib, "parameters");
	x = launch_zero(s, 50 * mib, "activations");
	vfm_dev_free(s, x, 50 * mib);
	OK(d->t->stream_sync(s, &err));
	vfm_sim_clear(d);
	vfm_sim_host_now(d, begin);
	OK(d->t->zero(s, p, 100 * mib, &err)); /* the memory of the second launch */
	x = launch_zero(s, 20 * mib, "activations");
	vfm_dev_free(s, x, 20 * mib);
	OK(d->t->stream_sync(s, &err));
	vfm_sim_memory(d, begin[VFM_MID], &m);
	check_sums(&m);
	assert_int_equal(m.peak, 150 * mib);
	assert_true(m.peak_s == -1);
	assert_string_equal(m.owner[0].name, "parameters");
	assert_int_equal(m.point[0].used, 100 * mib);
	assert_true(m.point[0].s == 0);
	assert_int_equal(highest_point(&m, &at), 120 * mib);
	assert_true(fabs(at - (double)(100 * mib) / (h100.copy.v[VFM_MID] * 1e9)) < 1e-5 && at > 0);
	vfm_sim_memory_release(&m);

	vfm_sim_clear(d); /* as much as the peak again */
	vfm_sim_host_now(d, begin);
	x = launch_zero(s, 50 * mib, "activations");
	vfm_dev_free(s, x, 50 * mib);
	OK(d->t->stream_sync(s, &err));
	vfm_sim_memory(d, begin[VFM_MID], &m);
	assert_true(m.peak_s == 0 && m.peak == (int64_t)(150 * mib));
	vfm_sim_memory_release(&m);
	vfm_dev_free(s, p, 100 * mib);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

/* ---- the ranks of a job ---- */

static void configure(struct vfm_config *c)
{
	static const char *const set[] = {
		"model.layers=4", "train.dtype=bf16", "parallel.pp=2", "parallel.tp=2", "train.recompute=none"};

	vfm_config_defaults(c);
	OK(vfm_model_preset("dit-s", &c->model, &err));
	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++)
		OK(vfm_config_set(c, set[i], &err));
	OK(vfm_config_check(c, &err));
}

static void check_json(const struct vfm_sim_memory *m)
{
	struct vfm_buf b = {0};
	const char *name;
	int64_t sum = 0;
	json_t *o, *v;

	vfm_memory_json(&b, m);
	o = json_loads(b.data, 0, NULL);
	assert_non_null(o);
	json_object_foreach(o, name, v) sum += json_integer_value(v);
	assert_int_equal(sum, m->peak);
	assert_non_null(json_object_get(o, "activations"));
	json_decref(o);
	vfm_buf_release(&b);
}

static void test_ranks(void **state)
{
	struct vfm_config c;
	struct vfm_dry_run_opts o = {.config = &c,
		.machine = &h100,
		.ranks = 8,
		.context = 1024,
		.packs = 8,
		.timeline = true,
		.memory = true};
	struct vfm_dry_run d, plain;
	struct vfm_buf b = {0}, again = {0};
	struct vfm_dry_run_page page = {.o = &o, .d = &d};

	(void)state;
	configure(&c);
	OK(vfm_dry_run(&o, &d, &err));
	assert_int_equal(d.n, 4);
	for (int i = 0; i < d.n; i++) {
		const struct vfm_sim_memory *m = &d.rank[i].memory;
		double at = -1;

		check_sums(m);
		check_json(m);
		assert_int_equal(m->peak, d.rank[i].mem_peak);
		assert_int_equal(highest_point(m, &at), m->peak);
		assert_true(m->peak_s == at && at > 0 && at < d.s[VFM_MID]);
	}
	vfm_dry_run_html(&b, &page);
	vfm_dry_run_html(&again, &page);
	assert_string_equal(b.data, again.data);
	assert_non_null(strstr(b.data, "Rank 0, pp stage 0"));
	vfm_buf_release(&b);
	vfm_buf_release(&again);
	o.memory = false; /* changes nothing else */
	OK(vfm_dry_run(&o, &plain, &err));
	assert_memory_equal(d.s, plain.s, sizeof(d.s));
	assert_int_equal(d.mem_peak, plain.mem_peak);
	assert_int_equal(plain.rank[0].memory.owners, 0);
	vfm_dry_run_release(&plain);
	vfm_dry_run_release(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random), cmocka_unit_test(test_steps), cmocka_unit_test(test_ranks)};

	return cmocka_run_group_tests(tests, load_h100, NULL);
}
