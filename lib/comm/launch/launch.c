/* launch.c - chooses the launcher, and calls its publish, fetch, end and abort. */
#include "comm/launch/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "comm/launch/launch_impl.h"

double vfm_launch_timeout(void)
{
	const char *s = getenv("VFM_COMM_TIMEOUT_S");
	double t;

	return s && vfm_parse_f64(s, &t, NULL) == 0 && t > 0 ? t : 600;
}

void vfm_launch_place(struct vfm_launch *l)
{
	int *first = vfm_calloc((size_t)l->size, sizeof(*first)); /* [nodes] the old number of each new one */
	int nodes = 0;

	l->local_rank = l->local_size = 0;
	for (int r = 0; r < l->size; r++) {
		int k = 0;

		while (k < nodes && first[k] != l->node_of[r])
			k++;
		if (k == nodes)
			first[nodes++] = l->node_of[r];
		l->node_of[r] = k;
	}
	l->nodes = nodes;
	l->node = l->node_of[l->rank];
	for (int r = 0; r < l->size; r++)
		if (l->node_of[r] == l->node) {
			l->local_rank += r < l->rank;
			l->local_size++;
		}
	free(first);
}

enum { MAX_NUMBER = 1 << 24 }; /* of a node or of ranks: sums of two are still an int */

static bool parse_mapping_number(const char **s, char end, int64_t min, int64_t *out)
{
	const char *p = *s;

	for (*out = 0; *p >= '0' && *p <= '9' && *out <= MAX_NUMBER; p++)
		*out = *out * 10 + (*p - '0');
	if (p == *s || *p != end || *out < min || *out > MAX_NUMBER)
		return false;
	*s = p + 1;
	return true;
}

bool vfm_launch_mapping(const char *s, int size, int *node_of)
{
	static const char head[] = "(vector,";
	int64_t first, nodes, each;
	const char *p, *list = s + sizeof(head) - 1;
	int r = 0;

	if (strncmp(s, head, sizeof(head) - 1) != 0)
		return false;
	for (p = list; r < size;) {
		if (*p++ != '(' || !parse_mapping_number(&p, ',', 0, &first) ||
			!parse_mapping_number(&p, ',', 1, &nodes) || !parse_mapping_number(&p, ')', 1, &each))
			return false;
		for (int64_t k = 0; k < nodes && r < size; k++)
			for (int64_t i = 0; i < each && r < size; i++)
				node_of[r++] = (int)(first + k);
		if (*p == ',')
			p++;
		else if (*p == ')')
			p = list;
		else
			return false;
	}
	return true;
}

/* Pids alone do not suffice: containers that share /dev/shm may have equal ones. */
void vfm_launch_local_job(struct vfm_launch *l)
{
	snprintf(l->job, sizeof(l->job), "local-%ld-%llx", (long)getpid(), (unsigned long long)(vfm_wall_time() * 1e6));
}

int vfm_launch_init(struct vfm_launch *l, int n, struct vfm_err *err)
{
	struct vfm_task task;

	*l = (struct vfm_launch){.size = 1, .local_size = 1, .nodes = 1};
	if (gethostname(l->host, sizeof(l->host) - 1) != 0 || !*l->host)
		strcpy(l->host, "localhost");
	TRY(vfm_task_read(&task, err));
	if (task.count > 1 && n > 0)
		return vfm_fail(err, VFM_EUSAGE,
			"-n %d within a step of %lld tasks: srun starts the ranks, leave out -n (or start one task)", n,
			(long long)task.count);
	if (task.count > 1 && !getenv("PMI_FD"))
		return vfm_fail(err, VFM_EUSAGE,
			"this step has %lld tasks, but no PMI2, and each of them would run as the only rank; "
			"start it with srun --mpi=pmi2",
			(long long)task.count);
	if (task.count > 1)
		return vfm_launch_pmi2(l, &task, err);
	if (n > 1)
		return vfm_launch_fork(l, n, err);
	vfm_launch_local_job(l);
	l->node_of = vfm_calloc(1, sizeof(int));
	return 0;
}

int vfm_launch_publish(struct vfm_launch *l, const void *mine, size_t n, struct vfm_err *err)
{
	if (n > VFM_PUBLISH_MAX)
		return vfm_fail(err, VFM_EUSAGE, "internal: a rank publishes %zu bytes", n);
	return l->t ? l->t->publish(l, mine, n, err) : 0;
}

int vfm_launch_fetch(struct vfm_launch *l, int rank, void *out, size_t n, struct vfm_err *err)
{
	if (!l->t)
		return vfm_fail(err, VFM_EUSAGE, "internal: a single rank has no other ranks");
	return l->t->fetch(l, rank, out, n, err);
}

void vfm_launch_end(struct vfm_launch *l)
{
	if (l->t)
		l->t->end(l);
	free(l->node_of);
	l->node_of = NULL;
	l->t = NULL;
}

void vfm_launch_abort(struct vfm_launch *l, int status, const char *why)
{
	if (l->t)
		l->t->abort(l, status, why);
}
