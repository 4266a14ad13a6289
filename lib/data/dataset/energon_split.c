/* energon_split.c - expands the brace patterns of split.yaml to shards and record numbers. */
#include "data/dataset/energon_split.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/dataset/index.h"
#include "data/record/sample_key.h"
#include "io/document.h"

#define MAX_SPLIT   ((size_t)16 << 20)
#define MAX_NAMES   1000000
#define MAX_PATTERN 1000 /* bytes */

/* ---- braces ---- */

struct names {
	char **v;
	size_t n, cap;
	struct vfm_arena arena;
	char text[MAX_PATTERN + 1]; /* the begin of a name; none is longer than its pattern */
};

static void release_names(struct names *s)
{
	free(s->v);
	vfm_arena_release(&s->arena);
}

static int expand_braces(struct names *out, size_t len, const char *rest, struct vfm_err *err);

/* Appends `middle` to the first len bytes of text, and the names that `rest` expands to. */
static int expand_rest(
	struct names *out, size_t len, const char *middle, size_t middle_len, const char *rest, struct vfm_err *err)
{
	if (len + middle_len > MAX_PATTERN)
		return vfm_fail(err, VFM_EUSAGE, "a name of more than %d bytes", MAX_PATTERN);
	memcpy(out->text + len, middle, middle_len);
	return expand_braces(out, len + middle_len, rest, err);
}

/* {FIRST..LAST}: numbers, as wide as FIRST. */
static int expand_range(struct names *out, size_t len, const char *inside, const char *rest, struct vfm_err *err)
{
	char *dots, *end, number[32];
	long long first = strtoll(inside, &dots, 10), last;
	int width = (int)(dots - inside);

	if (dots == inside || strncmp(dots, "..", 2) != 0 || width > 20)
		return vfm_fail(err, VFM_EUSAGE, "'{%.40s': expected {FIRST..LAST} or a list", inside);
	last = strtoll(dots + 2, &end, 10);
	if (end == dots + 2 || *end != '}' || last < first || last - first >= MAX_NAMES || first < 0)
		return vfm_fail(err, VFM_EUSAGE, "'{%.40s': expected {FIRST..LAST} in ascending order", inside);
	for (long long i = first; i <= last; i++) {
		int n = snprintf(number, sizeof(number), "%0*lld", width, i);

		TRY(expand_rest(out, len, number, (size_t)n, rest, err));
	}
	return 0;
}

/* Appends the names that begin with the first len bytes of text and end with the pattern `rest`. */
static int expand_braces(struct names *out, size_t len, const char *rest, struct vfm_err *err)
{
	const char *open = strchr(rest, '{'), *close = open ? strchr(open, '}') : NULL, *comma;
	size_t n = close ? (size_t)(open - rest) : strlen(rest);

	if (out->n >= MAX_NAMES)
		return vfm_fail(err, VFM_EUSAGE, "more than %d names", MAX_NAMES);
	if (len + n > MAX_PATTERN)
		return vfm_fail(err, VFM_EUSAGE, "a name of more than %d bytes", MAX_PATTERN);
	memcpy(out->text + len, rest, n);
	len += n;
	if (!close) {
		out->text[len] = 0;
		vfm_grow(&out->v, &out->cap, out->n + 1, sizeof(*out->v));
		out->v[out->n++] = vfm_arena_strdup(&out->arena, out->text);
		return 0;
	}
	if (memchr(open + 1, '{', (size_t)(close - open - 1)))
		return vfm_fail(err, VFM_EUSAGE, "'%.40s': braces within braces", open);
	comma = memchr(open, ',', (size_t)(close - open));
	if (!comma)
		return expand_range(out, len, open + 1, close + 1, err);
	for (const char *item = open + 1; item <= close; item = comma + 1) {
		comma = item + strcspn(item, ",}");
		TRY(expand_rest(out, len, item, (size_t)(comma - item), close + 1, err));
	}
	return 0;
}

/* Appends the names that the patterns of a list expand to. */
static int expand_list(struct names *out, const json_t *list, const char *path, const char *key, struct vfm_err *err)
{
	const json_t *item;
	size_t i;

	json_array_foreach(list, i, item)
	{
		const char *pattern = json_string_value(item);

		if (!pattern || strlen(pattern) > MAX_PATTERN)
			return vfm_fail(err, VFM_EUSAGE, "'%s': %s: expected a list of names", path, key);
		if (expand_braces(out, 0, pattern, err) < 0)
			return vfm_err_context(err, "'%s'", path);
	}
	return 0;
}

/* ---- shards ---- */

struct named_shard {
	char name[sizeof(((struct vfm_index_shard *)0)->name) + 1];
	uint32_t number, count;
	int64_t first;
	bool is_excluded, is_listed;
};

struct shard_table {
	struct named_shard *v; /* [n] by name */
	size_t n;
};

static int compare_named_shards(const void *a, const void *b)
{
	return strcmp(((const struct named_shard *)a)->name, ((const struct named_shard *)b)->name);
}

static int read_shard_table(struct shard_table *t, struct vfm_index *ix, struct vfm_err *err)
{
	struct vfm_index_shard s;

	t->v = vfm_calloc((size_t)vfm_index_info(ix)->n_shards + 1, sizeof(*t->v));
	for (uint32_t i = 0; i < vfm_index_info(ix)->n_shards; i++) {
		struct named_shard *to = &t->v[t->n];

		TRY(vfm_index_shard(ix, i, &s, err));
		if (s.count == 0) /* of another dataset of a join */
			continue;
		memcpy(to->name, s.name, sizeof(s.name));
		to->number = i;
		to->count = s.count;
		to->first = (int64_t)s.first;
		t->n++;
	}
	qsort(t->v, t->n, sizeof(*t->v), compare_named_shards);
	return 0;
}

/* Returns the shard with this name and size in bytes; NULL: none. */
static struct named_shard *find_shard(const struct shard_table *t, const char *name, size_t len)
{
	struct named_shard key = {0};

	if (len >= sizeof(key.name))
		return NULL;
	memcpy(key.name, name, len);
	return t->n ? bsearch(&key, t->v, t->n, sizeof(*t->v), compare_named_shards) : NULL;
}

/* ---- samples that are excluded ---- */

struct excluded_sample {
	uint32_t shard;
	uint64_t id;
};

static int compare_excluded(const void *a, const void *b)
{
	const struct excluded_sample *x = a, *y = b;

	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

/* Appends the records of those samples [n], all of one shard. */
static int find_excluded(struct vfm_index *ix, const struct excluded_sample *e, size_t n, int64_t **records,
	size_t *n_records, size_t *cap, struct vfm_err *err)
{
	struct vfm_index_shard s;
	struct vfm_index_record r;

	TRY(vfm_index_shard(ix, e->shard, &s, err));
	for (uint32_t i = 0; i < s.count; i++) {
		struct excluded_sample key = {.shard = e->shard};

		TRY(vfm_index_get(ix, e->shard, i, &r, err));
		key.id = r.id;
		if (!bsearch(&key, e, n, sizeof(*e), compare_excluded))
			continue;
		vfm_grow(records, cap, *n_records + 1, sizeof(**records));
		(*records)[(*n_records)++] = (int64_t)s.first + i;
	}
	return 0;
}

/* Removes the samples SHARD/KEY. */
static int exclude_samples(struct vfm_selection *selection, struct vfm_index *ix, const struct shard_table *t,
	const struct names *names, struct vfm_err *err)
{
	struct excluded_sample *e = vfm_calloc(names->n + 1, sizeof(*e));
	size_t n = 0, n_records = 0, cap = 0;
	int64_t *records = NULL;
	int rc = 0;

	for (size_t i = 0; i < names->n; i++) {
		const char *slash = strchr(names->v[i], '/');
		const struct named_shard *s = slash ? find_shard(t, names->v[i], (size_t)(slash - names->v[i])) : NULL;

		if (s)
			e[n++] = (struct excluded_sample){s->number, vfm_sample_id(slash + 1)};
	}
	qsort(e, n, sizeof(*e), compare_excluded);
	for (size_t i = 0, end; i < n && rc == 0; i = end) {
		for (end = i + 1; end < n && e[end].shard == e[i].shard;)
			end++;
		rc = find_excluded(ix, e + i, end - i, &records, &n_records, &cap, err);
	}
	if (rc == 0 && n_records)
		vfm_selection_exclude(selection, records, n_records);
	free(records);
	free(e);
	return rc;
}

/* ---- the split ---- */

/* Adds the shards of the split in its order. */
static int add_shards(struct vfm_selection *selection, const struct shard_table *t, const struct names *names,
	const struct names *excluded, struct vfm_err *err)
{
	for (size_t i = 0; i < excluded->n; i++) {
		struct named_shard *s = find_shard(t, excluded->v[i], strlen(excluded->v[i]));

		if (s)
			s->is_excluded = true;
	}
	for (size_t i = 0; i < names->n; i++) {
		struct named_shard *s = find_shard(t, names->v[i], strlen(names->v[i]));

		if (!s || s->is_excluded)
			continue;
		if (s->is_listed)
			return vfm_fail(err, VFM_EUSAGE, "%s is named twice", s->name);
		s->is_listed = true;
		vfm_selection_add(selection, s->first, s->first + s->count);
	}
	return 0;
}

/* o: split.yaml. */
static int select_split(struct vfm_selection *selection, struct vfm_index *ix, const json_t *o, const char *split,
	const struct vfm_subset *subset, const char *path, struct vfm_err *err)
{
	const json_t *part = json_object_get(json_object_get(o, "split_parts"), split),
		     *exclude = json_object_get(o, "exclude");
	struct names names = {0}, excluded = {0};
	struct shard_table t = {0};
	int rc;

	if (!json_is_array(part))
		return vfm_fail(err, VFM_EUSAGE, "'%s': split_parts.%s: expected a list of tars", path, split);
	if (exclude && !json_is_array(exclude) && !json_is_null(exclude))
		return vfm_fail(err, VFM_EUSAGE, "'%s': exclude: expected a list of names", path);
	TRY_OUT(expand_list(&names, part, path, "split_parts", err));
	TRY_OUT(expand_list(&excluded, exclude, path, "exclude", err));
	TRY_OUT(read_shard_table(&t, ix, err));
	rc = add_shards(selection, &t, &names, &excluded, err);
	if (rc == 0 && subset)
		rc = vfm_selection_cut(selection, subset, err);
	if (rc < 0) {
		vfm_err_context(err, "'%s', split '%s'", path, split);
		goto out;
	}
	vfm_selection_seal(selection);
	TRY_OUT(exclude_samples(selection, ix, &t, &excluded, err));
out:
	release_names(&names);
	release_names(&excluded);
	free(t.v);
	return rc;
}

/* Loads split.yaml or split.json of a dataset, and sets *path to its name; *o stays NULL without either. */
static int load_split(const char *dir, json_t **o, char **path, struct vfm_err *err)
{
	*path = vfm_strfmt("%s/.nv-meta/split.yaml", dir);
	if (access(*path, F_OK) != 0) {
		free(*path);
		*path = vfm_strfmt("%s/.nv-meta/split.json", dir);
		if (access(*path, F_OK) != 0)
			return 0;
	}
	*o = vfm_document_load(*path, MAX_SPLIT, err);
	return *o ? 0 : err->code;
}

/* Without split.yaml: all samples in their order. */
static int select_part(struct vfm_selection *selection, const char *dir, int64_t records,
	const struct vfm_subset *subset, struct vfm_err *err)
{
	vfm_selection_add(selection, 0, records);
	if (subset && vfm_selection_cut(selection, subset, err) < 0)
		return vfm_err_context(err, "'%s'", dir);
	vfm_selection_seal(selection);
	return 0;
}

int vfm_energon_split_read(struct vfm_selection *selection, bool *is_part, const char *dir, const char *split,
	const struct vfm_subset *subset, struct vfm_err *err)
{
	struct vfm_index *ix = NULL;
	char *path = NULL;
	json_t *o = NULL;
	int64_t records;
	int rc;

	*is_part = false;
	TRY_OUT(vfm_index_open(&ix, dir, err));
	TRY_OUT(load_split(dir, &o, &path, err));
	if (!o && vfm_index_info(ix)->n_parts) { /* a join has the shards of its first dataset */
		free(path);
		TRY_OUT(load_split(vfm_index_info(ix)->parts[0].dir, &o, &path, err));
	}
	if (!o && !subset)
		goto out;
	records = (int64_t)vfm_index_info(ix)->n_records;
	TRY_OUT(o ? select_split(selection, ix, o, split, subset, path, err)
		  : select_part(selection, dir, records, subset, err));
	*is_part = selection->total < records;
	if (selection->total == 0)
		rc = vfm_fail(err, VFM_EUSAGE, "'%s': no sample is in split '%s'%s", dir, split,
			subset ? ", or in this subset of it" : "");
out:
	if (!*is_part || rc < 0)
		vfm_selection_release(selection);
	vfm_index_close(ix);
	json_decref(o);
	free(path);
	return rc;
}
