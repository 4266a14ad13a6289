/* t5.c - packs tokenized texts, and runs the blocks of the encoder.
 *
 * The weights stay mapped.  If they have `dtype` and the ops of the device read host memory, they are used in place,
 * and the pages of a block are released after its use.  Otherwise they are converted and copied to the device: all
 * before the first text or, with `stream`, block by block for each pack, on a separate stream through two buffers.
 * Token embeddings are always read from the mapping.
 */
#include "encoder/text/t5.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/suballoc.h"
#include "device/dev/upload.h"
#include "encoder/text/clean.h"
#include "encoder/text/t5_impl.h"

enum {
	MAX_LEN = 512,
	MAX_ROWS = 8192,
	CHUNK_ROWS = 1536, /* rows that a block computes at a time, unless a text is longer: bounds the activations */
	LEN_LIMIT = 1 << 16,
	T5_VERSION = 1,
};

/* ---- open and close ---- */

static int read_t5_options(struct vfm_t5 *t, const struct vfm_t5_opts *o, struct vfm_err *err)
{
	t->dtype = o->dtype;
	t->max_len = o->max_len ? o->max_len : MAX_LEN;
	t->max_rows = o->max_rows ? o->max_rows : t->max_len > MAX_ROWS ? t->max_len : MAX_ROWS;
	t->clean = o->clean;
	t->stream = o->stream;
	if (t->dtype != VFM_F32 && t->dtype != VFM_BF16)
		return vfm_fail(
			err, VFM_EUSAGE, "text encoder: dtype %s, expected f32 or bf16", vfm_dtype_name(t->dtype));
	if (t->max_len < 1 || t->max_len > LEN_LIMIT || t->max_rows < t->max_len || t->max_rows > INT32_MAX / 2)
		return vfm_fail(err, VFM_EUSAGE,
			"text encoder: at most %lld tokens a text and %lld a pack: expected 1 to %d, and no fewer a "
			"pack",
			(long long)t->max_len, (long long)t->max_rows, LEN_LIMIT);
	return 0;
}

int vfm_t5_open(struct vfm_t5 **out, struct vfm_stream *s, const struct vfm_t5_opts *opts, struct vfm_err *err)
{
	struct vfm_t5 *t = vfm_calloc(1, sizeof(*t));
	int rc;

	t->s = s;
	TRY_OUT(read_t5_options(t, opts, err));
	TRY_OUT(t5_open_files(t, opts, err));
	*out = t;
	return 0;
out:
	vfm_t5_close(t);
	return rc;
}

void vfm_t5_unload(struct vfm_t5 *t)
{
	if (t)
		t5_release(t);
}

void vfm_t5_close(struct vfm_t5 *t)
{
	if (!t)
		return;
	t5_release(t);
	vfm_text_tokenizer_close(t->tok);
	vfm_weights_close(t->weights);
	free(t->block);
	free(t);
}

int64_t vfm_t5_dim(const struct vfm_t5 *t)
{
	return t->d.dim;
}

int vfm_t5_id(struct vfm_t5 *t, struct vfm_encoder_id *m, struct vfm_err *err)
{
	*m = (struct vfm_encoder_id){.dim = (int32_t)t->d.dim, .max_rows = (int32_t)t->max_len};
	if (!t->sha256[0]) {
		char weights[VFM_SHA256_HEX], *all;

		TRY(vfm_weights_sha256(t->weights, weights, err));
		all = vfm_strfmt("%d %s %s clean=%d %s %lld eps=%.9g distance=%lld", T5_VERSION, weights,
			vfm_text_tokenizer_sha256(t->tok), t->clean ? VFM_CLEAN_VERSION : 0, vfm_dtype_name(t->dtype),
			(long long)t->max_len, (double)t->d.eps, (long long)t->d.max_distance);
		vfm_sha256_of(all, strlen(all), t->sha256);
		free(all);
	}
	snprintf(m->name, sizeof(m->name), "%s-%lldx%lld-%s", t->family, (long long)t->d.layers, (long long)t->d.dim,
		vfm_dtype_name(t->dtype));
	snprintf(m->version, sizeof(m->version), "%d", T5_VERSION);
	memcpy(m->sha256, t->sha256, sizeof(m->sha256));
	return 0;
}

/* ---- tokens ---- */

/* Writes the ids of a text, at most max_len; returns their number. */
static int64_t tokenize_text(const struct vfm_t5 *t, const char *text, int32_t *ids, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	int64_t n;

	if (!t->clean)
		return vfm_text_tokenizer_encode(t->tok, text, t->max_len, ids, err);
	if (strlen(text) > VFM_TEXT_TOKENIZER_TEXT_MAX)
		return vfm_fail(err, VFM_EINPUT, "text: more than %d bytes", VFM_TEXT_TOKENIZER_TEXT_MAX);
	n = vfm_clean_text(text, &b, err);
	if (n >= 0)
		n = vfm_text_tokenizer_encode(t->tok, b.data, t->max_len, ids, err);
	vfm_buf_release(&b);
	return n;
}

int64_t vfm_t5_count(const struct vfm_t5 *t, const char *text, struct vfm_err *err)
{
	int32_t *ids = vfm_malloc((size_t)t->max_len * sizeof(*ids));
	int64_t n = tokenize_text(t, text, ids, err);

	free(ids);
	return n;
}

/* ---- a pack ---- */

/* Consecutive texts of a pack that a block computes together. */
struct t5_chunk {
	int64_t row, rows; /* of the pack */
	struct vfm_seqs seqs;
};

/* Texts [first, first + n) of a call. */
struct t5_pack {
	struct vfm_t5 *t;
	int n, n_chunks;
	int32_t *cu; /* [n + n_chunks]: the boundaries of each chunk, from 0 */
	struct t5_chunk *chunk;
	int64_t rows, chunk_rows;           /* of all; of the largest chunk */
	struct vfm_tensor x;                /* [rows, dim] f32: the residual stream */
	struct vfm_tensor h, qkv, a, ff, g; /* of a chunk, in dtype: the input of a product; [rows, 3 inner]; [rows,
					       inner]; [rows, 2 ffn]; [rows, ffn] */
	struct vfm_tensor y;                /* [rows, dim] f32 */
	struct vfm_tensor dev_cu;           /* [n + n_chunks] i32 */
	char *mem;
	size_t bytes;
};

/* Divides the texts into chunks; n_rows are their tokens. */
static void divide_pack(struct t5_pack *p, const int64_t *n_rows)
{
	int32_t *cu;

	p->cu = cu = vfm_calloc(2 * (size_t)p->n + 1, sizeof(*p->cu));
	p->chunk = vfm_calloc((size_t)p->n, sizeof(*p->chunk));
	for (int i = 0; i < p->n; i++) {
		struct t5_chunk *c = p->n_chunks ? &p->chunk[p->n_chunks - 1] : NULL;

		if (!c || c->rows + n_rows[i] > CHUNK_ROWS) {
			c = &p->chunk[p->n_chunks++];
			c->row = p->rows;
			c->seqs.cu = cu;
			*cu++ = 0;
		}
		c->rows += n_rows[i];
		c->seqs.n++;
		*cu++ = (int32_t)c->rows;
		p->rows += n_rows[i];
		p->chunk_rows = c->rows > p->chunk_rows ? c->rows : p->chunk_rows;
	}
}

/* The values of the attention, those of the MLP and y share memory: none is read after the next is written. */
static void place_pack(struct t5_pack *p, struct vfm_suballoc *a)
{
	const struct t5_dims *d = &p->t->d;
	const enum vfm_dtype dt = p->t->dtype;
	const int64_t n = p->chunk_rows;
	struct vfm_suballoc attn, mlp;

	p->x = vfm_sub_t2(a, VFM_F32, p->rows, d->dim);
	p->dev_cu = vfm_sub_t1(a, VFM_I32, p->n + p->n_chunks);
	p->h = vfm_sub_t2(a, dt, n, d->dim);
	attn = mlp = *a;
	p->y = vfm_sub_t2(a, VFM_F32, n, d->dim);
	p->qkv = vfm_sub_t2(&attn, dt, n, 3 * d->inner);
	p->a = vfm_sub_t2(&attn, dt, n, d->inner);
	p->ff = vfm_sub_t2(&mlp, dt, n, 2 * d->ffn);
	p->g = vfm_sub_t2(&mlp, dt, n, d->ffn);
	a->used = attn.used > a->used ? attn.used : a->used;
	a->used = mlp.used > a->used ? mlp.used : a->used;
}

/* Uploads the embeddings of the tokens and the boundaries. */
static int upload_pack(struct t5_pack *p, const int32_t *ids, struct vfm_err *err)
{
	struct vfm_t5 *t = p->t;
	const size_t row = (size_t)t->d.dim * sizeof(float), es = vfm_dtype_size(t->embed->dtype);
	const int64_t part = CHUNK_ROWS;
	const char *embed = t->embed->data;
	char *host = vfm_malloc(row * (size_t)(p->rows < part ? p->rows : part));
	int rc = 0;

	for (int64_t r = 0; r < p->rows; r += part) {
		int64_t n = p->rows - r < part ? p->rows - r : part;

		for (int64_t i = 0; i < n; i++)
			vfm_dtype_convert(VFM_F32, host + (size_t)i * row, t->embed->dtype,
				embed + (size_t)ids[r + i] * (size_t)t->d.dim * es, (size_t)t->d.dim);
		TRY_OUT(vfm_dev_upload(t->s, (char *)p->x.data + (size_t)r * row, host, (size_t)n * row, err));
	}
	rc = vfm_dev_upload(t->s, p->dev_cu.data, p->cu, vfm_nbytes(&p->dev_cu), err);
out:
	free(host);
	return rc;
}

static int open_pack(struct t5_pack *p, const int64_t *n_rows, const int32_t *ids, struct vfm_err *err)
{
	struct vfm_suballoc count = {0}, give;

	divide_pack(p, n_rows);
	place_pack(p, &count);
	p->bytes = count.used;
	p->mem = vfm_dev_alloc(p->t->s, p->bytes, "a pack of texts", err);
	if (!p->mem)
		return VFM_EENV;
	give = (struct vfm_suballoc){.base = p->mem};
	place_pack(p, &give);
	for (int i = 0; i < p->n_chunks; i++) {
		struct t5_chunk *c = &p->chunk[i];
		const int32_t *cu = c->seqs.cu;

		vfm_seqs_init(&c->seqs, c->seqs.n, cu);
		c->seqs.dev_cu = vfm_row_slice(&p->dev_cu, cu - p->cu, c->seqs.n + 1);
	}
	return upload_pack(p, ids, err);
}

static void close_pack(struct t5_pack *p)
{
	vfm_dev_free(p->t->s, p->mem, p->bytes);
	free(p->cu);
	free(p->chunk);
}

/* ---- blocks ---- */

/* y (+)= x w^T */
static int encoder_gemm(struct vfm_stream *s, const struct vfm_tensor *x, const struct vfm_tensor *w,
	struct vfm_tensor y, bool accumulate, struct vfm_err *err)
{
	const struct vfm_gemm g = {.a = *x, .b = *w, .c = y, .trans_b = true, .accumulate = accumulate};

	return vfm_op_gemm(s, &g, err);
}

static int norm_rows(const struct t5_pack *p, const struct vfm_tensor *x, const struct vfm_tensor *weight,
	const struct vfm_tensor *y, struct vfm_err *err)
{
	const struct vfm_norm n = {.kind = VFM_NORM_RMS, .eps = p->t->d.eps, .x = *x, .y = *y, .weight = *weight};

	return vfm_op_norm(p->t->s, &n, err);
}

/* x += attention(norm(x)); x += down(gelu(gate(norm(x))) * up(norm(x))) */
static int run_t5_block(const struct t5_pack *p, const struct t5_chunk *c, const struct t5_block *b,
	const struct vfm_tensor w[T5_MATRICES], struct vfm_err *err)
{
	const struct t5_dims *d = &p->t->d;
	struct vfm_stream *s = p->t->s;
	const struct vfm_tensor x = vfm_row_slice(&p->x, c->row, c->rows), h = vfm_row_slice(&p->h, 0, c->rows),
				qkv = vfm_row_slice(&p->qkv, 0, c->rows), a = vfm_row_slice(&p->a, 0, c->rows),
				ff = vfm_row_slice(&p->ff, 0, c->rows), g = vfm_row_slice(&p->g, 0, c->rows);
	const struct vfm_attn_bias at = {.q = vfm_heads(&qkv, 0, d->heads, d->head),
		.k = vfm_heads(&qkv, 1, d->heads, d->head),
		.v = vfm_heads(&qkv, 2, d->heads, d->head),
		.o = vfm_heads(&a, 0, d->heads, d->head),
		.bias = b->table,
		.seqs = &c->seqs,
		.scale = 1};
	const struct vfm_geglu act = {.x = ff, .y = g};

	TRY(norm_rows(p, &x, &b->norm_w[0], &h, err));
	for (int k = 0; k < 3; k++)
		TRY(encoder_gemm(s, &h, &w[T5_Q + k], vfm_cols(&qkv, k * d->inner, d->inner), false, err));
	TRY(vfm_op_attn_bias(s, &at, err));
	TRY(encoder_gemm(s, &a, &w[T5_O], x, true, err));
	TRY(norm_rows(p, &x, &b->norm_w[1], &h, err));
	for (int k = 0; k < 2; k++)
		TRY(encoder_gemm(s, &h, &w[T5_GATE + k], vfm_cols(&ff, k * d->ffn, d->ffn), false, err));
	TRY(vfm_op_geglu(s, &act, err));
	return encoder_gemm(s, &g, &w[T5_DOWN], x, true, err);
}

static int run_t5_blocks(const struct t5_pack *p, struct vfm_err *err)
{
	struct vfm_t5 *t = p->t;
	struct vfm_tensor w[T5_MATRICES];

	TRY(t5_fetch(t, 0, err));
	for (int64_t i = 0; i < t->d.layers; i++) {
		TRY(t5_arrive(t, i, w, err));
		for (int k = 0; k < p->n_chunks; k++)
			TRY(run_t5_block(p, &p->chunk[k], &t->block[i], w, err));
		TRY(t5_leave(t, i, err));
		TRY(t5_fetch(t, i + 1, err));
	}
	return 0;
}

/* Copies the rows of the texts to new host memory. */
static int read_rows(const struct t5_pack *p, float **rows, const int64_t *n_rows, struct vfm_err *err)
{
	struct vfm_t5 *t = p->t;
	const size_t row = (size_t)t->d.dim * sizeof(float);

	for (int k = 0, i = 0; k < p->n_chunks; k++) {
		const struct t5_chunk *c = &p->chunk[k];
		const struct vfm_tensor x = vfm_row_slice(&p->x, c->row, c->rows), y = vfm_row_slice(&p->y, 0, c->rows);
		int last = i + c->seqs.n;

		TRY(norm_rows(p, &x, &t->norm_w, &y, err));
		for (const char *at = y.data; i < last; at += (size_t)n_rows[i] * row, i++) {
			rows[i] = vfm_malloc((size_t)n_rows[i] * row);
			TRY(t->s->dev->t->to_host(t->s, rows[i], at, (size_t)n_rows[i] * row, err));
		}
	}
	return t->s->dev->t->stream_sync(t->s, err);
}

/* ---- encode ---- */

/* The tokens of a call. */
struct t5_tokens {
	int32_t *ids;
	size_t n, cap;
};

static int tokenize_all(const struct vfm_t5 *t, const char *const *texts, int n, struct t5_tokens *k, int64_t *n_rows,
	struct vfm_err *err)
{
	for (int i = 0; i < n; i++) {
		int64_t m;

		vfm_grow(&k->ids, &k->cap, k->n + (size_t)t->max_len, sizeof(*k->ids));
		m = tokenize_text(t, texts[i], k->ids + k->n, err);
		if (m < 0) {
			vfm_err_context(err, "text %d", i);
			return (int)m;
		}
		n_rows[i] = m;
		k->n += (size_t)m;
	}
	return 0;
}

int vfm_t5_encode(struct vfm_t5 *t, const char *const *texts, int n, float **rows, int64_t *n_rows, struct vfm_err *err)
{
	struct t5_tokens k = {0};
	const int32_t *ids;
	struct vfm_err ignored;
	int rc;

	memset(rows, 0, (size_t)n * sizeof(*rows));
	TRY_OUT(tokenize_all(t, texts, n, &k, n_rows, err));
	TRY_OUT(t5_place(t, err));
	ids = k.ids;
	for (int i = 0; i < n;) {
		struct t5_pack p = {.t = t};
		int64_t total = 0;

		while (i + p.n < n && total + n_rows[i + p.n] <= t->max_rows)
			total += n_rows[i + p.n++];
		rc = open_pack(&p, n_rows + i, ids, err);
		if (rc >= 0)
			rc = run_t5_blocks(&p, err);
		if (rc >= 0)
			rc = read_rows(&p, rows + i, n_rows + i, err);
		close_pack(&p);
		if (rc < 0)
			goto out;
		ids += total;
		i += p.n;
	}
out:
	if (rc < 0) {
		t->s->dev->t->stream_sync(t->s, &ignored); /* copies into rows may be on their way */
		for (int i = 0; i < n; i++) {
			free(rows[i]);
			rows[i] = NULL;
		}
	}
	free(k.ids);
	return rc;
}
