/* captioner.c - requests the captions that a record lacks, and merges windows and names. */
#include "encoder/exec/captioner.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/record.h"
#include "io/document.h"
#include "io/json.h"

#define MAX_CAPTION ((size_t)64 << 10) /* bytes */
#define MAX_WINDOWS 4096
#define MAX_PROMPTS ((size_t)1 << 20) /* bytes of the file */

/* ---- prompts ---- */

void vfm_captioner_prompt(struct vfm_captioner *c, const char *prompt)
{
	c->prompts[0].prompt = vfm_strdup(prompt);
	c->n_prompts = 1;
}

static int add_prompt(
	struct vfm_captioner *c, const char *path, const char *name, const json_t *prompt, struct vfm_err *err)
{
	const char *text = json_string_value(prompt);

	if (!vfm_caption_name_ok(name))
		return vfm_fail(err, VFM_EUSAGE, "'%s': the name '%.80s': expected 1 to 31 characters of a-z 0-9 _ -",
			path, name);
	if (!text || !*text)
		return vfm_fail(err, VFM_EUSAGE, "'%s': %s: expected a prompt", path, name);
	if (c->n_prompts == VFM_CAPTIONS_MAX)
		return vfm_fail(err, VFM_EUSAGE, "'%s': more than %d prompts", path, VFM_CAPTIONS_MAX);
	strcpy(c->prompts[c->n_prompts].name, name);
	c->prompts[c->n_prompts++].prompt = vfm_strdup(text);
	return 0;
}

int vfm_captioner_prompts(struct vfm_captioner *c, const char *path, struct vfm_err *err)
{
	json_t *o = vfm_document_load(path, MAX_PROMPTS, err), *prompt;
	const char *name;
	int rc = 0;

	if (!o)
		return err->code;
	if (!json_is_object(o) || json_object_size(o) == 0)
		rc = vfm_fail(err, VFM_EUSAGE, "'%s': expected {\"NAME\":\"PROMPT\",...}", path);
	json_object_foreach(o, name, prompt) if (rc >= 0) rc = add_prompt(c, path, name, prompt, err);
	json_decref(o);
	return rc;
}

void vfm_captioner_release(struct vfm_captioner *c)
{
	for (int i = 0; i < c->n_prompts; i++)
		free(c->prompts[i].prompt);
	c->n_prompts = 0;
}

char *vfm_captioner_text(const struct vfm_captioner *c)
{
	struct vfm_buf b = {0};

	vfm_buf_addf(&b, "window %lld overwrite %d", (long long)c->window, c->overwrite);
	for (int i = 0; i < c->n_prompts; i++)
		vfm_buf_addf(&b, "\n%s: %s", c->prompts[i].name, c->prompts[i].prompt);
	return b.data;
}

/* ---- one record ---- */

static bool is_named(const struct vfm_captioner *c)
{
	return c->prompts[0].name[0];
}

/* Returns the captions that stay, as an object by name ("" for a single one); the caller owns it. */
static json_t *kept_captions(const struct vfm_captioner *c, const json_t *rec)
{
	const json_t *had = json_object_get(rec, "caption");
	json_t *kept = json_object();

	if (c->overwrite)
		return kept;
	if (json_is_object(had))
		json_object_update(kept, (json_t *)(uintptr_t)had);
	else if (json_is_string(had) && *json_string_value(had))
		json_object_set(kept, is_named(c) ? VFM_CAPTION_ORIGINAL : "", (json_t *)(uintptr_t)had);
	return kept;
}

static bool is_missing(const struct vfm_captioner *c, const json_t *kept, int i)
{
	return is_named(c) ? !json_object_get(kept, c->prompts[i].name) : json_object_size(kept) == 0;
}

/* Returns the caption without surrounding white space, or NULL. */
static json_t *trimmed_caption(const json_t *answer, struct vfm_err *err)
{
	const char *s = json_string_value(json_object_get(answer, "caption"));
	size_t n;

	if (!s) {
		vfm_fail(err, VFM_EINPUT, "the answer has no caption");
		return NULL;
	}
	s += strspn(s, " \t\r\n");
	n = strlen(s);
	while (n && strchr(" \t\r\n", s[n - 1]))
		n--;
	if (n == 0 || n > MAX_CAPTION) {
		vfm_fail(err, VFM_EINPUT, "the caption has %zu bytes: expected 1 to %zu", n, MAX_CAPTION);
		return NULL;
	}
	return json_stringn(s, n);
}

/* Requests the missing captions of the frames in `shown`, and sets them in `got`. */
static int ask_captions(const struct vfm_captioner *c, struct vfm_exec_slot *slot, json_t *shown, const json_t *kept,
	json_t *got, struct vfm_err *err)
{
	for (int i = 0; i < c->n_prompts; i++) {
		json_t *request = json_copy(shown), *answer, *caption;

		if (!is_missing(c, kept, i)) {
			json_decref(request);
			continue;
		}
		json_object_set_new(request, "prompt", json_string(c->prompts[i].prompt));
		if (is_named(c))
			json_object_set_new(request, "name", json_string(c->prompts[i].name));
		TRY(vfm_exec_call(slot, request, &answer, err));
		caption = trimmed_caption(answer, err);
		json_decref(answer);
		if (!caption)
			return VFM_EINPUT;
		json_object_set_new(got, c->prompts[i].name, caption);
	}
	return 0;
}

/* An object by name, or the only string; takes the reference. */
static json_t *caption_value(json_t *by_name)
{
	json_t *single = json_object_get(by_name, "");

	if (!single)
		return by_name;
	json_incref(single);
	json_decref(by_name);
	return single;
}

/* Appends the captions of a window to those of the clip. */
static void join_captions(json_t *all, const json_t *window)
{
	const char *name;
	json_t *text;

	json_object_foreach((json_t *)(uintptr_t)window, name, text)
	{
		const char *had = json_string_value(json_object_get(all, name));

		json_object_set_new(
			all, name, json_sprintf(had ? "%s %s" : "%s%s", had ? had : "", json_string_value(text)));
	}
}

static int caption_window(const struct vfm_captioner *c, struct vfm_exec_slot *slot,
	const struct vfm_outside_view *view, const json_t *rec, const json_t *kept, json_t *got, struct vfm_err *err)
{
	json_t *shown = vfm_outside_show(slot, view, rec, err);
	int rc = shown ? ask_captions(c, slot, shown, kept, got, err) : err->code;

	json_decref(shown);
	return rc;
}

/* Captions each window of the clip; sets *windows and joins the captions in `got`. */
static int caption_windows(const struct vfm_captioner *c, struct vfm_exec_slot *slot,
	const struct vfm_outside_view *view, const json_t *rec, const json_t *kept, json_t *got, json_t *windows,
	struct vfm_err *err)
{
	struct vfm_outside_view part = *view;
	int64_t total;

	TRY(vfm_clip_count(rec, view->timeout_s, view->threads, &total, err));
	if (total > c->window * MAX_WINDOWS)
		return vfm_fail(err, VFM_EINPUT, "the clip has over %d windows of %lld frames", MAX_WINDOWS,
			(long long)c->window);
	for (int64_t at = 0; at < total; at += c->window) {
		json_t *one = json_object();
		int rc;

		part.start_frame = at;
		part.frames = total - at < c->window ? total - at : c->window;
		rc = caption_window(c, slot, &part, rec, kept, one, err);
		if (rc < 0) {
			json_decref(one);
			return vfm_err_context(
				err, "frames %lld to %lld", (long long)at, (long long)(at + part.frames));
		}
		join_captions(got, one);
		json_array_append_new(windows,
			json_pack("{s:I,s:I,s:o}", "start_frame", (json_int_t)at, "end_frame",
				(json_int_t)(at + part.frames), "caption", caption_value(one)));
	}
	return 0;
}

static bool misses_any(const struct vfm_captioner *c, const json_t *kept)
{
	for (int i = 0; i < c->n_prompts; i++)
		if (is_missing(c, kept, i))
			return true;
	return false;
}

/* ---- what a record gets ---- */

/* Copies the captioner of each caption that stays to `captioners`, by name. */
static void keep_captioners(json_t *captioners, const json_t *rec, const json_t *kept)
{
	json_t *had = json_object_get(rec, "caption_maker"), *one;
	/* By name, each value is an object; of a single captioner, the name is a string. */
	bool by_name = !json_is_string(json_object_get(had, "name"));
	const char *name;
	json_t *text;

	json_object_foreach((json_t *)(uintptr_t)kept, name, text)
	{
		one = by_name ? json_object_get(had, name) : had;
		if (json_is_object(one))
			json_object_set(captioners, name, one);
	}
}

/* Sets the captions, and the captioner of each. */
static int set_captions(
	json_t *rec, const json_t *kept, const json_t *got, const struct vfm_hello *h, struct vfm_err *err)
{
	struct vfm_encoder_id captioner = vfm_outside_id(h);
	json_t *all = json_copy((json_t *)(uintptr_t)kept), *captioners, *text;
	const char *name;

	json_object_update(all, (json_t *)(uintptr_t)got);
	if (json_object_size(all) > VFM_CAPTIONS_MAX) {
		size_t n = json_object_size(all);

		json_decref(all);
		return vfm_fail(err, VFM_EINPUT, "the record would have %zu captions: at most %d", n, VFM_CAPTIONS_MAX);
	}
	captioners = json_object();
	keep_captioners(captioners, rec, kept);
	json_object_foreach((json_t *)(uintptr_t)got, name, text)
		json_object_set_new(captioners, name, vfm_encoder_id_json(&captioner));
	json_object_set_new(rec, "caption", caption_value(all));
	json_object_set_new(rec, "caption_maker", caption_value(captioners));
	return 0;
}

/* Returns the windows of the captions that stay, as a copy; the caller owns it. */
static json_t *kept_windows(const struct vfm_captioner *c, const json_t *rec, const json_t *kept)
{
	json_t *windows = json_array(), *one;
	size_t i;

	if (json_object_size(kept) == 0)
		return windows;
	json_array_foreach(json_object_get(rec, "windows"), i, one)
	{
		json_t *copy = json_copy(one), *text = json_object_get(one, "caption");

		if (json_is_object(text))
			json_object_set_new(copy, "caption", json_copy(text));
		else if (is_named(c) && json_is_string(text))
			json_object_set_new(copy, "caption", json_pack("{s:O}", VFM_CAPTION_ORIGINAL, text));
		json_array_append_new(windows, copy);
	}
	return windows;
}

static bool is_same_window(const json_t *a, const json_t *b)
{
	return json_equal(json_object_get(a, "start_frame"), json_object_get(b, "start_frame")) &&
		json_equal(json_object_get(a, "end_frame"), json_object_get(b, "end_frame")) &&
		json_is_object(json_object_get(a, "caption")) && json_is_object(json_object_get(b, "caption"));
}

/* Sets the windows of all captions, or deletes those of captions that are gone. */
static void set_windows(const struct vfm_captioner *c, json_t *rec, const json_t *kept, const json_t *added)
{
	json_t *windows, *one;
	size_t i, n;

	if (!json_array_size(added) && !json_is_array(json_object_get(rec, "windows")))
		return;
	windows = kept_windows(c, rec, kept);
	n = json_array_size(windows);
	json_array_foreach((json_t *)(uintptr_t)added, i, one)
	{
		size_t k = 0;

		while (k < n && !is_same_window(json_array_get(windows, k), one))
			k++;
		if (k < n)
			json_object_update(json_object_get(json_array_get(windows, k), "caption"),
				json_object_get(one, "caption"));
		else
			json_array_append(windows, one);
	}
	if (json_array_size(windows))
		json_object_set(rec, "windows", windows);
	else
		json_object_del(rec, "windows");
	json_decref(windows);
}

int vfm_captioner_run(const struct vfm_captioner *c, struct vfm_exec_slot *slot, const struct vfm_hello *h,
	const struct vfm_outside_view *view, json_t *rec, struct vfm_err *err)
{
	json_t *kept, *got, *windows;
	struct vfm_captions check;
	bool is_image = !strcmp(vfm_rec_str(rec, "kind", ""), "image");
	int rc;

	TRY(vfm_captions_of(&check, rec, err));
	kept = kept_captions(c, rec);
	if (!misses_any(c, kept)) {
		json_decref(kept);
		return 0;
	}
	got = json_object();
	windows = json_array();
	rc = c->window && !is_image ? caption_windows(c, slot, view, rec, kept, got, windows, err)
				    : caption_window(c, slot, view, rec, kept, got, err);
	if (rc >= 0)
		rc = set_captions(rec, kept, got, h, err);
	if (rc >= 0)
		set_windows(c, rec, kept, windows);
	json_decref(kept);
	json_decref(got);
	json_decref(windows);
	return rc;
}
