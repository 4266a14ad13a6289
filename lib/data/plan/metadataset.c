/* metadataset.c - reads Energon's YAML and translates its blends, joins, splits and subsets. */
#include "data/plan/metadataset.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/dataset/energon_split.h"
#include "io/file.h"
#include "io/document.h"

#define MAX_YAML        ((size_t)16 << 20)
#define MAX_SETS        4096
#define MAX_LEVEL       8
#define MAX_REPETITIONS 1000

/* The settings that a dataset inherits from the metadatasets around it. */
struct around {
	const char *path, *split; /* of the file */
	double weight;            /* 0: none */
	double repetitions;
	int level;
	bool repeated;            /* within a blend by repetitions */
	struct vfm_subset subset; /* if has_subset */
	bool has_subset;
};

static int add_reference(struct vfm_metadataset *m, const json_t *o, const struct around *a, struct vfm_err *err);

static int fail_metadataset(const struct around *a, const char *key, const char *why, struct vfm_err *err)
{
	return vfm_fail(
		err, VFM_EUSAGE, "metadataset '%s', split '%s': %s%s%s", a->path, a->split, key, *key ? ": " : "", why);
}

/* Appends what vfm-curate index --join takes for one of the joined datasets. */
static void add_join_operand(struct vfm_buf *command, const json_t *dataset, const char **nonmatch)
{
	const char *path = json_string_value(json_object_get(dataset, "path")),
		   *how = json_string_value(json_object_get(dataset, "nonmatch"));

	if (path)
		vfm_buf_addf(command, " %.200s", path);
	if (how && (!strcmp(how, "skip") || !strcmp(how, "none")))
		*nonmatch = how;
}

/* A join needs an index of its own, as Energon prepares one. */
static int fail_join(const struct around *a, const json_t *join, struct vfm_err *err)
{
	struct vfm_buf command = {0};
	const char *nonmatch = NULL, *name;
	json_t *dataset;
	size_t i;

	json_object_foreach((json_t *)(uintptr_t)join, name, dataset) add_join_operand(&command, dataset, &nonmatch);
	json_array_foreach(join, i, dataset) add_join_operand(&command, dataset, &nonmatch);
	vfm_fail(err, VFM_EUSAGE,
		"metadataset '%s', split '%s': join: make one folder of its datasets, 'vfm-curate index --join -d "
		"DIR%s%s%s', and name it here instead, 'path: DIR'",
		a->path, a->split, nonmatch ? " --nonmatch " : "", nonmatch ? nonmatch : "",
		command.data ? command.data : "");
	vfm_buf_release(&command);
	return VFM_EUSAGE;
}

static int check_reference_keys(const json_t *o, const struct around *a, struct vfm_err *err)
{
	static const char *const known[] = {"path", "split_part", "subflavor", "subflavors", "dataset_config",
		"shuffle_over_epochs_multiplier", "weight", "repetitions", "subset", "blend", "blend_epochized",
		"datasets"};
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
			return strcmp(key, "join") ? fail_metadataset(a, key, "not supported", err)
						   : fail_join(a, value, err);
	}
	return 0;
}

static int add_dataset(struct vfm_metadataset *m, const char *dir, const struct around *a, struct vfm_err *err)
{
	struct vfm_metadataset_set set = {.weight = a->weight, .repetitions = a->repetitions};
	bool weighted = a->weight > 0;

	if (m->n && weighted != m->weighted)
		return fail_metadataset(a, "", "weights and repetitions are mixed", err);
	if (m->n == MAX_SETS)
		return fail_metadataset(a, "", "more than 4096 datasets", err);
	if (vfm_energon_split_read(
		    &set.selection, &set.is_part, dir, a->split, a->has_subset ? &a->subset : NULL, err) < 0)
		return vfm_err_context(err, "metadataset '%s'", a->path);
	set.dir = vfm_arena_strdup(&m->arena, dir);
	m->weighted = weighted;
	vfm_grow(&m->sets, &m->cap, m->n + 1, sizeof(*m->sets));
	m->sets[m->n++] = set;
	return 0;
}

static int read_metadataset(struct vfm_metadataset *m, const struct around *a, struct vfm_err *err)
{
	const char *class;
	json_t *all = NULL, *split;
	int rc;

	if (a->level == MAX_LEVEL)
		return fail_metadataset(a, "", "nested too deeply", err);
	all = vfm_document_load(a->path, MAX_YAML, err);
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

		inner.repetitions *= times;
		if (!(times > 0 && inner.repetitions <= MAX_REPETITIONS))
			return fail_metadataset(a, "repetitions", "expected a number > 0, at most 1000", err);
		inner.repeated = true;
		TRY(add_reference(m, item, &inner, err));
	}
	return 0;
}

/* Writes an end of a range as text. */
static const char *end_text(const json_t *v, char number[32])
{
	if (!json_is_integer(v))
		return json_string_value(v);
	snprintf(number, 32, "%lld", (long long)json_integer_value(v));
	return number;
}

/* subset: {range: [a, b]}, within that of the references around it. */
static int read_subset(const json_t *o, const struct around *a, struct around *inner, struct vfm_err *err)
{
	const json_t *subset = json_object_get(o, "subset"), *range = json_object_get(subset, "range");
	char number[2][32];
	const char *from = end_text(json_array_get(range, 0), number[0]),
		   *to = end_text(json_array_get(range, 1), number[1]);
	bool has_own = subset && !json_is_null(subset);
	int rc = 0;

	if (has_own && (!from || !to || json_array_size(range) != 2 || json_object_size(subset) != 1))
		return fail_metadataset(a, "subset", "expected {range: [a, b]}", err);
	if (has_own)
		rc = vfm_subset_parse_ends(from, to, &inner->subset, err);
	else if (a->has_subset)
		inner->subset = VFM_SUBSET_ALL;
	if (rc == 0 && a->has_subset)
		rc = vfm_subset_nest(&inner->subset, &a->subset, err);
	inner->has_subset = has_own || a->has_subset;
	return rc < 0 ? vfm_err_context(err, "metadataset '%s', split '%s': subset", a->path, a->split) : 0;
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
	TRY(read_subset(o, a, &inner, err));
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
	for (size_t i = 0; i < m->n; i++)
		vfm_selection_release(&m->sets[i].selection);
	free(m->sets);
	vfm_arena_release(&m->arena);
	*m = (struct vfm_metadataset){0};
}
