/* vae_res.c - residual blocks, in strips of rows.
 *
 * A strip of the current frame replaces those rows of a convolution's oldest frame that it has read for the last
 * time.  So the convolution holds two frames and a strip, not three frames.  The second convolution follows a row
 * after the first, and adds its results to rows of x that the first has already read.  Each pixel has the same bits as
 * in a whole frame (struct vfm_conv3d), unless a device chooses another order of sums for a strip.
 */
#include "encoder/vae/vae_impl.h"

enum { LEAST_ROWS = 4 }; /* of a strip: the two rows that it leaves to the next do not overlap those it got */

/* A convolution over 3 frames and 3 x 3 pixels whose current frame exists in strips. */
struct strip_conv {
	const struct vae_conv *v;
	struct vae_past *past;
	struct vae_frame *strip;  /* rows [first, end) of the current frame */
	struct vae_frame *newest; /* the frame as it is kept: up to row `first` */
	int64_t first, end;
	bool last; /* the strip of the last results */
};

/* Results of a strip; two rows that the next one needs stand before them, or after them. */
static int64_t strip_rows(const struct vae_run *r, int64_t h, int64_t row_bytes)
{
	const int64_t strips = (h * row_bytes + r->strip - 1) / r->strip, rows = (h + strips - 1) / strips;

	return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

static int64_t most_rows(const struct vae_run *r, int64_t h, int64_t row_bytes)
{
	const int64_t rows = strip_rows(r, h, row_bytes) + 2;

	return rows < h ? rows : h;
}

size_t vae_res_room(const struct vae_run *r, const struct vae_layer *l, int64_t h, int64_t w)
{
	const int64_t in = l->conv[0].in, out = l->conv[0].out, size = (int64_t)vfm_dtype_size(r->dtype) * w;
	const int64_t rows = most_rows(r, h, size * (in > out ? in : out));

	return (size_t)(size * (rows * (in + out) + h * (l->conv[2].out ? in + out : in)));
}

static int begin_strips(struct vae_run *r, struct strip_conv *c, const struct vae_conv *v, struct vae_past *past,
	int64_t rows, const struct vae_frame *x, struct vfm_err *err)
{
	const int64_t size[3] = {x->t.shape[1], x->t.shape[2], v->in};

	*c = (struct strip_conv){.v = v, .past = past};
	TRY(vae_past_next(r, past, size, &c->newest, err));
	return vae_frame_new(r, rows, size[1], size[2], &c->strip, err);
}

/* *y, the rows of results that the strip determines, becomes the convolution; with `add` plus *y. */
static int run_strip(struct vae_run *r, const struct strip_conv *c, struct vae_frame *y, bool add, struct vfm_err *err)
{
	const int64_t n = c->end - c->first;
	const struct vae_frame x = vae_frame_window(c->strip, 0, n);
	struct vae_frame f[2];
	struct vae_past past = {.f = {&f[0], &f[1]}, .n = c->past->n};
	struct vae_conv v = *c->v;

	for (int i = 0; i < past.n; i++)
		f[i] = vae_frame_window(c->past->f[i], c->first, n);
	v.pad[0] = c->first == 0;
	v.pad[1] = c->last;
	return vae_run_conv(r, &v, &past, &x, add ? y : NULL, &y, err);
}

/* Keeps the rows of the strip before `row`: no later result reads the oldest frame for them. */
static int keep_rows(struct vae_run *r, const struct strip_conv *c, int64_t row, struct vfm_err *err)
{
	const struct vae_frame from = vae_frame_window(c->strip, 0, row - c->first);
	const struct vae_frame to = vae_frame_window(c->newest, c->first, row - c->first);

	return vae_frame_copy(r, &from, &to, err);
}

/* Moves the rows of the strip from `row` on to its start. */
static int move_rows(struct vae_run *r, struct strip_conv *c, int64_t row, struct vfm_err *err)
{
	const struct vae_frame from = vae_frame_window(c->strip, row - c->first, c->end - row);
	const struct vae_frame to = vae_frame_window(c->strip, 0, c->end - row);

	c->first = row;
	return vae_frame_copy(r, &from, &to, err);
}

/* Rows [r0, r1) of a = silu(norm[0](x)) and the row after them -> rows of b = silu(norm[1](conv[0](a))), and one row
 * later of y += conv[1](b); y may be x. */
static int run_rows_of_block(struct vae_run *r, const struct vae_layer *l, struct strip_conv *a, struct strip_conv *b,
	int64_t r0, int64_t r1, const struct vae_frame *x, const struct vae_frame *y, struct vfm_err *err)
{
	const bool last = r1 == x->t.shape[1];
	struct vae_frame from, to;

	a->first = r0 ? r0 - 1 : 0;
	a->end = last ? r1 : r1 + 1;
	a->last = b->last = last;
	from = vae_frame_window(x, a->first, a->end - a->first);
	to = vae_frame_window(a->strip, 0, a->end - a->first);
	TRY(vae_run_norm(r, &l->norm[0], VFM_ACT_SILU, &from, &to, err));
	to = vae_frame_window(b->strip, r0 - b->first, r1 - r0);
	b->end = r1;
	TRY(run_strip(r, a, &to, false, err));
	TRY(vae_run_norm(r, &l->norm[1], VFM_ACT_SILU, &to, &to, err));
	TRY(keep_rows(r, a, last ? r1 : r1 - 1, err));
	to = vae_frame_window(y, r0 ? r0 - 1 : 0, (last ? r1 : r1 - 1) - (r0 ? r0 - 1 : 0));
	TRY(run_strip(r, b, &to, true, err));
	TRY(keep_rows(r, b, last ? r1 : r1 - 2, err));
	return last ? 0 : move_rows(r, b, r1 - 2, err);
}

int vae_layer_res(struct vae_run *r, const struct vae_layer *l, struct vae_layer_state *st, struct vae_frame *x,
	struct vae_frame **out, struct vfm_err *err)
{
	const int64_t h = x->t.shape[1], widest = l->in > l->conv[0].out ? l->in : l->conv[0].out;
	const int64_t row_bytes = x->t.shape[2] * widest * (int64_t)vfm_dtype_size(r->dtype);
	const int64_t rows = strip_rows(r, h, row_bytes), most = most_rows(r, h, row_bytes);
	struct strip_conv a = {0}, b = {0};
	struct vae_frame *y = NULL;
	int rc;

	if (l->conv[2].out) {
		TRY_OUT(vae_run_conv(r, &l->conv[2], NULL, x, NULL, &y, err));
	} else {
		TRY_OUT(vae_frame_own(r, &x, err));
		y = vae_frame_keep(x);
	}
	TRY_OUT(begin_strips(r, &a, &l->conv[0], &st->past[0], most, x, err));
	TRY_OUT(begin_strips(r, &b, &l->conv[1], &st->past[1], most, x, err));
	for (int64_t r0 = 0; r0 < h; r0 += rows)
		TRY_OUT(run_rows_of_block(r, l, &a, &b, r0, r0 + rows < h ? r0 + rows : h, x, y, err));
	vae_past_shift(&st->past[0]);
	vae_past_shift(&st->past[1]);
	*out = y;
	y = NULL;
out:
	vae_frame_drop(r, a.strip);
	vae_frame_drop(r, b.strip);
	vae_frame_drop(r, x);
	vae_frame_drop(r, y);
	return rc;
}
