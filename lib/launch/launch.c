#include "launch/launch.h"

#include <stdlib.h>

#include "base/num.h"

int vfm_launch_init(struct vfm_launch *l, struct vfm_err *err)
{
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
	int64_t n = 1;

	*l = (struct vfm_launch){.size = 1, .local_size = 1};
	if (tasks && vfm_parse_i64(tasks, 1, 1 << 30, &n, NULL) == 0 && n > 1)
		return vfm_fail(err, VFM_EUSAGE, "this step has %lld tasks, but this version runs as one rank: start it with srun -n1",
			(long long)n);
	return 0;
}
