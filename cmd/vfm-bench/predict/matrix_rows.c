/* The rows of vfm-bench matrix. */
#include "predict/matrix_rows.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/installed.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/num.h"
#include "io/document.h"
#include "io/json.h"
#include "train/predict/bench.h"

enum { FILE_MAX = 1 << 20 };

static struct matrix_row *row_new(struct matrix_rows *r, const char *model, int64_t tokens, struct vfm_err *err)
{
	struct matrix_row *w;

	vfm_grow(&r->v, &r->cap, r->n + 1, sizeof(*r->v));
	w = &r->v[r->n];
	memset(w, 0, sizeof(*w));
	snprintf(w->model, sizeof(w->model), "%s", model);
	w->tokens = tokens;
	vfm_config_defaults(&w->config);
	w->config.train.ema_decay = 0;
	if (vfm_model_preset(model, &w->config.model, err) < 0)
		return NULL;
	r->n++;
	return w;
}

static int row_set(struct matrix_row *w, const char *key, const char *value, struct vfm_err *err)
{
	size_t used = strlen(w->label);
	char *set = vfm_strfmt("%s=%s", key, value);
	int rc = vfm_bench_set(&w->config, set, err);

	snprintf(w->label + used, sizeof(w->label) - used, "%s%s", used ? " " : "",
		!strcmp(key, "train.dtype") ? value : set);
	free(set);
	return rc;
}

/* ---- products of lists ---- */

enum { CONTEXT_MAX = 1 << 26 };

/* A list of the product. */
struct axis {
	const char *option;
	char *key; /* of the configuration; NULL: it is none */
	struct vfm_list list;
};

/* Models and contexts, then keys of the configuration (--dtype, --recompute, --set), then packs and gpus. */
struct product {
	struct axis *v;
	size_t n;
};
enum { MODEL, CONTEXT, KEYS };                                     /* the first ones */
enum { AXES_BESIDE_SETS = KEYS + 2 /* dtypes, recomputes */ + 2 }; /* and packs, gpus */

static int add_axis(struct product *p, const char *option, const char *key, const char *text, struct vfm_err *err)
{
	struct axis *a = &p->v[p->n++];

	a->option = option;
	a->key = key ? vfm_strdup(key) : NULL;
	if (vfm_list_parse(&a->list, text, err) < 0)
		return vfm_err_context(err, "%s%s%s", option, !strcmp(option, "--set") ? " " : "",
			!strcmp(option, "--set") ? key : "");
	return 0;
}

/* Returns the axis of a key; NULL: there is none. */
static const struct axis *find_key_axis(const struct product *p, const char *key)
{
	for (size_t i = KEYS; i < p->n; i++)
		if (!strcmp(p->v[i].key, key))
			return &p->v[i];
	return NULL;
}

/* text: KEY=LIST. */
static int add_set_axis(struct product *p, const char *text, struct vfm_err *err)
{
	size_t len = strcspn(text, "=");
	const struct axis *before;
	char *key;
	int rc;

	if (!len || !text[len])
		return vfm_fail(err, VFM_EUSAGE, "--set: expected KEY=LIST, got '%s'", text);
	key = vfm_strfmt("%.*s", (int)len, text);
	before = find_key_axis(p, key);
	rc = !before ? add_axis(p, "--set", key, text + len + 1, err)
		: !strcmp(before->option, "--set")
		? vfm_fail(err, VFM_EUSAGE, "--set %s: given twice; a list has several values", key)
		: vfm_fail(err, VFM_EUSAGE, "--set %s: %s gives this key", key, before->option);
	free(key);
	return rc;
}

/* Adds the axis of an option that replaces a key: the values that the user gives, or `otherwise`.  Adds none if --set
 * gives the key instead. */
static int add_key_axis(struct product *p, const struct matrix_lists *l, const char *option, const char *key,
	const char *given, const char *otherwise, struct vfm_err *err)
{
	size_t len = strlen(key);

	for (int i = 0; i < l->sets.n && !given; i++)
		if (!strncmp(l->sets.v[i], key, len) && l->sets.v[i][len] == '=')
			return 0;
	return add_axis(p, option, key, given ? given : otherwise, err);
}

static int open_product(struct product *p, const struct matrix_lists *l, struct vfm_err *err)
{
	size_t rows = 1;

	p->v = vfm_calloc(AXES_BESIDE_SETS + (size_t)l->sets.n, sizeof(*p->v));
	TRY(add_axis(p, "--model", NULL, l->models ? l->models : "dit-s,dit-b", err));
	TRY(add_axis(p, "--context", NULL, l->contexts ? l->contexts : "1024,4096", err));
	TRY(add_key_axis(p, l, "--dtype", "train.dtype", l->dtypes, "fp32,bf16", err));
	TRY(add_key_axis(p, l, "--recompute", "train.recompute", l->recomputes, l->search ? "auto" : "none", err));
	for (int i = 0; i < l->sets.n; i++)
		TRY(add_set_axis(p, l->sets.v[i], err));
	TRY(add_axis(p, "--packs", NULL, l->packs ? l->packs : "1", err));
	TRY(add_axis(p, "--gpus", NULL, l->gpus ? l->gpus : "1", err));
	for (size_t i = 0; i < p->n; i++) {
		rows *= p->v[i].list.n;
		if (rows > MATRIX_ROWS_MAX)
			return vfm_fail(err, VFM_EUSAGE, "the lists make more than %d rows", MATRIX_ROWS_MAX);
	}
	return 0;
}

static void product_release(struct product *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free(p->v[i].key);
		vfm_list_release(&p->v[i].list);
	}
	free(p->v);
}

static int parse_size_of(const char *option, const char *text, int64_t max, int64_t *out, struct vfm_err *err)
{
	if (vfm_parse_size(text, out, err) < 0)
		return vfm_err_context(err, "%s", option);
	if (*out < 1 || *out > max)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected 1 to %lld, got '%s'", option, (long long)max, text);
	return 0;
}

/* at [p->n]: the value of each list. */
static int row_of_product(struct matrix_rows *r, const struct product *p, const size_t *at, struct vfm_err *err)
{
#define VALUE(i) p->v[i].list.v[at[i]]
	struct matrix_row *w;
	int64_t tokens;

	TRY(parse_size_of("--context", VALUE(CONTEXT), CONTEXT_MAX, &tokens, err));
	w = row_new(r, VALUE(MODEL), tokens, err);
	if (!w)
		return vfm_err_context(err, "--model");
	for (size_t i = KEYS; i < p->n - 2; i++)
		TRY(row_set(w, p->v[i].key, VALUE(i), err));
	TRY(parse_size_of("--packs", VALUE(p->n - 2), MATRIX_COUNT_MAX, &w->packs, err));
	return parse_size_of("--gpus", VALUE(p->n - 1), MATRIX_COUNT_MAX, &w->gpus, err);
#undef VALUE
}

int matrix_rows_of_lists(struct matrix_rows *r, const struct matrix_lists *l, struct vfm_err *err)
{
	struct product p = {0};
	size_t *at = vfm_calloc(AXES_BESIDE_SETS + (size_t)l->sets.n, sizeof(*at)), i;
	int rc = open_product(&p, l, err);

	r->is_product = true;
	while (rc == 0) {
		rc = row_of_product(r, &p, at, err);
		for (i = p.n; i-- > 0 && ++at[i] == p.v[i].list.n;)
			at[i] = 0;
		if (i == SIZE_MAX)
			break;
	}
	product_release(&p);
	free(at);
	return rc;
}

/* ---- files ---- */

static int read_one_value(const char *option, const char *list, int64_t *out, struct vfm_err *err)
{
	struct vfm_list l = {0};
	int rc = vfm_list_parse(&l, list, err) < 0 ? vfm_err_context(err, "%s", option)
		: l.n > 1 ? vfm_fail(err, VFM_EUSAGE, "%s: the rows of a file take one value, got '%s'", option, list)
			  : parse_size_of(option, l.v[0], MATRIX_COUNT_MAX, out, err);

	vfm_list_release(&l);
	return rc;
}

/* Refuses the lists that a file replaces. */
static int check_lists_of_file(const struct matrix_lists *l, struct vfm_err *err)
{
	const struct {
		const char *option;
		bool given;
	} lists[] = {{"--model", l->models}, {"--context", l->contexts}, {"--dtype", l->dtypes},
		{"--recompute", l->recomputes}, {"--set", l->sets.n > 0}};

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		if (lists[i].given)
			return vfm_fail(
				err, VFM_EUSAGE, "%s: the rows of a file have keys of their own", lists[i].option);
	return 0;
}

/* Sets packs and gpus of the rows that name none. */
static int set_row_defaults(struct matrix_rows *r, const struct matrix_lists *l, struct vfm_err *err)
{
	size_t no_packs = 0, no_gpus = 0, no_text = 0;
	int64_t packs, gpus;

	TRY(read_one_value("--packs", l->packs ? l->packs : "1", &packs, err));
	TRY(read_one_value("--gpus", l->gpus ? l->gpus : "1", &gpus, err));
	for (size_t i = 0; i < r->n; i++) {
		no_packs += !r->v[i].packs;
		no_gpus += !r->v[i].gpus;
		no_text += !r->v[i].text;
		r->v[i].packs = r->v[i].packs ? r->v[i].packs : packs;
		r->v[i].gpus = r->v[i].gpus ? r->v[i].gpus : gpus;
	}
	if ((l->packs && !no_packs) || (l->gpus && !no_gpus) || (l->text && !no_text))
		return vfm_fail(err, VFM_EUSAGE, "%s: every row of the file names its own",
			l->packs && !no_packs         ? "--packs"
				: l->gpus && !no_gpus ? "--gpus"
						      : "--text-len");
	return 0;
}

/* keys: those that it may have. */
static int row_from_json(struct matrix_rows *r, const json_t *o, const char *const *keys, struct vfm_err *err)
{
	const char *model, *key;
	json_t *v, *set = json_object_get(o, "set");
	int64_t tokens = 0;
	struct matrix_row *w;

	TRY(vfm_json_only_keys(o, "", keys, err));
	if (set && !json_is_object(set))
		return vfm_fail(err, VFM_EUSAGE, "set: expected an object of keys of the configuration");
	TRY(vfm_json_str(o, "", "model", true, &model, err));
	TRY(vfm_json_i64(o, "", "context", true, 1, CONTEXT_MAX, &tokens, err));
	w = row_new(r, model, tokens, err);
	if (!w)
		return err->code;
	TRY(vfm_json_i64(o, "", "gpus", false, 1, MATRIX_COUNT_MAX, &w->gpus, err));
	TRY(vfm_json_i64(o, "", "packs", false, 1, MATRIX_COUNT_MAX, &w->packs, err));
	TRY(vfm_json_i64(o, "", "text", false, 1, 65536, &w->text, err));
	json_object_foreach(set, key, v)
	{
		char *text = json_is_string(v) ? vfm_strdup(json_string_value(v)) : json_dumps(v, JSON_ENCODE_ANY);
		int rc = row_set(w, key, text, err);

		free(text);
		TRY(rc);
	}
	return 0;
}

static int add_json_row(void *rows, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "model", "context", "gpus", "packs", "text", "set", NULL};

	return row_from_json(rows, o, keys, err);
}

int matrix_rows_of_file(struct matrix_rows *r, const char *path, const struct matrix_lists *l, struct vfm_err *err)
{
	TRY(check_lists_of_file(l, err));
	return vfm_jsonl_each(path, add_json_row, r, err) < 0 ? VFM_EUSAGE : set_row_defaults(r, l, err);
}

/* ---- published figures ---- */

static int read_figure(const json_t *o, const char *key, bool required, double *out, struct vfm_err *err)
{
	TRY(vfm_json_f64(o, "", key, required, out, err));
	if (json_object_get(o, key) && !(*out > 0 && *out <= 1e9))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected more than 0, at most 1e9, got %g", key, *out);
	return 0;
}

static int read_published_row(struct matrix_rows *r, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"model", "context", "config", "gpus", "packs", "text", "set", "machine",
		"tflops_gpu", "tok_s_gpu", "oom", "software", "assumed", NULL};
	const char *config = NULL, *software = NULL, *assumed = NULL, *machine = NULL;
	const json_t *oom = json_object_get(o, "oom");
	struct matrix_row *w;

	TRY(row_from_json(r, o, keys, err));
	w = &r->v[r->n - 1];
	w->is_published = true;
	w->oom = json_is_true(oom);
	if (oom && !json_is_boolean(oom))
		return vfm_fail(err, VFM_EUSAGE, "oom: expected true or false");
	TRY(vfm_json_str(o, "", "config", false, &config, err));
	TRY(vfm_json_str(o, "", "software", false, &software, err));
	TRY(vfm_json_str(o, "", "assumed", false, &assumed, err));
	TRY(read_figure(o, "tflops_gpu", !w->oom, &w->tflops_gpu, err));
	TRY(read_figure(o, "tok_s_gpu", false, &w->tok_s_gpu, err));
	TRY(vfm_json_str(o, "", "machine", false, &machine, err));
	snprintf(w->machine, sizeof(w->machine), "%s", machine ? machine : "");
	if (config)
		snprintf(w->label, sizeof(w->label), "%s", config);
	w->software = software ? vfm_strdup(software) : NULL;
	return 0;
}

static int read_published_rows(struct matrix_rows *r, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "source", "machine", "rows", NULL};
	const char *source, *machine = NULL;
	json_t *list = json_object_get(o, "rows"), *row;
	int64_t v;
	size_t i;

	TRY(vfm_json_only_keys(o, "", keys, err));
	TRY(vfm_json_i64(o, "", "v", true, 1, 1, &v, err));
	TRY(vfm_json_str(o, "", "source", true, &source, err));
	TRY(vfm_json_str(o, "", "machine", false, &machine, err));
	if (!json_is_array(list) || json_array_size(list) == 0)
		return vfm_fail(err, VFM_EUSAGE, "rows: expected an array of rows");
	r->source = vfm_strdup(source);
	r->machine = machine ? vfm_strdup(machine) : NULL;
	json_array_foreach(list, i, row) if (read_published_row(r, row, err) < 0) return vfm_err_context(
		err, "rows[%zu]", i);
	return 0;
}

int matrix_rows_of_published(struct matrix_rows *r, const char *name, const struct matrix_lists *l, struct vfm_err *err)
{
	char *path;
	json_t *o;
	int rc;

	TRY(check_lists_of_file(l, err));
	path = vfm_installed_find("published", name, "VFM_PUBLISHED_DIR", err);
	o = path ? vfm_document_load(path, FILE_MAX, err) : NULL;
	rc = o ? read_published_rows(r, o, err) : VFM_EUSAGE;
	if (o && rc < 0)
		vfm_err_context(err, "%s", path);
	json_decref(o);
	free(path);
	return rc < 0 ? rc : set_row_defaults(r, l, err);
}

void matrix_rows_release(struct matrix_rows *r)
{
	for (size_t i = 0; i < r->n; i++)
		free(r->v[i].software);
	free(r->v);
	free(r->machine);
	free(r->source);
	*r = (struct matrix_rows){0};
}
