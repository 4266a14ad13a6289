/* joint.c - divides the text rows of a pack over ranks, and maps them between the orders of layers and attention. */
#include "net/diffusion/joint.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/dev/upload.h"
#include "device/ops/ops.h"
#include "device/ops/tensor.h"

void vfm_joint_in_sizes(struct vfm_joint_in *j, int n, const int32_t *cu, const struct vfm_joint_rows *rows)
{
	*j = (struct vfm_joint_in){.cu_rows = vfm_calloc((size_t)n + 1, sizeof(int32_t)),
		.cu_whole = vfm_calloc((size_t)n + 1, sizeof(int32_t))};
	for (int i = 0; i < n; i++) {
		j->cu_rows[i + 1] = j->cu_rows[i];
		for (int k = 0; k < VFM_ROW_PARTS; k++)
			if (rows->cu[k])
				j->cu_rows[i + 1] += rows->cu[k][i + 1] - rows->cu[k][i];
		j->cu_whole[i + 1] = j->cu_whole[i] + cu[i + 1] - cu[i] + j->cu_rows[i + 1] - j->cu_rows[i];
	}
}

/* ---- maps ---- */

static void place_row_parts(struct vfm_row_parts *p, int64_t rows, const int64_t *part, struct vfm_suballoc *a)
{
	for (int k = 0; k < p->n; k++) {
		p->from[k] = vfm_sub_t1(a, VFM_I32, rows);
		p->at[k] = vfm_sub_t1(a, VFM_I32, part[k]);
	}
}

/* Places the arrays, on the host or on the device.  rows: those of each encoder in the pack. */
static void place_joint(
	struct vfm_joint_in *j, const struct vfm_tokens *video, const int64_t *rows, struct vfm_suballoc *a)
{
	const int64_t r[2] = {video->rows_cp[video->cp_i], j->tok.rows_cp[video->cp_i]};
	const int64_t t[2] = {video->rows, j->tok.rows};

	place_row_parts(&j->rows, r[0] + r[1], r, a);
	place_row_parts(&j->own, t[0] + t[1], t, a);
	place_row_parts(&j->pick, t[1], rows, a);
	j->segs.dev_cu = vfm_sub_t1(a, VFM_I32, j->segs.n + 1);
	j->segs.seg = vfm_sub_t1(a, VFM_I32, t[1]);
	j->text_segs.dev_cu = vfm_sub_t1(a, VFM_I32, j->segs.n + 1);
	j->text_segs.seg = vfm_sub_t1(a, VFM_I32, rows[0]);
}

static void no_rows(struct vfm_row_parts *p)
{
	for (int k = 0; k < p->n; k++) {
		memset(p->from[k].data, -1, vfm_nbytes(&p->from[k]));
		memset(p->at[k].data, -1, vfm_nbytes(&p->at[k]));
	}
}

static void map_rows(struct vfm_row_parts *p, int k, int64_t whole, int64_t part, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		((int32_t *)p->from[k].data)[whole + i] = (int32_t)(part + i);
		((int32_t *)p->at[k].data)[part + i] = (int32_t)(whole + i);
	}
}

/* The rows of a cp rank: of each sequence the tokens, then the text. */
static void map_sequences(struct vfm_joint_in *j, const struct vfm_tokens *video)
{
	const struct vfm_tokens *part[2] = {video, &j->tok};
	int64_t whole = 0, at[2] = {0};

	no_rows(&j->rows);
	for (int s = 0; s < video->n; s++)
		for (int k = 0; k < 2; k++) {
			const int32_t *cu = part[k]->cu_cp + (int64_t)video->cp_i * (video->n + 1);
			const int64_t n = cu[s + 1] - cu[s];

			map_rows(&j->rows, k, whole, at[k], n);
			whole += n;
			at[k] += n;
		}
}

/* The text rows of this rank.  A row of the pack's text is a row of the first encoder, of the second, or of an image. */
static void map_encoders(struct vfm_joint_in *j, const struct vfm_joint_rows *rows)
{
	const struct vfm_tokens *tok = &j->tok;

	no_rows(&j->pick);
	for (int64_t i = 0, s = 0; i < tok->rows; i++) {
		int32_t row = tok->pack_row[tok->first + i];
		int part = 0;

		while (row >= j->cu_rows[s + 1])
			s++;
		row -= j->cu_rows[s];
		for (int k = 0; k < VFM_ROW_PARTS; k++) {
			const int32_t n = rows->cu[k] ? rows->cu[k][s + 1] - rows->cu[k][s] : 0;

			if (rows->cu[k] && row >= 0 && row < n)
				map_rows(&j->pick, part, i, rows->cu[k][s] + row, 1);
			row -= n;
			part += rows->cu[k] != NULL;
		}
	}
}

/* Sets cu [segs + 1] to the segments of rows with boundaries of samples: the last segment of a sample has its rows. */
static void cut_segments(int32_t *cu, const int32_t *samples, const int32_t *sample, int segs)
{
	cu[0] = 0;
	for (int g = 0; g < segs; g++) {
		const bool last = g + 1 == segs || sample[g + 1] != sample[g];

		cu[g + 1] = last ? samples[sample[g] + 1] : cu[g];
	}
}

static void fill_segments(struct vfm_seqs *q, const int32_t *cu)
{
	memcpy(q->dev_cu.data, cu, vfm_nbytes(&q->dev_cu));
	for (int g = 0; g < q->n; g++)
		for (int32_t r = cu[g]; r < cu[g + 1]; r++)
			((int32_t *)q->seg.data)[r] = g;
}

/* Fills the arrays on the host and uploads them. */
static int upload_joint(struct vfm_joint_in *j, const struct vfm_tokens *video, const struct vfm_joint_rows *rows,
	const int64_t *encoder, struct vfm_err *err)
{
	char *host = vfm_calloc(1, j->bytes);
	int rc;

	place_joint(j, video, encoder, &(struct vfm_suballoc){.base = host});
	map_sequences(j, video);
	no_rows(&j->own);
	map_rows(&j->own, 0, 0, 0, video->rows);
	map_rows(&j->own, 1, video->rows, 0, j->tok.rows);
	map_encoders(j, rows);
	fill_segments(&j->segs, j->segs.cu);
	fill_segments(&j->text_segs, j->text_segs.cu);
	rc = vfm_dev_upload(j->stream, j->mem, host, j->bytes, err);
	place_joint(j, video, encoder, &(struct vfm_suballoc){.base = j->mem});
	free(host);
	return rc;
}

int vfm_joint_in_make(struct vfm_joint_in *j, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_tokens *video, const struct vfm_joint_rows *rows, const struct vfm_seqs *segs,
	const int32_t *sample, struct vfm_err *err)
{
	const struct vfm_tokens_whole whole = {j->cu_whole, true};
	const int n = video->n, G = segs->n;
	int64_t encoder[VFM_ROW_PARTS] = {0};
	struct vfm_suballoc count = {0};
	int32_t *cu;

	j->stream = s;
	vfm_tokens_make(&j->whole, n, j->cu_whole, video->cp, video->cp_i, video->a2a, video->tp, video->tp_i);
	vfm_tokens_make_part(
		&j->tok, n, j->cu_rows, &whole, video->cp, video->cp_i, video->a2a, video->tp, video->tp_i);
	j->rows.n = j->own.n = 2;
	for (int k = 0; k < VFM_ROW_PARTS; k++)
		if (rows->cu[k])
			encoder[j->pick.n++] = rows->cu[k][n];
	j->host = cu = vfm_calloc(2 * ((size_t)G + 1), sizeof(*cu));
	cut_segments(cu, j->tok.cu, sample, G);
	cut_segments(cu + G + 1, rows->cu[0], sample, G);
	vfm_seqs_init(&j->segs, G, cu);
	vfm_seqs_init(&j->text_segs, G, cu + G + 1);
	place_joint(j, video, encoder, &count);
	j->bytes = count.used;
	j->mem = vfm_dev_alloc(s, j->bytes, "the text of a pack", err);
	if (!j->mem)
		return VFM_EENV;
	TRY(upload_joint(j, video, rows, encoder, err));
	TRY(vfm_attn_layout_make(&j->attn, mesh, &j->whole, s, err));
	return vfm_attn_layout_make(&j->layers, mesh, &j->tok, s, err);
}

void vfm_joint_in_release(struct vfm_joint_in *j)
{
	vfm_attn_layout_release(&j->attn);
	vfm_attn_layout_release(&j->layers);
	if (j->stream)
		vfm_dev_free(j->stream, j->mem, j->bytes);
	vfm_tokens_release(&j->whole);
	vfm_tokens_release(&j->tok);
	free(j->cu_rows);
	free(j->cu_whole);
	free(j->host);
	*j = (struct vfm_joint_in){0};
}
