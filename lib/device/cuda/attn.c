/* attn.c - attention by cuDNN if it supports the operands, else by our own kernels.
 *
 * The first run of a plan times cuDNN's engines if the op is large (cudnn_attn.h), and compares its result with that of
 * our own kernels (attn.h).  A plan with a different result is refused, like one that cuDNN does not build.  Plans
 * belong to the process; a device that is opened again reuses them.
 *
 * VFM_CUDA_ATTN=own|cudnn forces one of them; cudnn-packed: cuDNN with offsets and a mask even for samples of equal
 * length; cudnn-apart: cuDNN with lse in its own layout.
 *
 * A bf16 op that falls back to our own kernels, although cuDNN should support it, is counted in the device; a warning
 * names each class of shapes once.  cuDNN never supports f32.  Samples that have queries without keys, or keys without
 * queries, are excluded, because cuDNN's results for them are wrong (NaN before 9.25); their rows are set
 * afterwards.
 */
#include "device/cuda/attn.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cuda/cuda_dev.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cudnn_attn.h"

enum mode { AUTO, OWN, CUDNN };

/* The deterministic backward of cuDNN stores dS of a whole piece, 2 bytes for each pair of a query and a key: at most 2
 * GiB, unless one sample and head needs more. */
enum { PAIRS = 1 << 30, MOST_GIB = 24 };
/* Limit of rows of scratch that is not packed, in a piece: with many short samples most of it is padding. */
enum { APART_ROWS = 1 << 17 };

/* FLOPs of ops whose engines are timed: at least some 500 us on an H100.  Building one more plan takes 0.4 s. */
static const double TUNE_FLOPS = 3e11;

struct plan {
	struct vfm_dnn_attn_key key;
	struct vfm_dnn_attn *a; /* NULL: cuDNN has none */
	bool refused;           /* cuDNN has none, refused to run it, or its result was wrong */
	bool checked;           /* its result agrees with our own kernels */
	bool timed;             /* the fastest of several, perhaps not the first that cuDNN recommends */
	unsigned silent;        /* runs whose result could not be compared (VFM_ATTN_SILENT) */
	struct vfm_err err;     /* why it is refused */
};

/* Graphs with the same result, in the order of preference: what cuDNN refuses falls to the next form, at last to our
 * own kernels.  The layout of lse is the likeliest cause: ours is [rows, heads]. */
static const struct form {
	const char *name;
	bool packed, apart, unified; /* see struct vfm_dnn_attn_key; packed: offsets even for samples of equal length */
} forms[] = {
	{"plain", false, false, false},
	{"lse by samples", false, true, false},
	{"packed", true, false, false},
	{"packed, lse by samples", true, true, false},
	{"one operation, lse by samples", false, true, true},
	{"one operation, packed", true, false, true},
};
enum { FORMS = sizeof(forms) / sizeof(forms[0]) };

/* A class of shapes with a form that cuDNN refuses, for warnings. */
struct refused {
	int64_t h, hkv, d;
	int kind; /* enum vfm_attn_kind, or -1 */
	int used; /* the form that runs instead; FORMS: our own kernels */
	bool bwd;
};

/* The settings that plans depend on besides their keys.  Compared as bytes: zero it first. */
struct setting {
	int ordinal; /* of the CUDA runtime */
	enum mode mode;
	bool only_packed, only_apart;
	bool tune; /* time the engines */
};

/* Of an open device, and so of its thread; after that on the list `idle`. */
struct vfm_cuda_attn {
	struct setting set;
	struct vfm_cuda_attn *next; /* on the list */
	struct vfm_dnn_on on;
	int sm;
	int64_t pairs; /* deterministic: limit of pairs in a piece (attn_pack.h) */
	double tune_flops;
	struct plan **plan;
	size_t n, cap;
	struct refused *refused; /* classes with a warning */
	size_t n_refused, cap_refused;
};

/* ---- plans ---- */

/* Contexts that no device uses.  They live as long as the process, as does the primary context of a device. */
static struct vfm_cuda_attn *idle;
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;

static int setting_of(const struct vfm_cuda *dev, struct setting *set, struct vfm_err *err)
{
	const char *e = getenv("VFM_CUDA_ATTN");

	memset(set, 0, sizeof(*set));
	set->ordinal = dev->ordinal;
	set->tune = !dev->deterministic && vfm_cuda_asked("VFM_CUDA_TUNE", true);
	if (!e || !*e)
		return 0;
	set->only_packed = strcmp(e, "cudnn-packed") == 0;
	set->only_apart = strcmp(e, "cudnn-apart") == 0;
	set->mode = strcmp(e, "own") == 0                                        ? OWN
		: strcmp(e, "cudnn") == 0 || set->only_packed || set->only_apart ? CUDNN
										 : AUTO;
	if (set->mode == AUTO)
		return vfm_fail(err, VFM_EUSAGE,
			"VFM_CUDA_ATTN: expected own, cudnn, cudnn-packed or cudnn-apart, got '%s'", e);
	return 0;
}

/* Takes an idle context with these settings; NULL if there is none. */
static struct vfm_cuda_attn *take_idle(const struct setting *set)
{
	struct vfm_cuda_attn **at = &idle, *c;

	pthread_mutex_lock(&idle_lock);
	while (*at && memcmp(&(*at)->set, set, sizeof(*set)) != 0)
		at = &(*at)->next;
	c = *at;
	if (c)
		*at = c->next;
	pthread_mutex_unlock(&idle_lock);
	return c;
}

/* Returns NULL with err set on errors. */
static struct vfm_cuda_attn *attn_context(struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_cuda *dev = vfm_cuda_of(s);
	struct vfm_cuda_attn *c = dev->attn;
	struct setting set;

	if (c)
		return c;
	if (setting_of(dev, &set, err) < 0)
		return NULL;
	c = take_idle(&set);
	if (!c) {
		c = vfm_calloc(1, sizeof(*c));
		memcpy(&c->set, &set, sizeof(set));
		c->sm = dev->sm;
		c->pairs = PAIRS;
		c->tune_flops = TUNE_FLOPS;
		if (set.mode != OWN && vfm_dnn_check(cudnnCreate(&c->on.handle), "opening it", err) < 0) {
			free(c);
			return NULL;
		}
	}
	dev->attn = c;
	return c;
}

void vfm_cuda_attn_close(struct vfm_cuda_attn *c)
{
	if (!c)
		return;
	c->n_refused = 0; /* the next device warns again */
	if (c->on.handle)
		cudnnSetStream(c->on.handle, NULL); /* its stream is gone */
	pthread_mutex_lock(&idle_lock);
	c->next = idle;
	idle = c;
	pthread_mutex_unlock(&idle_lock);
}

/* Returns how many plans to build, so that the fastest is chosen. */
static int plans_to_time(const struct vfm_cuda_attn *c, const struct vfm_dnn_attn_key *k)
{
	double flops = (k->bwd ? 10.0 : 4.0) * (double)(k->b * k->h * k->sq) * (double)(k->sk * k->d);

	return c->set.tune && flops >= c->tune_flops ? VFM_DNN_PLANS : 1;
}

static struct plan *add_plan(struct vfm_cuda_attn *c, const struct vfm_dnn_attn_key *key)
{
	struct plan *p = vfm_calloc(1, sizeof(*p));

	memcpy(&p->key, key, sizeof(*key));
	p->a = vfm_dnn_attn_new(&c->on, key, plans_to_time(c, key), &p->err);
	p->refused = !p->a;
	vfm_grow(&c->plan, &c->cap, c->n + 1, sizeof(*c->plan));
	return c->plan[c->n++] = p;
}

/* Returns the plan of this shape, or NULL.  Shapes without a plan are cached, too. */
static struct plan *plan_of(struct vfm_stream *s, struct vfm_cuda_attn *c, const struct vfm_dnn_attn_key *key,
	bool *refused, struct vfm_err *err)
{
	struct plan *p = NULL;

	for (size_t i = 0; i < c->n && !p; i++)
		p = memcmp(&c->plan[i]->key, key, sizeof(*key)) == 0 ? c->plan[i] : NULL;
	/* building a plan loads kernels, and its first run waits for the device */
	*refused = !(p && (p->checked || p->refused || p->silent)) &&
		vfm_cuda_refuse(vfm_cuda_of(s), vfm_cuda_stream(s), "attention of a new shape", true, err) < 0;
	if (*refused)
		return NULL;
	if (!p)
		p = add_plan(c, key);
	if (p->refused)
		vfm_fail(err, VFM_EENV, "%s", p->err.msg);
	return p->refused ? NULL : p;
}

/* ---- one op ---- */

/* The forward or the backward; tensors by enum vfm_dnn_rows, unused ones absent. */
struct attn_job {
	struct vfm_cuda_attn *c;
	struct vfm_stream *s;
	struct vfm_tensor x[VFM_DNN_ROWS], lse; /* operands of cuDNN: gradients may be in scratch */
	struct vfm_tensor to[VFM_DNN_ROWS];     /* destination of such gradients; else absent */
	const struct vfm_seqs *q, *k;
	float scale;
	const struct form *form;
	bool bwd, deterministic;
	bool refused; /* a capture refused to build a plan */
	bool again;   /* a plan has been replaced */
	int kind;     /* of the first piece; -1: none */
	struct vfm_attn_piece *piece;
	struct plan **plan; /* of each piece */
	int n;
};

static bool is_aligned(const struct vfm_tensor *t)
{
	return (uintptr_t)t->data % 16 == 0 && t->stride[1] == t->shape[2] && t->stride[0] % 8 == 0;
}

/* Heads of 72 (dit-xl) are not padded.  On sm_90 the kernels of cuDNN 9 have tiles of 64 or 128 columns for 72, 80, 96
 * and 128 alike: padding would change no tile, and move 128/72 times the bytes. */
static bool is_supported(const struct attn_job *j)
{
	for (int i = VFM_DNN_Q; i <= VFM_DNN_DOUT; i++)
		if (vfm_has(&j->x[i]) && (j->x[i].dtype != VFM_BF16 || !is_aligned(&j->x[i])))
			return false;
	return j->x[VFM_DNN_Q].shape[2] % 8 == 0 && j->x[VFM_DNN_Q].shape[2] <= 128;
}

/* Returns whether lse of a ragged plan, and scratch of its backward, is not packed.  cuDNN's kernels for some packed
 * backwards go wrong (its front end refuses them, too).  It is [b, h, sq] then; in a backward lse has zeros beyond the
 * lengths, because -inf would give NaN. */
static bool is_apart(const struct attn_job *j)
{
	if (j->form->apart)
		return true;
	return j->bwd && (j->x[VFM_DNN_Q].shape[2] % 16 != 0 || j->c->sm < 90 || j->c->sm >= 120);
}

/* Redirects gradients that no plan can write in place to contiguous scratch; it has no memory yet. */
static void redirect_gradients(struct attn_job *j, bool ragged)
{
	bool shared = j->x[VFM_DNN_Q].shape[1] != j->x[VFM_DNN_K].shape[1];

	for (int i = VFM_DNN_DQ; i <= VFM_DNN_DV; i++) {
		struct vfm_tensor *x = &j->x[i];
		bool sum = shared && i != VFM_DNN_DQ; /* over heads */
		bool no_f32 = x->dtype == VFM_F32 && (j->c->sm >= 100 || sum);
		/* packed scratch has the strides of its tensor, and those of a slice would make it several times as
		 * large */
		bool gaps = ragged && x->stride[0] != x->shape[1] * x->shape[2] && (i == VFM_DNN_DQ || sum);

		if (is_aligned(x) && !no_f32 && !gaps)
			continue;
		j->to[i] = *x;
		*x = vfm_t3(NULL, no_f32 ? VFM_BF16 : x->dtype, x->shape[0], x->shape[1], x->shape[2]);
	}
	/* dk and dv must have one dtype */
	if (j->x[VFM_DNN_DK].dtype != j->x[VFM_DNN_DV].dtype)
		for (int i = VFM_DNN_DK; i <= VFM_DNN_DV; i++) {
			if (!vfm_has(&j->to[i]))
				j->to[i] = j->x[i];
			j->x[i] = vfm_t3(NULL, VFM_BF16, j->x[i].shape[0], j->x[i].shape[1], j->x[i].shape[2]);
		}
}

static void fill_plan_key(const struct attn_job *j, const struct vfm_attn_piece *p, struct vfm_dnn_attn_key *key)
{
	int64_t group = j->x[VFM_DNN_Q].shape[1] / j->x[VFM_DNN_K].shape[1];

	memset(key, 0, sizeof(*key)); /* it is compared as bytes */
	key->b = p->b, key->sq = p->sq, key->sk = p->sk;
	key->h = p->heads * group, key->hkv = p->heads, key->d = j->x[VFM_DNN_Q].shape[2];
	key->lse_row = j->lse.shape[1];
	for (int i = 0; i < VFM_DNN_ROWS; i++)
		if (vfm_has(&j->x[i]))
			key->row[i] = j->x[i].stride[0];
	key->bwd = j->bwd;
	key->ragged = p->kind == VFM_ATTN_PACKED;
	key->dq_type = j->bwd ? j->x[VFM_DNN_DQ].dtype : VFM_BF16;
	key->dkv_type = j->bwd ? j->x[VFM_DNN_DK].dtype : VFM_BF16;
	key->deterministic = j->deterministic;
	key->apart = key->ragged ? is_apart(j) : j->form->apart;
	key->unified = j->form->unified;
}

/* Computes the pieces and their plans.  VFM_EENV: cuDNN does not support them. */
static int plan_pieces(struct attn_job *j, struct vfm_err *err)
{
	int64_t hkv = j->x[VFM_DNN_K].shape[1], group = j->x[VFM_DNN_Q].shape[1] / hkv;
	struct vfm_attn_limits lim = {.hkv = hkv,
		.group = group,
		.only_packed = j->form->packed,
		.pairs = j->deterministic ? j->c->pairs : 0,
		.rows = is_apart(j) ? APART_ROWS : 0};

	j->n = vfm_attn_pieces(j->q, j->k, &lim, &j->piece);
	j->kind = j->n ? (int)j->piece[0].kind : -1;
	if (j->bwd)
		redirect_gradients(j, j->n > 0 && j->piece[0].kind == VFM_ATTN_PACKED);
	j->plan = vfm_calloc((size_t)j->n + 1, sizeof(*j->plan));
	for (int i = 0; i < j->n; i++) {
		const struct vfm_attn_piece *p = &j->piece[i];
		struct vfm_dnn_attn_key key;

		if (j->deterministic &&
			(double)(p->heads * group * p->b) * (double)p->sq * (double)p->sk > MOST_GIB * 0x1p29)
			return vfm_fail(err, VFM_EENV, "attn_bwd: too many tokens for cuDNN's deterministic backward");
		fill_plan_key(j, p, &key);
		j->plan[i] = plan_of(j->s, j->c, &key, &j->refused, err);
		if (!j->plan[i])
			return VFM_EENV;
	}
	return 0;
}

/* ---- memory ---- */

enum { SCRATCH_ALIGN = 256 };

/* Allocates from the scratch of the op; NULL for 0 bytes. */
static void *take_scratch(struct vfm_suballoc *m, size_t bytes)
{
	return bytes ? vfm_suballoc(m, (int64_t)bytes, 1) : NULL;
}

struct attn_scratch {
	struct vfm_attn_lists lists;
	int64_t *first; /* with lse_padded: first row of each sample */
	float *lse_padded, *dsum, *dq_sum;
	void *dk_all, *dv_all, *workspace;
};

static void add_offset(struct vfm_suballoc *m, struct vfm_attn_lists *l, int64_t b, int64_t row, bool of_keys)
{
	l->offset[l->n].at = take_scratch(m, (size_t)(b + 1) * sizeof(int64_t));
	l->offset[l->n].row = row;
	l->offset[l->n++].of_keys = of_keys;
}

static bool is_key_operand(int i)
{
	return i == VFM_DNN_K || i == VFM_DNN_V || i == VFM_DNN_DK || i == VFM_DNN_DV;
}

/* Lays out the scratch of a piece.  Pieces run one after another and share it.  lists.offset: those of the tensors of
 * the plan in the order of enum vfm_dnn_rows, then that of lse or `first`. */
static struct attn_scratch lay_out_piece(const struct attn_job *j, const struct vfm_dnn_attn *a, struct vfm_suballoc *m)
{
	const struct vfm_dnn_attn_key *k = &a->key;
	struct vfm_dnn_attn_scratch need = vfm_dnn_attn_scratch(a, j->q->total, j->k->total);
	struct attn_scratch w = {0};

	if (k->ragged) {
		w.lists.len_q = take_scratch(m, (size_t)k->b * sizeof(int32_t));
		w.lists.len_k = take_scratch(m, (size_t)k->b * sizeof(int32_t));
		for (int i = 0; i < VFM_DNN_ROWS; i++)
			if (a->offset[i])
				add_offset(m, &w.lists, k->b, k->row[i], is_key_operand(i));
		add_offset(m, &w.lists, k->b, k->apart ? 1 : k->lse_row, false);
		w.first = w.lists.offset[w.lists.n - 1].at;
	}
	if (k->apart)
		w.lse_padded = take_scratch(m, (size_t)(k->b * k->h * k->sq) * sizeof(float));
	w.dsum = take_scratch(m, need.dsum);
	w.dq_sum = take_scratch(m, need.dq_sum);
	w.dk_all = take_scratch(m, need.dkv_all);
	w.dv_all = take_scratch(m, need.dkv_all);
	w.workspace = take_scratch(m, need.workspace);
	return w;
}

/* Returns the bytes of the redirected gradients and of the largest scratch of a piece. */
static size_t count_attn_scratch(const struct attn_job *j)
{
	struct vfm_suballoc count = {.align = SCRATCH_ALIGN};
	size_t most = 0;

	for (int i = 0; i < VFM_DNN_ROWS; i++)
		if (vfm_has(&j->to[i]))
			take_scratch(&count, vfm_nbytes(&j->x[i]));
	for (int i = 0; i < j->n; i++) {
		struct vfm_suballoc piece = {.align = SCRATCH_ALIGN};

		lay_out_piece(j, j->plan[i]->a, &piece);
		if (piece.used > most)
			most = piece.used;
	}
	return count.used + most + SCRATCH_ALIGN;
}

/* Places the redirected gradients; *m has the rest for the pieces. */
static void use_attn_scratch(struct attn_job *j, void *base, struct vfm_suballoc *m)
{
	*m = (struct vfm_suballoc){.base = base, .align = SCRATCH_ALIGN};
	for (int i = 0; i < VFM_DNN_ROWS; i++)
		if (vfm_has(&j->to[i]))
			j->x[i].data = take_scratch(m, vfm_nbytes(&j->x[i]));
}

/* ---- running ---- */

/* Head `h` of x. */
static void *at_head(const struct vfm_tensor *x, int64_t h)
{
	return (char *)x->data + (size_t)(h * x->shape[2]) * vfm_dtype_size(x->dtype);
}

/* tune: only chooses among the plans of the piece. */
static int run_piece(struct attn_job *j, int n, struct vfm_suballoc m, bool tune, struct vfm_err *err)
{
	const struct vfm_attn_piece *p = &j->piece[n];
	const struct vfm_dnn_attn *a = j->plan[n]->a;
	struct attn_scratch w = lay_out_piece(j, a, &m);
	int64_t head = p->head * (a->key.h / a->key.hkv); /* of queries */
	struct vfm_dnn_bind b[2 * VFM_DNN_ROWS + 16];
	float none = -INFINITY, one = 1, scale = j->scale;
	float *lse = (float *)j->lse.data + head;
	int k = 0, o = 0;

	if (a->key.ragged)
		vfm_cuda_attn_lists(j->s, j->q, j->k, p, &w.lists);
	if (w.lse_padded && j->bwd)
		vfm_cuda_attn_spread(j->s, p, &j->lse, head, a->key.h, w.lists.len_q, w.first, w.lse_padded, false);
	if (w.lse_padded)
		lse = w.lse_padded;
	for (int i = 0; i < VFM_DNN_ROWS; i++)
		if (a->x[i])
			b[k++] = (struct vfm_dnn_bind){a->x[i], at_head(&j->x[i], is_key_operand(i) ? p->head : head)};
	for (int i = 0; i < VFM_DNN_ROWS; i++)
		if (a->offset[i])
			b[k++] = (struct vfm_dnn_bind){a->offset[i], w.lists.offset[o++].at};
	b[k++] = (struct vfm_dnn_bind){a->lse, lse};
	b[k++] = (struct vfm_dnn_bind){a->lse_offset, w.first};
	b[k++] = (struct vfm_dnn_bind){a->len_q, w.lists.len_q};
	b[k++] = (struct vfm_dnn_bind){a->len_k, w.lists.len_k};
	b[k++] = (struct vfm_dnn_bind){a->scale, &scale};
	b[k++] = (struct vfm_dnn_bind){a->none, &none};
	b[k++] = (struct vfm_dnn_bind){a->one, &one};
	b[k++] = (struct vfm_dnn_bind){a->dsum, w.dsum};
	b[k++] = (struct vfm_dnn_bind){a->dq_sum, w.dq_sum};
	b[k++] = (struct vfm_dnn_bind){a->dk_all, w.dk_all};
	b[k++] = (struct vfm_dnn_bind){a->dv_all, w.dv_all};
	if (tune)
		return vfm_dnn_tune(j->s, a->g, b, k, w.workspace, err);
	TRY(vfm_dnn_run(a->g, 0, vfm_cuda_stream(j->s), b, k, w.workspace, err));
	if (w.lse_padded && !j->bwd)
		vfm_cuda_attn_spread(j->s, p, &j->lse, head, a->key.h, w.lists.len_q, w.first, w.lse_padded, true);
	return 0;
}

/* Copies redirected gradients to their destination, and sets the rows of excluded samples. */
static void finish_attn(struct attn_job *j)
{
	bool queries, keys;

	for (int i = VFM_DNN_DQ; i <= VFM_DNN_DV; i++)
		if (vfm_has(&j->to[i])) {
			vfm_cuda_attn_copy(j->s, &j->x[i], &j->to[i]);
			j->x[i] = j->to[i];
		}
	vfm_attn_left_out(j->q, j->k, &queries, &keys);
	if (queries)
		vfm_cuda_attn_blank(
			j->s, j->q, j->k, &j->x[j->bwd ? VFM_DNN_DQ : VFM_DNN_O], j->bwd ? NULL : j->lse.data);
	for (int i = VFM_DNN_DK; j->bwd && keys && i <= VFM_DNN_DV; i++)
		vfm_cuda_attn_blank(j->s, j->k, j->q, &j->x[i], NULL);
}

/* Warns once for each class of shapes that a form was refused, and what runs instead. */
static void warn_refused(const struct attn_job *j, const char *op, int used, const char *why)
{
	struct vfm_cuda *dev = vfm_cuda_of(j->s);
	struct vfm_cuda_attn *c = j->c;
	const int64_t *q = j->x[VFM_DNN_Q].shape, *k = j->x[VFM_DNN_K].shape;
	struct refused r = {.h = q[1], .hkv = k[1], .d = q[2], .kind = j->kind, .used = used, .bwd = j->bwd};

	for (size_t i = 0; i < c->n_refused; i++) {
		const struct refused *o = &c->refused[i];

		if (o->h == r.h && o->hkv == r.hkv && o->d == r.d && o->kind == r.kind && o->used == used &&
			o->bwd == r.bwd)
			return;
	}
	vfm_grow(&c->refused, &c->cap_refused, c->n_refused + 1, sizeof(*c->refused));
	c->refused[c->n_refused++] = r;
	if (dev->warn)
		dev->warn("%s of bf16, %d samples%s, %" PRId64 " queries x %" PRId64 " heads, %" PRId64
			  " keys x %" PRId64 " heads, of %" PRId64 ": computed by %s%s (%s)",
			op, j->q->n, r.kind == VFM_ATTN_PACKED ? ", packed" : "", q[0], q[1], k[0], k[1], q[2],
			used == FORMS ? "our own kernels, which are slow" : "cuDNN in another form: ",
			used == FORMS ? "" : forms[used].name, why);
}

/* Counts a fallback to our own kernels and warns about it. */
static void report_fallback(const struct attn_job *j, const char *op, const char *why)
{
	if (j->x[VFM_DNN_Q].dtype != VFM_BF16)
		return; /* as documented */
	vfm_cuda_of(j->s)->dev.slow_attn++;
	warn_refused(j, op, FORMS, why);
}

/* Drops a plan that cuDNN refused to run, or whose result was wrong.  Replaces the fastest plan by the first one that
 * cuDNN recommends.  Returns 1, or a failure. */
static int refuse_plan(struct attn_job *j, struct plan *p, const struct vfm_err *why, struct vfm_err *err)
{
	struct vfm_cuda *dev = vfm_cuda_of(j->s);

	if (!p->timed) {
		p->refused = true;
		p->err = *why;
		return 1;
	}
	if (dev->warn)
		dev->warn("%s: the fastest plan of cuDNN, by engine %d, is not used: %s", j->bwd ? "attn_bwd" : "attn",
			(int)vfm_dnn_facts(p->a->g).engine, why->msg);
	TRY(dev->dev.t->stream_sync(j->s, err)); /* it may still run */
	vfm_dnn_attn_free(p->a);
	p->a = vfm_dnn_attn_new(&j->c->on, &p->key, 1, &p->err);
	p->timed = false;
	p->refused = !p->a;
	j->again = !p->refused;
	return 1;
}

/* Runs that prove nothing are compared at the 1st, 2nd, 4th, 8th … time. */
static bool is_check_due(const struct plan *p)
{
	return !p->checked && (p->silent & (p->silent - 1)) == 0;
}

/* Compares the results of plans that ran for the first time.  Returns 1 if one is wrong, with the reason in *why. */
static int check_first_runs(struct attn_job *j, struct vfm_err *why, struct vfm_err *err)
{
	const struct vfm_tensor *x = j->x;
	struct vfm_attn_bwd a = {.q = x[VFM_DNN_Q],
		.k = x[VFM_DNN_K],
		.v = x[VFM_DNN_V],
		.o = x[VFM_DNN_O],
		.lse = j->lse,
		.dout = x[VFM_DNN_DOUT],
		.dq = x[VFM_DNN_DQ],
		.dk = x[VFM_DNN_DK],
		.dv = x[VFM_DNN_DV],
		.seqs_q = j->q,
		.seqs_k = j->k,
		.scale = j->scale};

	for (int i = 0; i < j->n; i++) {
		struct plan *p = j->plan[i];
		int rc;

		rc = is_check_due(p) ? vfm_attn_check(j->s, &a, &j->piece[i], why, err) : VFM_ATTN_SILENT;
		if (rc < 0)
			return rc;
		if (rc == VFM_ATTN_DIFFERS)
			return refuse_plan(j, p, why, err);
		if (p->checked)
			continue;
		p->checked = rc == VFM_ATTN_AGREES;
		p->silent += !p->checked;
		vfm_cuda_of(j->s)->dev.tuned += p->checked;
	}
	return 0;
}

static bool is_untuned(const struct plan *p)
{
	return vfm_dnn_facts(p->a->g).plans > 1;
}

/* Chooses among the plans of pieces that have several.  The scratch is not that of the op, which would stay as large as
 * the largest workspace.  Without memory for it, within the plan of the run, the first plans are used. */
static int tune_pieces(struct attn_job *j, struct vfm_err *err)
{
	size_t bytes = count_attn_scratch(j);
	struct vfm_dev *d = j->s->dev;
	bool any = false;
	struct vfm_suballoc m;
	char *mem = NULL;
	int rc = 0;

	for (int i = 0; i < j->n; i++)
		any = any || is_untuned(j->plan[i]);
	if (!any)
		return 0;
	if (d->mem_limit == 0 || d->mem_now + (int64_t)bytes <= d->mem_limit)
		mem = vfm_dev_borrow(j->s, bytes, "scratch to time attention");
	if (mem)
		use_attn_scratch(j, mem, &m);
	for (int i = 0; i < j->n && rc == 0; i++) {
		if (!is_untuned(j->plan[i]))
			continue;
		j->plan[i]->timed = mem != NULL;
		d->tuned += mem != NULL;
		if (mem)
			rc = run_piece(j, i, m, true, err);
		else
			vfm_dnn_use(j->plan[i]->a->g, 0);
	}
	if (mem)
		vfm_dev_free(j->s, mem, bytes);
	return rc;
}

/* Runs all pieces.  Returns 1 if cuDNN refused to run one, or computed it wrong, with the reason in *why. */
static int run_pieces(struct attn_job *j, const char *op, struct vfm_err *why, struct vfm_err *err)
{
	struct vfm_suballoc m;
	void *base;

	TRY(tune_pieces(j, err));
	base = vfm_cuda_ws(j->s, count_attn_scratch(j), err);
	if (!base)
		return VFM_EENV;
	use_attn_scratch(j, base, &m);
	for (int i = 0; i < j->n; i++) {
		if (run_piece(j, i, m, false, why) == 0)
			continue;
		/* a failure of the device or of a capture is no refusal */
		TRY(vfm_cuda_launched(j->s, op, err));
		if (vfm_cuda_captured(vfm_cuda_of(j->s), vfm_cuda_stream(j->s)))
			return vfm_fail(err, VFM_EENV, "%s", why->msg);
		return refuse_plan(j, j->plan[i], why, err);
	}
	finish_attn(j);
	TRY(vfm_cuda_launched(j->s, op, err));
	return vfm_cuda_captured(vfm_cuda_of(j->s), vfm_cuda_stream(j->s)) ? 0 : check_first_runs(j, why, err);
}

/* Tries one form, with a copy of the job.  Returns 1 if cuDNN refuses it, with the reason in *why. */
static int try_form(struct attn_job *whole, int form, const char *op, struct vfm_err *why, struct vfm_err *err)
{
	struct attn_job j;
	int rc;

	do {
		j = *whole;
		j.form = &forms[form];
		rc = plan_pieces(&j, why) < 0 ? 1 : run_pieces(&j, op, why, err);
		free(j.piece);
		free(j.plan);
	} while (rc == 1 && j.again);
	whole->kind = j.kind;
	if (!j.refused)
		return rc;
	if (err)
		*err = *why;
	return VFM_EENV;
}

/* Returns whether the form is one of those that VFM_CUDA_ATTN allows. */
static bool allows_form(const struct attn_job *j, const struct form *f)
{
	return (f->packed || !j->c->set.only_packed) && (f->apart || !j->c->set.only_apart) && !(j->bwd && f->unified);
}

/* Appends "form: reason" unless the last reason was the same. */
static void add_reason(struct vfm_buf *b, const char *form, const char *why, char last[VFM_ERR_MAX])
{
	if (strcmp(last, why) == 0)
		return;
	vfm_buf_addf(b, "%s%s: %s", b->len ? "; " : "", form, why);
	snprintf(last, VFM_ERR_MAX, "%s", why);
}

/* *done: cuDNN computes it; else nothing has been enqueued, or what has been is to be overwritten. */
static int run_cudnn(struct attn_job *j, const char *op, bool *done, struct vfm_err *err)
{
	struct vfm_buf reasons = {0};
	char last[VFM_ERR_MAX] = "";
	int rc = 1, form;

	*done = false;
	if (j->c->set.mode == OWN)
		return 0;
	if (!is_supported(j)) {
		if (j->c->set.mode != AUTO)
			return vfm_fail(err, VFM_EUSAGE,
				"%s: VFM_CUDA_ATTN=cudnn, but cuDNN does not support these operands", op);
		report_fallback(j, op, "rows are not aligned to 16 bytes");
		return 0;
	}
	for (form = 0; form < FORMS; form++) {
		struct vfm_err why = {0};

		if (!allows_form(j, &forms[form]))
			continue;
		rc = try_form(j, form, op, &why, err);
		if (rc <= 0)
			break;
		add_reason(&reasons, forms[form].name, why.msg, last);
	}
	*done = rc == 0;
	if (rc == 0 && reasons.len)
		warn_refused(j, op, form, reasons.data);
	else if (rc > 0 && j->c->set.mode == AUTO)
		report_fallback(j, op, reasons.data);
	else if (rc > 0)
		rc = vfm_fail(err, VFM_EENV, "%s", reasons.data);
	vfm_buf_release(&reasons);
	return rc < 0 ? vfm_err_context(err, "%s", op) : 0;
}

int vfm_cuda_attn(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err)
{
	struct attn_job j = {
		.c = attn_context(s, err), .s = s, .lse = a->lse, .q = a->seqs_q, .k = a->seqs_k, .scale = a->scale};
	bool done;

	if (!j.c)
		return err ? err->code : VFM_EENV;
	if (vfm_numel(&a->q) == 0)
		return 0;
	j.x[VFM_DNN_Q] = a->q, j.x[VFM_DNN_K] = a->k, j.x[VFM_DNN_V] = a->v, j.x[VFM_DNN_O] = a->o;
	TRY(run_cudnn(&j, "attn", &done, err));
	return done ? 0 : vfm_cuda_attn_own(s, a, err);
}

int vfm_cuda_attn_bwd(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err)
{
	struct attn_job j = {.c = attn_context(s, err),
		.s = s,
		.lse = a->lse,
		.q = a->seqs_q,
		.k = a->seqs_k,
		.scale = a->scale,
		.bwd = true,
		.deterministic = vfm_cuda_of(s)->deterministic};
	bool done;

	if (!j.c)
		return err ? err->code : VFM_EENV;
	if (vfm_numel(&a->q) == 0 && vfm_numel(&a->k) == 0)
		return 0;
	j.x[VFM_DNN_Q] = a->q, j.x[VFM_DNN_K] = a->k, j.x[VFM_DNN_V] = a->v, j.x[VFM_DNN_O] = a->o,
	j.x[VFM_DNN_DOUT] = a->dout;
	j.x[VFM_DNN_DQ] = a->dq, j.x[VFM_DNN_DK] = a->dk, j.x[VFM_DNN_DV] = a->dv;
	TRY(run_cudnn(&j, "attn_bwd", &done, err));
	return done ? 0 : vfm_cuda_attn_bwd_own(s, a, err);
}
