/* A clip for the native autoencoder, window by window. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "encoder/encode/encoder_impl.h"

#define WINDOW_BYTES ((size_t)64 << 20) /* pictures that are read before the clip begins */
#define WHOLE_BYTES  ((size_t)4 << 30)  /* pictures of a clip that is encoded at once */

struct window {
	struct vfm_native *e;
	const struct vfm_encode_clip *c;
	struct vfm_clip_reader *r; /* of c */
	float *latent;             /* [t, C, h, w] */
	size_t latent_cap;         /* elements */
	int64_t t;
	size_t picture;       /* bytes */
	uint8_t *rgb;         /* [cap, height, width, 3] */
	int64_t n, cap, most; /* pictures in it; that it has memory for; at most */
	int64_t pushed;       /* pictures before it */
	bool begun;
};

static int64_t at_least(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Makes room for another picture.  Returns 1, or 0 if the window has its full size. */
static int grow_window(struct window *w, struct vfm_err *err)
{
	int64_t cap = w->cap * 2 < w->most ? w->cap * 2 : w->most;
	uint8_t *rgb;

	if (w->n < w->cap)
		return 1;
	if (w->cap == w->most)
		return 0;
	cap = at_least(cap, w->most < 8 ? w->most : 8);
	rgb = vfm_big_alloc((size_t)cap * w->picture, "the pictures of a clip", err);
	if (!rgb)
		return VFM_EENV;
	if (w->n)
		memcpy(rgb, w->rgb, (size_t)w->n * w->picture);
	vfm_big_free(w->rgb, (size_t)w->cap * w->picture);
	w->rgb = rgb;
	w->cap = cap;
	return 1;
}

/* Copies the pictures that the caller wants from the first n of the window, which have been encoded. */
static void keep_pictures(const struct window *w, int64_t n)
{
	const int64_t whole = w->t - w->t % w->c->patch_t,
		      last = whole ? vfm_geometry_pictures(vfm_native_geometry(w->e), whole) - 1 - w->pushed : -1;

	if (w->c->pictures && !w->pushed)
		memcpy(w->c->pictures, w->rgb, w->picture);
	if (w->c->pictures && w->c->given > 1 && last >= 0 && last < n)
		memcpy(w->c->pictures + w->picture, w->rgb + (size_t)last * w->picture, w->picture);
}

/* Encodes the whole groups of the window and drops them from it. */
static int push_groups(struct window *w, struct vfm_err *err)
{
	const struct vfm_geometry *g = vfm_native_geometry(w->e);
	const size_t cells =
		(size_t)g->channels * (size_t)(w->r->height / g->stride[1]) * (size_t)(w->r->width / g->stride[2]);
	const int64_t n = vfm_geometry_fit(g, w->pushed + w->n) - w->pushed;
	const double began = vfm_now();
	size_t want;
	int64_t made;

	if (n <= 0)
		return 0;
	want = (size_t)vfm_geometry_latent_frames(g, w->pushed + n) * cells;
	if (want > VFM_ENCODED_MAX / sizeof(float) || want / cells > UINT16_MAX)
		return vfm_fail(err, VFM_EINPUT,
			"too long to be one sample (over %lld frames of %dx%d): split it, or say --frames",
			(long long)w->pushed, w->r->width, w->r->height);
	if (!w->begun)
		TRY(vfm_native_begin(w->e, w->r->height, w->r->width, err));
	w->begun = true;
	vfm_grow(&w->latent, &w->latent_cap, want, sizeof(float));
	made = vfm_native_push(w->e, w->rgb, n, w->latent + (size_t)w->t * cells, err);
	if (made < 0)
		return (int)made;
	vfm_clip_extend_limit(w->r, vfm_now() - began);
	w->t += made;
	keep_pictures(w, n);
	w->pushed += n;
	w->n -= n;
	memmove(w->rgb, w->rgb + (size_t)n * w->picture, (size_t)w->n * w->picture);
	return 0;
}

/* Reads and encodes until the end of the clip, or until the tokenizer takes no more. */
static int encode_window(struct window *w, struct vfm_err *err)
{
	int got = 1, room;

	while (got == 1) {
		TRY(room = grow_window(w, err));
		if (!room && vfm_native_takes_whole(w->e))
			return vfm_fail(err, VFM_EINPUT,
				"over %lld frames of %dx%d do not fit into memory at once (tiles): say --frames",
				(long long)w->n, w->r->width, w->r->height);
		if (!room)
			return 0;
		TRY(got = vfm_clip_next(w->r, w->rgb + (size_t)w->n * w->picture, err));
		w->n += got;
		if (!got || (w->n == w->most && !vfm_native_takes_whole(w->e)))
			TRY(push_groups(w, err));
	}
	return 0;
}

int vfm_native_encode_window(struct vfm_native *e, const struct vfm_encode_clip *c, float **latent, struct vfm_err *err)
{
	const struct vfm_geometry *g = vfm_native_geometry(e);
	const size_t picture = (size_t)c->reader->height * (size_t)c->reader->width * 3;
	struct window w = {.e = e, .c = c, .r = c->reader, .picture = picture};
	int rc;

	w.most = at_least((int64_t)((vfm_native_takes_whole(e) ? WHOLE_BYTES : WINDOW_BYTES) / picture),
		at_least(g->first, g->step));
	rc = encode_window(&w, err);
	if (w.begun)
		vfm_native_end(e);
	vfm_big_free(w.rgb, (size_t)w.cap * picture);
	*latent = w.latent;
	return rc;
}
