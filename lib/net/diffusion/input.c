/* input.c - uploads latents, texts, positions and conditions of a pack, and divides them over cp. */
#include "net/diffusion/input.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/dev/upload.h"
#include "device/ops/ops.h"
#include "device/ops/tensor.h"
#include "net/diffusion/diffusion.h"
#include "net/mesh/attn.h"
#include "net/nn/layers.h"

static void place_input(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p,
	enum vfm_dtype dt, struct vfm_suballoc *a)
{
	int64_t T = in->tok.rows, R = in->tok.rows_cp[in->tok.cp_i], G = in->segs.n;

	in->x = vfm_sub_t2(a, dt, T, vfm_model_patch_dim(m));
	in->t_cond = vfm_sub_t1(a, VFM_F32, G);
	in->id = vfm_sub_t1(a, VFM_I64, G);
	in->idx = vfm_sub_t1(a, VFM_I32, T);
	in->seqs.seg = vfm_sub_t1(a, VFM_I32, T);
	in->seqs.dev_cu = vfm_sub_t1(a, VFM_I32, p->n + 1);
	if (G > p->n) {
		in->segs.seg = vfm_sub_t1(a, VFM_I32, T);
		in->segs.dev_cu = vfm_sub_t1(a, VFM_I32, G + 1);
	}
	in->text_seqs.dev_cu = vfm_sub_t1(a, VFM_I32, p->n + 1);
	in->text = vfm_sub_t2(a, VFM_F32, in->text_seqs.total, m->text_dim);
	if (m->text2_dim)
		in->text2 = vfm_sub_t2(
			a, VFM_F32, vfm_model_arch(m)->text2_vector ? G : in->host_cu_text2[p->n], m->text2_dim);
	if (m->guidance_dim) {
		in->guidance = vfm_sub_t1(a, VFM_F32, 1);
		in->guided = vfm_sub_t1(a, VFM_I32, G);
	}
	if (vfm_model_pools_text(m))
		in->text_mean = vfm_sub_t2(a, VFM_F32, G, m->text_dim);
	if (m->cond_channels)
		in->cond = vfm_sub_t2(a, p->x0_dtype, T, vfm_model_cond_dim(m));
	if (vfm_model_given_dim(m))
		in->given = vfm_sub_t2(a, VFM_F32, T, vfm_model_given_dim(m));
	if (m->image_dim) {
		in->image = vfm_sub_t2(a, VFM_F32, in->image_seqs.total, m->image_dim);
		in->image_seqs.dev_cu = vfm_sub_t1(a, VFM_I32, p->n + 1);
	}
	if (vfm_model_has_row_rope(m))
		in->rope = vfm_sub_t3(a, VFM_F32, R, m->heads / in->tok.tp, vfm_model_head_dim(m));
	else if (m->pos == VFM_POS_ROPE || m->pos == VFM_POS_BOTH)
		in->rope = vfm_sub_t2(a, VFM_F32, R, vfm_model_head_dim(m));
	if (m->pos == VFM_POS_SINCOS || m->pos == VFM_POS_BOTH)
		in->pos_embed = vfm_sub_t2(a, VFM_F32, T, m->hidden);
	if (m->pos == VFM_POS_LEARNED)
		in->pos = vfm_sub_t2(a, VFM_I32, T, 3);
}

static int upload_tensor(struct vfm_model_in *in, const struct vfm_tensor *dst, const void *host, struct vfm_err *err)
{
	return vfm_dev_upload(in->stream, dst->data, host, vfm_nbytes(dst), err);
}

/* Computes the mean of the text rows of each segment's sample, with the padding; zero for a dropped sample. */
static void pool_text(
	float *means, const struct vfm_pack *p, const struct vfm_model_in *in, const bool *dropped, int64_t dim)
{
	const int32_t *cu = in->host_cu_text;

	memset(means, 0, (size_t)in->segs.n * (size_t)dim * sizeof(float));
	for (int g = 0; g < in->segs.n; g++) {
		int i = in->seg_sample[g];
		int32_t rows = cu[i + 1] - cu[i];
		float *mean = means + g * dim;

		if (rows == 0 || (dropped && dropped[i]))
			continue;
		for (int64_t r = p->cu_text[i]; r < p->cu_text[i + 1]; r++)
			for (int64_t j = 0; j < dim; j++)
				mean[j] += p->text[r * dim + j] / (float)rows;
	}
}

/* Rows of the samples in a pack, and where the input has them. */
struct row_source {
	const float *rows;
	const int32_t *cu; /* [n+1] in the pack; NULL: `len` rows of each sample */
	int32_t len;
	const struct vfm_tensor *to;
	const int32_t *cu_to; /* [n+1] in the input, zeros after fewer rows */
};

struct row_run {
	int64_t at, rows; /* in the input */
	int64_t from;     /* row of the pack; -1: zeros */
};

static int upload_run(struct vfm_model_in *in, const struct row_run *r, const struct row_source *s, struct vfm_err *err)
{
	const int64_t dim = s->to->shape[1];

	if (r->rows == 0)
		return 0;
	return vfm_dev_upload(in->stream, (float *)s->to->data + r->at * dim,
		r->from < 0 ? NULL : s->rows + r->from * dim, (size_t)(r->rows * dim) * sizeof(float), err);
}

/* Uploads rows that follow one another in the pack, and consecutive rows of zeros, at once.  A dropped sample has
 * zeros. */
static int upload_rows(
	struct vfm_model_in *in, const struct row_source *s, int n, const bool *dropped, struct vfm_err *err)
{
	struct row_run run = {0};

	for (int i = 0; i < n; i++) {
		int64_t at = s->cu_to[i], all = s->cu_to[i + 1] - at, from = s->cu ? s->cu[i] : (int64_t)i * s->len;
		int64_t own = dropped && dropped[i] ? 0 : s->cu ? s->cu[i + 1] - s->cu[i] : s->len;
		const struct row_run parts[] = {{at, own, from}, {at + own, all - own, -1}};

		for (int k = 0; k < 2; k++) {
			const struct row_run *r = &parts[k];

			if (r->rows == 0)
				continue;
			if (run.rows > 0 &&
				(r->from < 0 ? run.from < 0 : run.from >= 0 && r->from == run.from + run.rows)) {
				run.rows += r->rows;
			} else {
				TRY(upload_run(in, &run, s, err));
				run = *r;
			}
		}
	}
	return upload_run(in, &run, s, err);
}

/* Uploads the second text of each segment's sample; zeros if it has none or is dropped. */
static int upload_vectors(struct vfm_model_in *in, const struct vfm_pack *p, const bool *dropped, struct vfm_err *err)
{
	const int64_t dim = in->text2.shape[1];
	float *host = vfm_calloc((size_t)(in->segs.n * dim) + 1, sizeof(*host));
	int rc;

	for (int g = 0; g < in->segs.n; g++) {
		const int i = in->seg_sample[g];

		if (p->cu_text2[i + 1] > p->cu_text2[i] && !(dropped && dropped[i]))
			memcpy(host + g * dim, p->text2 + p->cu_text2[i] * dim, (size_t)dim * sizeof(*host));
	}
	rc = upload_tensor(in, &in->text2, host, err);
	free(host);
	return rc;
}

static int upload_guidance(struct vfm_model_in *in, float guidance, struct vfm_err *err)
{
	const float time = (float)VFM_TIME_SCALE * guidance;
	int32_t *guided = vfm_calloc((size_t)in->segs.n + 1, sizeof(*guided));
	int rc;

	for (int g = 0; g < in->segs.n; g++)
		guided[g] = in->seg_given[g] ? -1 : 0;
	rc = upload_tensor(in, &in->guided, guided, err);
	free(guided);
	return rc < 0 ? rc : upload_tensor(in, &in->guidance, &time, err);
}

static int upload_text(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p,
	const bool *dropped, float *host, struct vfm_err *err)
{
	const struct row_source text = {p->text, p->cu_text, 0, &in->text, in->host_cu_text};
	const struct row_source text2 = {p->text2, p->cu_text2, 0, &in->text2, in->host_cu_text2};

	TRY(upload_rows(in, &text, p->n, dropped, err));
	if (vfm_has(&in->text2) && vfm_model_arch(m)->text2_vector)
		TRY(upload_vectors(in, p, dropped, err));
	else if (vfm_has(&in->text2))
		TRY(upload_rows(in, &text2, p->n, dropped, err));
	if (!vfm_has(&in->text_mean))
		return 0;
	pool_text(host, p, in, dropped, m->text_dim);
	return upload_tensor(in, &in->text_mean, host, err);
}

/* Gathers n rows of a host array [tokens of the pack, width]. */
static void gather_rows_i32(int32_t *out, const int32_t *rows, int64_t n, const int32_t *src, int64_t width)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < width; j++)
			out[i * width + j] = src[rows[i] * width + j];
}

/* Computes the table of rotations of the R rows, for the heads of this rank. */
static void make_rope(
	float *out, const struct vfm_model_in *in, const struct vfm_model_spec *m, const int16_t (*pos)[3])
{
	struct vfm_row_rope r = {.hidden = m->hidden, .width = m->hidden / in->tok.tp, .theta = m->rope_theta};
	struct vfm_rope_axes axes;

	if (!vfm_model_has_row_rope(m)) {
		vfm_model_rope_axes(m, &axes);
		vfm_rope_table(out, pos, in->rope.shape[0], &axes);
		return;
	}
	r.first = in->tok.tp_i * r.width;
	vfm_model_rope_scale(m, r.scale);
	vfm_row_rope_table(out, pos, in->rope.shape[0], &r);
}

static int upload_positions(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p,
	float *host, struct vfm_err *err)
{
	int64_t R = in->tok.rows_cp[in->tok.cp_i], T = in->tok.rows;
	int16_t(*pos)[3] = vfm_calloc((size_t)R + 1, sizeof(*pos));
	int rc = 0;

	for (int64_t i = 0; i < R; i++)
		memcpy(pos[i], p->pos[in->tok.pack_row[i]], sizeof(*pos));
	if (vfm_has(&in->rope)) {
		make_rope(host, in, m, (const int16_t(*)[3])pos);
		TRY_OUT(upload_tensor(in, &in->rope, host, err));
	}
	if (vfm_has(&in->pos_embed)) {
		vfm_sincos_table(host, (const int16_t(*)[3])pos + in->tok.first, T, m->hidden);
		TRY_OUT(upload_tensor(in, &in->pos_embed, host, err));
	}
	if (vfm_has(&in->pos)) {
		int32_t *wide = (int32_t *)host;

		for (int64_t i = 0; i < 3 * T; i++)
			wide[i] = pos[in->tok.first + i / 3][i % 3];
		rc = upload_tensor(in, &in->pos, wide, err);
	}
out:
	free(pos);
	return rc;
}

int vfm_model_in_upload(struct vfm_model_in *in, const struct vfm_tensor *dst, const void *host, struct vfm_err *err)
{
	const int32_t *rows = vfm_model_in_rows(in);
	size_t row = (size_t)dst->shape[1] * vfm_dtype_size(dst->dtype);

	for (int64_t i = 0, n; i < in->tok.rows; i += n) {
		for (n = 1; i + n < in->tok.rows && rows[i + n] == rows[i] + n; n++)
			;
		TRY(vfm_dev_upload(in->stream, (char *)dst->data + (size_t)i * row,
			(const char *)host + (size_t)rows[i] * row, (size_t)n * row, err));
	}
	return 0;
}

/* Uploads ids and boundaries of the segments.  Without given frames these are the samples. */
static int upload_segments(struct vfm_model_in *in, const struct vfm_pack *p, struct vfm_err *err)
{
	uint64_t *id = vfm_calloc((size_t)in->segs.n + 1, sizeof(*id));
	int32_t *seg = vfm_calloc((size_t)in->tok.rows + 1, sizeof(*seg));
	int rc;

	for (int g = 0; g < in->segs.n; g++) {
		id[g] = p->id[in->seg_sample[g]];
		for (int32_t r = in->host_cu_segs[g]; r < in->host_cu_segs[g + 1]; r++)
			seg[r] = g;
	}
	TRY_OUT(upload_tensor(in, &in->id, id, err));
	if (vfm_has(&in->segs.seg)) {
		TRY_OUT(upload_tensor(in, &in->segs.seg, seg, err));
		rc = upload_tensor(in, &in->segs.dev_cu, in->host_cu_segs, err);
	} else {
		in->segs.seg = in->seqs.seg;
		in->segs.dev_cu = in->seqs.dev_cu;
	}
out:
	free(id);
	free(seg);
	return rc;
}

static int zero_rows(
	struct vfm_model_in *in, const struct vfm_tensor *dst, int64_t first, int64_t end, struct vfm_err *err)
{
	size_t row = (size_t)dst->shape[1] * vfm_dtype_size(dst->dtype);

	if (end == first)
		return 0;
	return vfm_dev_upload(
		in->stream, (char *)dst->data + (size_t)first * row, NULL, (size_t)(end - first) * row, err);
}

/* Writes the features of a token of a given frame: its latents x, if the model reads them, and 1 in the mask. */
static void write_given(float *out, const struct vfm_model_spec *m, enum vfm_dtype dtype, const char *x)
{
	const int64_t volume = m->patch[0] * m->patch[1] * m->patch[2];
	int64_t latents = vfm_model_predicts_given(m) ? vfm_model_patch_dim(m) : 0;

	if (latents)
		vfm_dtype_convert(VFM_F32, out, dtype, x, (size_t)latents);
	for (int64_t j = 0; j < volume && vfm_model_takes_given(m); j++)
		out[latents + j] = 1;
}

/* Uploads what the model reads of given frames; 0 for tokens of the others. */
static int upload_given(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p,
	const struct vfm_model_conds *conds, struct vfm_err *err)
{
	const int32_t *rows = vfm_model_in_rows(in);
	const int64_t width = vfm_model_given_dim(m);
	const enum vfm_dtype dtype = conds->frames ? VFM_F32 : p->x0_dtype;
	const size_t row = (size_t)vfm_model_patch_dim(m) * vfm_dtype_size(dtype);
	float *host;
	int rc;

	if (!vfm_has(&in->given))
		return 0;
	host = vfm_calloc((size_t)(in->tok.rows * width) + 1, sizeof(*host));
	for (int64_t r = 0; conds->given && r < in->tok.rows; r++) {
		const int32_t i = p->seg[rows[r]], k = p->idx[rows[r]];
		const char *frames = conds->frames ? (const char *)conds->frames[i]
						   : (const char *)p->x0 + (size_t)p->cu_seqlens[i] * row;

		if (k < conds->given[i] * p->grid[i][1] * p->grid[i][2])
			write_given(host + r * width, m, dtype, frames ? frames + (size_t)k * row : NULL);
	}
	rc = upload_tensor(in, &in->given, host, err);
	free(host);
	return rc;
}

/* Uploads the conditions and the image rows, and zeros for those of dropped samples. */
static int upload_conds(struct vfm_model_in *in, const struct vfm_pack *p, const bool *dropped, struct vfm_err *err)
{
	const struct row_source image = {p->image, NULL, p->image_len, &in->image, in->host_cu_image};

	if (vfm_has(&in->cond))
		TRY(vfm_model_in_upload(in, &in->cond, p->cond, err));
	for (int i = 0; dropped && vfm_has(&in->cond) && i < p->n; i++)
		if (dropped[i])
			TRY(zero_rows(in, &in->cond, in->tok.cu[i], in->tok.cu[i + 1], err));
	if (!vfm_has(&in->image))
		return 0;
	TRY(upload_tensor(in, &in->image_seqs.dev_cu, in->host_cu_image, err));
	return p->image ? upload_rows(in, &image, p->n, dropped, err) : 0;
}

static int upload_input(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p,
	const struct vfm_model_conds *conds, float *host, struct vfm_err *err)
{
	const int32_t *rows = vfm_model_in_rows(in);
	int64_t T = in->tok.rows;
	int32_t *wide = vfm_calloc((size_t)T * 2 + 1, sizeof(*wide));
	int rc;

	gather_rows_i32(wide, rows, T, p->idx, 1);
	gather_rows_i32(wide + T, rows, T, p->seg, 1);
	TRY_OUT(upload_segments(in, p, err));
	TRY_OUT(upload_conds(in, p, conds->drop_image, err));
	TRY_OUT(upload_given(in, m, p, conds, err));
	TRY_OUT(upload_tensor(in, &in->idx, wide, err));
	TRY_OUT(upload_tensor(in, &in->seqs.seg, wide + T, err));
	TRY_OUT(upload_tensor(in, &in->seqs.dev_cu, in->tok.cu, err));
	TRY_OUT(upload_tensor(in, &in->text_seqs.dev_cu, in->host_cu_text, err));
	TRY_OUT(upload_text(in, m, p, conds->drop_text, host, err));
	if (m->guidance_dim)
		TRY_OUT(upload_guidance(in, conds->guidance, err));
	rc = upload_positions(in, m, p, host, err);
out:
	free(wide);
	return rc;
}

const int32_t *vfm_model_in_rows(const struct vfm_model_in *in)
{
	return in->tok.pack_row + in->tok.first;
}

/* Computes the boundaries of the rows of the second encoder, unless it gives a vector.  Attention would read rows of
 * zeros, so a dropped text has none. */
static int place_texts2(
	int32_t *cu, const struct vfm_model_spec *m, const struct vfm_pack *p, const bool *dropped, struct vfm_err *err)
{
	if (!m->text2_dim)
		return 0;
	if (p->n && p->text2_dim != m->text2_dim)
		return vfm_fail(err, VFM_EUSAGE,
			"sample %llu has a second text of %d features, the model reads %lld (model.text2_dim)",
			(unsigned long long)p->id[0], p->text2_dim, (long long)m->text2_dim);
	for (int i = 0; i < p->n; i++) {
		const int32_t rows = !(dropped && dropped[i]) ? p->cu_text2[i + 1] - p->cu_text2[i] : 0;

		if (rows > m->text2_len)
			return vfm_fail(err, VFM_EUSAGE,
				"sample %llu has %d rows of the second text encoder, but %s %lld",
				(unsigned long long)p->id[i], (int)rows,
				vfm_model_arch(m)->text2_vector ? "the model reads" : "model.text2_len is",
				(long long)m->text2_len);
		cu[i + 1] = cu[i] + (int32_t)vfm_model_text2_rows(m, rows);
	}
	return 0;
}

/* Computes the boundaries of the image rows.  With joint attention, a sample without an image has none. */
static void place_images(int32_t *cu, const struct vfm_model_spec *m, const struct vfm_pack *p, const bool *dropped)
{
	for (int i = 0; i < p->n && m->image_dim; i++) {
		const bool none = vfm_model_arch(m)->joint && (!p->image || (dropped && dropped[i]));

		cu[i + 1] = cu[i] + (none ? 0 : (int32_t)m->image_len);
	}
}

/* Computes the boundaries of the texts in the input. */
static int place_texts(int32_t *cu, const struct vfm_model_spec *m, const struct vfm_pack *p, struct vfm_err *err)
{
	for (int i = 0; i < p->n; i++) {
		int64_t rows = p->cu_text[i + 1] - p->cu_text[i], end = cu[i] + vfm_model_text_rows(m, rows);

		if (rows > m->text_len)
			return vfm_fail(err, VFM_EUSAGE, "sample %llu has %d text rows, but model.text_len is %lld",
				(unsigned long long)p->id[i], (int)rows, (long long)m->text_len);
		if (end > INT32_MAX)
			return vfm_fail(err, VFM_EUSAGE, "a pack has more than 2^31 text rows (model.text_pad)");
		cu[i + 1] = (int32_t)end;
	}
	return 0;
}

static int check_conds(const struct vfm_model_spec *m, const struct vfm_pack *p, const struct vfm_model_conds *conds,
	struct vfm_err *err)
{
	if (p->n && p->cond_dim != vfm_model_cond_dim(m))
		return vfm_fail(err, VFM_EUSAGE,
			"sample %llu has %d features of a condition per token, the model reads %lld "
			"(model.cond_channels)",
			(unsigned long long)p->id[0], p->cond_dim, (long long)vfm_model_cond_dim(m));
	if (p->n && m->image_dim && (p->image_dim || !vfm_model_arch(m)->joint) &&
		(p->image_dim != m->image_dim || p->image_len != m->image_len))
		return vfm_fail(err, VFM_EUSAGE,
			"sample %llu has image rows [%d, %d], the model reads [%lld, %lld] (model.image_len, "
			"model.image_dim)",
			(unsigned long long)p->id[0], p->image_dim ? p->image_len : 0, p->image_dim,
			(long long)m->image_len, (long long)m->image_dim);
	for (int i = 0; conds->given && i < p->n; i++)
		if (conds->given[i] && p->grid[i][0] <= conds->given[i])
			return vfm_fail(err, VFM_EUSAGE,
				"sample %llu: %d given latent frames leave none of its %d to predict",
				(unsigned long long)p->id[i], (int)conds->given[i], (int)p->grid[i][0]);
	return 0;
}

/* Divides the samples of this rank's rows into segments.  The rows of a sample ascend. */
static void divide_samples(struct vfm_model_in *in, const struct vfm_pack *p, const int32_t *given)
{
	const int32_t *rows = vfm_model_in_rows(in), *cu = in->tok.cu;
	int g = 0;

	in->host_cu_segs = vfm_calloc(2 * (size_t)p->n + 1, sizeof(int32_t));
	in->seg_sample = vfm_calloc(2 * (size_t)p->n + 1, sizeof(int32_t));
	in->seg_given = vfm_calloc(2 * (size_t)p->n + 1, sizeof(bool));
	for (int i = 0; i < p->n; i++) {
		int32_t end = given ? given[i] * p->grid[i][1] * p->grid[i][2] : 0, r = cu[i];

		if (end) {
			while (r < cu[i + 1] && p->idx[rows[r]] < end)
				r++;
			in->seg_sample[g] = i;
			in->seg_given[g] = true;
			in->host_cu_segs[++g] = r;
		}
		in->seg_sample[g] = i;
		in->host_cu_segs[++g] = cu[i + 1];
	}
	vfm_seqs_init(&in->segs, g, in->host_cu_segs);
}

static int check_grids(const struct vfm_model_spec *m, const struct vfm_pack *p, struct vfm_err *err)
{
	for (int i = 0; m->pos == VFM_POS_LEARNED && i < p->n; i++)
		for (int a = 0; a < 3; a++)
			if (p->grid[i][a] > m->pos_max[a])
				return vfm_fail(err, VFM_EUSAGE,
					"sample %llu has %d patches in %c, but model.pos_max holds positions for %lld",
					(unsigned long long)p->id[i], (int)p->grid[i][a], "thw"[a],
					(long long)m -> pos_max[a]);
	return 0;
}

static struct vfm_joint_rows rows_of_encoders(const struct vfm_model_in *in, const struct vfm_model_spec *m)
{
	const bool text2 = m->text2_dim && !vfm_model_arch(m)->text2_vector;

	return (struct vfm_joint_rows){
		{in->host_cu_text, text2 ? in->host_cu_text2 : NULL, m->image_dim ? in->host_cu_image : NULL}};
}

/* Computes the boundaries of the samples in the rows of all encoders, and in the sequences of joint attention. */
static int place_encoder_rows(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p,
	const struct vfm_model_conds *conds, struct vfm_err *err)
{
	struct vfm_joint_rows rows;

	in->host_cu_text = vfm_calloc((size_t)p->n + 1, sizeof(int32_t));
	in->host_cu_text2 = vfm_calloc((size_t)p->n + 1, sizeof(int32_t));
	in->host_cu_image = vfm_calloc((size_t)p->n + 1, sizeof(int32_t));
	TRY(place_texts(in->host_cu_text, m, p, err));
	TRY(place_texts2(in->host_cu_text2, m, p, conds->drop_text, err));
	place_images(in->host_cu_image, m, p, conds->drop_image);
	rows = rows_of_encoders(in, m);
	if (vfm_model_arch(m)->joint)
		vfm_joint_in_sizes(&in->joint, p->n, p->cu_seqlens, &rows);
	return 0;
}

static int make_joint(
	struct vfm_model_in *in, const struct vfm_mesh *mesh, const struct vfm_model_spec *m, struct vfm_err *err)
{
	const struct vfm_joint_rows rows = rows_of_encoders(in, m);

	return vfm_joint_in_make(&in->joint, in->stream, mesh, &in->tok, &rows, &in->segs, in->seg_sample, err);
}

void vfm_model_in_tokens(
	const struct vfm_model_in *in, int n, const struct vfm_mesh *mesh, int cp_i, struct vfm_tokens *t)
{
	const struct vfm_tokens_whole whole = {in->joint.cu_whole ? in->joint.cu_whole : in->host_cu, false};

	vfm_tokens_make_part(t, n, in->host_cu, &whole, mesh->size[VFM_AX_CP], cp_i, (int)mesh->p.cp_a2a,
		mesh->size[VFM_AX_TP], mesh->coord[VFM_AX_TP]);
}

int vfm_model_in_make(struct vfm_model_in *in, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_pack *p, const struct vfm_model_conds *conds,
	enum vfm_dtype dtype, struct vfm_err *err)
{
	static const struct vfm_model_conds none;
	struct vfm_suballoc count = {0};
	size_t host_n, cu = ((size_t)p->n + 1) * sizeof(int32_t);
	float *host = NULL;
	int rc;

	conds = conds ? conds : &none;
	*in = (struct vfm_model_in){.stream = s};
	TRY(check_grids(m, p, err));
	TRY(check_conds(m, p, conds, err));
	TRY_OUT(place_encoder_rows(in, m, p, conds, err));
	in->host_cu = memcpy(vfm_malloc(cu), p->cu_seqlens, cu);
	vfm_model_in_tokens(in, p->n, mesh, mesh->coord[VFM_AX_CP], &in->tok);
	vfm_seqs_init(&in->seqs, p->n, in->tok.cu);
	vfm_seqs_init(&in->text_seqs, p->n, in->host_cu_text);
	divide_samples(in, p, vfm_model_predicts_given(m) ? NULL : conds->given);
	vfm_seqs_init(&in->image_seqs, p->n, in->host_cu_image);
	place_input(in, m, p, dtype, &count);
	in->bytes = count.used;
	in->mem = vfm_dev_alloc(s, in->bytes, "a pack of samples", err);
	if (!in->mem) {
		rc = VFM_EENV;
		goto out;
	}
	place_input(in, m, p, dtype, &(struct vfm_suballoc){.base = in->mem});

	host_n = (size_t)(in->tok.rows_cp[in->tok.cp_i] * (m->hidden > 128 ? m->hidden : 128) +
			 in->segs.n * m->text_dim) +
		1;
	host = vfm_big_alloc(host_n * sizeof(float), "position tables", err);
	if (!host) {
		rc = VFM_EENV;
		goto out;
	}
	rc = upload_input(in, m, p, conds, host, err);
	vfm_big_free(host, host_n * sizeof(float));
	if (rc == 0)
		rc = vfm_attn_layout_make(&in->attn, mesh, &in->tok, s, err);
	if (rc == 0 && vfm_model_arch(m)->joint)
		rc = make_joint(in, mesh, m, err);
	in->stream_rows = in->tok.rows + in->joint.tok.rows;
	if (rc == 0 && vfm_model_has_experts(m))
		rc = vfm_moe_in_make(&in->moe, s, mesh, m, &in->tok, &in->seqs, in->host_cu, p->step_tokens, err);
	if (rc == 0 && vfm_model_has_units(m)) {
		TRY_OUT(vfm_units_make(&in->frames, VFM_DIV_FRAMES, s, mesh, m, p, err));
		rc = vfm_units_make(&in->columns, VFM_DIV_COLUMNS, s, mesh, m, p, err);
	}
out:
	if (rc < 0)
		vfm_model_in_release(in);
	return rc;
}

void vfm_model_in_release(struct vfm_model_in *in)
{
	vfm_attn_layout_release(&in->attn);
	vfm_units_release(&in->frames);
	vfm_units_release(&in->columns);
	vfm_moe_in_release(&in->moe);
	vfm_joint_in_release(&in->joint);
	if (in->stream)
		vfm_dev_free(in->stream, in->mem, in->bytes);
	vfm_tokens_release(&in->tok);
	free(in->host_cu_text);
	free(in->host_cu_text2);
	free(in->host_cu);
	free(in->host_cu_image);
	free(in->host_cu_segs);
	free(in->seg_sample);
	free(in->seg_given);
	*in = (struct vfm_model_in){0};
}
