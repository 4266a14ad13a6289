/* skipped.c - names the samples whose loss is not finite, over all ranks. */
#include "train/run/skipped.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/coll/comm.h"

enum { NAMED = 8 }; /* samples that a message names */

/* Appends a line for each sample of a pack whose loss is not finite. */
static void list_samples(
	const struct vfm_skipped *k, const struct vfm_plan_pack *pack, const float *loss, int n, struct vfm_buf *out)
{
	const struct vfm_plan_header *h = vfm_plan_header(k->plan);

	for (int i = 0; i < n && i < pack->n_samples; i++) {
		const struct vfm_plan_sample *s = &pack->samples[i];

		if (!isfinite(loss[i]))
			vfm_buf_addf(out, "set '%s', shard %d, index %lld\n", h->sets[s->set].name, s->shard,
				(long long)s->index);
	}
}

/* Lists the samples of this rank in step k in flight; the plan gives their names. */
static int list_own_samples(
	const struct vfm_skipped *s, struct vfm_trainer *tr, int k, struct vfm_buf *out, struct vfm_err *err)
{
	struct vfm_plan_step plan = {0};
	float *loss = NULL;
	int64_t index;
	int rc = vfm_plan_step(s->plan, vfm_trainer_stats_of(tr, k)->step, &plan, err);

	for (int64_t i = 0; rc >= 0 && i < vfm_trainer_packs(tr, k); i++) {
		rc = vfm_trainer_sample_losses(tr, k, i, &index, &loss, err);
		if (rc > 0)
			list_samples(s, vfm_plan_pack_of(&plan, index), loss, rc, out);
		free(loss);
		loss = NULL;
	}
	vfm_plan_step_release(&plan);
	return rc < 0 ? rc : 0;
}

static int compare_lines(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Writes "; the loss of these samples is not finite: …".  The ranks of a cp x tp group list the same samples.  text:
 * the lines of all ranks; modified by this function. */
static void describe_samples(char *text, int64_t samples, struct vfm_buf *out)
{
	char **line = NULL, *save = NULL;
	size_t n = 0, cap = 0, kept = 0;

	for (char *s = strtok_r(text, "\n", &save); s; s = strtok_r(NULL, "\n", &save)) {
		vfm_grow(&line, &cap, n + 1, sizeof(*line));
		line[n++] = s;
	}
	if (n)
		qsort(line, n, sizeof(*line), compare_lines);
	for (size_t i = 0; i < n; i++)
		if (!kept || strcmp(line[kept - 1], line[i]) != 0)
			line[kept++] = line[i];
	if (kept && (int64_t)kept == samples)
		vfm_buf_addf(out, "; the loss of all its %zu samples is not finite", kept);
	else if (kept)
		vfm_buf_addf(out, "; not finite is the loss of %zu of its %lld samples: ", kept, (long long)samples);
	for (size_t i = 0; i < kept && i < NAMED && (int64_t)kept != samples; i++)
		vfm_buf_addf(out, "%s%s", i ? "; " : "", line[i]);
	if (kept > NAMED && (int64_t)kept != samples)
		vfm_buf_addf(out, "; and %zu more", kept - NAMED);
	free(line);
}

/* printf writes the sign of a NaN, which means nothing. */
static double drop_nan_sign(double x)
{
	return isnan(x) ? fabs(x) : x;
}

/* Collective. */
static int describe_step(const struct vfm_skipped *s, struct vfm_trainer *tr, int k, const char *network,
	struct vfm_buf *out, struct vfm_err *err)
{
	const struct vfm_step_stats *stats = vfm_trainer_stats_of(tr, k);
	struct vfm_buf mine = {0};
	char *all = NULL;
	size_t *off = NULL;
	int rc;

	TRY_OUT(vfm_job_agree(s->job, list_own_samples(s, tr, k, &mine, err), err));
	TRY_OUT(vfm_comm_gather_bytes(s->job->world, mine.data ? mine.data : "", mine.len, &all, &off, err));
	vfm_buf_addf(out,
		"step %lld%s%s%s: the loss is %g and the norm of the gradient %g, so the weights were not updated",
		(long long)stats->step + 1, network ? ", " : "", network ? network : "",
		network ? "-noise network" : "", drop_nan_sign(stats->loss), drop_nan_sign(stats->grad_norm));
	all = vfm_realloc(all, off[s->job->world->size] + 1, 1);
	all[off[s->job->world->size]] = '\0';
	describe_samples(all, stats->samples, out);
out:
	vfm_buf_release(&mine);
	free(all);
	free(off);
	return rc;
}

int vfm_skipped_add(struct vfm_skipped *s, struct vfm_trainer *tr, int k, const char *network, struct vfm_err *err)
{
	struct vfm_buf text = {0};
	int64_t step = vfm_trainer_stats_of(tr, k)->step + 1;
	int rc = describe_step(s, tr, k, network, &text, err);

	s->n += step != s->last;
	s->last = step;
	if (rc == 0 && s->n > s->most)
		rc = vfm_fail(err, VFM_EENV, "%s (train.skip_nonfinite is %lld)", text.data, (long long)s->most);
	else if (rc == 0 && s->mesh->rank == 0)
		vfm_warn("%s; %lld of at most %lld such steps (train.skip_nonfinite)", text.data, (long long)s->n,
			(long long)s->most);
	vfm_buf_release(&text);
	return rc;
}
