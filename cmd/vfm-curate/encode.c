/* encode - frames and captions -> latents, text embeddings, and what image to video is given. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/par.h"
#include "curate.h"
#include "data/record/extra.h"
#include "encoder/encode/encode.h"
#include "io/file.h"
#include "io/json.h"
#include "io/opt.h"
#include "spec/layout/patch.h"

struct encode {
	struct vfm_encode spec;
	const char *size, *frames, *patch; /* as given; NULL: not */
	struct vfm_encoder_opts opts;
	struct vfm_encoder_set encoders;
	atomic_llong encoded, uncaptioned;
};

static int encode_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct encode *e = ctx;

	(void)out;
	TRY(vfm_encode_media(rec, &e->spec, worker, err));
	atomic_fetch_add(&e->encoded, 1);
	if (!json_is_string(json_object_get(rec, "caption")) && !json_is_object(json_object_get(rec, "caption")))
		atomic_fetch_add(&e->uncaptioned, 1);
	TRY(vfm_encode_text(rec, &e->spec, worker, err));
	return vfm_encode_text2(rec, &e->spec, worker, err);
}

int curate_parse_size(const char *text, int unit_w, int unit_h, int *width, int *height, struct vfm_err *err)
{
	int n = 0;

	if (sscanf(text, "%5dx%5d%n", width, height, &n) != 2 || text[n] || *width < unit_w || *height < unit_h ||
		*width > 16384 || *height > 16384 || *width % unit_w || *height % unit_h)
		return vfm_fail(err, VFM_EUSAGE,
			"--size: expected WIDTHxHEIGHT up to 16384, multiples of %d and %d, got '%s'", unit_w, unit_h,
			text);
	return 0;
}

int curate_parse_frames(const char *text, int64_t *frames, bool *of_bucket, struct vfm_err *err)
{
	*frames = 0;
	*of_bucket = text && !strcmp(text, "bucket");
	if (text && !*of_bucket && vfm_parse_i64(text, 0, INT64_MAX, frames, err) < 0)
		return vfm_err_context(err, "--frames");
	return 0;
}

static int check_encode_opts(struct encode *e, struct vfm_err *err)
{
	e->spec.bucket_size = e->size && !strcmp(e->size, "bucket");
	TRY(curate_parse_frames(e->frames, &e->spec.frames, &e->spec.bucket_frames, err));
	if (e->spec.fps < 0 || e->spec.fps > 1000)
		return vfm_fail(err, VFM_EUSAGE, "--fps: expected a rate up to 1000");
	TRY(vfm_encoder_check_opts(&e->opts, err));
	e->opts.one_model = e->opts.text_stream;
	if (e->spec.last_frame && !e->spec.condition && !vfm_encoder_image_option(&e->opts))
		return vfm_fail(err, VFM_EUSAGE, "--last-frame: it needs --condition, --image-encoder or --image-exec");
	if (vfm_patch_parse(e->patch, e->spec.patch, err) < 0)
		return vfm_err_context(err, "--patch");
	return vfm_mkdir_p(e->spec.dir, err);
}

/* ---- the encoders ---- */

static int choose_encode_size(struct encode *e, struct vfm_err *err)
{
	int32_t unit[2];

	vfm_geometry_multiple(&e->encoders.video.id.geometry, e->spec.patch, unit);
	return e->size && !e->spec.bucket_size
		? curate_parse_size(e->size, unit[1], unit[0], &e->spec.width, &e->spec.height, err)
		: 0;
}

/* The encoder must be able to encode conditions. */
static int check_condition(const struct encode *e, struct vfm_err *err)
{
	const struct vfm_encoder_handle *v = &e->encoders.video;
	const char *lacks = v->ops->lacks ? v->ops->lacks(v->ctx, e->spec.last_frame ? 2 : 1) : NULL;

	return lacks ? vfm_fail(err, VFM_EUSAGE, "--condition: '%s' lacks '%s'", e->opts.exec, lacks) : 0;
}

/* An index has 16 bits for the features of a row (vfm-shard(5)). */
static int check_text_width(const struct encode *e, struct vfm_err *err)
{
	const struct vfm_encoder_id *text = &e->encoders.text.id;

	if (text->dim <= UINT16_MAX)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"the text encoder '%s' makes rows of %d features, but a dataset holds at most %d", text->name,
		text->dim, UINT16_MAX);
}

/* Opens the encoders for stage->threads workers. */
static int open_encoders(struct encode *e, struct vfm_stage *stage, struct vfm_err *err)
{
	struct vfm_encoder_opts *o = &e->opts;

	if (!o->exec && !o->vae && !o->tokenizer)
		o->tokenizer = "wavelet";
	if (!o->text_exec && !o->text_encoder && !o->text)
		o->text = "bytes";
	o->pictures = e->spec.last_frame ? 2 : 1;
	o->children.children = stage->opts.jobs;
	TRY(vfm_encoder_open(&e->encoders, o, err));
	TRY(check_text_width(e, err));
	if (e->spec.condition)
		TRY(check_condition(e, err));
	TRY(choose_encode_size(e, err));
	stage->threads = vfm_encoder_threads(&e->encoders, stage->opts.jobs);
	e->spec.threads = stage->threads > 1 ? 1 : vfm_par_threads();
	e->spec.encoders = &e->encoders;
	return vfm_encoder_make_workers(&e->encoders, stage->threads, err);
}

/* The options that change latents and texts besides the encoders (data/record/stage.h). */
static char *encode_options(const struct vfm_encode *e)
{
	char fps[VFM_REAL_TEXT];

	return vfm_strfmt("patch %dx%dx%d size %dx%d frames %lld fps %s%s%s%s%s", e->patch[0], e->patch[1], e->patch[2],
		e->width, e->height, (long long)e->frames, vfm_real_text(fps, e->fps), e->condition ? " condition" : "",
		e->last_frame ? " last-frame" : "", e->bucket_size ? " size-of-bucket" : "",
		e->bucket_frames ? " frames-of-bucket" : "");
}

static int run_encode(struct encode *e, struct vfm_stage *stage, struct vfm_err *err)
{
	struct vfm_encoder_ids ids;
	char *options = NULL;
	json_t *models = NULL;
	int rc = open_encoders(e, stage, err);

	if (rc >= 0) {
		ids = vfm_encoder_set_ids(&e->encoders);
		stage->options = options = encode_options(&e->spec);
		stage->models = models = vfm_encoder_ids_json(&ids);
		rc = vfm_stage_run(stage, NULL, err);
	}
	if (atomic_load(&e->uncaptioned))
		vfm_info("captions: %lld of %lld encoded records have none; their text is that of an empty caption",
			(long long)atomic_load(&e->uncaptioned), (long long)atomic_load(&e->encoded));
	vfm_encoder_close(&e->encoders);
	free(options);
	json_decref(models);
	return rc;
}

/* The keys of the files of a record.  Others, such as image rows of another program, stay as they are. */
static void list_made(const struct encode *e, const char *made[6])
{
	*made++ = "latent";
	*made++ = "text";
	if (e->spec.condition)
		*made++ = vfm_extra_kinds[VFM_EXTRA_COND].key;
	if (vfm_encoder_image_option(&e->opts))
		*made++ = vfm_extra_kinds[VFM_EXTRA_IMAGE].key;
	if (vfm_encoder_text2_option(&e->opts))
		*made++ = vfm_extra_kinds[VFM_EXTRA_TEXT2].key;
	*made = NULL;
}

int curate_encode(int argc, char **argv, struct vfm_err *err)
{
	struct encode e = {.spec = {.timeout_s = 3600},
		.patch = "1x2x2",
		.opts = {.encodes = true,
			.text_options = "--text, --text-encoder and --text-exec",
			VFM_ENCODER_DEFAULTS}};
	/* the last one: with --size bucket or --frames bucket */
	const char *reads[] = {"id", "src", "kind", "start_frame", "end_frame", "start_pts", "fps", "bad_times",
		"caption", NULL, NULL};
	const char *made[6] = {0};
	struct vfm_stage stage = {.name = "encode",
		.version = 2, /* 1: HLG sources gave other colours; 0: interlaced and HDR sources, too */
		.fn = encode_record,
		.ctx = &e,
		.unique_ids = true,
		.outputs = made,
		.reads = reads,
		.sets = made};
	struct vfm_opt opts[] = {
		{VFM_OPT_TEXT, 'd', "dir", "DIR", "write ID.latent.npy and ID.text.npy into DIR", &e.spec.dir,
			.required = true},
		VFM_TIMEOUT_OPT("give up on a clip after so long (default 3600)", &e.spec.timeout_s),
		{VFM_OPT_STR, 0, "device", "cpu|cuda", "where --vae, --text-encoder and --image-encoder compute",
			&e.opts.device},
		{VFM_OPT_GROUP, 0, NULL, NULL, "Frames:", NULL},
		{VFM_OPT_STR, 0, "size", "WxH|bucket",
			"scale to cover W x H and crop the middle; multiples of stride x patch", &e.size},
		{VFM_OPT_STR, 0, "frames", "N|bucket", "take at most N frames of a clip, or those of its bucket",
			&e.frames},
		{VFM_OPT_NUM, 0, "fps", "X", "take X frames a second (default: every frame)", &e.spec.fps},
		{VFM_OPT_STR, 0, "patch", "TxHxW", "patch size of the models to train, in latent cells (1x2x2)",
			&e.patch},
		{VFM_OPT_GROUP, 0, NULL, NULL, "Video encoder:", NULL},
		{VFM_OPT_STR, 0, "tokenizer", "NAME", "wavelet or wavelet:CHANNELS (default wavelet:16)",
			&e.opts.tokenizer},
		VFM_ENCODER_VAE_OPTS(&e.opts),
		{VFM_OPT_STR, 0, "exec", "CMD", "encode with -j N children: vfm-exec(7)", &e.opts.exec},
		{VFM_OPT_GROUP, 0, NULL, NULL, "Text encoder:", NULL},
		{VFM_OPT_STR, 0, "text", "NAME", "bytes or bytes:DIM (default bytes:1024)", &e.opts.text},
		VFM_ENCODER_TEXT_OPTS(&e.opts),
		{VFM_OPT_FLAG, 0, "text-stream", NULL, "upload the text encoder's blocks for each batch: little memory",
			&e.opts.text_stream},
		{VFM_OPT_STR, 0, "text-exec", "CMD", "embed captions with -j N children", &e.opts.text_exec},
		{VFM_OPT_STR, 0, "text2", "NAME", "also write ID.text2.npy, with a second text encoder: bytes:DIM",
			&e.opts.text2},
		{VFM_OPT_STR, 0, "text2-exec", "CMD", "the same with -j N children", &e.opts.text2_exec},
		{VFM_OPT_GROUP, 0, NULL, NULL, "Image to video:", NULL},
		{VFM_OPT_FLAG, 0, "condition", NULL, "also write ID.cond.npy, for image to video from the first frame",
			&e.spec.condition},
		{VFM_OPT_FLAG, 0, "last-frame", NULL, "condition and image rows: of the last frame, too",
			&e.spec.last_frame},
		VFM_ENCODER_IMAGE_OPTS(&e.opts),
		{VFM_OPT_STR, 0, "image-exec", "CMD", "the same with -j N children of another model",
			&e.opts.image_exec},
		VFM_EXEC_OPTS(&e.opts.children),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate encode",
		.synopsis = "-d DIR [OPTION ...] [FILE ...]",
		.summary = "turn clips and captions into latents and text embeddings",
		.opts = opts,
		.stage = &(struct vfm_stage_traits){.children = (const char *const[]){"exec", "text-exec", "text2-exec",
							    "image-exec", NULL},
			.models = (const char *const[]){"vae", "text-encoder", "image-encoder", NULL}},
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	TRY(check_encode_opts(&e, err));
	if (e.spec.bucket_size || e.spec.bucket_frames)
		reads[sizeof(reads) / sizeof(reads[0]) - 2] = "bucket";
	list_made(&e, made);
	return run_encode(&e, &stage, err);
}
