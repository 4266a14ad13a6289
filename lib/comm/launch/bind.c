/* bind.c - divides the CPUs of a node among its ranks by package and core, and sets numbers of threads. */
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/par.h"
#include "comm/launch/launch_impl.h"
#include "io/hash.h"

static int64_t read_env_count(const char *name)
{
	const char *s = getenv(name);
	int64_t n = 0;

	return s && vfm_parse_i64(s, 1, 1 << 20, &n, NULL) == 0 ? n : 0;
}

uint64_t vfm_launch_mask_hash(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	return sched_getaffinity(0, sizeof(set), &set) == 0 ? vfm_fnv64(&set, sizeof(set)) : 0;
}

void vfm_launch_threads(const struct vfm_launch *l, int sharers)
{
	int64_t per_task = read_env_count("SLURM_CPUS_PER_TASK"), on_node = read_env_count("SLURM_CPUS_ON_NODE");
	bool forked = !strcmp(l->t->name, "fork");
	cpu_set_t set;
	int64_t n = 0;

	if (getenv("OMP_NUM_THREADS"))
		return; /* base/par.h reads it */
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		n = CPU_COUNT(&set) / (sharers > 1 ? sharers : 1);
	if (per_task && !forked)
		n = per_task;
	else if (per_task && per_task / l->local_size < n)
		n = per_task / l->local_size; /* the forks share the processors of one task */
	else if (on_node && on_node / l->local_size < n)
		n = on_node / l->local_size; /* Slurm may not bind the tasks */
	vfm_par_set_threads(n > 1 ? (int)n : 1);
}

/* ---- binding ---- */

struct cpu {
	int id, package, core;
};

static int read_topology(int cpu, const char *what)
{
	char path[128];
	int v = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
	f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%d", &v) != 1)
		v = 0;
	fclose(f);
	return v;
}

static int compare_cpus(const void *a, const void *b)
{
	const struct cpu *x = a, *y = b;

	if (x->package != y->package)
		return x->package < y->package ? -1 : 1;
	if (x->core != y->core)
		return x->core < y->core ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

bool vfm_launch_bind(const struct vfm_launch *l)
{
	const char *how = getenv("VFM_BIND");
	struct cpu cpu[CPU_SETSIZE];
	cpu_set_t set, mine;
	int n = 0;

	if ((how && !strcmp(how, "none")) || sched_getaffinity(0, sizeof(set), &set) != 0)
		return false;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set))
			cpu[n++] =
				(struct cpu){i, read_topology(i, "physical_package_id"), read_topology(i, "core_id")};
	if (n < l->local_size)
		return false;
	qsort(cpu, (size_t)n, sizeof(*cpu), compare_cpus);
	CPU_ZERO(&mine);
	for (int i = n * l->local_rank / l->local_size; i < n * (l->local_rank + 1) / l->local_size; i++)
		CPU_SET(cpu[i].id, &mine);
	return sched_setaffinity(0, sizeof(mine), &mine) == 0;
}
