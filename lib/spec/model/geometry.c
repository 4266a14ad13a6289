/* geometry.c - frames and sizes of latents, and the geometry as text and JSON. */
#include "spec/model/geometry.h"

#include <stdio.h>
#include <string.h>

#include "io/json.h"

#define COUNTS_TEXT 64

bool vfm_is_plain_name(const char *s, size_t size)
{
	size_t n = strlen(s);

	return n > 0 && n < size &&
		strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/+-") == n;
}

bool vfm_geometry_is_known(const struct vfm_geometry *g)
{
	return g->channels > 0;
}

bool vfm_geometry_equal(const struct vfm_geometry *a, const struct vfm_geometry *b)
{
	return !memcmp(a->stride, b->stride, sizeof(a->stride)) && a->channels == b->channels && a->first == b->first &&
		a->step == b->step && a->max_frames == b->max_frames && a->pad == b->pad &&
		!strcmp(a->scaling, b->scaling);
}

/* ---- frames ---- */

/* The largest first + k * step of at most `frames`; 0 if there is none. */
static int64_t floor_count(const struct vfm_geometry *g, int64_t frames)
{
	if (frames < g->first)
		return 0;
	return g->step ? g->first + (frames - g->first) / g->step * g->step : g->first;
}

int64_t vfm_geometry_fit(const struct vfm_geometry *g, int64_t frames)
{
	int64_t most = g->max_frames && g->max_frames < frames ? g->max_frames : frames;

	if (frames < 1 || !g->pad)
		return floor_count(g, most);
	/* Padding must reach a count: only the last one, if there is one, bounds the frames. */
	most = g->max_frames ? floor_count(g, g->max_frames) : g->step ? frames : g->first;
	return frames < most ? frames : most;
}

int64_t vfm_geometry_fit_patch(const struct vfm_geometry *g, int64_t frames, int32_t patch_t)
{
	int64_t n = vfm_geometry_fit(g, frames);

	while (n > 0 && vfm_geometry_latent_frames(g, n) % patch_t)
		n = vfm_geometry_fit(g, n - 1);
	return n;
}

int64_t vfm_geometry_latent_frames(const struct vfm_geometry *g, int64_t frames)
{
	int64_t more = frames - g->first;

	if (frames < 1 || vfm_geometry_fit(g, frames) != frames)
		return 0;
	if (more <= 0)
		return 1;
	return 1 + (more / g->step + (more % g->step != 0)) * (g->step / g->stride[0]);
}

int64_t vfm_geometry_pictures(const struct vfm_geometry *g, int64_t latent_frames)
{
	return g->first + (latent_frames - 1) * g->stride[0];
}

/* ---- sizes ---- */

void vfm_geometry_multiple(const struct vfm_geometry *g, const int32_t patch[3], int32_t multiple[2])
{
	multiple[0] = g->stride[1] * patch[1];
	multiple[1] = g->stride[2] * patch[2];
}

/* "1 + 4n frames, at most 81" */
static const char *frame_counts_text(const struct vfm_geometry *g, char text[COUNTS_TEXT])
{
	int n;

	if (g->pad)
		n = snprintf(text, COUNTS_TEXT, "any number of frames");
	else if (!g->step)
		n = snprintf(text, COUNTS_TEXT, "%d frame%s", g->first, g->first == 1 ? "" : "s");
	else if (g->first == g->step)
		n = snprintf(text, COUNTS_TEXT, "%dn frames", g->step);
	else
		n = snprintf(text, COUNTS_TEXT, "%d + %dn frames", g->first, g->step);
	if (g->max_frames && g->step)
		snprintf(text + n, COUNTS_TEXT - (size_t)n, ", at most %lld", (long long)floor_count(g, g->max_frames));
	return text;
}

int vfm_geometry_latent(const struct vfm_geometry *g, int64_t frames, int64_t height, int64_t width, int32_t dims[3],
	struct vfm_err *err)
{
	int64_t t = vfm_geometry_latent_frames(g, frames), h = height / g->stride[1], w = width / g->stride[2];
	char counts[COUNTS_TEXT];

	if (t < 1 || t > INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%lld frames: the tokenizer takes %s", (long long)frames,
			frame_counts_text(g, counts));
	if (h < 1 || w < 1 || height % g->stride[1] || width % g->stride[2] || h > INT32_MAX || w > INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE,
			"%lldx%lld pixels: the tokenizer needs a width that is a multiple of %d and a height that is a "
			"multiple of %d",
			(long long)width, (long long)height, g->stride[2], g->stride[1]);
	dims[0] = (int32_t)t;
	dims[1] = (int32_t)h;
	dims[2] = (int32_t)w;
	return 0;
}

const char *vfm_geometry_text(const struct vfm_geometry *g, char text[VFM_GEOMETRY_TEXT])
{
	char counts[COUNTS_TEXT];

	if (!vfm_geometry_is_known(g))
		snprintf(text, VFM_GEOMETRY_TEXT, "unknown geometry");
	else
		snprintf(text, VFM_GEOMETRY_TEXT, "stride %dx%dx%d, %d channels, %s%s%s", g->stride[0], g->stride[1],
			g->stride[2], g->channels, frame_counts_text(g, counts), g->scaling[0] ? ", scaling " : "",
			g->scaling);
	return text;
}

/* ---- JSON ---- */

json_t *vfm_geometry_json(const struct vfm_geometry *g)
{
	if (!vfm_geometry_is_known(g))
		return json_null();
	return json_pack("{s:[iii],s:i,s:[ii],s:o*,s:o*,s:s*}", "stride", g->stride[0], g->stride[1], g->stride[2],
		"channels", g->channels, "frames", g->first, g->step, "max_frames",
		g->max_frames ? json_integer(g->max_frames) : NULL, "pad", g->pad ? json_true() : NULL, "scaling",
		g->scaling[0] ? g->scaling : NULL);
}

static int read_ints(const json_t *o, const char *where, const char *key, size_t n, int64_t min, int64_t max,
	int32_t *out, struct vfm_err *err)
{
	const json_t *a = json_object_get(o, key);

	if (!json_is_array(a) || json_array_size(a) != n)
		return vfm_fail(err, VFM_EUSAGE, "%s.%s: expected an array of %zu integers", where, key, n);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(a, i);

		if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
			return vfm_fail(err, VFM_EUSAGE, "%s.%s[%zu]: expected an integer from %lld to %lld", where,
				key, i, (long long)min, (long long)max);
		out[i] = (int32_t)json_integer_value(v);
	}
	return 0;
}

static int read_frame_counts(struct vfm_geometry *g, const json_t *o, const char *where, struct vfm_err *err)
{
	int32_t frames[2];
	int64_t most = 0;

	TRY(read_ints(o, where, "frames", 2, 0, VFM_GEOMETRY_FRAMES_MAX, frames, err));
	TRY(vfm_json_i64(o, where, "max_frames", false, 1, VFM_GEOMETRY_FRAMES_MAX, &most, err));
	g->first = frames[0];
	g->step = frames[1];
	if (g->first < 1)
		return vfm_fail(err, VFM_EUSAGE, "%s.frames[0]: expected at least 1", where);
	if (g->step % g->stride[0])
		return vfm_fail(err, VFM_EUSAGE, "%s.frames[1]: expected a multiple of the stride %d, got %d", where,
			g->stride[0], g->step);
	if (most && most < g->first)
		return vfm_fail(err, VFM_EUSAGE, "%s.max_frames: expected at least frames[0], %d", where, g->first);
	g->max_frames = (int32_t)floor_count(g, most); /* so that equal geometries have equal fields */
	return 0;
}

int vfm_geometry_from_json(struct vfm_geometry *g, const json_t *o, const char *where, struct vfm_err *err)
{
	const json_t *pad = json_object_get(o, "pad");
	const char *scaling = "";
	int64_t channels = 0;

	*g = (struct vfm_geometry){0};
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	TRY(read_ints(o, where, "stride", 3, 1, VFM_GEOMETRY_STRIDE_MAX, g->stride, err));
	TRY(vfm_json_i64(o, where, "channels", true, 1, VFM_GEOMETRY_CHANNELS_MAX, &channels, err));
	TRY(read_frame_counts(g, o, where, err));
	TRY(vfm_json_str(o, where, "scaling", false, &scaling, err));
	if (pad && !json_is_boolean(pad))
		return vfm_fail(err, VFM_EUSAGE, "%s.pad: expected true or false", where);
	if (*scaling && !vfm_is_plain_name(scaling, sizeof(g->scaling)))
		return vfm_fail(err, VFM_EUSAGE,
			"%s.scaling: expected at most %zu characters of A-Z a-z 0-9 . _ : / + -", where,
			sizeof(g->scaling) - 1);
	strcpy(g->scaling, scaling);
	g->pad = json_is_true(pad);
	g->channels = (int32_t)channels;
	return 0;
}
