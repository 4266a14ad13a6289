#include "data/metadataset.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/yaml.h"
#include "data/index.h"

#define MAX_YAML    ((size_t)16 << 20)
#define MAX_SETS    4096
#define MAX_LEVEL   8
#define MAX_NAMES   1000000
#define MAX_PATTERN 1000 /* bytes */

/* ---- braces ---- */

struct names {
	char **v;
	size_t n, cap;
};

static void release_names(struct names *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i]);
	free(s->v);
	*s = (struct names){0};
}

static int expand_braces(struct names *out, const char *head, size_t head_len, const char *rest, struct vfm_err *err);

/* Appends head + middle + rest, in which braces may follow. */
static int expand_rest(struct names *out, const char *head, size_t head_len, const char *middle, size_t middle_len,
	const char *rest, struct vfm_err *err)
{
	char *joined = vfm_strfmt("%.*s%.*s", (int)head_len, head, (int)middle_len, middle);
	int rc = expand_braces(out, joined, strlen(joined), rest, err);

	free(joined);
	return rc;
}

/* {FIRST..LAST}: numbers, as wide as FIRST. */
static int expand_range(
	struct names *out, const char *head, size_t head_len, const char *inside, const char *rest, struct vfm_err *err)
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
		snprintf(number, sizeof(number), "%0*lld", width, i);
		TRY(expand_rest(out, head, head_len, number, strlen(number), rest, err));
	}
	return 0;
}

/* Appends what head and the pattern `rest` stand for. */
static int expand_braces(struct names *out, const char *head, size_t head_len, const char *rest, struct vfm_err *err)
{
	const char *open = strchr(rest, '{'), *close = open ? strchr(open, '}') : NULL, *comma;
	char *before;
	int rc = 0;

	if (out->n >= MAX_NAMES)
		return vfm_fail(err, VFM_EUSAGE, "more than %d names", MAX_NAMES);
	if (!close) {
		vfm_grow(&out->v, &out->cap, out->n + 1, sizeof(*out->v));
		out->v[out->n++] = vfm_strfmt("%.*s%s", (int)head_len, head, rest);
		return 0;
	}
	before = vfm_strfmt("%.*s%.*s", (int)head_len, head, (int)(open - rest), rest);
	comma = memchr(open, ',', (size_t)(close - open));
	if (memchr(open + 1, '{', (size_t)(close - open - 1)))
		rc = vfm_fail(err, VFM_EUSAGE, "'%.40s': braces within braces", open);
	else if (!comma)
		rc = expand_range(out, before, strlen(before), open + 1, close + 1, err);
	for (const char *item = open + 1; rc == 0 && comma && item <= close; item = comma + 1) {
		comma = item + strcspn(item, ",}");
		rc = expand_rest(out, before, strlen(before), item, (size_t)(comma - item), close + 1, err);
	}
	free(before);
	return rc;
}

/* ---- split.yaml ---- */

static int compare_shard_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_shards(const char *dir, const struct names *names, const char *split, struct vfm_err *err)
{
	struct vfm_index_shard s;
	struct vfm_index *ix;
	const char *name = s.name;
	int rc;

	TRY(vfm_index_open(&ix, dir, err));
	for (uint32_t i = 0; i < vfm_index_n_shards(ix); i++) {
		TRY_OUT(vfm_index_shard(ix, i, &s, err));
		if (!bsearch(&name, names->v, names->n, sizeof(*names->v), compare_shard_names)) {
			rc = vfm_fail(err, VFM_EUSAGE,
				"'%s/.nv-meta/split.yaml': %s is not in '%s'; a part of a dataset is not supported: "
				"give the shards a folder of their own",
				dir, s.name, split);
			goto out;
		}
	}
	rc = 0;
out:
	vfm_index_close(ix);
	return rc;
}

static int check_split_parts(const char *dir, const json_t *o, const char *split, const char *path, struct vfm_err *err)
{
	const json_t *part = json_object_get(json_object_get(o, "split_parts"), split), *item;
	struct names names = {0};
	size_t i;
	int rc = 0;

	if (!json_is_array(part))
		return vfm_fail(err, VFM_EUSAGE, "'%s': split_parts.%s: expected a list of tars", path, split);
	if (json_array_size(json_object_get(o, "exclude")))
		return vfm_fail(err, VFM_EUSAGE, "'%s': exclude is not supported", path);
	json_array_foreach(part, i, item)
	{
		const char *pattern = json_string_value(item);

		rc = pattern && strlen(pattern) <= MAX_PATTERN
			? expand_braces(&names, "", 0, pattern, err)
			: vfm_fail(err, VFM_EUSAGE, "split_parts.%s: expected a list of tars", split);
		if (rc < 0) {
			vfm_err_context(err, "'%s'", path);
			break;
		}
	}
	if (rc == 0 && names.n)
		qsort(names.v, names.n, sizeof(*names.v), compare_shard_names);
	if (rc == 0)
		rc = check_shards(dir, &names, split, err);
	release_names(&names);
	return rc;
}

int vfm_metadataset_check_split(const char *dir, const char *split, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/.nv-meta/split.yaml", dir);
	json_t *o = NULL;
	int rc = 0;

	if (access(path, F_OK) == 0) {
		o = vfm_yaml_load(path, MAX_YAML, err);
		rc = o ? check_split_parts(dir, o, split, path, err) : err->code;
	}
	json_decref(o);
	free(path);
	return rc;
}

/* ---- the metadataset ---- */

/* What holds for a dataset by the metadatasets around it. */
struct around {
	const char *path, *split; /* of the file */
	double weight;            /* 0: none */
	int repetitions, level;
	bool repeated; /* within a blend by repetitions */
};

static int add_reference(struct vfm_metadataset *m, const json_t *o, const struct around *a, struct vfm_err *err);

static int fail_metadataset(const struct around *a, const char *key, const char *why, struct vfm_err *err)
{
	return vfm_fail(
		err, VFM_EUSAGE, "metadataset '%s', split '%s': %s%s%s", a->path, a->split, key, *key ? ": " : "", why);
}

static int check_reference_keys(const json_t *o, const struct around *a, struct vfm_err *err)
{
	static const char *const known[] = {"path", "split_part", "subflavor", "subflavors", "dataset_config",
		"shuffle_over_epochs_multiplier", "weight", "repetitions", "blend", "blend_epochized", "datasets"};
	const char *key;
	json_t *value;

	if (!json_is_object(o))
		return fail_metadataset(a, "", "expected a mapping", err);
	json_object_foreach((json_t *)o, key, value)
	{
		bool found = json_is_null(value);

		for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			found |= strcmp(key, known[i]) == 0;
		if (!found)
			return fail_metadataset(a, key, "not supported", err);
	}
	return 0;
}

static int add_dataset(struct vfm_metadataset *m, const char *dir, const struct around *a, struct vfm_err *err)
{
	bool weighted = a->weight > 0;

	if (m->n && weighted != m->weighted)
		return fail_metadataset(a, "", "weights and repetitions are mixed", err);
	if (m->n == MAX_SETS)
		return fail_metadataset(a, "", "more than 4096 datasets", err);
	if (vfm_metadataset_check_split(dir, a->split, err) < 0)
		return vfm_err_context(err, "metadataset '%s'", a->path);
	m->weighted = weighted;
	vfm_grow(&m->sets, &m->cap, m->n + 1, sizeof(*m->sets));
	m->sets[m->n++] = (struct vfm_metadataset_set){vfm_arena_strdup(&m->arena, dir), a->weight, a->repetitions};
	return 0;
}

static int read_metadataset(struct vfm_metadataset *m, const struct around *a, struct vfm_err *err)
{
	const char *class;
	json_t *all = NULL, *split;
	int rc;

	if (a->level == MAX_LEVEL)
		return fail_metadataset(a, "", "nested too deeply", err);
	all = vfm_yaml_load(a->path, MAX_YAML, err);
	if (!all)
		return err->code;
	class = json_string_value(json_object_get(all, "__class__"));
	split = json_object_get(json_object_get(all, "splits"), a->split);
	/* without a class it is of version 1 */
	if (class && strcmp(class, "MetadatasetV2") != 0 && strcmp(class, "Metadataset") != 0)
		rc = fail_metadataset(a, "__class__", "expected Metadataset or MetadatasetV2", err);
	else if (!split)
		rc = fail_metadataset(a, "splits", "this split is missing", err);
	else
		rc = add_reference(m, split, a, err);
	json_decref(all);
	return rc;
}

/* A path is that of a dataset's folder or of another metadataset. */
static int add_path(struct vfm_metadataset *m, const char *path, const struct around *a, struct vfm_err *err)
{
	char *dir = vfm_dir_of(a->path), *full = *path == '/' ? vfm_strdup(path) : vfm_strfmt("%s/%s", dir, path);
	struct around inner = *a;
	struct stat st;
	int rc;

	if (strstr(path, "://")) {
		rc = fail_metadataset(a, path, "only local paths are supported", err);
	} else if (stat(full, &st) != 0) {
		rc = vfm_fail_errno(err, VFM_EUSAGE, "metadataset '%s': '%s'", a->path, full);
	} else if (S_ISDIR(st.st_mode)) {
		rc = add_dataset(m, full, a, err);
	} else {
		inner.path = full;
		inner.level++;
		rc = read_metadataset(m, &inner, err);
	}
	free(full);
	free(dir);
	return rc;
}

static int item_weight(const json_t *item, const struct around *a, double *weight, struct vfm_err *err)
{
	const json_t *w = json_object_get(item, "weight");

	*weight = w ? json_number_value(w) : 1;
	return *weight > 0 && *weight < 1e12 ? 0 : fail_metadataset(a, "weight", "expected a number > 0", err);
}

static int add_weights(struct vfm_metadataset *m, const json_t *list, const struct around *a, struct vfm_err *err)
{
	const json_t *item;
	double sum = 0, weight;
	size_t i;

	if (a->repeated)
		return fail_metadataset(a, "blend", "within repetitions", err);
	json_array_foreach(list, i, item)
	{
		TRY(item_weight(item, a, &weight, err));
		sum += weight;
	}
	json_array_foreach(list, i, item)
	{
		struct around inner = *a;

		TRY(item_weight(item, a, &weight, err));
		inner.weight = weight / sum * (a->weight > 0 ? a->weight : 1);
		TRY(add_reference(m, item, &inner, err));
	}
	return 0;
}

static int add_repetitions(struct vfm_metadataset *m, const json_t *list, const struct around *a, struct vfm_err *err)
{
	const json_t *item;
	size_t i;

	if (a->weight > 0)
		return fail_metadataset(a, "blend_epochized", "within a blend by weights", err);
	json_array_foreach(list, i, item)
	{
		const json_t *r = json_object_get(item, "repetitions");
		double times = r ? json_number_value(r) : 1;
		struct around inner = *a;

		if (!(times >= 1 && times * a->repetitions <= 1000) || times != (int)times)
			return fail_metadataset(
				a, "repetitions", "only whole numbers from 1 to 1000 are supported", err);
		inner.repetitions *= (int)times;
		inner.repeated = true;
		TRY(add_reference(m, item, &inner, err));
	}
	return 0;
}

static int add_reference(struct vfm_metadataset *m, const json_t *o, const struct around *a, struct vfm_err *err)
{
	static const char *const kinds[] = {"path", "blend", "datasets", "blend_epochized"};
	const json_t *part, *v;
	struct around inner = *a;
	int kind = -1;

	TRY(check_reference_keys(o, a, err));
	for (int i = 0; i < 4; i++)
		if (json_object_get(o, kinds[i])) {
			if (kind >= 0)
				return fail_metadataset(a, kinds[i], "more than one kind of dataset", err);
			kind = i;
		}
	if (kind < 0)
		return fail_metadataset(a, "", "expected path, blend or blend_epochized", err);
	v = json_object_get(o, kinds[kind]);
	part = json_object_get(o, "split_part");
	if (part && !json_is_string(part))
		return fail_metadataset(a, "split_part", "expected a text", err);
	if (part)
		inner.split = json_string_value(part);
	if (kind == 0)
		return json_is_string(v) ? add_path(m, json_string_value(v), &inner, err)
					 : fail_metadataset(a, "path", "expected a text", err);
	if (!json_is_array(v) || !json_array_size(v))
		return fail_metadataset(a, kinds[kind], "expected a list", err);
	return kind == 3 ? add_repetitions(m, v, &inner, err) : add_weights(m, v, &inner, err);
}

int vfm_metadataset_read(struct vfm_metadataset *m, const char *path, const char *split, struct vfm_err *err)
{
	const struct around a = {.path = path, .split = split, .repetitions = 1};
	struct vfm_err own;

	return read_metadataset(m, &a, err ? err : &own);
}

void vfm_metadataset_release(struct vfm_metadataset *m)
{
	free(m->sets);
	vfm_arena_release(&m->arena);
	*m = (struct vfm_metadataset){0};
}
