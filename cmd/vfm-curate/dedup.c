/* dedup - groups near-duplicates, keeps the best of each group and drops the others. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "curate.h"
#include "curate/dedup/dedup.h"
#include "curate/dedup/dedup_text.h"
#include "data/record/stage_link.h"
#include "io/input.h"
#include "io/opt.h"

static int dedup_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker;
	return vfm_dedup_mark(ctx, rec, err);
}

static void report_groups(const struct vfm_dedup_stats *s, bool vectors)
{
	if (vectors) {
		vfm_info("%lld vectors, %lld duplicates; %lld clusters, the largest of %lld; k-means %.1f s, "
			 "assignment %.1f s, comparison %.1f s",
			(long long)s->items, (long long)s->members, (long long)s->semantic.clusters,
			(long long)s->semantic.largest, s->semantic.seconds[0], s->semantic.seconds[1],
			s->semantic.seconds[2]);
		return;
	}
	vfm_info("%lld clips, %lld duplicates; %lld pairs compared", (long long)s->items, (long long)s->members,
		(long long)s->clips.compared);
	if (s->clips.flat)
		vfm_info("%lld clips show no contrast: they have no duplicates", (long long)s->clips.flat);
	if (s->clips.cut_off)
		vfm_info("%lld times a clip met more others under a key than are compared: duplicates may remain",
			(long long)s->clips.cut_off);
}

/* Opens the records, which are read twice: those of the files, or, in a run, those of the stage before, which the
 * second reading gets from the run. */
static int open_both_readings(struct vfm_twice *t, struct vfm_stage *stage, struct vfm_err *err)
{
	struct vfm_stage_link *link = vfm_stage_link();
	char *before = link ? (char *)(uintptr_t)link->in_path : NULL;

	if (before) {
		TRY(vfm_stage_link_await(link, err));
		return vfm_twice_open(t, &before, 1, err);
	}
	TRY(vfm_twice_open(t, stage->files, stage->n_files, err));
	stage->files = t->paths;
	stage->n_files = t->n;
	return 0;
}

static int run_dedup(struct vfm_dedup_opts *o, struct vfm_stage *stage, const char *index, struct vfm_err *err)
{
	struct vfm_twice inputs = {0};
	struct vfm_dedup_stats stats;
	struct vfm_dedup *d = NULL;
	int rc;

	if (vfm_stage_link() && vfm_stage_link()->only_counts)
		return vfm_stage_run(stage, NULL, err);
	TRY_OUT(vfm_dedup_new(&d, o, err));
	TRY_OUT(open_both_readings(&inputs, stage, err));
	TRY_OUT(vfm_dedup_read(d, inputs.paths, inputs.n, err));
	TRY_OUT(vfm_dedup_group(d, &stats, err));
	report_groups(&stats, o->vectors);
	if (index)
		TRY_OUT(vfm_dedup_save(d, index, err));
	stage->ctx = d;
	stage->options = vfm_dedup_settings(d);
	if (vfm_dedup_suits_text(inputs.paths[0]))
		stage->lines = vfm_dedup_mark_lines;
	rc = vfm_stage_run(stage, NULL, err);
out:
	vfm_twice_close(&inputs);
	vfm_dedup_free(d);
	return rc;
}

int curate_dedup(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_stage stage = {.name = "dedup",
		.version = 5, /* 4: reasons had an id; 3: clips were not compared by their changes; 2: images were not
				 fit to each other; 1: images were compared with longer clips; 0: other limits of
				 motion, and fewer keys of crops */
		.fn = dedup_record,
		.unique_ids = true};
	struct vfm_dedup_opts o = {0};
	const char *index = NULL, *by = "hash";
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 0, "by", "hash|KEY", "compare hashes (default), or the vectors of KEY, \"embedding\"",
			&by},
		{VFM_OPT_NUM, 0, "threshold", "D", "distance of duplicates (default 0.25; of vectors 0.07)",
			&o.threshold},
		{VFM_OPT_STR, 0, "keep-best", "KEY", "keep the record of highest KEY or KEY*KEY (default width*height)",
			&o.quality},
		{VFM_OPT_STR, 0, "against", "INDEX", "drop duplicates of the clips of an index, too", &o.against},
		{VFM_OPT_STR, 0, "index", "OUT", "write an index of the clips that are kept", &index},
		{VFM_OPT_STR, 0, "vectors", "FILE.npy", "vectors: their rows, as search --save-vectors writes them",
			&o.matrix},
		{VFM_OPT_INT, 0, "clusters", "K", "vectors: clusters of k-means (default the root of the vectors)",
			&o.semantic.clusters},
		{VFM_OPT_INT, 0, "probe", "M", "vectors: compare within the M nearest clusters (default 2)",
			&o.semantic.probe},
		{VFM_OPT_INT, 0, "seed", "N", "vectors: of k-means (default 0)", &o.semantic.seed},
		{VFM_OPT_INT, 'j', "jobs", "N", "work on N records at once", &stage.opts.jobs},
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate dedup",
		.synopsis = "[OPTION ...] [FILE ...]\n--by KEY [OPTION ...] [FILE ...]",
		.summary = "drop near-duplicates of clips, and keep the best of each group",
		.opts = opts,
		.stage = &(struct vfm_stage_traits){.reads_all = true},
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	o.vectors = strcmp(by, "hash") != 0 ? by : NULL;
	if (o.vectors && index)
		return vfm_fail(err, VFM_EUSAGE, "--index: only by hash");
	if (!o.vectors && (o.semantic.clusters || o.semantic.probe || o.semantic.seed))
		return vfm_fail(err, VFM_EUSAGE, "--clusters, --probe, --seed: only with --by embedding");
	stage.opts.share = "0/1"; /* duplicates may be in any share, also in an array job */
	return run_dedup(&o, &stage, index, err);
}
