/* caption.c - lists the captions and texts of a record by name, and draws one by weight. */
#include "data/record/caption.h"

#include <stdio.h>
#include <string.h>

#include "base/philox.h"

bool vfm_caption_name_ok(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return n > 0 && n < VFM_CAPTION_NAME && !name[n];
}

/* Adds the members of an object in ascending order.  `path` names it; `type` is that of the members. */
static int add_named(struct vfm_captions *c, const json_t *all, json_type type, const char *path, struct vfm_err *err)
{
	const char *name;
	json_t *value;

	if (json_object_size(all) < 1 || json_object_size(all) > VFM_CAPTIONS_MAX)
		return vfm_fail(err, VFM_EINPUT, "%s: %zu captions, expected 1 to %d", path, json_object_size(all),
			VFM_CAPTIONS_MAX);
	json_object_foreach((json_t *)all, name, value)
	{
		int at = c->n++;

		if (!vfm_caption_name_ok(name))
			return vfm_fail(err, VFM_EINPUT,
				"%s: '%.80s' cannot name a caption: expected 1 to %d characters of a-z, 0-9, _ and -",
				path, name, VFM_CAPTION_NAME - 1);
		if (json_typeof(value) != type)
			return vfm_fail(err, VFM_EINPUT, "%s.%s: expected %s", path, name,
				type == JSON_STRING ? "a string" : "an object");
		for (; at > 0 && strcmp(c->list[at - 1].name, name) > 0; at--)
			c->list[at] = c->list[at - 1];
		c->list[at].name = name;
		c->list[at].value = value;
	}
	return 0;
}

int vfm_captions_of(struct vfm_captions *c, const json_t *rec, struct vfm_err *err)
{
	const json_t *given = json_object_get(rec, "caption");

	*c = (struct vfm_captions){0};
	if (json_is_object(given))
		return add_named(c, given, JSON_STRING, "caption", err);
	if (given && !json_is_string(given) && !json_is_null(given))
		return vfm_fail(err, VFM_EINPUT, "caption: expected a string, or an object of named strings");
	c->n = 1;
	c->list[0].name = "";
	c->list[0].value = json_is_string(given) ? given : NULL;
	return 0;
}

int vfm_texts_of(struct vfm_captions *t, const json_t *rec, struct vfm_err *err)
{
	const json_t *text = json_object_get(rec, "text"), *several = json_object_get(text, "captions");

	*t = (struct vfm_captions){0};
	if (json_is_object(several))
		return add_named(t, several, JSON_OBJECT, "text.captions", err);
	if (!json_is_object(text))
		return 0;
	t->n = 1;
	t->list[0].name = "";
	t->list[0].value = text;
	return 0;
}

static double weight_of_caption(const struct vfm_name_weights *w, const char *name)
{
	for (int i = 0; i < w->n; i++)
		if (strcmp(w->list[i].name, name) == 0)
			return w->list[i].weight;
	return 0;
}

int vfm_caption_choose(const struct vfm_name_weights *w, int n, const char *const *names, uint64_t seed, uint64_t step,
	uint64_t id, bool *unlisted)
{
	struct vfm_rng r = vfm_rng_stream(seed, step, id, VFM_RNG_CAPTION);
	double u = vfm_rng_uniform(&r, 0), sum = 0, below = 0;
	int last = 0;

	for (int i = 0; i < n; i++)
		sum += weight_of_caption(w, names[i]);
	*unlisted = w->n > 0 && sum == 0;
	if (sum == 0)
		return (int)(u * n);
	for (int i = 0; i < n; i++) {
		double weight = weight_of_caption(w, names[i]);

		below += weight;
		if (weight > 0)
			last = i;
		if (weight > 0 && u * sum < below)
			break;
	}
	return last; /* also if rounding left u * sum at the end */
}

const char *vfm_text_part(char part[VFM_TEXT_PART], const char *name)
{
	snprintf(part, VFM_TEXT_PART, "text.%s%snpy", name, *name ? "." : "");
	return part;
}

bool vfm_text_part_name(const char *part, char name[VFM_CAPTION_NAME + 1])
{
	const char *dot;

	if (strncmp(part, "text.", 5) != 0)
		return false;
	part += 5;
	dot = strcmp(part, "npy") == 0 ? part : strrchr(part, '.');
	if (!dot || (dot != part && strcmp(dot, ".npy") != 0))
		return false;
	snprintf(name, VFM_CAPTION_NAME + 1, "%.*s", (int)(dot - part), part);
	return true;
}
