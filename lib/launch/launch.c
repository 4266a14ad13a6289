#include "launch/launch.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

int vfm_launch_init(struct vfm_launch *l, int n, struct vfm_err *err)
{
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
	int64_t steps = 1;

	(void)n;
	*l = (struct vfm_launch){.size = 1, .local_size = 1, .nodes = 1};
	if (tasks && vfm_parse_i64(tasks, 1, 1 << 30, &steps, NULL) == 0 && steps > 1)
		return vfm_fail(err, VFM_EUSAGE, "this step has %lld tasks, but this version runs as one rank: start it with srun -n1",
			(long long)steps);
	l->node_of = vfm_calloc(1, sizeof(int));
	return 0;
}

int vfm_launch_exchange(struct vfm_launch *l, const void *mine, size_t n, void *all, struct vfm_err *err)
{
	(void)l, (void)err;
	memcpy(all, mine, n);
	return 0;
}

void vfm_launch_end(struct vfm_launch *l)
{
	free(l->node_of);
	l->node_of = NULL;
}

void vfm_launch_abort(struct vfm_launch *l, int status, const char *why)
{
	(void)l, (void)status, (void)why;
}
