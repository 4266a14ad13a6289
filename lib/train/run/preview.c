/* preview.c - samples texts of the held-out plan every few steps, and writes latents and videos. */
#include "train/run/preview.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "data/loader/loader.h"
#include "encoder/vae/wavelet.h"
#include "io/file.h"
#include "io/npy.h"
#include "media/av/video_out.h"
#include "media/draw/png.h"
#include "net/diffusion/sampler.h"
#include "net/nn/scales.h"
#include "spec/layout/patch.h"
#include "spec/model/dtype.h"
#include "spec/model/model.h"

enum { PREVIEW_FPS = 8, PREVIEW_CRF = 10 };

/* A sample of the plan that is generated again. */
struct preview_item {
	uint64_t id;
	int32_t grid[3], text_rows;
	float *text;        /* [text_rows, text_dim] */
	float *first_frame; /* [h * w, patch_dim]: given, because training gives it, too; NULL: none */
};

struct vfm_previews {
	const struct vfm_config *c;
	const struct vfm_mesh *mesh;
	struct vfm_sampler sampler;
	struct preview_item *item;
	int n;
	bool decodes;
	struct vfm_wavelet wavelet;
	bool warned;
};

/* ---- the texts ---- */

static float *copy_first_frame(const struct vfm_pack *pack, int i)
{
	size_t n = (size_t)pack->grid[i][1] * (size_t)pack->grid[i][2] * (size_t)pack->patch_dim,
	       at = (size_t)pack->cu_seqlens[i] * (size_t)pack->patch_dim;
	float *x = vfm_calloc(n + 1, sizeof(*x));

	vfm_dtype_convert(VFM_F32, x, pack->x0_dtype, (const char *)pack->x0 + at * vfm_dtype_size(pack->x0_dtype), n);
	return x;
}

static void add_preview_item(struct vfm_previews *p, const struct vfm_pack *pack, int i)
{
	struct preview_item *it = &p->item[p->n++];
	size_t dim = (size_t)pack->text_dim, rows = (size_t)(pack->cu_text[i + 1] - pack->cu_text[i]);

	it->id = pack->id[i];
	memcpy(it->grid, pack->grid[i], sizeof(it->grid));
	it->text_rows = (int32_t)rows;
	it->text = vfm_calloc(rows * dim + 1, sizeof(*it->text));
	memcpy(it->text, pack->text + (size_t)pack->cu_text[i] * dim, rows * dim * sizeof(*it->text));
	if (p->c->diffusion.image_cond > 0 && it->grid[0] > 1)
		it->first_frame = copy_first_frame(pack, i);
}

static int read_items(struct vfm_previews *p, struct vfm_plan *plan, struct vfm_shard_cache *cache, struct vfm_err *err)
{
	struct vfm_loader_opts lo = {.captions = &p->c->data.captions,
		.text_len = (int32_t)p->c->model.text_len,
		.cache = cache,
		.threads = 1,
		.prefetch = 1};
	struct vfm_loader *l = vfm_loader_open(plan, &lo, err);
	struct vfm_pack *pack;
	int rc = l ? 1 : err->code;

	while (rc > 0 && p->n < p->c->eval.samples) {
		rc = vfm_loader_next(l, &pack, err);
		if (rc <= 0)
			break;
		for (int i = 0; i < pack->n && p->n < p->c->eval.samples; i++)
			add_preview_item(p, pack, i);
		vfm_loader_release(l, pack);
	}
	vfm_loader_close(l);
	return rc < 0 ? rc : 0;
}

/* Returns whether the latents are those of the built-in wavelet. */
static bool find_decoder(struct vfm_previews *p, const struct vfm_plan *plan)
{
	struct vfm_encoder_id used = vfm_plan_header(plan)->encoder_ids.tokenizer, own;
	struct vfm_err ignore;

	if (!used.name[0] || vfm_wavelet_parse(&p->wavelet, used.name, &ignore) < 0)
		return false;
	own = vfm_wavelet_id(&p->wavelet);
	return vfm_encoder_id_compare(&own, &used) == VFM_ENCODER_ID_SAME;
}

static void set_sampler(struct vfm_previews *p)
{
	vfm_sampler_defaults(&p->sampler);
	p->sampler.solver.steps = p->c->eval.sample_steps;
	p->sampler.cfg = p->c->eval.sample_cfg;
}

struct vfm_previews *vfm_previews_open(const char *held_out, const struct vfm_config *c, const struct vfm_mesh *mesh,
	struct vfm_shard_cache *cache, struct vfm_err *err)
{
	struct vfm_previews *p = vfm_calloc(1, sizeof(*p));
	struct vfm_plan *plan = NULL;
	int rc = 0;

	p->c = c;
	p->mesh = mesh;
	p->item = vfm_calloc((size_t)c->eval.samples + 1, sizeof(*p->item));
	if (mesh->size[VFM_AX_PP] > 1) {
		rc = vfm_fail(err, VFM_EUSAGE, "eval.samples: sampling needs parallel.pp=1");
		goto out;
	}
	if (vfm_model_cond_dim(&c->model) || c->model.image_dim) {
		rc = vfm_fail(err, VFM_EUSAGE, "eval.samples: the model reads conditions, which no plan has");
		goto out;
	}
	if ((c->diffusion.t_min > 0 || c->diffusion.t_max < 1) && mesh->rank == 0)
		vfm_warn("eval.samples: this network is trained for t from %g to %g, but its samples use it for all t",
			c->diffusion.t_min, c->diffusion.t_max);
	set_sampler(p);
	TRY_OUT(vfm_sampler_check(&p->sampler, &c->diffusion, err));
	plan = vfm_plan_open(held_out, err);
	rc = plan ? read_items(p, plan, cache, err) : err->code;
	if (rc == 0)
		p->decodes = find_decoder(p, plan);
out:
	vfm_plan_close(plan);
	if (rc == 0)
		return p;
	vfm_previews_free(p);
	return NULL;
}

void vfm_previews_free(struct vfm_previews *p)
{
	if (!p)
		return;
	for (int i = 0; i < p->n; i++) {
		free(p->item[i].text);
		free(p->item[i].first_frame);
	}
	free(p->item);
	free(p);
}

/* ---- files ---- */

static int save_latent(
	const char *stem, const float *latent, const struct vfm_previews *p, const int32_t dims[3], struct vfm_err *err)
{
	struct vfm_npy n = {.type = VFM_NPY_F32, .ndim = 4, .shape = {p->c->model.channels, dims[0], dims[1], dims[2]}};
	char *path = vfm_strfmt("%s.npy", stem);
	int rc = vfm_npy_save(path, &n, latent, NULL, err);

	free(path);
	return rc;
}

static int save_video(const char *stem, const uint8_t *rgb, int64_t frames, int width, int height, struct vfm_err *err)
{
	struct vfm_video_out_opts o = {
		.width = width, .height = height, .fps_num = PREVIEW_FPS, .fps_den = 1, .crf = PREVIEW_CRF};
	char *path = vfm_strfmt("%s.%s", stem, frames > 1 ? "mp4" : "png");
	struct vfm_video_out *v = NULL;
	int rc;

	if (frames == 1) {
		rc = vfm_png_write(path, rgb, width, height, err);
		goto out;
	}
	TRY_OUT(vfm_video_out_open(&v, path, &o, err));
	for (int64_t f = 0; f < frames; f++)
		TRY_OUT(vfm_video_out_write(v, rgb + (size_t)f * (size_t)(width * height * 3), err));
	rc = vfm_video_out_close(v, err);
	v = NULL;
out:
	vfm_video_out_abort(v);
	free(path);
	return rc;
}

/* Decodes a latent, writes the pictures, and sets *image to the first, unless it is NULL. */
static int decode_item(struct vfm_previews *p, const char *stem, const float *latent, const int32_t dims[3],
	struct vfm_preview_image *image, struct vfm_err *err)
{
	int width = dims[2] * VFM_WAVELET_SPACE, height = dims[1] * VFM_WAVELET_SPACE, rc;
	int64_t frames = dims[0] == 1 ? 1 : (int64_t)dims[0] * VFM_WAVELET_TIME;
	size_t bytes = (size_t)frames * (size_t)width * (size_t)height * 3;
	uint8_t *rgb = vfm_big_alloc(bytes, "pictures", err);

	if (!rgb)
		return VFM_EENV;
	rc = vfm_wavelet_decode(&p->wavelet, latent, dims[0], dims[1], dims[2], frames, rgb, err);
	if (rc == 0 && image) {
		image->width = width;
		image->height = height;
		rc = vfm_png_encode(&image->png, rgb, width, height, err);
	}
	if (rc == 0)
		rc = save_video(stem, rgb, frames, width, height, err);
	vfm_big_free(rgb, bytes);
	return rc;
}

/* tokens [tokens of the item, patch_dim]. */
static int write_item_files(struct vfm_previews *p, int i, const float *tokens, const char *dir,
	struct vfm_preview_image *image, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &p->c->model;
	const struct preview_item *it = &p->item[i];
	int32_t patch[3], dims[3];
	struct vfm_err why = {0};
	float *latent;
	size_t n = (size_t)m->channels;
	char *stem;
	int rc;

	vfm_model_patch(m, patch);
	for (int a = 0; a < 3; a++) {
		dims[a] = it->grid[a] * patch[a];
		n *= (size_t)dims[a];
	}
	latent = vfm_big_alloc(n * sizeof(*latent), "a latent", err);
	if (!latent)
		return VFM_EENV;
	stem = vfm_strfmt("%s/%02d-%016llx", dir, i, (unsigned long long)it->id);
	vfm_unpatchify(tokens, (int32_t)m->channels, dims, patch, latent);
	rc = save_latent(stem, latent, p, dims, err);
	if (rc == 0 && p->decodes && vfm_dtype_count_nonfinite(VFM_F32, latent, n) == 0 &&
		decode_item(p, stem, latent, dims, image, &why) < 0 && !p->warned) {
		vfm_warn("a sample of the run is written as latents only: %s", why.msg);
		p->warned = true;
	}
	free(stem);
	vfm_big_free(latent, n * sizeof(*latent));
	return rc;
}

/* ---- sampling ---- */

/* Collective over the ranks of a pp stage.  writes: this rank's group is the one that the item belongs to. */
static int run_item(struct vfm_previews *p, struct vfm_trainer *tr, int i, bool writes, const char *dir,
	struct vfm_preview_image *image, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	const struct preview_item *it = &p->item[i];
	const int *at = p->mesh->coord;
	int64_t tokens = (int64_t)it->grid[0] * it->grid[1] * it->grid[2];
	size_t bytes = (size_t)(tokens * vfm_model_patch_dim(&p->c->model)) * sizeof(float);
	float *x = vfm_big_alloc(bytes, "the latents of a sample", err);
	struct vfm_diffusion d = p->c->diffusion;
	struct vfm_sample_job job = {.model = &p->c->model,
		.diffusion = &d,
		.net = vfm_trainer_model(tr),
		.mesh = p->mesh,
		.stream = ps->stream,
		.dtype = ps->dtype};
	int32_t cu[2] = {0, it->text_rows};
	const float *first = it->first_frame;
	struct vfm_sample_request r = {
		.n = 1, .id = &it->id, .grid = &it->grid, .text = it->text, .cu_text = cu, .first_frame = &first};
	int rc;

	if (!x)
		return VFM_EENV;
	d.shift = vfm_diffusion_shift(&d, tokens);
	d.shift_tokens = 0;
	rc = vfm_sampler_run(&p->sampler, &job, &r, x, err);
	if (rc == 0 && writes && at[VFM_AX_CP] == 0 && at[VFM_AX_TP] == 0)
		rc = write_item_files(p, i, x, dir, i == 0 ? image : NULL, err);
	vfm_big_free(x, bytes);
	return rc;
}

int vfm_previews_run(struct vfm_previews *p, struct vfm_trainer *tr, const char *dir, struct vfm_preview_image *image,
	struct vfm_err *err)
{
	int dp = p->mesh->size[VFM_AX_DP], at = p->mesh->coord[VFM_AX_DP];
	int rc = vfm_mkdir_p(dir, err);

	*image = (struct vfm_preview_image){0};
	/* A group without an item takes part in the collectives of the others. */
	for (int i = at; rc == 0 && i - at < p->n; i += dp)
		rc = run_item(p, tr, i % p->n, i < p->n, dir, image, err);
	return rc == 0 ? vfm_scales_discard(vfm_trainer_params(tr), err) : rc;
}
