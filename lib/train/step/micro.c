/* micro.c - draws times and drops, uploads a pack, and runs the op that adds noise. */
#include "train/step/micro.h"

#include <stdlib.h>

/* Random draws of the step, on the host. */
struct drawn_pack {
	struct vfm_draw *draw;        /* [n] of the samples */
	bool *drop_text, *drop_image; /* [n] */
	int32_t *given;               /* [n] given latent frames */
	float *t_cond, *coef, *w;     /* [G], [G,4], [G] of the segments */
};

/* Returns the draw of sample i, whose weight is that of a token's loss. */
static struct vfm_draw draw_sample(const struct vfm_micro_opts *o, const struct vfm_pack *p, int i)
{
	const struct vfm_diffusion *d = &o->config->diffusion;
	int64_t tokens = p->cu_seqlens[i + 1] - p->cu_seqlens[i];
	struct vfm_draw r;

	if (!o->fixed) {
		r = vfm_diffusion_draw(d, o->config->train.seed, (uint64_t)o->step, p->id[i], tokens);
		r.weight /= (double)p->step_tokens;
		return r;
	}
	r = vfm_diffusion_at(
		d, vfm_diffusion_quantile(d, ((double)o->fixed->level + 0.5) / (double)o->fixed->levels, tokens));
	r.weight = r.noise >= o->fixed->t_min && r.noise < o->fixed->t_max ? (double)o->fixed->weight : 0;
	r.given = vfm_diffusion_draw(d, 0, (uint64_t)o->fixed->level, p->id[i], tokens).given;
	return r;
}

static void draw_samples(struct drawn_pack *d, const struct vfm_micro_opts *o, const struct vfm_pack *p)
{
	size_t n = (size_t)p->n;

	*d = (struct drawn_pack){.draw = vfm_calloc(n + 1, sizeof(*d->draw)),
		.drop_text = vfm_calloc(2 * n + 1, sizeof(bool)),
		.given = vfm_calloc(n + 1, sizeof(*d->given))};
	d->drop_image = d->drop_text + n;
	for (size_t i = 0; i < n; i++) {
		d->draw[i] = draw_sample(o, p, (int)i);
		d->drop_text[i] = d->draw[i].drop_text;
		d->drop_image[i] = d->draw[i].drop_image;
		d->given[i] = vfm_micro_given(p, (int)i, &d->draw[i]);
	}
}

static void release_drawn(struct drawn_pack *d)
{
	free(d->draw);
	free(d->drop_text);
	free(d->given);
	free(d->t_cond);
}

/* Computes times, coefficients and weights of the segments. */
static void divide_draws(
	struct drawn_pack *d, const struct vfm_config *c, const struct vfm_model_in *in, const struct vfm_pack *p)
{
	const bool predicted = vfm_model_predicts_given(&c->model);
	const size_t n = (size_t)in->segs.n;

	d->t_cond = vfm_calloc(n + 1, 6 * sizeof(float));
	d->coef = d->t_cond + n;
	d->w = d->t_cond + 5 * n;
	for (size_t g = 0; g < n; g++) {
		int i = in->seg_sample[g];
		struct vfm_draw r = in->seg_given[g] ? vfm_diffusion_given(&c->diffusion) : d->draw[i];

		d->t_cond[g] = r.t_cond;
		for (int j = 0; j < 4; j++)
			d->coef[4 * g + (size_t)j] = r.coef[j];
		if (!in->seg_given[g])
			d->w[g] = vfm_micro_weight(p, i, predicted ? 0 : d->given[i], r.weight);
	}
}

int32_t vfm_micro_given(const struct vfm_pack *p, int i, const struct vfm_draw *r)
{
	if (r->drop_image)
		return 0;
	return r->given < p->grid[i][0] ? r->given : p->grid[i][0] - 1;
}

float vfm_micro_weight(const struct vfm_pack *p, int i, int32_t given, double weight)
{
	float w = (float)weight;

	return given ? w * (float)p->grid[i][0] / (float)(p->grid[i][0] - given) : w;
}

static void place_ends(struct vfm_micro *u, const struct vfm_pack *p, struct vfm_suballoc *a)
{
	u->x0 = vfm_sub_t2(a, p->x0_dtype, u->in.tok.rows, p->patch_dim);
	u->target = vfm_sub_t2(a, VFM_F32, u->in.tok.rows, p->patch_dim);
	u->coef = vfm_sub_t2(a, VFM_F32, u->in.segs.n, 4);
	u->w = vfm_sub_t1(a, VFM_F32, u->in.segs.n);
}

static int upload_ends(struct vfm_micro *u, const struct vfm_pack *p, const struct drawn_pack *d, struct vfm_err *err)
{
	struct vfm_suballoc count = {0};

	place_ends(u, p, &count);
	u->bytes = count.used;
	u->mem = vfm_dev_alloc(u->stream, u->bytes, "the targets of a pack", err);
	if (!u->mem)
		return VFM_EENV;
	place_ends(u, p, &(struct vfm_suballoc){.base = u->mem});
	TRY(vfm_model_in_upload(&u->in, &u->x0, p->x0, err));
	TRY(vfm_dev_upload(u->stream, u->coef.data, d->coef, vfm_nbytes(&u->coef), err));
	return vfm_dev_upload(u->stream, u->w.data, d->w, vfm_nbytes(&u->w), err);
}

static int upload_micro(struct vfm_micro *u, const struct vfm_micro_opts *o, const struct vfm_pack *p,
	struct drawn_pack *d, struct vfm_err *err)
{
	const struct vfm_model_conds conds = {.drop_text = d->drop_text,
		.drop_image = d->drop_image,
		.given = d->given,
		.guidance = (float)o->config->diffusion.guidance};

	TRY(vfm_model_in_make(
		&u->in, u->stream, o->mesh, &o->config->model, p, &conds, (enum vfm_dtype)o->config->train.dtype, err));
	divide_draws(d, o->config, &u->in, p);
	TRY(vfm_dev_upload(u->stream, u->in.t_cond.data, d->t_cond, vfm_nbytes(&u->in.t_cond), err));
	if (!o->ends)
		return 0;
	TRY(upload_ends(u, p, d, err));
	u->noise = (struct vfm_diffuse){.seed = o->fixed ? 0 : o->config->train.seed,
		.step = (uint64_t)(o->fixed ? o->fixed->level : o->step),
		.x0 = u->x0,
		.id = u->in.id,
		.idx = u->in.idx,
		.coef = u->coef,
		.seqs = &u->in.segs,
		.input = u->in.x,
		.target = u->target};
	return 0;
}

int vfm_micro_make(struct vfm_micro *u, struct vfm_stream *s, const struct vfm_micro_opts *o, const struct vfm_pack *p,
	struct vfm_err *err)
{
	struct drawn_pack d;
	int rc, ended;

	*u = (struct vfm_micro){.stream = s};
	if (o->upload)
		TRY(vfm_upload_begin(o->upload, err));
	draw_samples(&d, o, p);
	rc = upload_micro(u, o, p, &d, err);
	release_drawn(&d);
	if (!o->upload)
		return rc < 0 ? rc : vfm_micro_ready(u, err);
	ended = vfm_upload_end(o->upload, &u->uploaded, rc < 0 ? NULL : err);
	return rc < 0 ? rc : ended;
}

int vfm_micro_ready(struct vfm_micro *u, struct vfm_err *err)
{
	struct vfm_diffuse noise = u->noise;

	if (u->uploaded)
		TRY(u->stream->dev->t->event_wait(u->uploaded, u->stream, err));
	u->uploaded = NULL;
	u->noise = (struct vfm_diffuse){0};
	return vfm_has(&noise.x0) ? vfm_op_diffuse(u->stream, &noise, err) : 0;
}

void vfm_micro_release(struct vfm_micro *u)
{
	if (u->uploaded) /* after a failed step */
		u->stream->dev->t->event_wait(u->uploaded, u->stream, NULL);
	if (u->stream)
		vfm_dev_free(u->stream, u->mem, u->bytes);
	vfm_model_in_release(&u->in);
	*u = (struct vfm_micro){0};
}
