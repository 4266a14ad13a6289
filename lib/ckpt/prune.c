/* Removes and renames checkpoints. */
#include "ckpt/prune.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/log.h"
#include "ckpt/check.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/find.h"
#include "io/file.h"

void vfm_ckpt_sweep(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *de;
	int64_t step;
	bool tmp;

	while (d && (de = readdir(d)) != NULL) {
		if (ckpt_step_of(de->d_name, &step, &tmp) && tmp) {
			char *p = vfm_strfmt("%s/%s", dir, de->d_name);

			vfm_rm_rf(p, NULL); /* ignores errors: a save reports a leftover that blocks it */
			free(p);
		}
	}
	if (d)
		closedir(d);
}

int vfm_ckpt_set_aside(const char *dir, int64_t step, char **name, struct vfm_err *err)
{
	char *p = vfm_ckpt_path(dir, step);
	struct stat st;
	int rc = 0;

	*name = vfm_strfmt("%s.damaged", p);
	for (int i = 2; lstat(*name, &st) == 0; i++) {
		free(*name);
		*name = vfm_strfmt("%s.damaged-%d", p, i);
	}
	if (rename(p, *name) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot rename '%s' to '%s'", p, *name);
	free(p);
	return rc;
}

/* Returns 1 if the checkpoint is good, 0 with the reason in *why if not, or VFM_EENV. */
static int is_good(const char *path, bool deep, struct vfm_err *why)
{
	struct vfm_ckpt_faults faults = {0};
	struct vfm_ckpt *c = NULL;
	int rc;

	if (deep) {
		rc = vfm_ckpt_check(path, &faults, why);
		if (rc == 0 && faults.damaged + faults.nonfinite)
			rc = vfm_fail(why, VFM_EUSAGE, "%s has %d faults (vfm-ckpt check)", path,
				faults.damaged + faults.nonfinite);
	} else {
		rc = vfm_ckpt_open(&c, path, why);
		if (rc == 0)
			rc = vfm_ckpt_finite(c, why);
		vfm_ckpt_close(c);
	}
	return rc == 0 ? 1 : rc == VFM_EENV ? rc : 0;
}

static bool is_kept(const struct vfm_ckpt_prune *p, const int64_t *steps, size_t n, size_t i)
{
	return i + (size_t)p->keep_last >= n || steps[i] == p->spare ||
		(p->keep_every > 0 && steps[i] % p->keep_every == 0);
}

/* Sets *good to the index of the newest good checkpoint; prefers checkpoints that are kept.  Warns if it is not a kept
 * one. */
static int find_good(const char *dir, const struct vfm_ckpt_prune *p, const int64_t *steps, size_t n, size_t *good,
	struct vfm_err *err)
{
	struct vfm_err first = {0}, why = {0};

	for (int kept = 1; kept >= 0; kept--)
		for (size_t i = n; i-- > 0;) {
			char *path;
			int rc;

			if (is_kept(p, steps, n, i) != kept)
				continue;
			path = vfm_ckpt_path(dir, steps[i]);
			rc = is_good(path, p->deep, &why);
			if (rc == 0 && !first.code)
				first = why;
			if (rc > 0 && !kept)
				vfm_warn("%s; '%s' is kept in its place", first.msg, path);
			free(path);
			*good = i;
			if (rc < 0 && err)
				*err = why;
			if (rc != 0)
				return rc < 0 ? rc : 0;
		}
	return vfm_fail(err, VFM_EUSAGE, "no checkpoint in '%s' is good, so none is removed: %s", dir, first.msg);
}

/* The rename comes first: a partly removed checkpoint must not have the name of a complete one. */
static int remove_checkpoint(const char *dir, int64_t step, struct vfm_err *err)
{
	char *p = vfm_ckpt_path(dir, step), *tmp = vfm_strfmt("%s.old.tmp", p);
	int rc = 0;

	if (vfm_rm_rf(tmp, err) < 0 || rename(p, tmp) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot remove '%s'", p);
	else
		rc = vfm_rm_rf(tmp, err);
	free(p);
	free(tmp);
	return rc;
}

int vfm_ckpt_prune(const char *dir, const struct vfm_ckpt_prune *p, struct vfm_err *err)
{
	size_t n, good = 0, candidates = 0;
	int64_t *steps;
	int rc = 0;

	if (p->keep_last < 1)
		return 0;
	TRY(vfm_ckpt_steps(dir, false, &steps, &n, err));
	for (size_t i = 0; i < n; i++)
		candidates += !is_kept(p, steps, n, i);
	if (candidates)
		rc = find_good(dir, p, steps, n, &good, err);
	for (size_t i = 0; candidates && i < n && !rc; i++) {
		if (is_kept(p, steps, n, i) || i == good)
			continue;
		if (!p->dry)
			rc = remove_checkpoint(dir, steps[i], err);
		if (!rc && p->gone)
			p->gone(p->ctx, steps[i]);
	}
	free(steps);
	return rc;
}
