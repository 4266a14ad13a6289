/* provenance.c - parses, merges and prints header lines, and adds the entry of a stage. */
#include "data/record/provenance.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/record/record.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/opt.h"
#include "io/version.h"

#define BY_DIGITS      16
#define MAX_STAGE_NAME 64

/* ---- entries ---- */

char *vfm_provenance_settings(const char *options, const json_t *models)
{
	struct vfm_buf b = {0};

	vfm_buf_adds(&b, options ? options : "");
	if (json_is_object(models)) {
		vfm_buf_adds(&b, " ");
		vfm_json_text(&b, models, 0);
	}
	return b.data;
}

json_t *vfm_provenance_entry(const char *stage, int version, const char *options, const json_t *models)
{
	json_t *entry = json_object();
	const char *release = vfm_version();
	char hex[VFM_SHA256_HEX], *head, *settings = vfm_provenance_settings(options, models);

	json_object_set_new(entry, "tool", json_sprintf("vfm-curate %s", stage));
	json_object_set_new(entry, "version", json_stringn(release, strcspn(release, ")") + 1));
	if (options) {
		json_t *text = json_string(options);

		json_object_set_new(entry, "options", text ? text : json_string("(not UTF-8)"));
	}
	head = vfm_strfmt("%s %d\n%s", stage, version, settings);
	vfm_sha256_of(head, strlen(head), hex);
	free(head);
	free(settings);
	json_object_set_new(entry, "by", json_stringn(hex, BY_DIGITS));
	if (json_is_object(models))
		json_object_set(entry, "maker", (json_t *)(uintptr_t)models);
	return entry;
}

static int check_entry(const json_t *entry, size_t i, struct vfm_err *err)
{
	static const char *const texts[] = {"tool", "version", "options", "by"};
	const json_t *models = json_object_get(entry, "maker");
	const char *s;
	char where[40];

	snprintf(where, sizeof(where), "provenance[%zu]", i);
	if (!json_is_object(entry))
		return vfm_fail(err, VFM_EINPUT, "%s: expected an object", where);
	for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
		if (vfm_json_str(entry, where, texts[k], k == 0, &s, err) < 0)
			return VFM_EINPUT;
	if (models && !json_is_object(models))
		return vfm_fail(err, VFM_EINPUT, "%s.maker: expected an object", where);
	return 0;
}

/* ---- headers ---- */

bool vfm_provenance_is_header(const json_t *rec)
{
	const json_t *chain = json_object_get(rec, "provenance");

	if (!chain)
		return false;
	return json_is_string(json_object_get(json_array_get(chain, 0), "tool")) ||
		(!json_object_get(rec, "id") && !json_object_get(rec, "src"));
}

json_t *vfm_provenance_header(const json_t *chain)
{
	json_t *rec = json_object();

	json_object_set_new(rec, "v", json_integer(1));
	json_object_set(rec, "provenance", (json_t *)(uintptr_t)chain);
	return rec;
}

/* ---- chains ---- */

void vfm_provenance_append(json_t *chain, const json_t *entry)
{
	size_t n = json_array_size(chain);

	if (n == 0 || !json_equal(json_array_get(chain, n - 1), entry))
		json_array_append(chain, (json_t *)(uintptr_t)entry);
}

/* Returns the last index below `end` with an equal entry, or -1. */
static ssize_t find_last_entry(const json_t *chain, size_t end, const json_t *entry)
{
	for (size_t i = end; i-- > 0;)
		if (json_equal(json_array_get(chain, i), entry))
			return (ssize_t)i;
	return -1;
}

/* Inserts what `more` adds, from its end: before the entry of `chain` that follows it in `more`. */
static bool insert_missing(json_t *chain, const json_t *more)
{
	size_t at = json_array_size(chain);
	bool added = false;

	for (size_t i = json_array_size(more); i-- > 0;) {
		json_t *entry = json_array_get(more, i);
		ssize_t there = find_last_entry(chain, at, entry);

		if (there >= 0) {
			at = (size_t)there;
		} else if (find_last_entry(chain, json_array_size(chain), entry) < 0) {
			json_array_insert(chain, at, entry);
			added = true;
		}
	}
	return added;
}

int vfm_provenance_merge(json_t *chain, const json_t *more, struct vfm_err *err)
{
	json_t *merged;
	int rc = 0;

	if (json_equal(chain, more))
		return 0;
	/* Checked before the search, whose time grows with the product of the lengths. */
	if (json_array_size(more) > VFM_PROVENANCE_ENTRIES)
		return vfm_fail(err, VFM_EINPUT, "provenance: %zu entries, at most %d are allowed",
			json_array_size(more), VFM_PROVENANCE_ENTRIES);
	merged = json_copy(chain);
	if (insert_missing(merged, more)) {
		if (json_array_size(merged) > VFM_PROVENANCE_ENTRIES)
			rc = vfm_fail(err, VFM_EINPUT,
				"provenance: %zu entries with those of earlier headers, at most %d are allowed",
				json_array_size(merged), VFM_PROVENANCE_ENTRIES);
		else if (json_dumpb(merged, NULL, 0, JSON_COMPACT) > VFM_PROVENANCE_BYTES)
			rc = vfm_fail(err, VFM_EINPUT, "provenance: more than %d bytes with those of earlier headers",
				VFM_PROVENANCE_BYTES);
		else
			rc = 1;
	}
	if (rc == 1) {
		json_array_clear(chain);
		json_array_extend(chain, merged);
	}
	json_decref(merged);
	return rc;
}

int vfm_provenance_read(json_t *chain, const json_t *header, struct vfm_err *err)
{
	const json_t *more = json_object_get(header, "provenance");

	TRY(vfm_rec_check_version(header, err));
	if (!json_is_array(more))
		return vfm_fail(err, VFM_EINPUT, "provenance: expected a list of stages");
	for (size_t i = 0; i < json_array_size(more); i++)
		TRY(check_entry(json_array_get(more, i), i, err));
	return vfm_provenance_merge(chain, more, err);
}

/* Returns the index of the first entry with this tool, or -1. */
static ssize_t find_tool(const json_t *chain, const char *tool)
{
	for (size_t i = 0; i < json_array_size(chain); i++)
		if (!strcmp(json_string_value(json_object_get(json_array_get(chain, i), "tool")), tool))
			return (ssize_t)i;
	return -1;
}

/* Adds an entry of the tool alone at *at if the chain has none; sets *at after it. */
static bool note_tool(json_t *chain, const char *tool, size_t *at)
{
	ssize_t there = find_tool(chain, tool);

	if (there < 0 && json_array_size(chain) < VFM_PROVENANCE_ENTRIES) {
		json_array_insert_new(chain, *at, json_pack("{s:s}", "tool", tool));
		++*at;
		return true;
	}
	if (there >= 0)
		*at = (size_t)there + 1;
	return false;
}

bool vfm_provenance_note(json_t *chain, const json_t *rec)
{
	json_t *by = json_object_get(rec, "by"), *fingerprint;
	char tool[MAX_STAGE_NAME + 16];
	bool added = false;
	const char *stage;
	size_t at = 0;

	json_object_foreach(by, stage, fingerprint)
	{
		if (strlen(stage) > MAX_STAGE_NAME || !json_is_string(fingerprint))
			continue;
		snprintf(tool, sizeof(tool), "vfm-curate %s", stage);
		added |= note_tool(chain, tool, &at);
	}
	return added;
}

void vfm_provenance_note_all(json_t *chain, const json_t *noted)
{
	size_t i, at = 0;
	json_t *entry;

	json_array_foreach(noted, i, entry) note_tool(chain, json_string_value(json_object_get(entry, "tool")), &at);
}

/* ---- of a dataset ---- */

int vfm_provenance_load(json_t *chain, const char *dir, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/" VFM_PROVENANCE_NAME, dir);
	json_t *header = NULL;
	int rc = 0;

	if (access(path, F_OK) != 0 && errno == ENOENT)
		goto out;
	header = vfm_json_load(path, 2 * VFM_PROVENANCE_BYTES, err);
	if (!header) {
		rc = err->code;
		goto out;
	}
	rc = vfm_provenance_read(chain, header, err);
	if (rc < 0) {
		vfm_err_context(err, "%s", path);
		rc = err->code = VFM_EUSAGE;
	} else {
		rc = 1;
	}
out:
	json_decref(header);
	free(path);
	return rc;
}

int vfm_provenance_store(const json_t *chain, const char *dir, struct vfm_err *err)
{
	json_t *header = vfm_provenance_header(chain);
	int rc = vfm_json_save(dir, VFM_PROVENANCE_NAME, header, 0, err);

	json_decref(header);
	return rc;
}

/* ---- of records ---- */

struct chain_sources {
	json_t *chain, *from_records; /* of headers; from fingerprints */
};

static int collect_stages(void *ctx, const json_t *rec, struct vfm_err *err)
{
	struct chain_sources *c = ctx;

	if (vfm_provenance_is_header(rec))
		return vfm_provenance_read(c->chain, rec, err);
	vfm_provenance_note(c->from_records, rec);
	return 0;
}

int vfm_provenance_of_records(json_t *chain, const char *path, struct vfm_err *err)
{
	struct chain_sources c = {chain, json_array()};
	int rc = vfm_jsonl_each(path, collect_stages, &c, err);

	if (rc == 0)
		vfm_provenance_note_all(chain, c.from_records);
	json_decref(c.from_records);
	return rc;
}

/* ---- as text ---- */

static void add_model_text(struct vfm_buf *b, const char *role, const json_t *models)
{
	const char *version = vfm_rec_str(models, "version", NULL), *sha256 = vfm_rec_str(models, "sha256", NULL);

	vfm_buf_addf(b, "%s%s%s%s", b->len ? ", " : "", role, *role ? " " : "", vfm_rec_str(models, "name", "?"));
	if (version)
		vfm_buf_addf(b, " %s", version);
	if (sha256)
		vfm_buf_addf(b, " %.12s", sha256);
}

char *vfm_provenance_models_text(const json_t *models)
{
	struct vfm_buf b = {0};
	const char *role;
	json_t *one;

	if (json_is_string(json_object_get(models, "name"))) {
		add_model_text(&b, "", models);
		return b.data;
	}
	json_object_foreach((json_t *)(uintptr_t)models, role, one)
	{
		if (json_is_object(one))
			add_model_text(&b, role, one);
	}
	return b.data;
}
