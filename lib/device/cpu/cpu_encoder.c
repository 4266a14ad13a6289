/* cpu_encoder.c - drivers of ops of encoders: norms over channels, upsampling. */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "device/cpu/cpu_impl.h"

enum { PIECE = 32 * 1024 }; /* elements a piece, about: a core's cache holds them between two passes */

/* The pieces of an op: rows or pixels, `rows` a piece. */
struct pieces {
	const struct vfm_cpu_kern *kern;
	const void *args;
	int64_t rows;
	/* channel_norm of GROUP: pieces of a frame; of each piece [2][groups] (channel_stats); of each frame the same,
	 * with 1 / sqrt(var + eps) */
	int64_t of_frame;
	float *part, *stats;
};

static int64_t rows_of_piece(int64_t width)
{
	return width > PIECE ? 1 : PIECE / (width + 1) + 1;
}

/* ---- norms over channels ------------------------------------------------------------ */

static float *channel_scratch(const struct vfm_channel_norm *a)
{
	return vfm_cpu_scratch((size_t)a->x.shape[2] * 3 * sizeof(float) + 64);
}

static void rms_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct pieces *p = ctx;

	p->kern->channel_norm(p->args, i0, i1, NULL, channel_scratch(p->args));
}

/* Computes the statistics of the pieces, or their results. */
static void group_range(const struct pieces *p, int64_t i0, int64_t i1, bool stats)
{
	const struct vfm_channel_norm *a = p->args;
	int64_t pixels = a->x.shape[1];
	float *tmp = channel_scratch(a);

	for (int64_t i = i0; i < i1; i++) {
		int64_t t = i / p->of_frame, first = i % p->of_frame * p->rows;
		int64_t end = first + p->rows < pixels ? first + p->rows : pixels;

		if (stats)
			p->kern->channel_stats(
				a, t * pixels + first, t * pixels + end, p->part + i * 2 * a->groups, tmp);
		else
			p->kern->channel_norm(
				a, t * pixels + first, t * pixels + end, p->stats + t * 2 * a->groups, tmp);
	}
}

static void group_stats_range(int64_t i0, int64_t i1, void *ctx)
{
	group_range(ctx, i0, i1, true);
}

static void group_norm_range(int64_t i0, int64_t i1, void *ctx)
{
	group_range(ctx, i0, i1, false);
}

/* Merges the statistics of the pieces of a frame, in their order (Chan, Golub & LeVeque, 1983). */
static void merge_stats(const struct pieces *p, int64_t t, int g)
{
	const struct vfm_channel_norm *a = p->args;
	int64_t pixels = a->x.shape[1], width = a->x.shape[2] / a->groups;
	double n = 0, mean = 0, squares = 0;

	for (int64_t i = 0; i < p->of_frame; i++) {
		const float *part = p->part + (t * p->of_frame + i) * 2 * a->groups + g;
		int64_t rest = pixels - i * p->rows;
		double m = (double)((rest < p->rows ? rest : p->rows) * width), delta = (double)part[0] - mean;

		mean += delta * m / (n + m);
		squares += (double)part[a->groups] + delta * delta * n * m / (n + m);
		n += m;
	}
	p->stats[t * 2 * a->groups + g] = (float)mean;
	p->stats[(t * 2 + 1) * a->groups + g] = (float)(1 / sqrt(squares / n + (double)a->eps));
}

int vfm_cpu_channel_norm(struct vfm_stream *s, const struct vfm_channel_norm *a, struct vfm_err *err)
{
	int64_t frames = a->x.shape[0], pixels = a->x.shape[1], rows = rows_of_piece(a->x.shape[2]), n;
	struct pieces p = {.kern = vfm_cpu_of(s)->kern, .args = a, .rows = rows};

	if (a->kind != VFM_CHANNEL_NORM_GROUP) {
		vfm_par_for(frames * pixels, rows, rms_range, &p);
		return 0;
	}
	p.of_frame = cpu_ceil_div(pixels, rows);
	n = frames * p.of_frame;
	if (!n)
		return 0;
	p.part = vfm_cpu_ws(s, VFM_WS_PART, (size_t)((n + frames) * 2 * a->groups) * sizeof(float), err);
	if (!p.part)
		return VFM_EENV;
	p.stats = p.part + n * 2 * a->groups;
	vfm_par_for(n, 1, group_stats_range, &p);
	for (int64_t t = 0; t < frames; t++)
		for (int g = 0; g < a->groups; g++)
			merge_stats(&p, t, g);
	vfm_par_for(n, 1, group_norm_range, &p);
	return 0;
}

/* ---- upsampling ------------------------------------------------------------------------ */

/* Row i of all frames of x becomes rows 2 i and 2 i + 1 of y. */
static void upsample_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct vfm_upsample *a = ((const struct pieces *)ctx)->args;
	int64_t w = a->x.shape[2];
	size_t size = (size_t)a->x.shape[3] * vfm_dtype_size(a->x.dtype), row = 2 * (size_t)w * size;

	for (int64_t i = i0; i < i1; i++) {
		const char *x = (const char *)a->x.data + (size_t)(i * w) * size;
		char *y = (char *)a->y.data + (size_t)i * 2 * row;

		for (int64_t k = 0; k < w; k++, x += size, y += 2 * size) {
			memcpy(y, x, size);
			memcpy(y + size, x, size);
			memcpy(y + row, x, size);
			memcpy(y + row + size, x, size);
		}
	}
}

int vfm_cpu_upsample(struct vfm_stream *s, const struct vfm_upsample *a, struct vfm_err *err)
{
	struct pieces p = {.args = a};

	(void)s, (void)err;
	if (vfm_numel(&a->x))
		vfm_par_for(a->x.shape[0] * a->x.shape[1], rows_of_piece(a->x.shape[2] * a->x.shape[3]), upsample_range,
			&p);
	return 0;
}
