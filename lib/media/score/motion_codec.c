/* motion_codec.c - the codec's motion vectors on the grid of motion.h. */
#include <libavutil/motion_vector.h>

#include "media/score/motion_impl.h"

/* From the coded frame to the picture as shown, in shares of width and height. */
static void orient_point(const struct codec_field *c, float *x, float *y, float one)
{
	float u = c->mirrored ? one - *x : *x, v = *y;

	switch (c->rotation) {
	case 90:
		*x = one - v, *y = u;
		break;
	case 180:
		*x = one - u, *y = one - v;
		break;
	case 270:
		*x = v, *y = one - u;
		break;
	default:
		*x = u, *y = v;
	}
}

static int cell_at(float share, int n)
{
	int i = (int)(share * (float)n);

	return i < 0 ? 0 : i >= n ? n - 1 : i;
}

/* Adds a vector to the blocks of the grid that it covers. */
static void add_codec_vector(
	struct codec_field *c, const AVMotionVector *mv, int rows, float w, float h, float per_frame)
{
	float x0 = ((float)mv->dst_x - mv->w / 2.0F) / w, x1 = ((float)mv->dst_x + mv->w / 2.0F) / w;
	float y0 = ((float)mv->dst_y - mv->h / 2.0F) / h, y1 = ((float)mv->dst_y + mv->h / 2.0F) / h;
	float dx = -(float)mv->motion_x / mv->motion_scale / w * per_frame;
	float dy = -(float)mv->motion_y / mv->motion_scale / h * per_frame;
	float area = (float)mv->w * mv->h;
	int left, right, top, bottom;

	orient_point(c, &x0, &y0, 1);
	orient_point(c, &x1, &y1, 1);
	orient_point(c, &dx, &dy, 0);
	left = cell_at((x0 < x1 ? x0 : x1) + 1e-5F, MOTION_COLS);
	right = cell_at((x0 < x1 ? x1 : x0) - 1e-5F, MOTION_COLS);
	top = cell_at((y0 < y1 ? y0 : y1) + 1e-5F, rows);
	bottom = cell_at((y0 < y1 ? y1 : y0) - 1e-5F, rows);
	for (int y = top; y <= bottom; y++)
		for (int x = left; x <= right; x++) {
			int i = y * MOTION_COLS + x;

			c->dx[i] += area * dx;
			c->dy[i] += area * dy;
			c->area[i] += area;
		}
}

void vfm_codec_field_add(struct codec_field *c, int rows, const struct vfm_video *v, const struct vfm_frame *f)
{
	size_t n;
	const AVMotionVector *mv = vfm_video_vectors(v, &n);
	int w, h;

	vfm_video_coded_size(v, &w, &h);
	c->frames++;
	c->since_anchor++;
	c->with_vectors += f->type != 'B' && n > 0;
	for (size_t i = 0; i < n && f->type != 'B'; i++)
		if (mv[i].source < 0 && mv[i].motion_scale > 0)
			add_codec_vector(c, &mv[i], rows, (float)w, (float)h, 1.0F / (float)c->since_anchor);
	if (f->type != 'B')
		c->since_anchor = 0;
}
