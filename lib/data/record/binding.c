/* binding.c - SHA-256 of captions, and comparison of a record's digests with its files. */
#include "data/record/binding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"

int vfm_binding_digest(
	char hex[VFM_SHA256_HEX], const json_t *section, const char *what, const char *key, struct vfm_err *err)
{
	const json_t *v = json_object_get(section, key);
	const char *text = json_string_value(v);

	hex[0] = 0;
	if (!v || json_is_null(v))
		return 0;
	if (!text || strlen(text) != VFM_SHA256_HEX - 1 || strspn(text, "0123456789abcdef") != VFM_SHA256_HEX - 1)
		return vfm_fail(err, VFM_EINPUT, "%s.%s: expected 64 lower-case hexadecimal digits", what, key);
	memcpy(hex, text, VFM_SHA256_HEX);
	return 0;
}

void vfm_caption_sha256(const json_t *caption, char hex[VFM_SHA256_HEX])
{
	vfm_sha256_of(caption ? json_string_value(caption) : "", json_string_length(caption), hex);
}

/* Compares the digest `want` with the caption of that name; a record without a caption has the caption "". */
static int check_caption(const char *want, const json_t *rec, const char *name, const char *what, struct vfm_err *err)
{
	char hex[VFM_SHA256_HEX] = "";
	struct vfm_captions c;

	if (!want[0])
		return 0;
	TRY(vfm_captions_of(&c, rec, err));
	for (int i = 0; i < c.n; i++)
		if (strcmp(c.list[i].name, name) == 0)
			vfm_caption_sha256(c.list[i].value, hex);
	return strcmp(hex, want) == 0
		? 0
		: vfm_fail(err, VFM_EINPUT, "the text was made from another caption (%s.caption_sha256)", what);
}

/* Compares the caption of the second text, the first of the record. */
static int check_text2_caption(const json_t *rec, struct vfm_err *err)
{
	const char *key = vfm_extra_kinds[VFM_EXTRA_TEXT2].key;
	char want[VFM_SHA256_HEX], hex[VFM_SHA256_HEX];
	struct vfm_captions c;

	TRY(vfm_binding_digest(want, json_object_get(rec, key), key, "caption_sha256", err));
	if (!want[0])
		return 0;
	TRY(vfm_captions_of(&c, rec, err));
	vfm_caption_sha256(c.list[0].value, hex);
	if (strcmp(hex, want) == 0)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "the second text was made from another caption (%s.caption_sha256)", key);
}

int vfm_binding_of(struct vfm_binding *b, const json_t *rec, struct vfm_err *err)
{
	struct vfm_captions texts;
	char what[64];

	*b = (struct vfm_binding){0};
	TRY(vfm_binding_digest(b->latent, json_object_get(rec, "latent"), "latent", "sha256", err));
	for (int e = 0; e < VFM_EXTRAS; e++) {
		const char *key = vfm_extra_kinds[e].key;

		TRY(vfm_binding_digest(b->extra[e], json_object_get(rec, key), key, "sha256", err));
	}
	TRY(check_text2_caption(rec, err));
	TRY(vfm_texts_of(&texts, rec, err));
	for (; b->n_texts < texts.n; b->n_texts++) {
		const char *name = texts.list[b->n_texts].name;
		const json_t *text = texts.list[b->n_texts].value;

		snprintf(what, sizeof(what), "%s%s", *name ? "text.captions." : "text", name);
		strcpy(b->texts[b->n_texts].name, name);
		TRY(vfm_binding_digest(b->texts[b->n_texts].sha256, text, what, "sha256", err));
		TRY(vfm_binding_digest(b->texts[b->n_texts].caption, text, what, "caption_sha256", err));
		TRY(check_caption(b->texts[b->n_texts].caption, rec, name, what, err));
	}
	return 0;
}

int vfm_binding_check(const char *want, const void *data, size_t len, const char *what, struct vfm_err *err)
{
	char hex[VFM_SHA256_HEX];

	if (!want[0])
		return 0;
	vfm_sha256_of(data, len, hex);
	if (strcmp(hex, want) == 0)
		return 0;
	return vfm_fail(err, VFM_EINPUT,
		"%s is not the file of this record: its sha256 is %.12s..., the record has %.12s...", what, hex, want);
}

bool vfm_binding_is_whole(const struct vfm_binding *b, int n_texts)
{
	bool whole = b->latent[0] && b->n_texts >= n_texts;

	for (int i = 0; i < b->n_texts; i++)
		whole = whole && b->texts[i].sha256[0] && b->texts[i].caption[0];
	return whole;
}

uint64_t vfm_binding_number(const struct vfm_binding *b)
{
	struct vfm_buf all = {0};
	char hex[VFM_SHA256_HEX];
	bool any = b->latent[0];

	vfm_buf_addf(&all, "%s\n", b->latent);
	for (int i = 0; i < b->n_texts; i++) {
		vfm_buf_addf(&all, "%s %s\n", b->texts[i].name, b->texts[i].sha256);
		any |= b->texts[i].sha256[0];
	}
	for (int e = 0; e < VFM_EXTRAS; e++) {
		if (b->extra[e][0]) /* records without one keep their number */
			vfm_buf_addf(&all, "%s %s\n", vfm_extra_kinds[e].part, b->extra[e]);
		any |= b->extra[e][0];
	}
	vfm_sha256_of(all.data, all.len, hex);
	vfm_buf_release(&all);
	hex[16] = 0;
	return any ? strtoull(hex, NULL, 16) : 0;
}
