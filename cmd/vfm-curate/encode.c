/* encode - frames and captions -> latents and text embeddings. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/par.h"
#include "curate.h"
#include "data/encode.h"
#include "data/patch.h"
#include "data/stage.h"

struct encode {
	struct vfm_encode spec;
	struct vfm_textbytes **embedders; /* [jobs] */
	atomic_llong uncaptioned;
};

static int encode_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct encode *e = ctx;

	(void)out;
	TRY(vfm_encode_media(rec, &e->spec, err));
	if (!json_is_string(json_object_get(rec, "caption")) && !json_is_object(json_object_get(rec, "caption")))
		atomic_fetch_add(&e->uncaptioned, 1);
	return vfm_encode_text(rec, e->embedders[worker], e->spec.dir, err);
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

static int check_encode_opts(
	struct encode *e, const char *size, const char *tokenizer, int64_t frames, struct vfm_err *err)
{
	struct vfm_geometry geometry;
	int32_t unit[2];

	if (!e->spec.dir)
		return vfm_fail(err, VFM_EUSAGE, "-d DIR is missing: where the latents go");
	if (frames < 0 || e->spec.fps < 0 || e->spec.fps > 1000)
		return vfm_fail(err, VFM_EUSAGE, "--frames, --fps: expected a number from 1, a rate up to 1000");
	e->spec.frames = frames;
	TRY(vfm_tokenizer_parse(&e->spec.tokenizer, tokenizer, err));
	geometry = vfm_tokenizer_maker(&e->spec.tokenizer).geometry;
	vfm_geometry_multiple(&geometry, e->spec.patch, unit);
	if (size)
		TRY(curate_parse_size(size, unit[1], unit[0], &e->spec.width, &e->spec.height, err));
	return vfm_mkdir_p(e->spec.dir, err);
}

/* The options that change latents and texts besides the makers (data/stage.h). */
static char *encode_options(const struct vfm_encode *e)
{
	return vfm_strfmt("patch %dx%dx%d size %dx%d frames %lld fps %.17g", e->patch[0], e->patch[1], e->patch[2],
		e->width, e->height, (long long)e->frames, e->fps);
}

static int run_encode(struct encode *e, struct vfm_stage *stage, const char *text, struct vfm_err *err)
{
	int64_t jobs = stage->opts.jobs < 1 ? 1 : stage->opts.jobs > 256 ? 256 : stage->opts.jobs;
	struct vfm_makers makers;
	char *options = NULL;
	json_t *maker = NULL;
	int rc = 0;

	e->spec.threads = jobs > 1 ? 1 : vfm_par_threads();
	e->embedders = vfm_calloc((size_t)jobs, sizeof(e->embedders[0]));
	for (int64_t i = 0; i < jobs && rc >= 0; i++)
		rc = vfm_textbytes_new(&e->embedders[i], text, err);
	if (rc >= 0) {
		makers.tokenizer = vfm_tokenizer_maker(&e->spec.tokenizer);
		makers.text = vfm_textbytes_maker(e->embedders[0]);
		stage->options = options = encode_options(&e->spec);
		stage->maker = maker = vfm_makers_json(&makers);
		rc = vfm_stage_run(stage, NULL, err);
	}
	if (atomic_load(&e->uncaptioned))
		vfm_info("%lld records have no caption and get the embedding of an empty caption",
			(long long)atomic_load(&e->uncaptioned));
	for (int64_t i = 0; i < jobs; i++)
		vfm_textbytes_free(e->embedders[i]);
	free(e->embedders);
	free(options);
	json_decref(maker);
	return rc;
}

int curate_encode(int argc, char **argv, struct vfm_err *err)
{
	struct encode e = {.spec = {.timeout_s = 3600}};
	static const char *const outputs[] = {"latent", "text", NULL}, *const sets[] = {"latent", "text", NULL},
				 *const reads[] = {"id", "src", "kind", "start_frame", "end_frame", "start_pts", "fps",
					 "caption", NULL};
	struct vfm_stage stage = {.name = "encode",
		.fn = encode_record,
		.ctx = &e,
		.unique_ids = true,
		.outputs = outputs,
		.reads = reads,
		.sets = sets};
	const char *tokenizer = "wavelet", *text = "bytes", *size = NULL, *patch = "1x2x2";
	int64_t frames = 0;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'd', "dir", "DIR", "write ID.latent.npy and ID.text.npy into DIR", &e.spec.dir},
		{VFM_OPT_STR, 0, "tokenizer", "NAME", "wavelet or wavelet:CHANNELS (default wavelet:16)", &tokenizer},
		{VFM_OPT_STR, 0, "text", "NAME", "bytes or bytes:DIM (default bytes:1024)", &text},
		{VFM_OPT_STR, 0, "size", "WxH", "scale to cover W x H and crop the middle; multiples of stride x patch",
			&size},
		{VFM_OPT_STR, 0, "patch", "TxHxW", "patch size of the models to train, in latent cells (1x2x2)",
			&patch},
		{VFM_OPT_INT, 0, "frames", "N", "take at most N frames of a clip", &frames},
		{VFM_OPT_NUM, 0, "fps", "X", "take X frames a second (default: every frame)", &e.spec.fps},
		{VFM_OPT_NUM, 0, "timeout", "SECONDS", "give up on a clip after so long (default 3600)",
			&e.spec.timeout_s},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate encode",
		.synopsis = "-d DIR [--tokenizer NAME] [--text NAME] [--size WxH] [--patch TxHxW] [--frames N] [--fps "
			    "X] [--timeout "
			    "SECONDS] " VFM_STAGE_SYNOPSIS " [FILE ...]",
		.summary = "turn clips and captions into latents and text embeddings",
		.opts = opts,
	};
	int rc = vfm_opt_parse(&cmd, argc, argv, &stage.n_files, err);

	if (rc == VFM_OPT_DONE)
		return rc;
	if (rc == 0)
		rc = vfm_timeout_check(e.spec.timeout_s, err);
	if (rc == 0)
		rc = vfm_patch_parse(patch, e.spec.patch, err) < 0 ? vfm_err_context(err, "--patch") : 0;
	if (rc == 0)
		rc = check_encode_opts(&e, size, tokenizer, frames, err);
	if (rc >= 0) {
		stage.files = argv + 1;
		rc = run_encode(&e, &stage, text, err);
	}
	return rc;
}
