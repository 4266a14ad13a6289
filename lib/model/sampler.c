#include "model/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void vfm_sampler_defaults(struct vfm_sampler *s)
{
	*s = (struct vfm_sampler){.steps = 32, .cfg = 3, .sigma_min = 0.002, .sigma_max = 80, .rho = 7};
}

int vfm_sampler_check(const struct vfm_sampler *s, const struct vfm_diffusion *d, struct vfm_err *err)
{
	if (s->steps < 1 || s->steps > 100000)
		return vfm_fail(err, VFM_EUSAGE, "steps: expected 1 to 100000, got %lld", (long long)s->steps);
	if (s->kind == VFM_SAMPLER_HEUN && d->kind != VFM_EDM)
		return vfm_fail(err, VFM_EUSAGE, "the heun sampler is for edm; this model was trained with flow (use euler)");
	if (!(s->sigma_min > 0) || !(s->sigma_max > s->sigma_min) || !isfinite(s->sigma_max) || !(s->rho > 0))
		return vfm_fail(err, VFM_EUSAGE, "expected 0 < sigma_min (%g) < sigma_max and rho > 0, got sigma_max %g", s->sigma_min, s->sigma_max);
	if (!isfinite(s->cfg))
		return vfm_fail(err, VFM_EUSAGE, "cfg: expected a number");
	return 0;
}

/* The samples of a request as a pack; with guidance a second time without their text. */
struct pack_host {
	struct vfm_pack p;
	uint64_t *id;
	int32_t *cu_seqlens, *cu_text, *seg, *idx;
	int32_t (*grid)[3];
	int16_t (*pos)[3];
	float *text;
	bool *dropped;
};

static void pack_release(struct pack_host *h)
{
	free(h->id);
	free(h->cu_seqlens);
	free(h->cu_text);
	free(h->seg);
	free(h->idx);
	free(h->grid);
	free(h->pos);
	free(h->text);
	free(h->dropped);
	*h = (struct pack_host){0};
}

static void fill_sample(struct pack_host *h, int s, const int32_t grid[3])
{
	int64_t o = h->cu_seqlens[s];
	int32_t i = 0;

	for (int32_t t = 0; t < grid[0]; t++) {
		for (int32_t y = 0; y < grid[1]; y++) {
			for (int32_t x = 0; x < grid[2]; x++, i++) {
				h->seg[o + i] = s;
				h->idx[o + i] = i;
				h->pos[o + i][0] = (int16_t)t;
				h->pos[o + i][1] = (int16_t)y;
				h->pos[o + i][2] = (int16_t)x;
			}
		}
	}
}

static void pack_make(struct pack_host *h, const struct vfm_sample_request *r, int copies, int64_t text_dim)
{
	int n = r->n * copies;
	int64_t rows = (int64_t)r->cu_text[r->n], tokens;

	h->id = vfm_calloc((size_t)n, sizeof(*h->id));
	h->cu_seqlens = vfm_calloc((size_t)n + 1, sizeof(int32_t));
	h->cu_text = vfm_calloc((size_t)n + 1, sizeof(int32_t));
	h->dropped = vfm_calloc((size_t)n, sizeof(bool));
	h->grid = vfm_calloc((size_t)n, sizeof(*h->grid));
	for (int i = 0; i < n; i++) {
		int s = i % r->n;

		h->id[i] = r->id[s];
		memcpy(h->grid[i], r->grid[s], sizeof(*h->grid));
		h->cu_seqlens[i + 1] = h->cu_seqlens[i] + r->grid[s][0] * r->grid[s][1] * r->grid[s][2];
		h->cu_text[i + 1] = h->cu_text[i] + r->cu_text[s + 1] - r->cu_text[s];
		h->dropped[i] = i >= r->n;
	}
	tokens = h->cu_seqlens[n];
	h->seg = vfm_calloc((size_t)tokens, sizeof(int32_t));
	h->idx = vfm_calloc((size_t)tokens, sizeof(int32_t));
	h->pos = vfm_calloc((size_t)tokens, sizeof(*h->pos));
	h->text = vfm_calloc((size_t)(rows * copies * text_dim) + 1, sizeof(float));
	for (int c = 0; c < copies; c++)
		memcpy(h->text + c * rows * text_dim, r->text, (size_t)(rows * text_dim) * sizeof(float));
	for (int i = 0; i < n; i++)
		fill_sample(h, i, r->grid[i % r->n]);
	h->p = (struct vfm_pack){.n = n, .tokens = tokens, .text_tokens = rows * copies, .id = h->id, .cu_seqlens = h->cu_seqlens,
		.cu_text = h->cu_text, .grid = (const int32_t (*)[3])h->grid, .seg = h->seg, .idx = h->idx, .pos = (const int16_t (*)[3])h->pos, .text = h->text};
}

/* A run under way.  x, f, d1 are [T,F] f32 on the device, T the tokens of the request (not of its copy). */
struct sampling {
	const struct vfm_sampler *s;
	const struct vfm_sample_job *job;
	struct vfm_tape *tape;
	struct vfm_model_in in;
	struct vfm_tensor x, f, y, d1; /* state; network output; trial point; slope */
	void *mem;
	size_t bytes;
	int n, copies;
	int64_t evals, total;
};

static int axpby(struct sampling *g, double alpha, const struct vfm_tensor *x, double beta, const struct vfm_tensor *y, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = (float)alpha, .beta = (float)beta, .x = *x, .y = *y};

	return vfm_op_axpby(g->job->stream, &a, err);
}

static struct vfm_tensor rows_of(const struct vfm_tensor *t, int64_t first, int64_t n)
{
	size_t row = (size_t)t->shape[1] * vfm_dtype_size(t->dtype);

	return vfm_t2((char *)t->data + (size_t)first * row, t->dtype, n, t->shape[1]);
}

/* f = the network's output at (x, noise), guided. */
static int evaluate(struct sampling *g, const struct vfm_tensor *x, double noise, struct vfm_err *err)
{
	double c_in = vfm_diffusion_c_in(g->job->diffusion, noise);
	struct vfm_draw at = vfm_diffusion_at(g->job->diffusion, noise);
	struct vfm_fill time = {.x = g->in.t_cond, .mean = at.t_cond};
	struct vfm_var *out;
	int64_t T = x->shape[0];
	int rc;

	if (g->s->progress)
		g->s->progress(g->s->ctx, g->evals, g->total);
	g->evals++;
	TRY(vfm_op_fill(g->job->stream, &time, err));
	for (int c = 0; c < g->copies; c++) {
		struct vfm_tensor half = rows_of(&g->in.x, c * T, T);

		TRY(axpby(g, c_in, x, 0, &half, err));
	}
	out = vfm_model_forward(g->job->net, g->tape, &g->in, 0, NULL, VFM_RECOMPUTE_NONE);
	rc = vfm_tape_status(g->tape, err);
	if (rc == 0) {
		struct vfm_tensor text = rows_of(&out->v, 0, T);

		rc = axpby(g, g->copies > 1 ? g->s->cfg : 1, &text, 0, &g->f, err);
		if (rc == 0 && g->copies > 1) {
			struct vfm_tensor none = rows_of(&out->v, T, T);

			rc = axpby(g, 1 - g->s->cfg, &none, 1, &g->f, err);
		}
	}
	vfm_tape_reset(g->tape);
	return rc;
}

/* d = dx/dnoise at (x, noise) of the probability-flow ODE, from the network's output in f. */
static int slope(struct sampling *g, const struct vfm_tensor *x, double noise, const struct vfm_tensor *d, struct vfm_err *err)
{
	double a, b;

	TRY(evaluate(g, x, noise, err));
	if (g->job->diffusion->kind == VFM_FLOW)
		return axpby(g, 1, &g->f, 0, d, err);
	vfm_diffusion_denoise(g->job->diffusion, noise, &a, &b); /* d = (x - (a x + b f)) / sigma */
	TRY(axpby(g, (1 - a) / noise, x, 0, d, err));
	return axpby(g, -b / noise, &g->f, 1, d, err);
}

static double noise_at(const struct sampling *g, int64_t i)
{
	const struct vfm_sampler *s = g->s;
	double u, lo, hi;

	if (i >= s->steps)
		return 0;
	if (g->job->diffusion->kind == VFM_FLOW) {
		u = 1 - (double)i / (double)s->steps;
		return g->job->diffusion->shift * u / (1 + (g->job->diffusion->shift - 1) * u);
	}
	u = s->steps > 1 ? (double)i / (double)(s->steps - 1) : 0;
	hi = pow(s->sigma_max, 1 / s->rho);
	lo = pow(s->sigma_min, 1 / s->rho);
	return pow(hi + u * (lo - hi), s->rho);
}

static int integrate(struct sampling *g, bool heun, struct vfm_err *err)
{
	g->total = heun ? 2 * g->s->steps - 1 : g->s->steps;
	for (int64_t i = 0; i < g->s->steps; i++) {
		double now = noise_at(g, i), next = noise_at(g, i + 1), dt = next - now;

		TRY(slope(g, &g->x, now, &g->d1, err));
		if (!heun || next == 0) {
			TRY(axpby(g, dt, &g->d1, 1, &g->x, err));
			continue;
		}
		TRY(axpby(g, 1, &g->x, 0, &g->y, err));
		TRY(axpby(g, dt, &g->d1, 1, &g->y, err));
		TRY(axpby(g, dt / 2, &g->d1, 1, &g->x, err));
		TRY(slope(g, &g->y, next, &g->d1, err));
		TRY(axpby(g, dt / 2, &g->d1, 1, &g->x, err));
	}
	return 0;
}

static int start(struct sampling *g, const struct pack_host *h, struct vfm_err *err)
{
	const struct vfm_sample_job *j = g->job;
	int64_t T = h->cu_seqlens[g->n], F = vfm_model_patch_dim(j->model);
	size_t one = ((size_t)(T * F) * 4 + 63) / 64 * 64;
	struct vfm_tensor *t[] = {&g->x, &g->f, &g->y, &g->d1};

	g->bytes = 4 * one;
	g->mem = vfm_dev_alloc(j->stream, g->bytes, "the state of the sampler", err);
	if (!g->mem)
		return VFM_EENV;
	for (int i = 0; i < 4; i++)
		*t[i] = vfm_t2((char *)g->mem + (size_t)i * one, VFM_F32, T, F);
	for (int i = 0; i < g->n; i++) {
		struct vfm_tensor rows = rows_of(&g->x, h->cu_seqlens[i], h->cu_seqlens[i + 1] - h->cu_seqlens[i]);
		struct vfm_fill f = {.x = vfm_t1(rows.data, VFM_F32, vfm_numel(&rows)), .std = (float)noise_at(g, 0)};

		f.rng = vfm_rng_stream(g->s->seed, 0, h->id[i], VFM_RNG_SAMPLE);
		TRY(vfm_op_fill(j->stream, &f, err));
	}
	return vfm_model_in_make(&g->in, j->stream, j->mesh, j->model, &h->p, h->dropped, j->dtype, err);
}

int vfm_sampler_run(const struct vfm_sampler *s, const struct vfm_sample_job *job, const struct vfm_sample_request *r, float *tokens,
	struct vfm_err *err)
{
	bool heun = s->kind == VFM_SAMPLER_HEUN || (s->kind == VFM_SAMPLER_AUTO && job->diffusion->kind == VFM_EDM);
	struct sampling g = {.s = s, .job = job, .n = r->n, .copies = s->cfg == 1 ? 1 : 2};
	const struct vfm_dev_table *t = job->stream->dev->t;
	struct pack_host h = {0};
	int rc;

	TRY(vfm_sampler_check(s, job->diffusion, err));
	pack_make(&h, r, g.copies, job->model->text_dim);
	g.tape = vfm_tape_new(job->stream);
	vfm_tape_set_recording(g.tape, false);
	TRY_OUT(start(&g, &h, err));
	TRY_OUT(integrate(&g, heun, err));
	TRY_OUT(t->to_host(job->stream, tokens, g.x.data, vfm_nbytes(&g.x), err));
	rc = t->stream_sync(job->stream, err);
out:
	vfm_tape_free(g.tape);
	vfm_model_in_release(&g.in);
	vfm_dev_free(job->stream, g.mem, g.bytes);
	pack_release(&h);
	return rc;
}
