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
		return vfm_fail(
			err, VFM_EUSAGE, "the heun sampler is for edm; this model was trained with flow (use euler)");
	if (!(s->sigma_min > 0) || !(s->sigma_max > s->sigma_min) || !isfinite(s->sigma_max) || !(s->rho > 0))
		return vfm_fail(err, VFM_EUSAGE,
			"expected 0 < sigma_min (%g) < sigma_max and rho > 0, got sigma_max %g", s->sigma_min,
			s->sigma_max);
	if (!isfinite(s->cfg))
		return vfm_fail(err, VFM_EUSAGE, "cfg: expected a number");
	return 0;
}

/* A run of consecutive samples that are all guided, or all unguided. */
struct span {
	int64_t row, rows; /* rows in the state, and in the pack */
	int64_t negative;  /* first pack row of their copies with the negative text; -1: unguided */
};

/* The samples of a request as a pack, followed by a copy of the guided samples with their negative text. */
struct request_pack {
	struct vfm_pack p;
	bool *dropped; /* [p.n] samples with the null text */
	bool *given;   /* [p.n] samples whose first frame is given */
	struct span *span;
	int n_spans;
};

static void release_request_pack(struct request_pack *q)
{
	vfm_pack_release(&q->p);
	free(q->dropped);
	free(q->given);
	free(q->span);
}

static int32_t text_rows(const int32_t *cu, int s)
{
	return cu ? cu[s + 1] - cu[s] : 0;
}

/* Returns the number of text rows of a sample in the pack.  A null text has as many rows as the prompt, at least one.
 */
static int32_t pack_text_rows(const struct vfm_sample_request *r, int s, bool negative)
{
	int32_t own = text_rows(r->cu_text, s), other = negative ? text_rows(r->cu_negative, s) : 0;

	return other ? other : own ? own : 1;
}

/* Fills in the text of pack sample `at`: rows of the request, or zeros. */
static void fill_text(struct request_pack *q, int at, const struct vfm_sample_request *r, int s, bool negative)
{
	const int32_t *cu = negative ? r->cu_negative : r->cu_text;
	float *text = q->p.text + (int64_t)q->p.cu_text[at] * q->p.text_dim;
	size_t bytes = (size_t)(q->p.cu_text[at + 1] - q->p.cu_text[at]) * (size_t)q->p.text_dim * sizeof(float);

	q->dropped[at] = text_rows(cu, s) == 0;
	if (q->dropped[at])
		memset(text, 0, bytes);
	else
		memcpy(text, (negative ? r->negative : r->text) + (int64_t)cu[s] * q->p.text_dim, bytes);
}

/* Copies what sample `at` of the pack has besides the text.  s: its number in the request. */
static void fill_conditions(struct request_pack *q, int at, const struct vfm_sample_request *r, int s)
{
	struct vfm_pack *p = &q->p;
	size_t image = (size_t)p->image_len * (size_t)p->image_dim;
	int64_t row = 0;

	for (int i = 0; i < s; i++)
		row += (int64_t)r->grid[i][0] * r->grid[i][1] * r->grid[i][2];
	if (p->cond)
		memcpy((float *)p->cond + (int64_t)p->cu_seqlens[at] * p->cond_dim, r->cond + row * p->cond_dim,
			(size_t)(p->cu_seqlens[at + 1] - p->cu_seqlens[at]) * (size_t)p->cond_dim * sizeof(float));
	if (p->image)
		memcpy(p->image + (size_t)at * image, r->image + (size_t)s * image, image * sizeof(float));
	q->given[at] = r->first_frame && r->first_frame[s];
}

static void add_span(struct request_pack *q, int s, int64_t negative)
{
	struct span *last = q->n_spans ? &q->span[q->n_spans - 1] : NULL;
	int64_t row = q->p.cu_seqlens[s], rows = q->p.cu_seqlens[s + 1] - row;

	if (last && (last->negative < 0) == (negative < 0))
		last->rows += rows;
	else
		q->span[q->n_spans++] = (struct span){row, rows, negative};
}

static bool is_guided(const struct vfm_sample_request *r, int s, double cfg)
{
	return cfg != 1 && (text_rows(r->cu_text, s) || text_rows(r->cu_negative, s));
}

static int make_request_pack(struct request_pack *q, const struct vfm_sample_request *r, double cfg,
	const struct vfm_model_spec *m, struct vfm_err *err)
{
	int at = 0;

	*q = (struct request_pack){.p = {.text_dim = (int32_t)m->text_dim,
					   .cond_dim = r->cond ? (int32_t)vfm_model_cond_dim(m) : 0,
					   .image_dim = r->image ? (int32_t)m->image_dim : 0,
					   .image_len = (int32_t)m->image_len}};
	for (int i = 0; i < 2 * r->n; i++) {
		int s = i % r->n;

		if (i >= r->n && !is_guided(r, s, cfg))
			continue;
		q->p.n++;
		q->p.tokens += (int64_t)r->grid[s][0] * r->grid[s][1] * r->grid[s][2];
		q->p.text_tokens += pack_text_rows(r, s, i >= r->n);
	}
	TRY(vfm_pack_alloc(&q->p, err));
	q->dropped = vfm_calloc((size_t)q->p.n, sizeof(*q->dropped));
	q->given = vfm_calloc((size_t)q->p.n, sizeof(*q->given));
	q->span = vfm_calloc((size_t)r->n, sizeof(*q->span));
	for (int i = 0; i < 2 * r->n; i++) {
		int s = i % r->n;
		bool negative = i >= r->n;

		if (negative && !is_guided(r, s, cfg)) {
			add_span(q, s, -1);
			continue;
		}
		vfm_pack_set(&q->p, at, r->id[s], r->grid[s], pack_text_rows(r, s, negative));
		fill_text(q, at, r, s, negative);
		fill_conditions(q, at, r, s);
		if (negative)
			add_span(q, s, q->p.cu_seqlens[at]);
		at++;
	}
	return 0;
}

/* Sampling on several ranks.  Every rank keeps the whole state, which is small compared with the activations, and feeds
 * its rows to the network.  An all-gather and a permutation then give all predictions in the order of the pack, so all
 * ranks hold the same bits. */
struct spread {
	void *mem;
	size_t bytes;
	struct vfm_tensor take;  /* [rows of this rank] i32: state row of each input row */
	struct vfm_tensor place; /* [P] i32: row in `all` of each pack row */
	struct vfm_tensor all;   /* [P, F] f32: predictions in rank order */
	struct vfm_tensor pred;  /* [P, F] f32: predictions in pack order */
	int64_t *count;          /* [ranks] elements from each rank */
	int32_t *host;
};

/* The state of a sampling run.  x, f, y, d1 are [T,F] f32 on the device; T: tokens of the request, without negatives.
 */
struct sampling {
	const struct vfm_sampler *s;
	const struct vfm_sample_job *job;
	struct vfm_tape *tape;
	struct vfm_model_in in;
	struct spread spread;
	struct vfm_tensor x, f, y, d1; /* state; network output; trial point; slope */
	struct vfm_tensor first;       /* [rows of all given first frames, F] f32 */
	void *mem;
	size_t bytes;
	const struct request_pack *pack;
	int n;
	int64_t evals, total;
	struct vfm_event *done[2]; /* end of the last two evaluations; NULL without progress callback */
};

static int axpby(struct sampling *g, double alpha, const struct vfm_tensor *x, double beta, const struct vfm_tensor *y,
	struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = (float)alpha, .beta = (float)beta, .x = *x, .y = *y};

	return vfm_op_axpby(g->job->stream, &a, err);
}

static struct vfm_tensor rows_of(const struct vfm_tensor *t, int64_t first, int64_t n)
{
	size_t row = (size_t)t->shape[1] * vfm_dtype_size(t->dtype);

	return vfm_t2((char *)t->data + (size_t)first * row, t->dtype, n, t->shape[1]);
}

/* ---- several ranks ---- */

static void place_spread(struct spread *p, int64_t rows, int64_t total, int64_t F, struct vfm_suballoc *a)
{
	p->take = vfm_sub_t1(a, VFM_I32, rows);
	p->place = vfm_sub_t1(a, VFM_I32, total);
	p->all = vfm_sub_t2(a, VFM_F32, total, F);
	p->pred = vfm_sub_t2(a, VFM_F32, total, F);
}

static int spread_alloc(struct sampling *g, int64_t rows, int64_t total, int64_t F, struct vfm_err *err)
{
	struct spread *p = &g->spread;
	struct vfm_suballoc count = {0};

	place_spread(p, rows, total, F, &count);
	p->bytes = count.used;
	p->mem = vfm_dev_alloc(g->job->stream, p->bytes, "predictions of all ranks", err);
	if (!p->mem)
		return VFM_EENV;
	place_spread(p, rows, total, F, &(struct vfm_suballoc){.base = p->mem});
	p->host = vfm_calloc((size_t)(rows + total) + 1, sizeof(int32_t));
	p->count = vfm_calloc((size_t)g->job->mesh->seq->size, sizeof(int64_t));
	return 0;
}

/* Returns the state row that is the input of a pack row.  T: rows of the state. */
static int32_t state_row(const struct request_pack *q, int64_t T, int32_t row)
{
	for (int k = 0; row >= T && k < q->n_spans; k++) {
		const struct span *s = &q->span[k];

		if (s->negative >= 0 && row >= s->negative && row < s->negative + s->rows)
			return (int32_t)(row - s->negative + s->row);
	}
	return row;
}

/* Computes the row maps between ranks and pack.  Rank cp_i * tp + tp_i of `seq` holds a part of the rows of cp rank
 * cp_i. */
static int spread_make(struct sampling *g, const struct vfm_pack *pack, int64_t T, int64_t F, struct vfm_err *err)
{
	const struct vfm_tokens *own = &g->in.tok;
	const struct vfm_dev_table *t = g->job->stream->dev->t;
	struct spread *p = &g->spread;
	const int32_t *rows = vfm_model_in_rows(&g->in);
	int32_t at = 0, *place;

	if (g->job->mesh->seq->size == 1)
		return 0;
	TRY(spread_alloc(g, own->rows, pack->tokens, F, err));
	place = p->host + own->rows;
	for (int64_t i = 0; i < own->rows; i++)
		p->host[i] = state_row(g->pack, T, rows[i]);
	for (int c = 0; c < own->cp; c++) {
		struct vfm_tokens tok;

		vfm_tokens_make(&tok, pack->n, pack->cu_seqlens, own->cp, c, own->a2a, own->tp, 0);
		for (int64_t i = 0; i < tok.rows_cp[c]; i++)
			place[tok.pack_row[i]] = at++;
		for (int k = 0; k < own->tp; k++)
			p->count[c * own->tp + k] = tok.rows_tp[k] * F;
		vfm_tokens_release(&tok);
	}
	TRY(t->to_device(g->job->stream, p->take.data, p->host, vfm_nbytes(&p->take), err));
	return t->to_device(g->job->stream, p->place.data, place, vfm_nbytes(&p->place), err);
}

static void spread_release(struct sampling *g)
{
	vfm_dev_free(g->job->stream, g->spread.mem, g->spread.bytes);
	free(g->spread.host);
	free(g->spread.count);
}

/* Writes the network's input: this rank's rows of c_in x, for the texts and the negative texts. */
static int write_input(struct sampling *g, double c_in, const struct vfm_tensor *x, struct vfm_err *err)
{
	struct vfm_tensor scaled = rows_of(&g->spread.pred, 0, x->shape[0]);
	struct vfm_tensor part = rows_of(&g->in.x, 0, x->shape[0]);

	if (g->spread.mem) {
		struct vfm_index_select r = {.x = scaled, .index = g->spread.take, .y = g->in.x};

		TRY(axpby(g, c_in, x, 0, &scaled, err));
		return vfm_op_index_select(g->job->stream, &r, err);
	}
	TRY(axpby(g, c_in, x, 0, &part, err));
	for (int k = 0; k < g->pack->n_spans; k++) {
		const struct span *s = &g->pack->span[k];
		struct vfm_tensor rows = rows_of(x, s->row, s->rows);

		if (s->negative < 0)
			continue;
		part = rows_of(&g->in.x, s->negative, s->rows);
		TRY(axpby(g, c_in, &rows, 0, &part, err));
	}
	return 0;
}

/* Sets *out to the predictions for all pack rows, in pack order. */
static int gather_predictions(
	struct sampling *g, const struct vfm_tensor *own, struct vfm_tensor *out, struct vfm_err *err)
{
	struct spread *p = &g->spread;
	struct vfm_index_select r = {.x = p->all, .index = p->place, .y = p->pred};

	*out = *own;
	if (!p->mem)
		return 0;
	TRY(vfm_all_gather(g->job->mesh->seq, g->job->stream, *own, p->all, p->count, err));
	*out = p->pred;
	return vfm_op_index_select(g->job->stream, &r, err);
}

/* Reports progress.  Limits the lead of the host to one evaluation, so that the report matches the device. */
static int report_progress(struct sampling *g, struct vfm_err *err)
{
	struct vfm_event *before = g->done[g->evals % 2];

	if (!g->s->progress)
		return 0;
	TRY(g->job->stream->dev->t->event_sync(before, err));
	g->s->progress(g->s->ctx, g->evals, g->total);
	return 0;
}

/* f = F(negative) + cfg (F(text) - F(negative)); f = F(text) for unguided samples. */
static int apply_guidance(struct sampling *g, const struct vfm_tensor *pred, struct vfm_err *err)
{
	for (int k = 0; k < g->pack->n_spans; k++) {
		const struct span *s = &g->pack->span[k];
		struct vfm_tensor text = rows_of(pred, s->row, s->rows), f = rows_of(&g->f, s->row, s->rows), negative;

		TRY(axpby(g, s->negative >= 0 ? g->s->cfg : 1, &text, 0, &f, err));
		if (s->negative < 0)
			continue;
		negative = rows_of(pred, s->negative, s->rows);
		TRY(axpby(g, 1 - g->s->cfg, &negative, 1, &f, err));
	}
	return 0;
}

/* Sets the times of the segments: 0 for given frames. */
static int write_times(struct sampling *g, double noise, struct vfm_err *err)
{
	struct vfm_draw at = vfm_diffusion_at(g->job->diffusion, noise);
	struct vfm_fill time = {.x = g->in.t_cond, .mean = at.t_cond};

	TRY(vfm_op_fill(g->job->stream, &time, err));
	time.mean = vfm_diffusion_given().t_cond;
	for (int s = 0; s < g->in.segs.n; s++) {
		time.x = vfm_t1((float *)g->in.t_cond.data + s, VFM_F32, 1);
		if (g->in.seg_given[s])
			TRY(vfm_op_fill(g->job->stream, &time, err));
	}
	return 0;
}

/* Returns the rows of sample i's first frame, which stand in front of its other rows. */
static int64_t first_rows(const struct vfm_pack *p, int i)
{
	return (int64_t)p->grid[i][1] * p->grid[i][2];
}

/* Overwrites the given first frames in x [T,F]. */
static int restore_given(struct sampling *g, const struct vfm_tensor *x, struct vfm_err *err)
{
	const struct vfm_pack *p = &g->pack->p;
	int64_t at = 0;

	for (int i = 0; i < g->n; i++) {
		struct vfm_tensor from, to;

		if (!g->pack->given[i])
			continue;
		from = rows_of(&g->first, at, first_rows(p, i));
		to = rows_of(x, p->cu_seqlens[i], first_rows(p, i));
		TRY(axpby(g, 1, &from, 0, &to, err));
		at += first_rows(p, i);
	}
	return 0;
}

/* f = the guided network output at (x, noise).  Given first frames in x are overwritten. */
static int evaluate(struct sampling *g, const struct vfm_tensor *x, double noise, struct vfm_err *err)
{
	double c_in = vfm_diffusion_c_in(g->job->diffusion, noise);
	struct vfm_tensor pred;
	struct vfm_var *out;
	int rc;

	TRY(report_progress(g, err));
	TRY(write_times(g, noise, err));
	TRY(restore_given(g, x, err));
	TRY(write_input(g, c_in, x, err));
	out = vfm_model_forward(g->job->net, g->tape, &g->in, 0, NULL, NULL);
	rc = vfm_tape_status(g->tape, err);
	if (rc == 0)
		rc = gather_predictions(g, &out->v, &pred, err);
	if (rc == 0)
		rc = apply_guidance(g, &pred, err);
	vfm_tape_reset(g->tape);
	if (rc == 0 && g->s->progress)
		rc = g->job->stream->dev->t->event_record(g->done[g->evals % 2], g->job->stream, err);
	g->evals++;
	return rc;
}

/* d = dx/dnoise of the probability-flow ODE at (x, noise); also sets f. */
static int slope(
	struct sampling *g, const struct vfm_tensor *x, double noise, const struct vfm_tensor *d, struct vfm_err *err)
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
	return restore_given(g, &g->x, err);
}

/* Returns the rows of all given first frames. */
static int64_t given_rows(const struct sampling *g)
{
	int64_t rows = 0;

	for (int i = 0; i < g->n; i++)
		rows += g->pack->given[i] ? first_rows(&g->pack->p, i) : 0;
	return rows;
}

static int upload_first_frames(struct sampling *g, const struct vfm_sample_request *r, struct vfm_err *err)
{
	int64_t at = 0;

	for (int i = 0; i < g->n; i++) {
		struct vfm_tensor to;

		if (!g->pack->given[i])
			continue;
		to = rows_of(&g->first, at, first_rows(&g->pack->p, i));
		TRY(g->job->stream->dev->t->to_device(
			g->job->stream, to.data, r->first_frame[i], vfm_nbytes(&to), err));
		at += to.shape[0];
	}
	return 0;
}

static void place_state(struct sampling *g, int64_t T, int64_t F, struct vfm_suballoc *a)
{
	g->x = vfm_sub_t2(a, VFM_F32, T, F);
	g->f = vfm_sub_t2(a, VFM_F32, T, F);
	g->y = vfm_sub_t2(a, VFM_F32, T, F);
	g->d1 = vfm_sub_t2(a, VFM_F32, T, F);
	g->first = vfm_sub_t2(a, VFM_F32, given_rows(g), F);
}

static int init_state(struct sampling *g, const struct vfm_sample_request *r, struct vfm_err *err)
{
	const struct vfm_pack *pack = &g->pack->p;
	const struct vfm_model_conds conds = {g->pack->dropped, g->pack->given};
	const struct vfm_sample_job *j = g->job;
	int64_t T = pack->cu_seqlens[g->n], F = vfm_model_patch_dim(j->model);
	struct vfm_suballoc count = {0};

	place_state(g, T, F, &count);
	g->bytes = count.used;
	g->mem = vfm_dev_alloc(j->stream, g->bytes, "the state of the sampler", err);
	if (!g->mem)
		return VFM_EENV;
	place_state(g, T, F, &(struct vfm_suballoc){.base = g->mem});
	for (int i = 0; i < g->n; i++) {
		struct vfm_tensor rows =
			rows_of(&g->x, pack->cu_seqlens[i], pack->cu_seqlens[i + 1] - pack->cu_seqlens[i]);
		struct vfm_fill f = {.x = vfm_t1(rows.data, VFM_F32, vfm_numel(&rows)), .std = (float)noise_at(g, 0)};

		f.rng = vfm_rng_stream(g->s->seed, 0, pack->id[i], VFM_RNG_SAMPLE);
		TRY(vfm_op_fill(j->stream, &f, err));
	}
	TRY(vfm_model_in_make(&g->in, j->stream, j->mesh, j->model, pack, &conds, j->dtype, err));
	TRY(upload_first_frames(g, r, err));
	return spread_make(g, pack, T, F, err);
}

int vfm_sampler_run(const struct vfm_sampler *s, const struct vfm_sample_job *job, const struct vfm_sample_request *r,
	float *tokens, struct vfm_err *err)
{
	bool heun = s->kind == VFM_SAMPLER_HEUN || (s->kind == VFM_SAMPLER_AUTO && job->diffusion->kind == VFM_EDM);
	struct sampling g = {.s = s, .job = job, .n = r->n};
	const struct vfm_dev_table *t = job->stream->dev->t;
	struct request_pack pack = {0};
	int rc;

	TRY(vfm_sampler_check(s, job->diffusion, err));
	if (r->first_frame && job->diffusion->kind != VFM_FLOW)
		return vfm_fail(err, VFM_EUSAGE, "only a model that was trained with flow takes a given first frame");
	g.tape = vfm_tape_new(job->stream);
	vfm_tape_set_recording(g.tape, false);
	TRY_OUT(make_request_pack(&pack, r, s->cfg, job->model, err));
	g.pack = &pack;
	for (int i = 0; i < 2 && s->progress; i++) {
		g.done[i] = t->event_new(job->stream->dev, err);
		rc = g.done[i] ? 0 : VFM_EENV;
		TRY_OUT(rc);
	}
	TRY_OUT(init_state(&g, r, err));
	TRY_OUT(integrate(&g, heun, err));
	TRY_OUT(t->to_host(job->stream, tokens, g.x.data, vfm_nbytes(&g.x), err));
	rc = t->stream_sync(job->stream, err);
out:
	for (int i = 0; i < 2; i++)
		if (g.done[i])
			t->event_free(g.done[i]);
	vfm_tape_free(g.tape);
	spread_release(&g);
	vfm_model_in_release(&g.in);
	vfm_dev_free(job->stream, g.mem, g.bytes);
	release_request_pack(&pack);
	return rc;
}
