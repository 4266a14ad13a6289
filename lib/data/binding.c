#include "data/binding.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static int take_digest(
	char hex[VFM_SHA256_HEX], const json_t *rec, const char *part, const char *key, struct vfm_err *err)
{
	const json_t *v = json_object_get(json_object_get(rec, part), key);
	const char *text = json_string_value(v);

	hex[0] = 0;
	if (!v || json_is_null(v))
		return 0;
	if (!text || strlen(text) != VFM_SHA256_HEX - 1 || strspn(text, "0123456789abcdef") != VFM_SHA256_HEX - 1)
		return vfm_fail(err, VFM_EINPUT, "%s.%s: expected 64 lower-case hexadecimal digits", part, key);
	memcpy(hex, text, VFM_SHA256_HEX);
	return 0;
}

void vfm_caption_sha256(const json_t *rec, char hex[VFM_SHA256_HEX])
{
	const char *caption = json_string_value(json_object_get(rec, "caption"));

	vfm_sha256_of(caption ? caption : "", caption ? strlen(caption) : 0, hex);
}

int vfm_binding_of(struct vfm_binding *b, const json_t *rec, struct vfm_err *err)
{
	char hex[VFM_SHA256_HEX];

	TRY(take_digest(b->latent, rec, "latent", "sha256", err));
	TRY(take_digest(b->text, rec, "text", "sha256", err));
	TRY(take_digest(b->caption, rec, "text", "caption_sha256", err));
	if (!b->caption[0])
		return 0;
	vfm_caption_sha256(rec, hex);
	if (strcmp(hex, b->caption) != 0)
		return vfm_fail(err, VFM_EINPUT, "the text was made from another caption (text.caption_sha256)");
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

bool vfm_binding_is_whole(const struct vfm_binding *b, bool has_text)
{
	return b->latent[0] && (!has_text || (b->text[0] && b->caption[0]));
}

uint64_t vfm_binding_number(const struct vfm_binding *b)
{
	char both[2 * VFM_SHA256_HEX], hex[VFM_SHA256_HEX];

	if (!b->latent[0] && !b->text[0])
		return 0;
	memset(both, 0, sizeof(both));
	strcpy(both, b->latent);
	strcpy(both + VFM_SHA256_HEX, b->text);
	vfm_sha256_of(both, sizeof(both), hex);
	hex[16] = 0;
	return strtoull(hex, NULL, 16);
}
