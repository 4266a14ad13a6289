/* matrix_compare.c - reads an earlier matrix document, matches its rows by name and marks changes beyond the spread. */
#include "predict/matrix_compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"

enum {
	FILE_MAX = 1 << 26,
	LISTED_MAX = 4, /* rows that a note names */
	STEPS_MIN = 3,  /* with fewer, the range of the steps says nothing about their spread */
};

/* The keys of a row that is compared. */
static const char *const identity[] = {"model", "context", "config", "gpus", "gbs", "mbs", "layout"};
enum { IDENTITY = sizeof(identity) / sizeof(identity[0]) };

/* A row of either table. */
struct figures {
	json_t *row;                /* owned */
	double tflops_gpu, step_ms; /* 0: none */
	double spread_pct;          /* NaN: none */
	int64_t gpus, n, threads;   /* 0: none */
	bool predicted, used;
};

struct matrix_old {
	char *path;
	json_t *notes;     /* an array; NULL: --format jsonl, which has none */
	struct figures *v; /* [n] */
	size_t n;
	size_t compared, spreads_known, other_work, other_threads, other_kind;
	struct vfm_buf only_new; /* names of rows */
	size_t n_only_new;
};

/* ---- reading ---- */

static int read_positive(const json_t *row, const char *where, const char *key, double *out, struct vfm_err *err)
{
	TRY(vfm_json_f64(row, where, key, false, out, err));
	return !(*out < 0)
		? 0
		: vfm_fail(err, VFM_EUSAGE, "%s%s%s: expected a number of at least 0", where, *where ? "." : "", key);
}

/* A document and each line of JSON Lines name the version; rows of a document do not. */
static int check_old_version(const json_t *o, const char *where, struct vfm_err *err)
{
	const json_t *v = json_object_get(o, "v");

	return !v || (json_is_integer(v) && json_integer_value(v) == 1)
		? 0
		: vfm_fail(err, VFM_EUSAGE, "%s%sv: expected the version 1", where, *where ? "." : "");
}

/* Fills *f, which shares the ownership of `row`. */
static int read_figures(json_t *row, const char *where, struct figures *f, struct vfm_err *err)
{
	const char *how, *text;
	int64_t count;

	if (!json_is_object(row))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	TRY(check_old_version(row, where, err));
	for (size_t i = 0; i < IDENTITY; i++) {
		const char *k = identity[i];
		bool is_text = !strcmp(k, "model") || !strcmp(k, "config") || !strcmp(k, "layout");

		TRY(is_text ? vfm_json_str(row, where, k, strcmp(k, "layout") != 0, &text, err)
			    : vfm_json_i64(row, where, k, true, 0, INT64_MAX, &count, err));
	}
	TRY(vfm_json_i64(row, where, "gpus", true, 1, INT64_MAX, &f->gpus, err));
	f->spread_pct = NAN;
	TRY(vfm_json_str(row, where, "how", true, &how, err));
	TRY(read_positive(row, where, "tflops_gpu", &f->tflops_gpu, err));
	TRY(read_positive(row, where, "step_ms", &f->step_ms, err));
	TRY(read_positive(row, where, "spread_pct", &f->spread_pct, err));
	TRY(vfm_json_i64(row, where, "n", false, 0, INT64_MAX, &f->n, err));
	TRY(vfm_json_i64(row, where, "threads", false, 0, INT64_MAX, &f->threads, err));
	f->predicted = !strcmp(how, "predicted");
	f->row = json_incref(row);
	return 0;
}

static int read_old_rows(struct matrix_old *o, const json_t *rows, struct vfm_err *err)
{
	size_t i;
	json_t *row;

	if (json_array_size(rows) == 0)
		return vfm_fail(err, VFM_EUSAGE, "rows: expected an array of rows");
	o->v = vfm_calloc(json_array_size(rows) + 1, sizeof(*o->v));
	json_array_foreach((json_t *)rows, i, row)
	{
		char where[32];

		snprintf(where, sizeof(where), "rows[%zu]", i);
		TRY(read_figures(row, where, &o->v[i], err));
		o->n++;
	}
	return 0;
}

/* Returns {"rows": [...]} of JSON Lines; NULL on failure. */
static json_t *parse_old_lines(const char *text, const char *path, struct vfm_err *err)
{
	json_t *doc = json_object(), *rows = json_array(), *row;

	json_object_set_new(doc, "rows", rows);
	for (const char *s = text; *s; s += strspn(s, " \t\r\n")) {
		size_t n = strcspn(s, "\n");
		char *what = vfm_strfmt("%s: row %zu", path, json_array_size(rows) + 1);

		row = vfm_json_parse(s, n, what, err);
		free(what);
		if (!row) {
			json_decref(doc);
			return NULL;
		}
		json_array_append_new(rows, row);
		s += n;
	}
	return doc;
}

/* Parses a document that has rows, or JSON Lines, whose first line is a row.  Reads the file once: it may be a pipe. */
static json_t *load_old_document(const char *path, struct vfm_err *err)
{
	struct vfm_err unused;
	json_t *first, *doc;
	char *text = NULL;
	const char *start;
	size_t len;

	if (vfm_read_file(path, FILE_MAX, &text, &len, err) < 0)
		return NULL;
	start = text + strspn(text, " \t\r\n");
	first = strlen(text) == len ? vfm_json_parse(start, strcspn(start, "\n"), path, &unused) : NULL;
	doc = first && !json_object_get(first, "rows") ? parse_old_lines(start, path, err)
						       : vfm_json_parse(text, len, path, err);
	json_decref(first);
	free(text);
	return doc;
}

static int read_old_document(struct matrix_old *o, const json_t *doc, struct vfm_err *err)
{
	json_t *notes = json_object_get(doc, "notes"), *note;
	size_t i;

	TRY(check_old_version(doc, "", err));
	TRY(read_old_rows(o, json_object_get(doc, "rows"), err));
	if (notes && !json_is_array(notes))
		return vfm_fail(err, VFM_EUSAGE, "notes: expected an array of texts");
	json_array_foreach(notes, i, note)
	{
		if (!json_is_string(note))
			return vfm_fail(err, VFM_EUSAGE, "notes[%zu]: expected a text", i);
	}
	o->notes = json_incref(notes);
	return 0;
}

int matrix_old_load(struct matrix_old **out, const char *path, struct vfm_err *err)
{
	struct matrix_old *o = vfm_calloc(1, sizeof(*o));
	json_t *doc = load_old_document(path, err);
	int rc = !doc ? err->code : read_old_document(o, doc, err) < 0 ? vfm_err_context(err, "%s", path) : 0;

	o->path = vfm_strdup(path);
	json_decref(doc);
	if (rc < 0) {
		matrix_old_free(o);
		return err->code = rc == VFM_EENV ? rc : VFM_EUSAGE;
	}
	*out = o;
	return 0;
}

void matrix_old_free(struct matrix_old *o)
{
	if (!o)
		return;
	for (size_t i = 0; i < o->n; i++)
		json_decref(o->v[i].row);
	free(o->v);
	json_decref(o->notes);
	vfm_buf_release(&o->only_new);
	free(o->path);
	free(o);
}

/* ---- comparing ---- */

static bool same_value(const json_t *a, const json_t *b)
{
	if (json_is_number(a) && json_is_number(b))
		return json_number_value(a) == json_number_value(b);
	return (!a || json_is_null(a)) ? !b || json_is_null(b) : json_equal(a, b);
}

static struct figures *find_old(struct matrix_old *o, const json_t *row)
{
	for (size_t i = 0; i < o->n; i++) {
		size_t k = 0;

		while (k < IDENTITY &&
			same_value(json_object_get(row, identity[k]), json_object_get(o->v[i].row, identity[k])))
			k++;
		if (k == IDENTITY && !o->v[i].used)
			return &o->v[i];
	}
	return NULL;
}

/* Appends "dit-s 1024 bf16 (8 GPUs dp=8)". */
static void name_row(struct vfm_buf *b, const json_t *row)
{
	const char *layout = json_string_value(json_object_get(row, "layout"));
	long long gpus = (long long)json_number_value(json_object_get(row, "gpus"));

	vfm_buf_addf(b, "%s%s %lld %s (%lld GPU%s%s%s)", b->len ? "; " : "",
		json_string_value(json_object_get(row, "model")),
		(long long)json_number_value(json_object_get(row, "context")),
		json_string_value(json_object_get(row, "config")), gpus, gpus == 1 ? "" : "s", layout ? " " : "",
		layout ? layout : "");
}

/* Returns whether the steps of both do the same work: model FLOPs are rate times duration. */
static bool same_work(const struct figures *a, const struct figures *b)
{
	double x = a->tflops_gpu * a->step_ms, y = b->tflops_gpu * b->step_ms;

	return fabs(x - y) <= 1e-6 * y;
}

/* Returns "yes" if the medians differ by more than the ranges of both together: the intervals from the fastest to the
 * slowest step, wherever they lie about the medians, are then disjoint.  NULL: not known. */
static const char *exceeds_spread(const struct figures *a, const struct figures *b)
{
	double ranges = a->spread_pct / 100 * a->step_ms + b->spread_pct / 100 * b->step_ms;

	if (a->predicted || b->predicted || a->n < STEPS_MIN || b->n < STEPS_MIN || isnan(ranges))
		return NULL;
	return fabs(a->step_ms - b->step_ms) > ranges ? "yes" : "no";
}

static void compare_figures(
	struct matrix_old *o, const struct figures *was, const struct figures *is, struct vfm_table *t)
{
	const char *beyond;

	o->compared++;
	o->other_threads += was->threads && is->threads && was->threads != is->threads;
	if (was->tflops_gpu > 0)
		vfm_table_f64(t, "old_tflops_gpu", was->tflops_gpu);
	if (!(was->tflops_gpu > 0 && is->tflops_gpu > 0 && was->step_ms > 0))
		return;
	o->other_kind += was->predicted != is->predicted;
	if (!same_work(was, is)) {
		o->other_work++;
		return;
	}
	vfm_table_f64(t, "change_pct", (is->tflops_gpu / was->tflops_gpu - 1) * 100);
	beyond = exceeds_spread(was, is);
	vfm_table_str(t, "beyond_spread", beyond);
	o->spreads_known += beyond != NULL;
}

void matrix_old_cells(struct matrix_old *o, struct vfm_table *t)
{
	json_t *row = vfm_table_last_row(t);
	struct figures *was = find_old(o, row), is = {0};
	struct vfm_err err;

	if (was && read_figures(row, "", &is, &err) == 0) {
		was->used = true;
		compare_figures(o, was, &is, t);
		json_decref(is.row);
	} else {
		if (o->n_only_new++ < LISTED_MAX)
			name_row(&o->only_new, row);
	}
	json_decref(row);
}

/* ---- notes ---- */

/* Returns the length of the part of a note that names a machine, without the version of the program; 0: it names
 * none. */
static size_t machine_length(const char *note)
{
	static const char *const kinds[] = {"device ", "measured on ", "predicted for the machine "};
	const char *end = strstr(note, "; vfm ");

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strncmp(note, kinds[i], strlen(kinds[i])))
			return end ? (size_t)(end - note) : strlen(note);
	return 0;
}

/* Adds a note for each machine or device of the old table that the new one, of n notes, does not name. */
static void note_machines(const struct matrix_old *o, struct vfm_table *t, size_t n)
{
	json_t *note;
	size_t i;

	if (!o->notes)
		vfm_table_note(
			t, "%s names no machine (--format json does): CPU and device may have been others", o->path);
	json_array_foreach(o->notes, i, note)
	{
		const char *old = json_string_value(note);
		size_t len = machine_length(old), k = 0, count;
		const char *const *new = vfm_table_notes(t, &count);

		while (k < n && !(machine_length(new[k]) == len && !strncmp(new[k], old, len)))
			k++;
		if (len && k == n)
			vfm_table_note(t, "warning: another machine or device in %s: %.*s", o->path, (int)len, old);
	}
}

static void note_counts(const struct matrix_old *o, struct vfm_table *t)
{
	if (o->other_threads)
		vfm_table_note(t, "warning: %zu rows had another number of threads", o->other_threads);
	if (o->other_kind)
		vfm_table_note(t, "%zu rows compare a prediction with a measurement", o->other_kind);
	if (o->other_work)
		vfm_table_note(t,
			"warning: %zu rows have other FLOPs per step (another --text-len or version), and no change",
			o->other_work);
}

static void note_unmatched(const struct matrix_old *o, struct vfm_table *t)
{
	struct vfm_buf names = {0};
	size_t n = 0;

	if (o->n_only_new)
		vfm_table_note(t, "%zu rows are not in %s: %s%s", o->n_only_new, o->path, o->only_new.data,
			o->n_only_new > LISTED_MAX ? "; ..." : "");
	for (size_t i = 0; i < o->n; i++)
		if (!o->v[i].used && n++ < LISTED_MAX)
			name_row(&names, o->v[i].row);
	if (n)
		vfm_table_note(
			t, "%zu rows are only in %s: %s%s", n, o->path, names.data, n > LISTED_MAX ? "; ..." : "");
	vfm_buf_release(&names);
}

void matrix_old_notes(const struct matrix_old *o, struct vfm_table *t)
{
	size_t n;

	vfm_table_notes(t, &n);
	vfm_table_note(t, "old: TFLOP/s/GPU of %s; change: relative to old; %zu rows compared", o->path, o->compared);
	if (o->spreads_known)
		vfm_table_note(t,
			"beyond spread: the medians of the steps differ by more than both ranges (max - min) together");
	note_machines(o, t, n);
	note_counts(o, t);
	note_unmatched(o, t);
}
