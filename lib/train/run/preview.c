/* preview.c - samples prompts, and texts of the held-out plan, every few steps of a run. */
#include "train/run/preview.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "data/loader/loader.h"
#include "data/record/clip_reader.h"
#include "encoder/vae/wavelet.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "media/av/video_out.h"
#include "net/diffusion/sampler.h"
#include "net/nn/scales.h"
#include "spec/model/dtype.h"
#include "spec/model/model.h"
#include "train/run/experts.h"
#include "train/run/readers.h"
#include "train/sample/sample_net.h"
#include "train/sample/sampling.h"

enum {
	NAME_CHARS = 40,  /* of a prompt in the name of its file */
	EVENT_SIDE = 320, /* pixels of an animation for TensorBoard at most */
	EVENT_FRAMES = 32,
	EVENT_BYTES = 16 << 20
};

struct vfm_previews {
	struct vfm_preview_run r;
	struct vfm_sampling_opts opts;
	struct vfm_sampling s;
	const char *expert; /* the checkpoint of the other network; NULL: none */
	double expert_t[2]; /* the times that it computes */
	bool decodes;
	double ended; /* when the last samples were complete, or the run began */
	struct vfm_buf records;
	struct vfm_comm *together; /* the ranks that sample the same, host memory */
};

/* ---- what is sampled ---- */

/* Returns whether the latents of the plan can be decoded. */
static bool has_decoder(const struct vfm_previews *p)
{
	const struct vfm_encoder_id *used = &p->r.encoders->tokenizer;
	struct vfm_wavelet builtin;
	struct vfm_encoder_id own;
	struct vfm_err ignore;

	if (p->opts.encoder.vae || p->opts.encoder.exec)
		return true;
	if (!used->name[0] || vfm_wavelet_parse(&builtin, used->name, &ignore) < 0)
		return false;
	own = vfm_wavelet_id(&builtin);
	return vfm_encoder_id_compare(&own, used) == VFM_ENCODER_ID_SAME;
}

/* Writes "a-fox-in-the-snow" for the name of a file. */
static void shorten_prompt(char name[NAME_CHARS + 1], const char *prompt)
{
	size_t n = 0;

	for (const unsigned char *s = (const unsigned char *)prompt; *s && n < NAME_CHARS; s++)
		if (isalnum(*s))
			name[n++] = (char)tolower(*s);
		else if (n && name[n - 1] != '-')
			name[n++] = '-';
	while (n && name[n - 1] == '-')
		n--;
	name[n] = 0;
}

/* Returns the ending of the files, which tells whether the latents are decoded; set_paths completes the names. */
static char *new_path(const struct vfm_previews *p)
{
	return vfm_strdup(p->decodes ? ".mp4" : ".npy");
}

static int add_preview_prompt(void *ctx, const json_t *line, const char *caption, struct vfm_err *err)
{
	struct vfm_previews *p = ctx;
	struct vfm_sample_item *it = vfm_sampling_add(&p->s, caption, line);

	(void)err;
	it->path = new_path(p);
	return 0;
}

static float *copy_first_frame(const struct vfm_pack *pack, int i)
{
	size_t n = (size_t)pack->grid[i][1] * (size_t)pack->grid[i][2] * (size_t)pack->patch_dim,
	       at = (size_t)pack->cu_seqlens[i] * (size_t)pack->patch_dim;
	float *x = vfm_calloc(n + 1, sizeof(*x));

	vfm_dtype_convert(VFM_F32, x, pack->x0_dtype, (const char *)pack->x0 + at * vfm_dtype_size(pack->x0_dtype), n);
	return x;
}

static void copy_text2(struct vfm_sample_item *it, const struct vfm_pack *pack, int i)
{
	size_t n;

	if (!pack->text2_dim)
		return;
	it->in.n_text2 = pack->cu_text2[i + 1] - pack->cu_text2[i];
	n = (size_t)it->in.n_text2 * (size_t)pack->text2_dim;
	it->in.text2 = vfm_calloc(n + 1, sizeof(*it->in.text2));
	memcpy(it->in.text2, pack->text2 + (int64_t)pack->cu_text2[i] * pack->text2_dim, n * sizeof(*it->in.text2));
}

/* Adds a sample of the held-out plan, with its text and size, on every rank. */
static void add_held_out_preview(struct vfm_previews *p, const struct vfm_pack *pack, int i)
{
	struct vfm_sample_item *it = vfm_sampling_add(&p->s, "", NULL);
	size_t dim = (size_t)pack->text_dim, rows = (size_t)(pack->cu_text[i + 1] - pack->cu_text[i]);
	int32_t patch[3];
	char id[32];

	vfm_model_patch(&p->r.c->model, patch);
	snprintf(id, sizeof(id), "%016llx", (unsigned long long)pack->id[i]);
	json_object_set_new(it->rec, "id", json_string(id));
	json_object_del(it->rec, "caption");
	it->p.caption = "";
	it->path = new_path(p);
	it->noise = pack->id[i];
	for (int a = 0; a < 3; a++)
		it->dims[a] = pack->grid[i][a] * patch[a];
	it->in.ready = true;
	it->in.n_text = (int32_t)rows;
	it->in.text = vfm_calloc(rows * dim + 1, sizeof(*it->in.text));
	memcpy(it->in.text, pack->text + (size_t)pack->cu_text[i] * dim, rows * dim * sizeof(*it->in.text));
	copy_text2(it, pack, i);
	it->given_first = p->r.c->diffusion.image_cond > 0 && pack->grid[i][0] > 1;
	if (it->given_first)
		it->in.first = copy_first_frame(pack, i);
}

/* Opens the packs of a plan.  is_run: that of the run, whose indexes the loader of the run compares. */
static struct vfm_loader *open_packs(
	const struct vfm_previews *p, struct vfm_plan *plan, bool is_run, struct vfm_err *err)
{
	const struct vfm_config *c = p->r.c;
	struct vfm_loader_opts lo = {.captions = &c->data.captions,
		.text_len = (int32_t)c->model.text_len,
		.text2_dim = (int32_t)c->model.text2_dim,
		.text2_len = (int32_t)vfm_model_text2_cut(&c->model),
		.max_damaged = c->data.max_damaged,
		.cache = p->r.cache,
		.threads = 1,
		.prefetch = 1,
		.skip_hash = is_run};

	return vfm_loader_open(plan, &lo, err);
}

static int read_held_out(struct vfm_previews *p, struct vfm_err *err)
{
	struct vfm_plan *plan = vfm_plan_open(p->r.held_out, err);
	struct vfm_loader *l = plan ? open_packs(p, plan, false, err) : NULL;
	int64_t left = p->r.c->eval.samples;
	struct vfm_pack *pack;
	int rc = l ? 1 : err->code;

	while (rc > 0 && left > 0) {
		rc = vfm_loader_next(l, &pack, err);
		if (rc <= 0)
			break;
		for (int i = 0; i < pack->n && left > 0; i++, left--)
			add_held_out_preview(p, pack, i);
		vfm_loader_release(l, pack);
	}
	vfm_loader_close(l);
	vfm_plan_close(plan);
	return rc < 0 ? rc : 0;
}

/* Sets the size of the longest sample in the first pack of the plan. */
static int read_first_size(const struct vfm_previews *p, int64_t size[3], struct vfm_err *err)
{
	struct vfm_loader *l = open_packs(p, p->r.plan, true, err);
	struct vfm_pack *pack;
	int rc = l ? vfm_loader_next(l, &pack, err) : err->code;

	if (rc > 0) {
		vfm_readers_size(size, pack, &p->r.c->model, &p->r.encoders->tokenizer.geometry);
		vfm_loader_release(l, pack);
	}
	vfm_loader_close(l);
	return rc < 0 ? rc : 0;
}

/* Collective.  Sets the size of prompts without their own to that of the plan, which rank 0 reads. */
static int choose_default_size(struct vfm_previews *p, struct vfm_err *err)
{
	struct vfm_prompt *prompt = &p->opts.prompt;
	int64_t size[3] = {0};

	TRY(vfm_job_agree(p->s.job, p->r.x->mesh.rank == 0 ? read_first_size(p, size, err) : 0, err));
	TRY(vfm_broadcast(p->s.job->world, NULL, vfm_t1(size, VFM_I64, 3), 0, err));
	prompt->frames = size[0];
	prompt->height = (int)size[1];
	prompt->width = (int)size[2];
	return 0;
}

static int check_previews(const struct vfm_previews *p, const char *prompts, struct vfm_err *err)
{
	const struct vfm_encoder_opts *e = &p->opts.encoder;
	const struct vfm_config *c = p->r.c;

	if (c->eval.samples && !p->r.held_out)
		return vfm_fail(err, VFM_EUSAGE, "eval.samples: their texts are those of --held-out, which is missing");
	if (c->eval.samples &&
		(vfm_model_cond_dim(&c->model) || (c->model.image_dim && !vfm_model_arch(&c->model)->joint)))
		return vfm_fail(err, VFM_EUSAGE,
			"eval.samples: the model reads conditions, which no plan has; --prompts takes pictures");
	if (!prompts && (e->text_encoder || e->text_exec || e->text2_exec || vfm_encoder_image_option(e)))
		return vfm_fail(err, VFM_EUSAGE, "%s: it needs --prompts",
			e->text_encoder         ? "--text-encoder"
				: e->text_exec  ? "--text-exec"
				: e->text2_exec ? "--text2-exec"
						: vfm_encoder_image_option(e));
	return vfm_encoder_check_opts(&p->opts.encoder, err);
}

/* Sets which times the other network computes. */
static int choose_times(struct vfm_previews *p, struct vfm_err *err)
{
	const struct vfm_diffusion *d = &p->r.c->diffusion;
	bool high = d->t_min > 0, low = d->t_max < 1;

	if (p->r.boundary > 0) {
		p->opts.sampler.boundary = p->r.boundary;
		return p->expert ? vfm_fail(err, VFM_EUSAGE, "--expert: this run trains both networks (--low-noise)")
				 : 0;
	}
	if (!p->expert) {
		if ((high || low) && p->r.x->mesh.rank == 0)
			vfm_warn("this network is trained for t from %g to %g, but its samples use it for all t "
				 "(--expert names the other)",
				d->t_min, d->t_max);
		return 0;
	}
	if (high == low)
		return vfm_fail(err, VFM_EUSAGE,
			"--expert: this run trains t from %g to %g, which is no range from or to a boundary "
			"(diffusion.t_min, diffusion.t_max)",
			d->t_min, d->t_max);
	p->opts.sampler.boundary = high ? d->t_min : d->t_max;
	p->expert_t[0] = high ? 0 : d->t_max;
	p->expert_t[1] = high ? d->t_min : 1;
	return 0;
}

/* On rank 0. */
static int read_preview_prompts(struct vfm_previews *p, const char *prompts, struct vfm_err *err)
{
	TRY(vfm_prompts_each(prompts, NULL, add_preview_prompt, p, err));
	return p->s.n ? 0 : vfm_fail(err, VFM_EUSAGE, "'%s' has no prompts", prompts);
}

/* Collective. */
static int read_items(struct vfm_previews *p, const char *prompts, struct vfm_err *err)
{
	struct vfm_job *job = p->s.job;
	struct vfm_sample_weights w;

	TRY(vfm_job_agree(job, check_previews(p, prompts, err), err));
	TRY(vfm_job_agree(job, choose_times(p, err), err));
	if (p->expert) {
		int rc = vfm_sample_weights_load(&w, p->expert, p->r.c, p->expert_t, false, p->r.x, err);

		vfm_sample_weights_release(&w);
		TRY(rc);
	}
	if (prompts) {
		bool root = p->r.x->mesh.rank == 0;

		TRY(choose_default_size(p, err));
		TRY(vfm_job_agree(job, root ? read_preview_prompts(p, prompts, err) : 0, err));
		TRY(vfm_sampling_share(&p->s, err));
	}
	return vfm_job_agree(job, p->r.c->eval.samples ? read_held_out(p, err) : 0, err);
}

/* ---- opening ---- */

static int keep_preview_records(void *ctx, const char *lines, size_t len, struct vfm_err *err)
{
	struct vfm_previews *p = ctx;

	(void)err;
	vfm_buf_add(&p->records, lines, len);
	return 0;
}

static void set_sampling(struct vfm_previews *p, const struct vfm_preview_opts *o)
{
	const struct vfm_config *c = p->r.c;
	const struct vfm_mesh *mesh = &p->r.x->mesh;

	vfm_sampler_defaults(&p->opts.sampler);
	p->opts.sampler.guidance = c->eval.sample_guidance;
	p->opts.in_training = true;
	p->opts.prompt = (struct vfm_prompt){.negative = "",
		.fps_num = o->fps_num,
		.fps_den = o->fps_den,
		.steps = c->eval.sample_steps,
		.cfg = c->eval.sample_cfg};
	p->s = (struct vfm_sampling){.o = &p->opts,
		.job = &p->r.x->job,
		.device = p->r.x->opts->device,
		.c = c,
		.trained_by = p->r.name,
		.trained = *p->r.encoders,
		.leader = p->together->rank == 0,
		.groups = mesh->size[VFM_AX_DP],
		.group = mesh->coord[VFM_AX_DP],
		.together = p->together,
		.print = keep_preview_records,
		.ctx = p,
		.stop = p->r.stop};
}

/* Nothing is sampled: refuses options that say how. */
static int refuse_unused_samples(const struct vfm_preview_opts *o, const struct vfm_config *c, struct vfm_err *err)
{
	const struct vfm_encoder_opts *e = &o->encoder;
	const char *option = c->eval.sample_every ? "eval.sample_every"
		: o->expert                       ? "--expert"
		: e->vae                          ? "--vae"
		: e->exec                         ? "--exec"
		: e->text_encoder                 ? "--text-encoder"
		: e->text_exec                    ? "--text-exec"
		: e->text2_exec                   ? "--text2-exec"
						  : vfm_encoder_image_option(e);

	if (option)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: there is nothing to sample: give --prompts, or eval.samples with --held-out", option);
	return vfm_encoder_check_opts(e, err);
}

int vfm_previews_open(struct vfm_previews **out, const struct vfm_preview_opts *o, const struct vfm_preview_run *r,
	struct vfm_err *err)
{
	struct vfm_previews *p;
	int rc;

	*out = NULL;
	if (!o->prompts && !r->c->eval.samples)
		return vfm_job_agree(&r->x->job, refuse_unused_samples(o, r->c, err), err);
	p = vfm_calloc(1, sizeof(*p));
	p->r = *r;
	p->opts.encoder = o->encoder;
	p->expert = o->expert;
	p->decodes = has_decoder(p);
	TRY_OUT(vfm_comm_split(vfm_comm_host(r->x->mesh.world), r->x->mesh.coord[VFM_AX_DP], r->x->mesh.rank, "samples",
		&p->together, err));
	set_sampling(p, o);
	TRY_OUT(read_items(p, o->prompts, err));
	TRY_OUT(vfm_sampling_open(&p->s, err));
	TRY_OUT(vfm_job_agree(p->s.job, vfm_sampling_prepare(&p->s, err), err));
	p->ended = vfm_now();
	*out = p;
	return 0;
out:
	vfm_previews_free(p);
	return rc;
}

void vfm_previews_free(struct vfm_previews *p)
{
	if (!p)
		return;
	vfm_sampling_release(&p->s);
	vfm_buf_release(&p->records);
	vfm_comm_free(p->together);
	free(p);
}

/* ---- TensorBoard ---- */

/* Writes the pictures of a video as an animation [width, height], which TensorBoard shows as an image. */
static int animate(struct vfm_buf *gif, int *width, int *height, const struct vfm_sample_item *it, const char *path,
	struct vfm_err *err)
{
	const struct vfm_prompt *p = &it->p;
	const bool thins = p->frames > EVENT_FRAMES;
	const struct vfm_clip_opts o = {.width = p->width < EVENT_SIDE ? p->width : EVENT_SIDE,
		.height = p->height < EVENT_SIDE ? p->height : EVENT_SIDE,
		.fit = VFM_CLIP_CONTAIN,
		.even = EVENT_FRAMES,
		.threads = 1};
	const double fps = (double)p->fps_num / p->fps_den * (thins ? (double)EVENT_FRAMES / (double)p->frames : 1);
	struct vfm_video_out_opts out = {.fps_num = fps > 0.001 ? (int)(fps * 1000) : 1, .fps_den = 1000};
	json_t *rec = json_pack("{s:s,s:I}", "src", it->path, "frames", (json_int_t)p->frames);
	struct vfm_clip_reader r = {0};
	struct vfm_video_out *v = NULL;
	uint8_t *rgb = NULL;
	int rc = vfm_clip_open(&r, rec, &o, err);

	TRY_OUT(rc);
	*width = out.width = r.width;
	*height = out.height = r.height;
	rgb = vfm_malloc((size_t)r.width * (size_t)r.height * 3);
	TRY_OUT(vfm_video_out_open(&v, path, &out, err));
	while ((rc = vfm_clip_next(&r, rgb, err)) > 0)
		TRY_OUT(vfm_video_out_write(v, rgb, err));
	if (rc == 0) {
		rc = vfm_video_out_close(v, err);
		v = NULL;
	}
	TRY_OUT(rc);
	rc = vfm_read_regular(path, EVENT_BYTES, &gif->data, &gif->len, err);
out:
	vfm_video_out_abort(v);
	vfm_clip_close(&r);
	json_decref(rec);
	free(rgb);
	unlink(path);
	return rc;
}

/* Writes each video to the events.  Logs a failure. */
static int write_events(
	const struct vfm_previews *p, int64_t step, const char *dir, struct vfm_tfevents *events, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/.events.gif", dir);
	int rc = 0;

	for (size_t i = 0; i < p->s.n && rc >= 0; i++) {
		const struct vfm_sample_item *it = &p->s.v[i];
		struct vfm_buf gif = {0};
		struct vfm_err why = {0};
		int width = 0, height = 0;
		char tag[64];

		snprintf(tag, sizeof(tag), "sample/%02zu", i);
		if (access(it->path, R_OK) != 0 || vfm_name_ends(it->path, ".npy"))
			rc = 0;
		else if (animate(&gif, &width, &height, it, path, &why) < 0)
			vfm_warn("TensorBoard lacks the sample '%s': %s", it->path, why.msg);
		else
			rc = vfm_tfevents_image(events, step, tag, &gif, width, height, err);
		free(gif.data);
	}
	free(path);
	return rc;
}

/* ---- a round of samples ---- */

/* Removes what a record says of the file of an earlier round. */
static void forget_file(json_t *rec)
{
	static const char *const keys[] = {"error", "src", "kind", "width", "height", "frames", "fps", "latent"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		json_object_del(rec, keys[i]);
}

/* Names the files of the items. */
static void set_paths(struct vfm_previews *p, const char *dir)
{
	for (size_t i = 0; i < p->s.n; i++) {
		struct vfm_sample_item *it = &p->s.v[i];
		char name[NAME_CHARS + 1];

		shorten_prompt(name, it->p.caption);
		if (!json_object_get(it->rec, "caption"))
			snprintf(name, sizeof(name), "%s", json_string_value(json_object_get(it->rec, "id")));
		free(it->path);
		it->path = vfm_strfmt("%s/%02zu%s%s.%s", dir, i, *name ? "-" : "", name,
			!p->decodes                ? "npy"
				: it->p.frames > 1 ? "mp4"
						   : "png");
		forget_file(it->rec);
	}
}

static void log_time(const struct vfm_previews *p, int64_t step, double start)
{
	double now = vfm_now(), took = now - start;

	vfm_info("samples after step %lld: %zu in %.1f s (%.1f s decoding and writing), %.0f %% of the time since then",
		(long long)step, p->s.n, took, p->s.decode_s, 100 * took / (now - p->ended));
}

static int save_records(
	struct vfm_previews *p, int64_t step, const char *dir, struct vfm_tfevents *events, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/samples.jsonl", dir);
	int rc = vfm_write_file(path, p->records.data ? p->records.data : "", p->records.len, err);

	free(path);
	return rc < 0 ? rc : write_events(p, step, dir, events, err);
}

static int enter_network(void *ctx, bool low_noise, struct vfm_err *err)
{
	return vfm_experts_enter(ctx, low_noise ? VFM_EXPERT_LOW : VFM_EXPERT_HIGH, err);
}

/* Collective.  Samples all items with the trainer's network and the other one, which is loaded for the call. */
static int sample_items(struct vfm_previews *p, struct vfm_trainer *tr, struct vfm_experts *x, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_sample_weights w = {0};
	int rc = 0;

	p->s.net = (struct vfm_sample_job){.model = &p->r.c->model,
		.diffusion = &p->r.c->diffusion,
		.net = vfm_trainer_model(tr),
		.mesh = &p->r.x->mesh,
		.stream = ps->stream,
		.dtype = ps->dtype};
	if (x) {
		p->s.net.low_noise = p->s.net.net;
		p->s.net.enter = enter_network;
		p->s.net.enter_ctx = x;
	} else if (p->expert) {
		rc = vfm_sample_weights_load(&w, p->expert, p->r.c, p->expert_t, true, p->r.x, err);
		p->s.net.low_noise = p->expert_t[0] > 0 ? p->s.net.net : w.model;
		p->s.net.net = p->expert_t[0] > 0 ? w.model : p->s.net.net;
	}
	if (rc == 0)
		rc = vfm_sampling_run(&p->s, err);
	vfm_sample_weights_release(&w);
	if (rc < 0)
		vfm_scales_discard(ps, NULL);
	return rc < 0 ? rc : vfm_scales_discard(ps, err);
}

/* A failure that all ranks agreed on, such as a missing file or too little memory, ends the samples, not the run. */
static int tolerate_failure(struct vfm_previews *p, int64_t step, int rc, const struct vfm_err *err)
{
	if (!p->s.job->agreed)
		return rc;
	p->s.job->agreed = false;
	if (p->r.x->mesh.rank == 0)
		vfm_warn("the samples after step %lld failed: %s", (long long)step, err->msg);
	return 0;
}

int vfm_previews_run(struct vfm_previews *p, struct vfm_trainer *tr, struct vfm_experts *x, int64_t step,
	const char *dir, struct vfm_tfevents *events, struct vfm_err *err)
{
	const bool root = p->r.x->mesh.rank == 0;
	double start = vfm_now();
	int rc;

	vfm_buf_clear(&p->records);
	set_paths(p, dir);
	rc = vfm_job_agree(p->s.job, vfm_mkdir_p(dir, err), err);
	if (rc == 0)
		rc = sample_items(p, tr, x, err);
	if (rc == 0 && root)
		log_time(p, step, start);
	if (rc == 0)
		rc = vfm_job_agree(p->s.job, root ? save_records(p, step, dir, events, err) : 0, err);
	p->ended = vfm_now();
	return rc < 0 ? tolerate_failure(p, step, rc, err) : 0;
}
