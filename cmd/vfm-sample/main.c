/* vfm-sample: checkpoint + prompts -> videos. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "io/file.h"
#include "io/version.h"
#include "sample.h"
#include "train/step/state.h"

/* The device bytes of Wan's decoder at 480x832 (vfm-encoders(7)), for --offload-weights auto. */
#define DECODER_BYTES 0x1p32

static struct sample_opts o = {
	.net = {.part = "ema", .dtype = "fp32"},
	.sampling = {.prompt = {.negative = ""},
		.encoder = {.decodes = true,
			.f32 = true,
			.text_options = "--text-encoder and --text-exec",
			VFM_ENCODER_DEFAULTS},
		.context = 4096},
	.format = "mp4",
};
static struct vfm_sampling_opts *const so = &o.sampling;
static const char *size, *fps = "8", *interval;
static double shift = NAN, guidance = NAN, shift_terminal = NAN, boundary = NAN, sigma_min = NAN, sigma_max = NAN;
static int64_t order = VFM_UNSET;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "ckpt", "PATH", "checkpoint, or a run: its newest", &o.net.ckpt, .required = true},
	{VFM_OPT_WORD, 0, "part", "ema|model", "averaged or last weights (ema if the checkpoint has it)", &o.net.part},
	{VFM_OPT_LIST, 'p', "prompt", "TEXT", "what to show; may be repeated; '' is the null text", &o.prompts},
	{VFM_OPT_STR, 0, "negative", "TEXT", "negative prompt of the guidance (the null text)",
		&o.sampling.prompt.negative},
	{VFM_OPT_STR, 0, "prompts", "FILE", "prompts: a line each, or JSON (vfm-prompts(5)); - is stdin",
		&o.prompt_file},
	{VFM_OPT_STR, 0, "caption", "NAME", "which of the named captions in FILE is the prompt", &o.caption},
	{VFM_OPT_TEXT, 'o', "output", "FILE",
		"the video: .mp4, .gif, .png; or its latents: .npy; {prompt} and {n} name the files of several prompts",
		&o.out_file},
	{VFM_OPT_TEXT, 'd', "dir", "DIR", "where the videos of many prompts go", &o.out_dir},
	{VFM_OPT_WORD, 0, "format", "mp4|gif|png|npy", "of the files in DIR (mp4)", &o.format},
	{VFM_OPT_INT, 0, "frames", "N", "pictures of a video; 1 makes a still (as in training)",
		&o.sampling.prompt.frames, 1, 65536},
	{VFM_OPT_STR, 0, "size", "WxH", "pixels, multiples of stride x patch (that of the training)", &size},
	{VFM_OPT_STR, 0, "fps", "N[/D]", "of the file (8)", &fps},
	{VFM_OPT_INT, 0, "steps", "N", "sampler steps (32)", &o.sampling.prompt.steps},
	{VFM_OPT_NAME, 0, "sampler", "auto|euler|heun|unipc|dpm++|res", "auto: heun for edm, euler for flow",
		&o.sampling.sampler.solver.kind},
	{VFM_OPT_INT, 0, "order", "N", "of unipc: 1, 2 or 3 (2)", &order},
	{VFM_OPT_NUM, 0, "shift", "X", "flow: shift of the noise levels (that of the training)", &shift, VFM_ABOVE_0,
		HUGE_VAL},
	{VFM_OPT_NUM, 0, "shift-terminal", "X", "flow: stretch the noise levels so that the last is X", &shift_terminal,
		VFM_ABOVE_0, HUGE_VAL},
	{VFM_OPT_NAME, 0, "schedule", "default|diffusers|karras", "flow: noise levels of vfm, of diffusers, or of edm",
		&o.sampling.sampler.solver.schedule},
	{VFM_OPT_NUM, 0, "cfg", "X", "classifier-free guidance scale; 1: none (3)", &o.sampling.prompt.cfg},
	{VFM_OPT_NUM, 0, "cfg-end", "X", "scale of the last step; linear from --cfg (constant)",
		&o.sampling.sampler.cfg_end},
	{VFM_OPT_NUM, 0, "guidance", "X", "guidance scale that a distilled network reads, with --cfg 1 (6)", &guidance,
		0, 1000},
	{VFM_OPT_STR, 0, "cfg-interval", "LO:HI", "noise levels with guidance (all)", &interval},
	{VFM_OPT_FLAG, 0, "split-cfg", NULL, "text and negative text on two groups of ranks", &o.net.split_cfg},
	{VFM_OPT_STR, 0, "low-noise", "PATH", "checkpoint of a second network, for noise below --boundary",
		&o.net.low_noise},
	{VFM_OPT_NUM, 0, "boundary", "T", "noise level t that divides the two networks", &boundary, VFM_ABOVE_0, 1},
	{VFM_OPT_NUM, 0, "low-noise-cfg", "X", "guidance scale of the second network (that of --cfg)",
		&o.sampling.sampler.low_noise_cfg},
	{VFM_OPT_LIST, 0, "lora", "PATH[:SCALE]", "add low-rank adapters to the weights; may be repeated",
		&o.net.lora[0]},
	{VFM_OPT_LIST, 0, "low-noise-lora", "PATH[:SCALE]", "the same for the second network", &o.net.lora[1]},
	{VFM_OPT_FLAG, 0, "skip-missing", NULL, "leave out adapters of layers that the model lacks",
		&o.net.skip_missing},
	{VFM_OPT_INT, 0, "seed", "N", "of the noise (0)", &o.sampling.prompt.seed},
	{VFM_OPT_NUM, 0, "sigma-max", "X", "edm, karras: where sampling starts (80)", &sigma_max},
	{VFM_OPT_NUM, 0, "sigma-min", "X", "edm, karras: the last noise level (0.002)", &sigma_min},
	{VFM_OPT_STR, 0, "tokenizer", "SPEC", "decoder of the latents (wavelet with the model's channels)",
		&o.sampling.encoder.tokenizer},
	{VFM_OPT_STR, 0, "exec", "CMD", "decode with a child: vfm-exec(7)", &o.sampling.encoder.exec},
	{VFM_OPT_STR, 0, "text-exec", "CMD", "embed the prompts with a child", &o.sampling.encoder.text_exec},
	{VFM_OPT_STR, 0, "text2-exec", "CMD", "embed the prompts with a child that is the second text encoder",
		&o.sampling.encoder.text2_exec},
	{VFM_OPT_STR, 0, "image-exec", "CMD", "make the image rows of pictures with a child",
		&o.sampling.encoder.image_exec},
	{VFM_OPT_FLAG, 0, "latents", NULL, "keep the latents too, as .latent.npy next to each video",
		&o.sampling.keep_latents},
	{VFM_OPT_FLAG, 0, "first-frame", NULL,
		"start each video with the first latent frame that its line of --prompts names (latent.path)",
		&o.sampling.first_frame},
	{VFM_OPT_TEXT, 0, "image", "FILE", "start every video with this picture (image to video)",
		&o.sampling.prompt.image},
	{VFM_OPT_TEXT, 0, "last-image", "FILE", "end every video with this picture (first and last frame to video)",
		&o.sampling.prompt.last_image},
	{VFM_OPT_FLAG, 0, "force", NULL, "accept encoders, and ranges of t, that differ from those of the training",
		&o.net.force},
	{VFM_OPT_STR, 0, "dtype", "fp32|bf16", "of matrices and activations (fp32)", &o.net.dtype},
	{VFM_OPT_NAME, 0, "weights", "same|fp8|int8|nf4", "dtype in which weights of blocks are stored (same: --dtype)",
		&o.net.stored},
	{VFM_OPT_STR, 0, "offload-weights", "N|auto",
		"blocks with weights in host memory; auto: as many as memory requires (0)", &o.net.offload},
	{VFM_OPT_SIZE, 0, "context", "N", "tokens that are computed together, guidance included (4096)",
		&o.sampling.context},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE",
		"layout of the ranks: parallel.cp (all ranks), tp, dp, ep, cp_mode, cp_a2a; may be repeated",
		&o.net.set},
	VFM_ENCODER_VAE_OPTS(&o.sampling.encoder),
	VFM_ENCODER_TEXT_OPTS(&o.sampling.encoder),
	VFM_ENCODER_IMAGE_OPTS(&o.sampling.encoder),
	VFM_EXEC_OPTS(&o.sampling.encoder.children),
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
	struct vfm_solver *s = &o.sampling.sampler.solver;

	if (order != VFM_UNSET && s->kind != VFM_SOLVER_UNIPC)
		return vfm_fail(err, VFM_EUSAGE, "--order: it is for --sampler unipc");
	if (order != VFM_UNSET)
		s->order = order;
	s->shift = isnan(shift) ? 0 : shift;
	s->shift_terminal = isnan(shift_terminal) ? 0 : shift_terminal;
	s->sigma_min = isnan(sigma_min) ? s->sigma_min : sigma_min;
	s->sigma_max = isnan(sigma_max) ? s->sigma_max : sigma_max;
	if (interval)
		TRY(parse_interval(interval, so->sampler.cfg_interval, err));
	if (!o.net.low_noise && !isnan(so->sampler.low_noise_cfg))
		return vfm_fail(err, VFM_EUSAGE, "--low-noise-cfg: it needs --low-noise");
	if (!o.net.low_noise && o.net.lora[1].n)
		return vfm_fail(err, VFM_EUSAGE, "--low-noise-lora: it needs --low-noise");
	if (o.net.skip_missing && !o.net.lora[0].n && !o.net.lora[1].n)
		return vfm_fail(err, VFM_EUSAGE, "--skip-missing: it needs --lora");
	if (!o.net.low_noise != isnan(boundary))
		return vfm_fail(err, VFM_EUSAGE, "--low-noise and --boundary need each other");
	so->sampler.boundary = o.net.low_noise ? boundary : 0;
	return 0;
}

/* A run that trains two networks names both. */
static int find_two_networks(struct vfm_err *err)
{
	char *high, *low;
	double at;
	int rc = o.net.low_noise ? 0 : vfm_sample_net_pair(o.net.ckpt, &high, &low, &at, err);

	if (rc <= 0)
		return rc;
	o.net.ckpt = high; /* until the process ends */
	o.net.low_noise = low;
	boundary = isnan(boundary) ? at : boundary;
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
	struct vfm_prompt *p = &so->prompt;

	TRY(find_two_networks(err));
	TRY(check_sampler_options(err));
	TRY(check_output_options(err));
	TRY(vfm_encoder_check_opts(&so->encoder, err));
	if (p->image && so->first_frame)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --image and --first-frame");
	if (o.caption && !o.prompt_file)
		return vfm_fail(err, VFM_EUSAGE, "--caption: it needs --prompts");
	if (p->last_image && !p->image)
		return vfm_fail(err, VFM_EUSAGE, "--last-image: it needs --image");
	if (vfm_encoder_image_option(&so->encoder) && !p->image && !o.prompt_file)
		return vfm_fail(err, VFM_EUSAGE, "%s: it needs --image", vfm_encoder_image_option(&so->encoder));
	if (size && vfm_prompt_size(size, &p->width, &p->height, err) < 0)
		return vfm_err_context(err, "--size");
	TRY(vfm_prompt_rate(fps, &p->fps_num, &p->fps_den, err) < 0 ? vfm_err_context(err, "--fps") : 0);
	so->split_cfg = o.net.split_cfg;
	so->force = o.net.force;
	so->sampler.cfg = p->cfg;
	so->sampler.guidance = isnan(guidance) ? so->sampler.guidance : guidance;
	so->reads_guidance = !isnan(guidance);
	so->sampler.solver.steps = p->steps;
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

/* Warns if pictures are given as first frames to a model that does not say that it was trained with them. */
static void check_first_frames(const struct sample_job *j)
{
	const struct vfm_config *c = &j->net.c;
	const bool masked = vfm_model_given_dim(&c->model) > 0;
	bool given = so->first_frame;

	for (size_t i = 0; i < j->s.n; i++)
		given = given || j->s.v[i].p.image;

	if (given && !masked && !c->model.cond_channels && !(c->diffusion.image_cond > 0) && j->x->job.world->rank == 0)
		vfm_warn("%s does not say that it was trained with given first frames (diffusion.image_cond)",
			o.net.ckpt);
}

/* Local. */
static int open_request(struct sample_job *j, struct vfm_err *err)
{
	const struct vfm_ckpt *ckpt;

	TRY(vfm_sample_net_open(&j->net, &o.net, &so->sampler, j->x->job.world, err));
	ckpt = j->net.of[0].ckpt;
	if ((!isnan(sigma_max) || !isnan(sigma_min)) && j->net.c.diffusion.kind != VFM_EDM &&
		so->sampler.solver.schedule != VFM_SCHEDULE_KARRAS)
		return vfm_fail(err, VFM_EUSAGE,
			"--sigma-%s: it is for edm, and for --schedule karras; this model was trained with flow",
			isnan(sigma_max) ? "min" : "max");
	check_first_frames(j);
	if (isnan(shift) && ckpt->step < 0 && j->net.c.diffusion.kind == VFM_FLOW && j->x->job.world->rank == 0)
		vfm_info("%s does not record the shift of its training; --shift is %g", ckpt->path,
			j->net.c.diffusion.shift);
	TRY(vfm_state_encoders(&j->s.trained, ckpt, err));
	vfm_state_size(j->s.size, ckpt);
	vfm_forced_add(&j->s.forced, json_object_get(ckpt->state, "forced"));
	j->s.trained_by = ckpt->path;
	j->s.c = &j->net.c;
	j->s.leader = j->net.leader;
	j->s.groups = j->net.groups;
	j->s.group = j->net.group;
	return 0;
}

static int print_sample_records(void *ctx, const char *lines, size_t len, struct vfm_err *err)
{
	(void)ctx;
	if (fwrite(lines, 1, len, stdout) == len && fflush(stdout) == 0)
		return 0;
	return vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the records");
}

static int run(struct sample_job *j, struct vfm_err *err)
{
	struct vfm_sampling *s = &j->s;
	int64_t tokens, samples;

	*s = (struct vfm_sampling){
		.o = so, .job = &j->x->job, .device = j->x->opts->device, .print = print_sample_records};
	TRY(vfm_job_agree(s->job, read_request(j, err), err));
	TRY(vfm_sampling_share(s, err));
	TRY(vfm_job_agree(s->job, open_request(j, err), err));
	TRY(vfm_sampling_open(s, err));
	tokens = vfm_sampling_tokens(s, &samples);
	TRY(vfm_sample_net_load(&j->net, tokens, samples, DECODER_BYTES, j->x, err));
	s->net = vfm_sample_net_job(&j->net, j->x);
	s->together = j->net.together;
	return vfm_sampling_run(s, err);
}

static int sample_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct sample_job *j = ctx;
	int rc;

	j->x = x;
	rc = run(j, err);
	vfm_job_failed(&x->job, rc, err);
	vfm_sampling_release(&j->s);
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
	vfm_sampler_defaults(&so->sampler);
	so->prompt.steps = so->sampler.solver.steps;
	so->prompt.cfg = so->sampler.cfg;
	rc = vfm_opt_parse(&cmd, argc, argv, &n, &err);
	if (rc == 0 && n > 0)
		rc = vfm_fail(&err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	if (rc == 0)
		rc = vfm_context_check(&rank_opts, &err);
	rc = rc == 0 ? vfm_context_run(&rank_opts, sample_rank, &j, &err) : vfm_job_say_once(rc, &err);
	json_decref(j.repeats);
	vfm_strlist_release(&o.prompts);
	vfm_strlist_release(&o.net.set);
	return vfm_cmd_exit(rc, &err);
}
