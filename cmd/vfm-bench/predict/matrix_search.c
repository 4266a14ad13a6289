/* The best layout of a model on many GPUs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "predict/matrix_predict.h"

/* A layout that is tried. */
struct candidate {
	struct matrix_row row;
	int64_t dp;
	/* shared with the processes that predict: */
	struct candidate_result *result;
};

struct candidate_result {
	struct matrix_outcome o;
	double score; /* estimated FLOP/s a GPU of a step of all packs; 0: it does not fit */
	int failed;   /* the negative code; 0: it did not */
	char why[512];
};

struct layouts {
	struct candidate *v;
	size_t n, cap;
};

/* ---- the layouts ---- */

enum {
	PP_MOST = 4, /* log2 of the largest degrees that are tried */
	CP_MOST = 6,
	WHOLE_MOST = 8, /* ranks with a whole state of the optimizer: each of them updates all of it */
	LEVELS = MATRIX_DEGREES - 1,
	RESULTS_MOST = 4096,
};

static int64_t degree_at(int i)
{
	return INT64_C(1) << i;
}

/* Adds a layout if its degrees fit the model, the ranks and the packs. */
static void add_layout(struct layouts *c, const struct matrix_row *w, const struct vfm_parallel *p, int64_t packs)
{
	struct vfm_parallel check = *p;
	struct candidate *new;

	if (vfm_parallel_check(&check, &w->config.model, w->ranks, NULL) < 0 || packs % check.dp)
		return;
	vfm_grow(&c->v, &c->cap, c->n + 1, sizeof(*c->v));
	new = &c->v[c->n++];
	*new = (struct candidate){.row = *w, .dp = check.dp};
	new->row.config.parallel = *p;
}

/* With the state of the optimizer whole, cut, or all cut. */
static void add_sharded(struct layouts *c, const struct matrix_row *w, struct vfm_parallel p, int64_t packs)
{
	bool asked = w->config.parallel.fsdp || w->config.parallel.distopt;

	if (asked || p.tp * p.pp == w->ranks) {
		add_layout(c, w, &p, packs);
		return;
	}
	if (w->ranks / (p.tp * p.pp) <= WHOLE_MOST)
		add_layout(c, w, &p, packs);
	p.distopt = true;
	add_layout(c, w, &p, packs);
	p.distopt = false;
	p.fsdp = true;
	if (p.pp == 1)
		add_layout(c, w, &p, packs);
}

static void add_cp_modes(struct layouts *c, const struct matrix_row *w, struct vfm_parallel p, int64_t packs)
{
	add_sharded(c, w, p, packs);
	if (p.cp > 1 && p.cp_mode == VFM_CP_RING && w->config.model.heads % (p.cp * p.tp) == 0) {
		p.cp_mode = VFM_CP_A2A;
		add_sharded(c, w, p, packs);
	}
}

/* Returns whether a degree may be tried: the one that the row sets, or any. */
static bool may_be(int64_t asked, int64_t degree)
{
	return asked == 1 || asked == degree;
}

/* Adds the layouts with tp x cp x pp = 2^level. */
static void list_level(
	struct layouts *c, const struct matrix_row *w, int64_t packs, const struct vfm_machine *m, int level)
{
	const struct vfm_parallel *asked = &w->config.parallel;

	for (int a = 0; a == 0 || (degree_at(a) <= m->node_gpus && degree_at(a) <= w->ranks); a++)
		for (int b = 0; degree_at(b) * degree_at(a) <= w->ranks && b <= CP_MOST; b++)
			for (int e = 0; degree_at(e) * degree_at(b) * degree_at(a) <= w->ranks && e <= PP_MOST; e++) {
				struct vfm_parallel p = *asked;

				if (a + b + e != level || !may_be(asked->tp, degree_at(a)) ||
					!may_be(asked->cp, degree_at(b)) || !may_be(asked->pp, degree_at(e)))
					continue;
				p.tp = degree_at(a);
				p.cp = degree_at(b);
				p.pp = degree_at(e);
				add_cp_modes(c, w, p, packs);
			}
}

/* Adds the best layouts with pp stages once more, with two virtual stages each. */
static void add_virtual_stages(struct layouts *c, int most, int64_t packs)
{
	size_t n = c->n;
	int added = 0;

	for (size_t i = 0; i < n && added < most && c->v[i].result->score > 0; i++) {
		struct matrix_row row = c->v[i].row; /* add_layout moves c->v */
		struct vfm_parallel p = row.config.parallel;

		if (p.pp == 1 || p.vpp != 1)
			continue;
		p.vpp = 2;
		add_layout(c, &row, &p, packs);
		added++;
	}
}

/* ---- predicting many ---- */

/* With stragglers. */
static double step_of(const struct matrix_outcome *o)
{
	return o->s[VFM_MID] * o->straggler;
}

/* The fewest packs of a rank from whose step the step of all follows. */
static int64_t count_few_packs(const struct vfm_parallel *p, int64_t packs)
{
	int64_t few = p->pp > 1 ? p->pp * p->vpp : 2;

	return packs < few ? packs : few;
}

/* A step of m packs takes as long as the units of work of a pp stage: m, and the pp stages before it. */
static void try_candidate(struct candidate *c, const struct vfm_dry_run_opts *asked)
{
	struct candidate_result *r = c->result;
	const struct vfm_parallel *p = &c->row.config.parallel;
	int64_t all = asked->packs / c->dp, few = count_few_packs(p, all);
	struct vfm_dry_run_opts less = *asked;
	struct vfm_err err = {0};
	double before, units;

	less.packs = few * c->dp;
	less.timeline = less.memory = false;
	r->failed = matrix_predict_row(&c->row, &less, &r->o, &err);
	snprintf(r->why, sizeof(r->why), "%.500s", err.msg);
	if (r->failed < 0 || !r->o.fits)
		return;
	before = (double)(p->pp - 1) / (double)p->vpp;
	units = ((double)all + before) / ((double)few + before);
	r->score = r->o.r.flops * (double)all / (double)few / (step_of(&r->o) * units) / c->row.ranks;
}

/* Tries the candidates from `first` on.  Each of `workers` processes takes every workers-th. */
static int try_from(struct layouts *c, size_t first, const struct vfm_dry_run_opts *asked,
	struct candidate_result *shared, struct vfm_err *err)
{
	long workers = sysconf(_SC_NPROCESSORS_ONLN);
	pid_t pid[64];
	int n = 0, bad = 0, status;

	for (size_t i = first; i < c->n; i++)
		c->v[i].result = &shared[i];
	workers = workers < 1 ? 1 : workers > 64 ? 64 : workers;
	for (; n < workers; n++) {
		pid[n] = fork();
		if (pid[n] < 0) {
			vfm_fail_errno(err, VFM_EENV, "cannot start a process");
			break;
		}
		if (pid[n] == 0) {
			vfm_log_set_quiet(true);
			for (size_t i = first + (size_t)n; i < c->n; i += (size_t)workers)
				try_candidate(&c->v[i], asked);
			_exit(0);
		}
	}
	for (int i = 0; i < n; i++)
		if (waitpid(pid[i], &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
			bad++;
	if (n < workers)
		return VFM_EENV;
	return bad ? vfm_fail(err, VFM_EENV, "%d of the processes that predict died", bad) : 0;
}

/* ---- the best ---- */

static int compare_scores(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->result->score != y->result->score)
		return x->result->score > y->result->score ? -1 : 1;
	return x->result < y->result ? -1 : 1;
}

static int compare_best(const void *a, const void *b)
{
	const struct matrix_best *x = a, *y = b;

	return step_of(&x->out) < step_of(&y->out) ? -1 : step_of(&x->out) > step_of(&y->out);
}

/* Drops the run of the slowest layout that has one if more than `runs` have. */
static void limit_runs(struct matrix_found *found, int runs)
{
	struct matrix_best *slowest = NULL;
	int n = 0;

	for (int i = 0; i < found->n; i++) {
		struct matrix_best *b = &found->v[i];

		n += b->out.run != NULL;
		if (b->out.run && (!slowest || step_of(&b->out) >= step_of(&slowest->out)))
			slowest = b;
	}
	if (n > runs)
		matrix_outcome_drop_run(&slowest->out);
}

/* Predicts the best ones with all packs, and orders them. */
static int predict_best(const struct layouts *c, const struct vfm_dry_run_opts *asked, int most, int runs,
	struct matrix_found *found, struct vfm_err *err)
{
	found->v = vfm_calloc((size_t)most, sizeof(*found->v));
	for (size_t i = 0; i < c->n && found->n < most && c->v[i].result->score > 0; i++) {
		struct matrix_best *best = &found->v[found->n];

		best->row = c->v[i].row;
		TRY(matrix_predict_row(&best->row, asked, &best->out, err));
		found->n += best->out.fits;
		limit_runs(found, runs);
	}
	qsort(found->v, (size_t)found->n, sizeof(*found->v), compare_best);
	return 0;
}

static int compare_needs(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->result->o.need != y->result->o.need)
		return x->result->o.need < y->result->o.need ? -1 : 1;
	return x->result < y->result ? -1 : 1;
}

/* If no layout fits: finds those that need the least memory, from simulations with more memory than the GPUs have. */
static int find_least(struct layouts *c, const struct vfm_dry_run_opts *asked, int most,
	struct candidate_result *shared, struct matrix_found *found, struct vfm_err *err)
{
	struct vfm_dry_run_opts again = *asked;

	again.once = false;
	TRY(try_from(c, 0, &again, shared, err));
	qsort(c->v, c->n, sizeof(*c->v), compare_needs);
	found->v = vfm_calloc((size_t)most, sizeof(*found->v));
	for (size_t i = 0; i < c->n && found->n < most && isfinite(c->v[i].result->o.need); i++)
		found->v[found->n++] = (struct matrix_best){c->v[i].row, c->v[i].result->o};
	return 0;
}

/* log2 of the GPUs that share a copy of the model, rounded down: the row may set other degrees than powers of 2. */
static int level_of(const struct candidate *c)
{
	const struct vfm_parallel *p = &c->row.config.parallel;
	int level = 0;

	while (level < LEVELS && degree_at(level + 1) <= p->tp * p->cp * p->pp)
		level++;
	return level;
}

static int count_results(const struct layouts *c, struct matrix_found *found, struct vfm_err *err)
{
	found->tried = (int)c->n;
	for (size_t i = 0; i < c->n; i++) {
		const struct candidate_result *r = c->v[i].result;

		if (r->failed < 0)
			return vfm_fail(err, r->failed, "%s", r->why);
		found->degree[level_of(&c->v[i])].tried++;
		found->degree[level_of(&c->v[i])].full += !r->o.fits;
		found->full += !r->o.fits;
	}
	return 0;
}

static double best_score(const struct layouts *c)
{
	double best = 0;

	for (size_t i = 0; i < c->n; i++)
		best = fmax(best, c->v[i].result->score);
	return best;
}

/* From the least model parallelism to the most, until two levels in a row have brought nothing. */
static int try_levels(struct layouts *c, const struct matrix_row *w, const struct vfm_dry_run_opts *asked,
	struct candidate_result *shared, struct vfm_err *err)
{
	int in_vain = 0;

	for (int level = 0; level <= LEVELS && in_vain < 2; level++) {
		size_t first = c->n;
		double before = best_score(c);

		list_level(c, w, asked->packs, asked->machine, level);
		if (c->n > RESULTS_MOST)
			return vfm_fail(err, VFM_EUSAGE, "more than %d layouts", RESULTS_MOST);
		TRY(try_from(c, first, asked, shared, err));
		in_vain = before > 0 && best_score(c) <= before ? in_vain + 1 : 0;
	}
	return 0;
}

static int search_layouts(struct layouts *c, const struct matrix_row *w, const struct vfm_dry_run_opts *asked, int most,
	int runs, struct candidate_result *shared, struct matrix_found *found, struct vfm_err *err)
{
	size_t n;

	TRY(try_levels(c, w, asked, shared, err));
	if (c->n == 0)
		return vfm_fail(err, VFM_EUSAGE, "no layout of %d GPUs divides the model and %lld packs a step",
			w->ranks, (long long)asked->packs);
	qsort(c->v, c->n, sizeof(*c->v), compare_scores);
	n = c->n;
	if (w->config.parallel.vpp == 1)
		add_virtual_stages(c, most, asked->packs);
	TRY(try_from(c, n, asked, shared, err));
	TRY(count_results(c, found, err));
	if (best_score(c) == 0)
		return find_least(c, asked, most, shared, found, err);
	qsort(c->v, c->n, sizeof(*c->v), compare_scores);
	return predict_best(c, asked, most, runs, found, err);
}

int matrix_search(const struct matrix_row *w, const struct vfm_dry_run_opts *asked, int most, int runs,
	struct matrix_found *found, struct vfm_err *err)
{
	size_t bytes = (RESULTS_MOST + 1) * sizeof(struct candidate_result);
	struct candidate_result *shared =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct vfm_dry_run_opts once = *asked;
	struct layouts c = {0};
	int rc;

	*found = (struct matrix_found){0};
	if (shared == MAP_FAILED)
		return vfm_fail_errno(err, VFM_EENV, "cannot share memory with the processes that predict");
	once.once = true;
	rc = search_layouts(&c, w, &once, most, runs, shared, found, err);
	munmap(shared, bytes);
	free(c.v);
	if (rc < 0) {
		for (int i = 0; i < found->n; i++)
			matrix_outcome_drop_run(&found->v[i].out);
		free(found->v);
	}
	return rc;
}
