#include "train/simulate.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "sim/network.h"

enum { RANKS_MAX = 1 << 20, STACK = 8 << 20, MORE_MEMORY = 8 };

struct sim_thread {
	pthread_t thread;
	struct vfm_comm_sim_rank rank;
	struct vfm_context x;
	vfm_rank_fn work;
	void *ctx;
	int rc;
	struct vfm_err err;
};

static void *run_rank(void *arg)
{
	struct sim_thread *t = arg;
	const struct vfm_comm_sim_job *job = t->rank.job;
	int rank = job->rank_of[t->rank.rep], node = (int)job->machine.node_gpus;

	vfm_par_serial();
	if (t->rank.rep > 0)
		vfm_log_set_thread_silent();
	vfm_sim_world_enter(job->world, t->rank.rep);
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
	vfm_sim_world_leave(job->world, t->rank.rep);
	return NULL;
}

/* The products of a row layer with the rows of other ranks are one before and one after its own, or one for the first
 * and the last rank (mesh/tp_linear.h). */
static int tp_class_of(const struct vfm_parallel *p, const int *coord)
{
	int classes = p->tp < 3 ? (int)p->tp : 3;

	return coord[VFM_AX_TP] == 0 ? 0 : coord[VFM_AX_TP] == p->tp - 1 ? classes - 1 : 1;
}

/* Returns the class of the packs of a rank. */
static int data_class_of(const struct vfm_simulation *s, const struct vfm_parallel *p, int rank)
{
	return s->class_of ? s->class_of[vfm_parallel_place(p, rank, VFM_GR_DATA).key] : 0;
}

enum { NEARNESS = 4 };

/* Returns how near a rank is to the slow one: 0: another dp rank, 1: another cp rank, 2: another tp rank, 3: that, or a
 * rank of its pipeline. */
static int nearness_to_slow(const struct vfm_simulation *s, const struct vfm_parallel *p, int rank)
{
	int own[VFM_AXES], slow[VFM_AXES];

	if (s->slow_factor == 0)
		return 0;
	vfm_parallel_coord(p, rank, own);
	vfm_parallel_coord(p, s->slow_rank, slow);
	return own[VFM_AX_DP] != slow[VFM_AX_DP]    ? 0
		: own[VFM_AX_CP] != slow[VFM_AX_CP] ? 1
		: own[VFM_AX_TP] != slow[VFM_AX_TP] ? 2
						    : 3;
}

/* Returns the class of the work of a rank: its packs, the load of its experts, the speed of the ranks near it. */
static int work_class_of(const struct vfm_simulation *s, const struct vfm_parallel *p, int rank)
{
	int coord[VFM_AXES], work = data_class_of(s, p, rank);

	vfm_parallel_coord(p, rank, coord);
	if (s->expert_skew > 0)
		work = work * (int)p->ep + coord[VFM_AX_EP];
	return s->slow_factor > 0 ? work * NEARNESS + nearness_to_slow(s, p, rank) : work;
}

/* Returns the class of a rank: stage, work, place in tp. */
static int rank_class_of(const struct vfm_simulation *s, const struct vfm_parallel *p, int n_work, int rank)
{
	int coord[VFM_AXES];

	vfm_parallel_coord(p, rank, coord);
	return (coord[VFM_AX_PP] * n_work + work_class_of(s, p, rank)) * 3 + tp_class_of(p, coord);
}

/* Which ranks are simulated: the first of each class, or all. */
static void choose_ranks(struct vfm_comm_sim_job *job, const struct vfm_simulation *s, const struct vfm_parallel *p)
{
	int n_work = 1, *rep; /* of a class, + 1 */

	for (int r = 0; r < job->n; r++)
		n_work = work_class_of(s, p, r) >= n_work ? work_class_of(s, p, r) + 1 : n_work;
	rep = vfm_calloc((size_t)(s->all ? job->n : 3 * (int)p->pp * n_work), sizeof(*rep));
	job->rep_of = vfm_calloc((size_t)job->n, sizeof(*job->rep_of));
	job->rank_of = vfm_calloc((size_t)job->n, sizeof(*job->rank_of));
	job->stands_for = vfm_calloc((size_t)job->n, sizeof(*job->stands_for));
	for (int r = 0; r < job->n; r++) {
		int class = s->all ? r : rank_class_of(s, p, n_work, r);

		if (!rep[class]) {
			job->rank_of[job->n_reps++] = r;
			rep[class] = job->n_reps;
		}
		job->rep_of[r] = rep[class] - 1;
		job->stands_for[job->rep_of[r]]++;
	}
	free(rep);
	if (n_work == 1)
		return;
	job->work_of = vfm_calloc((size_t)job->n_reps, sizeof(*job->work_of));
	for (int i = 0; i < job->n_reps; i++)
		job->work_of[i] = work_class_of(s, p, job->rank_of[i]);
}

/* Starts the threads and waits for them. */
static int run_simulated_ranks(const struct vfm_comm_sim_job *job, vfm_rank_fn work, void *ctx, struct vfm_err *err)
{
	static const struct vfm_context_opts opts = {.ranks = VFM_UNSET, .threads = VFM_UNSET, .device = "sim"};
	struct sim_thread *t = vfm_calloc((size_t)job->n_reps, sizeof(*t));
	struct vfm_err why = {0}, lacking = {0};
	pthread_attr_t attr;
	int n = 0, first = -1, rc;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	for (; n < job->n_reps; n++) {
		t[n] = (struct sim_thread){
			.rank = {.job = job, .rep = n}, .x = {.opts = &opts}, .work = work, .ctx = ctx};
		rc = pthread_create(&t[n].thread, &attr, run_rank, &t[n]);
		if (rc)
			break;
	}
	pthread_attr_destroy(&attr);
	if (n < job->n_reps)
		vfm_fail(&lacking, VFM_EENV, "cannot start a thread for simulated rank %d: %s", n, strerror(rc));
	for (int i = n; i < job->n_reps; i++)
		vfm_sim_world_give_up(job->world, i, lacking.msg);
	for (int i = 0; i < n; i++)
		pthread_join(t[i].thread, NULL);
	vfm_sim_world_check(job->world, &why);
	for (int i = 0; i < n; i++)
		if (t[i].rc < 0 && (first < 0 || !strcmp(t[first].err.msg, why.msg)))
			first = i;
	rc = lacking.code < 0 ? lacking.code : first < 0 ? 0 : t[first].rc;
	if (rc < 0 && err)
		*err = lacking.code < 0 ? lacking : t[first].err;
	free(t);
	return rc;
}

static int simulate_once(struct vfm_comm_sim_job *job, vfm_rank_fn work, void *ctx, bool *full, struct vfm_err *err)
{
	int rc;

	job->world = vfm_sim_world_new(job->n_reps);
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
	rc = simulate_once(&job, work, ctx, &out->full, err);
	if (rc < 0 && out->full && s->retry) {
		job.machine.capacity *= MORE_MEMORY;
		rc = simulate_once(&job, work, ctx, &out->beyond, err);
	}
	free(job.rep_of);
	free(job.rank_of);
	free(job.stands_for);
	free(job.work_of);
	return rc;
}
