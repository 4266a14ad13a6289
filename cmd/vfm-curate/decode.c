/* decode - latents -> videos, to compare them with the clips. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/file.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "encoder/encode/decode.h"

struct decode_work {
	struct vfm_decode spec;
	int64_t crf;
	struct vfm_encoder_opts opts;
	struct vfm_encoder_set encoders;
	atomic_llong unnamed; /* latents whose encoder is unknown */
};

static int decode_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct decode_work *d = ctx;

	(void)out;
	TRY(vfm_decode_media(rec, &d->spec, worker, err));
	if (!json_is_object(vfm_rec_at(rec, "latent.maker")))
		atomic_fetch_add(&d->unnamed, 1);
	return 0;
}

static int check_decode_opts(struct decode_work *d, struct vfm_err *err)
{
	TRY(vfm_encoder_check_opts(&d->opts, err));
	TRY(curate_check_codec(d->spec.video_codec, err));
	d->spec.crf = (int)d->crf;
	return vfm_mkdir_p(d->spec.dir, err);
}

/* Opens the decoder and sets the number of workers. */
static int open_latent_decoder(struct decode_work *d, struct vfm_stage *stage, struct vfm_err *err)
{
	struct vfm_encoder_opts *o = &d->opts;

	if (!o->exec && !o->vae && !o->tokenizer)
		o->tokenizer = "wavelet";
	o->children.children = stage->opts.jobs;
	TRY(vfm_encoder_open(&d->encoders, o, err));
	stage->threads = vfm_encoder_threads(&d->encoders, stage->opts.jobs);
	d->spec.threads = stage->threads > 1 ? 1 : vfm_par_threads();
	d->spec.encoder = &d->encoders.video;
	return vfm_encoder_make_workers(&d->encoders, stage->threads, err);
}

static int run_decode(struct decode_work *d, struct vfm_stage *stage, struct vfm_err *err)
{
	char *options = NULL;
	struct vfm_encoder_ids ids;
	json_t *models = NULL;
	int rc;

	TRY_OUT(open_latent_decoder(d, stage, err));
	stage->options = options =
		vfm_strfmt("codec %s crf %d%s", d->spec.video_codec, d->spec.crf, d->spec.force ? " force" : "");
	ids = vfm_encoder_set_ids(&d->encoders);
	stage->models = models = vfm_encoder_ids_json(&ids);
	rc = vfm_stage_run(stage, NULL, err);
	if (atomic_load(&d->unnamed))
		vfm_warn("%lld records do not name the tokenizer of their latents; '%s' decoded them",
			(long long)atomic_load(&d->unnamed), d->encoders.video.id.name);
out:
	vfm_encoder_close(&d->encoders);
	free(options);
	json_decref(models);
	return rc;
}

int curate_decode(int argc, char **argv, struct vfm_err *err)
{
	struct decode_work d = {
		.spec = {.video_codec = "h264"}, .crf = 10, .opts = {.decodes = true, VFM_ENCODER_DEFAULTS}};
	static const char *const reads[] = {"id", "kind", "fps", "latent", NULL},
				 *const made[] = {"reconstruction", NULL};
	struct vfm_stage stage = {.name = "decode",
		.fn = decode_record,
		.ctx = &d,
		.unique_ids = true,
		.outputs = made,
		.reads = reads,
		.sets = made};
	struct vfm_opt opts[] = {
		{VFM_OPT_TEXT, 'd', "dir", "DIR", "write ID.mp4, ID.mkv or ID.png into DIR", &d.spec.dir,
			.required = true},
		{VFM_OPT_STR, 0, "tokenizer", "NAME", "wavelet or wavelet:CHANNELS (default wavelet:16)",
			&d.opts.tokenizer},
		{VFM_OPT_STR, 0, "exec", "CMD", "decode with -j N children: vfm-exec(7)", &d.opts.exec},
		{VFM_OPT_STR, 0, "codec", "NAME", "h264, hevc, av1, vp9, mpeg4 or ffv1, lossless (default h264)",
			&d.spec.video_codec},
		{VFM_OPT_INT, 0, "crf", "N", "quality, 0 best to 51 (default 10)", &d.crf, 0, 51},
		{VFM_OPT_FLAG, 0, "force", NULL, "also decode latents of another tokenizer", &d.spec.force},
		VFM_ENCODER_VAE_OPTS(&d.opts),
		{VFM_OPT_STR, 0, "device", "cpu|cuda", "where --vae computes", &d.opts.device},
		VFM_EXEC_OPTS(&d.opts.children),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate decode",
		.synopsis = "-d DIR [OPTION ...] [FILE ...]",
		.summary = "turn latents into videos, to compare them with the clips",
		.opts = opts,
		.stage = &(struct vfm_stage_traits){.children = (const char *const[]){"exec", NULL},
			.models = (const char *const[]){"vae", NULL}},
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	TRY(check_decode_opts(&d, err));
	return run_decode(&d, &stage, err);
}
