/* outside.c - writes requests and frames for a child, and checks the arrays that it returns. */
#include "encoder/exec/outside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/record.h"
#include "encoder/exec/payload.h"
#include "io/input.h"
#include "spec/model/dtype.h"

#define MAX_INPUT ((size_t)16 << 30) /* bytes of the frames of a record */

/* ---- identities ---- */

struct vfm_encoder_id vfm_outside_id(const struct vfm_hello *h)
{
	struct vfm_encoder_id m = {0};

	strcpy(m.name, h->name);
	strcpy(m.version, h->version);
	strcpy(m.sha256, h->sha256);
	return m;
}

struct vfm_encoder_id vfm_outside_encoder_id(const struct vfm_hello *h, enum vfm_exec_op op, int pictures)
{
	struct vfm_encoder_id m = vfm_outside_id(h);

	if (op == VFM_EXEC_TEXT_ENCODE) {
		m.dim = (int32_t)h->text_dim;
		m.rows = (int32_t)h->text_rows;
		m.max_rows = h->text_rows ? 0 : (int32_t)h->text_max_rows;
	} else if (op == VFM_EXEC_IMAGE_ENCODE) {
		m.dim = (int32_t)h->image_dim;
		m.rows = (int32_t)(h->image_rows * pictures);
	} else {
		m.geometry = h->geometry;
	}
	return m;
}

/* ---- arrays ---- */

static void print_wanted_shape(char *text, size_t size, int ndim, const int64_t *shape)
{
	size_t n = (size_t)snprintf(text, size, "[");

	for (int i = 0; i < ndim && n < size; i++)
		n += (size_t)snprintf(text + n, size - n, shape[i] > 0 ? "%s%" PRId64 : "%s*", i ? "," : "", shape[i]);
	if (n < size)
		snprintf(text + n, size - n, "]");
}

static int check_shape(const struct vfm_npy *a, const char *key, int ndim, const int64_t *want, struct vfm_err *err)
{
	char got[128], expected[128];
	bool equal = a->ndim == ndim;

	for (int i = 0; i < ndim && equal; i++)
		equal = want[i] <= 0 || a->shape[i] == want[i];
	if (equal)
		return 0;
	print_wanted_shape(got, sizeof(got), a->ndim, a->shape);
	print_wanted_shape(expected, sizeof(expected), ndim, want);
	return vfm_fail(err, VFM_EINPUT, "%s.shape: expected %s, got %s", key, expected, got);
}

/* The arrays of the answers; decode's has bytes, the others floating-point numbers. */
static const struct {
	enum vfm_exec_op op;
	const char *key;
	int ndim;
} arrays[] = {
	{VFM_EXEC_EMBED, "vector", 1},
	{VFM_EXEC_EMBED_TEXT, "vector", 1},
	{VFM_EXEC_TEXT_ENCODE, "rows", 2},
	{VFM_EXEC_IMAGE_ENCODE, "rows", 2},
	{VFM_EXEC_ENCODE, "latent", 4},
	{VFM_EXEC_DECODE, "frames", 4},
	{VFM_EXEC_SHOTS, "cut", 1},
};

/* Reads and checks the array of an answer. */
static int take_array(struct vfm_exec_slot *s, enum vfm_exec_op op, const json_t *answer, const int64_t *want,
	struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	const char *key;
	int i = 0;

	while (arrays[i].op != op)
		i++;
	key = arrays[i].key;
	if (want[0] == VFM_OUTSIDE_ROWS_OR_NULL && json_is_null(json_object_get(answer, key))) {
		*npy = (struct vfm_npy){.type = VFM_NPY_F32, .ndim = 2, .shape = {0, want[1]}};
		*data = NULL;
		return 0;
	}
	TRY(vfm_exec_read_array(s, answer, key, npy, data, err));
	TRY(check_shape(npy, key, arrays[i].ndim, want, err));
	TRY(vfm_npy_check_finite(npy, *data, key, err));
	if ((npy->type == VFM_NPY_U8) == (op == VFM_EXEC_DECODE))
		return 0;
	return vfm_fail(err, VFM_EINPUT, "%s.dtype: expected %s", key,
		op == VFM_EXEC_DECODE ? "uint8" : "a floating-point type");
}

int vfm_outside_ask(struct vfm_exec_slot *s, enum vfm_exec_op op, json_t *request, const int64_t *want,
	struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	json_t *answer;
	int rc;

	vfm_exec_set_op(s, op);
	TRY(vfm_exec_call(s, request, &answer, err));
	rc = take_array(s, op, answer, want, npy, data, err);
	json_decref(answer);
	return rc;
}

static int check_latent_range(
	const struct vfm_hello *h, const struct vfm_npy *npy, const void *data, struct vfm_err *err)
{
	const size_t n = vfm_npy_count(npy), size = vfm_npy_type_size(npy->type);
	float x[1024];

	for (size_t at = 0; at < n && h->min < h->max; at += 1024) {
		const size_t here = n - at < 1024 ? n - at : 1024;

		vfm_dtype_convert(VFM_F32, x, vfm_dtype_of_npy(npy->type), (const char *)data + at * size, here);
		for (size_t i = 0; i < here; i++)
			if (!(x[i] >= h->min && x[i] <= h->max))
				return vfm_fail(err, VFM_EINPUT, "latent: element %zu is %g, outside of %g to %g",
					at + i, x[i], h->min, h->max);
	}
	return 0;
}

/* ---- frames ---- */

/* Writes the pictures of r to the slot's input, one at a time. */
static int write_pictures(
	struct vfm_exec_slot *s, struct vfm_clip_reader *r, uint8_t *rgb, size_t picture, struct vfm_err *err)
{
	int rc;

	while ((rc = vfm_clip_next(r, rgb, err)) == 1) {
		size_t before = (size_t)r->pictures - 1;

		if (before >= MAX_INPUT / picture)
			return vfm_fail(err, VFM_EINPUT, "'%s': over %zu frames of %dx%d are too many for one request",
				r->src, before, r->width, r->height);
		TRY(vfm_exec_input(s, before * picture, rgb, picture, err));
	}
	return rc;
}

int vfm_outside_read(struct vfm_exec_slot *s, struct vfm_clip_reader *r, const struct vfm_geometry *g, int32_t patch_t,
	struct vfm_outside_frames *f, struct vfm_err *err)
{
	const size_t picture = (size_t)r->height * (size_t)r->width * 3;
	uint8_t *rgb = vfm_big_alloc(picture, "a picture", err);
	int64_t keep;
	int rc;

	if (!rgb)
		return VFM_EENV;
	rc = write_pictures(s, r, rgb, picture, err);
	vfm_big_free(rgb, picture);
	TRY(rc);
	keep = r->pictures;
	if (g)
		TRY(vfm_clip_whole_patches(r, g, patch_t, &keep, err));
	else if (keep < 1)
		return vfm_fail(err, VFM_EINPUT, "'%s' gives none of the frames to show", r->src);
	*f = (struct vfm_outside_frames){.shape = {keep, r->height, r->width, 3}, .fps = r->fps};
	return 0;
}

/* The frames as an object of the request; *o is the caller's. */
static int describe_frames(struct vfm_exec_slot *s, const struct vfm_outside_frames *f, json_t **o, struct vfm_err *err)
{
	TRY(vfm_exec_describe(s, VFM_NPY_U8, 4, f->shape, o, err));
	json_object_set_new(*o, "fps", f->fps > 0 ? json_real(f->fps) : json_null());
	return 0;
}

/* ---- requests ---- */

static json_t *request_of(json_t *frames, const char *id)
{
	return json_pack("{s:o,s:{s:s}}", "frames", frames, "record", "id", id);
}

int vfm_outside_encode(struct vfm_exec_slot *s, const struct vfm_hello *h, const struct vfm_outside_frames *f,
	const char *id, int given, struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	json_t *frames, *request;
	int32_t dims[3];

	if (vfm_geometry_latent(&h->geometry, f->shape[0], f->shape[1], f->shape[2], dims, err) < 0)
		return VFM_EINPUT;
	TRY(describe_frames(s, f, &frames, err));
	request = request_of(frames, id);
	if (given)
		json_object_set_new(request, "given", json_integer(1));
	if (given > 1)
		json_object_set_new(request, "given_last", json_integer(1));
	TRY(vfm_outside_ask(s, VFM_EXEC_ENCODE, request, (int64_t[]){h->geometry.channels, dims[0], dims[1], dims[2]},
		npy, data, err));
	return check_latent_range(h, npy, *data, err);
}

int vfm_outside_decode(struct vfm_exec_slot *s, const struct vfm_hello *h, const float *latent, const int32_t dims[3],
	int64_t frames, const uint8_t **rgb, struct vfm_err *err)
{
	const struct vfm_geometry *g = &h->geometry;
	const int64_t shape[4] = {g->channels, dims[0], dims[1], dims[2]},
		      want[4] = {frames, (int64_t)dims[1] * g->stride[1], (int64_t)dims[2] * g->stride[2], 3};
	const size_t bytes = (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2] * (size_t)shape[3] * sizeof(float);
	struct vfm_npy npy;
	const void *data;
	json_t *in;

	TRY(vfm_exec_input(s, 0, latent, bytes, err));
	TRY(vfm_exec_describe(s, VFM_NPY_F32, 4, shape, &in, err));
	TRY(vfm_outside_ask(s, VFM_EXEC_DECODE, json_pack("{s:o,s:I}", "latent", in, "frames", (json_int_t)frames),
		want, &npy, &data, err));
	*rgb = data;
	return 0;
}

int vfm_outside_text(struct vfm_exec_slot *s, const struct vfm_hello *h, const char *text, bool may_be_null,
	struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	const int64_t rows = may_be_null ? VFM_OUTSIDE_ROWS_OR_NULL : h->text_rows;

	TRY(vfm_outside_ask(s, VFM_EXEC_TEXT_ENCODE, json_pack("{s:s}", "text", text), (int64_t[]){rows, h->text_dim},
		npy, data, err));
	if (npy->shape[0] && h->text_rows && npy->shape[0] != h->text_rows)
		return vfm_fail(err, VFM_EINPUT, "rows.shape: %" PRId64 " rows, %" PRId64 " were announced",
			npy->shape[0], h->text_rows);
	if (!h->text_rows && npy->shape[0] > h->text_max_rows)
		return vfm_fail(err, VFM_EINPUT, "rows.shape: %" PRId64 " rows, at most %" PRId64 " were announced",
			npy->shape[0], h->text_max_rows);
	return 0;
}

int vfm_outside_image(struct vfm_exec_slot *s, const struct vfm_hello *h, const struct vfm_outside_frames *f,
	const char *id, struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	json_t *frames;

	TRY(describe_frames(s, f, &frames, err));
	return vfm_outside_ask(s, VFM_EXEC_IMAGE_ENCODE, request_of(frames, id),
		(int64_t[]){f->shape[0] * h->image_rows, h->image_dim}, npy, data, err);
}

int vfm_outside_shots(struct vfm_exec_slot *s, const struct vfm_hello *h, const char *id, float *p, struct vfm_err *err)
{
	const struct vfm_exec_windows *w = &h->shots;
	struct vfm_outside_frames f = {.shape = {w->frames, w->height, w->width, 3}};
	struct vfm_npy npy;
	const void *data;
	json_t *frames;

	TRY(describe_frames(s, &f, &frames, err));
	TRY(vfm_outside_ask(s, VFM_EXEC_SHOTS, request_of(frames, id), &w->frames, &npy, &data, err));
	vfm_dtype_convert(VFM_F32, p, vfm_dtype_of_npy(npy.type), data, (size_t)w->frames);
	for (int64_t i = 0; i < w->frames; i++)
		if (!(p[i] >= 0 && p[i] <= 1))
			return vfm_fail(
				err, VFM_EINPUT, "cut: element %lld is %g, no probability", (long long)i, (double)p[i]);
	return 0;
}

/* ---- views ---- */

/* {"path":…,"start_frame":…,"end_frame":…} of the window. */
static json_t *describe_clip(const struct vfm_outside_view *v, const json_t *rec, struct vfm_err *err)
{
	struct vfm_rec_media m;
	int64_t start, end;
	json_t *o;

	if (vfm_rec_media(rec, &m, err) < 0)
		return NULL;
	if (vfm_member_parse(NULL, m.src)) {
		vfm_fail(err, VFM_EINPUT, "'%s' is a member of a tar, which the model cannot open: run clip before",
			m.src);
		return NULL;
	}
	start = m.start_frame + v->start_frame;
	end = v->frames && (m.end_frame < 0 || start + v->frames < m.end_frame) ? start + v->frames : m.end_frame;
	o = json_pack("{s:s}", "path", m.src);
	if (start || end >= 0)
		json_object_set_new(o, "start_frame", json_integer(start));
	if (end >= 0)
		json_object_set_new(o, "end_frame", json_integer(end));
	return o;
}

static int read_view(struct vfm_exec_slot *s, const struct vfm_outside_view *v, const json_t *rec,
	struct vfm_outside_frames *f, struct vfm_err *err)
{
	static const enum vfm_clip_fit fits[] = {
		[VFM_EXEC_COVER] = VFM_CLIP_COVER,
		[VFM_EXEC_CONTAIN] = VFM_CLIP_CONTAIN,
		[VFM_EXEC_STRETCH] = VFM_CLIP_STRETCH,
	};
	struct vfm_clip_opts o = {.width = v->input.width,
		.height = v->input.height,
		.fit = fits[v->input.fit],
		.start_frame = v->start_frame,
		.frames = v->frames,
		.fps = v->input.fps,
		.most = v->input.max_frames,
		.even = v->input.frames,
		.timeout_s = v->timeout_s,
		.threads = v->threads};
	struct vfm_clip_reader r = {0};
	int rc = vfm_clip_open(&r, rec, &o, err);

	if (rc >= 0)
		rc = vfm_outside_read(s, &r, NULL, 1, f, err);
	vfm_clip_close(&r);
	return rc;
}

json_t *vfm_outside_show(
	struct vfm_exec_slot *s, const struct vfm_outside_view *v, const json_t *rec, struct vfm_err *err)
{
	struct vfm_outside_frames f;
	json_t *shown;

	if (v->input.clip) {
		shown = describe_clip(v, rec, err);
		return shown ? json_pack("{s:o,s:O}", "clip", shown, "record", rec) : NULL;
	}
	if (read_view(s, v, rec, &f, err) < 0 || describe_frames(s, &f, &shown, err) < 0)
		return NULL;
	return json_pack("{s:o,s:O}", "frames", shown, "record", rec);
}
