/* bucket - chooses the size and the number of frames that each record is encoded in. */
#include <stdlib.h>

#include "base/mem.h"
#include "curate.h"
#include "data/record/bucket.h"
#include "encoder/encode/encoder.h"
#include "io/opt.h"
#include "spec/layout/patch.h"

struct bucket {
	struct vfm_bucket_opts o;
	const char *patch; /* as given */
	struct vfm_encoder_opts encoder;
	struct vfm_buckets buckets;
};

static int bucket_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct bucket *b = ctx;

	(void)out, (void)worker;
	return vfm_bucket_assign(&b->buckets, rec, err);
}

/* Finds the sizes of the tokenizer that will encode. */
static int find_geometry(struct bucket *b, struct vfm_err *err)
{
	struct vfm_encoder_opts *e = &b->encoder;

	TRY(vfm_encoder_check_opts(e, err));
	if (vfm_patch_parse(b->patch, b->o.patch, err) < 0)
		return vfm_err_context(err, "--patch");
	if (!e->exec && !e->vae && !e->tokenizer)
		e->tokenizer = "wavelet";
	return vfm_encoder_read_geometry(&b->o.geometry, e, err);
}

static int run_bucket(struct bucket *b, struct vfm_stage *stage, struct vfm_err *err)
{
	char *options = NULL;
	int rc;

	TRY(find_geometry(b, err));
	rc = vfm_buckets_make(&b->buckets, &b->o, err);
	if (rc >= 0) {
		stage->options = options = vfm_buckets_text(&b->buckets);
		rc = vfm_stage_run(stage, NULL, err);
	}
	free(options);
	vfm_buckets_release(&b->buckets);
	return rc;
}

int curate_bucket(int argc, char **argv, struct vfm_err *err)
{
	struct bucket b = {
		.o = {.max_upscale = 1, .max_crop = 0.5}, .patch = "1x2x2", .encoder = {VFM_ENCODER_DEFAULTS}};
	struct vfm_stage stage = {.name = "bucket",
		.version = 1, /* 0: reasons had the numbers of the record */
		.fn = bucket_record,
		.ctx = &b};
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 0, "sizes", "LIST", "these sizes: 832x480,480x832,624x624", &b.o.sizes},
		{VFM_OPT_STR, 0, "area", "LIST", "sizes of these areas, 480p or 832x480, in each of --aspects",
			&b.o.areas},
		{VFM_OPT_STR, 0, "aspects", "LIST",
			"W:H, or N of a range: 9:16..16:9/N (default " VFM_BUCKET_ASPECTS ")", &b.o.aspects},
		{VFM_OPT_STR, 0, "frames", "LIST", "these numbers of frames: 17,33,81", &b.o.frames},
		{VFM_OPT_INT, 0, "max-frames", "N", "or all that the tokenizer takes up to N", &b.o.max_frames},
		{VFM_OPT_INT, 0, "min-frames", "N", "and from N on (default 2)", &b.o.min_frames},
		{VFM_OPT_NUM, 0, "fps", "X", "count frames at X a second (default: every frame)", &b.o.fps},
		{VFM_OPT_NUM, 0, "max-upscale", "X", "enlarge up to X times (default 1: never)", &b.o.max_upscale},
		{VFM_OPT_NUM, 0, "max-crop", "X", "crop at most this share of the area (default 0.5)", &b.o.max_crop},
		{VFM_OPT_STR, 0, "tokenizer", "NAME", "as of encode: wavelet or wavelet:CHANNELS (default)",
			&b.encoder.tokenizer},
		{VFM_OPT_STR, 0, "vae", "PATH", "as of encode: only its sizes are read", &b.encoder.vae},
		{VFM_OPT_STR, 0, "exec", "CMD", "as of encode: a child is asked for its sizes", &b.encoder.exec},
		{VFM_OPT_STR, 0, "patch", "TxHxW", "patch size of the models to train, in latent cells (1x2x2)",
			&b.patch},
		VFM_EXEC_OPTS(&b.encoder.children),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate bucket",
		.synopsis = "[OPTION ...] [FILE ...]",
		.summary = "choose the size and length of each clip, for batches of equal shapes",
		.opts = opts,
		.stage = &(struct vfm_stage_traits){.children = (const char *const[]){"exec", NULL},
			.models = (const char *const[]){"vae", NULL}},
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	return run_bucket(&b, &stage, err);
}
