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
static int rank_class_of(const struct vfm_parallel *p, int rank)
{
	int coord[VFM_AXES], tp, classes = p->tp < 3 ? (int)p->tp : 3;

	vfm_parallel_coord(p, rank, coord);
	tp = coord[VFM_AX_TP] == 0 ? 0 : coord[VFM_AX_TP] == p->tp - 1 ? classes - 1 : 1;
	return coord[VFM_AX_PP] * classes + tp;
}

/* Which ranks are simulated: the first of each class, or all. */
static void choose_ranks(struct vfm_comm_sim_job *job, const struct vfm_parallel *p, bool all)
{
	int *rep = vfm_calloc((size_t)job->n, sizeof(*rep)); /* of a class, + 1 */

	job->rep_of = vfm_calloc((size_t)job->n, sizeof(*job->rep_of));
	job->rank_of = vfm_calloc((size_t)job->n, sizeof(*job->rank_of));
	job->stands_for = vfm_calloc((size_t)job->n, sizeof(*job->stands_for));
	for (int r = 0; r < job->n; r++) {
		int class = all ? r : rank_class_of(p, r);

		if (!rep[class]) {
			job->rank_of[job->n_reps++] = r;
			rep[class] = job->n_reps;
		}
		job->rep_of[r] = rep[class] - 1;
		job->stands_for[job->rep_of[r]]++;
	}
	free(rep);
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

int vfm_simulate(
	const struct vfm_simulation *s, vfm_rank_fn work, void *ctx, struct vfm_simulated *out, struct vfm_err *err)
{
	struct vfm_comm_sim_job job = {.machine = *s->machine, .n = s->ranks};
	struct vfm_parallel p = s->config->parallel;
	bool again;
	int rc;

	*out = (struct vfm_simulated){0};
	if (s->ranks < 1 || s->ranks > RANKS_MAX)
		return vfm_fail(err, VFM_EUSAGE, "expected 1 to %d ranks, got %d", RANKS_MAX, s->ranks);
	TRY(vfm_parallel_check(&p, &s->config->model, s->ranks, err));
	TRY(vfm_sim_check_ranks(s->machine, s->ranks, err));
	choose_ranks(&job, &p, s->all);
	out->reps = job.n_reps;
	rc = simulate_once(&job, work, ctx, &out->full, err);
	if (rc < 0 && out->full && s->retry) {
		job.machine.capacity *= MORE_MEMORY;
		rc = simulate_once(&job, work, ctx, &again, err);
	}
	free(job.rep_of);
	free(job.rank_of);
	free(job.stands_for);
	return rc;
}
