/* sample_key.c - checks characters and length of keys, and hashes them to 128 bits and to ids. */
#include "data/record/sample_key.h"

#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "io/hash.h"
#include "io/json.h"

#define MAX_KEY    200 /* with ".latent.npy" and the suffix of a temporary file still a file name */
#define MAX_MEMBER 1000

/* ---- validity ---- */

/* Quotes the first bytes of a name, without those that are not printable ASCII. */
static int fail_name(const char *what, const char *key, const char *why, struct vfm_err *err)
{
	char shown[81];
	size_t n = 0;

	for (; key[n] && n + 1 < sizeof(shown); n++)
		shown[n] = key[n] < ' ' || key[n] > '~' ? '?' : key[n];
	shown[n] = 0;
	return vfm_fail(err, VFM_EINPUT, "%s '%s' cannot be %s", what, shown, why);
}

static int fail_key(const char *key, const char *why, struct vfm_err *err)
{
	char text[64];

	snprintf(text, sizeof(text), "a sample's key: %s", why);
	return fail_name("the id", key, text, err);
}

int vfm_sample_key_check(const char *key, struct vfm_err *err)
{
	char why[32];

	if (!key || !*key)
		return vfm_fail(err, VFM_EINPUT, "the record has no id");
	for (const char *p = key; *p; p++) {
		unsigned char c = (unsigned char)*p;

		if (c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			c == '-' || c == '_')
			continue;
		snprintf(why, sizeof(why), c < ' ' || c == 0x7f ? "it holds byte %d" : "it holds '%c'", c);
		return fail_key(key, why, err);
	}
	if (strlen(key) > MAX_KEY)
		return fail_key(key, "it has more than 200 bytes", err);
	if (strncmp(key, "__", 2) == 0)
		return fail_key(key, "it begins with '__'", err);
	return vfm_json_takes(key) ? 0 : fail_key(key, "it is not UTF-8", err);
}

static int fail_member(const char *name, const char *why, struct vfm_err *err)
{
	char text[64];

	snprintf(text, sizeof(text), "a member of a shard: %s", why);
	return fail_name("the name", name, text, err);
}

int vfm_sample_member_check(const char *name, struct vfm_err *err)
{
	if (!*name || strlen(name) > MAX_MEMBER)
		return fail_member(name, "expected 1 to 1000 bytes", err);
	for (const char *p = name; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return fail_member(name, "it holds a control character", err);
	for (const char *part = name, *end; part; part = end ? end + 1 : NULL) {
		size_t n;

		end = strchr(part, '/');
		n = end ? (size_t)(end - part) : strlen(part);
		if (n == 0)
			return fail_member(name, "a part of its path is empty", err);
		if (n == 2 && memcmp(part, "..", 2) == 0)
			return fail_member(name, "it holds '..'", err);
	}
	return vfm_json_takes(name) ? 0 : fail_member(name, "it is not UTF-8", err);
}

void vfm_sample_hash(const char *key, uint64_t hash[2])
{
	unsigned char digest[VFM_SHA256_BYTES];

	vfm_sha256_raw(key, strlen(key), digest);
	for (int i = 0; i < 2; i++) {
		hash[i] = 0;
		for (int k = 0; k < 8; k++)
			hash[i] = hash[i] << 8 | digest[8 * i + k];
	}
}

uint64_t vfm_sample_id(const char *key)
{
	uint64_t hash[2];

	vfm_sample_hash(key, hash);
	return hash[0];
}
