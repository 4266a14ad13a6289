/* cpu_conv.c - convolution of frames: an implicit GEMM of pixels x output channels, without im2col of a frame.
 *
 * For each block of output pixels, the pixels of one frame that it reads are copied to `lines`: 16 words of each pixel,
 * converted for the kernel of the instruction set (f32; pairs of bf16; three bf16 of f32), with zeros where x is
 * padded.  A tap is then an offset into the lines: the tile kernel reads the rows of A there.
 *
 * Lines have the order [group of words][part][phase][row][column].  Pixels of a block are numbered along the rows of
 * lines, padding included, and mr neighbours form a tile; pixels past the end of a row are computed and dropped.  With
 * strides, a phase holds the rows and columns of one remainder modulo the stride, so that neighbours of a tile are
 * neighbours there, too.  Upsampling happens as lines are copied.
 *
 * K is summed in chunks: the taps of one frame for some of the channels, or of several frames for all.  A chunk of a
 * panel of weights and the lines fit the L2 cache.  Frames of zeros are skipped.  Where a line has room, it holds all
 * taps of a row, contiguous in x: x[kw,C] is then a pixel of a convolution whose kernel has one column.
 *
 * The order of sums depends on weight alone, so a pixel has the same bits in any block and any clip.
 */
#include <string.h>

#include "base/par.h"
#include "device/cpu/cpu_impl.h"

enum {
	LINE = 16,             /* words */
	CHUNK_LINES = 12,      /* of a pixel: most in a chunk, with their parts */
	LINES_BYTES = 1 << 20, /* of a block, about */
	BLOCK_COLS = 112,      /* most columns of a block */
	TILE_MAX = 32 * 32
};

struct cpu_conv {
	const struct vfm_conv3d *a;
	const struct vfm_gemm_kern *kern;
	struct vfm_epi epi;
	bool bf, by_row;           /* by_row: a line holds the taps of a row */
	int64_t esize;             /* of x */
	int64_t t, h, w;           /* of y */
	int64_t c, o;              /* elements of a pixel of the lines; channels of y */
	int kt, kh, kw, sh, sw;    /* of the lines */
	int64_t lanes, parts, cbs; /* elements and parts of a line; lines of a pixel */
	int64_t groups, frames;    /* groups of lines; frames of a chunk, 1 if there are several groups */
	int64_t most;              /* lines of a pixel of a chunk */
	int64_t units, b_unit;     /* units of a panel of weights; floats of a unit */
	int64_t n_panels;
	int64_t bh, bw, nbh, nbw;               /* the largest block; blocks of a frame */
	int64_t qh, qw;                         /* rows and columns of a phase */
	int64_t part, m_tiles;                  /* floats of a part of the lines; tiles of the largest block */
	size_t lines_size, sums_size, row_size; /* floats */
	int32_t *off;                           /* of the units of `frames` frames: [frame][group][kh][line][kw] */
	float *packed;
};

/* A block of pixels of frame t of y, and the memory of its thread. */
struct conv_block {
	int64_t t, h0, w0, nh, nw;
	float *lines, *sums;
	char *row; /* of x, with zeros where it is padded */
};

/* Returns the first line of group g. */
static int64_t group_start(const struct cpu_conv *v, int64_t g)
{
	return v->cbs * g / v->groups;
}

/* ---- weights ---- */

/* Packs panel j: units in the order [frame][group][kh][line][kw]. */
static void pack_panel(const struct cpu_conv *v, int64_t j)
{
	const struct vfm_tensor *w = &v->a->weight;
	const struct vfm_mat m = {w->data, w->shape[1] * w->shape[2], v->bf, false};
	int64_t nr = v->kern->nr, rows = cpu_min(nr, v->o - j * nr), taps = (int64_t)v->kh * v->kw;
	float *dst = v->packed + j * v->units * v->b_unit;

	memset(dst, 0, (size_t)(v->units * v->b_unit) * sizeof(*dst));
	for (int64_t i = 0; i < v->kt; i++)
		for (int64_t g = 0; g < v->groups; g++)
			for (int64_t k = 0; k < v->kh; k++)
				for (int64_t b = group_start(v, g); b < group_start(v, g + 1); b++)
					for (int64_t l = 0; l < v->kw; l++, dst += v->b_unit) {
						int64_t first = (i * taps + k * v->kw + l) * v->c;
						int64_t k0 = first + b * v->lanes;

						v->kern->pack(dst, false, v->b_unit, &m, j * nr, rows, k0,
							cpu_min(k0 + v->lanes, first + v->c), NULL);
					}
}

static void pack_range(int64_t j0, int64_t j1, void *ctx)
{
	for (int64_t j = j0; j < j1; j++)
		pack_panel(ctx, j);
}

static size_t packed_bytes(const struct cpu_conv *v)
{
	return (size_t)(v->n_panels * v->units * v->b_unit) * sizeof(float);
}

/* The weights in panels: those of the caller, or packed for this call. */
static int get_weights(struct vfm_stream *s, struct cpu_conv *v, struct vfm_err *err)
{
	v->packed = v->a->packed ? v->a->weight.data : vfm_cpu_ws(s, VFM_WS_PACK, packed_bytes(v), err);
	if (!v->packed)
		return VFM_EENV;
	if (!v->a->packed)
		vfm_par_for(v->n_panels, 1, pack_range, v);
	return 0;
}

/* ---- geometry ---- */

/* Chooses the elements of a line, the units of K and their chunks: by kernel and weight alone. */
static void choose_lines(struct vfm_stream *s, struct cpu_conv *v)
{
	const struct vfm_conv3d *a = v->a;
	const struct vfm_cpu *cpu = vfm_cpu_of(s);
	int64_t c = a->weight.shape[2];

	v->bf = a->weight.dtype == VFM_BF16;
	v->esize = v->bf ? 2 : 4;
	v->kern = v->bf ? &cpu->gemm_bf16 : &cpu->gemm_f32;
	v->o = a->weight.shape[0];
	v->parts = v->kern->words == 1 ? 1 : v->kern->words / LINE;
	v->lanes = v->kern->words == 1 ? (int64_t)LINE * v->kern->ku : v->kern->ku;
	v->by_row = c < v->lanes && cpu_ceil_div(a->kernel[2] * c, v->lanes) < a->kernel[2];
	v->c = v->by_row ? a->kernel[2] * c : c;
	v->kt = a->kernel[0], v->kh = a->kernel[1], v->kw = v->by_row ? 1 : a->kernel[2];
	v->sh = a->stride[1], v->sw = v->by_row ? 1 : a->stride[2];
	v->cbs = cpu_ceil_div(v->c, v->lanes);
	v->groups = cpu_ceil_div(v->cbs * v->parts, CHUNK_LINES);
	v->frames = v->groups == 1 ? cpu_min(v->kt, CHUNK_LINES / (v->cbs * v->parts)) : 1;
	v->most = v->frames * cpu_ceil_div(v->cbs, cpu_max(v->groups, 1));
	v->units = v->kt * v->cbs * v->kh * v->kw;
	v->n_panels = cpu_ceil_div(v->o, v->kern->nr);
	v->b_unit = v->parts * LINE * v->kern->nr;
}

/* Divides frames into blocks whose lines fit the cache, at least four for each thread. */
static void choose_pixels(struct cpu_conv *v)
{
	int64_t want = 4 * (int64_t)vfm_par_threads(), row;

	v->nbw = cpu_ceil_div(v->w, BLOCK_COLS);
	v->bw = cpu_ceil_div(v->w, v->nbw);
	v->qw = v->bw + (v->kw - 1) / v->sw;
	row = v->sh * v->sw * v->qw * v->most * v->parts * LINE * (int64_t)sizeof(float);
	v->bh = cpu_max(1, LINES_BYTES / cpu_max(row, 1) - (v->kh - 1) / v->sh);
	v->nbh = cpu_ceil_div(v->h, v->bh);
	while (v->t * v->nbh * v->nbw < want && v->h / v->nbh > 4)
		v->nbh++;
	v->bh = cpu_ceil_div(v->h, v->nbh);
	v->qh = v->bh + (v->kh - 1) / v->sh;
	v->part = v->sh * v->sw * v->qh * v->qw * LINE;
	v->m_tiles = cpu_ceil_div((v->bh - 1) * v->qw + v->bw, v->kern->mr);
	/* tiles read up to mr lines after the last */
	v->lines_size = (size_t)(v->most * v->parts * v->part + v->kern->mr * LINE);
	/* a chunk that is the only one completes a tile at a time */
	v->sums_size = (size_t)(v->kern->mr * v->kern->nr);
	if (v->frames < v->kt || v->groups > 1)
		v->sums_size *= (size_t)(v->m_tiles * v->n_panels);
	v->row_size =
		v->by_row ? (size_t)(((v->bw - 1) * v->a->stride[2] + v->a->kernel[2]) * v->a->x.shape[3]) + LINE : 0;
}

static int choose_offsets(struct vfm_stream *s, struct cpu_conv *v, struct vfm_err *err)
{
	int32_t *off = vfm_cpu_ws(s, VFM_WS_TEMP, (size_t)(v->units + 1) * sizeof(*off), err);

	v->off = off;
	if (!off)
		return VFM_EENV;
	for (int64_t f = 0; f < v->frames; f++)
		for (int64_t g = 0; g < v->groups; g++)
			for (int64_t k = 0; k < v->kh; k++)
				for (int64_t b = group_start(v, g); b < group_start(v, g + 1); b++)
					for (int64_t l = 0; l < v->kw; l++) {
						int64_t line = f * v->cbs + b - group_start(v, g);
						int64_t phase = k % v->sh * v->sw + l % v->sw;
						int64_t row = phase * v->qh + k / v->sh;

						*off++ = (int32_t)(line * v->parts * v->part +
							(row * v->qw + l / v->sw) * LINE);
					}
	return 0;
}

/* ---- lines ---- */

/* Returns frame i of those before and in x; NULL: zeros. */
static const char *get_frame(const struct cpu_conv *v, int64_t i)
{
	const struct vfm_tensor *x = &v->a->x, *past = &v->a->past;
	int64_t size = x->shape[1] * x->shape[2] * x->shape[3] * v->esize, p = vfm_has(past) ? past->shape[0] : 0;

	i -= v->a->zeros;
	if (i < 0)
		return NULL;
	return i < p ? (const char *)past->data + i * past->stride[0] * v->esize
		     : (const char *)x->data + (i - p) * size;
}

/* Zeros n pixels of `count` lines. */
static void zero_lines(const struct cpu_conv *v, float *dst, int64_t n, int64_t count)
{
	for (int64_t p = 0; p < v->parts * count && n > 0; p++)
		memset(dst + p * v->part, 0, (size_t)(n * LINE) * sizeof(*dst));
}

/* Copies lines [b0, b1) of the columns of one phase of a row of x, from column `first` on, which may be outside.  With
 * `up` column i is that of pixel i / 2, and every second column of the phase lies `sw` pixels further. */
static void copy_columns(const struct cpu_conv *v, float *dst, const char *src, int64_t first, int64_t b0, int64_t b1)
{
	int up = v->a->up;
	int64_t w = v->a->x.shape[2] << up, c = v->a->x.shape[3];
	int64_t j0 = first < 0 ? cpu_min(v->qw, cpu_ceil_div(-first, v->sw)) : 0;
	int64_t j1 = first < w ? cpu_max(j0, cpu_min(v->qw, cpu_ceil_div(w - first, v->sw))) : j0;
	struct vfm_patch_lines x = {
		.bf = v->bf,
		.pitch = c * v->sw,
		.c = cpu_min(b1 * v->lanes, c) - b0 * v->lanes,
		.step = (int64_t)LINE << up,
		.line = v->parts * v->part,
		.part = v->part,
	};

	zero_lines(v, dst, j0, b1 - b0);
	for (int64_t j = j0; j < j1 && j <= j0 + up; j++) {
		x.p = src + (((first + j * v->sw) >> up) * c + b0 * v->lanes) * v->esize;
		x.n = (j1 - j + up) >> up;
		x.dst = dst + j * LINE;
		v->kern->lines(&x);
	}
	zero_lines(v, dst + j1 * LINE, v->qw - j1, b1 - b0);
}

/* The same from the taps of a row, for pixels of the block; others are zero. */
static void copy_windows(const struct cpu_conv *v, const struct conv_block *k, float *dst, int64_t b0, int64_t b1)
{
	struct vfm_patch_lines x = {
		.p = k->row + b0 * v->lanes * v->esize,
		.bf = v->bf,
		.pitch = v->a->x.shape[3] * v->a->stride[2],
		.n = k->nw,
		.c = cpu_min(b1 * v->lanes, v->c) - b0 * v->lanes,
		.dst = dst,
		.step = LINE,
		.line = v->parts * v->part,
		.part = v->part,
	};

	v->kern->lines(&x);
	zero_lines(v, dst + k->nw * LINE, v->qw - k->nw, b1 - b0);
}

/* k->row = what the block reads of a row of x. */
static void pad_row(const struct cpu_conv *v, const struct conv_block *k, const char *src)
{
	int up = v->a->up;
	int64_t w = v->a->x.shape[2] << up, pixel = v->a->x.shape[3] * v->esize, step = v->a->stride[2];
	int64_t n = (k->nw - 1) * step + v->a->kernel[2], first = k->w0 * step - v->a->pad[2];
	int64_t j0 = cpu_min(n, cpu_max(0, -first)), j1 = cpu_max(j0, cpu_min(n, w - first));

	memset(k->row, 0, (size_t)(j0 * pixel));
	if (j1 > j0 && !up)
		memcpy(k->row + j0 * pixel, src + (first + j0) * pixel, (size_t)((j1 - j0) * pixel));
	for (int64_t j = j0; j < j1 && up; j++)
		memcpy(k->row + j * pixel, src + ((first + j) >> up) * pixel, (size_t)pixel);
	memset(k->row + j1 * pixel, 0, (size_t)((n - j1) * pixel));
}

/* Fills the lines [b0, b1) of the pixels of a frame that the block reads; `lines`: of line b0. */
static void copy_lines(
	const struct cpu_conv *v, const struct conv_block *k, float *lines, const char *frame, int64_t b0, int64_t b1)
{
	const struct vfm_conv3d *a = v->a;
	int64_t h = a->x.shape[1] << a->up, pitch = a->x.shape[2] * a->x.shape[3] * v->esize;

	for (int64_t r = 0; r < v->qh * v->sh; r++) {
		int64_t y = k->h0 * v->sh + r - a->pad[0];
		bool outside = y < 0 || y >= h || r >= (k->nh - 1) * v->sh + v->kh;

		if (v->by_row && !outside)
			pad_row(v, k, frame + (y >> a->up) * pitch);
		for (int64_t l = 0; l < v->sw; l++) {
			float *dst = lines + ((r % v->sh * v->sw + l) * v->qh + r / v->sh) * v->qw * LINE;

			if (outside)
				zero_lines(v, dst, v->qw, b1 - b0);
			else if (v->by_row)
				copy_windows(v, k, dst, b0, b1);
			else
				copy_columns(
					v, dst, frame + (y >> a->up) * pitch, k->w0 * v->sw + l - a->pad[2], b0, b1);
		}
	}
}

/* ---- sums ---- */

/* Stores the pixels of tile i of the block that exist, for panel j. */
static void store_tile(const struct cpu_conv *v, const struct conv_block *k, int64_t i, int64_t j, const float *tile)
{
	int64_t mr = v->kern->mr, nr = v->kern->nr, n;

	for (int64_t m = 0; m < mr; m += n) {
		int64_t q = i * mr + m, h = q / v->qw, w = q % v->qw, y = (k->t * v->h + k->h0 + h) * v->w + k->w0 + w;

		n = cpu_min(mr - m, v->qw - w);
		if (h < k->nh && w < k->nw)
			v->kern->epilogue(
				&v->epi, tile + m * nr, y, j * nr, cpu_min(n, k->nw - w), cpu_min(nr, v->o - j * nr));
	}
}

/* Adds the products of group g of frames [i0, i1) of the kernel to the sums; `last` stores the results.  The lines of
 * the frames begin with those of frame i0 - skip. */
static void conv_chunk(const struct cpu_conv *v, const struct conv_block *k, const int64_t frames[2], int64_t skip,
	int64_t g, bool first, bool last)
{
	int64_t mr = v->kern->mr, nr = v->kern->nr, taps = (int64_t)v->kh * v->kw, b0 = group_start(v, g);
	int64_t tiles = cpu_ceil_div((k->nh - 1) * v->qw + k->nw, mr), unit0 = (frames[0] * v->cbs + b0) * taps;
	struct vfm_conv_units u = {.n = (frames[1] - frames[0]) * (group_start(v, g + 1) - b0) * taps,
		.part = v->part,
		.off = v->off + (skip * v->cbs + b0) * taps};

	for (int64_t j = 0; j < v->n_panels; j++) {
		const float *b = v->packed + (j * v->units + unit0) * v->b_unit;

		for (int64_t m = 0; m < tiles; m++) {
			float *tile = k->sums + (first && last ? 0 : (j * v->m_tiles + m) * mr * nr);

			v->kern->conv(&u, k->lines + m * mr * LINE, b, tile, v->o - j * nr, first);
			if (last)
				store_tile(v, k, m, j, tile);
		}
	}
}

/* No frame contributes: the sums are zero. */
static void store_zeros(const struct cpu_conv *v, const struct conv_block *k)
{
	static const float zeros[TILE_MAX];

	for (int64_t j = 0; j < v->n_panels; j++)
		for (int64_t m = 0; m < v->m_tiles; m++)
			store_tile(v, k, m, j, zeros);
}

static void compute_block(const struct cpu_conv *v, const struct conv_block *k)
{
	int64_t frame0 = k->t * v->a->stride[0], i0 = 0, stride = v->most / v->frames * v->parts * v->part;

	while (i0 < v->kt && !get_frame(v, frame0 + i0))
		i0++;
	if (i0 == v->kt || !v->groups) {
		store_zeros(v, k);
		return;
	}
	for (int64_t c = i0 / v->frames * v->frames; c < v->kt; c += v->frames) {
		const int64_t frames[2] = {cpu_max(c, i0), cpu_min(c + v->frames, v->kt)};

		for (int64_t g = 0; g < v->groups; g++) {
			for (int64_t i = frames[0]; i < frames[1]; i++)
				copy_lines(v, k, k->lines + (i - c) * stride, get_frame(v, frame0 + i),
					group_start(v, g), group_start(v, g + 1));
			conv_chunk(v, k, frames, frames[0] - c, g, frames[0] == i0 && g == 0,
				frames[1] == v->kt && g == v->groups - 1);
		}
	}
}

static void conv_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct cpu_conv *v = ctx;
	float *mem = vfm_cpu_scratch((v->sums_size + v->lines_size + v->row_size) * sizeof(float));
	float *end = mem + v->sums_size + v->lines_size;
	struct conv_block k = {.sums = mem, .lines = mem + v->sums_size, .row = (char *)end};

	memset(end - v->kern->mr * LINE, 0, (size_t)(v->kern->mr * LINE) * sizeof(float));
	if (v->kern->begin)
		v->kern->begin();
	for (int64_t i = i0; i < i1; i++) {
		int64_t bx = i / v->t % v->nbw, by = i / v->t / v->nbw;

		k.t = i % v->t; /* neighbours read the same frames */
		k.h0 = v->h * by / v->nbh, k.nh = v->h * (by + 1) / v->nbh - k.h0;
		k.w0 = v->w * bx / v->nbw, k.nw = v->w * (bx + 1) / v->nbw - k.w0;
		compute_block(v, &k);
	}
	if (v->kern->end)
		v->kern->end();
}

int vfm_cpu_conv3d(struct vfm_stream *s, const struct vfm_conv3d *a, struct vfm_err *err)
{
	struct cpu_conv v = {
		.a = a,
		.epi = {.c = a->y.data,
			.ldc = a->y.shape[3],
			.c_bf = a->y.dtype == VFM_BF16,
			.bias = vfm_has(&a->bias) ? a->bias.data : NULL,
			.add = vfm_has(&a->add) ? a->add.data : NULL},
		.t = a->y.shape[0],
		.h = a->y.shape[1],
		.w = a->y.shape[2],
	};

	if (!vfm_numel(&a->y))
		return 0;
	choose_lines(s, &v);
	choose_pixels(&v);
	TRY(choose_offsets(s, &v, err));
	if (v.groups)
		TRY(get_weights(s, &v, err));
	vfm_par_for(v.t * v.nbh * v.nbw, 1, conv_range, &v);
	return 0;
}

size_t vfm_cpu_conv3d_packed_size(struct vfm_stream *s, const struct vfm_conv3d *a)
{
	struct cpu_conv v = {.a = a};

	choose_lines(s, &v);
	/* three bf16 of each f32 would take 1.5 times the memory; each call packs them in little of its time */
	return v.parts == 1 ? packed_bytes(&v) : 0;
}

int vfm_cpu_conv3d_pack(struct vfm_stream *s, const struct vfm_conv3d *a, void *packed, struct vfm_err *err)
{
	struct cpu_conv v = {.a = a, .packed = packed};

	(void)err;
	choose_lines(s, &v);
	if (v.groups)
		vfm_par_for(v.n_panels, 1, pack_range, &v);
	return 0;
}
