/* vfm-sample: checkpoint + prompts -> videos. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "io/file.h"
#include "io/version.h"
#include "sample.h"

static struct sample_opts o = {
	.net = {.part = "ema", .dtype = "fp32"},
	.encoder = {.decodes = true,
		.f32 = true,
		.text_options = "--text-encoder and --text-exec",
		VFM_ENCODER_DEFAULTS},
	.format = "mp4",
	.negative = "",
	.frames = SAMPLE_NOT_GIVEN,
	.context = 4096,
};
static const char *size, *fps = "8", *interval;
static double shift = NAN, shift_terminal = NAN, boundary = NAN, sigma_max = NAN;
static int64_t order = SAMPLE_NOT_GIVEN;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "ckpt", "PATH", "checkpoint, or a run: its newest", &o.net.ckpt, .required = true},
	{VFM_OPT_WORD, 0, "part", "ema|model", "averaged or last weights (ema if the checkpoint has it)", &o.net.part},
	{VFM_OPT_LIST, 'p', "prompt", "TEXT", "what to show; may be repeated; '' is the null text", &o.prompts},
	{VFM_OPT_STR, 0, "negative", "TEXT", "negative prompt of the guidance (the null text)", &o.negative},
	{VFM_OPT_STR, 0, "prompts", "FILE", "JSON Lines with \"caption\" and perhaps \"negative\"; - is stdin",
		&o.prompt_file},
	{VFM_OPT_STR, 0, "caption", "NAME", "which of the named captions in FILE is the prompt", &o.caption},
	{VFM_OPT_TEXT, 'o', "output", "FILE",
		"the video: .mp4, .gif, .png; or its latents: .npy; {prompt} and {n} name the files of several prompts",
		&o.out_file},
	{VFM_OPT_TEXT, 'd', "dir", "DIR", "where the videos of many prompts go", &o.out_dir},
	{VFM_OPT_WORD, 0, "format", "mp4|gif|png|npy", "of the files in DIR (mp4)", &o.format},
	{VFM_OPT_INT, 0, "frames", "N", "pictures of a video; 1 makes a still (16, or what the tokenizer takes)",
		&o.frames, 1, 65536},
	{VFM_OPT_STR, 0, "size", "WxH", "pixels, multiples of stride x patch (128x128)", &size},
	{VFM_OPT_STR, 0, "fps", "N[/D]", "of the file (8)", &fps},
	{VFM_OPT_INT, 0, "steps", "N", "sampler steps (32)", &o.sampler.solver.steps},
	{VFM_OPT_NAME, 0, "sampler", "auto|euler|heun|unipc|dpm++|res", "auto: heun for edm, euler for flow",
		&o.sampler.solver.kind},
	{VFM_OPT_INT, 0, "order", "N", "of unipc: 1, 2 or 3 (2)", &order},
	{VFM_OPT_NUM, 0, "shift", "X", "flow: shift of the noise levels (that of the training)", &shift, VFM_ABOVE_0,
		HUGE_VAL},
	{VFM_OPT_NUM, 0, "shift-terminal", "X", "flow: stretch the noise levels so that the last is X", &shift_terminal,
		VFM_ABOVE_0, HUGE_VAL},
	{VFM_OPT_NAME, 0, "schedule", "default|diffusers", "flow: noise levels of vfm, or those of diffusers",
		&o.sampler.solver.schedule},
	{VFM_OPT_NUM, 0, "cfg", "X", "classifier-free guidance scale; 1: none (3)", &o.sampler.cfg},
	{VFM_OPT_NUM, 0, "cfg-end", "X", "scale of the last step; linear from --cfg (constant)", &o.sampler.cfg_end},
	{VFM_OPT_STR, 0, "cfg-interval", "LO:HI", "noise levels with guidance (all)", &interval},
	{VFM_OPT_FLAG, 0, "split-cfg", NULL, "text and negative text on two groups of ranks", &o.net.split_cfg},
	{VFM_OPT_STR, 0, "low-noise", "PATH", "checkpoint of a second network, for noise below --boundary",
		&o.net.low_noise},
	{VFM_OPT_NUM, 0, "boundary", "T", "noise level t that divides the two networks", &boundary, VFM_ABOVE_0, 1},
	{VFM_OPT_NUM, 0, "low-noise-cfg", "X", "guidance scale of the second network (that of --cfg)",
		&o.sampler.low_noise_cfg},
	{VFM_OPT_LIST, 0, "lora", "PATH[:SCALE]", "add low-rank adapters to the weights; may be repeated",
		&o.net.lora[0]},
	{VFM_OPT_LIST, 0, "low-noise-lora", "PATH[:SCALE]", "the same for the second network", &o.net.lora[1]},
	{VFM_OPT_FLAG, 0, "skip-missing", NULL, "leave out adapters of layers that the model lacks",
		&o.net.skip_missing},
	{VFM_OPT_INT, 0, "seed", "N", "of the noise (0)", &o.seed},
	{VFM_OPT_NUM, 0, "sigma-max", "X", "edm: where sampling starts (80)", &sigma_max},
	{VFM_OPT_STR, 0, "tokenizer", "SPEC", "decoder of the latents (wavelet with the model's channels)",
		&o.encoder.tokenizer},
	{VFM_OPT_STR, 0, "exec", "CMD", "decode with a child: vfm-exec(7)", &o.encoder.exec},
	{VFM_OPT_STR, 0, "text-exec", "CMD", "embed the prompts with a child", &o.encoder.text_exec},
	{VFM_OPT_STR, 0, "image-exec", "CMD", "encode the picture of --image to image rows with a child",
		&o.encoder.image_exec},
	{VFM_OPT_FLAG, 0, "latents", NULL, "keep the latents too, as .latent.npy next to each video", &o.keep_latents},
	{VFM_OPT_FLAG, 0, "first-frame", NULL,
		"start each video with the first latent frame that its line of --prompts names (latent.path)",
		&o.first_frame},
	{VFM_OPT_TEXT, 0, "image", "FILE", "start every video with this picture (image to video)", &o.image},
	{VFM_OPT_TEXT, 0, "last-image", "FILE", "end every video with this picture (first and last frame to video)",
		&o.last_image},
	{VFM_OPT_FLAG, 0, "force", NULL, "accept encoders, and ranges of t, that differ from those of the training",
		&o.net.force},
	{VFM_OPT_STR, 0, "dtype", "fp32|bf16", "of matrices and activations (fp32)", &o.net.dtype},
	{VFM_OPT_SIZE, 0, "context", "N", "tokens that are computed together, guidance included (4096)", &o.context},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE",
		"layout of the ranks: parallel.cp (all ranks), tp, dp, ep, cp_mode, cp_a2a; may be repeated",
		&o.net.set},
	VFM_ENCODER_VAE_OPTS(&o.encoder),
	VFM_ENCODER_TEXT_OPTS(&o.encoder),
	VFM_EXEC_OPTS(&o.encoder.children),
	VFM_CONTEXT_OPTS(&rank_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-sample",
	.example = "vfm-sample --ckpt run -p 'a red square moves left' -o red.mp4",
	.synopsis = "[OPTION ...] --ckpt PATH -p TEXT -o FILE\n"
		    "[OPTION ...] --ckpt PATH [-p TEXT ...] [--prompts FILE] -d DIR | -o FILE",
	.summary = "sample videos from a trained model",
	.opts = opts,
};

/* ---- options ---- */

static int parse_pair(const char *text, char sep, int64_t max, int *a, int *b, int b_default, struct vfm_err *err)
{
	char buf[32], *second;
	int64_t x, y = b_default;

	snprintf(buf, sizeof(buf), "%s", text);
	second = strchr(buf, sep);
	if (second)
		*second++ = '\0';
	TRY(vfm_parse_i64(buf, 1, max, &x, err));
	if (second || b_default == 0)
		TRY(vfm_parse_i64(second ? second : "", 1, max, &y, err));
	*a = (int)x;
	*b = (int)y;
	return 0;
}

/* Parses "LO:HI"; an empty HI is infinity. */
static int parse_interval(const char *text, double interval_of[2], struct vfm_err *err)
{
	char buf[64], *second;

	snprintf(buf, sizeof(buf), "%s", text);
	second = strchr(buf, ':');
	if (!second)
		return vfm_fail(err, VFM_EUSAGE, "--cfg-interval: expected LO:HI, got '%s'", text);
	*second++ = '\0';
	if (vfm_parse_f64(*buf ? buf : "0", &interval_of[0], err) < 0 ||
		(*second && vfm_parse_f64(second, &interval_of[1], err) < 0))
		return vfm_err_context(err, "--cfg-interval");
	return 0;
}

static int check_sampler_options(struct vfm_err *err)
{
	struct vfm_solver *s = &o.sampler.solver;

	if (order != SAMPLE_NOT_GIVEN && s->kind != VFM_SOLVER_UNIPC)
		return vfm_fail(err, VFM_EUSAGE, "--order: it is for --sampler unipc");
	if (order != SAMPLE_NOT_GIVEN)
		s->order = order;
	s->shift = isnan(shift) ? 0 : shift;
	s->shift_terminal = isnan(shift_terminal) ? 0 : shift_terminal;
	s->sigma_max = isnan(sigma_max) ? s->sigma_max : sigma_max;
	if (interval)
		TRY(parse_interval(interval, o.sampler.cfg_interval, err));
	if (!o.net.low_noise && !isnan(o.sampler.low_noise_cfg))
		return vfm_fail(err, VFM_EUSAGE, "--low-noise-cfg: it needs --low-noise");
	if (!o.net.low_noise && o.net.lora[1].n)
		return vfm_fail(err, VFM_EUSAGE, "--low-noise-lora: it needs --low-noise");
	if (o.net.skip_missing && !o.net.lora[0].n && !o.net.lora[1].n)
		return vfm_fail(err, VFM_EUSAGE, "--skip-missing: it needs --lora");
	if (!o.net.low_noise != isnan(boundary))
		return vfm_fail(err, VFM_EUSAGE, "--low-noise and --boundary need each other");
	o.sampler.boundary = o.net.low_noise ? boundary : 0;
	return 0;
}

static int check_output_options(struct vfm_err *err)
{
	static const char *const endings[] = {".mp4", ".gif", ".png", ".npy"};
	bool known = !o.out_file;

	if (!o.out_file == !o.out_dir)
		return vfm_fail(err, VFM_EUSAGE, "expected one of -o FILE and -d DIR");
	for (int i = 0; i < 4 && !known; i++)
		known = vfm_name_ends(o.out_file, endings[i]);
	return known ? 0
		     : vfm_fail(err, VFM_EUSAGE, "--output: '%s' should end in .mp4, .gif, .png or .npy", o.out_file);
}

static int check_sample_options(struct vfm_err *err)
{
	TRY(check_sampler_options(err));
	TRY(check_output_options(err));
	TRY(vfm_encoder_check_opts(&o.encoder, err));
	if (o.image && o.first_frame)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --image and --first-frame");
	if (o.caption && !o.prompt_file)
		return vfm_fail(err, VFM_EUSAGE, "--caption: it needs --prompts");
	if (o.last_image && !o.image)
		return vfm_fail(err, VFM_EUSAGE, "--last-image: it needs --image");
	if (o.encoder.image_exec && !o.image)
		return vfm_fail(err, VFM_EUSAGE, "--image-exec: it needs --image");
	if (size && parse_pair(size, 'x', 16384, &o.width, &o.height, 0, err) < 0)
		return vfm_err_context(err, "--size");
	TRY(parse_pair(fps, '/', 100000, &o.fps_num, &o.fps_den, 1, err) < 0 ? vfm_err_context(err, "--fps") : 0);
	o.sampler.seed = (uint64_t)o.seed;
	return 0;
}

/* ---- the run ---- */

static int make_output_folder(struct vfm_err *err)
{
	char *folder;
	int rc;

	if (o.out_file && !items_has_template(o.out_file))
		return 0;
	folder = o.out_dir ? vfm_strdup(o.out_dir) : vfm_dir_of(o.out_file);
	rc = vfm_mkdir_p(folder, err);
	free(folder);
	return rc < 0 ? rc : 0;
}

static int read_request(struct sample_job *j, struct vfm_err *err)
{
	TRY(check_sample_options(err));
	if (j->x->job.world->rank > 0)
		return 0;
	TRY(items_collect(j, err));
	return make_output_folder(err);
}

/* Local. */
static int open_request(struct sample_job *j, struct vfm_err *err)
{
	TRY(vfm_sample_net_open(&j->net, &o.net, &o.sampler, j->x->job.world, err));
	if (!isnan(sigma_max) && j->net.c.diffusion.kind != VFM_EDM)
		return vfm_fail(err, VFM_EUSAGE, "--sigma-max: it is for edm; this model was trained with flow");
	if ((o.image || o.first_frame) && !j->net.c.model.cond_channels && !(j->net.c.diffusion.image_cond > 0) &&
		j->x->job.world->rank == 0)
		vfm_warn("%s does not say that it was trained with given first frames (diffusion.image_cond)",
			o.net.ckpt);
	TRY(check_given(j, err));
	return open_sample_encoders(j, err);
}

static int run(struct sample_job *j, struct vfm_err *err)
{
	TRY(vfm_job_agree(&j->x->job, read_request(j, err), err));
	TRY(items_share(j, err));
	TRY(vfm_job_agree(&j->x->job, open_request(j, err), err));
	TRY(choose_sample_encoders(j, err));
	TRY(picture_load(j, err));
	TRY(vfm_sample_net_load(&j->net, j->x, err));
	return sample_all(j, err);
}

static int sample_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct sample_job *j = ctx;
	int rc;

	j->x = x;
	rc = run(j, err);
	vfm_job_failed(&x->job, rc, err);
	json_decref(j->forced);
	vfm_encoder_close(&j->encoders);
	picture_release(&j->picture);
	vfm_buf_release(&j->records);
	free(j->passes);
	vfm_sample_net_release(&j->net);
	return rc;
}

int main(int argc, char **argv)
{
	struct vfm_err err = {0};
	struct sample_job j = {.o = &o};
	int rc, n;

	vfm_cmd_init(argv[0]);
	vfm_version_more = vfm_device_features;
	vfm_sampler_defaults(&o.sampler);
	rc = vfm_opt_parse(&cmd, argc, argv, &n, &err);
	if (rc == 0 && n > 0)
		rc = vfm_fail(&err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	if (rc == 0)
		rc = vfm_context_check(&rank_opts, &err);
	rc = rc == 0 ? vfm_context_run(&rank_opts, sample_rank, &j, &err) : vfm_job_say_once(rc, &err);
	items_release(&j.items);
	vfm_strlist_release(&o.prompts);
	vfm_strlist_release(&o.net.set);
	return vfm_cmd_exit(rc, &err);
}
