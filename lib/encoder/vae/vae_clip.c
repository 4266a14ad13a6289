/* vae_clip.c - encodes and decodes whole clips, in tiles that are blended at their edges. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/vae/vae_impl.h"

/* A clip to encode or to decode. */
struct vae_clip {
	enum vae_part part;
	const uint8_t *rgb; /* encoder: [first + last, height, width, 3]; the frames between them are grey */
	const float *z;     /* decoder: [frames, C, h, w] */
	int64_t frames, first, last;
	int64_t h, w; /* inputs of the net */
	/* decoder: receives the pictures of each output, which `out` has memory for; NULL: `out` is the whole clip */
	const struct vfm_picture_sink *to;
};

/* Runs a window of the clip through a session of its own; tile NULL: the window is the whole, and `out` gets the
 * results. */
static int run_window(struct vfm_vae *v, const struct vae_clip *c, const struct vae_window *at,
	const struct vae_out *out, float *tile, struct vfm_err *err)
{
	const int64_t p = v->c.patch, width = c->w * p, size = c->h * p * width * 3, area = c->h * c->w;
	struct vfm_vae_session *s;
	int rc;

	TRY(vae_session_begin(&s, v, c->part, at->h, at->w, err));
	s->tile = tile;
	s->out = out ? *out : s->out;
	s->to = c->to;
	s->run.pairs = c->frames > 1;
	for (int64_t i = 0, k; i < c->frames; i++) {
		if (c->part == VAE_DECODER) {
			TRY_OUT(vae_session_latents(
				s, c->z + i * v->c.z_dim * area + at->y * c->w + at->x, c->w, area, err));
			continue;
		}
		k = i < c->first ? i : i - (c->frames - c->last) + c->first;
		if (i >= c->first && i < c->frames - c->last)
			TRY_OUT(vae_session_pixels(s, NULL, 0, err));
		else
			TRY_OUT(vae_session_pixels(
				s, c->rgb + k * size + (at->y * p * width + at->x * p) * 3, width, err));
	}
	rc = vae_session_finish(s, err);
out:
	vfm_vae_end(s);
	return rc;
}

/* ---- tiles: tiled_encode and tiled_decode of AutoencoderKLWan ---- */

struct vae_tiles {
	int64_t size[2], step[2];         /* height, width: of the inputs */
	int64_t out_step[2], out_size[2]; /* of the outputs */
	int64_t frames, channels;         /* of the outputs */
};
struct tile {
	struct vae_window in;
	int64_t h, w; /* of the outputs */
	float *data;  /* [frames, h, w, channels] */
	size_t bytes;
};

static int64_t to_output(const struct vfm_vae *v, enum vae_part part, int64_t n)
{
	return part == VAE_ENCODER ? n / v->c.ratio : n * v->c.ratio;
}

/* Returns whether the clip is cut into tiles.  The encoder compares pixels, but its tiles are of patches. */
static bool choose_tiles(struct vae_tiles *t, const struct vfm_vae *v, const struct vae_clip *c, int64_t frames)
{
	const struct vfm_vae_tile *o = &v->tile;
	const int64_t scale = c->part == VAE_ENCODER ? 1 : v->geometry.stride[1];
	const int64_t unit = c->part == VAE_ENCODER ? v->c.patch : 1;

	if (!o->height)
		return false;
	*t = (struct vae_tiles){.size = {o->height / scale, o->width / scale},
		.step = {o->stride_height / scale, o->stride_width / scale},
		.frames = frames,
		.channels = v->net[c->part].out};
	for (int i = 0; i < 2; i++) {
		t->out_size[i] = to_output(v, c->part, t->size[i]);
		t->out_step[i] = to_output(v, c->part, t->step[i]);
	}
	return c->h * unit > t->size[0] || c->w * unit > t->size[1];
}

/* b = its own values, coming from 0 at the edge, plus those of a, which go to 0: the first rows (dim 0) or columns (dim
 * 1) of b lie on the last ones of a. */
static void blend_tiles(const struct vae_tiles *t, int dim, const struct tile *a, struct tile *b)
{
	const int64_t an = dim ? a->w : a->h, bn = dim ? b->w : b->h, h = dim ? b->h : 0, w = dim ? 0 : b->w;
	int64_t n = t->out_size[dim] - t->out_step[dim], c = t->channels;

	n = n > an ? an : n;
	n = n > bn ? bn : n;
	for (int64_t f = 0; f < t->frames; f++)
		for (int64_t y = 0; y < (dim ? h : n); y++)
			for (int64_t x = 0; x < (dim ? n : w); x++) {
				const int64_t at = dim ? x : y;
				const float mine = (float)at / (float)n, theirs = 1 - mine;
				const float *from = a->data +
					((f * a->h + y + (dim ? 0 : an - n)) * a->w + x + (dim ? an - n : 0)) * c;
				float *to = b->data + ((f * b->h + y) * b->w + x) * c;

				for (int64_t k = 0; k < c; k++)
					to[k] = from[k] * theirs + to[k] * mine;
			}
}

static int make_tile(struct vfm_vae *v, const struct vae_clip *c, const struct vae_tiles *t, int64_t y, int64_t x,
	struct tile *tile, struct vfm_err *err)
{
	tile->in = (struct vae_window){
		y, x, c->h - y < t->size[0] ? c->h - y : t->size[0], c->w - x < t->size[1] ? c->w - x : t->size[1]};
	tile->h = to_output(v, c->part, tile->in.h);
	tile->w = to_output(v, c->part, tile->in.w);
	tile->bytes = (size_t)(t->frames * tile->h * tile->w * t->channels) * sizeof(*tile->data);
	tile->data = vfm_big_alloc(tile->bytes, "a tile of the VAE", err);
	return tile->data ? run_window(v, c, &tile->in, NULL, tile->data, err) : VFM_EENV;
}

/* Stores the rows and columns of a tile up to the next tiles. */
static void store_tile_frames(const struct vfm_vae *v, const struct vae_clip *c, const struct vae_tiles *t,
	const struct tile *tile, const struct vae_out *o)
{
	const struct vae_window at = {to_output(v, c->part, tile->in.y), to_output(v, c->part, tile->in.x),
		tile->h < t->out_step[0] ? tile->h : t->out_step[0],
		tile->w < t->out_step[1] ? tile->w : t->out_step[1]};

	for (int64_t f = 0; f < t->frames; f++)
		vae_store(v, c->part, o, f, tile->data + f * tile->h * tile->w * t->channels, tile->w, &at);
}

static void free_row(struct tile *row, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		vfm_big_free(row[j].data, row[j].bytes);
	memset(row, 0, (size_t)n * sizeof(*row));
}

static int run_tiles(struct vfm_vae *v, const struct vae_clip *c, const struct vae_tiles *t, const struct vae_out *out,
	struct vfm_err *err)
{
	const int64_t n = (c->w + t->step[1] - 1) / t->step[1];
	struct tile *above = vfm_calloc((size_t)n, sizeof(*above)), *row = vfm_calloc((size_t)n, sizeof(*row)), *other;
	int rc = 0;

	for (int64_t y = 0; y < c->h && rc >= 0; y += t->step[0]) {
		for (int64_t j = 0; j < n && rc >= 0; j++) {
			rc = make_tile(v, c, t, y, j * t->step[1], &row[j], err);
			if (rc >= 0 && y)
				blend_tiles(t, 0, &above[j], &row[j]);
			if (rc >= 0 && j)
				blend_tiles(t, 1, &row[j - 1], &row[j]);
			if (rc >= 0)
				store_tile_frames(v, c, t, &row[j], out);
		}
		free_row(above, n);
		other = above, above = row, row = other;
	}
	free_row(above, n);
	free_row(row, n);
	free(above);
	free(row);
	return rc;
}

/* ---- whole clips ---- */

static int run_clip(
	struct vfm_vae *v, const struct vae_clip *c, int64_t frames, const struct vae_out *out, struct vfm_err *err)
{
	struct vae_tiles t;

	if (choose_tiles(&t, v, c, frames))
		return run_tiles(v, c, &t, out, err);
	return run_window(v, c, &(struct vae_window){0, 0, c->h, c->w}, out, NULL, err);
}

static int encode_clip(
	struct vfm_vae *v, struct vae_clip *c, int64_t height, int64_t width, float *latents, struct vfm_err *err)
{
	int32_t dims[3];

	TRY(vfm_geometry_latent(&v->geometry, c->frames, height, width, dims, err));
	c->part = VAE_ENCODER;
	c->h = height / v->c.patch, c->w = width / v->c.patch;
	return run_clip(v, c, dims[0], &(struct vae_out){.f32 = latents, .h = dims[1], .w = dims[2]}, err);
}

int vfm_vae_encode(struct vfm_vae *v, const uint8_t *rgb, int64_t frames, int64_t height, int64_t width, float *latents,
	struct vfm_err *err)
{
	return encode_clip(
		v, &(struct vae_clip){.rgb = rgb, .frames = frames, .first = frames}, height, width, latents, err);
}

int vfm_vae_encode_given(
	struct vfm_vae *v, const struct vfm_pictures *p, int64_t frames, float *latents, struct vfm_err *err)
{
	if (p->n < 1 || p->n > 2 || frames < p->n)
		return vfm_fail(err, VFM_EUSAGE, "a condition of %d pictures in %lld frames", p->n, (long long)frames);
	return encode_clip(v, &(struct vae_clip){.rgb = p->rgb, .frames = frames, .first = 1, .last = p->n - 1},
		p->height, p->width, latents, err);
}

/* Sets *c to a clip to decode, and *pictures. */
static int describe_decode(struct vae_clip *c, int64_t *pictures, const struct vfm_vae *v, const float *latents,
	int64_t t, int64_t h, int64_t w, struct vfm_err *err)
{
	*c = (struct vae_clip){.part = VAE_DECODER, .z = latents, .frames = t, .h = h, .w = w};
	if (t < 1)
		return vfm_fail(err, VFM_EUSAGE, "the VAE: no latent frame to decode");
	*pictures = vfm_geometry_pictures(&v->geometry, t);
	return vae_check_latent_frames(v, t, err);
}

int vfm_vae_decode(struct vfm_vae *v, const float *latents, int64_t t, int64_t h, int64_t w, uint8_t *rgb, float *exact,
	struct vfm_err *err)
{
	const struct vae_out out = {.rgb = rgb, .f32 = exact, .h = h * v->c.ratio, .w = w * v->c.ratio};
	struct vae_clip c;
	int64_t pictures;

	TRY(describe_decode(&c, &pictures, v, latents, t, h, w, err));
	return run_clip(v, &c, pictures, &out, err);
}

int vfm_vae_decode_to(struct vfm_vae *v, const float *latents, int64_t t, int64_t h, int64_t w,
	const struct vfm_picture_sink *to, struct vfm_err *err)
{
	struct vae_out out = {.h = h * v->c.ratio, .w = w * v->c.ratio};
	const size_t size = (size_t)(out.h * v->c.patch * out.w * v->c.patch * 3);
	struct vae_tiles tiles;
	struct vae_clip c;
	int64_t pictures, kept;
	int rc;

	TRY(describe_decode(&c, &pictures, v, latents, t, h, w, err));
	c.to = choose_tiles(&tiles, v, &c, pictures) ? NULL : to;
	kept = c.to ? v->c.patch_t : pictures;
	out.rgb = vfm_big_alloc((size_t)kept * size, "pictures", err);
	rc = out.rgb ? run_clip(v, &c, pictures, &out, err) : VFM_EENV;
	for (int64_t i = 0; !c.to && i < pictures && rc >= 0; i++)
		rc = to->take(to->ctx, out.rgb + (size_t)i * size, err);
	vfm_big_free(out.rgb, (size_t)kept * size);
	return rc;
}
