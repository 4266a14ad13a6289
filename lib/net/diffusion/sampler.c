/* sampler.c - runs the solver's steps on a device, with guidance, conditions and several ranks.
 *
 * All predictions of an evaluation are computed in one pack.  With vfm_sample_job.cfg_pair, one group of ranks computes
 * those of the texts and another those of the negative texts.  On a mesh the ranks that share a pack each compute their
 * tokens, with their pp stages, and all obtain its latents.
 */
#include "net/diffusion/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/comm.h"
#include "device/ops/ops.h"
#include "device/ops/tensor.h"
#include "net/diffusion/stages.h"

void vfm_sampler_defaults(struct vfm_sampler *s)
{
	*s = (struct vfm_sampler){
		.cfg = 3, .cfg_end = NAN, .low_noise_cfg = NAN, .cfg_interval = {0, INFINITY}, .guidance = 6};
	vfm_solver_defaults(&s->solver);
}

int vfm_sampler_check(const struct vfm_sampler *s, const struct vfm_diffusion *d, struct vfm_err *err)
{
	TRY(vfm_solver_check(&s->solver, d, err));
	if (!isfinite(s->cfg) || isinf(s->cfg_end) || isinf(s->low_noise_cfg))
		return vfm_fail(err, VFM_EUSAGE, "cfg: expected a number");
	if (!isnan(s->cfg_end) && !isnan(s->low_noise_cfg))
		return vfm_fail(
			err, VFM_EUSAGE, "cfg: a ramp is for one network, not for two with scales of their own");
	if (!(s->cfg_interval[0] >= 0) || !(s->cfg_interval[1] >= s->cfg_interval[0]))
		return vfm_fail(err, VFM_EUSAGE, "cfg interval: expected 0 <= LO <= HI, got %g:%g", s->cfg_interval[0],
			s->cfg_interval[1]);
	if (s->boundary != 0 && d->kind != VFM_FLOW)
		return vfm_fail(
			err, VFM_EUSAGE, "boundary: two networks are for flow; this model was trained with edm");
	if (!(s->boundary >= 0) || !(s->boundary <= 1))
		return vfm_fail(err, VFM_EUSAGE, "boundary: expected a t from 0 to 1, got %g", s->boundary);
	return 0;
}

/* Returns whether the low-noise network computes an evaluation. */
static bool is_low_noise(const struct vfm_sampler *s, const struct vfm_solver_plan *p, const struct vfm_solver_eval *e)
{
	return s->boundary > 0 && (double)e->t_cond < p->d.time_scale * s->boundary;
}

bool vfm_sampler_is_guided(const struct vfm_sampler *s)
{
	return s->cfg != 1 || (!isnan(s->cfg_end) && s->cfg_end != 1) ||
		(!isnan(s->low_noise_cfg) && s->low_noise_cfg != 1);
}

double vfm_sampler_cfg(const struct vfm_sampler *s, const struct vfm_solver_plan *plan, const struct vfm_solver_eval *e)
{
	double last = plan->steps > 1 ? (double)(plan->steps - 1) : 1;

	if (e->noise < s->cfg_interval[0] || e->noise > s->cfg_interval[1])
		return 1;
	if (is_low_noise(s, plan, e) && !isnan(s->low_noise_cfg))
		return s->low_noise_cfg;
	return isnan(s->cfg_end) ? s->cfg : s->cfg + (s->cfg_end - s->cfg) * (double)e->level / last;
}

/* A run of consecutive samples that are all guided, or all unguided. */
struct block_span {
	int64_t row, rows; /* rows in the state, and in the pack */
	int64_t negative;  /* first pack row of their copies with the negative text; -1: unguided */
};

/* The parts of a guided request: the samples, and copies of the guided samples with their negative text. */
enum request_part { TEXTS = 1, NEGATIVES = 2 };

/* The samples of a request as a pack, followed by the copies; or one of these parts.  Rows of the whole pack number
 * the samples and the copies; rows of a part are numbered from `first`. */
struct request_pack {
	struct vfm_pack p;
	int parts;            /* enum request_part */
	int64_t first;        /* row of the whole pack */
	bool *dropped;        /* [p.n] samples with the null text */
	int32_t *given;       /* [p.n] given latent frames */
	const float **frames; /* [p.n] their tokens */
	struct block_span *span;
	int n_spans;
};

static void release_request_pack(struct request_pack *q)
{
	vfm_pack_release(&q->p);
	free(q->dropped);
	free(q->given);
	free(q->frames);
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

static int32_t text2_rows(const struct vfm_sample_request *r, int s, bool negative)
{
	return text_rows(negative ? r->cu_negative2 : r->cu_text2, s);
}

/* Fills in the second text of pack sample `at`. */
static void fill_text2(struct request_pack *q, int at, const struct vfm_sample_request *r, int s, bool negative)
{
	const int32_t rows = text2_rows(r, s, negative);
	const float *from = negative ? r->negative2 : r->text2;

	if (!q->p.text2_dim)
		return;
	vfm_pack_set_text2(&q->p, at, rows);
	if (rows)
		memcpy(q->p.text2 + (int64_t)q->p.cu_text2[at] * q->p.text2_dim,
			from + (int64_t)(negative ? r->cu_negative2 : r->cu_text2)[s] * q->p.text2_dim,
			(size_t)rows * (size_t)q->p.text2_dim * sizeof(*from));
}

static void add_span(struct request_pack *q, int64_t row, int64_t rows, int64_t negative)
{
	int last = q->n_spans - 1;

	if (last >= 0 && (q->span[last].negative < 0) == (negative < 0))
		q->span[last].rows += rows;
	else
		q->span[q->n_spans++] = (struct block_span){row, rows, negative};
}

static int64_t grid_rows(const struct vfm_sample_request *r, int s)
{
	return (int64_t)r->grid[s][0] * r->grid[s][1] * r->grid[s][2];
}

static bool is_given(const struct vfm_sample_request *r, int s)
{
	return r->first_frame && r->first_frame[s];
}

/* Copies what sample `at` of the pack has besides the text.  s: its number in the request. */
static void fill_conditions(struct request_pack *q, int at, const struct vfm_sample_request *r, int s)
{
	struct vfm_pack *p = &q->p;
	size_t image = (size_t)p->image_len * (size_t)p->image_dim;
	int64_t row = 0;

	for (int i = 0; i < s; i++)
		row += grid_rows(r, i);
	if (p->cond)
		memcpy((float *)p->cond + (int64_t)p->cu_seqlens[at] * p->cond_dim, r->cond + row * p->cond_dim,
			(size_t)(p->cu_seqlens[at + 1] - p->cu_seqlens[at]) * (size_t)p->cond_dim * sizeof(float));
	if (p->image)
		memcpy(p->image + (size_t)at * image, r->image + (size_t)s * image, image * sizeof(float));
	q->given[at] = is_given(r, s);
	q->frames[at] = r->first_frame ? r->first_frame[s] : NULL;
}

static bool is_guided(const struct vfm_sample_request *r, int s)
{
	return text_rows(r->cu_text, s) || text_rows(r->cu_negative, s);
}

/* Returns whether any sample of a request can be guided. */
static bool has_guided(const struct vfm_sample_request *r)
{
	for (int s = 0; s < r->n; s++)
		if (is_guided(r, s))
			return true;
	return false;
}

/* Returns whether a pack of `parts` holds sample i < r->n, or the negative copy of sample i - r->n. */
static bool pack_holds(const struct vfm_sample_request *r, int parts, int i)
{
	return i < r->n ? parts & TEXTS : (parts & NEGATIVES) && is_guided(r, i - r->n);
}

static int make_request_pack(struct request_pack *q, const struct vfm_sample_request *r, int parts,
	const struct vfm_model_spec *m, struct vfm_err *err)
{
	int at = 0;

	*q = (struct request_pack){.p = {.text_dim = (int32_t)m->text_dim,
					   .text2_dim = (int32_t)m->text2_dim,
					   .cond_dim = r->cond ? (int32_t)vfm_model_cond_dim(m) : 0,
					   .image_dim = r->image ? (int32_t)m->image_dim : 0,
					   .image_len = (int32_t)m->image_len},
		.parts = parts};
	for (int i = 0; i < 2 * r->n; i++) {
		int s = i % r->n;

		if (!(parts & TEXTS) && i < r->n)
			q->first += grid_rows(r, s);
		if (!pack_holds(r, parts, i))
			continue;
		q->p.n++;
		q->p.tokens += grid_rows(r, s);
		q->p.text_tokens += pack_text_rows(r, s, i >= r->n);
		q->p.text2_tokens += m->text2_dim ? text2_rows(r, s, i >= r->n) : 0;
	}
	TRY(vfm_pack_alloc(&q->p, err));
	q->dropped = vfm_calloc((size_t)q->p.n, sizeof(*q->dropped));
	q->given = vfm_calloc((size_t)q->p.n, sizeof(*q->given));
	q->frames = vfm_calloc((size_t)q->p.n, sizeof(*q->frames));
	q->span = vfm_calloc((size_t)r->n, sizeof(*q->span));
	for (int i = 0; i < 2 * r->n; i++) {
		int s = i % r->n;
		bool negative = i >= r->n;

		if (pack_holds(r, parts, i)) {
			vfm_pack_set(&q->p, at, r->id[s], r->grid[s], pack_text_rows(r, s, negative));
			fill_text(q, at, r, s, negative);
			fill_text2(q, at, r, s, negative);
			fill_conditions(q, at, r, s);
			at++;
		}
	}
	return 0;
}

/* Sets the spans of the whole pack; guided: with the copies. */
static void set_spans(struct request_pack *q, const struct vfm_sample_request *r, bool guided)
{
	int64_t row = 0, negative = 0;

	for (int s = 0; s < r->n; s++)
		negative += grid_rows(r, s);
	for (int s = 0; s < r->n; s++) {
		bool copy = guided && is_guided(r, s);

		add_span(q, row, grid_rows(r, s), copy ? negative : -1);
		row += grid_rows(r, s);
		negative += copy ? grid_rows(r, s) : 0;
	}
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

/* A request pack on the device. */
struct pass {
	struct request_pack pack;
	struct vfm_tensor received; /* [rows,F] f32: predictions of the last pp stage */
	struct vfm_model_in in;
	struct spread spread;
};

/* The state of a sampling run.  x, y, f, h are [T,F] f32 on the device; T: tokens of the request, without copies. */
struct sampling {
	const struct vfm_sampler *s;
	const struct vfm_sample_job *job;
	const struct vfm_sample_request *r;
	struct vfm_solver_plan plan;
	struct vfm_stages stages;
	struct pass guided, plain; /* one that no evaluation uses is empty */
	/* state of the solver; point of an evaluation; output of the network; predictions, the newest is
	 * h[newest], the one before the next */
	struct vfm_tensor x, y, f, h[VFM_SOLVER_HISTORY];
	int newest;
	struct vfm_tensor first;     /* [rows of all given first frames, F] f32 */
	const struct vfm_tensor *at; /* the point: y, or x if they are equal */
	void *mem;
	size_t bytes;
	/* with cfg_pair: predictions of the whole pack [P,F] f32, and elements of both ranks */
	struct vfm_tensor both;
	void *both_mem;
	int64_t both_count[2];
	int64_t evals;
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

static int spread_alloc(
	struct spread *p, struct sampling *g, int64_t rows, int64_t total, int64_t F, struct vfm_err *err)
{
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

/* Returns the state row that is the input of a row of the whole pack.  T: rows of the state. */
static int32_t state_row(const struct request_pack *q, int64_t T, int64_t row)
{
	for (int k = 0; row >= T && k < q->n_spans; k++) {
		const struct block_span *s = &q->span[k];

		if (s->negative >= 0 && row >= s->negative && row < s->negative + s->rows)
			return (int32_t)(row - s->negative + s->row);
	}
	return (int32_t)row;
}

/* Computes the row maps between ranks and pack.  Rank cp_i * tp + tp_i of `seq` holds a part of the rows of cp rank
 * cp_i. */
static int spread_make(struct sampling *g, struct pass *a, int64_t F, struct vfm_err *err)
{
	const struct vfm_pack *pack = &a->pack.p;
	const struct vfm_tokens *own = &a->in.tok;
	const struct vfm_dev_table *t = g->job->stream->dev->t;
	struct spread *p = &a->spread;
	const int32_t *rows = vfm_model_in_rows(&a->in);
	int32_t at = 0, *place;

	if (g->job->mesh->seq->size == 1)
		return 0;
	TRY(spread_alloc(p, g, own->rows, pack->tokens, F, err));
	place = p->host + own->rows;
	for (int64_t i = 0; i < own->rows; i++)
		p->host[i] = state_row(&a->pack, g->x.shape[0], a->pack.first + rows[i]);
	for (int c = 0; c < own->cp; c++) {
		struct vfm_tokens tok;

		vfm_model_in_tokens(&a->in, pack->n, g->job->mesh, c, &tok);
		for (int64_t i = 0; i < tok.rows_cp[c]; i++)
			place[tok.pack_row[i]] = at++;
		for (int k = 0; k < own->tp; k++)
			p->count[c * own->tp + k] = tok.rows_tp[k] * F;
		vfm_tokens_release(&tok);
	}
	TRY(t->to_device(g->job->stream, p->take.data, p->host, vfm_nbytes(&p->take), err));
	return t->to_device(g->job->stream, p->place.data, place, vfm_nbytes(&p->place), err);
}

static void pass_release(struct sampling *g, struct pass *a)
{
	vfm_dev_free(g->job->stream, a->spread.mem, a->spread.bytes);
	vfm_dev_free(g->job->stream, a->received.data, vfm_nbytes(&a->received));
	free(a->spread.host);
	free(a->spread.count);
	vfm_model_in_release(&a->in);
	release_request_pack(&a->pack);
}

/* Allocates the predictions of a rank that is not on the last pp stage. */
static int alloc_received(struct sampling *g, struct pass *a, int64_t F, struct vfm_err *err)
{
	const struct vfm_mesh *mesh = g->job->mesh;

	if (mesh->coord[VFM_AX_PP] == mesh->size[VFM_AX_PP] - 1 || !a->in.tok.rows)
		return 0;
	a->received = vfm_t2(NULL, VFM_F32, a->in.tok.rows, F);
	a->received.data = vfm_dev_alloc(g->job->stream, vfm_nbytes(&a->received), "predictions", err);
	return a->received.data ? 0 : VFM_EENV;
}

/* Uploads a pack of the request: guided, the part of this rank, or the samples alone. */
static int pass_make(struct sampling *g, struct pass *a, bool guided, struct vfm_err *err)
{
	const struct vfm_sample_job *j = g->job;
	int64_t F = vfm_model_patch_dim(j->model);
	struct vfm_model_conds conds;
	int parts = TEXTS;

	if (guided)
		parts = !j->cfg_pair ? TEXTS | NEGATIVES : j->cfg_pair->rank == 0 ? TEXTS : NEGATIVES;
	TRY(make_request_pack(&a->pack, g->r, parts, j->model, err));
	set_spans(&a->pack, g->r, guided);
	conds = (struct vfm_model_conds){.drop_text = a->pack.dropped,
		.given = a->pack.given,
		.frames = a->pack.frames,
		.guidance = (float)g->s->guidance};
	TRY(vfm_model_in_make(&a->in, j->stream, j->mesh, j->model, &a->pack.p, &conds, j->dtype, err));
	TRY(alloc_received(g, a, F, err));
	return spread_make(g, a, F, err);
}

/* Writes the network's input: this rank's rows of c_in x, for the samples and the negative copies. */
static int write_input(struct sampling *g, struct pass *a, double c_in, const struct vfm_tensor *x, struct vfm_err *err)
{
	const struct request_pack *q = &a->pack;
	struct vfm_tensor part;

	if (a->spread.mem) {
		struct vfm_index_select r = {.x = g->f, .index = a->spread.take, .y = a->in.x};

		TRY(axpby(g, c_in, x, 0, &g->f, err));
		return vfm_op_index_select(g->job->stream, &r, err);
	}
	part = rows_of(&a->in.x, 0, x->shape[0]);
	if (q->parts & TEXTS)
		TRY(axpby(g, c_in, x, 0, &part, err));
	for (int k = 0; k < q->n_spans && (q->parts & NEGATIVES); k++) {
		const struct block_span *s = &q->span[k];
		struct vfm_tensor rows = rows_of(x, s->row, s->rows);

		if (s->negative < 0)
			continue;
		part = rows_of(&a->in.x, s->negative - q->first, s->rows);
		TRY(axpby(g, c_in, &rows, 0, &part, err));
	}
	return 0;
}

/* Sends the predictions for this rank's rows from the last pp stage to the others. */
static int share_predictions(struct sampling *g, struct pass *a, struct vfm_tensor *own, struct vfm_err *err)
{
	struct vfm_comm *pp = g->job->mesh->group[VFM_AX_PP];
	int stages = g->job->mesh->size[VFM_AX_PP];

	if (stages == 1)
		return 0;
	if (!vfm_has(own))
		*own = a->received;
	return vfm_numel(own) ? vfm_broadcast(pp, g->job->stream, *own, stages - 1, err) : 0;
}

/* Sets *out to the predictions for all rows of the whole pack, in its order. */
static int gather_predictions(
	struct sampling *g, struct pass *a, const struct vfm_tensor *own, struct vfm_tensor *out, struct vfm_err *err)
{
	struct spread *p = &a->spread;
	struct vfm_index_select r = {.x = p->all, .index = p->place, .y = p->pred};

	*out = *own;
	if (p->mem) {
		TRY(vfm_all_gather(g->job->mesh->seq, g->job->stream, *own, p->all, p->count, err));
		*out = p->pred;
		TRY(vfm_op_index_select(g->job->stream, &r, err));
	}
	if (a != &g->guided || !g->job->cfg_pair)
		return 0;
	TRY(vfm_all_gather(g->job->cfg_pair, g->job->stream, *out, g->both, g->both_count, err));
	*out = g->both;
	return 0;
}

/* Reports progress.  Limits the lead of the host to one evaluation, so that the report matches the device. */
static int report_progress(struct sampling *g, struct vfm_err *err)
{
	struct vfm_event *before = g->done[g->evals % 2];

	if (!g->s->progress)
		return 0;
	TRY(g->job->stream->dev->t->event_sync(before, err));
	g->s->progress(g->s->ctx, g->evals, g->plan.evals);
	return 0;
}

/* f = F(negative) + cfg (F(text) - F(negative)); f = F(text) for unguided samples. */
static int apply_guidance(
	struct sampling *g, const struct pass *a, double cfg, const struct vfm_tensor *pred, struct vfm_err *err)
{
	for (int k = 0; k < a->pack.n_spans; k++) {
		const struct block_span *s = &a->pack.span[k];
		struct vfm_tensor text = rows_of(pred, s->row, s->rows), f = rows_of(&g->f, s->row, s->rows), negative;

		TRY(axpby(g, s->negative >= 0 ? cfg : 1, &text, 0, &f, err));
		if (s->negative < 0)
			continue;
		negative = rows_of(pred, s->negative, s->rows);
		TRY(axpby(g, 1 - cfg, &negative, 1, &f, err));
	}
	return 0;
}

/* Sets the times of the segments. */
static int write_times(struct sampling *g, struct pass *a, const struct vfm_solver_eval *e, struct vfm_err *err)
{
	struct vfm_fill time = {.x = a->in.t_cond, .mean = e->t_cond};

	TRY(vfm_op_fill(g->job->stream, &time, err));
	time.mean = vfm_diffusion_given(g->job->diffusion).t_cond;
	for (int s = 0; s < a->in.segs.n; s++) {
		time.x = vfm_t1((float *)a->in.t_cond.data + s, VFM_F32, 1);
		if (a->in.seg_given[s])
			TRY(vfm_op_fill(g->job->stream, &time, err));
	}
	return 0;
}

/* Returns the rows of sample i's first frame, which stand in front of its other rows. */
static int64_t first_rows(const struct vfm_sample_request *r, int i)
{
	return (int64_t)r->grid[i][1] * r->grid[i][2];
}

/* Overwrites given first frames that the model does not predict at the point, which is a tensor of the solver. */
static int restore_given(struct sampling *g, struct vfm_err *err)
{
	int64_t at = 0, row = 0;

	if (vfm_model_predicts_given(g->job->model))
		return 0;
	for (int i = 0; i < g->r->n; i++) {
		struct vfm_tensor from, to;

		if (is_given(g->r, i)) {
			from = rows_of(&g->first, at, first_rows(g->r, i));
			to = rows_of(g->at, row, first_rows(g->r, i));
			TRY(axpby(g, 1, &from, 0, &to, err));
			at += first_rows(g->r, i);
		}
		row += grid_rows(g->r, i);
	}
	return 0;
}

/* f = the guided network output at the point; given first frames of the point are overwritten.  Returns 1 if the caller
 * ends the run. */
static int evaluate(struct sampling *g, const struct vfm_solver_eval *e, struct vfm_err *err)
{
	const struct vfm_sample_job *j = g->job;
	double c_in = vfm_diffusion_c_in(j->diffusion, e->noise), cfg = vfm_sampler_cfg(g->s, &g->plan, e);
	struct pass *a = cfg != 1 && has_guided(g->r) ? &g->guided : &g->plain;
	bool low = is_low_noise(g->s, &g->plan, e);
	struct vfm_tensor own, pred;
	int rc;

	TRY(report_progress(g, err));
	rc = j->enter ? j->enter(j->enter_ctx, low, err) : 0;
	if (rc != 0)
		return rc;
	TRY(write_times(g, a, e, err));
	TRY(restore_given(g, err));
	TRY(write_input(g, a, c_in, g->at, err));
	rc = vfm_stages_forward(&g->stages, low ? j->low_noise : j->net, &a->in, &own, err);
	if (rc == 0)
		rc = share_predictions(g, a, &own, err);
	if (rc == 0)
		rc = gather_predictions(g, a, &own, &pred, err);
	if (rc == 0)
		rc = apply_guidance(g, a, cfg, &pred, err);
	vfm_stages_end(&g->stages);
	if (rc == 0 && g->s->progress)
		rc = j->stream->dev->t->event_record(g->done[g->evals % 2], j->stream, err);
	g->evals++;
	return rc;
}

/* to = coef[0] x + sum of coef[1 + j] h_j; to may be x. */
static int combine(struct sampling *g, const double *coef, const struct vfm_tensor *to, struct vfm_err *err)
{
	double beta = coef[0];

	if (to->data != g->x.data) {
		TRY(axpby(g, coef[0], &g->x, 0, to, err));
		beta = 1;
	}
	for (int j = g->plan.history - 1; j >= 0; j--) { /* the oldest first */
		const struct vfm_tensor *h = &g->h[(g->newest + j) % g->plan.history];

		if (coef[1 + j] == 0)
			continue;
		TRY(axpby(g, coef[1 + j], h, beta, to, err));
		beta = 1;
	}
	return beta == 1 ? 0 : axpby(g, 0, to, beta, to, err);
}

/* Returns whether a combination is x itself. */
static bool is_state(const double *coef)
{
	for (int j = 0; j < VFM_SOLVER_HISTORY; j++)
		if (coef[1 + j] != 0)
			return false;
	return coef[0] == 1;
}

static int integrate(struct sampling *g, struct vfm_err *err)
{
	for (int64_t k = 0; k < g->plan.evals; k++) {
		struct vfm_solver_eval e;
		struct vfm_tensor *h;
		int rc;

		vfm_solver_at(&g->plan, k, &e);
		rc = evaluate(g, &e, err);
		if (rc != 0)
			return rc;
		g->newest = (g->newest + g->plan.history - 1) % g->plan.history;
		h = &g->h[g->newest];
		if (e.pred[0] != 0)
			TRY(axpby(g, e.pred[0], g->at, 0, h, err));
		TRY(axpby(g, e.pred[1], &g->f, e.pred[0] != 0, h, err));
		TRY(combine(g, e.state, &g->x, err));
		g->at = &g->x;
		if (is_state(e.point))
			continue;
		TRY(combine(g, e.point, &g->y, err));
		g->at = &g->y;
	}
	return restore_given(g, err);
}

/* Returns the rows of all given first frames. */
static int64_t given_rows(const struct sampling *g)
{
	int64_t rows = 0;

	for (int i = 0; i < g->r->n; i++)
		rows += is_given(g->r, i) ? first_rows(g->r, i) : 0;
	return rows;
}

static int upload_first_frames(struct sampling *g, struct vfm_err *err)
{
	int64_t at = 0;

	for (int i = 0; i < g->r->n; i++) {
		struct vfm_tensor to;

		if (!is_given(g->r, i))
			continue;
		to = rows_of(&g->first, at, first_rows(g->r, i));
		TRY(g->job->stream->dev->t->to_device(
			g->job->stream, to.data, g->r->first_frame[i], vfm_nbytes(&to), err));
		at += to.shape[0];
	}
	return 0;
}

static void place_state(struct sampling *g, int64_t T, int64_t F, struct vfm_suballoc *a)
{
	g->x = vfm_sub_t2(a, VFM_F32, T, F);
	g->y = vfm_sub_t2(a, VFM_F32, T, F);
	g->f = vfm_sub_t2(a, VFM_F32, T, F);
	for (int j = 0; j < g->plan.history; j++)
		g->h[j] = vfm_sub_t2(a, VFM_F32, T, F);
	g->first = vfm_sub_t2(a, VFM_F32, given_rows(g), F);
}

static int init_state(struct sampling *g, struct vfm_err *err)
{
	const struct vfm_sample_job *j = g->job;
	int64_t T = 0, F = vfm_model_patch_dim(j->model), row = 0;
	struct vfm_suballoc count = {0};

	for (int i = 0; i < g->r->n; i++)
		T += grid_rows(g->r, i);
	place_state(g, T, F, &count);
	g->bytes = count.used;
	g->mem = vfm_dev_alloc(j->stream, g->bytes, "the state of the sampler", err);
	if (!g->mem)
		return VFM_EENV;
	place_state(g, T, F, &(struct vfm_suballoc){.base = g->mem});
	g->at = &g->x;
	for (int i = 0; i < g->r->n; i++) {
		struct vfm_tensor rows = rows_of(&g->x, row, grid_rows(g->r, i));
		struct vfm_fill f = {.x = vfm_t1(rows.data, VFM_F32, vfm_numel(&rows)), .std = (float)g->plan.start};

		f.rng = vfm_rng_stream(g->s->seed, 0, g->r->id[i], VFM_RNG_SAMPLE);
		TRY(vfm_op_fill(j->stream, &f, err));
		row += rows.shape[0];
	}
	return upload_first_frames(g, err);
}

/* Makes the passes that evaluations use. */
static int init_passes(struct sampling *g, struct vfm_err *err)
{
	int64_t F = g->x.shape[1], total = 0;
	bool guided = false, plain = false;

	for (int64_t k = 0; k < g->plan.evals; k++) {
		struct vfm_solver_eval e;
		bool one;

		vfm_solver_at(&g->plan, k, &e);
		one = has_guided(g->r) && vfm_sampler_cfg(g->s, &g->plan, &e) != 1;
		guided = guided || one;
		plain = plain || !one;
	}
	if (plain)
		TRY(pass_make(g, &g->plain, false, err));
	if (!guided)
		return 0;
	TRY(pass_make(g, &g->guided, true, err));
	if (!g->job->cfg_pair)
		return 0;
	for (int s = 0; s < g->r->n; s++)
		total += (is_guided(g->r, s) ? 2 : 1) * grid_rows(g->r, s);
	g->both_count[0] = g->x.shape[0] * F;
	g->both_count[1] = total * F - g->both_count[0];
	g->both_mem = vfm_dev_alloc(g->job->stream, (size_t)(total * F) * sizeof(float), "both predictions", err);
	g->both = vfm_t2(g->both_mem, VFM_F32, total, F);
	return g->both_mem ? 0 : VFM_EENV;
}

int vfm_sampler_run(const struct vfm_sampler *s, const struct vfm_sample_job *job, const struct vfm_sample_request *r,
	float *tokens, struct vfm_err *err)
{
	struct sampling g = {.s = s, .job = job, .r = r};
	const struct vfm_dev_table *t = job->stream->dev->t;
	int rc;

	TRY(vfm_sampler_check(s, job->diffusion, err));
	if (r->first_frame && job->diffusion->kind != VFM_FLOW)
		return vfm_fail(err, VFM_EUSAGE, "only a model that was trained with flow takes a given first frame");
	if ((s->boundary > 0) != (job->low_noise != NULL))
		return vfm_fail(
			err, VFM_EUSAGE, "boundary: it needs a network for low noise, and that network needs it");
	TRY_OUT(vfm_stages_new(&g.stages, job->mesh, job->stream, err));
	TRY_OUT(vfm_solver_plan_make(&g.plan, &s->solver, job->diffusion, err));
	for (int i = 0; i < 2 && s->progress; i++) {
		g.done[i] = t->event_new(job->stream->dev, err);
		rc = g.done[i] ? 0 : VFM_EENV;
		TRY_OUT(rc);
	}
	TRY_OUT(init_state(&g, err));
	TRY_OUT(init_passes(&g, err));
	rc = integrate(&g, err);
	if (rc != 0)
		goto out;
	TRY_OUT(t->to_host(job->stream, tokens, g.at->data, vfm_nbytes(g.at), err));
	rc = t->stream_sync(job->stream, err);
out:
	for (int i = 0; i < 2; i++)
		if (g.done[i])
			t->event_free(g.done[i]);
	vfm_stages_release(&g.stages);
	pass_release(&g, &g.guided);
	pass_release(&g, &g.plain);
	vfm_dev_free(job->stream, g.both_mem, vfm_nbytes(&g.both));
	vfm_dev_free(job->stream, g.mem, g.bytes);
	vfm_solver_plan_release(&g.plan);
	return rc;
}
