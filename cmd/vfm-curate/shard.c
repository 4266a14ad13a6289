/* shard - latents and text embeddings -> WebDataset tars with an index. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/opt.h"
#include "curate.h"
#include "data/dataset/dataset.h"
#include "data/record/share.h"

static int shard_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker;
	return vfm_dataset_add(ctx, rec, err);
}

static int set_shard_chain(const json_t *chain, void *ctx, struct vfm_err *err)
{
	return vfm_dataset_set_chain(ctx, chain, err);
}

/* Sets *dir to DIR, or to DIR/part-NNNNN with --part: each share of an array job writes its own dataset. */
static int part_dir(char **dir, const struct vfm_dataset_opts *o, const struct vfm_stage *stage, struct vfm_err *err)
{
	int64_t share, n_shares;

	if (stage->opts.done)
		return vfm_fail(
			err, VFM_EUSAGE, "--done: skipped samples would be missing from the shards; use --resume");
	if (o->max_bytes < 1 || o->max_samples < 0)
		return vfm_fail(err, VFM_EUSAGE, "--max-bytes, --max-samples: expected a number from 1");
	TRY(vfm_share_parse(stage->opts.share, &share, &n_shares, err));
	*dir = n_shares == 1 ? vfm_strdup(o->dir) : vfm_strfmt("%s/part-%05" PRId64, o->dir, share);
	return 0;
}

static int run_shard(struct vfm_dataset_opts *o, struct vfm_stage *stage, struct vfm_err *err)
{
	struct vfm_dataset_stats stats;
	struct vfm_dataset *d;
	char *options;
	int rc, end;

	TRY(vfm_dataset_open(&d, o, err));
	options = vfm_strfmt("max-bytes %" PRId64 " max-samples %" PRId64 " with-media %d", o->max_bytes,
		o->max_samples, o->with_media);
	stage->ctx = d;
	stage->options = options;
	rc = vfm_stage_run(stage, NULL, err);
	free(options);
	if (rc < VFM_EINPUT) {
		vfm_dataset_abort(d);
		return rc;
	}
	end = vfm_dataset_commit(d, &stats, err);
	if (end < 0)
		return end;
	vfm_info("%s: %" PRId64 " samples in %" PRId64 " shards, %" PRId64 " bytes; %" PRId64
		 " samples were there before",
		o->dir, stats.samples, stats.shards, stats.bytes, stats.kept);
	if (stats.unbound)
		vfm_info("%" PRId64 " records have no sha256 of their files and caption: whether these belong together "
			 "was not checked",
			stats.unbound);
	return rc;
}

int curate_shard(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_stage stage = {
		.name = "shard", .fn = shard_record, .on_chain = set_shard_chain, .serial = true, .unique_ids = true};
	struct vfm_dataset_opts o = {.max_bytes = VFM_DATASET_MAX_BYTES};
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'd', "dir", "DIR", "write 000000.tar, ..., index.vfmi and .nv-meta into DIR", &o.dir,
			.required = true},
		{VFM_OPT_SIZE, 0, "max-bytes", "SIZE", "bytes of a tar (default 256M)", &o.max_bytes},
		{VFM_OPT_INT, 0, "max-samples", "N", "samples of a tar (default: no limit)", &o.max_samples},
		{VFM_OPT_FLAG, 0, "with-media", NULL, "add the clips themselves", &o.with_media},
		{VFM_OPT_FLAG, 0, "resume", NULL, "continue after the shards that DIR has", &o.resume},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate shard",
		.synopsis = "-d DIR [OPTION ...] [FILE ...]",
		.summary = "write samples as WebDataset shards with an index",
		.opts = opts,
		.stage = &(struct vfm_stage_traits){.has_resume = true},
	};
	char *dir;
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	TRY(part_dir(&dir, &o, &stage, err));
	o.dir = dir;
	rc = run_shard(&o, &stage, err);
	free(dir);
	return rc;
}
