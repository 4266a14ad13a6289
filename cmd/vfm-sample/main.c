/* vfm-sample: checkpoint + prompts -> videos. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/opt.h"
#include "data/codec.h"
#include "data/encode.h"
#include "data/npy.h"
#include "data/patch.h"
#include "media/video_out.h"
#include "model/sampler.h"
#include "items.h"
#include "train/context.h"
#include "train/state.h"

static const char *ckpt_path, *part = "ema", *out_file, *out_dir, *prompt_file, *size, *sampler = "auto", *fps = "8",
			      *dtype = "fp32", *tokenizer, *format = "mp4", *negative = "", *caption_name,
			      *exec_command, *text_command;
static struct vfm_strlist prompts, sets;
static int64_t frames = INT64_MIN, context = 4096; /* INT64_MIN: not given */
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static struct vfm_sampler sampling;
static struct vfm_exec_opts exec_opts = VFM_EXEC_DEFAULTS;
static bool force, keep_latents;

static int64_t seed;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "ckpt", "PATH", "checkpoint, or a run: its newest", &ckpt_path},
	{VFM_OPT_STR, 0, "part", "ema|model", "averaged or last weights (ema if the checkpoint has it)", &part},
	{VFM_OPT_LIST, 'p', "prompt", "TEXT", "what to show; may be repeated; '' is the null text", &prompts},
	{VFM_OPT_STR, 0, "negative", "TEXT", "negative prompt of the guidance (the null text)", &negative},
	{VFM_OPT_STR, 0, "prompts", "FILE", "JSON Lines with \"caption\" and perhaps \"negative\"; - is stdin",
		&prompt_file},
	{VFM_OPT_STR, 0, "caption", "NAME", "which of the named captions in FILE is the prompt", &caption_name},
	{VFM_OPT_STR, 'o', "out", "FILE", "the video of a single prompt: .mp4, .gif, .png; or its latents: .npy",
		&out_file},
	{VFM_OPT_STR, 'd', "dir", "DIR", "where the videos of many prompts go", &out_dir},
	{VFM_OPT_STR, 0, "format", "mp4|gif|png|npy", "of the files in DIR (mp4)", &format},
	{VFM_OPT_INT, 0, "frames", "N", "pictures of a video; 1 makes a still (16, or what the tokenizer takes)",
		&frames},
	{VFM_OPT_STR, 0, "size", "WxH", "pixels, multiples of stride x patch (128x128)", &size},
	{VFM_OPT_STR, 0, "fps", "N[/D]", "of the file (8)", &fps},
	{VFM_OPT_INT, 0, "steps", "N", "sampler steps (32)", &sampling.steps},
	{VFM_OPT_STR, 0, "sampler", "auto|heun|euler", "auto: heun for edm, euler for flow", &sampler},
	{VFM_OPT_NUM, 0, "cfg", "X", "classifier-free guidance scale; 1: none (3)", &sampling.cfg},
	{VFM_OPT_INT, 0, "seed", "N", "of the noise (0)", &seed},
	{VFM_OPT_NUM, 0, "sigma-max", "X", "edm: where sampling starts (80)", &sampling.sigma_max},
	{VFM_OPT_STR, 0, "tokenizer", "SPEC", "decoder of the latents (wavelet with the model's channels)", &tokenizer},
	{VFM_OPT_STR, 0, "exec", "CMD", "decode with a child: vfm-exec(7)", &exec_command},
	{VFM_OPT_STR, 0, "text-exec", "CMD", "embed the prompts with a child", &text_command},
	{VFM_OPT_FLAG, 0, "latents", NULL, "keep the latents too, as .latent.npy beside each video", &keep_latents},
	{VFM_OPT_FLAG, 0, "force", NULL,
		"accept a tokenizer and text encoder that differ from those of the training data", &force},
	{VFM_OPT_STR, 0, "dtype", "fp32|bf16", "of matrices and activations (fp32)", &dtype},
	{VFM_OPT_SIZE, 0, "context", "N", "tokens that are computed together, guidance included (4096)", &context},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE",
		"layout of the ranks: parallel.cp (all ranks), tp, dp, ep, cp_mode, cp_a2a; may be repeated", &sets},
	VFM_EXEC_OPTS(&exec_opts),
	VFM_CONTEXT_OPTS(&rank_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-sample",
	.synopsis = "[OPTION ...] --ckpt PATH -p TEXT -o FILE\n"
		    "[OPTION ...] --ckpt PATH [-p TEXT ...] [--prompts FILE] -d DIR",
	.summary = "sample videos from a trained model",
	.opts = opts,
};

enum { MAX_TOKENS = 1 << 24, DEFAULT_FRAMES = 16, DEFAULT_SIDE = 128 }; /* of a video */

struct job {
	struct items items;
	int width, height, fps_num, fps_den;
	struct vfm_makers makers;     /* the tokenizer of the latents, the text encoder of the prompts; or unknown */
	struct vfm_geometry geometry; /* of the tokenizer that decodes, or of that of the training data for .npy */
	int32_t dims[3];              /* of a latent: t, h, w */
	struct vfm_config c;
	struct vfm_context *x;
	struct vfm_params ps;
	struct vfm_model *net;
	struct vfm_codec codec;    /* of a leader */
	bool leader;               /* the first rank of those that sample together: it has the codec and writes files */
	struct vfm_comm *together; /* these ranks, host memory */
	struct vfm_buf records;    /* lines of this rank that are not printed yet */
	bool logged_cut;           /* whether a note about a prompt longer than model.text_len was printed */
	json_t *forced;            /* differences of encoders that were accepted (data/maker.h); NULL: none */
	struct vfm_progress progress;
	int64_t evals;  /* network evaluations shown as progress */
	int64_t failed; /* videos without a file, of this rank */
};

/* ---- options ---- */

static bool ends_with(const char *s, const char *ending)
{
	size_t n = strlen(s), m = strlen(ending);

	return n > m && !strcasecmp(s + n - m, ending);
}

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

static int check_sample_options(struct job *j, struct vfm_err *err)
{
	static const char *const kinds[] = {"auto", "heun", "euler"},
				 *const endings[] = {".mp4", ".gif", ".png", ".npy"};
	bool known = false;

	for (int i = 0; i < 3; i++) {
		if (!strcmp(sampler, kinds[i])) {
			sampling.kind = i;
			known = true;
		}
	}
	if (!known)
		return vfm_fail(err, VFM_EUSAGE, "--sampler: expected auto, heun or euler, got '%s'", sampler);
	if (strcmp(part, "ema") != 0 && strcmp(part, "model") != 0)
		return vfm_fail(err, VFM_EUSAGE, "--part: expected ema or model, got '%s'", part);
	if (!ckpt_path)
		return vfm_fail(err, VFM_EUSAGE, "--ckpt PATH is missing (see vfm-sample -h)");
	if (!out_file == !out_dir)
		return vfm_fail(err, VFM_EUSAGE, "expected one of -o FILE and -d DIR");
	known = !out_file;
	for (int i = 0; i < 4 && !known; i++)
		known = ends_with(out_file, endings[i]);
	if (!known)
		return vfm_fail(err, VFM_EUSAGE, "--out: '%s' should end in .mp4, .gif, .png or .npy", out_file);
	known = false;
	for (int i = 0; i < 4; i++)
		known = known || !strcmp(format, endings[i] + 1);
	if (!known)
		return vfm_fail(err, VFM_EUSAGE, "--format: expected mp4, gif, png or npy, got '%s'", format);
	if (exec_command && tokenizer)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --tokenizer and --exec");
	if (caption_name && !prompt_file)
		return vfm_fail(err, VFM_EUSAGE, "--caption: it needs --prompts");
	if (!exec_command && !text_command)
		TRY(vfm_exec_refuse_opts(&exec_opts, "--exec CMD or --text-exec CMD", err));
	if (frames != INT64_MIN && (frames < 1 || frames > 65536))
		return vfm_fail(err, VFM_EUSAGE, "--frames: expected 1 to 65536, got %lld", (long long)frames);
	if (size && parse_pair(size, 'x', 16384, &j->width, &j->height, 0, err) < 0)
		return vfm_err_context(err, "--size");
	TRY(parse_pair(fps, '/', 100000, &j->fps_num, &j->fps_den, 1, err) < 0 ? vfm_err_context(err, "--fps") : 0);
	sampling.seed = (uint64_t)seed;
	return 0;
}

/* ---- the model ---- */

/* Sets the parallel layout from --set.  Ignores the layout of the training. */
static int configure_ranks(struct job *j, struct vfm_err *err)
{
	struct vfm_parallel *p = &j->c.parallel;
	int world = j->x->job.world->size;

	vfm_parallel_defaults(p);
	p->cp = p->dp = 0;
	for (int i = 0; i < sets.n; i++) {
		if (strncmp(sets.v[i], "parallel.", 9) != 0)
			return vfm_fail(err, VFM_EUSAGE, "--set %s: only keys of the section parallel can be set here",
				sets.v[i]);
		TRY(vfm_config_set(&j->c, sets.v[i], err));
	}
	if (!p->cp) {
		int64_t others = p->tp * (p->dp ? p->dp : 1);

		p->cp = world % others ? 1 : world / others;
	}
	TRY(vfm_parallel_check(p, &j->c.model, world, err));
	if (p->pp > 1)
		return vfm_fail(err, VFM_EUSAGE, "parallel.pp: sampling uses tp, cp and dp; expected 1");
	if (p->dp > 1 && p->ep > 1)
		return vfm_fail(err, VFM_EUSAGE, "parallel.dp: experts over ep need dp = 1 in sampling");
	j->leader = j->x->job.world->rank % (p->tp * p->cp) == 0;
	return 0;
}

/* Compares an encoder with the encoder of the training data. */
static int check_encoder(struct job *j, const struct vfm_ckpt *c, enum vfm_encoder e, struct vfm_makers *trained,
	const struct vfm_maker *used, struct vfm_err *err)
{
	const struct vfm_maker *expected = vfm_makers_of(trained, e);
	enum vfm_maker_relation rel = vfm_maker_compare(expected, used);
	char was[VFM_MAKER_LABEL], is[VFM_MAKER_LABEL];
	json_t *entries;

	vfm_maker_label_pair(expected, used, was, is);
	if (rel == VFM_MAKER_UNKNOWN && j->x->job.world->rank == 0)
		vfm_warn("%s does not name the %s of its data; '%s' is used", c->path, vfm_encoder_name(e), is);
	if (rel != VFM_MAKER_DIFFERENT)
		return 0;
	if (!force)
		return vfm_fail(err, VFM_EUSAGE,
			"%s was trained on data of the %s '%s', but '%s' would be used (--force does so)", c->path,
			vfm_encoder_name(e), was, is);
	if (j->x->job.world->rank == 0)
		vfm_warn("%s was trained on data of the %s '%s'; '%s' is used", c->path, vfm_encoder_name(e), was, is);
	entries = json_array();
	json_array_append_new(entries, vfm_forced_entry("vfm-sample", e, c->path, expected, used));
	vfm_forced_add(&j->forced, entries);
	json_decref(entries);
	return 0;
}

/* Opens a decoder; with command NULL the built-in one. */
static int open_sample_decoder(struct job *j, const char *command, struct vfm_err *err)
{
	char spec[32];

	snprintf(spec, sizeof(spec), "wavelet:%lld", (long long)j->c.model.channels);
	return vfm_codec_open_decoder(&j->codec, tokenizer ? tokenizer : spec, command, &exec_opts, err);
}

/* Which encoders this request uses: .npy output needs no decoder, the null text needs no text encoder. */
static void find_needs(const struct job *j, bool *decodes, bool *encodes)
{
	*decodes = *encodes = false;
	for (size_t i = 0; i < j->items.n; i++) {
		*decodes = *decodes || !ends_with(j->items.v[i].path, ".npy");
		*encodes = *encodes || *j->items.v[i].caption || (*j->items.v[i].negative && sampling.cfg != 1);
	}
	*encodes = *encodes && (j->c.model.cross_attention || j->c.model.pooled_text);
}

/* Opens what the request uses; children only on leaders.  Local. */
static int open_codec(struct job *j, struct vfm_err *err)
{
	bool decodes, encodes;

	find_needs(j, &decodes, &encodes);
	exec_opts.first_gpu = j->x->job.launch.local_rank;
	if ((decodes || tokenizer || exec_command) && (j->leader || !exec_command))
		TRY(open_sample_decoder(j, exec_command, err));
	if (encodes && (j->leader || !text_command))
		TRY(vfm_codec_open_text(&j->codec, text_command, &exec_opts, j->c.model.text_dim, err));
	return vfm_codec_wait(&j->codec, j->c.model.channels, j->c.model.text_dim, err);
}

/* Sets the makers of the codec on all ranks; the leaders must agree with rank 0.  Collective. */
static int share_makers(struct job *j, struct vfm_makers *used, struct vfm_err *err)
{
	const struct vfm_makers own = {vfm_codec_tokenizer(&j->codec), vfm_codec_text_maker(&j->codec)};
	json_t *o = vfm_makers_json(&own);
	char *text = json_dumps(o, JSON_COMPACT);
	int rc = vfm_job_broadcast(&j->x->job, &text, err);

	json_decref(o);
	if (rc < 0) {
		free(text);
		return rc;
	}
	o = json_loads(text, 0, NULL);
	free(text);
	rc = vfm_makers_from_json(used, o, "the encoders of rank 0", err);
	json_decref(o);
	if (rc >= 0 && j->leader)
		rc = vfm_makers_check(&own, "this rank", used, "rank 0", err);
	return vfm_job_agree(&j->x->job, rc, err);
}

/* Sets the geometry of latents that are not decoded: that of the training data, or that of the built-in tokenizer. */
static int choose_geometry(struct job *j, const struct vfm_ckpt *c, const struct vfm_maker *trained,
	const struct vfm_maker *used, struct vfm_err *err)
{
	struct vfm_maker own;
	char label[VFM_MAKER_LABEL];

	j->geometry = trained->geometry;
	if (vfm_geometry_is_known(&j->geometry)) {
		if (j->geometry.channels == j->c.model.channels)
			return 0;
		vfm_maker_label(trained, label);
		return vfm_fail(err, VFM_EUSAGE, "%s: the tokenizer '%s' of its data has %d channels, the model %lld",
			c->path, label, j->geometry.channels, (long long)j->c.model.channels);
	}
	own = *used;
	if (!*own.name) {
		TRY(open_sample_decoder(j, NULL, err));
		own = vfm_codec_tokenizer(&j->codec);
	}
	j->geometry = own.geometry;
	vfm_maker_label(&own, label);
	if (j->x->job.world->rank == 0 && vfm_maker_compare(trained, &own) != VFM_MAKER_SAME)
		vfm_warn("%s does not record the sizes of its latents; those of '%s' are used", c->path, label);
	return 0;
}

/* Compares the encoders that this request uses with those of the training data.  Local. */
static int choose_encoders(struct job *j, const struct vfm_ckpt *c, const struct vfm_makers *used, struct vfm_err *err)
{
	bool decodes, encodes;
	struct vfm_makers m;

	TRY(vfm_makers_from_json(&m, json_object_get(c->state, "encoders"), "state.encoders", err) < 0
			? vfm_err_context(err, "%s", c->path)
			: 0);
	vfm_forced_add(&j->forced, json_object_get(c->state, "forced"));
	find_needs(j, &decodes, &encodes);
	j->makers.tokenizer = decodes ? used->tokenizer : m.tokenizer;
	j->geometry = used->tokenizer.geometry;
	if (decodes)
		TRY(check_encoder(j, c, VFM_ENCODER_TOKENIZER, &m, &used->tokenizer, err));
	else
		TRY(choose_geometry(j, c, &m.tokenizer, &used->tokenizer, err));
	if (!encodes)
		return 0;
	j->makers.text = used->text;
	return check_encoder(j, c, VFM_ENCODER_TEXT, &m, &used->text, err);
}

/* The default number of frames: the largest up to 16 that tokenizer and patch take. */
static int64_t choose_frames(const struct vfm_geometry *g, int32_t patch_t)
{
	int64_t n = vfm_geometry_fit_patch(g, DEFAULT_FRAMES, patch_t);

	return n > 0 ? n : g->first;
}

static int choose_side(int unit)
{
	return unit > DEFAULT_SIDE ? unit : DEFAULT_SIDE / unit * unit;
}

/* Sets the sizes of video and latent.  Tokenizer and patch decide which are possible. */
static int choose_video(struct job *j, struct vfm_err *err)
{
	const int32_t patch[3] = {
		(int32_t)j->c.model.patch[0], (int32_t)j->c.model.patch[1], (int32_t)j->c.model.patch[2]};
	int32_t unit[2];

	vfm_geometry_multiple(&j->geometry, patch, unit);
	if (frames == INT64_MIN)
		frames = choose_frames(&j->geometry, patch[0]);
	if (!size) {
		j->height = choose_side(unit[0]);
		j->width = choose_side(unit[1]);
	}
	if (j->width % unit[1] || j->height % unit[0])
		return vfm_fail(err, VFM_EUSAGE,
			"--size: %dx%d: tokenizer and patch need a width that is a multiple of %d and a height that is "
			"a multiple of %d",
			j->width, j->height, unit[1], unit[0]);
	return vfm_geometry_latent(&j->geometry, frames, j->height, j->width, j->dims, err) < 0
		? vfm_err_context(err, "--frames")
		: 0;
}

/* Opens the checkpoint and sets up configuration and codec.  Local. */
static int prepare(struct job *j, struct vfm_ckpt **ckpt, struct vfm_err *err)
{
	struct vfm_ckpt *c = NULL;
	char spec[32];
	int rc;

	TRY_OUT(vfm_ckpt_open(&c, ckpt_path, err));
	if (!c->config) {
		rc = vfm_fail(err, VFM_EUSAGE,
			"'%s' has no configuration of its model; give a checkpoint directory or a run", ckpt_path);
		goto out;
	}
	vfm_config_defaults(&j->c);
	TRY_OUT(vfm_config_saved(&j->c, c->config, err));
	snprintf(spec, sizeof(spec), "train.dtype=%s", dtype);
	TRY_OUT(vfm_config_set(&j->c, spec, err));
	/* Of the training precision, only the dtype of the residual stream applies, and only with --dtype bf16. */
	j->c.train.fp8 = VFM_FP8_NONE;
	j->c.train.master = VFM_MASTER_F32;
	if (j->c.train.dtype != VFM_BF16)
		j->c.train.residual = VFM_F32;
	TRY_OUT(vfm_config_check(&j->c, err));
	TRY_OUT(vfm_sampler_check(&sampling, &j->c.diffusion, err));
	TRY_OUT(configure_ranks(j, err));
	if (!strcmp(part, "ema") && j->c.train.ema_decay == 0)
		part = "model";
	vfm_info("%s of %s, step %lld, %lld parameters", part, c->path, (long long)c->step,
		(long long)vfm_model_params(&j->c.model));
	rc = open_codec(j, err);
out:
	if (rc < 0)
		vfm_ckpt_close(c);
	else
		*ckpt = c;
	return rc;
}

/* Collective. */
static int load_model(struct job *j, struct vfm_err *err)
{
	struct vfm_ckpt *c = NULL;
	int rc = vfm_job_agree(&j->x->job, prepare(j, &c, err), err);
	struct vfm_makers used;

	if (rc == 0)
		rc = share_makers(j, &used, err);
	if (rc == 0) {
		rc = choose_encoders(j, c, &used, err);
		rc = vfm_job_agree(&j->x->job, rc < 0 ? rc : choose_video(j, err), err);
	}
	if (rc == 0)
		rc = vfm_context_open(j->x, &j->c, err);
	if (rc == 0) {
		j->together = vfm_comm_host(j->x->mesh.seq);
		vfm_params_init(&j->ps, j->x->device.stream, &j->x->mesh);
		j->net = vfm_model_new(&j->c.model, &j->ps);
		vfm_model_set_residual(j->net, (enum vfm_dtype)j->c.train.residual);
		rc = vfm_job_agree(
			&j->x->job, vfm_params_alloc(&j->ps, (enum vfm_dtype)j->c.train.dtype, false, err), err);
	}
	if (rc == 0)
		rc = vfm_job_agree(&j->x->job, vfm_state_load_weights(&j->ps, c, part, err), err);
	if (rc == 0)
		vfm_params_hold(&j->ps);
	vfm_ckpt_close(c);
	return rc;
}

static void print_progress(void *ctx, int64_t done, int64_t total)
{
	struct job *j = ctx;

	(void)done, (void)total;
	vfm_progress_step(&j->progress, 1);
}

/* ---- one batch of prompts ---- */

/* Adds the record of an item to those that print_records prints. */
static void queue_record(struct job *j, struct item *it)
{
	json_object_set_new(it->rec, "seed", json_integer(seed));
	json_object_set_new(it->rec, "encoders", vfm_makers_json(&j->makers));
	if (j->forced)
		json_object_set(it->rec, "forced", j->forced);
	vfm_json_text(&j->records, it->rec, 0);
	vfm_buf_add(&j->records, "\n", 1);
}

/* Rank 0 prints the records of all ranks in the order of the prompts.  Collective. */
static int print_records(struct job *j, struct vfm_err *err)
{
	char *all = NULL;
	size_t *off = NULL, n;
	int rc;

	TRY(vfm_comm_gather_bytes(
		j->x->job.world, j->records.data ? j->records.data : "", j->records.len, &all, &off, err));
	vfm_buf_clear(&j->records);
	n = off[j->x->job.world->size];
	rc = 0;
	if (j->x->job.world->rank == 0 && (fwrite(all, 1, n, stdout) != n || fflush(stdout) != 0))
		rc = vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the records");
	free(all);
	free(off);
	return rc;
}

/* An item without a video; its record says why. */
static void add_failure(struct job *j, struct item *it, const char *why)
{
	json_object_set_new(it->rec, "error", json_string(why));
	vfm_error("%s: %s", json_string_value(json_object_get(it->rec, "id")), why);
	j->failed++;
	queue_record(j, it);
}

/* Writes the latents of an item to `path` and describes them in its record as `vfm-curate encode` does. */
static int write_latent(struct job *j, struct item *it, const char *path, const float *latent, struct vfm_err *err)
{
	const struct vfm_npy n = {
		.type = VFM_NPY_F32, .ndim = 4, .shape = {j->c.model.channels, j->dims[0], j->dims[1], j->dims[2]}};
	char sha256[VFM_SHA256_HEX];

	TRY(vfm_npy_save(path, &n, latent, sha256, err));
	json_object_set_new(it->rec, "latent",
		vfm_latent_json(&(struct vfm_latent_file){path, sha256, &n, frames, j->width, j->height,
			frames > 1 ? (double)j->fps_num / j->fps_den : 0, &j->makers.tokenizer}));
	return 0;
}

/* "r/sample-000000.latent.npy" of "r/sample-000000.mp4"; the caller frees it. */
static char *latent_path(const char *video)
{
	const char *dot = strrchr(video, '.');

	return vfm_strfmt("%.*s.latent.npy", (int)(dot - video), video);
}

static int write_video(struct job *j, struct item *it, const float *latent, struct vfm_err *err)
{
	struct vfm_video_out_opts o = {
		.width = j->width, .height = j->height, .fps_num = j->fps_num, .fps_den = j->fps_den, .crf = 10};
	size_t picture = (size_t)j->width * (size_t)j->height * 3;
	int64_t n = !ends_with(it->path, ".png") || strchr(it->path, '%') ? frames : 1;
	uint8_t *rgb = vfm_big_alloc(picture * (size_t)frames, "pictures", err);
	struct vfm_video_out *v = NULL;
	char rate[32];
	int rc;

	if (!rgb)
		return VFM_EENV;
	TRY_OUT(vfm_codec_decode(&j->codec, latent, j->dims, frames, rgb, err));
	TRY_OUT(vfm_video_out_open(&v, it->path, &o, err));
	for (int64_t f = 0; f < n; f++)
		TRY_OUT(vfm_video_out_write(v, rgb + (size_t)f * picture, err));
	rc = vfm_video_out_close(v, err);
	v = NULL;
	snprintf(rate, sizeof(rate), "%d/%d", j->fps_num, j->fps_den);
	json_object_set_new(it->rec, "src", json_string(it->path));
	json_object_set_new(it->rec, "kind", json_string(n > 1 ? "video" : "image"));
	json_object_set_new(it->rec, "width", json_integer(j->width));
	json_object_set_new(it->rec, "height", json_integer(j->height));
	json_object_set_new(it->rec, "frames", json_integer(n));
	json_object_set_new(it->rec, "fps", json_string(rate));
out:
	vfm_video_out_abort(v);
	vfm_big_free(rgb, picture * (size_t)frames);
	return rc;
}

/* Writes the files of an item.  VFM_EINPUT: this item failed. */
static int write_item(struct job *j, struct item *it, const float *latent, struct vfm_err *err)
{
	char *path;
	int rc;

	if (ends_with(it->path, ".npy"))
		return write_latent(j, it, it->path, latent, err);
	if (keep_latents) {
		path = latent_path(it->path);
		rc = write_latent(j, it, path, latent, err);
		free(path);
		TRY(rc);
	}
	return write_video(j, it, latent, err);
}

static int finish_item(struct job *j, struct item *it, const float *latent, size_t n, struct vfm_err *err)
{
	int64_t bad = vfm_dtype_count_nonfinite(VFM_F32, latent, n);
	struct vfm_err why = {0};
	int rc;

	if (it->why) {
		add_failure(j, it, it->why);
		return 0;
	}
	if (bad) {
		vfm_fail(&why, VFM_EINPUT, "%lld values of the latent are NaN or infinite", (long long)bad);
		add_failure(j, it, why.msg);
		return 0;
	}
	rc = write_item(j, it, latent, &why);
	if (rc == VFM_EINPUT)
		add_failure(j, it, why.msg);
	else if (rc >= 0)
		queue_record(j, it);
	else
		*err = why;
	return rc == VFM_EINPUT ? 0 : rc;
}

/* ---- texts ---- */

/* Embeds a caption and appends the rows that the model reads to *rows.  Returns their number; -1: it failed. */
static int32_t embed_caption(
	struct job *j, struct item *it, const char *caption, struct vfm_buf *rows, int *rc, struct vfm_err *err)
{
	const int64_t most = j->c.model.text_len;
	const float *embedded;
	int64_t n = vfm_codec_embed(&j->codec, caption, &embedded, err);

	if (n < 0) {
		*rc = n == VFM_EINPUT ? 0 : (int)n;
		free(it->why);
		it->why = vfm_strdup(err->msg);
		return -1;
	}
	if (n > most && !j->logged_cut) {
		vfm_info("a prompt has %lld text rows; of each prompt the first %lld are read (model.text_len)",
			(long long)n, (long long)most);
		j->logged_cut = true;
	}
	n = n < most ? n : most;
	vfm_buf_add(rows, embedded, (size_t)n * (size_t)j->c.model.text_dim * sizeof(float));
	return (int32_t)n;
}

/* The concatenated texts of a batch; an empty text has no rows. */
struct texts {
	float *rows; /* [cu[n], text_dim] */
	size_t bytes;
	int32_t *cu; /* [n + 1] */
};

/* The leader embeds.  Collective over the ranks that sample together. */
static int embed_texts(struct texts *t, struct job *j, struct item *it, int n, bool negatives, struct vfm_err *err)
{
	const size_t row = (size_t)j->c.model.text_dim * sizeof(float);
	const bool reads_text = j->c.model.cross_attention || j->c.model.pooled_text;
	struct vfm_buf rows = {0};
	int rc = 0;

	t->cu = vfm_calloc((size_t)n + 1, sizeof(*t->cu));
	for (int i = 0; i < n && j->leader; i++) {
		const char *text = negatives ? it[i].negative : it[i].caption;
		int32_t k = 0;

		if (*text && reads_text && rc == 0 && !(negatives && sampling.cfg == 1))
			k = embed_caption(j, &it[i], text, &rows, &rc, err);
		t->cu[i + 1] = t->cu[i] + (k > 0 ? k : 0);
	}
	rc = vfm_agree(j->together, rc, err);
	if (rc == 0)
		rc = vfm_broadcast(j->together, NULL, vfm_t1(t->cu, VFM_I32, n + 1), 0, err);
	t->bytes = (size_t)t->cu[n] * row + sizeof(float);
	t->rows = rc == 0 ? vfm_big_alloc(t->bytes, "the texts", err) : NULL;
	if (rc == 0)
		rc = vfm_agree(j->together, t->rows ? 0 : VFM_EENV, err);
	if (rc == 0 && rows.len)
		memcpy(t->rows, rows.data, rows.len);
	if (rc == 0)
		rc = vfm_broadcast(j->together, NULL, vfm_t1(t->rows, VFM_U8, (int64_t)t->bytes), 0, err);
	vfm_buf_release(&rows);
	return rc;
}

static void release_texts(struct texts *t)
{
	if (t->rows)
		vfm_big_free(t->rows, t->bytes);
	free(t->cu);
}

/* Samples a batch of prompts.  The leader writes the files.  Collective over the ranks that sample together. */
static int sample_batch(struct job *j, size_t first, int n, const int32_t grid[3], struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->c.model;
	struct vfm_diffusion d = j->c.diffusion;
	struct vfm_sample_job sj = {m, &d, j->net, &j->x->mesh, j->x->device.stream, j->ps.dtype};
	int32_t patch[3] = {(int32_t)m->patch[0], (int32_t)m->patch[1], (int32_t)m->patch[2]};
	size_t per = (size_t)(grid[0] * grid[1] * grid[2]) * (size_t)vfm_model_patch_dim(m);
	uint64_t *id = vfm_calloc((size_t)n, sizeof(*id));
	int32_t(*grids)[3] = vfm_calloc((size_t)n, sizeof(*grids));
	struct texts text = {0}, against = {0};
	float *tokens = vfm_big_alloc(per * (size_t)n * sizeof(float), "the latents", err);
	float *latent = vfm_big_alloc(per * sizeof(float), "a latent", err);
	struct vfm_sample_request r = {.n = n, .id = id, .grid = (const int32_t(*)[3])grids};
	int rc = VFM_EENV;

	if (!tokens || !latent)
		goto out;
	d.shift = vfm_diffusion_shift(&d, (int64_t)grid[0] * grid[1] * grid[2]);
	d.shift_tokens = 0;
	TRY_OUT(embed_texts(&text, j, &j->items.v[first], n, false, err));
	TRY_OUT(embed_texts(&against, j, &j->items.v[first], n, true, err));
	r.text = text.rows;
	r.cu_text = text.cu;
	r.negative = against.rows;
	r.cu_negative = against.cu;
	for (int i = 0; i < n; i++) {
		id[i] = first + (size_t)i;
		memcpy(grids[i], grid, sizeof(grids[i]));
	}
	TRY_OUT(vfm_sampler_run(&sampling, &sj, &r, tokens, err));
	for (int i = 0; i < n && j->leader; i++) {
		vfm_unpatchify(tokens + (size_t)i * per, (int32_t)m->channels, j->dims, patch, latent);
		TRY_OUT(finish_item(j, &j->items.v[first + (size_t)i], latent, per, err));
	}
out:
	vfm_big_free(latent, per * sizeof(float));
	vfm_big_free(tokens, per * (size_t)n * sizeof(float));
	release_texts(&text);
	release_texts(&against);
	free(grids);
	free(id);
	return rc;
}

/* Collective. */
static int report_failures(struct job *j, struct vfm_err *err)
{
	int64_t failed = j->leader ? j->failed : 0;
	int rc = 0;

	TRY(vfm_all_reduce(j->x->job.world, NULL, vfm_t1(&failed, VFM_I64, 1), err));
	if (failed)
		rc = vfm_fail(err, VFM_EINPUT, "%lld of %zu videos failed and have no file; their records say why",
			(long long)failed, j->items.n);
	return vfm_job_agree(&j->x->job, rc, err);
}

static int sample_all(struct job *j, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->c.model;
	int32_t patch[3] = {(int32_t)m->patch[0], (int32_t)m->patch[1], (int32_t)m->patch[2]}, grid[3];
	const int64_t dp = j->c.parallel.dp;
	int64_t tokens, batch, evals;
	struct vfm_err why;
	int rc, printed;
	bool heun = sampling.kind == VFM_SAMPLER_HEUN ||
		(sampling.kind == VFM_SAMPLER_AUTO && j->c.diffusion.kind == VFM_EDM);

	tokens = vfm_patch_grid(j->dims, patch, grid, err);
	if (tokens < 0)
		return VFM_EUSAGE;
	if (tokens > MAX_TOKENS)
		return vfm_fail(err, VFM_EUSAGE, "a video of %lld tokens is too large; at most %d", (long long)tokens,
			MAX_TOKENS);
	batch = context / (tokens * (sampling.cfg == 1 ? 1 : 2));
	batch = batch < 1 ? 1 : batch;
	evals = heun ? 2 * sampling.steps - 1 : sampling.steps;
	sampling.progress = print_progress;
	sampling.ctx = j;
	vfm_progress_start(
		&j->progress, "evaluations", evals * (((int64_t)j->items.n + batch * dp - 1) / (batch * dp)));
	for (size_t i = 0; i < j->items.n; i += (size_t)(batch * dp)) { /* dp batches at a time */
		size_t first = i + (size_t)(batch * j->x->mesh.coord[VFM_AX_DP]);
		int64_t n = first < j->items.n ? (int64_t)(j->items.n - first) : 0;

		rc = n ? sample_batch(j, first, (int)(n < batch ? n : batch), grid, err) : 0;
		printed = print_records(j, &why);
		if (rc >= 0 && printed < 0) {
			rc = printed;
			*err = why;
		}
		/* All ranks learn of a failure on one rank, such as a failed write. */
		TRY(vfm_job_agree(&j->x->job, rc, err));
	}
	vfm_progress_end(&j->progress);
	return report_failures(j, err);
}

static int read_request(struct job *j, struct vfm_err *err)
{
	TRY(check_sample_options(j, err));
	j->items.out_dir = out_dir;
	j->items.out_file = out_file;
	j->items.format = format;
	j->items.negative = negative;
	j->items.caption = caption_name;
	if (j->x->job.world->rank == 0)
		TRY(items_collect(&j->items, &prompts, prompt_file, err));
	if (out_dir && j->x->job.world->rank == 0)
		TRY(vfm_mkdir_p(out_dir, err));
	return 0;
}

static int run(struct job *j, struct vfm_err *err)
{
	TRY(vfm_job_agree(&j->x->job, read_request(j, err), err));
	TRY(items_share(&j->items, &j->x->job, err));
	TRY(load_model(j, err));
	return sample_all(j, err);
}

static int sample_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct job *j = ctx;
	int rc;

	j->x = x;
	rc = run(j, err);
	vfm_job_failed(&x->job, rc, err);
	json_decref(j->forced);
	vfm_codec_release(&j->codec);
	vfm_buf_release(&j->records);
	vfm_model_free(j->net);
	vfm_params_release(&j->ps);
	return rc;
}

int main(int argc, char **argv)
{
	struct vfm_err err = {0};
	struct job j = {0};
	int rc, n;

	vfm_cmd_init(argv[0]);
	vfm_version_more = vfm_device_features;
	vfm_sampler_defaults(&sampling);
	rc = vfm_opt_parse(&cmd, argc, argv, &n, &err);
	if (rc == 0 && n > 0)
		rc = vfm_fail(&err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	if (rc == 0)
		rc = vfm_context_check(&rank_opts, &err);
	rc = rc == 0 ? vfm_context_run(&rank_opts, sample_rank, &j, &err) : vfm_job_say_once(rc, &err);
	items_release(&j.items);
	vfm_strlist_release(&prompts);
	vfm_strlist_release(&sets);
	return vfm_cmd_exit(rc, &err);
}
