/* task.c - reads Slurm's variables of the step, and refuses those of other launchers. */
#include "io/task.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"

enum { TASKS_MAX = 1 << 30 };

/* Parses digits of 1 to TASKS_MAX. */
static bool parse_step_number(const char **p, int64_t *out)
{
	const char *begin = *p;

	*out = 0;
	while (**p >= '0' && **p <= '9' && *out <= TASKS_MAX)
		*out = *out * 10 + *(*p)++ - '0';
	return *p > begin && *out >= 1 && *out <= TASKS_MAX;
}

/* Adds "4(x16)" or "4,3(x2)".  Returns false if it is malformed.  *even: all nodes have as many tasks as the first. */
static bool add_nodes(const char *p, struct vfm_step_tasks *s, int64_t *sum, bool *even)
{
	*even = true;
	for (;; p++) {
		int64_t each, nodes = 1;

		if (!parse_step_number(&p, &each))
			return false;
		if (p[0] == '(' && p[1] == 'x') {
			p += 2;
			if (!parse_step_number(&p, &nodes) || *p++ != ')')
				return false;
		}
		if (!s->nodes)
			s->per_node = each;
		*even = *even && each == s->per_node;
		s->nodes += nodes;
		*sum += each * nodes;
		if (*sum > TASKS_MAX)
			return false;
		if (*p != ',')
			return !*p;
	}
}

/* Slurm's default fills one node after another, as "block" does. */
static bool is_block(const char *distribution)
{
	static const char *const others[] = {"cyclic", "plane", "arbitrary"};

	for (size_t i = 0; distribution && i < sizeof(others) / sizeof(others[0]); i++)
		if (!strncmp(distribution, others[i], strlen(others[i])))
			return false;
	return true;
}

static int parse_count(const char *name, const char *tasks, int64_t *n, struct vfm_err *err)
{
	*n = 0;
	if (tasks && vfm_parse_i64(tasks, 1, TASKS_MAX, n, NULL) < 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected 1 to %d tasks, got '%s'", name, TASKS_MAX, tasks);
	return 0;
}

int vfm_step_tasks_parse(
	struct vfm_step_tasks *out, const char *tasks, const char *nodes, const char *distribution, struct vfm_err *err)
{
	int64_t sum = 0;
	bool even;

	*out = (struct vfm_step_tasks){0};
	TRY(parse_count("SLURM_STEP_NUM_TASKS", tasks, &out->tasks, err));
	if (!tasks || !nodes)
		return 0;
	if (!add_nodes(nodes, out, &sum, &even))
		return vfm_fail(err, VFM_EUSAGE,
			"SLURM_STEP_TASKS_PER_NODE: expected tasks of nodes such as 4(x16), got '%s'", nodes);
	if (sum != out->tasks)
		return vfm_fail(err, VFM_EUSAGE,
			"SLURM_STEP_TASKS_PER_NODE: '%s' are %lld tasks, but SLURM_STEP_NUM_TASKS is %lld", nodes,
			(long long)sum, (long long)out->tasks);
	if (!even)
		return vfm_fail(err, VFM_EUSAGE,
			"SLURM_STEP_TASKS_PER_NODE: the nodes of this step have different numbers of tasks ('%s'); "
			"start as many on each (--ntasks-per-node)",
			nodes);
	if (out->nodes > 1 && out->per_node > 1 && !is_block(distribution))
		return vfm_fail(err, VFM_EUSAGE,
			"SLURM_DISTRIBUTION: consecutive ranks are on different nodes ('%s'); start the step with -m "
			"block",
			distribution);
	return 0;
}

int vfm_step_tasks_read(struct vfm_step_tasks *out, struct vfm_err *err)
{
	return vfm_step_tasks_parse(out, getenv("SLURM_STEP_NUM_TASKS"), getenv("SLURM_STEP_TASKS_PER_NODE"),
		getenv("SLURM_DISTRIBUTION"), err);
}

/* ---- this task ---- */

/* Sets *i to a number below n; leaves it if the variable is not set. */
static int read_task_number(const char *name, int64_t n, int64_t *i, struct vfm_err *err)
{
	const char *s = getenv(name);

	if (s && vfm_parse_i64(s, 0, n - 1, i, NULL) < 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected 0 to %lld of %lld tasks, got '%s'", name,
			(long long)n - 1, (long long)n, s);
	return 0;
}

static int refuse_launcher(const char *name, const char *value, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EUSAGE,
		"%s is '%s': each process of that launcher would do the same work; start ranks with srun --mpi=pmi2 "
		"or, on one host, with -n N, and stages of vfm-curate with srun or --part I/N (unset %s without a "
		"launcher)",
		name, value, name);
}

/* The processes of a launcher that runs in a step, as torchrun may and the daemons of mpirun do, inherit the variables
 * of the step. */
static int check_other_launchers(const struct vfm_task *t, struct vfm_err *err)
{
	/* also: a variable that must be set, because other programs use the name of the count, too */
	static const struct {
		const char *count, *also;
	} launchers[] = {
		{"OMPI_COMM_WORLD_SIZE", NULL}, /* Open MPI */
		{"PMI_SIZE", NULL},             /* MPICH, Intel MPI */
		{"MV2_COMM_WORLD_SIZE", NULL},  /* MVAPICH2 */
		{"WORLD_SIZE", "RANK"},         /* torchrun */
	};
	const char *pmix = getenv("PMIX_RANK"); /* PMIx has no variable of the count */
	int64_t n;

	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		const char *name = launchers[i].count, *count = getenv(name);

		if (launchers[i].also && !getenv(launchers[i].also))
			continue;
		TRY(parse_count(name, count, &n, err));
		if (n > 1 && n != t->count)
			return refuse_launcher(name, count, err);
	}
	return read_task_number("PMIX_RANK", t->count, &n, NULL) < 0 ? refuse_launcher("PMIX_RANK", pmix, err) : 0;
}

int vfm_task_read(struct vfm_task *out, struct vfm_err *err)
{
	const char *step = getenv("SLURM_STEP_NUM_TASKS"), *pmi = getenv("PMI_FD") ? getenv("PMI_SIZE") : NULL;
	const char *number = step ? "SLURM_PROCID" : "PMI_RANK";

	*out = (struct vfm_task){.launched = step || pmi, .count = 1};
	if (out->launched) {
		TRY(parse_count(step ? "SLURM_STEP_NUM_TASKS" : "PMI_SIZE", step ? step : pmi, &out->count, err));
		out->number = out->count > 1 ? -1 : 0;
		TRY(read_task_number(number, out->count, &out->number, err));
		TRY(read_task_number(step ? "SLURM_LOCALID" : "MPI_LOCALRANKID", out->count, &out->local, err));
	} else {
		/* The script of a job has the number 0. */
		int64_t i;

		if (read_task_number("SLURM_PROCID", 1, &i, NULL) < 0)
			return vfm_fail(err, VFM_EUSAGE, "SLURM_PROCID is %s, but SLURM_STEP_NUM_TASKS is not set",
				getenv("SLURM_PROCID"));
	}
	return check_other_launchers(out, err);
}
