/* Parameters over many ranks: every layout is compared with plain host loops without buckets and shards.
 *
 * The model is synthetic: units of parameters with every kind of cut.  Its forward checks that the weights are those of
 * this step.  Its backward adds to each gradient a number that depends on (rank, pack, parameter, global element), so
 * that the test can compute the sum over the ranks that hold the element.
 */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/philox.h"
#include "device/open/open.h"
#include "net/nn/param.h"
#include "net/tape/deferred.h"
#include "net/tape/node.h"
#include "net/tape/region.h"
#include "ranks.h"
#include "train/step/optim.h"

enum { LAYERS = 8, PACKS = 2, STEPS = 3, MAX_PARAMS = 128, SEED = 5 };
enum { UNIT_COND, UNIT_PATCH, UNIT_BLOCKS, UNIT_HEAD = UNIT_BLOCKS + LAYERS };

#define LR 0.01
static struct vfm_train_config adam = {/* moments and offload are set by tests */
	.beta1 = 0.9,
	.beta2 = 0.95,
	.eps = 1e-8,
	.weight_decay = 0.1,
	.clip_norm = 30,
	.ema_decay = 0.2};

/* ---- the descriptions ---- */

struct what {
	const char *name;
	int ndim;
	int64_t shape[3];
	int tp_groups, tp_dim;
	bool ep;
	enum vfm_init init;
};

static const struct what cond[] = {{"cond.w", 2, {20, 12}, 0, 0, false, VFM_INIT_NORMAL},
	{"cond.b", 1, {20}, 0, 0, false, VFM_INIT_ZERO}, {"cond.s0", 2, {3, 11}, 0, 0, false, VFM_INIT_NORMAL},
	{"cond.s1", 2, {5, 11}, 0, 0, false, VFM_INIT_NORMAL}};
static const struct what patch[] = {{"patch.w", 2, {13, 7}, 0, 0, false, VFM_INIT_NORMAL}};
static const struct what head[] = {
	{"head.w", 2, {7, 13}, 0, 0, false, VFM_INIT_ZERO}, {"head.b", 1, {7}, 0, 0, false, VFM_INIT_ZERO}};
static const struct what block[] = {
	{"norm", 1, {19}, 0, 0, false, VFM_INIT_ONE},
	{"col", 2, {36, 9}, 3, 0, false, VFM_INIT_NORMAL},
	{"mod", 2, {11, 9}, 0, 0, false, VFM_INIT_NORMAL},
	{"row", 2, {9, 12}, 1, 1, false, VFM_INIT_NORMAL},
	{"col.b", 1, {36}, 3, 0, false, VFM_INIT_ZERO},
	{"exp", 3, {4, 5, 6}, 0, 0, true, VFM_INIT_NORMAL},
	{"exp.n", 1, {40}, 0, 0, true, VFM_INIT_ONE},
};

static void declare(struct vfm_params *ps, int unit, const char *prefix, const struct what *w, size_t n, int scale)
{
	for (size_t i = 0; i < n; i++) {
		struct vfm_pdesc d = {.ndim = w[i].ndim};

		memcpy(d.shape, w[i].shape, sizeof(w[i].shape));
		d.shape[w[i].ndim - 1] *=
			w[i].ndim > 1 ? scale : 1; /* as in real models, most parameters are in matrices */
		if (w[i].tp_groups)
			d.cut[VFM_AX_TP] = (struct vfm_axis_cut){w[i].tp_groups, w[i].tp_dim};
		if (w[i].ep)
			d.cut[VFM_AX_EP] = (struct vfm_axis_cut){1, 0};
		vfm_param_add(ps, unit, &d, w[i].init, 0.5f, "%s%s", prefix, w[i].name);
	}
}

#define DECLARE(unit, prefix, list, scale) declare(ps, unit, prefix, list, sizeof(list) / sizeof(list[0]), scale)

static int chunk_of(const struct vfm_parallel *p, int layer, int *stage)
{
	int virt = layer / (int)(LAYERS / (p->pp * p->vpp));

	*stage = virt % (int)p->pp;
	return virt / (int)p->pp;
}

static void declare_all(struct vfm_params *ps, int scale)
{
	const struct vfm_mesh *m = ps->mesh;
	char prefix[32];
	int stage;

	vfm_params_all_pp_stages(ps, true);
	DECLARE(UNIT_COND, "", cond, 1);
	if (!m->p.fsdp || m->shard->size == 1) {
		struct vfm_param *both[] = {vfm_param_find(ps, "cond.s0"), vfm_param_find(ps, "cond.s1")};

		vfm_params_stack(ps, both, 2);
	}
	vfm_params_all_pp_stages(ps, false);
	if (m->coord[VFM_AX_PP] == 0)
		DECLARE(UNIT_PATCH, "", patch, 1);
	for (int i = 0; i < LAYERS; i++) {
		chunk_of(&m->p, i, &stage);
		snprintf(prefix, sizeof(prefix), "blocks.%d.", i);
		if (stage == m->coord[VFM_AX_PP])
			DECLARE(UNIT_BLOCKS + i, prefix, block, scale);
	}
	if (m->coord[VFM_AX_PP] == m->p.pp - 1)
		DECLARE(UNIT_HEAD, "", head, 1);
}

/* ---- the reference, on the host ---- */

static struct ref {
	char name[96];
	struct vfm_pdesc d;
	bool all_pp_stages, matrix;
	int unit;
	int64_t n;
	double *g[STEPS], *w[STEPS + 1], *m, *v, *ema; /* [n] */
} * ref;
static int n_ref;
static double ref_norm[STEPS];

static double start_value(const struct vfm_param *p, int64_t i)
{
	struct vfm_rng rng = vfm_rng_stream(SEED, 0, vfm_fnv64(p->name, strlen(p->name)), VFM_RNG_INIT);

	return p->init == VFM_INIT_ONE     ? 1
		: p->init == VFM_INIT_ZERO ? 0
					   : (double)p->std * (double)vfm_rng_normal(&rng, (uint64_t)i);
}

static const struct ref *ref_of(const char *name)
{
	for (int i = 0; i < n_ref; i++)
		if (!strcmp(ref[i].name, name))
			return &ref[i];
	fail_msg("no parameter %s", name);
	return NULL;
}

static void ref_free(void)
{
	for (int i = 0; i < n_ref; i++) {
		for (int s = 0; s < STEPS; s++)
			free(ref[i].g[s]);
		for (int s = 0; s <= STEPS; s++)
			free(ref[i].w[s]);
		free(ref[i].m);
		free(ref[i].v);
		free(ref[i].ema);
	}
	free(ref);
	n_ref = 0;
}

/* Declares every parameter and computes its initial value. */
static void ref_begin(int scale)
{
	struct vfm_params ps;

	vfm_params_init(&ps, NULL, vfm_mesh_one());
	declare_all(&ps, scale);
	ref = vfm_calloc(ps.n, sizeof(*ref));
	n_ref = (int)ps.n;
	for (int i = 0; i < n_ref; i++) {
		const struct vfm_param *p = ps.p[i];
		struct ref *r = &ref[i];

		snprintf(r->name, sizeof(r->name), "%s", p->name);
		r->d = p->d;
		r->d.name = r->name;
		r->all_pp_stages = p->all_pp_stages;
		r->matrix = p->d.ndim > 1;
		r->unit = p->unit;
		r->n = p->n;
		for (int s = 0; s < STEPS; s++)
			r->g[s] = vfm_calloc((size_t)p->n, sizeof(double));
		for (int s = 0; s <= STEPS; s++)
			r->w[s] = vfm_calloc((size_t)p->n, sizeof(double));
		r->m = vfm_calloc((size_t)p->n, sizeof(double));
		r->v = vfm_calloc((size_t)p->n, sizeof(double));
		r->ema = vfm_calloc((size_t)p->n, sizeof(double));
		for (int64_t k = 0; k < p->n; k++)
			r->ema[k] = r->w[0][k] = start_value(p, k);
	}
	vfm_params_release(&ps);
}

/* Computes the sums of the contributions that the backward of the model makes on all ranks of the layout. */
static void ref_gradients(const struct vfm_parallel *p)
{
	int coord[VFM_AXES], size[VFM_AXES];
	struct vfm_runs runs = {0};
	struct vfm_part part;

	vfm_parallel_size(p, size);
	for (int rank = 0; rank < world_of(p); rank++) {
		vfm_parallel_coord(p, rank, coord);
		for (int i = 0; i < n_ref; i++) {
			struct ref *r = &ref[i];
			int stage = r->unit == UNIT_HEAD ? (int)p->pp - 1 : 0;

			if (r->unit >= UNIT_BLOCKS && r->unit < UNIT_HEAD)
				chunk_of(p, r->unit - UNIT_BLOCKS, &stage);
			if (!r->all_pp_stages && stage != coord[VFM_AX_PP])
				continue;
			assert_int_equal(vfm_part_of(&r->d, coord, size, &part, &err), 0);
			vfm_runs_clear(&runs);
			vfm_runs_add_part(&runs, &part, 0, vfm_part_numel(&part));
			for (size_t k = 0; k < runs.n; k++)
				for (int64_t e = runs.v[k].from; e < runs.v[k].from + runs.v[k].n; e++)
					for (int sp = 0; sp < STEPS * PACKS; sp++)
						r->g[sp / PACKS][e] +=
							contribution(rank, sp / PACKS, sp % PACKS, r->name, e) *
							(double)(r->all_pp_stages ? p->vpp : 1);
			vfm_part_release(&part);
		}
	}
	vfm_runs_release(&runs);
}

static void ref_steps(void)
{
	for (int s = 0; s < STEPS; s++) {
		double sum = 0, scale, decay = s ? fmin(adam.ema_decay, (s + 1) / (s + 10.)) : 0;
		double c1 = 1 - pow(adam.beta1, s + 1), c2 = 1 - pow(adam.beta2, s + 1);

		for (int i = 0; i < n_ref; i++)
			for (int64_t k = 0; k < ref[i].n; k++)
				sum += ref[i].g[s][k] * ref[i].g[s][k];
		ref_norm[s] = sqrt(sum);
		scale = ref_norm[s] > adam.clip_norm ? adam.clip_norm / ref_norm[s] : 1;
		assert_true(scale < 1);
		for (int i = 0; i < n_ref; i++) {
			struct ref *r = &ref[i];

			for (int64_t k = 0; k < r->n; k++) {
				double g = r->g[s][k] * scale, w = r->w[s][k];

				r->m[k] = adam.beta1 * r->m[k] + (1 - adam.beta1) * g;
				r->v[k] = adam.beta2 * r->v[k] + (1 - adam.beta2) * g * g;
				w -= r->matrix ? LR * adam.weight_decay * w : 0;
				w -= LR * (r->m[k] / c1) / (sqrt(r->v[k] / c2) + adam.eps);
				r->ema[k] = decay * r->ema[k] + (1 - decay) * w;
				r->w[s + 1][k] = w;
			}
		}
	}
}

/* ---- a rank ---- */

static bool split_masters;

struct rank {
	const struct layout *l;
	struct vfm_mesh mesh;
	struct vfm_device d;
	struct vfm_params ps;
	struct vfm_optim optim;
	struct vfm_tape *tape;
	bool check; /* compare values with the reference */
	int step, pack;
};

/* Checks that elements [a, b) of a parameter's local tensor, stored in `have` from `at` on, equal the global array
 * `want`. */
static void compare(const struct rank *r, const struct vfm_param *p, int64_t a, int64_t b, struct vfm_tensor have,
	int64_t at, const double *want, double tol, const char *what)
{
	struct vfm_runs runs = {0};

	if (a == b)
		return;
	vfm_runs_add_part(&runs, &p->part, a, b);
	for (size_t k = 0; k < runs.n; k++) {
		for (int64_t i = 0; i < runs.v[k].n; i++) {
			double x = value_at(&have, at + runs.v[k].to + i), y = want[runs.v[k].from + i];

			MUST(fabs(x - y) <= tol * (1 + fabs(y)),
				"%s, rank %d, step %d: %s of %s[%lld] is %.9g, not %.9g", r->l->name, r->mesh.rank,
				r->step, what, p->name, (long long)(runs.v[k].from + i), x, y);
		}
	}
	vfm_runs_release(&runs);
}

static void check_weights(struct rank *r, int unit)
{
	for (size_t i = 0; i < r->ps.n && r->check; i++) {
		const struct vfm_param *p = r->ps.p[i];

		if (p->unit == unit)
			compare(r, p, 0, p->n, p->var.v, 0, ref_of(p->name)->w[r->step],
				p->var.v.dtype != VFM_F32          ? 1.0 / 128
					: adam.moments == VFM_BF16 ? 1e-3
								   : 2e-5,
				"weight");
	}
}

struct probe {
	struct rank *r;
	int unit, pack;
};

/* May run deferred; then the weights may have been freed. */
static int probe_grads(struct vfm_tape *t, void *ctx, struct vfm_err *e)
{
	const struct probe *b = ctx;
	struct rank *r = b->r;

	for (size_t i = 0; i < r->ps.n; i++) {
		struct vfm_param *p = r->ps.p[i];
		struct vfm_runs runs = {0};
		struct vfm_tensor g;
		bool accumulate;

		if (p->unit != b->unit)
			continue;
		TRY(vfm_grad_into(t, &p->var, &g, &accumulate, e));
		vfm_runs_add_part(&runs, &p->part, 0, p->n);
		for (size_t k = 0; k < runs.n; k++) {
			for (int64_t j = 0; j < runs.v[k].n; j++) {
				float *to = (float *)g.data + runs.v[k].to + j;
				float x = r->check ? (float)contribution(r->mesh.rank, r->step, b->pack, p->name,
							     runs.v[k].from + j)
						   : 1;

				*to = accumulate || p->d.ndim == 1 ? *to + x : x; /* as ops: they add to vectors */
			}
		}
		vfm_runs_release(&runs);
	}
	return 0;
}

static int probe_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *e)
{
	const struct probe *b = n->ctx;

	check_weights(b->r, b->unit);
	TRY(vfm_defer(t, probe_grads, n->ctx, NULL, NULL, e));
	return vfm_grad_pass(t, n->out, n->in[0], e);
}

static struct vfm_var *probe(struct vfm_tape *t, void *ctx)
{
	const struct probe *b = ctx;
	struct vfm_var *x = *(struct vfm_var **)(b + 1), *y = vfm_var_new(t, vfm_like(&x->v, VFM_F32));
	struct vfm_node *n;

	check_weights(b->r, b->unit);
	if (vfm_tape_status(t, NULL) == 0) /* after a failure y has no memory */
		memcpy(y->v.data, x->v.data, vfm_nbytes(&x->v));
	n = vfm_record(t, probe_backward, y, &x, 1);
	if (n)
		n->ctx = ctx;
	return y;
}

static struct vfm_var *run_unit(struct rank *r, int unit, struct vfm_var *x, enum vfm_recompute mode)
{
	struct probe *b = vfm_tape_alloc(r->tape, sizeof(*b) + sizeof(x));

	*b = (struct probe){r, unit, r->pack};
	*(struct vfm_var **)(b + 1) = x;
	vfm_unit_begin(r->tape, &r->ps, unit);
	x = vfm_region(r->tape,
		(struct vfm_keeps){
			unit >= UNIT_BLOCKS && unit < UNIT_HEAD ? vfm_recompute_keeps(mode) : VFM_KEEP_ALL, 0},
		probe, b, &x, 1);
	vfm_unit_end(r->tape, &r->ps, unit);
	return x;
}

static void run_chunk(struct rank *r, int chunk, enum vfm_recompute mode)
{
	static float x0[4], one[4] = {1, 1, 1, 1};
	const struct vfm_parallel *p = &r->mesh.p;
	struct vfm_var *x = vfm_leaf(r->tape, vfm_t2(x0, VFM_F32, 2, 2));
	int stage;

	x = run_unit(r, UNIT_COND, x, mode);
	if (chunk == 0 && r->mesh.coord[VFM_AX_PP] == 0)
		x = run_unit(r, UNIT_PATCH, x, mode);
	for (int i = 0; i < LAYERS; i++)
		if (chunk_of(p, i, &stage) == chunk && stage == r->mesh.coord[VFM_AX_PP])
			x = run_unit(r, UNIT_BLOCKS + i, x, mode);
	if (chunk == p->vpp - 1 && r->mesh.coord[VFM_AX_PP] == p->pp - 1)
		x = run_unit(r, UNIT_HEAD, x, mode);
	OK(vfm_tape_seed(r->tape, x, vfm_t2(one, VFM_F32, 2, 2), &err));
	vfm_tape_defer_weights(r->tape, r->step == 0 && r->pack == 1);
	OK(vfm_tape_backward(r->tape, &err));
	OK(vfm_tape_weights(r->tape, &err));
	vfm_tape_reset(r->tape);
}

/* own NULL: checks the masters. */
static void check_array(struct rank *r, const struct vfm_array *own, double tol, const char *what,
	double *(*of)(const struct ref *ref, int step))
{
	for (size_t i = 0; i < r->ps.n; i++) {
		const struct vfm_param *p = r->ps.p[i];
		struct vfm_owned o = vfm_param_owned(&r->ps, p);
		float *x = vfm_calloc((size_t)(o.b - o.a) + 1, sizeof(*x));

		OK(vfm_param_get(&r->ps, own, p, x, &err));
		compare(r, p, o.a, o.b, vfm_t1(x, VFM_F32, o.b - o.a), 0, of(ref_of(p->name), r->step), tol, what);
		free(x);
	}
}

static void check_grads(struct rank *r)
{
	for (size_t i = 0; i < r->ps.n; i++) {
		const struct vfm_param *p = r->ps.p[i];
		struct vfm_owned o = vfm_param_owned(&r->ps, p);

		compare(r, p, o.a, o.b, vfm_t1(o.g, VFM_F32, o.b - o.a), 0, ref_of(p->name)->g[r->step], 1e-5,
			"gradient");
	}
}

static double *of_w(const struct ref *x, int step)
{
	return x->w[step];
}

static double *of_m(const struct ref *x, int step)
{
	(void)step;
	return x->m;
}

static double *of_v(const struct ref *x, int step)
{
	(void)step;
	return x->v;
}

static double *of_ema(const struct ref *x, int step)
{
	(void)step;
	return x->ema;
}

static void rank_open(
	struct rank *r, struct vfm_launch *l, const struct layout *lay, int scale, struct vfm_comm **world)
{
	*r = (struct rank){.l = lay};
	OK(vfm_comm_host_new(l, &(struct vfm_host_comm_opts){.timeout_s = 20}, world, &err));
	OK(vfm_device_open(&r->d, "cpu", &err));
	OK(vfm_mesh_init(&r->mesh, &lay->p, *world, r->d.dev, &err));
	vfm_params_init(&r->ps, r->d.stream, &r->mesh);
	r->ps.split = split_masters;
	declare_all(&r->ps, scale);
	OK(vfm_params_alloc(&r->ps, lay->dtype, true, &err));
	OK(vfm_params_fill(&r->ps, SEED, &err));
	OK(vfm_optim_new(&r->optim, &r->ps, &adam, &err));
	OK(vfm_optim_start(&r->optim, &err));
	r->tape = vfm_tape_new(r->d.stream);
}

static void rank_close(struct rank *r)
{
	vfm_tape_free(r->tape);
	vfm_optim_release(&r->optim);
	vfm_params_release(&r->ps);
	MUST(r->d.dev->mem_now == 0, "%s: %lld bytes of device memory leaked", r->l->name,
		(long long)r->d.dev->mem_now);
	vfm_mesh_release(&r->mesh);
	vfm_device_close(&r->d);
}

/* Checks the gradients whose reduction overlapped with the backward.  Waits only for the parameter stream, not for the
 * compute stream. */
static void check_early(struct rank *r)
{
	if (!r->mesh.param_stream)
		return;
	OK(r->d.dev->t->stream_sync(r->mesh.param_stream, &err));
	for (size_t i = 0; i < r->ps.n; i++) {
		const struct vfm_param *p = r->ps.p[i];
		const struct vfm_param_bucket *s = &r->ps.bucket[p->bucket];
		struct vfm_owned o = vfm_param_owned(&r->ps, p);

		if (s->sharding != VFM_SHARDING_FULL)
			MUST(s->reducing, "%s: the reduction of %s did not overlap with the backward", r->l->name,
				p->name);
		if (s->reducing && !s->all_pp_stages)
			compare(r, p, o.a, o.b, vfm_t1(o.g, VFM_F32, o.b - o.a), 0, ref_of(p->name)->g[r->step], 1e-5,
				"gradient before the end");
	}
}

static void one_step(struct rank *r)
{
	bool late = r->step == 1; /* this step is reduced at its end */

	OK(vfm_params_grad_begin(&r->ps, &err));
	if (!late)
		vfm_params_set_packs(&r->ps, PACKS);
	for (r->pack = 0; r->pack < PACKS; r->pack++)
		for (int c = 0; c < r->mesh.p.vpp; c++)
			run_chunk(r, c, r->step == 2 ? VFM_RECOMPUTE_FULL : VFM_RECOMPUTE_NONE);
	if (!late && r->check)
		check_early(r);
	OK(vfm_params_grad_end(&r->ps, &err));
}

static int train(struct vfm_launch *l, const void *arg)
{
	const struct layout *lay = arg;
	struct vfm_comm *world;
	static struct rank r;

	rank_open(&r, l, lay, 1, &world);
	r.check = true;
	check_array(&r, NULL, 1e-6, "start", of_w);
	for (r.step = 0; r.step < STEPS; r.step++) {
		float norm;

		one_step(&r);
		MUST((r.ps.early > 0) == (r.mesh.param_stream && r.step != 1),
			"%s: the reductions of %d buckets overlapped with the backward", lay->name, r.ps.early);
		check_grads(&r);
		OK(vfm_optim_step(&r.optim, LR, r.step + 1, (struct vfm_tensor){0}, &err));
		memcpy(&norm, r.optim.norm.data, sizeof(norm));
		MUST(fabs((double)norm / ref_norm[r.step] - 1) < 1e-6, "%s: norm %.9g, not %.9g", lay->name,
			(double)norm, ref_norm[r.step]);
	}
	/* Moments in bf16 are rounded, and so are the updates. */
	check_array(&r, NULL, adam.moments == VFM_BF16 ? 1e-3 : 2e-5, "master", of_w);
	check_array(&r, &r.optim.m, adam.moments == VFM_BF16 ? 1.0 / 128 : 1e-5, "m", of_m);
	check_array(&r, &r.optim.v, 1e-5, "v", of_v);
	check_array(&r, &r.optim.ema, adam.moments == VFM_BF16 ? 1e-3 : 2e-5, "average", of_ema);
	rank_close(&r);
	vfm_comm_free(world);
	vfm_launch_end(l);
	return 0;
}

static const struct layout layouts[] = {
	{"one", P(1, 1, 1, 1, 1, 1, 1), VFM_F32},
	{"one bf16", P(1, 1, 1, 1, 1, 1, 1), VFM_BF16},
	{"dp2", P(1, 1, 1, 2, 1, 1, 2), VFM_F32},
	{"dp2 bf16", P(1, 1, 1, 2, 1, 1, 2), VFM_BF16},
	{"dp2 one bucket", P(1, 1, 1, 2, 1, 1, 2, .bucket_mib = 32), VFM_F32},
	{"cp2 dp2", P(1, 2, 1, 2, 1, 1, 4), VFM_F32},
	{"tp2", P(2, 1, 1, 1, 1, 1, 1), VFM_F32},
	{"pp2", P(1, 1, 2, 1, 1, 1, 1), VFM_F32},
	{"pp2 vpp2", P(1, 1, 2, 1, 1, 2, 1), VFM_F32},
	{"distopt2", P(1, 1, 1, 2, 1, 1, 2, .distopt = true), VFM_F32},
	{"distopt2 bf16 one bucket", P(1, 1, 1, 2, 1, 1, 2, .distopt = true, .bucket_mib = 1), VFM_BF16},
	{"fsdp2", P(1, 1, 1, 2, 1, 1, 2, .fsdp = true), VFM_F32},
	{"fsdp2 bf16", P(1, 1, 1, 2, 1, 1, 2, .fsdp = true), VFM_BF16},
	{"fsdp3", P(1, 1, 1, 3, 1, 1, 3, .fsdp = true), VFM_F32},
	{"fsdp4 hybrid 2", P(1, 1, 1, 4, 1, 1, 2, .fsdp = true), VFM_F32},
	{"distopt4 hybrid 2", P(1, 1, 1, 4, 1, 1, 2, .distopt = true), VFM_F32},
	{"ep2", P(1, 1, 1, 2, 2, 1, 2), VFM_F32},
	{"ep2 of tp2 dp2 fsdp", P(2, 1, 1, 2, 2, 1, 2, .fsdp = true), VFM_F32},
	{"ep2 of 4 distopt", P(1, 2, 1, 2, 2, 1, 4, .distopt = true), VFM_BF16},
	{"cp2 tp2 pp2 distopt", P(2, 2, 2, 1, 1, 1, 2, .distopt = true), VFM_F32},
	{"tp2 pp2 dp2 vpp2 fsdp bf16", P(2, 1, 2, 2, 1, 2, 2, .fsdp = true), VFM_BF16},
	{"cp2 tp2 pp2 ep4 distopt", P(2, 2, 2, 1, 4, 1, 2, .distopt = true), VFM_F32},
};

static void check_layout(const struct layout *l)
{
	ref_begin(1);
	ref_gradients(&l->p);
	ref_steps();
	in_ranks(l, train);
	ref_free();
}

static void test_layouts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		check_layout(&layouts[i]);
}

/* Split masters, first moments in bf16, moments on the host. */
static void test_smaller_state(void **state)
{
	static const struct layout l[] = {
		{"one", P(1, 1, 1, 1, 1, 1, 1), VFM_BF16},
		{"distopt4 hybrid 2", P(1, 1, 1, 4, 1, 1, 2, .distopt = true), VFM_BF16},
		{"tp2 fsdp2", P(2, 1, 1, 2, 1, 1, 2, .fsdp = true), VFM_BF16},
	};

	(void)state;
	for (int i = 0; i < 9; i++) {
		adam.moments = i / 3 == 1 ? VFM_BF16 : VFM_F32;
		adam.offload = i / 3 == 2 ? VFM_OFFLOAD_OPTIMIZER : VFM_OFFLOAD_NONE;
		split_masters = i / 3 != 2;
		check_layout(&l[i % 3]);
	}
	adam.offload = VFM_OFFLOAD_NONE;
	split_masters = false;
}

/* ---- reproducible bits ---- */

static void *shared; /* the results of the ranks, for the test */

static int train_for_bits(struct vfm_launch *l, const void *arg)
{
	struct vfm_comm *world;
	static struct rank r;
	const float *all[4];
	uint64_t *bits = shared;

	rank_open(&r, l, arg, 3, &world);
	r.check = true;
	for (r.step = 0; r.step < STEPS; r.step++) {
		one_step(&r);
		OK(vfm_optim_step(&r.optim, LR, r.step + 1, (struct vfm_tensor){0}, &err));
	}
	all[0] = r.ps.master, all[1] = r.optim.m.data, all[2] = r.optim.v.data, all[3] = r.optim.ema.data;
	bits[l->rank] = 1;
	for (int i = 0; i < 4; i++)
		bits[l->rank] = bits[l->rank] * 31 + vfm_fnv64(all[i], (size_t)r.ps.n_own * 4);
	rank_close(&r);
	vfm_comm_free(world);
	vfm_launch_end(l);
	return 0;
}

static void test_bits(void **state)
{
	static const struct layout l[] = {
		{"dp3", P(1, 1, 1, 3, 1, 1, 3), VFM_F32},
		{"tp2 pp2 dp2 distopt", P(2, 1, 2, 2, 1, 1, 2, .distopt = true), VFM_BF16},
		{"fsdp4 hybrid", P(1, 1, 1, 4, 2, 1, 2, .fsdp = true), VFM_F32},
	};
	uint64_t first[16], *bits;

	(void)state;
	bits = shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(bits != MAP_FAILED);
	for (size_t i = 0; i < sizeof(l) / sizeof(l[0]); i++) {
		ref_begin(3); /* the ranks also check the weights */
		ref_gradients(&l[i].p);
		ref_steps();
		memset(bits, 0, sizeof(first));
		in_ranks(&l[i], train_for_bits);
		memcpy(first, bits, sizeof(first));
		memset(bits, 0, sizeof(first));
		in_ranks(&l[i], train_for_bits);
		assert_memory_equal(bits, first, sizeof(first));
		ref_free();
		if (i == 0) /* replicas have equal bits */
			assert_true(bits[0] && bits[1] == bits[0] && bits[2] == bits[0]);
	}
	munmap(bits, 4096);
}

/* ---- weights without gradients ---- */

/* Without gradients, as for sampling: units gather their weights, and no memory leaks. */
static int forward_only(struct vfm_launch *l, const void *arg)
{
	static struct rank r;
	static float x0[4];
	struct vfm_comm *world;

	r = (struct rank){.l = arg, .check = true};
	OK(vfm_comm_host_new(l, &(struct vfm_host_comm_opts){.timeout_s = 20}, &world, &err));
	OK(vfm_device_open(&r.d, "cpu", &err));
	OK(vfm_mesh_init(&r.mesh, &r.l->p, world, r.d.dev, &err));
	vfm_params_init(&r.ps, r.d.stream, &r.mesh);
	declare_all(&r.ps, 1);
	OK(vfm_params_alloc(&r.ps, r.l->dtype, false, &err));
	OK(vfm_params_fill(&r.ps, SEED, &err));
	r.tape = vfm_tape_new(r.d.stream);
	vfm_tape_set_recording(r.tape, false);
	for (r.pack = 0; r.pack < 3; r.pack++) {
		struct vfm_var *x = vfm_input(r.tape, vfm_t2(x0, VFM_F32, 2, 2));

		for (int u = 0; u <= UNIT_HEAD; u++)
			x = run_unit(&r, u, x, VFM_RECOMPUTE_NONE);
		OK(vfm_tape_status(r.tape, &err));
		vfm_tape_reset(r.tape);
	}
	rank_close(&r);
	vfm_comm_free(world);
	vfm_launch_end(l);
	return 0;
}

static void test_forward_only(void **state)
{
	static const struct layout l[] = {
		{"fsdp3 forward", P(1, 1, 1, 3, 1, 1, 3, .fsdp = true), VFM_BF16},
		{"distopt2 forward", P(1, 2, 1, 1, 1, 1, 2, .distopt = true), VFM_F32},
	};

	(void)state;
	ref_begin(1);
	for (int i = 0; i < 2; i++)
		in_ranks(&l[i], forward_only);
	ref_free();
}

/* ---- death of a rank ---- */

struct end {
	int rc;
	char msg[VFM_ERR_MAX];
};

/* Rank 1 exits within a step.  The waits of the other ranks fail with an error, and they can release everything. */
static int one_dies(struct vfm_launch *l, const void *arg)
{
	static struct rank r;
	static float x0[4], one[4];
	struct vfm_comm *world;
	struct end *end = (struct end *)shared + l->rank;
	int rc = 0;

	rank_open(&r, l, arg, 1, &world);
	for (r.step = 0; rc == 0 && r.step < 100; r.step++) {
		struct vfm_var *x = vfm_leaf(r.tape, vfm_t2(x0, VFM_F32, 2, 2));

		rc = vfm_params_grad_begin(&r.ps, &err);
		vfm_params_set_packs(&r.ps, 1);
		for (int u = 0; u <= UNIT_HEAD; u++) {
			x = run_unit(&r, u, x, VFM_RECOMPUTE_NONE);
			if (r.step == 3 && u == 5 && l->rank == 1)
				_exit(9);
		}
		rc = rc ? rc : vfm_tape_status(r.tape, &err);
		rc = rc ? rc : vfm_tape_seed(r.tape, x, vfm_t2(one, VFM_F32, 2, 2), &err);
		rc = rc ? rc : vfm_tape_backward(r.tape, &err);
		rc = rc ? rc : vfm_params_grad_end(&r.ps, &err);
		rc = rc ? rc : vfm_optim_step(&r.optim, LR, r.step + 1, (struct vfm_tensor){0}, &err);
		vfm_tape_reset(r.tape);
	}
	rank_close(&r);
	end->rc = rc;
	snprintf(end->msg, sizeof(end->msg), "%s", err.msg);
	vfm_comm_free(world);
	vfm_launch_end(l);
	return -rc;
}

static void test_death(void **state)
{
	static const struct layout l[] = {
		{"dp3 death", P(1, 1, 1, 3, 1, 1, 3), VFM_F32},
		{"distopt3 death", P(1, 1, 1, 3, 1, 1, 3, .distopt = true), VFM_F32},
		{"fsdp3 death", P(1, 1, 1, 3, 1, 1, 3, .fsdp = true), VFM_F32},
	};

	(void)state;
	shared = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	for (int i = 0; i < 3; i++) {
		struct end *end = (struct end *)shared;

		memset(shared, 0, 16384);
		assert_int_equal(status_of(&l[i], one_dies), 9);
		for (int r = 0; r < 3; r += 2)
			if (end[r].rc != VFM_EENV || !strstr(end[r].msg, "rank 1"))
				fail_msg("%s: rank %d ended with %d: %s", l[i].name, r, end[r].rc, end[r].msg);
	}
	munmap(shared, 16384);
}

/* ---- memory ---- */

enum { SCALE = 64, FSDP = 4 };

/* The memory of a rank: its share of the state, full vectors, and the weights and gradients of two units. */
static int fsdp_memory(struct vfm_launch *l, const void *arg)
{
	struct vfm_comm *world;
	static struct rank r;
	int64_t matrix = 0, vector = 0, unit[UNIT_HEAD + 1] = {0}, most = 0, allowed;

	rank_open(&r, l, arg, SCALE, &world);
	for (size_t i = 0; i < r.ps.n; i++) {
		const struct vfm_param *p = r.ps.p[i];

		*(p->d.ndim > 1 ? &matrix : &vector) += p->n;
		unit[p->unit] += p->d.ndim > 1 ? p->n : 0;
		most = unit[p->unit] > most ? unit[p->unit] : most;
	}
	for (r.step = 0; r.step < STEPS; r.step++) {
		one_step(&r);
		OK(vfm_optim_step(&r.optim, LR, r.step + 1, (struct vfm_tensor){0}, &err));
	}
	allowed = 20 * matrix / FSDP + 24 * vector + 2 * (4 + 4) * most;
	MUST(r.d.dev->mem_peak < allowed + allowed / 50 + (64 << 10), "fsdp: %lld bytes, expected %lld",
		(long long)r.d.dev->mem_peak, (long long)allowed);
	MUST((double)r.d.dev->mem_peak < 20.0 * (double)(matrix + vector) * 0.4,
		"fsdp over %d: %lld bytes, one rank has %lld", FSDP, (long long)r.d.dev->mem_peak,
		(long long)(20 * (matrix + vector)));
	rank_close(&r);
	vfm_comm_free(world);
	vfm_launch_end(l);
	return 0;
}

static void test_memory(void **state)
{
	static const struct layout l = {
		"fsdp4 memory", P(1, 1, 1, FSDP, 1, 1, FSDP, .fsdp = true, .bucket_mib = 1), VFM_F32};

	(void)state;
	in_ranks(&l, fsdp_memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layouts),
		cmocka_unit_test(test_smaller_state),
		cmocka_unit_test(test_bits),
		cmocka_unit_test(test_forward_only),
		cmocka_unit_test(test_death),
		cmocka_unit_test(test_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
