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
#include "data/record/stage.h"
#include "encoder/encode/decode.h"
#include "encoder/encode/encoders.h"

struct decode_work {
	struct vfm_decode spec;
	struct vfm_codec codec;
	const char *tokenizer, *exec; /* as given; NULL: not */
	int64_t crf;
	struct vfm_exec_opts exec_opts;
	struct vfm_encoders_opts native_opts;
	struct vfm_encoders *native;
	atomic_llong unnamed; /* latents whose maker is unknown */
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
	if (!d->spec.dir)
		return vfm_fail(err, VFM_EUSAGE, "-d DIR is missing: where the videos go");
	if (!!d->exec + !!d->tokenizer + !!d->native_opts.vae > 1)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --tokenizer, --vae and --exec");
	TRY(vfm_encoders_refuse_opts(&d->native_opts, err));
	if (d->native_opts.device && !d->native_opts.vae)
		return vfm_fail(err, VFM_EUSAGE, "--device: it needs --vae");
	if (!d->exec)
		TRY(vfm_exec_refuse_opts(&d->exec_opts, "--exec CMD", err));
	TRY(curate_check_codec(d->spec.video_codec, d->crf, err));
	d->spec.crf = (int)d->crf;
	return vfm_mkdir_p(d->spec.dir, err);
}

/* Opens the decoder and sets the number of workers. */
static int open_latent_decoder(struct decode_work *d, struct vfm_stage *stage, struct vfm_err *err)
{
	const int64_t jobs = stage->opts.jobs ? stage->opts.jobs : 1;
	const int cpus = vfm_par_threads();

	stage->threads = (int)jobs;
	if (d->native_opts.vae) {
		TRY(curate_local_rank(&d->native_opts.local_rank, err));
		d->native_opts.decode_only = true;
		TRY(vfm_encoders_open(&d->native, &d->native_opts, err));
		d->codec.video = vfm_encoders_video(d->native);
		if (!stage->opts.jobs)
			stage->threads = CURATE_NATIVE_JOBS;
	} else {
		d->exec_opts.children = jobs;
		TRY(vfm_codec_open_decoder(
			&d->codec, d->tokenizer ? d->tokenizer : "wavelet", d->exec, &d->exec_opts, err));
	}
	if (d->codec.exec) {
		TRY(vfm_exec_wait(d->codec.exec, err));
		stage->threads = vfm_exec_threads(d->codec.exec, cpus);
		vfm_exec_make_slots(d->codec.exec, stage->threads);
	}
	d->spec.threads = stage->threads > 1 ? 1 : cpus;
	d->spec.codec = &d->codec;
	d->spec.maker = vfm_codec_tokenizer(&d->codec);
	return 0;
}

static int run_decode(struct decode_work *d, struct vfm_stage *stage, struct vfm_err *err)
{
	char *options = NULL;
	json_t *maker = NULL;
	int rc;

	TRY_OUT(open_latent_decoder(d, stage, err));
	stage->options = options =
		vfm_strfmt("codec %s crf %d%s", d->spec.video_codec, d->spec.crf, d->spec.force ? " force" : "");
	stage->maker = maker = vfm_makers_json(&(struct vfm_makers){.tokenizer = d->spec.maker});
	rc = vfm_stage_run(stage, NULL, err);
	if (atomic_load(&d->unnamed))
		vfm_warn("%lld records do not name the tokenizer of their latents; '%s' decoded them",
			(long long)atomic_load(&d->unnamed), d->spec.maker.name);
out:
	vfm_codec_release(&d->codec);
	vfm_encoders_close(d->native);
	free(options);
	json_decref(maker);
	return rc;
}

int curate_decode(int argc, char **argv, struct vfm_err *err)
{
	struct decode_work d = {.spec = {.video_codec = "h264"},
		.crf = 10,
		.exec_opts = VFM_EXEC_DEFAULTS,
		.native_opts = VFM_ENCODERS_DEFAULTS};
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
		{VFM_OPT_TEXT, 'd', "dir", "DIR", "write ID.mp4, ID.mkv or ID.png into DIR", &d.spec.dir},
		{VFM_OPT_STR, 0, "tokenizer", "NAME", "wavelet or wavelet:CHANNELS (default wavelet:16)", &d.tokenizer},
		{VFM_OPT_STR, 0, "exec", "CMD", "decode with -j N children: vfm-exec(7)", &d.exec},
		{VFM_OPT_STR, 0, "codec", "NAME", "h264, hevc, av1, vp9, mpeg4 or ffv1, lossless (default h264)",
			&d.spec.video_codec},
		{VFM_OPT_INT, 0, "crf", "N", "quality, 0 best to 51 (default 10)", &d.crf},
		{VFM_OPT_FLAG, 0, "force", NULL, "also decode latents of another tokenizer", &d.spec.force},
		VFM_ENCODERS_VAE_OPTS(&d.native_opts),
		{VFM_OPT_STR, 0, "device", "cpu|cuda", "where --vae computes", &d.native_opts.device},
		VFM_EXEC_OPTS(&d.exec_opts),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate decode",
		.synopsis = "-d DIR [--tokenizer NAME | --vae PATH | --exec CMD] [--codec NAME] [--crf N] "
			    "[--force] " VFM_ENCODERS_VAE_SYNOPSIS " [--device NAME] " VFM_EXEC_SYNOPSIS
			    " " VFM_STAGE_SYNOPSIS " [FILE ...]",
		.summary = "turn latents into videos, to compare them with the clips",
		.opts = opts,
		.stage = &(struct vfm_stage_traits){.children = (const char *const[]){"exec", NULL},
			.models = (const char *const[]){"vae", NULL}},
	};
	int rc = vfm_opt_parse(&cmd, argc, argv, &stage.n_files, err);

	if (rc == VFM_OPT_DONE)
		return rc;
	if (rc == 0)
		rc = check_decode_opts(&d, err);
	if (rc >= 0) {
		stage.files = argv + 1;
		rc = run_decode(&d, &stage, err);
	}
	return rc;
}
