/* vae_session.c - sessions: pixels to patches on the device, frames pushed in order, latents and pictures out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "encoder/vae/vae_impl.h"

enum { SIDE_MAX = 1 << 14 }; /* of a frame */

/* ---- frames on the host ---- */

/* Channel (colour, slot, i, j) of a patch is row and column (i, j) of it in Cosmos, and (j, i) in Wan; the slots are
 * its frames. */
static int64_t patch_row(const struct vae_config *c, int64_t i, int64_t j)
{
	return c->family == VAE_COSMOS ? i : j;
}

/* Pixels -> numbers of [-1, 1] in the slot of each patch; rgb NULL: 0, grey. */
static void patchify_frame(const struct vfm_vae_session *s, const uint8_t *rgb, int64_t width, int64_t slot)
{
	const struct vae_config *c = &s->v->c;
	const int64_t p = c->patch, cell = c->in_channels;

	for (int64_t y = 0; y < s->h; y++)
		for (int64_t x = 0; x < s->w; x++)
			for (int64_t k = 0; k < 3; k++) {
				float *dst = s->host + (y * s->w + x) * cell + (k * c->patch_t + slot) * p * p;

				for (int64_t i = 0; i < p; i++)
					for (int64_t j = 0; j < p; j++) {
						const int64_t row = y * p + patch_row(c, i, j),
							      col = x * p + patch_row(c, j, i);

						*dst++ = rgb ? (float)rgb[(row * width + col) * 3 + k] / 127.5f - 1 : 0;
					}
			}
}

/* One frame of patches [., raw_w, C] of a window -> picture t of o, clamped to [-1, 1]. */
static void store_picture(const struct vae_config *c, const struct vae_out *o, int64_t t, int64_t slot,
	const float *raw, int64_t raw_w, const struct vae_window *at)
{
	const int64_t p = c->patch, width = o->w * p, size = o->h * p * width * 3;

	for (int64_t y = 0; y < at->h; y++)
		for (int64_t x = 0; x < at->w; x++)
			for (int64_t k = 0; k < 3; k++) {
				const float *from =
					raw + (y * raw_w + x) * c->out_channels + (k * c->patch_t + slot) * p * p;

				for (int64_t i = 0; i < p; i++)
					for (int64_t j = 0; j < p; j++) {
						const int64_t row = (at->y + y) * p + patch_row(c, i, j);
						const int64_t col = (at->x + x) * p + patch_row(c, j, i);
						const int64_t to = t * size + (row * width + col) * 3 + k;
						const float f = fminf(fmaxf(*from++, -1), 1);

						if (o->f32)
							o->f32[to] = f;
						if (o->rgb)
							o->rgb[to] = (uint8_t)lrintf((f + 1) * 127.5f);
					}
			}
}

/* Only the last frame of the patches of the first output is a picture. */
static void store_pixels(const struct vfm_vae *v, const struct vae_out *o, int64_t t, const float *raw, int64_t raw_w,
	const struct vae_window *at)
{
	const struct vae_config *c = &v->c;
	const int64_t first = vae_frames_before(c, t) - vae_frames_before(c, o->first);
	const int64_t skip = t ? 0 : c->patch_t - 1;

	for (int64_t slot = skip; slot < c->patch_t; slot++)
		store_picture(c, o, first + slot - skip, slot, raw, raw_w, at);
}

static void store_latents(const struct vfm_vae *v, const struct vae_out *o, int64_t t, const float *raw, int64_t raw_w,
	const struct vae_window *at)
{
	const float *mean = vae_scaling(&v->c, v->c.mean, t), *std = vae_scaling(&v->c, v->c.std, t);
	const int64_t c = v->c.z_dim, to = t - o->first;

	for (int64_t k = 0; k < c; k++)
		for (int64_t y = 0; y < at->h; y++)
			for (int64_t x = 0; x < at->w; x++)
				o->f32[((to * c + k) * o->h + at->y + y) * o->w + at->x + x] =
					(raw[(y * raw_w + x) * c + k] - mean[k]) / std[k];
}

void vae_store(const struct vfm_vae *v, enum vae_part part, const struct vae_out *o, int64_t t, const float *raw,
	int64_t raw_w, const struct vae_window *at)
{
	if (part == VAE_ENCODER)
		store_latents(v, o, t, raw, raw_w, at);
	else
		store_pixels(v, o, t, raw, raw_w, at);
}

/* ---- frames on the device ---- */

/* Stores an output in s->host [., w, C] in the arrays of the push, or passes its pictures on. */
static int store_output(struct vfm_vae_session *s, int64_t h, int64_t w, struct vfm_err *err)
{
	const struct vae_config *c = &s->v->c;
	const int64_t p = c->patch, size = h * p * w * p * 3, t = s->emitted;
	const int64_t n = vae_frames_before(c, t + 1) - vae_frames_before(c, t);

	if (s->to)
		s->out.first = t;
	vae_store(s->v, s->part, &s->out, t, s->host, w, &(struct vae_window){0, 0, h, w});
	for (int64_t i = 0; s->to && i < n; i++)
		TRY(s->to->take(s->to->ctx, s->out.rgb + i * size, err));
	return 0;
}

/* Receives a frame [H,W,C] of the last layer. */
static int emit_frame(void *ctx, const struct vae_frame *y, struct vfm_err *err)
{
	struct vfm_vae_session *s = ctx;
	const size_t n = (size_t)vfm_numel(&y->t);
	const int64_t h = y->t.shape[1], w = y->t.shape[2];

	TRY(s->run.s->dev->t->to_host(s->run.s, s->raw, y->t.data, vfm_nbytes(&y->t), err));
	TRY(s->run.s->dev->t->stream_sync(s->run.s, err));
	if (vfm_dtype_count_nonfinite(s->run.dtype, s->raw, n))
		return vfm_fail(err, VFM_EINPUT, "the %s of the VAE made numbers that are not finite",
			s->part == VAE_ENCODER ? "encoder" : "decoder");
	vfm_dtype_convert(VFM_F32, s->tile ? s->tile + (size_t)s->emitted * n : s->host, s->run.dtype, s->raw, n);
	if (!s->tile)
		TRY(store_output(s, h, w, err));
	s->emitted++;
	return 0;
}

/* Runs the frame in s->host. */
static int push_host_frame(struct vfm_vae_session *s, struct vfm_err *err)
{
	const int64_t c = s->run.net->layer[0].in;
	struct vae_frame *x;
	int rc;

	TRY(vae_frame_new(&s->run, s->h, s->w, c, &x, err));
	vfm_dtype_convert(s->run.dtype, s->raw, VFM_F32, s->host, (size_t)(s->h * s->w * c));
	rc = s->run.s->dev->t->to_device(s->run.s, x->t.data, s->raw, vfm_nbytes(&x->t), err);
	s->frames++;
	if (rc < 0)
		vae_frame_drop(&s->run, x);
	else
		rc = vae_run_push(&s->run, x, err);
	s->failed = rc < 0;
	return rc;
}

int vae_session_pixels(struct vfm_vae_session *s, const uint8_t *rgb, int64_t width, struct vfm_err *err)
{
	const int64_t n = s->v->c.patch_t, at = s->pictures++, last = at ? (at - 1) % n : n - 1;

	/* all frames of the first patches are the first picture */
	for (int64_t slot = at ? last : 0; slot <= last; slot++)
		patchify_frame(s, rgb, width, slot);
	return last == n - 1 ? push_host_frame(s, err) : 0;
}

/* Replaces a share of the latent frame in s->host by noise, a function of frame, channel and cell (LTXPipeline of
 * diffusers, decode_noise_scale). */
static void add_latent_noise(struct vfm_vae_session *s)
{
	const struct vfm_rng rng = vfm_rng_stream(0, 1, 0, VFM_RNG_VAE);
	const int64_t c = s->v->c.z_dim, cells = s->h * s->w;

	for (int64_t i = 0; i < cells; i++)
		for (int64_t k = 0; k < c; k++) {
			float *x = s->host + i * c + k;
			const uint64_t at = (uint64_t)((s->frames * c + k) * cells + i);

			*x = (1 - VAE_DECODE_NOISE) * *x + VAE_DECODE_NOISE * vfm_rng_normal(&rng, at);
		}
}

int vae_session_latents(struct vfm_vae_session *s, const float *z, int64_t width, int64_t area, struct vfm_err *err)
{
	const struct vae_config *c = &s->v->c;
	const float *mean = vae_scaling(c, c->mean, s->frames), *std = vae_scaling(c, c->std, s->frames);
	float *dst = s->host;

	for (int64_t y = 0; y < s->h; y++)
		for (int64_t x = 0; x < s->w; x++)
			for (int64_t k = 0; k < c->z_dim; k++)
				*dst++ = z[k * area + y * width + x] * std[k] + mean[k];
	if (c->ltx.timestep)
		add_latent_noise(s);
	return push_host_frame(s, err);
}

int vae_session_finish(struct vfm_vae_session *s, struct vfm_err *err)
{
	int rc = vae_run_finish(&s->run, err);

	s->failed = s->failed || rc < 0;
	return rc;
}

/* ---- sessions ---- */

int vae_session_begin(
	struct vfm_vae_session **out, struct vfm_vae *v, enum vae_part part, int64_t h, int64_t w, struct vfm_err *err)
{
	const struct vae_net *net = &v->net[part];
	const int64_t ratio = v->c.ratio;
	const int64_t oh = part == VAE_ENCODER ? h / ratio : h * ratio,
		      ow = part == VAE_ENCODER ? w / ratio : w * ratio;
	struct vfm_vae_session *s;
	size_t in_n, out_n;

	if (!net->n)
		return vfm_fail(err, VFM_EUSAGE, "internal: the %s of the VAE was not loaded",
			part == VAE_ENCODER ? "encoder" : "decoder");
	if (h < 1 || w < 1 || h > SIDE_MAX || w > SIDE_MAX || oh > SIDE_MAX || ow > SIDE_MAX)
		return vfm_fail(err, VFM_EUSAGE, "the VAE: frames have sides of at most %d", SIDE_MAX);
	TRY(vae_load_part(v, part, err));
	s = vfm_calloc(1, sizeof(*s));
	*s = (struct vfm_vae_session){.v = v, .part = part, .h = h, .w = w, .out = {.h = oh, .w = ow}};
	vae_run_init(&s->run, v->s, v->dtype, net, h, w);
	s->run.emit = emit_frame;
	s->run.ctx = s;
	in_n = (size_t)(h * w * net->layer[0].in), out_n = (size_t)(oh * ow * net->out);
	s->n = in_n > out_n ? in_n : out_n;
	s->host = vfm_big_alloc(s->n * sizeof(*s->host), "a frame of the VAE", err);
	s->raw = s->host ? vfm_big_alloc(s->n * sizeof(*s->host), "a frame of the VAE", err) : NULL;
	if (!s->raw) {
		vfm_vae_end(s);
		return VFM_EENV;
	}
	*out = s;
	return 0;
}

void vfm_vae_end(struct vfm_vae_session *s)
{
	if (!s)
		return;
	vae_run_release(&s->run);
	vfm_big_free(s->host, s->n * sizeof(*s->host));
	vfm_big_free(s->raw, s->n * sizeof(*s->host));
	free(s);
}

int vfm_vae_encode_begin(
	struct vfm_vae_session **s, struct vfm_vae *v, int64_t height, int64_t width, struct vfm_err *err)
{
	int32_t dims[3];

	if (v->tile.height)
		return vfm_fail(err, VFM_EUSAGE, "the VAE: tiles need the whole clip at once");
	TRY(vfm_geometry_latent(&v->geometry, 1, height, width, dims, err));
	return vae_session_begin(s, v, VAE_ENCODER, height / v->c.patch, width / v->c.patch, err);
}

int vae_check_latent_frames(const struct vfm_vae *v, int64_t t, struct vfm_err *err)
{
	const int most = v->c.scaling_frames;

	if (most > 1 && t > most)
		return vfm_fail(err, VFM_EUSAGE, "the VAE: %lld latent frames, but latents_mean is given for %d",
			(long long)t, most);
	return 0;
}

int vfm_vae_encode_push(struct vfm_vae_session *s, const uint8_t *rgb, int64_t n, float *latents, struct vfm_err *err)
{
	const int64_t p = s->v->c.patch, size = s->h * s->w * p * p * 3, had = s->emitted;
	const int step = s->v->geometry.step, most = s->v->geometry.max_frames;

	if (s->failed)
		return vfm_fail(err, VFM_EUSAGE, "internal: a VAE session is used after an error");
	if (n < 0 || (n && (s->pictures ? n : n - 1) % step))
		return vfm_fail(
			err, VFM_EUSAGE, "the VAE takes 1 + %dn frames, then %dn; got %lld", step, step, (long long)n);
	if (most && s->pictures + n > most)
		return vfm_fail(err, VFM_EUSAGE, "the VAE takes at most %d frames", most);
	s->out.f32 = latents;
	s->out.first = had;
	for (int64_t i = 0; i < n; i++)
		TRY(vae_session_pixels(s, rgb + i * size, s->w * p, err));
	return (int)(s->emitted - had);
}
