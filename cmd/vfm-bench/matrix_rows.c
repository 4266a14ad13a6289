/* The rows of vfm-bench matrix. */
#include "matrix_rows.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/share.h"
#include "train/bench.h"

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

/* Copies word i of "a,b,c"; false if the list is shorter. */
static bool word(const char *list, int i, char *out, size_t len)
{
	for (; i > 0; i--) {
		list = strchr(list, ',');
		if (!list)
			return false;
		list++;
	}
	snprintf(out, len, "%.*s", (int)strcspn(list, ","), list);
	return true;
}

int matrix_rows_of_lists(struct matrix_rows *r, const struct matrix_lists *l, struct vfm_err *err)
{
	char m[32], c[32], d[16], rc[16];
	int64_t tokens;

	for (int i = 0; word(l->models, i, m, sizeof(m)); i++) {
		for (int j = 0; word(l->contexts, j, c, sizeof(c)); j++) {
			TRY(vfm_parse_size(c, &tokens, err) < 0 ? vfm_err_context(err, "--context") : 0);
			for (int k = 0; word(l->dtypes, k, d, sizeof(d)); k++) {
				for (int n = 0; word(l->recomputes, n, rc, sizeof(rc)); n++) {
					struct matrix_row *w = row_new(r, m, tokens, err);

					if (!w)
						return err->code;
					TRY(row_set(w, "train.dtype", d, err));
					if (strcmp(rc, "none") != 0)
						TRY(row_set(w, "train.recompute", rc, err));
				}
			}
		}
	}
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
	TRY(vfm_json_i64(o, "", "context", true, 1, 1 << 26, &tokens, err));
	w = row_new(r, model, tokens, err);
	if (!w)
		return err->code;
	TRY(vfm_json_i64(o, "", "gpus", false, 1, 1 << 20, &w->gpus, err));
	TRY(vfm_json_i64(o, "", "packs", false, 1, 1 << 20, &w->packs, err));
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

int matrix_rows_of_file(struct matrix_rows *r, const char *path, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "model", "context", "gpus", "packs", "text", "set", NULL};
	struct vfm_jsonl in = {0};
	json_t *o;
	int rc;

	TRY(vfm_jsonl_open(&in, path, err));
	while ((rc = vfm_jsonl_next(&in, &o, err)) == 1) {
		rc = row_from_json(r, o, keys, err);
		json_decref(o);
		if (rc < 0) {
			vfm_err_context(err, "%s:%lld", path, (long long)in.line);
			break;
		}
	}
	vfm_jsonl_close(&in);
	return rc < 0 ? VFM_EUSAGE : 0;
}

/* ---- published figures ---- */

static int read_figure(const json_t *o, const char *key, bool required, double *out, struct vfm_err *err)
{
	TRY(vfm_json_f64(o, "", key, required, out, err));
	if (!(*out >= 0 && *out <= 1e9))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected 0 to 1e9, got %g", key, *out);
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

int matrix_rows_of_published(struct matrix_rows *r, const char *name, struct vfm_err *err)
{
	char *path = vfm_share_find("published", name, "VFM_PUBLISHED_DIR", err);
	json_t *o = path ? vfm_json_load(path, FILE_MAX, err) : NULL;
	int rc = o ? read_published_rows(r, o, err) : VFM_EUSAGE;

	if (o && rc < 0)
		vfm_err_context(err, "%s", path);
	json_decref(o);
	free(path);
	return rc;
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
