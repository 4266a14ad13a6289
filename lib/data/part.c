#include "data/part.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"

static int env_i64(const char *name, int64_t *out, bool *set, struct vfm_err *err)
{
	const char *s = getenv(name);

	*set = s && *s;
	if (!*set)
		return 0;
	if (vfm_parse_i64(s, 0, INT64_MAX, out, err) < 0)
		return vfm_err_context(err, "environment variable %s", name);
	return 0;
}

static int part_from_array(int64_t *part, int64_t *n_parts, bool *found, struct vfm_err *err)
{
	int64_t id = 0, count = 0, min = 0, step = 1;
	bool has_id, has_count, has;

	TRY(env_i64("SLURM_ARRAY_TASK_ID", &id, &has_id, err));
	TRY(env_i64("SLURM_ARRAY_TASK_COUNT", &count, &has_count, err));
	TRY(env_i64("SLURM_ARRAY_TASK_MIN", &min, &has, err));
	TRY(env_i64("SLURM_ARRAY_TASK_STEP", &step, &has, err));
	*found = has_id && has_count && count > 0;
	if (!*found)
		return 0;
	if (step < 1 || id < min || (id - min) % step || (id - min) / step >= count)
		return vfm_fail(err, VFM_EUSAGE,
			"the tasks of this job array are not evenly spaced (task %lld, first %lld, %lld of them): "
			"say --part I/N",
			(long long)id, (long long)min, (long long)count);
	*part = (id - min) / step;
	*n_parts = count;
	return 0;
}

static int part_from_step(int64_t *part, int64_t *n_parts, struct vfm_err *err)
{
	int64_t id = 0, count = 0;
	bool has_id, has_count;

	/* The body of a batch job also has SLURM_PROCID=0 and SLURM_NTASKS, but is not a task of a step. */
	if (getenv("SLURM_JOB_ID") && !getenv("SLURM_STEP_ID"))
		return 0;
	TRY(env_i64("SLURM_PROCID", &id, &has_id, err));
	TRY(env_i64("SLURM_NTASKS", &count, &has_count, err));
	if (!has_id || !has_count || id >= count)
		return 0;
	*part = id;
	*n_parts = count;
	return 0;
}

int vfm_part_parse(const char *text, int64_t *part, int64_t *n_parts, struct vfm_err *err)
{
	char left[32];
	const char *slash;
	bool found;

	*part = 0;
	*n_parts = 1;
	if (!text) {
		TRY(part_from_array(part, n_parts, &found, err));
		return found ? 0 : part_from_step(part, n_parts, err);
	}
	slash = strchr(text, '/');
	if (!slash || (size_t)(slash - text) >= sizeof(left))
		return vfm_fail(err, VFM_EUSAGE, "--part: expected I/N with I from 0 to N-1, got '%s'", text);
	memcpy(left, text, (size_t)(slash - text));
	left[slash - text] = 0;
	if (vfm_parse_i64(slash + 1, 1, INT64_MAX, n_parts, err) < 0 ||
		vfm_parse_i64(left, 0, *n_parts - 1, part, err) < 0)
		return vfm_fail(err, VFM_EUSAGE, "--part: expected I/N with I from 0 to N-1, got '%s'", text);
	return 0;
}
