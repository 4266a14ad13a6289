/* dedup.c - reads records twice: collects hashes, vectors or texts, then marks duplicates with their reason. */
#include "curate/dedup/dedup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "curate/dedup/dedup_text.h"
#include "data/record/provenance.h"
#include "data/record/record.h"
#include "io/hash.h"
#include "io/json.h"

struct vfm_dedup {
	struct vfm_dedup_opts o;
	char *key[2]; /* of the quality; NULL: none */
	char *settings;
	int64_t fixed; /* clips of the index */
	/* by hashes */
	struct vfm_clip_set clips;
	struct vfm_clip_groups found_clips;
	/* by vectors */
	struct vfm_features vectors;
	struct vfm_names names; /* of the rows */
	double *quality;        /* [names.n] */
	size_t cap_quality;
	struct vfm_semantic found_vectors;
	/* both */
	int64_t *copies; /* [n] by rank: members of a representative */
};

/* ---- options ---- */

static int parse_quality(struct vfm_dedup *d, struct vfm_err *err)
{
	const char *text = d->o.quality ? d->o.quality : VFM_DEDUP_QUALITY, *star = strchr(text, '*');
	bool far = !strcmp(text, "far"), near = !strcmp(text, "near");

	if (far || near) {
		if (!d->o.vectors)
			return vfm_fail(err, VFM_EUSAGE, "--keep-best %s: only with --by embedding", text);
		d->o.semantic.keep = far ? VFM_SEMANTIC_FAR : VFM_SEMANTIC_NEAR;
		return 0;
	}
	if (!*text || *text == '*' || (star && (!star[1] || strchr(star + 1, '*'))))
		return vfm_fail(err, VFM_EUSAGE, "--keep-best: expected KEY or KEY*KEY, got '%s'", text);
	d->key[0] = vfm_strfmt("%.*s", star ? (int)(star - text) : (int)strlen(text), text);
	d->key[1] = star ? vfm_strdup(star + 1) : NULL;
	return 0;
}

static int check_ranges(const struct vfm_dedup *d, struct vfm_err *err)
{
	const struct vfm_semantic_opts *s = &d->o.semantic;

	if (!(d->o.threshold > 0 && d->o.threshold < 1))
		return vfm_fail(err, VFM_EUSAGE, "--threshold: expected a distance between 0 and 1");
	if (s->clusters < 0 || s->clusters > 1000000)
		return vfm_fail(err, VFM_EUSAGE, "--clusters: expected 1 to 1000000");
	if (s->probe < 0 || s->probe > VFM_SEMANTIC_PROBE_MAX)
		return vfm_fail(err, VFM_EUSAGE, "--probe: expected 1 to %d", VFM_SEMANTIC_PROBE_MAX);
	if (!d->o.vectors && d->o.matrix)
		return vfm_fail(err, VFM_EUSAGE, "--vectors: only with --by embedding");
	if (d->o.vectors && d->o.against)
		return vfm_fail(err, VFM_EUSAGE, "--against: an index has hashes, no vectors");
	return 0;
}

/* The options as text; the index by its size and checksum. */
static char *describe_settings(const struct vfm_dedup *d)
{
	const char *quality = d->o.quality ? d->o.quality : VFM_DEDUP_QUALITY;
	const struct vfm_semantic_opts *s = &d->o.semantic;
	char threshold[VFM_REAL_TEXT];

	vfm_real_text(threshold, d->o.threshold);
	if (d->o.vectors)
		return vfm_strfmt("by %s threshold %s keep-best %s clusters %lld probe %lld seed %lld", d->o.vectors,
			threshold, quality, (long long)s->clusters, (long long)s->probe, (long long)s->seed);
	return vfm_strfmt("by hash threshold %s keep-best %s against %lld clips %08x", threshold, quality,
		(long long)d->fixed, d->clips.loaded_crc);
}

int vfm_dedup_new(struct vfm_dedup **out, const struct vfm_dedup_opts *o, struct vfm_err *err)
{
	struct vfm_dedup *d = *out = vfm_calloc(1, sizeof(*d));

	d->o = *o;
	if (d->o.threshold == 0)
		d->o.threshold = o->vectors ? VFM_SEMANTIC_THRESHOLD : VFM_CLIP_THRESHOLD;
	TRY(parse_quality(d, err));
	TRY(check_ranges(d, err));
	d->o.semantic.threshold = d->o.threshold;
	if (!o->vectors)
		TRY(vfm_clip_set_open(&d->clips, err));
	if (o->against)
		TRY(vfm_clip_set_load(&d->clips, o->against, err));
	d->fixed = d->clips.n;
	d->settings = describe_settings(d);
	return 0;
}

void vfm_dedup_free(struct vfm_dedup *d)
{
	if (!d)
		return;
	free(d->key[0]);
	free(d->key[1]);
	free(d->settings);
	vfm_clip_set_close(&d->clips);
	vfm_clip_groups_release(&d->found_clips);
	vfm_features_close(&d->vectors);
	vfm_names_release(&d->names);
	vfm_semantic_release(&d->found_vectors);
	free(d->quality);
	free(d->copies);
	free(d);
}

const char *vfm_dedup_settings(const struct vfm_dedup *d)
{
	return d->settings;
}

/* ---- reading ---- */

#define NO_QUALITY -1e300 /* of a record without the keys: it comes last */

/* For a record or, if rec is NULL, its text. */
static double quality_of(const struct vfm_dedup *d, const json_t *rec, const struct vfm_record_text *text)
{
	double q = 1, x;

	for (int i = 0; i < 2 && d->key[i]; i++) {
		bool known = rec ? vfm_rec_num(rec, d->key[i], &x) : vfm_record_text_num(text, d->key[i], &x);

		if (!known || !isfinite(x))
			return NO_QUALITY;
		q *= x;
	}
	return isfinite(q) ? q : NO_QUALITY;
}

static int parse_hash(const json_t *rec, struct vfm_clip_hash *h, struct vfm_err *err)
{
	const json_t *text = vfm_rec_at(rec, "hash.clip");

	if (!json_is_string(text))
		return vfm_fail(err, VFM_EINPUT, "hash.clip: missing (vfm-curate hash computes it)");
	if (vfm_clip_hash_parse(h, json_string_value(text), err) < 0)
		return vfm_err_context(err, "hash.clip");
	return 0;
}

static int add_hashed(struct vfm_dedup *d, const json_t *rec, const char *id, struct vfm_err *err)
{
	struct vfm_clip_hash h;

	TRY(parse_hash(rec, &h, err));
	return vfm_clip_set_add(&d->clips, id, quality_of(d, rec, NULL), &h, err);
}

/* A record with a vector, which is a row of the matrix. */
static int add_vector_row(struct vfm_dedup *d, const char *id, double quality, struct vfm_err *err)
{
	if (!id)
		return vfm_fail(err, VFM_EUSAGE, "id: missing (expected a string)");
	if (vfm_names_add(&d->names, id) < 0)
		return vfm_fail(err, VFM_EUSAGE, "two records have the id '%.80s'", id);
	vfm_grow(&d->quality, &d->cap_quality, (size_t)d->names.n, sizeof(*d->quality));
	d->quality[d->names.n - 1] = quality;
	return 0;
}

static int collect_record(struct vfm_dedup *d, const json_t *rec, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_err bad;
	int rc = 0;

	if (d->o.matrix)
		return vfm_rec_at(rec, d->o.vectors) ? add_vector_row(d, id, quality_of(d, rec, NULL), err) : 0;

	if (!id || vfm_rec_check_version(rec, &bad) < 0)
		return 0;
	if (!d->o.vectors) {
		rc = add_hashed(d, rec, id, err);
	} else if (vfm_names_find(&d->names, id) < 0) {
		rc = vfm_features_add(&d->vectors, rec, d->o.vectors, err);
		if (rc >= 0)
			rc = add_vector_row(d, id, quality_of(d, rec, NULL), err);
	}
	return rc == VFM_EINPUT ? 0 : rc; /* vfm_dedup_mark says why */
}

/* Copies a string without escapes to out [VFM_CLIP_NAME_MAX + 1].  Returns whether it is one and fits. */
static bool copy_record_string(const struct vfm_record_text *t, const struct vfm_text_value *v, char *out)
{
	size_t len;
	const char *s = vfm_record_text_str(t, v, &len);

	if (!s || len > VFM_CLIP_NAME_MAX)
		return false;
	memcpy(out, s, len);
	out[len] = 0;
	return true;
}

struct collected { /* of a line */
	enum { COLLECT_NOTHING, COLLECT_PARSE, COLLECT_CLIP, COLLECT_VECTOR } what;
	int slots;
	double quality;
	size_t id, hash, hash_len; /* places in `bytes` of the block */
};

struct collecting { /* a block of records */
	struct vfm_jsonl_block block;
	struct vfm_record_text text;
	struct collected *lines; /* [block.n] */
	size_t cap;
	struct vfm_buf bytes; /* ids, each with a zero, and packed hashes */
};

struct dedup_reading {
	struct vfm_dedup *d;
	struct vfm_dedup_files files;
};

static int read_collecting(void *ctx, void *item, struct vfm_err *err)
{
	return vfm_dedup_files_read(&((struct dedup_reading *)ctx)->files, &((struct collecting *)item)->block, err);
}

static size_t keep_bytes(struct vfm_buf *b, const void *data, size_t len)
{
	size_t at = b->len;

	vfm_buf_add(b, data, len);
	return at;
}

/* Sets the hash and its slots.  Returns false for a record without a good hash. */
static bool collect_hash(struct collecting *c, struct collected *of, const char *text, size_t len)
{
	uint8_t bytes[VFM_CLIP_HASH_BYTES];
	struct vfm_clip_hash h;
	struct vfm_err err;

	if (vfm_clip_hash_parse_bytes(&h, text, len, &err) < 0)
		return false;
	of->slots = h.slots;
	of->hash_len = vfm_clip_hash_pack(&h, bytes);
	of->hash = keep_bytes(&c->bytes, bytes, of->hash_len);
	return true;
}

/* The contribution of a record, from its text. */
static void collect_text(const struct vfm_dedup *d, struct collecting *c, struct collected *of)
{
	const struct vfm_record_text *t = &c->text;
	const struct vfm_text_value *v = vfm_record_text_get(t, "v"), *id = vfm_record_text_get(t, "id");
	const char *hash, *name;
	size_t len, name_len;

	of->what = COLLECT_PARSE;
	if (vfm_record_text_get(t, "provenance"))
		return;
	of->what = COLLECT_NOTHING;
	if (vfm_record_text_get(t, "error") || vfm_record_text_get(t, "drop") ||
		(d->o.vectors && !vfm_record_text_at(t, d->o.vectors)))
		return;
	of->what = COLLECT_PARSE;
	name = vfm_record_text_str(t, id, &name_len);
	hash = d->o.vectors ? NULL : vfm_record_text_str(t, vfm_record_text_at(t, "hash.clip"), &len);
	if (!name || name_len > VFM_CLIP_NAME_MAX ||
		(!d->o.vectors && (!hash || (v && (v->len != 1 || t->text[v->at] != '1')))))
		return;
	of->what = d->o.vectors ? COLLECT_VECTOR : COLLECT_CLIP;
	if (hash && !collect_hash(c, of, hash, len)) {
		of->what = COLLECT_NOTHING; /* vfm_dedup_mark says why */
		return;
	}
	of->quality = quality_of(d, NULL, t);
	of->id = keep_bytes(&c->bytes, name, name_len);
	vfm_buf_add(&c->bytes, "", 1);
}

static void collect_block(void *ctx, void *item)
{
	const struct vfm_dedup *d = ((struct dedup_reading *)ctx)->d;
	struct collecting *c = item;

	vfm_jsonl_block_split(&c->block);
	vfm_grow(&c->lines, &c->cap, c->block.n, sizeof(*c->lines));
	vfm_buf_clear(&c->bytes);
	for (size_t i = 0; i < c->block.n; i++) {
		const struct vfm_jsonl_line *line = &c->block.lines[i];

		c->lines[i] = (struct collected){.what = line->too_long ? COLLECT_NOTHING : COLLECT_PARSE};
		if (!line->too_long && (!d->o.vectors || d->o.matrix) &&
			vfm_record_text_read(&c->text, line->text, line->len))
			collect_text(d, c, &c->lines[i]);
	}
}

static int collect_parsed(struct vfm_dedup *d, const char *name, const struct vfm_jsonl_line *line, struct vfm_err *err)
{
	const struct vfm_jsonl in = {.name = name, .line = line->line};
	json_t *rec;
	int rc = 0;

	if (vfm_jsonl_parse(&in, line->text, line->len, &rec, err) < 0) /* the second reading reports it */
		return 0;
	if (json_is_object(rec) && !vfm_provenance_is_header(rec) && !vfm_rec_is_out(rec))
		rc = collect_record(d, rec, err);
	json_decref(rec);
	return rc;
}

static int take_collected(void *ctx, void *item, struct vfm_err *err)
{
	const struct dedup_reading *r = ctx;
	struct collecting *c = item;

	for (size_t i = 0; i < c->block.n; i++) {
		const struct collected *of = &c->lines[i];
		const char *id = c->bytes.data + of->id;
		int rc = 0;

		if (of->what == COLLECT_PARSE)
			rc = collect_parsed(r->d, c->block.name, &c->block.lines[i], err);
		else if (of->what == COLLECT_VECTOR)
			rc = add_vector_row(r->d, id, of->quality, err);
		else if (of->what == COLLECT_CLIP)
			rc = vfm_clip_set_add_packed(&r->d->clips, id, of->quality,
				(const uint8_t *)c->bytes.data + of->hash, of->hash_len, of->slots, err);
		if (rc < 0 && rc != VFM_EINPUT) /* vfm_dedup_mark says why */
			return rc;
	}
	return 0;
}

static int read_records(struct vfm_dedup *d, char *const *paths, int n, struct vfm_err *err)
{
	const int threads = vfm_par_threads();
	struct collecting *items = vfm_calloc((size_t)threads, sizeof(*items));
	struct dedup_reading r = {.d = d, .files = {.paths = paths, .n = n}};
	const struct vfm_ordered o = {
		read_collecting, collect_block, take_collected, &r, items, sizeof(struct collecting)};
	int rc = vfm_par_ordered(&o, err);

	vfm_dedup_files_close(&r.files);
	for (int i = 0; i < threads; i++) {
		vfm_jsonl_block_release(&items[i].block);
		vfm_record_text_release(&items[i].text);
		vfm_buf_release(&items[i].bytes);
		free(items[i].lines);
	}
	free(items);
	return rc;
}

static int open_vector_rows(struct vfm_dedup *d, struct vfm_err *err)
{
	TRY(vfm_features_open(&d->vectors, d->o.matrix, d->o.vectors, err));
	if (d->vectors.ids)
		return vfm_fail(err, VFM_EUSAGE, "'%s': expected an npy file", d->o.matrix);
	return 0;
}

int vfm_dedup_read(struct vfm_dedup *d, char *const *paths, int n, struct vfm_err *err)
{
	if (d->o.vectors)
		TRY(d->o.matrix ? open_vector_rows(d, err) : vfm_features_begin(&d->vectors, err));
	TRY(read_records(d, paths, n, err));
	if (d->o.matrix && d->vectors.rows != d->names.n)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s' has %lld rows, but %lld records have a vector: it is of other records", d->o.matrix,
			(long long)d->vectors.rows, (long long)d->names.n);
	if (d->o.matrix)
		return 0;
	return d->o.vectors ? vfm_features_end(&d->vectors, err) : vfm_clip_set_flush(&d->clips, err);
}

/* ---- groups ---- */

static const struct vfm_groups *dedup_groups(const struct vfm_dedup *d)
{
	return d->o.vectors ? &d->found_vectors.groups : &d->found_clips.groups;
}

static const char *name_of_rank(const struct vfm_dedup *d, uint32_t rank)
{
	return d->o.vectors ? vfm_names_at(&d->names, d->found_vectors.row[rank])
			    : vfm_names_at(&d->clips.names, d->found_clips.clip[rank]);
}

/* Warns if no record has the keys of --keep-best: they are probably misspelt. */
static void check_quality_keys(const struct vfm_dedup *d)
{
	int64_t first = d->o.vectors ? 0 : d->fixed, n = d->o.vectors ? d->names.n : d->clips.n, i = first;

	while (i < n && (d->o.vectors ? d->quality[i] : d->clips.entries[i].quality) <= NO_QUALITY)
		i++;
	if (d->key[0] && first < n && i == n)
		vfm_warn("--keep-best: no record has '%s%s%s'", d->key[0], d->key[1] ? "' and '" : "",
			d->key[1] ? d->key[1] : "");
}

int vfm_dedup_group(struct vfm_dedup *d, struct vfm_dedup_stats *stats, struct vfm_err *err)
{
	const struct vfm_clip_groups_opts o = {d->o.threshold, d->fixed};
	const struct vfm_groups *g = dedup_groups(d);
	int64_t members = 0;

	check_quality_keys(d);
	if (d->o.vectors)
		TRY(vfm_semantic_find(&d->found_vectors, &d->vectors, d->quality, &d->o.semantic, err));
	else
		TRY(vfm_clip_groups_find(&d->found_clips, &d->clips, &o, err));
	d->copies = vfm_calloc((size_t)g->n + 1, sizeof(*d->copies));
	for (int64_t i = 0; i < g->n; i++)
		if (vfm_groups_is_member(g, i)) {
			d->copies[g->of[i].of]++;
			members++;
		}
	*stats = (struct vfm_dedup_stats){g->n, members, d->found_clips.stats, d->found_vectors.stats};
	return 0;
}

/* ---- the second reading ---- */

static json_t *round_distance(double x)
{
	return vfm_json_real(round(x * 1e4) / 1e4);
}

/* Why a record took no part. */
static int explain(const struct vfm_dedup *d, const json_t *rec, struct vfm_err *err)
{
	struct vfm_clip_hash h;

	if (d->o.matrix)
		return vfm_fail(err, VFM_EINPUT, "%s: missing: the record has no vector", d->o.vectors);
	if (d->o.vectors)
		TRY(vfm_features_explain(&d->vectors, rec, d->o.vectors, err));
	else
		TRY(parse_hash(rec, &h, err));
	return vfm_fail(err, VFM_EINPUT,
		"the record cannot be deduplicated: it changed while the input was read twice, "
		"or its id is longer than %d bytes",
		VFM_CLIP_NAME_MAX);
}

/* Sets "drop" to a constant reason, and returns it. */
static const char *drop_duplicate(json_t *rec, const char *reason)
{
	vfm_stage_drop(rec, "dedup", "%s", reason);
	return reason;
}

/* Sets "dedup" and "drop" of a member.  Returns the reason. */
static const char *mark_member(const struct vfm_dedup *d, json_t *rec, const struct vfm_duplicate *m)
{
	const char *of = name_of_rank(d, m->of);
	json_t *o = json_pack("{s:s,s:o}", "of", of, "distance", round_distance((double)m->distance));

	if (!d->o.vectors) {
		json_object_set_new(o, "offset_s", round_distance((double)m->offset_s));
		json_object_set_new(o, "mirrored", json_boolean(m->mirrored));
	}
	json_object_set_new(rec, "dedup", o);
	return drop_duplicate(rec, "duplicate");
}

/* Sets "dedup" of a record, and "drop" if it is a duplicate.  Returns the reason of the drop, or NULL. */
static const char *mark_item(const struct vfm_dedup *d, json_t *rec, int64_t item, const char *id)
{
	const struct vfm_groups *g = dedup_groups(d);
	uint32_t rank = d->o.vectors ? d->found_vectors.rank[item] : d->found_clips.rank[item];

	if (item < d->fixed) {
		json_object_set_new(rec, "dedup", json_pack("{s:s}", "of", id));
		return drop_duplicate(rec, "in the index already");
	}
	if (vfm_groups_is_member(g, rank))
		return mark_member(d, rec, &g->of[rank]);
	json_object_set_new(rec, "dedup", json_pack("{s:I}", "copies", (json_int_t)d->copies[rank]));
	return NULL;
}

static int64_t find_item(const struct vfm_dedup *d, const char *id)
{
	return vfm_names_find(d->o.vectors ? &d->names : &d->clips.names, id);
}

int vfm_dedup_mark(const struct vfm_dedup *d, json_t *rec, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL);
	int64_t item;

	if (!id)
		return vfm_fail(err, VFM_EINPUT, "id: missing (expected a string)");
	item = find_item(d, id);
	if (item < 0)
		return explain(d, rec, err);
	mark_item(d, rec, item, id);
	return 0;
}

bool vfm_dedup_mark_text(
	const struct vfm_dedup *d, const struct vfm_record_text *t, struct vfm_buf *keys, const char **reason)
{
	char id[VFM_CLIP_NAME_MAX + 1];
	const char *key;
	int64_t item;
	json_t *set, *v;

	if (!copy_record_string(t, vfm_record_text_get(t, "id"), id))
		return false;
	item = find_item(d, id);
	if (item < 0)
		return false;
	set = json_object();
	*reason = mark_item(d, set, item, id);
	json_object_foreach(set, key, v)
	{
		vfm_buf_addf(keys, ",\"%s\":", key);
		vfm_json_text(keys, v, 0);
	}
	json_decref(set);
	return true;
}

int vfm_dedup_save(const struct vfm_dedup *d, const char *path, struct vfm_err *err)
{
	const struct vfm_groups *g = dedup_groups(d);
	uint8_t *keep = vfm_calloc((size_t)g->n + 1, 1);
	int rc;

	for (int64_t i = 0; i < g->n; i++)
		keep[d->found_clips.clip[i]] = !vfm_groups_is_member(g, i);
	rc = vfm_clip_set_save(&d->clips, keep, path, err);
	free(keep);
	return rc;
}
