/* step.c - runs the steps in a single process and in a rank of a mesh. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/shm_transport.h"
#include "base/clock.h"
#include "base/par.h"
#include "comm/device/comm_dev.h"
#include "comm/host/comm_host.h"
#include "meshes.h"
#include "device/open/open.h"
#include "train/step/synthetic.h"

enum { PACKS = 8, SAMPLES = 5 };

/* Images and videos, odd lengths, samples of one token, samples without text, packs with fewer tokens than ranks, and
 * an id that exceeds int64_t. */
static const struct vfm_synthetic samples[PACKS][SAMPLES] = {
	{{{2, 4, 4}, 7, 0xfedcba9876543210u}, {{1, 3, 5}, 2, 12}, {{3, 2, 2}, 5, 13}},
	{{{1, 4, 6}, 1, 21}, {{4, 2, 3}, 0, 22}, {{1, 1, 1}, 9, 23}},
	{{{1, 1, 1}, 3, 31}, {{1, 1, 2}, 0, 32}},
	{{{3, 5, 3}, 4, 41}, {{1, 2, 2}, 6, 42}, {{1, 1, 1}, 0, 43}, {{2, 3, 3}, 1, 44}},
	{{{5, 3, 3}, 8, 51}},
	{{{1, 1, 1}, 2, 61}},
	{{{2, 2, 2}, 3, 71}, {{2, 2, 2}, 3, 72}, {{2, 2, 3}, 1, 73}, {{1, 5, 5}, 2, 74}, {{1, 1, 3}, 2, 75}},
	{{{1, 7, 7}, 5, 81}, {{7, 1, 1}, 4, 82}},
};

struct bench {
	struct vfm_device dev;
	struct vfm_trainer *tr;
	struct vfm_pack b[PACKS];
};

static int packs_make(struct vfm_pack *b, const struct vfm_config *c, struct vfm_err *err)
{
	int64_t total = 0;

	for (int k = 0; k < PACKS; k++) {
		int n = 0;

		while (n < SAMPLES && samples[k][n].id)
			n++;
		TRY(vfm_synthetic_pack(&b[k], samples[k], n, &c->model, c->train.seed, err));
		b[k].index = k;
		total += b[k].tokens;
	}
	for (int k = 0; k < PACKS; k++)
		b[k].step_tokens = total;
	return 0;
}

/* Rank dp_i of dp has the packs dp_i, dp_i + dp, … */
static int one_step(struct bench *x, const struct vfm_mesh *m, const struct vfm_config *c, int step, double *loss,
	struct vfm_err *err)
{
	int dp = m->size[VFM_AX_DP], n = PACKS / dp;
	struct vfm_pack mine[PACKS];
	struct vfm_pack_array packs = {mine, n, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_step_stats stats;

	if (PACKS % dp)
		return vfm_fail(err, VFM_EUSAGE, "%d packs cannot be divided among dp = %d", PACKS, dp);
	for (int k = 0; k < n; k++)
		mine[k] = x->b[m->coord[VFM_AX_DP] + k * dp];
	TRY(vfm_trainer_step(x->tr, step, n, &source, c->train.lr, err));
	TRY(vfm_trainer_stats(x->tr, &stats, err));
	*loss = stats.loss;
	return 0;
}

typedef int grad_fn(
	void *ctx, const struct vfm_param *p, const struct vfm_owned *o, const float *g, struct vfm_err *err);

/* Calls fn with the gradients that this rank owns, on every replica. */
static int each_grad(struct vfm_trainer *tr, grad_fn *fn, void *ctx, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	const struct vfm_dev_table *t = ps->stream->dev->t;
	int rc = 0;

	for (size_t i = 0; i < ps->n && !rc; i++) {
		struct vfm_owned o = vfm_param_owned(ps, ps->p[i]);
		float *host;

		if (o.a == o.b || ps->p[i]->frozen)
			continue;
		host = vfm_calloc((size_t)(o.b - o.a), sizeof(float));
		rc = t->to_host(ps->stream, host, o.g, (size_t)(o.b - o.a) * sizeof(float), err);
		if (!rc)
			rc = t->stream_sync(ps->stream, err);
		if (!rc)
			rc = fn(ctx, ps->p[i], &o, host, err);
		free(host);
	}
	return rc;
}

/* Makes the plan of train.recompute=auto, at rates that hide copies of tiny blocks. */
static int plan_recompute(
	struct bench *x, const struct vfm_model_spec *model, const struct vfm_mesh *m, struct vfm_err *err)
{
	static const struct vfm_keep_plan_rates rates = {.flops = 720e12, .mem = 4.3e12, .host = 1e12};
	struct vfm_load load = {.packs = PACKS / m->size[VFM_AX_DP], .host_bytes = 1e12, .rates = &rates};

	for (int i = 0; i < SAMPLES && samples[6][i].id; i++) /* the longest pack */
		vfm_pack_sums_add(
			&load.largest, samples[6][i].grid, vfm_model_text_rows(model, samples[6][i].text_len));
	return vfm_trainer_plan(x->tr, &load, err);
}

static int bench_open(struct bench *x, const struct vfm_config *c, const struct vfm_mesh *m, const struct fault *fault,
	struct vfm_err *err)
{
	TRY(packs_make(x->b, c, err));
	x->tr = vfm_trainer_new(c, m, x->dev.stream, err);
	if (!x->tr)
		return err->code;
	TRY(vfm_params_fill_dense(vfm_trainer_params(x->tr), c->train.seed, err));
	TRY(fault_slice(fault, vfm_trainer_params(x->tr), err));
	TRY(plan_recompute(x, &c->model, m, err));
	return vfm_params_refresh(vfm_trainer_params(x->tr), err);
}

static void bench_close(struct bench *x)
{
	for (int k = 0; k < PACKS; k++)
		vfm_pack_release(&x->b[k]);
	vfm_trainer_free(x->tr);
}

/* ---- one process ---- */

struct fill_ref {
	struct ref *ref;
	int64_t used;
};

static int store_ref(
	void *ctx, const struct vfm_param *p, const struct vfm_owned *o, const float *g, struct vfm_err *err)
{
	struct fill_ref *f = ctx;
	struct ref_tensor *t = &f->ref->t[f->ref->n];

	if (o->a || o->b != p->n || f->ref->n == MAX_TENSORS || f->used + p->n > MAX_FLOATS)
		return vfm_fail(err, VFM_EUSAGE, "%s: the model of the reference is too large, or cut", p->name);
	f->ref->n++;
	snprintf(t->name, sizeof(t->name), "%s", p->name);
	t->n = p->n;
	t->off = f->used;
	f->used += p->n;
	for (int64_t i = 0; i < p->n; i++) {
		t->max = fmax(t->max, fabs((double)g[i]));
		t->norm += (double)g[i] * (double)g[i];
		f->ref->data[t->off + i] = g[i];
	}
	t->norm = sqrt(t->norm);
	f->ref->max = fmax(f->ref->max, t->max);
	return isfinite(t->norm) ? 0
				 : vfm_fail(err, VFM_EENV, "%s: the gradient of the reference is not finite", p->name);
}

int run_single(const struct vfm_config *c, struct ref *ref, struct vfm_err *err)
{
	const struct vfm_mesh *m = vfm_mesh_one();
	struct fill_ref f = {ref, 0};
	struct bench x = {0};
	int rc;

	TRY(vfm_device_open(&x.dev, "cpu", err));
	TRY_OUT(bench_open(&x, c, m, NULL, err));
	for (int s = 0; s < STEPS; s++) {
		TRY_OUT(one_step(&x, m, c, s, &ref->loss[s], err));
		if (s == 0)
			TRY_OUT(each_grad(x.tr, store_ref, &f, err));
	}
out:
	bench_close(&x);
	vfm_device_close(&x.dev);
	return rc;
}

/* ---- a rank ---- */

struct comparison {
	const struct ref *ref;
	struct found *out;
};

static int compare(void *ctx, const struct vfm_param *p, const struct vfm_owned *o, const float *g, struct vfm_err *err)
{
	struct comparison *x = ctx;
	struct vfm_runs runs = {0};
	int k = 0;

	while (k < x->ref->n && strcmp(x->ref->t[k].name, p->name) != 0)
		k++;
	if (k == x->ref->n)
		return vfm_fail(err, VFM_EUSAGE, "%s: a parameter that the single process does not have", p->name);
	vfm_runs_add_part(&runs, &p->part, o->a, o->b);
	for (size_t r = 0; r < runs.n; r++) {
		for (int64_t i = 0; i < runs.v[r].n; i++) {
			double d = (double)g[runs.v[r].to + i] -
				(double)x->ref->data[x->ref->t[k].off + runs.v[r].from + i];

			/* the maximum must not drop a NaN */
			x->out->t[k].max_diff = fabs(d) <= x->out->t[k].max_diff ? x->out->t[k].max_diff
				: isnan(d)                                       ? INFINITY
										 : fabs(d);
			x->out->t[k].sq_diff += o->writes ? d * d : 0;
		}
		x->out->t[k].covered += o->writes ? runs.v[r].n : 0;
	}
	vfm_runs_release(&runs);
	return 0;
}

static int rank_steps(struct bench *x, const struct vfm_config *c, const struct vfm_mesh *m, const struct ref *ref,
	struct found *out, struct vfm_err *err)
{
	struct comparison cmp = {ref, out};

	for (int s = 0; s < STEPS; s++) {
		TRY(one_step(x, m, c, s, &out->loss[s], err));
		if (s == 0)
			TRY(each_grad(x->tr, compare, &cmp, err));
	}
	return 0;
}

static void set_synthetic_nodes(struct vfm_launch *l, int nodes)
{
	int each = (l->size + nodes - 1) / nodes;

	l->nodes = (l->size + each - 1) / each;
	l->node = l->rank / each;
	l->local_rank = l->rank % each;
	l->local_size = l->node < l->nodes - 1 ? each : l->size - l->node * each;
	for (int r = 0; r < l->size; r++)
		l->node_of[r] = r / each;
}

const char *mesh_comm;

void comm_prepare(void)
{
	if (mesh_comm && !strcmp(mesh_comm, "shm"))
		shmt_make();
}

int run_rank(const struct vfm_config *c, const char *device, struct vfm_launch *l, int nodes, const struct fault *fault,
	const struct ref *ref, struct found *out, struct vfm_err *err)
{
	struct vfm_host_comm_opts opts = {.timeout_s = 60};
	struct vfm_comm *host = NULL, *world = NULL;
	struct vfm_comm_dev_opts on = {0};
	struct vfm_mesh m = {0};
	struct bench x = {0};
	bool off = getenv("VFM_COMM_REGISTER") != NULL; /* registration is disabled, for comparisons */
	const char *no_mem =
		getenv("MESH_NO_MEM"); /* shm: the allocation of the transport that fails on the last rank, from 0 */
	int rc;

	vfm_par_set_threads(1);
	if (no_mem && l->rank == l->size - 1)
		shmt_no_mem_at = 1 + atoi(no_mem);
	if (nodes > 1)
		set_synthetic_nodes(l, nodes);
	if (mesh_comm)
		setenv("VFM_COMM", mesh_comm, 1);
	TRY(vfm_comm_host_new(l, &opts, &host, err));
	TRY_OUT(vfm_device_open_rank(&x.dev, device,
		&(struct vfm_device_opts){.local_rank = l->local_rank, .local_size = l->local_size, .size = l->size},
		err));
	on = (struct vfm_comm_dev_opts){.compute = x.dev.stream,
		.transport = x.dev.plugin ? x.dev.plugin->transport : &shm_transport,
		.host_memory = !x.dev.plugin};
	TRY_OUT(vfm_comm_dev_new(host, &on, &world, err));
	TRY_OUT(vfm_mesh_init(&m, &c->parallel, world, x.dev.dev, err));
	TRY_OUT(bench_open(&x, c, &m, fault, err));
	fault_arm(fault, &m);
	TRY_OUT(rank_steps(&x, c, &m, ref, out, err));
	if (mesh_comm && !strcmp(mesh_comm, "shm") && m.shard->size * m.replica->size > 1 &&
		(shmt_registered_calls == 0) != off)
		rc = vfm_fail(err, VFM_EUSAGE, "calls with registered operands: %d", shmt_registered_calls);
	if (fault && !fault_hits() && strcmp(fault->op, "slice") != 0)
		rc = vfm_fail(err, VFM_EUSAGE, "fault %s: no such call occurred (%s over '%s')", fault->name, fault->op,
			fault->group);
out:
	if (rc < 0 && host->size > 1)
		vfm_comm_abort(host, err->msg);
	bench_close(&x);
	if (rc >= 0 && shmt_registered_now + shmt_mem_now)
		rc = vfm_fail(err, VFM_EUSAGE, "%d operands are still registered, %d allocations not freed",
			shmt_registered_now, shmt_mem_now);
	vfm_mesh_release(&m);
	if (world)
		vfm_comm_dev_free(world, host);
	vfm_device_close(&x.dev);
	vfm_comm_free(host);
	return rc;
}
