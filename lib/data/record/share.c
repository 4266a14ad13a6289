/* share.c - the share that --part, a Slurm job array or the tasks of a step give. */
#include "data/record/share.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "io/task.h"

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

static int share_from_array(int64_t *share, int64_t *n_shares, bool *found, struct vfm_err *err)
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
	*share = (id - min) / step;
	*n_shares = count;
	return 0;
}

/* The tasks of each step of a job array divide the share of their array task. */
static int share_from_launcher(int64_t *share, int64_t *n_shares, bool *found, struct vfm_err *err)
{
	struct vfm_task task;

	TRY(share_from_array(share, n_shares, found, err));
	TRY(vfm_task_read(&task, err));
	if (task.number < 0)
		return vfm_fail(err, VFM_EUSAGE,
			"this process is one of %lld tasks, but neither SLURM_PROCID nor "
			"PMI_RANK says which",
			(long long)task.count);
	*found |= task.launched;
	*share = *share * task.count + task.number;
	*n_shares *= task.count;
	return 0;
}

int vfm_share_parse(const char *text, int64_t *share, int64_t *n_shares, struct vfm_err *err)
{
	char left[32];
	const char *slash;
	bool found;

	*share = 0;
	*n_shares = 1;
	if (!text || !strcmp(text, "task")) {
		TRY(share_from_launcher(share, n_shares, &found, err));
		if (text && !found)
			return vfm_fail(err, VFM_EUSAGE,
				"--part task: this process is no task of Slurm: neither SLURM_STEP_NUM_TASKS "
				"nor SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT are set "
				"(--part I/N works anywhere)");
		return 0;
	}
	slash = strchr(text, '/');
	if (!slash || (size_t)(slash - text) >= sizeof(left))
		return vfm_fail(err, VFM_EUSAGE, "--part: expected I/N with I from 0 to N-1, or task, got '%s'", text);
	memcpy(left, text, (size_t)(slash - text));
	left[slash - text] = 0;
	if (vfm_parse_i64(slash + 1, 1, INT64_MAX, n_shares, err) < 0 ||
		vfm_parse_i64(left, 0, *n_shares - 1, share, err) < 0)
		return vfm_fail(err, VFM_EUSAGE, "--part: expected I/N with I from 0 to N-1, or task, got '%s'", text);
	return 0;
}

int vfm_share_file(char **name, const char *pattern, int64_t share, struct vfm_err *err)
{
	struct vfm_buf b = {0};

	for (const char *p = pattern; *p; p++) {
		if (*p != '%') {
			vfm_buf_add(&b, p, 1);
		} else if (p[1] == 't') {
			vfm_buf_addf(&b, "%lld", (long long)share);
			p++;
		} else if (p[1] == '%') {
			vfm_buf_add(&b, "%", 1);
			p++;
		} else {
			vfm_buf_release(&b);
			return vfm_fail(err, VFM_EUSAGE,
				"'%s': expected %%t, the number of the share, or %%%% for a percent sign", pattern);
		}
	}
	vfm_buf_add(&b, "", 1);
	*name = b.data;
	return 0;
}
