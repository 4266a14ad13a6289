/* vfm-sample: checkpoint + prompts -> videos. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/opt.h"
#include "data/npy.h"
#include "data/patch.h"
#include "data/provenance.h"
#include "data/textbytes.h"
#include "data/wavelet.h"
#include "media/video_out.h"
#include "model/sampler.h"
#include "train/context.h"
#include "train/state.h"

static const char *ckpt_path, *part = "ema", *out_file, *out_dir, *prompt_file, *size, *sampler = "auto", *fps = "8",
			      *dtype = "fp32", *tokenizer, *format = "mp4", *negative = "";
static struct vfm_strlist prompts, sets;
static int64_t frames = INT64_MIN, context = 4096; /* INT64_MIN: not given */
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static struct vfm_sampler sampling;
static bool force;

static int64_t seed;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "ckpt", "PATH", "checkpoint, or a run: its newest", &ckpt_path},
	{VFM_OPT_STR, 0, "part", "ema|model", "averaged or last weights (ema if the checkpoint has it)", &part},
	{VFM_OPT_LIST, 'p', "prompt", "TEXT", "what to show; may be repeated; '' is the null text", &prompts},
	{VFM_OPT_STR, 0, "negative", "TEXT", "negative prompt of the guidance (the null text)", &negative},
	{VFM_OPT_STR, 0, "prompts", "FILE", "JSON Lines with \"caption\" and perhaps \"negative\"; - is stdin",
		&prompt_file},
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
	{VFM_OPT_FLAG, 0, "force", NULL,
		"accept a tokenizer and text encoder that differ from those of the training data", &force},
	{VFM_OPT_STR, 0, "dtype", "fp32|bf16", "of matrices and activations (fp32)", &dtype},
	{VFM_OPT_SIZE, 0, "context", "N", "tokens that are computed together, guidance included (4096)", &context},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE",
		"layout of the ranks: parallel.cp (all ranks), tp, ep, cp_mode, cp_a2a; may be repeated", &sets},
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

/* One prompt. */
struct item {
	json_t *rec;
	const char *caption, *negative;
	char *path;
};

struct job {
	struct item *item;
	size_t n, cap;
	int width, height, fps_num, fps_den;
	struct vfm_makers makers;     /* the tokenizer of the latents, the text encoder of the prompts; or unknown */
	struct vfm_geometry geometry; /* of the tokenizer that decodes, or of that of the training data for .npy */
	int32_t dims[3];              /* of a latent: t, h, w */
	struct vfm_config c;
	struct vfm_context *x;
	struct vfm_params ps;
	struct vfm_model *net;
	struct vfm_tokenizer tok;
	struct vfm_textbytes *text;
	bool logged_cut; /* whether a note about a prompt longer than model.text_len was printed */
	json_t *forced;  /* differences of encoders that were accepted (data/maker.h); NULL: none */
	struct vfm_progress progress;
	int64_t evals; /* network evaluations shown as progress */
	size_t failed; /* videos that are not finite */
};

/* ---- operands ---- */

static void item_add(struct job *j, json_t *rec, const char *caption)
{
	struct item *it;
	char id[32];

	vfm_grow(&j->item, &j->cap, j->n + 1, sizeof(*j->item));
	it = &j->item[j->n];
	snprintf(id, sizeof(id), "sample-%06zu", j->n);
	json_object_set_new(rec, "v", json_integer(1));
	json_object_set_new(rec, "id", json_string(id));
	json_object_set_new(rec, "caption", json_string(caption));
	if (!json_object_get(rec, "negative") && *negative)
		json_object_set_new(rec, "negative", json_string(negative));
	*it = (struct item){.rec = rec,
		.caption = json_string_value(json_object_get(rec, "caption")),
		.negative = json_string_value(json_object_get(rec, "negative"))};
	it->negative = it->negative ? it->negative : "";
	it->path = out_dir ? vfm_strfmt("%s/%s.%s", out_dir, id, format) : vfm_strdup(out_file);
	j->n++;
}

static int read_prompts(struct job *j, struct vfm_err *err)
{
	struct vfm_jsonl in = {0};
	json_t *rec;
	int rc;

	TRY(vfm_jsonl_open(&in, prompt_file, err));
	while ((rc = vfm_jsonl_next(&in, &rec, err)) == 1) {
		const char *caption = NULL, *other;

		if (vfm_provenance_is_header(rec)) {
			json_decref(rec);
			continue;
		}
		rc = vfm_json_str(rec, "", "caption", true, &caption, err);
		if (rc >= 0)
			rc = vfm_json_str(rec, "", "negative", false, &other, err);
		if (rc < 0) {
			vfm_err_context(err, "%s:%lld", in.name, (long long)in.line);
			json_decref(rec);
			break;
		}
		item_add(j, rec, caption);
	}
	vfm_jsonl_close(&in);
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

static int check_utf8(const char *opt, const char *text, struct vfm_err *err)
{
	json_t *s = json_string(text);

	json_decref(s);
	return s ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: not UTF-8", opt);
}

static int collect(struct job *j, struct vfm_err *err)
{
	for (int i = 0; i < prompts.n; i++) {
		TRY(check_utf8("--prompt", prompts.v[i], err));
		item_add(j, json_object(), prompts.v[i]);
	}
	if (prompt_file)
		TRY(read_prompts(j, err));
	if (j->n == 0)
		return vfm_fail(err, VFM_EUSAGE, "no prompt: give -p TEXT or --prompts FILE");
	if (out_file && j->n > 1)
		return vfm_fail(err, VFM_EUSAGE, "-o FILE is for a single prompt; there are %zu: give -d DIR", j->n);
	return 0;
}

/* Broadcasts the prompts from rank 0, the only rank that reads stdin.  Collective. */
static int share_items(struct job *j, struct vfm_err *err)
{
	json_t *all = json_array(), *rec;
	char *text = NULL;
	size_t i;
	int rc;

	for (i = 0; i < j->n; i++)
		json_array_append(all, j->item[i].rec);
	if (j->x->job.world->rank == 0)
		text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	rc = vfm_job_broadcast(&j->x->job, &text, err);
	if (rc == 0 && j->x->job.world->rank != 0) {
		all = json_loads(text ? text : "", 0, NULL);
		json_array_foreach(all, i, rec)
		{
			item_add(j, json_incref(rec), json_string_value(json_object_get(rec, "caption")));
		}
		json_decref(all);
	}
	free(text);
	return rc;
}

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
	if (frames != INT64_MIN && (frames < 1 || frames > 65536))
		return vfm_fail(err, VFM_EUSAGE, "--frames: expected 1 to 65536, got %lld", (long long)frames);
	if (size && parse_pair(size, 'x', 16384, &j->width, &j->height, 0, err) < 0)
		return vfm_err_context(err, "--size");
	TRY(parse_pair(fps, '/', 100000, &j->fps_num, &j->fps_den, 1, err) < 0 ? vfm_err_context(err, "--fps") : 0);
	sampling.seed = (uint64_t)seed;
	return check_utf8("--negative", negative, err);
}

/* ---- the model ---- */

/* Sets the parallel layout from --set.  Ignores the layout of the training. */
static int configure_ranks(struct job *j, struct vfm_err *err)
{
	struct vfm_parallel *p = &j->c.parallel;
	int world = j->x->job.world->size;

	vfm_parallel_defaults(p);
	p->cp = 0;
	for (int i = 0; i < sets.n; i++) {
		if (strncmp(sets.v[i], "parallel.", 9) != 0)
			return vfm_fail(err, VFM_EUSAGE, "--set %s: only keys of the section parallel can be set here",
				sets.v[i]);
		TRY(vfm_config_set(&j->c, sets.v[i], err));
	}
	if (!p->cp)
		p->cp = world % p->tp ? 1 : world / p->tp;
	TRY(vfm_parallel_check(p, &j->c.model, world, err));
	if (p->pp > 1 || p->dp > 1)
		return vfm_fail(err, VFM_EUSAGE, "parallel: %d ranks sample together with tp x cp = %d, and pp = 1",
			world, world);
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

/* Sets the tokenizer that decodes. */
static int open_tokenizer(struct job *j, struct vfm_err *err)
{
	char spec[32];

	snprintf(spec, sizeof(spec), "wavelet:%lld", (long long)j->c.model.channels);
	TRY(vfm_tokenizer_parse(&j->tok, tokenizer ? tokenizer : spec, err));
	if (j->tok.channels != j->c.model.channels)
		return vfm_fail(err, VFM_EUSAGE, "--tokenizer %s has %d channels, the model %lld", tokenizer,
			j->tok.channels, (long long)j->c.model.channels);
	return 0;
}

/* Sets the geometry of latents that are not decoded: that of the training data, or that of the built-in tokenizer. */
static int choose_geometry(
	struct job *j, const struct vfm_ckpt *c, const struct vfm_maker *trained, struct vfm_err *err)
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
	TRY(open_tokenizer(j, err));
	own = vfm_tokenizer_maker(&j->tok);
	j->geometry = own.geometry;
	vfm_maker_label(&own, label);
	if (j->x->job.world->rank == 0 && vfm_maker_compare(trained, &own) != VFM_MAKER_SAME)
		vfm_warn("%s does not record the sizes of its latents; those of '%s' are used", c->path, label);
	return 0;
}

/* Opens and checks the encoders that this request uses: .npy output needs no decoder, the null text needs no text
 * encoder. */
static int choose_encoders(struct job *j, const struct vfm_ckpt *c, struct vfm_err *err)
{
	struct vfm_maker tok;
	bool decodes = false, encodes = false;
	struct vfm_makers m;
	char spec[32];

	TRY(vfm_makers_from_json(&m, json_object_get(c->state, "encoders"), "state.encoders", err) < 0
			? vfm_err_context(err, "%s", c->path)
			: 0);
	vfm_forced_add(&j->forced, json_object_get(c->state, "forced"));
	snprintf(spec, sizeof(spec), "bytes:%lld", (long long)j->c.model.text_dim);
	TRY(vfm_textbytes_new(&j->text, spec, err));
	for (size_t i = 0; i < j->n; i++) {
		decodes = decodes || !ends_with(j->item[i].path, ".npy");
		encodes = encodes || *j->item[i].caption || (*j->item[i].negative && sampling.cfg != 1);
	}
	if (decodes || tokenizer) {
		TRY(open_tokenizer(j, err));
		tok = vfm_tokenizer_maker(&j->tok);
		j->geometry = tok.geometry;
	}
	j->makers.tokenizer = decodes ? tok : m.tokenizer;
	if (decodes)
		TRY(check_encoder(j, c, VFM_ENCODER_TOKENIZER, &m, &tok, err));
	else
		TRY(choose_geometry(j, c, &m.tokenizer, err));
	if (!encodes || !(j->c.model.cross_attention || j->c.model.pooled_text))
		return 0;
	j->makers.text = vfm_textbytes_maker(j->text);
	return check_encoder(j, c, VFM_ENCODER_TEXT, &m, &j->makers.text, err);
}

/* The default number of frames: the largest up to 16 that tokenizer and patch take. */
static int64_t choose_frames(const struct vfm_geometry *g, int64_t patch_t)
{
	int64_t n = vfm_geometry_fit(g, DEFAULT_FRAMES);

	while (n > 0 && vfm_geometry_latent_frames(g, n) % patch_t)
		n = vfm_geometry_fit(g, n - 1);
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

/* Opens the checkpoint and sets up configuration and encoders.  Local. */
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
	TRY_OUT(choose_encoders(j, c, err));
	rc = choose_video(j, err);
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

	if (rc == 0)
		rc = vfm_context_open(j->x, &j->c, err);
	if (rc == 0) {
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

static int write_record(const struct job *j, struct item *it, struct vfm_err *err)
{
	json_object_set_new(it->rec, "seed", json_integer(seed));
	json_object_set_new(it->rec, "encoders", vfm_makers_json(&j->makers));
	json_object_del(it->rec, "forced");
	if (j->forced)
		json_object_set(it->rec, "forced", j->forced);
	return vfm_jsonl_write(stdout, it->rec, err);
}

/* A latent that is not finite has no file; its record says why. */
static int write_failure(struct job *j, struct item *it, int64_t bad, struct vfm_err *err)
{
	char *why = vfm_strfmt("%lld values of the latent are NaN or infinite", (long long)bad);

	json_object_set_new(it->rec, "error", json_string(why));
	vfm_error("%s: %s", json_string_value(json_object_get(it->rec, "id")), why);
	free(why);
	j->failed++;
	return write_record(j, it, err);
}

static int write_latent(struct job *j, struct item *it, const float *latent, struct vfm_err *err)
{
	const struct vfm_npy n = {
		.type = VFM_NPY_F32, .ndim = 4, .shape = {j->c.model.channels, j->dims[0], j->dims[1], j->dims[2]}};

	TRY(vfm_npy_save(it->path, &n, latent, NULL, err));
	json_object_set_new(it->rec, "latent", json_string(it->path));
	json_object_set_new(it->rec, "width", json_integer(j->width));
	json_object_set_new(it->rec, "height", json_integer(j->height));
	json_object_set_new(it->rec, "frames", json_integer(frames));
	return write_record(j, it, err);
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
	TRY_OUT(vfm_tokenizer_decode(&j->tok, latent, j->dims[0], j->dims[1], j->dims[2], frames, rgb, err));
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
	if (rc == 0)
		rc = write_record(j, it, err);
out:
	vfm_video_out_abort(v);
	vfm_big_free(rgb, picture * (size_t)frames);
	return rc;
}

/* Embeds a caption and returns the number of rows that the model reads.  `rows` must hold all rows of the caption. */
static int32_t embed_caption(struct job *j, const char *caption, float *rows)
{
	int32_t n = vfm_textbytes_embed(j->text, caption, rows), most = (int32_t)j->c.model.text_len;

	if (n <= most)
		return n;
	if (!j->logged_cut && j->x->job.world->rank == 0)
		vfm_info("a prompt has %d text rows; of each prompt the first %d are read (model.text_len)", n, most);
	j->logged_cut = true;
	return most;
}

/* The concatenated texts of a batch; an empty text has no rows. */
struct texts {
	float *rows; /* [cu[n], text_dim] */
	size_t bytes;
	int32_t *cu; /* [n + 1] */
};

static int embed_texts(
	struct texts *t, struct job *j, const struct item *it, int n, bool negatives, struct vfm_err *err)
{
	size_t dim = (size_t)j->c.model.text_dim, rows = 0;

	t->cu = vfm_calloc((size_t)n + 1, sizeof(*t->cu));
	for (int i = 0; i < n; i++) {
		const char *text = negatives ? it[i].negative : it[i].caption;

		rows += *text ? (size_t)vfm_textbytes_rows(text) : 0;
	}
	t->bytes = (rows * dim + 1) * sizeof(float);
	t->rows = vfm_big_alloc(t->bytes, "the texts", err);
	if (!t->rows)
		return VFM_EENV;
	for (int i = 0; i < n; i++) {
		const char *text = negatives ? it[i].negative : it[i].caption;

		t->cu[i + 1] = t->cu[i] + (*text ? embed_caption(j, text, t->rows + (size_t)t->cu[i] * dim) : 0);
	}
	return 0;
}

static void release_texts(struct texts *t)
{
	if (t->rows)
		vfm_big_free(t->rows, t->bytes);
	free(t->cu);
}

/* Samples a batch of prompts.  All ranks have the same latents; rank 0 writes the files.  Collective. */
static int sample_batch(struct job *j, size_t first, int n, const int32_t grid[3], struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->c.model;
	struct vfm_sample_job sj = {m, &j->c.diffusion, j->net, &j->x->mesh, j->x->device.stream, j->ps.dtype};
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
	TRY_OUT(embed_texts(&text, j, &j->item[first], n, false, err));
	TRY_OUT(embed_texts(&against, j, &j->item[first], n, true, err));
	r.text = text.rows;
	r.cu_text = text.cu;
	r.negative = against.rows;
	r.cu_negative = against.cu;
	for (int i = 0; i < n; i++) {
		id[i] = first + (size_t)i;
		memcpy(grids[i], grid, sizeof(grids[i]));
	}
	TRY_OUT(vfm_sampler_run(&sampling, &sj, &r, tokens, err));
	for (int i = 0; i < n && j->x->job.world->rank == 0; i++) {
		struct item *it = &j->item[first + (size_t)i];
		int64_t bad = vfm_dtype_count_nonfinite(VFM_F32, tokens + (size_t)i * per, per);

		vfm_unpatchify(tokens + (size_t)i * per, (int32_t)m->channels, j->dims, patch, latent);
		if (bad)
			TRY_OUT(write_failure(j, it, bad, err));
		else if (ends_with(it->path, ".npy"))
			TRY_OUT(write_latent(j, it, latent, err));
		else
			TRY_OUT(write_video(j, it, latent, err));
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

static int sample_all(struct job *j, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->c.model;
	int32_t patch[3] = {(int32_t)m->patch[0], (int32_t)m->patch[1], (int32_t)m->patch[2]}, grid[3];
	int64_t tokens, batch, evals;
	int rc = 0;
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
	vfm_progress_start(&j->progress, "evaluations", evals * (((int64_t)j->n + batch - 1) / batch));
	for (size_t i = 0; i < j->n; i += (size_t)batch) {
		int64_t n = (int64_t)(j->n - i) < batch ? (int64_t)(j->n - i) : batch;

		/* All ranks learn of a failure on one rank, such as a failed write. */
		TRY(vfm_job_agree(&j->x->job, sample_batch(j, i, (int)n, grid, err), err));
	}
	vfm_progress_end(&j->progress);
	if (j->failed)
		rc = vfm_fail(err, VFM_EINPUT, "%zu of %zu videos are not finite and have no file", j->failed, j->n);
	return vfm_job_agree(&j->x->job, rc, err);
}

static int read_request(struct job *j, struct vfm_err *err)
{
	TRY(check_sample_options(j, err));
	if (j->x->job.world->rank == 0)
		TRY(collect(j, err));
	if (out_dir && j->x->job.world->rank == 0)
		TRY(vfm_mkdir_p(out_dir, err));
	return 0;
}

static int run(struct job *j, struct vfm_err *err)
{
	TRY(vfm_job_agree(&j->x->job, read_request(j, err), err));
	TRY(share_items(j, err));
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
	vfm_textbytes_free(j->text);
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
	for (size_t i = 0; i < j.n; i++) {
		json_decref(j.item[i].rec);
		free(j.item[i].path);
	}
	free(j.item);
	vfm_strlist_release(&prompts);
	vfm_strlist_release(&sets);
	return vfm_cmd_exit(rc, &err);
}
