#include "encoder/exec/outside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/record.h"
#include "encoder/exec/payload.h"
#include "io/input.h"

#define MAX_INPUT ((size_t)16 << 30) /* bytes of the frames of a record */

/* ---- makers ---- */

struct vfm_maker vfm_outside_maker(const struct vfm_hello *h)
{
	struct vfm_maker m = {0};

	strcpy(m.name, h->name);
	strcpy(m.version, h->version);
	strcpy(m.sha256, h->sha256);
	return m;
}

struct vfm_maker vfm_outside_encoder(const struct vfm_hello *h, enum vfm_exec_op op, int pictures)
{
	struct vfm_maker m = vfm_outside_maker(h);

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
		n += (size_t)snprintf(text + n, size - n, shape[i] ? "%s%" PRId64 : "%s*", i ? "," : "", shape[i]);
	if (n < size)
		snprintf(text + n, size - n, "]");
}

static int check_shape(
	const struct vfm_exec_array *a, const char *key, int ndim, const int64_t *want, struct vfm_err *err)
{
	char got[128], expected[128];
	bool equal = a->ndim == ndim;

	for (int i = 0; i < ndim && equal; i++)
		equal = !want[i] || a->shape[i] == want[i];
	if (equal)
		return 0;
	print_wanted_shape(got, sizeof(got), a->ndim, a->shape);
	print_wanted_shape(expected, sizeof(expected), ndim, want);
	return vfm_fail(err, VFM_EINPUT, "%s.shape: expected %s, got %s", key, expected, got);
}

int vfm_outside_array(struct vfm_exec_slot *s, const json_t *answer, const char *key, int ndim, const int64_t *want,
	struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	static const enum vfm_npy_type types[] = {
		[VFM_EXEC_U8] = VFM_NPY_U8,
		[VFM_EXEC_F16] = VFM_NPY_F16,
		[VFM_EXEC_BF16] = VFM_NPY_BF16,
		[VFM_EXEC_F32] = VFM_NPY_F32,
	};
	struct vfm_exec_array a;

	TRY(vfm_exec_read_array(s, answer, key, &a, err));
	TRY(check_shape(&a, key, ndim, want, err));
	*npy = (struct vfm_npy){.type = types[a.dtype], .ndim = ndim};
	memcpy(npy->shape, a.shape, (size_t)ndim * sizeof(a.shape[0]));
	npy->data_bytes = a.count * vfm_exec_dtype_size(a.dtype);
	*data = a.data;
	return vfm_npy_check_finite(npy, a.data, key, err);
}

/* The same for elements that are no integers. */
static int read_floats(struct vfm_exec_slot *s, const json_t *answer, const char *key, int ndim, const int64_t *want,
	struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	TRY(vfm_outside_array(s, answer, key, ndim, want, npy, data, err));
	return npy->type != VFM_NPY_U8 ? 0 : vfm_fail(err, VFM_EINPUT, "%s.dtype: expected a floating-point type", key);
}

/* Widens element i of an array of floating-point numbers. */
static float element_value(const struct vfm_npy *npy, const void *data, size_t i)
{
	uint32_t bits;
	float x;

	if (npy->type == VFM_NPY_F32)
		return ((const float *)data)[i];
	if (npy->type == VFM_NPY_F16) {
		vfm_f16s_to_f32(&x, (const uint16_t *)data + i, 1);
		return x;
	}
	bits = (uint32_t)((const uint16_t *)data)[i] << 16;
	memcpy(&x, &bits, 4);
	return x;
}

static int check_latent_range(
	const struct vfm_hello *h, const struct vfm_npy *npy, const void *data, const char *key, struct vfm_err *err)
{
	size_t n = vfm_npy_count(npy);

	for (size_t i = 0; i < n && h->min < h->max; i++) {
		float x = element_value(npy, data, i);

		if (!(x >= h->min && x <= h->max))
			return vfm_fail(err, VFM_EINPUT, "%s: element %zu is %g, outside of %g to %g", key, i, x,
				h->min, h->max);
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
		return vfm_fail(err, VFM_EINPUT, "'%s' gives no frame of those to show", r->src);
	*f = (struct vfm_outside_frames){.shape = {keep, r->height, r->width, 3}, .fps = r->fps};
	return 0;
}

/* The frames as an object of the request; *o is the caller's. */
static int describe_frames(struct vfm_exec_slot *s, const struct vfm_outside_frames *f, json_t **o, struct vfm_err *err)
{
	TRY(vfm_exec_describe(s, VFM_EXEC_U8, 4, f->shape, o, err));
	json_object_set_new(*o, "fps", f->fps > 0 ? json_real(f->fps) : json_null());
	return 0;
}

/* ---- requests ---- */

int vfm_outside_encode(struct vfm_exec_slot *s, const struct vfm_hello *h, const struct vfm_outside_frames *f,
	const char *id, int given, struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	json_t *frames, *request, *answer;
	int32_t dims[3];
	int rc;

	if (vfm_geometry_latent(&h->geometry, f->shape[0], f->shape[1], f->shape[2], dims, err) < 0)
		return VFM_EINPUT;
	TRY(describe_frames(s, f, &frames, err));
	request = json_pack("{s:o,s:{s:s}}", "frames", frames, "record", "id", id);
	if (given)
		json_object_set_new(request, "given", json_integer(1));
	if (given > 1)
		json_object_set_new(request, "given_last", json_integer(1));
	vfm_exec_set_op(s, VFM_EXEC_ENCODE);
	TRY(vfm_exec_call(s, request, &answer, err));
	rc = read_floats(
		s, answer, "latent", 4, (int64_t[]){h->geometry.channels, dims[0], dims[1], dims[2]}, npy, data, err);
	if (rc >= 0)
		rc = check_latent_range(h, npy, *data, "latent", err);
	json_decref(answer);
	return rc < 0 ? rc : 0;
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
	json_t *in, *answer;
	int rc;

	TRY(vfm_exec_input(s, 0, latent, bytes, err));
	TRY(vfm_exec_describe(s, VFM_EXEC_F32, 4, shape, &in, err));
	vfm_exec_set_op(s, VFM_EXEC_DECODE);
	TRY(vfm_exec_call(s, json_pack("{s:o,s:I}", "latent", in, "frames", (json_int_t)frames), &answer, err));
	rc = vfm_outside_array(s, answer, "frames", 4, want, &npy, &data, err);
	json_decref(answer);
	if (rc >= 0 && npy.type != VFM_NPY_U8)
		rc = vfm_fail(err, VFM_EINPUT, "frames.dtype: expected uint8");
	*rgb = data;
	return rc < 0 ? rc : 0;
}

int vfm_outside_text(struct vfm_exec_slot *s, const struct vfm_hello *h, const char *text, struct vfm_npy *npy,
	const void **data, struct vfm_err *err)
{
	json_t *answer;
	int rc;

	TRY(vfm_exec_call(s, json_pack("{s:s}", "text", text), &answer, err));
	rc = read_floats(s, answer, "rows", 2, (int64_t[]){h->text_rows, h->text_dim}, npy, data, err);
	json_decref(answer);
	if (rc >= 0 && !h->text_rows && npy->shape[0] > h->text_max_rows)
		rc = vfm_fail(err, VFM_EINPUT, "rows.shape: %" PRId64 " rows, at most %" PRId64 " were announced",
			npy->shape[0], h->text_max_rows);
	return rc < 0 ? rc : 0;
}

int vfm_outside_text_vector(
	struct vfm_exec_slot *s, const char *text, struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	json_t *answer;
	int rc;

	vfm_exec_set_op(s, VFM_EXEC_EMBED_TEXT);
	TRY(vfm_exec_call(s, json_pack("{s:s}", "text", text), &answer, err));
	rc = read_floats(s, answer, "vector", 1, (int64_t[]){0}, npy, data, err);
	json_decref(answer);
	return rc;
}

int vfm_outside_image(struct vfm_exec_slot *s, const struct vfm_hello *h, const struct vfm_outside_frames *f,
	const char *id, struct vfm_npy *npy, const void **data, struct vfm_err *err)
{
	json_t *frames, *answer;
	int rc;

	TRY(describe_frames(s, f, &frames, err));
	TRY(vfm_exec_call(s, json_pack("{s:o,s:{s:s}}", "frames", frames, "record", "id", id), &answer, err));
	rc = read_floats(s, answer, "rows", 2, (int64_t[]){f->shape[0] * h->image_rows, h->image_dim}, npy, data, err);
	json_decref(answer);
	return rc < 0 ? rc : 0;
}

int vfm_outside_shots(struct vfm_exec_slot *s, const struct vfm_hello *h, const char *id, float *p, struct vfm_err *err)
{
	const struct vfm_exec_windows *w = &h->shots;
	struct vfm_outside_frames f = {.shape = {w->frames, w->height, w->width, 3}};
	struct vfm_npy npy;
	const void *data;
	json_t *frames, *answer;
	int rc;

	TRY(describe_frames(s, &f, &frames, err));
	vfm_exec_set_op(s, VFM_EXEC_SHOTS);
	TRY(vfm_exec_call(s, json_pack("{s:o,s:{s:s}}", "frames", frames, "record", "id", id), &answer, err));
	rc = read_floats(s, answer, "cut", 1, (int64_t[]){w->frames}, &npy, &data, err);
	json_decref(answer);
	for (int64_t i = 0; i < w->frames && rc >= 0; i++) {
		p[i] = element_value(&npy, data, (size_t)i);
		if (!(p[i] >= 0 && p[i] <= 1))
			rc = vfm_fail(
				err, VFM_EINPUT, "cut: element %lld is %g, no probability", (long long)i, (double)p[i]);
	}
	return rc < 0 ? rc : 0;
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
