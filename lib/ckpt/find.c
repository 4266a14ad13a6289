#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/ckpt_impl.h"

char *vfm_ckpt_path(const char *dir, int64_t step)
{
	return vfm_strfmt("%s/step-%08lld", dir, (long long)step);
}

bool ckpt_step_of(const char *name, int64_t *step, bool *tmp)
{
	const char *p = name + 5;
	int64_t v = 0;
	int digits = 0;

	if (strncmp(name, "step-", 5) != 0)
		return false;
	for (; isdigit((unsigned char)*p) && digits < 18; p++, digits++)
		v = v * 10 + (*p - '0');
	*step = v;
	*tmp = !strcmp(p, ".tmp") || !strcmp(p, ".old.tmp");
	return digits >= 8 && (*tmp || !*p);
}

static bool has_file(const char *dir, const char *name)
{
	char *p = vfm_strfmt("%s/%s", dir, name);
	bool yes = access(p, F_OK) == 0;

	free(p);
	return yes;
}

static int step_cmp(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* Sets *steps to the steps of the complete checkpoints in dir, ascending; the caller frees it. */
static int list_steps(const char *dir, int64_t **steps, size_t *n, struct vfm_err *err)
{
	DIR *d = opendir(dir);
	struct dirent *de;
	size_t cap = 0;
	int64_t step;
	bool tmp;

	*steps = NULL;
	*n = 0;
	if (!d && (errno == ENOENT || errno == ENOTDIR))
		return 0;
	if (!d)
		return vfm_fail_errno(err, VFM_EENV, "cannot open directory '%s'", dir);
	while ((de = readdir(d)) != NULL) {
		char *p, *canon;

		if (!ckpt_step_of(de->d_name, &step, &tmp) || tmp)
			continue;
		p = vfm_strfmt("%s/%s", dir, de->d_name);
		canon = vfm_ckpt_path(dir, step); /* skips names such as step-000000001 */
		if (!strcmp(p, canon) && has_file(p, CKPT_MANIFEST)) {
			vfm_grow(steps, &cap, *n + 1, sizeof(**steps));
			(*steps)[(*n)++] = step;
		}
		free(p);
		free(canon);
	}
	closedir(d);
	if (*n)
		qsort(*steps, *n, sizeof(**steps), step_cmp);
	return 0;
}

int vfm_ckpt_latest(const char *dir, int64_t *step, struct vfm_err *err)
{
	int64_t *steps;
	size_t n;

	TRY(list_steps(dir, &steps, &n, err));
	*step = n ? steps[n - 1] : -1;
	free(steps);
	return 0;
}

int vfm_ckpt_resolve(const char *operand, char **path, struct vfm_err *err)
{
	char *sub = vfm_strfmt("%s/ckpt", operand), *bare = vfm_strdup(operand);
	int64_t step = -1;
	struct stat st;
	int rc = 0;

	for (size_t n = strlen(bare); n > 1 && bare[n - 1] == '/'; n--)
		bare[n - 1] = 0;
	*path = NULL;
	if (stat(operand, &st) != 0) {
		rc = vfm_fail_errno(err, VFM_EUSAGE, "cannot open '%s'", operand);
	} else if (!S_ISDIR(st.st_mode) || has_file(operand, CKPT_MANIFEST) || has_file(operand, CKPT_INDEX)) {
		*path = vfm_strdup(bare);
	} else {
		rc = vfm_ckpt_latest(sub, &step, err);
		if (!rc && step >= 0)
			*path = vfm_ckpt_path(sub, step);
		else if (!rc && (rc = vfm_ckpt_latest(bare, &step, err)) == 0 && step >= 0)
			*path = vfm_ckpt_path(bare, step);
		if (!rc && !*path)
			rc = vfm_fail(err, VFM_EUSAGE, "no complete checkpoint in '%s'", operand);
	}
	free(sub);
	free(bare);
	return rc;
}

int vfm_ckpt_prune(const char *dir, int keep_last, int64_t keep_every, int64_t spare, bool dry,
	void (*gone)(void *ctx, int64_t step), void *ctx, struct vfm_err *err)
{
	int64_t *steps;
	size_t n;
	int rc = 0;

	if (keep_last < 1)
		return 0;
	TRY(list_steps(dir, &steps, &n, err));
	for (size_t i = 0; i + (size_t)keep_last < n && !rc; i++) {
		char *p, *tmp;

		if (steps[i] == spare || (keep_every > 0 && steps[i] % keep_every == 0))
			continue;
		p = vfm_ckpt_path(dir, steps[i]);
		tmp = vfm_strfmt("%s.old.tmp", p);
		/* The rename comes first: a partly removed checkpoint must not have the name of a complete one. */
		if (!dry && (vfm_rm_rf(tmp, err) < 0 || rename(p, tmp) != 0))
			rc = vfm_fail_errno(err, VFM_EENV, "cannot remove '%s'", p);
		else if (!dry)
			rc = vfm_rm_rf(tmp, err);
		if (!rc && gone)
			gone(ctx, steps[i]);
		free(p);
		free(tmp);
	}
	free(steps);
	return rc;
}
