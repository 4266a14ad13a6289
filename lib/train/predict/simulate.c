/* simulate.c - divides ranks into classes of equal work, and simulates three tp ranks of each.
 *
 * Ranks of a class agree in their own work (packs, load of experts, speed) and in the classes of their groups (tp, cp,
 * ep, shard, replica).  A kind of groups does not split classes if that would make more than `most` simulated ranks.
 * Where a simulated rank then represents members of several groups of a kind, all of them wait for the slowest member.
 *
 * Unequal shares of tp are largest on the first rank.  Unequal shares of cp differ by a token of a sample, or by a
 * frame or column (cp_apart).
 */
#include "train/predict/simulate.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "comm/coll/comm.h"
#include "device/sim/network.h"
#include "io/hash.h"

enum { RANKS_MAX = 1 << 20, APART_MAX = 256, MORE_MEMORY = 8 };

struct simulated_rank {
	struct vfm_comm_sim_rank rank; /* first */
	struct vfm_context x;
	vfm_rank_fn work;
	void *ctx;
	int rc;
	struct vfm_err err;
};

static void run_rank(void *self)
{
	struct simulated_rank *t = self;
	const struct vfm_comm_sim_job *job = t->rank.job;
	int rank = job->rank_of[t->rank.rep], node = (int)job->machine.node_gpus;

	if (t->rank.rep > 0)
		vfm_log_set_thread_silent(true);
	t->x.sim = &t->rank;
	t->x.job = (struct vfm_job){.world = job->n > 1 ? vfm_comm_sim_new(&t->rank) : vfm_comm_self(),
		.launch = {.rank = rank, .size = job->n, .nodes = 1, .local_size = job->n, .local_rank = rank}};
	if (node > 0) {
		t->x.job.launch.local_rank = rank % node;
		t->x.job.launch.local_size = job->n < node ? job->n : node;
		t->x.job.launch.node = rank / node;
		t->x.job.launch.nodes = (job->n + node - 1) / node;
	}
	t->rc = t->work(&t->x, t->ctx, &t->err);
	vfm_job_failed(&t->x.job, t->rc, &t->err);
	vfm_context_close(&t->x);
	vfm_comm_free(t->x.job.world);
}

struct simulated_job {
	struct vfm_sim_world *world;
	void **rank; /* [n_reps] struct simulated_rank */
	int rc;
	struct vfm_err err;
};

static void *run_job(void *arg)
{
	struct simulated_job *j = arg;

	vfm_par_serial();
	j->rc = vfm_sim_world_run(j->world, run_rank, j->rank, &j->err);
	return NULL;
}

/* Returns the class of a tp rank: first, middle or last.  In a row layer, a middle rank has two products with the rows
 * of other ranks, one before and one after that with its own; the first and the last rank have one
 * (net/mesh/tp_linear.h). */
static int tp_class_of(const struct vfm_parallel *p, const int *coord)
{
	int classes = p->tp < 3 ? (int)p->tp : 3;

	return coord[VFM_AX_TP] == 0 ? 0 : coord[VFM_AX_TP] == p->tp - 1 ? classes - 1 : 1;
}

/* ---- classes ---- */

/* Classes of the n ranks of a pp stage, and so of pipelines: those of one class do the same work in the same time. */
struct classes {
	int *of; /* [n] 0 to count - 1 */
	int n, count;
};

struct classed_rank {
	int class, rank;
	uint64_t key;
};

static int compare_classed_ranks(const void *a, const void *b)
{
	const struct classed_rank *x = a, *y = b;

	if (x->class != y->class)
		return x->class < y->class ? -1 : 1;
	return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->rank < y->rank ? -1 : 1;
}

/* Makes a class of the ranks of v [n] with the same class and key; sorts v. */
static struct classes number_classes(struct classed_rank *v, int n)
{
	struct classes c = {.of = vfm_calloc((size_t)n, sizeof(*c.of)), .n = n};

	qsort(v, (size_t)n, sizeof(*v), compare_classed_ranks);
	for (int i = 0; i < n; i++) {
		c.count += i == 0 || v[i].class != v[i - 1].class || v[i].key != v[i - 1].key;
		c.of[v[i].rank] = c.count - 1;
	}
	return c;
}

/* Returns the classes of ranks by their own work: packs, shares of them, the load of experts, speed. */
static struct classes classes_of_own_work(const struct vfm_simulation *s, const struct vfm_parallel *p)
{
	int n = s->ranks / (int)p->pp;
	bool apart = s->cp_apart && p->cp * p->pp * (p->tp < 3 ? p->tp : 3) <= APART_MAX;
	struct classed_rank *v = vfm_calloc((size_t)n, sizeof(*v));
	struct classes c;

	for (int r = 0; r < n; r++) {
		int packs = s->class_of ? s->class_of[vfm_parallel_place(p, r, VFM_GR_DATA).key] : 0;
		int experts = s->expert_skew > 0 ? vfm_parallel_place(p, r, VFM_GR_EP).key : 0;
		int share = apart ? vfm_parallel_place(p, r, VFM_GR_CP).key : 0;
		bool slow = s->slow_factor > 0 && r == s->slow_rank % n;

		v[r] = (struct classed_rank){packs, r, (uint64_t)share << 32 | (uint64_t)experts << 1 | slow};
	}
	c = number_classes(v, n);
	free(v);
	return c;
}

/* Groups that divide ranks with equal own work; those that meet most often come first.  Collectives wait for the
 * slowest class, however many ranks have it; collectives along ep also exchange rows. */
static const struct class_split {
	enum vfm_group g;
	bool counted; /* how many ranks have each class */
} class_splits[] = {
	{VFM_GR_TP, false},
	{VFM_GR_CP, false},
	{VFM_GR_RING, false},
	{VFM_GR_A2A, false},
	{VFM_GR_SEQ, false},
	{VFM_GR_EP, true},
	{VFM_GR_SHARD, false},
	{VFM_GR_ESHARD, false},
	{VFM_GR_REPLICA, false},
	{VFM_GR_EREPLICA, false},
};

enum { CLASS_SPLITS = sizeof(class_splits) / sizeof(class_splits[0]) };

static int compare_member_classes(const void *a, const void *b)
{
	const int *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Returns a hash of the classes of a group's members [n], which it sorts. */
static uint64_t hash_members(int *member, int n, bool counted)
{
	int kept = 0;

	qsort(member, (size_t)n, sizeof(*member), compare_member_classes);
	for (int i = 0; i < n; i++)
		if (counted || i == 0 || member[i] != member[i - 1])
			member[kept++] = member[i];
	return vfm_fnv64(member, (size_t)kept * sizeof(*member));
}

/* Returns the classes c, split by the classes in the groups of their ranks. */
static struct classes split_classes(const struct classes *c, const struct vfm_parallel *p, const struct class_split *d)
{
	int size = vfm_parallel_place(p, 0, d->g).size, groups = c->n / size;
	int *member = vfm_calloc((size_t)c->n, sizeof(*member)); /* [groups, size] */
	uint64_t *hash = vfm_calloc((size_t)groups, sizeof(*hash));
	struct classed_rank *v = vfm_calloc((size_t)c->n, sizeof(*v));
	struct classes split;

	for (int r = 0; r < c->n; r++) {
		struct vfm_place at = vfm_parallel_place(p, r, d->g);

		member[at.color * size + at.key] = c->of[r];
	}
	for (int i = 0; i < groups; i++)
		hash[i] = hash_members(member + (size_t)i * (size_t)size, size, d->counted);
	for (int r = 0; r < c->n; r++)
		v[r] = (struct classed_rank){c->of[r], r, hash[vfm_parallel_place(p, r, d->g).color]};
	split = number_classes(v, c->n);
	free(v);
	free(hash);
	free(member);
	return split;
}

/* Returns the number of a simulated rank and the ranks that it represents: by pp stage, class of work, place in tp. */
static int rank_class_of(const struct classes *work, const struct vfm_parallel *p, int rank)
{
	int coord[VFM_AXES];

	vfm_parallel_coord(p, rank, coord);
	return (coord[VFM_AX_PP] * work->count + work->of[rank % work->n]) * 3 + tp_class_of(p, coord);
}

/* Returns how many ranks are simulated if one of each class is. */
static int count_simulated(const struct classes *work, const struct vfm_parallel *p)
{
	bool *has = vfm_calloc((size_t)work->count * 3, sizeof(*has));
	int count = 0;

	for (int r = 0; r < work->n; r++) {
		int class = rank_class_of(work, p, r);

		count += !has[class];
		has[class] = true;
	}
	free(has);
	return count * (int)p->pp;
}

/* Splits the classes of own work until the ranks of a class wait equally long for others.  Omits splits that would make
 * more than s->most simulated ranks. */
static struct classes classes_of_work(const struct vfm_simulation *s, const struct vfm_parallel *p)
{
	struct classes c = classes_of_own_work(s, p);

	for (int i = 0; c.count > 1 && i < CLASS_SPLITS; i++) {
		struct classes d, was = c;

		if (vfm_parallel_place(p, 0, class_splits[i].g).size == 1)
			continue;
		d = split_classes(&c, p, &class_splits[i]);
		if (d.count > c.count && (s->all || !s->most || count_simulated(&d, p) <= s->most)) {
			c = d;
			d = was;
			i = -1; /* for the other groups of its members */
		}
		free(d.of);
	}
	return c;
}

/* Which ranks are simulated: the first of each class, or all. */
static void choose_ranks(struct vfm_comm_sim_job *job, const struct vfm_simulation *s, const struct vfm_parallel *p)
{
	struct classes work = classes_of_work(s, p);
	int *rep = vfm_calloc((size_t)(s->all ? job->n : 3 * (int)p->pp * work.count), sizeof(*rep)); /* + 1 */

	job->rep_of = vfm_calloc((size_t)job->n, sizeof(*job->rep_of));
	job->rank_of = vfm_calloc((size_t)job->n, sizeof(*job->rank_of));
	job->stands_for = vfm_calloc((size_t)job->n, sizeof(*job->stands_for));
	for (int r = 0; r < job->n; r++) {
		int class = s->all ? r : rank_class_of(&work, p, r);

		if (!rep[class]) {
			job->rank_of[job->n_reps++] = r;
			rep[class] = job->n_reps;
		}
		job->rep_of[r] = rep[class] - 1;
		job->stands_for[job->rep_of[r]]++;
	}
	free(rep);
	job->work_of = vfm_calloc((size_t)job->n_reps, sizeof(*job->work_of));
	for (int i = 0; i < job->n_reps; i++)
		job->work_of[i] = work.of[job->rank_of[i] % work.n];
	free(work.of);
}

/* ---- the job ---- */

/* Runs them in a thread of their own, whose loops are serial. */
static int run_simulated_ranks(const struct vfm_comm_sim_job *job, vfm_rank_fn work, void *ctx, struct vfm_err *err)
{
	static const struct vfm_context_opts opts = {.ranks = VFM_UNSET, .threads = VFM_UNSET, .device = "sim"};
	struct simulated_rank *r = vfm_calloc((size_t)job->n_reps, sizeof(*r));
	struct simulated_job j = {.world = job->world, .rank = vfm_calloc((size_t)job->n_reps, sizeof(*j.rank))};
	struct vfm_err why = {0};
	pthread_t thread;
	int first = -1, rc;

	for (int i = 0; i < job->n_reps; i++) {
		r[i] = (struct simulated_rank){
			.rank = {.job = job, .rep = i}, .x = {.opts = &opts}, .work = work, .ctx = ctx};
		j.rank[i] = &r[i];
	}
	rc = pthread_create(&thread, NULL, run_job, &j);
	if (rc)
		j.rc = vfm_fail(&j.err, VFM_EENV, "cannot start a thread for simulated ranks: %s", strerror(rc));
	else
		pthread_join(thread, NULL);
	vfm_sim_world_check(job->world, &why);
	for (int i = 0; i < job->n_reps; i++)
		if (r[i].rc < 0 && (first < 0 || !strcmp(r[first].err.msg, why.msg)))
			first = i;
	rc = j.rc < 0 ? j.rc : first < 0 ? 0 : r[first].rc;
	if (rc < 0 && err)
		*err = j.rc < 0 ? j.err : r[first].err;
	free(j.rank);
	free(r);
	return rc;
}

static int simulate_once(
	struct vfm_comm_sim_job *job, int more_memory, vfm_rank_fn work, void *ctx, bool *full, struct vfm_err *err)
{
	int rc;

	job->world = vfm_sim_world_new(job->n_reps, more_memory);
	rc = run_simulated_ranks(job, work, ctx, err);
	*full = vfm_sim_world_is_full(job->world);
	vfm_sim_world_free(job->world);
	return rc;
}

static int check_expert_skew(const struct vfm_simulation *s, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->config->model;

	if (s->expert_skew == 0)
		return 0;
	if (!vfm_model_has_experts(m))
		return vfm_fail(err, VFM_EUSAGE, "a skewed choice of experts: the model has no experts");
	if (m->moe_router != VFM_MOE_TOKEN_CHOICE)
		return vfm_fail(err, VFM_EUSAGE,
			"a skewed choice of experts: with this model.moe_router experts choose tokens, all as many");
	return 0;
}

int vfm_simulate(
	const struct vfm_simulation *s, vfm_rank_fn work, void *ctx, struct vfm_simulated *out, struct vfm_err *err)
{
	struct vfm_comm_sim_job job = {.machine = *s->machine,
		.n = s->ranks,
		.expert_skew = s->expert_skew,
		.slow_rank = s->slow_rank,
		.slow_factor = s->slow_factor};
	struct vfm_parallel p = s->config->parallel;
	int rc;

	*out = (struct vfm_simulated){0};
	if (s->ranks < 1 || s->ranks > RANKS_MAX)
		return vfm_fail(err, VFM_EUSAGE, "expected 1 to %d ranks, got %d", RANKS_MAX, s->ranks);
	TRY(vfm_parallel_check(&p, &s->config->model, s->ranks, err));
	TRY(check_expert_skew(s, err));
	if (s->slow_factor > 0 && (s->slow_rank < 0 || s->slow_rank >= s->ranks))
		return vfm_fail(err, VFM_EUSAGE, "the slow rank: expected 0 to %d, got %d", s->ranks - 1, s->slow_rank);
	TRY(vfm_sim_check_ranks(s->machine, s->ranks, err));
	choose_ranks(&job, s, &p);
	out->reps = job.n_reps;
	rc = simulate_once(&job, 1, work, ctx, &out->full, err);
	if (rc < 0 && out->full && s->retry)
		rc = simulate_once(&job, MORE_MEMORY, work, ctx, &out->beyond, err);
	free(job.rep_of);
	free(job.rank_of);
	free(job.stands_for);
	free(job.work_of);
	return rc;
}

int64_t vfm_simulated_beside(const struct vfm_dev *d)
{
	struct vfm_sim_held held = vfm_sim_held(d);

	return held.outside + (held.pool_peak > d->mem_peak ? held.pool_peak - d->mem_peak : 0);
}
