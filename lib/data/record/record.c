/* record.c - typed access to the keys of a record, and checks of its version. */
#include "data/record/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"

const char *vfm_rec_str(const json_t *rec, const char *key, const char *otherwise)
{
	const char *s = json_string_value(json_object_get(rec, key));

	return s ? s : otherwise;
}

const char *vfm_rec_key(const json_t *rec, const char *key)
{
	const char *text = key ? vfm_rec_str(rec, key, NULL) : NULL;

	if (!text)
		text = vfm_rec_str(rec, "id", NULL);
	return text ? text : vfm_rec_str(rec, "src", NULL);
}

const json_t *vfm_rec_at(const json_t *rec, const char *path)
{
	char key[128];
	const char *dot;

	while ((dot = strchr(path, '.'))) {
		if ((size_t)(dot - path) >= sizeof(key))
			return NULL;
		memcpy(key, path, (size_t)(dot - path));
		key[dot - path] = 0;
		rec = json_object_get(rec, key);
		path = dot + 1;
	}
	return json_object_get(rec, path);
}

/* Returns the value at a path, or the score of this name. */
static const json_t *find_number_at(const json_t *rec, const char *path)
{
	const json_t *v = vfm_rec_at(rec, path);

	return v || strchr(path, '.') ? v : json_object_get(json_object_get(rec, "score"), path);
}

bool vfm_rec_is_null(const json_t *rec, const char *path)
{
	return json_is_null(find_number_at(rec, path));
}

bool vfm_rec_num(const json_t *rec, const char *path, double *out)
{
	const json_t *v = find_number_at(rec, path);

	if (!json_is_number(v))
		return false;
	*out = json_number_value(v);
	return true;
}

int vfm_rec_blame(int rc, struct vfm_err *err)
{
	if (rc < 0 && err)
		err->code = VFM_EINPUT;
	return rc < 0 ? VFM_EINPUT : 0;
}

bool vfm_rec_is_out(const json_t *rec)
{
	return json_object_get(rec, "error") || json_object_get(rec, "drop");
}

double vfm_rec_duration(const json_t *rec)
{
	double s = json_number_value(json_object_get(rec, "duration_s"));

	return s > 0 && s < 1e12 ? s : 0;
}

int vfm_rec_media(const json_t *rec, struct vfm_rec_media *m, struct vfm_err *err)
{
	int64_t start = 0, end = -1, pts = INT64_MIN;
	const char *kind = vfm_rec_str(rec, "kind", "video");

	*m = (struct vfm_rec_media){.src = vfm_rec_str(rec, "src", NULL), .is_image = !strcmp(kind, "image")};
	if (!m->src)
		return vfm_fail(err, VFM_EINPUT, "the record has no src");
	TRY(vfm_rec_blame(vfm_json_i64(rec, "", "start_frame", false, 0, INT64_MAX / 2, &start, err), err));
	TRY(vfm_rec_blame(vfm_json_i64(rec, "", "end_frame", false, 0, INT64_MAX / 2, &end, err), err));
	TRY(vfm_rec_blame(vfm_json_i64(rec, "", "start_pts", false, INT64_MIN, INT64_MAX, &pts, err), err));
	if (end >= 0 && end <= start)
		return vfm_fail(err, VFM_EINPUT, "end_frame: expected more than start_frame %lld, got %lld",
			(long long)start, (long long)end);
	m->start_frame = start;
	m->end_frame = end;
	m->start_pts = pts;
	return 0;
}

int vfm_rec_check_version(const json_t *rec, struct vfm_err *err)
{
	const json_t *v = json_object_get(rec, "v");

	if (!v || (json_is_integer(v) && json_integer_value(v) == 1))
		return 0;
	return vfm_fail(err, VFM_EINPUT, "v: expected record version 1");
}

/* Returns a copy with 2.0 as 2, as jq writes it. */
static json_t *copy_plain(const json_t *v)
{
	const char *key;
	json_t *item, *copy;
	size_t i;

	if (json_is_object(v)) {
		copy = json_object();
		json_object_foreach((json_t *)v, key, item) json_object_set_new(copy, key, copy_plain(item));
		return copy;
	}
	if (json_is_array(v)) {
		copy = json_array();
		json_array_foreach((json_t *)v, i, item) json_array_append_new(copy, copy_plain(item));
		return copy;
	}
	if (json_is_real(v) && fabs(json_real_value(v)) < 0x1p53 && json_real_value(v) == rint(json_real_value(v)))
		return json_integer((json_int_t)json_real_value(v));
	return json_incref((json_t *)v);
}

void vfm_rec_digest(const char *head, const json_t *rec, const char *const *without, char hex[VFM_SHA256_HEX])
{
	json_t *copy = copy_plain(rec);
	struct vfm_buf b = {0};
	char *text;

	for (; *without; without++)
		json_object_del(copy, *without);
	text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS);
	vfm_buf_adds(&b, head);
	vfm_buf_adds(&b, text ? text : "");
	vfm_sha256_of(b.data, b.len, hex);
	vfm_buf_release(&b);
	free(text);
	json_decref(copy);
}
