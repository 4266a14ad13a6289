#include "launch/step.h"

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

static int parse_count(const char *tasks, int64_t *n, struct vfm_err *err)
{
	*n = 0;
	if (tasks && vfm_parse_i64(tasks, 1, TASKS_MAX, n, NULL) < 0)
		return vfm_fail(
			err, VFM_EUSAGE, "SLURM_STEP_NUM_TASKS: expected 1 to %d tasks, got '%s'", TASKS_MAX, tasks);
	return 0;
}

int vfm_step_tasks_parse(
	struct vfm_step_tasks *out, const char *tasks, const char *nodes, const char *distribution, struct vfm_err *err)
{
	int64_t sum = 0;
	bool even;

	*out = (struct vfm_step_tasks){0};
	TRY(parse_count(tasks, &out->tasks, err));
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

int vfm_step_count(int64_t *n, struct vfm_err *err)
{
	return parse_count(getenv("SLURM_STEP_NUM_TASKS"), n, err);
}
