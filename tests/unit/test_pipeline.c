/* Compares pipelines of forked ranks with one rank over two steps: losses, all gradients and counts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/par.h"
#include "comm/host/comm_host.h"
#include "device/open/open.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { PACKS = 8, LAYERS = 8, STEPS = 2 };

struct layout {
	int pp, vpp, schedule, dp;
	int packs;     /* packs per global step */
	int recompute; /* enum vfm_recompute */
	enum vfm_dtype dtype;
	bool fsdp, distopt;
	int tp, cp; /* 0 means 1 */
};

/* Covers images, videos, single tokens, empty texts, and packs of one and several samples. */
static const struct vfm_synthetic samples[] = {
	{{1, 4, 4}, 3, 1},
	{{2, 3, 5}, 0, 2},
	{{3, 2, 2}, 6, 3},
	{{1, 1, 1}, 1, 4},
	{{2, 4, 4}, 2, 5},
	{{1, 5, 3}, 9, 6},
	{{1, 1, 2}, 0, 7},
	{{4, 2, 2}, 4, 8},
	{{1, 6, 6}, 5, 9},
	{{1, 2, 2}, 2, 10},
	{{2, 2, 2}, 1, 11},
	{{1, 1, 1}, 0, 12},
};
static const int first[PACKS + 1] = {0, 1, 3, 4, 6, 8, 9, 11, 12};

struct result {
	double loss[STEPS];
	int64_t tokens, samples;
	double flops;
	struct vfm_trainer *tr; /* holds the gradients of the last step */
};

static struct vfm_err err;

/* For rank processes. */
#define MUST(call)                                                                                                     \
	do {                                                                                                           \
		if ((call) < 0) {                                                                                      \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, err.msg);                                   \
			_exit(3);                                                                                      \
		}                                                                                                      \
	} while (0)
#define CHECK(cond, ...)                                                                                               \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fputc('\n', stderr);                                                                           \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

static void configure(struct vfm_config *c, const struct layout *l)
{
	vfm_config_defaults(c);
	c->model.layers = LAYERS;
	c->model.hidden = 32;
	c->model.heads = 2;
	c->model.channels = 3;
	c->model.text_dim = 8;
	c->model.pooled_text = true;
	c->model.adaln_lora = 4;
	c->diffusion.text_drop = 0.4;
	c->train.recompute = l->recompute;
	c->train.dtype = l->dtype;
	c->train.clip_norm = 1;
	c->train.ema_decay = 0;
	MUST(vfm_config_check(c, &err));
	c->parallel.pp = l->pp;
	c->parallel.vpp = l->vpp;
	c->parallel.dp = l->dp;
	c->parallel.schedule = l->schedule;
	c->parallel.tp = l->tp ? l->tp : 1;
	c->parallel.cp = l->cp ? l->cp : 1;
	c->parallel.fsdp = l->fsdp;
	c->parallel.distopt = l->distopt;
}

/* Runs the steps; dp rank p % dp gets pack p. */
static void train(
	struct result *r, const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s, int n_packs)
{
	int dp = mesh->size[VFM_AX_DP], mine = n_packs / dp;
	struct vfm_pack b[PACKS];
	struct vfm_pack_array packs = {b, mine, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_step_stats stats;
	int64_t tokens = 0;

	for (int k = 0; k < n_packs; k++)
		for (int i = first[k]; i < first[k + 1]; i++)
			tokens += samples[i].grid[0] * samples[i].grid[1] * samples[i].grid[2];
	for (int k = 0; k < mine; k++) {
		int p = k * dp + mesh->coord[VFM_AX_DP];

		MUST(vfm_synthetic_pack(&b[k], samples + first[p], first[p + 1] - first[p], &c->model, 5, &err));
		b[k].step_tokens = tokens;
	}
	r->tr = vfm_trainer_new(c, mesh, s, &err);
	MUST(r->tr ? 0 : -1);
	MUST(vfm_params_fill_dense(vfm_trainer_params(r->tr), 3, &err));
	for (int k = 0; k < STEPS; k++) {
		MUST(vfm_trainer_step(r->tr, k, mine, &source, 1e-3, &err));
		MUST(vfm_trainer_stats(r->tr, &stats, &err));
		r->loss[k] = stats.loss;
		CHECK(stats.rank.bubble_s >= 0 && stats.rank.comm_s > -1e-3, "bubble %g s, other communication %g s",
			stats.rank.bubble_s, stats.rank.comm_s);
		CHECK(stats.tokens == tokens, "%lld tokens instead of %lld", (long long)stats.tokens,
			(long long)tokens);
	}
	r->tokens = stats.tokens;
	r->samples = stats.samples;
	r->flops = stats.flops;
	for (int k = 0; k < mine; k++)
		vfm_pack_release(&b[k]);
}

static void compare_gradients(const struct layout *l, const struct vfm_params *ps, const struct vfm_params *ref)
{
	double tol = l->dtype == VFM_F32 ? 3e-5 : 5e-2, all = 0;

	for (int64_t i = 0; i < ref->n_flat; i++)
		all = fmax(all, fabs((double)ref->grad[i]));
	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i], *q = vfm_param_find(ref, p->name);
		struct vfm_owned o = vfm_param_owned(ps, p);
		struct vfm_runs runs = {0};
		double most = 0, off = 0;

		CHECK(q && !strcmp(p->name, q->name), "%s: the reference has none", p->name);
		for (int64_t k = 0; k < q->n; k++)
			most = fmax(most, fabs((double)ref->grad[q->off + k]));
		vfm_runs_add_part(&runs, &p->part, o.a, o.b);
		for (size_t j = 0; j < runs.n; j++)
			for (int64_t k = 0; k < runs.v[j].n; k++)
				off = fmax(off,
					fabs((double)o.g[runs.v[j].to + k] -
						(double)ref->grad[q->off + runs.v[j].from + k]));
		CHECK(off <= tol * most + 1e-6 * all, "gradient of %s is off by %g of %g", p->name, off, most);
		vfm_runs_release(&runs);
	}
}

static void compare(const struct layout *l, const struct result *r, const struct result *ref)
{
	double tol = l->dtype == VFM_F32 ? 1e-5 : 2e-2;

	for (int k = 0; k < STEPS; k++)
		CHECK(fabs(r->loss[k] - ref->loss[k]) <= tol * ref->loss[k], "loss of step %d: %.9g instead of %.9g", k,
			r->loss[k], ref->loss[k]);
	CHECK(r->tokens == ref->tokens && r->samples == ref->samples &&
			fabs(r->flops - ref->flops) <= 1e-9 * ref->flops,
		"%lld tokens, %lld samples", (long long)r->tokens, (long long)r->samples);
	compare_gradients(l, vfm_trainer_params(r->tr), vfm_trainer_params(ref->tr));
}

static int rank_main(struct vfm_launch *launch, const struct layout *l)
{
	struct vfm_host_comm_opts opts = {.timeout_s = 20};
	struct result r = {0}, ref = {0};
	struct vfm_config c, one;
	struct vfm_device d, d1;
	struct vfm_comm *world;
	struct vfm_mesh mesh;

	configure(&c, l);
	MUST(vfm_device_open(&d, "cpu", &err));
	MUST(vfm_device_open(&d1, "cpu", &err));
	one = c;
	vfm_parallel_defaults(&one.parallel);
	train(&ref, &one, vfm_mesh_one(), d1.stream, l->packs);

	MUST(vfm_comm_host_new(launch, &opts, &world, &err));
	MUST(vfm_parallel_check(&c.parallel, &c.model, launch->size, &err));
	MUST(vfm_mesh_init(&mesh, &c.parallel, world, d.dev, &err));
	train(&r, &c, &mesh, d.stream, l->packs);
	compare(l, &r, &ref);

	vfm_trainer_free(ref.tr);
	vfm_trainer_free(r.tr);
	CHECK(d.dev->mem_now == 0, "%lld bytes are still there", (long long)d.dev->mem_now);
	vfm_mesh_release(&mesh);
	vfm_comm_free(world);
	vfm_device_close(&d);
	vfm_device_close(&d1);
	vfm_launch_end(launch);
	return 0;
}

/* Memory depends on the number of stages, not on the number of packs. */
static int memory_main(struct vfm_launch *launch, const struct layout *l)
{
	struct vfm_host_comm_opts opts = {.timeout_s = 20};
	int64_t peak[2], before;
	struct vfm_trainer *tr;
	struct vfm_config c;
	struct vfm_device d;
	struct vfm_comm *world;
	struct vfm_mesh mesh;
	struct vfm_pack b;
	struct vfm_pack_array packs = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);

	configure(&c, l);
	MUST(vfm_device_open(&d, "cpu", &err));
	MUST(vfm_comm_host_new(launch, &opts, &world, &err));
	MUST(vfm_parallel_check(&c.parallel, &c.model, launch->size, &err));
	MUST(vfm_mesh_init(&mesh, &c.parallel, world, d.dev, &err));
	MUST(vfm_synthetic_pack(&b, samples + 7, 4, &c.model, 5, &err));
	tr = vfm_trainer_new(&c, &mesh, d.stream, &err);
	MUST(tr ? 0 : -1);
	for (int k = 0; k < 2; k++) {
		before = d.dev->mem_now;
		vfm_dev_peak_reset(d.dev);
		MUST(vfm_trainer_step(tr, k, k ? l->packs : 2 * l->pp, &source, 1e-3, &err));
		peak[k] = d.dev->mem_peak - before;
	}
	CHECK(peak[0] > 0 && peak[1] <= peak[0] + peak[0] / 50, "rank %d: %lld bytes for %d packs, %lld for %d",
		launch->rank, (long long)peak[0], 2 * l->pp, (long long)peak[1], l->packs);
	vfm_pack_release(&b);
	vfm_trainer_free(tr);
	vfm_mesh_release(&mesh);
	vfm_comm_free(world);
	vfm_device_close(&d);
	vfm_launch_end(launch);
	return 0;
}

static int third_is_bad(void *ctx, struct vfm_pack **p, struct vfm_err *e)
{
	struct vfm_pack_array *a = ctx;

	*p = a->p;
	return a->at++ == 2 ? vfm_fail(e, VFM_EUSAGE, "the third pack is damaged") : 0;
}

static void keep(void *ctx, struct vfm_pack *p)
{
	(void)ctx, (void)p;
}

/* A pack that the last stage cannot read ends the step on all ranks, with messages in flight. */
static int failure_main(struct vfm_launch *launch, const struct layout *l)
{
	struct vfm_host_comm_opts opts = {.timeout_s = 20};
	struct vfm_pack b;
	struct vfm_pack_array packs = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs), bad = {third_is_bad, keep, &packs};
	struct vfm_trainer *tr;
	struct vfm_config c;
	struct vfm_device d;
	struct vfm_comm *world;
	struct vfm_mesh mesh;
	bool last = launch->rank == l->pp - 1;
	int rc;

	configure(&c, l);
	MUST(vfm_device_open(&d, "cpu", &err));
	MUST(vfm_comm_host_new(launch, &opts, &world, &err));
	MUST(vfm_parallel_check(&c.parallel, &c.model, launch->size, &err));
	MUST(vfm_mesh_init(&mesh, &c.parallel, world, d.dev, &err));
	MUST(vfm_synthetic_pack(&b, samples + 7, 4, &c.model, 5, &err));
	tr = vfm_trainer_new(&c, &mesh, d.stream, &err);
	MUST(tr ? 0 : -1);
	rc = vfm_trainer_step(tr, 0, l->packs, last ? &bad : &source, 1e-3, &err);
	CHECK(rc == (last ? VFM_EUSAGE : VFM_EENV) && strstr(err.msg, "the third pack is damaged"), "rank %d: %d, %s",
		launch->rank, rc, err.msg);
	vfm_comm_abort(world, err.msg);
	vfm_pack_release(&b);
	vfm_trainer_free(tr);
	vfm_mesh_release(&mesh);
	_exit(0); /* a failed communicator cannot be closed in order */
}

/* Runs a job in a separate process. */
static void run_as(const struct layout *l, int (*rank)(struct vfm_launch *launch, const struct layout *l))
{
	int st;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct vfm_launch launch;
		int rc = vfm_launch_init(&launch, l->pp * l->dp * (l->tp ? l->tp : 1) * (l->cp ? l->cp : 1), &err);

		vfm_par_set_threads(1);
		if (rc == 0)
			exit(rank(&launch, l)); /* a normal exit, for the leak checker */
		_exit(rc == 1 ? launch.status : 100);
	}
	assert_int_equal(waitpid(pid, &st, 0), pid);
	if (!WIFEXITED(st) || WEXITSTATUS(st) != 0)
		fail_msg("pp %d vpp %d %s dp %d tp %d cp %d, %d packs, recompute %d, %s%s%s: status %x", l->pp, l->vpp,
			l->schedule == VFM_PP_ZB ? "zb" : "1f1b", l->dp, l->tp, l->cp, l->packs, l->recompute,
			vfm_dtype_name(l->dtype), l->fsdp ? " fsdp" : "", l->distopt ? " distopt" : "", st);
}

static void run(const struct layout *l)
{
	run_as(l, rank_main);
}

static void run_all(const struct layout *l, size_t n)
{
	for (size_t i = 0; i < n; i++)
		run(&l[i]);
}

#define RUN_ALL(table) run_all(table, sizeof(table) / sizeof((table)[0]))

enum {
	F1B = VFM_PP_1F1B,
	ZB = VFM_PP_ZB,
	NONE = VFM_RECOMPUTE_NONE,
	SEL = VFM_RECOMPUTE_SELECTIVE,
	FULL = VFM_RECOMPUTE_FULL
};

static void sweep(int schedule, int vpp)
{
	for (int pp = 2; pp <= 4; pp += 2)
		for (int packs = 1; packs <= PACKS; packs += pp / 2 + (packs > 3))
			run(&(struct layout){.pp = pp,
				.vpp = vpp,
				.schedule = schedule,
				.dp = 1,
				.packs = packs,
				.recompute = packs % 3});
}

static void test_1f1b(void **state)
{
	(void)state;
	sweep(F1B, 1);
}

static void test_interleaved(void **state)
{
	(void)state;
	sweep(F1B, 2);
}

static void test_zero_bubble(void **state)
{
	(void)state;
	sweep(ZB, 1);
}

static void test_zero_bubble_interleaved(void **state)
{
	(void)state;
	sweep(ZB, 2);
}

static void test_other_depths(void **state)
{
	static const struct layout l[] = {
		{.pp = 3, .vpp = 1, .schedule = F1B, .dp = 1, .packs = 5, .recompute = FULL},
		{.pp = 2, .vpp = 4, .schedule = F1B, .dp = 1, .packs = 5, .recompute = NONE},
		{.pp = 2, .vpp = 3, .schedule = F1B, .dp = 1, .packs = 7, .recompute = FULL},
		{.pp = 3, .vpp = 2, .schedule = ZB, .dp = 1, .packs = 7, .recompute = SEL},
	};

	(void)state;
	RUN_ALL(l);
}

/* Combined with data parallelism and sharding. */
static void test_with_data(void **state)
{
	static const struct layout l[] = {
		{.pp = 2, .vpp = 1, .schedule = F1B, .dp = 2, .packs = 4, .recompute = NONE},
		{.pp = 2, .vpp = 2, .schedule = F1B, .dp = 2, .packs = 8, .recompute = SEL, .distopt = true},
		{.pp = 2, .vpp = 1, .schedule = ZB, .dp = 2, .packs = 6, .recompute = FULL, .distopt = true},
		{.pp = 2, .vpp = 1, .schedule = ZB, .dp = 2, .packs = 8, .recompute = NONE, .fsdp = true},
		{.pp = 2, .vpp = 2, .schedule = ZB, .dp = 2, .packs = 4, .recompute = FULL, .fsdp = true},
		{.pp = 2, .vpp = 2, .schedule = F1B, .dp = 2, .packs = 4, .recompute = FULL, .fsdp = true},
	};

	(void)state;
	RUN_ALL(l);
}

/* Ranks that hold some or none of a pack's rows. */
static void test_with_cut_packs(void **state)
{
	static const struct layout l[] = {
		{.pp = 2, .vpp = 1, .schedule = F1B, .dp = 1, .packs = 8, .recompute = SEL, .cp = 2},
		{.pp = 2, .vpp = 2, .schedule = ZB, .dp = 1, .packs = 5, .recompute = FULL, .tp = 2},
		{.pp = 2,
			.vpp = 1,
			.schedule = ZB,
			.dp = 1,
			.packs = 3,
			.recompute = NONE,
			.tp = 2,
			.cp = 2,
			.distopt = true},
	};

	(void)state;
	RUN_ALL(l);
}

static void test_memory(void **state)
{
	(void)state;
	run_as(&(struct layout){.pp = 2, .vpp = 1, .schedule = F1B, .dp = 1, .packs = 16}, memory_main);
	run_as(&(struct layout){.pp = 2, .vpp = 2, .schedule = F1B, .dp = 1, .packs = 16, .recompute = FULL},
		memory_main);
	run_as(&(struct layout){.pp = 3, .vpp = 1, .schedule = ZB, .dp = 1, .packs = 18}, memory_main);
}

static void test_failure(void **state)
{
	(void)state;
	run_as(&(struct layout){.pp = 2, .vpp = 1, .schedule = F1B, .dp = 1, .packs = 8}, failure_main);
	run_as(&(struct layout){.pp = 4, .vpp = 2, .schedule = ZB, .dp = 1, .packs = 8}, failure_main);
}

static void test_bf16(void **state)
{
	static const struct layout l[] = {
		{.pp = 2, .vpp = 1, .schedule = ZB, .dp = 1, .packs = 4, .recompute = SEL, .dtype = VFM_BF16},
		{.pp = 4, .vpp = 2, .schedule = F1B, .dp = 1, .packs = 4, .recompute = NONE, .dtype = VFM_BF16},
	};

	(void)state;
	RUN_ALL(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_1f1b),
		cmocka_unit_test(test_interleaved),
		cmocka_unit_test(test_zero_bubble),
		cmocka_unit_test(test_zero_bubble_interleaved),
		cmocka_unit_test(test_other_depths),
		cmocka_unit_test(test_with_data),
		cmocka_unit_test(test_with_cut_packs),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_failure),
		cmocka_unit_test(test_bf16),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
