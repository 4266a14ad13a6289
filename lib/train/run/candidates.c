/* candidates.c - lists checkpoints newest first, and rejects damaged ones with a reason. */
#include "train/run/candidates.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/find.h"
#include "ckpt/prune.h"

bool vfm_path_is_inside(const char *path, const char *dir)
{
	char *p = realpath(path, NULL), *d = realpath(dir, NULL);
	size_t n = d ? strlen(d) : 0;
	bool yes = p && d && !strncmp(p, d, n) && p[n] == '/';

	free(p);
	free(d);
	return yes;
}

int vfm_candidate_open(struct vfm_ckpt **c, const char *path, struct vfm_err *err)
{
	TRY(vfm_ckpt_open(c, path, err));
	if (!(*c)->plain)
		return 0;
	vfm_ckpt_close(*c);
	*c = NULL;
	return vfm_fail(err, VFM_EUSAGE, "'%s' holds files of weights, not a checkpoint", path);
}

static void add_candidate(struct vfm_candidates *k, char *path, int64_t step, bool own)
{
	vfm_grow(&k->c, &k->cap, k->n + 1, sizeof(*k->c));
	k->c[k->n++] = (struct vfm_ckpt_candidate){.path = path, .step = step, .own = own};
}

static void note_reason(struct vfm_candidates *k, struct vfm_ckpt_candidate *c, const char *why)
{
	c->rejected = true;
	vfm_buf_addf(&k->why, "%s%s", k->why.len ? "; " : "", why);
}

/* Adds the run's own checkpoints that are newer than `step`, newest first. */
static int add_own(struct vfm_candidates *k, int64_t step, struct vfm_err *err)
{
	int64_t *steps;
	size_t n;

	TRY(vfm_ckpt_steps(k->dir, true, &steps, &n, err));
	for (size_t i = n; i-- > 0 && steps[i] > step;)
		add_candidate(k, vfm_ckpt_path(k->dir, steps[i]), steps[i], true);
	free(steps);
	return 0;
}

/* The user asks for a checkpoint of the run that is not its newest.  Rejects the newer ones if they cannot be used.
 * Otherwise refuses: the history of the run would be ambiguous, and the next save would replace one of them. */
static int reject_newer(struct vfm_candidates *k, struct vfm_err *err)
{
	for (; k->at < k->n; k->at++) {
		struct vfm_ckpt_candidate *newer = &k->c[k->at];
		struct vfm_ckpt *c = NULL;
		struct vfm_err why = {0};
		int rc = vfm_ckpt_open(&c, newer->path, &why);

		if (rc == 0)
			rc = vfm_ckpt_finite(c, &why);
		vfm_ckpt_close(c);
		if (rc == 0)
			return vfm_fail(err, VFM_EUSAGE,
				"--resume: '%s' holds newer checkpoints, up to step %lld; to go back, rename or remove "
				"them, as in mv '%s' '%s.old', or use another RUN",
				k->run, (long long)k->c[0].step, newer->path, newer->path);
		if (rc != VFM_EUSAGE) {
			*err = why;
			return rc;
		}
		note_reason(k, newer, why.msg);
	}
	return 0;
}

/* Takes the given checkpoint, unless the run has later ones: users may repeat the same command. */
static int list_given(struct vfm_candidates *k, const char *path, struct vfm_err *err)
{
	struct vfm_ckpt *c = NULL;
	bool own;
	int rc;

	TRY_OUT(vfm_ckpt_open(&c, path, err));
	if (c->plain) {
		rc = vfm_fail(err, VFM_EUSAGE, "--resume: '%s' is a file of weights, not a checkpoint", path);
		goto out;
	}
	own = vfm_path_is_inside(c->path, k->dir);
	TRY_OUT(add_own(k, c->step, err));
	if (own)
		TRY_OUT(reject_newer(k, err));
	add_candidate(k, vfm_strdup(c->path), c->step, own);
out:
	vfm_ckpt_close(c);
	return rc;
}

int vfm_candidates_list(
	struct vfm_candidates *k, const char *run, const char *dir, const char *resume, struct vfm_err *err)
{
	*k = (struct vfm_candidates){.run = run, .dir = dir};
	if (strcmp(resume, "auto") != 0 && strcmp(resume, "no") != 0)
		return list_given(k, resume, err);
	TRY(add_own(k, -1, err));
	if (!strcmp(resume, "no") && k->n)
		return vfm_fail(err, VFM_EUSAGE,
			"--resume no, but '%s' holds the checkpoint of step %lld; use another RUN", run,
			(long long)k->c[0].step);
	return 0;
}

const char *vfm_candidates_next(const struct vfm_candidates *k)
{
	return k->at < k->n ? k->c[k->at].path : NULL;
}

void vfm_candidates_reject(struct vfm_candidates *k, const char *why)
{
	note_reason(k, &k->c[k->at++], why);
}

int vfm_candidates_accept(struct vfm_candidates *k, struct vfm_err *err)
{
	char *name = NULL;

	if (k->n && k->at == k->n)
		return vfm_fail(err, VFM_EUSAGE, "no checkpoint of '%s' can be used: %s", k->run, k->why.data);
	for (size_t i = 0; i < k->at; i++) {
		if (!k->c[i].own)
			continue;
		TRY(vfm_ckpt_set_aside(k->dir, k->c[i].step, &name, err));
		vfm_info("'%s' is now '%s'", k->c[i].path, name);
		free(name);
	}
	if (k->at)
		vfm_warn("%s; the run resumes from '%s' instead", k->why.data, k->c[k->at].path);
	return 0;
}

int vfm_candidates_newest(const char *run, struct vfm_ckpt **c, char **why, struct vfm_err *err)
{
	char *dir = vfm_strfmt("%s/ckpt", run);
	struct vfm_candidates k;
	const char *path;
	int rc = vfm_candidates_list(&k, run, dir, "auto", err);

	*c = NULL;
	while (rc == 0 && !*c && (path = vfm_candidates_next(&k))) {
		rc = vfm_candidate_open(c, path, err);
		if (rc == VFM_EUSAGE) {
			vfm_candidates_reject(&k, err->msg);
			rc = 0;
		}
	}
	if (why)
		*why = k.why.len ? vfm_strdup(k.why.data) : NULL;
	vfm_candidates_release(&k);
	free(dir);
	return rc;
}

void vfm_candidates_release(struct vfm_candidates *k)
{
	for (size_t i = 0; i < k->n; i++)
		free(k->c[i].path);
	free(k->c);
	vfm_buf_release(&k->why);
	*k = (struct vfm_candidates){0};
}
