/* caption_value.c - converts texts and lists of other programs to captions of records. */
#include "curate/table/caption_value.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/caption.h"
#include "io/input.h"
#include "io/json.h"

/* file_name: Hugging Face's ImageFolder and VideoFolder; path, cap: Open-Sora, FastVideo; video_path: musubi-tuner */
const char *const vfm_caption_file_keys[] = {
	"file_name", "path", "video_path", "image_path", "video", "image", "file", NULL};
const char *const vfm_caption_keys[] = {"caption", "cap", "text", "prompt", "captions", NULL};

const json_t *vfm_caption_at(const json_t *row, const char *const *keys)
{
	for (; *keys; keys++) {
		const json_t *v = json_object_get(row, *keys);

		if (v && !json_is_null(v))
			return v;
	}
	return NULL;
}

static bool is_white(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Returns a string without white space at its ends. */
static json_t *trimmed_string(const char *s, size_t len, const char *what, struct vfm_err *err)
{
	while (len && is_white(*s)) {
		s++;
		len--;
	}
	while (len && is_white(s[len - 1]))
		len--;
	return vfm_json_string(s, len, what, err);
}

/* Adds a caption to those of a file; takes the reference. */
static int add_caption(json_t *list, json_t *caption, const char *what, struct vfm_err *err)
{
	if (!caption)
		return VFM_EINPUT;
	json_array_append_new(list, caption);
	if (json_array_size(list) > VFM_CAPTIONS_MAX)
		return vfm_fail(err, VFM_EINPUT, "%s has more than %d captions", what, VFM_CAPTIONS_MAX);
	return 0;
}

/* Returns the captions of a list, which it releases: NULL, the only one, or all with the names "1", "2", … */
static json_t *name_captions(json_t *list)
{
	json_t *caption = NULL, *one;
	char name[24];
	size_t i;

	if (json_array_size(list) == 1)
		caption = json_incref(json_array_get(list, 0));
	else if (json_array_size(list) > 1)
		caption = json_object();
	json_array_foreach(list, i, one)
	{
		snprintf(name, sizeof(name), "%zu", i + 1);
		if (json_is_object(caption))
			json_object_set(caption, name, one);
	}
	json_decref(list);
	return caption;
}

/* Makes CRLF and CR a LF.  Returns the new length. */
static size_t unify_line_ends(char *to, const char *text, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++)
		if (text[i] != '\r')
			to[n++] = text[i];
		else if (i + 1 == len || text[i + 1] != '\n')
			to[n++] = '\n';
	return n;
}

static int add_lines(json_t *list, const char *text, size_t len, const char *what, struct vfm_err *err)
{
	const char *end = text + len, *next;

	for (; text < end; text = next) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		json_t *line;

		stop = stop ? stop : end;
		next = stop < end ? stop + 1 : end;
		line = trimmed_string(text, (size_t)(stop - text), what, err);
		if (line && json_string_length(line) == 0)
			json_decref(line);
		else
			TRY(add_caption(list, line, what, err));
	}
	return json_array_size(list) ? 0 : add_caption(list, json_string(""), what, err);
}

int vfm_caption_of_text(
	json_t **caption, const char *text, size_t len, bool by_line, const char *what, struct vfm_err *err)
{
	json_t *list = json_array();
	char *plain;
	int rc;

	*caption = NULL;
	if (vfm_has_byte_order_mark(text, len)) {
		text += 3;
		len -= 3;
	}
	plain = vfm_malloc(len + 1);
	len = unify_line_ends(plain, text, len);
	rc = by_line ? add_lines(list, plain, len, what, err)
		     : add_caption(list, trimmed_string(plain, len, what, err), what, err);
	free(plain);
	if (rc < 0)
		json_decref(list);
	else
		*caption = name_captions(list);
	return rc;
}

/* A copy of an object of strings. */
static int copy_named(json_t **caption, const json_t *value, const char *what, struct vfm_err *err)
{
	json_t *rec = json_object(), *v;
	struct vfm_captions all;
	const char *name;
	int rc;

	json_object_set(rec, "caption", (json_t *)(uintptr_t)value);
	rc = vfm_captions_of(&all, rec, err);
	json_decref(rec);
	if (rc < 0)
		return vfm_err_context(err, "%s", what);
	*caption = json_object();
	json_object_foreach((json_t *)(uintptr_t)value, name, v) json_object_set_new(
		*caption, name, trimmed_string(json_string_value(v), json_string_length(v), what, err));
	return 0;
}

int vfm_caption_of_json(json_t **caption, const json_t *value, const char *what, struct vfm_err *err)
{
	json_t *list, *one;
	int rc = 0;
	size_t i;

	*caption = NULL;
	if (!value || json_is_null(value))
		return 0;
	if (json_is_object(value))
		return copy_named(caption, value, what, err);
	list = json_array();
	if (json_is_string(value))
		rc = add_caption(list, trimmed_string(json_string_value(value), json_string_length(value), what, err),
			what, err);
	else if (!json_is_array(value))
		rc = vfm_fail(err, VFM_EINPUT, "%s: the caption is no text", what);
	json_array_foreach((json_t *)(uintptr_t)(json_is_array(value) ? value : NULL), i, one)
	{
		if (rc < 0)
			break;
		rc = json_is_string(one)
			? add_caption(list, trimmed_string(json_string_value(one), json_string_length(one), what, err),
				  what, err)
			: vfm_fail(err, VFM_EINPUT, "%s: caption %zu is no text", what, i + 1);
	}
	if (rc < 0)
		json_decref(list);
	else
		*caption = name_captions(list);
	return rc;
}

bool vfm_caption_is_empty(const json_t *caption)
{
	const char *name;
	json_t *v;

	if (json_is_string(caption))
		return json_string_length(caption) == 0;
	json_object_foreach((json_t *)(uintptr_t)caption, name, v) if (json_string_length(v)) return false;
	return true;
}
