#include "train/run/run_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "media/draw/chart.h"
#include "media/draw/html.h"
#include "spec/model/linears.h"
#include "spec/model/model.h"
#include "train/job/config.h"
#include "train/run/run_log.h"
#include "train/run/run_samples.h"

enum { PICTURE_BYTES = 16 << 20 };

struct run_report {
	const struct vfm_run_report_opts *o;
	int n;
	struct vfm_run_log log[VFM_RUN_REPORT_RUNS];
	char *name[VFM_RUN_REPORT_RUNS];
	/* flat objects of texts, {"train.lr": "0.001"}; null: there is none */
	json_t *facts[VFM_RUN_REPORT_RUNS], *config[VFM_RUN_REPORT_RUNS], *identity[VFM_RUN_REPORT_RUNS];
	json_t *defaults;                    /* of the configuration */
	int64_t *marks[VFM_RUN_REPORT_RUNS]; /* steps of restarts */
	int n_marks[VFM_RUN_REPORT_RUNS];
};

/* ---- JSON objects as lists of keys ---- */

static void flatten_into(json_t *flat, const char *where, const json_t *v)
{
	struct vfm_buf text = {0};
	const char *key;
	json_t *x;

	if (json_is_object(v) && json_object_size(v)) {
		json_object_foreach((json_t *)(uintptr_t)v, key, x)
		{
			char *path = *where ? vfm_strfmt("%s.%s", where, key) : vfm_strdup(key);

			flatten_into(flat, path, x);
			free(path);
		}
		return;
	}
	if (json_is_string(v))
		vfm_buf_adds(&text, json_string_value(v));
	else
		vfm_json_text(&text, v, 0);
	json_object_set_new(flat, where, json_string(text.data ? text.data : ""));
	vfm_buf_release(&text);
}

static json_t *flatten_json(const json_t *o)
{
	json_t *flat = json_object();

	if (o)
		flatten_into(flat, "", o);
	return flat;
}

static const char *flat_text(const json_t *flat, const char *key)
{
	return json_string_value(json_object_get(flat, key));
}

/* ---- facts ---- */

static char *number_text(double x)
{
	char text[VFM_NUMBER_TEXT];

	return vfm_html_number(text, x) ? vfm_strdup(text) : NULL;
}

static char *count_text(int64_t n)
{
	struct vfm_buf b = {0};

	vfm_html_addf(&b, "%'lld", (long long)n);
	return b.data;
}

static double curve_sum(const struct vfm_run_log *l, const char *key)
{
	return l->sum[vfm_run_curve_of(key)];
}

static const struct vfm_trace *curve_trace(const struct vfm_run_log *l, const char *key)
{
	return &l->trace[vfm_run_curve_of(key)];
}

/* The share of the time of the steps. */
static char *share_text(const struct vfm_run_log *l, const char *key)
{
	double share = curve_sum(l, key) / curve_sum(l, "step_ms");

	return curve_trace(l, key)->n && isfinite(share) ? vfm_strfmt("%.1f %%", 100 * share) : NULL;
}

static char *steps_text(const struct vfm_run_log *l)
{
	int64_t planned = json_integer_value(json_object_get(json_object_get(l->identity, "plan"), "steps"));
	int64_t asked = json_integer_value(json_object_get(json_object_get(l->config, "train"), "steps"));

	struct vfm_buf b = {0};

	vfm_html_addf(&b, "%'lld", (long long)l->last);
	if (asked || planned)
		vfm_html_addf(&b, " of %'lld", (long long)(asked ? asked : planned));
	return b.data;
}

static char *time_text_of(const struct vfm_run_log *l)
{
	double s = curve_sum(l, "step_ms") / 1e3;
	int64_t minutes = (int64_t)(fmin(s, 1e12) / 60);

	if (s < 600)
		return vfm_strfmt("%.3g s", s);
	return vfm_strfmt("%lld:%02lld h", (long long)(minutes / 60), (long long)(minutes % 60));
}

static char *shape_text(const json_t *config)
{
	const char *arch = flat_text(config, "model.arch"), *layers = flat_text(config, "model.layers"),
		   *hidden = flat_text(config, "model.hidden");

	return arch && layers && hidden ? vfm_strfmt("%s, %s × %s", arch, layers, hidden) : NULL;
}

static double count_parameters(const json_t *config)
{
	struct vfm_err ignore = {0};
	struct vfm_config c;

	vfm_config_defaults(&c);
	if (!config || vfm_config_saved(&c, config, &ignore) < 0 || vfm_config_check(&c, &ignore) < 0)
		return NAN;
	return (double)vfm_model_params(&c.model);
}

/* text: owned by the list; NULL: none. */
static void add_fact(json_t *facts, const char *name, char *text)
{
	json_object_set_new(facts, name, text ? json_string(text) : json_null());
	free(text);
}

static json_t *list_facts(const struct vfm_run_log *l, const json_t *config)
{
	const struct vfm_trace *held_out = curve_trace(l, "held_out_loss");
	double ms = curve_sum(l, "step_ms"), best = INFINITY, worst = -INFINITY;
	json_t *f = json_object();

	vfm_trace_extend_range(held_out, &best, &worst);
	add_fact(f, "phase", l->phase ? vfm_strdup(l->phase) : NULL);
	add_fact(f, "model", shape_text(config));
	add_fact(f, "parameters", number_text(count_parameters(l->config)));
	add_fact(f, "steps", steps_text(l));
	add_fact(f, "first step", l->first > 1 ? count_text(l->first) : NULL);
	add_fact(f, "loss, recent mean", number_text(vfm_trace_recent(curve_trace(l, "loss"))));
	add_fact(f, "held-out loss, last", number_text(held_out->n ? held_out->last : NAN));
	add_fact(f, "held-out loss, best", number_text(best));
	add_fact(f, "tokens", number_text(l->tokens));
	add_fact(f, "samples", number_text(l->samples));
	add_fact(f, "time of the steps", time_text_of(l));
	add_fact(f, "tokens per second", number_text(l->tokens / ms * 1e3));
	add_fact(f, "model TFLOP/s per rank", number_text(l->tflop / ms * 1e3));
	add_fact(f, "wait for data, of the time", share_text(l, "data_wait_ms"));
	add_fact(f, "exposed communication", share_text(l, "comm_ms"));
	add_fact(f, "pipeline bubble", share_text(l, "bubble_ms"));
	add_fact(f, "stalls for copies", share_text(l, "copy_ms"));
	add_fact(f, "host", share_text(l, "host_ms"));
	add_fact(f, "steps that were not finite", count_text(l->not_finite));
	add_fact(f, "replaced samples", number_text(l->replaced));
	add_fact(f, "starts", l->n_starts ? count_text(l->n_starts) : NULL);
	add_fact(f, "newest checkpoint", l->checkpoint >= 0 ? count_text(l->checkpoint) : NULL);
	return f;
}

/* ---- reading ---- */

/* A restart is a start after the first one, or a step that does not follow the one before. */
static void collect_marks(struct run_report *r, int k)
{
	const struct vfm_run_log *l = &r->log[k];
	int64_t *m = vfm_calloc(VFM_RUN_STARTS + VFM_RUN_JUMPS, sizeof(*m));
	int n = 0;

	for (int i = 1; i < l->n_starts; i++)
		m[n++] = l->start[i].step;
	for (int i = 0; i < l->n_jumps && i < VFM_RUN_JUMPS; i++)
		m[n++] = l->jump[i].to;
	r->marks[k] = m;
	r->n_marks[k] = n;
}

/* A run has the name of its folder; if another one has it too, that of the operand. */
static void name_runs(struct run_report *r)
{
	for (int k = 0; k < r->n; k++) {
		bool unique = true;

		for (int i = 0; i < r->n; i++)
			unique = unique && (i == k || strcmp(r->log[i].name, r->log[k].name) != 0);
		r->name[k] = vfm_strdup(unique ? r->log[k].name : r->o->runs[k]);
	}
}

static int read_runs(struct run_report *r, struct vfm_err *err)
{
	struct vfm_config c;
	json_t *defaults;

	for (; r->n < r->o->n; r->n++) {
		int k = r->n, rc = vfm_run_log_read(&r->log[k], r->o->runs[k], err);

		if (rc < 0) {
			vfm_run_log_release(&r->log[k]);
			return rc;
		}
		r->config[k] = flatten_json(r->log[k].config);
		r->identity[k] = flatten_json(r->log[k].identity);
		r->facts[k] = list_facts(&r->log[k], r->config[k]);
		collect_marks(r, k);
	}
	name_runs(r);
	vfm_config_defaults(&c);
	defaults = vfm_config_to_json(&c);
	r->defaults = flatten_json(defaults);
	json_decref(defaults);
	return 0;
}

static void release_runs(struct run_report *r)
{
	for (int k = 0; k < r->n; k++) {
		vfm_run_log_release(&r->log[k]);
		json_decref(r->facts[k]);
		json_decref(r->config[k]);
		json_decref(r->identity[k]);
		free(r->marks[k]);
		free(r->name[k]);
	}
	json_decref(r->defaults);
}

/* ---- tables with a column for each run ---- */

static void add_run_name(const struct run_report *r, struct vfm_buf *b, int k)
{
	vfm_html_swatch(b, k);
	vfm_html_addf(b, "%s", r->name[k]);
}

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

/* Whether the runs differ in a key; a run alone is compared with the defaults. */
static bool differs(const struct run_report *r, json_t *const *flat, const json_t *defaults, const char *key)
{
	const char *first = flat_text(flat[0], key);

	if (r->n == 1)
		return defaults && !same_text(first, flat_text(defaults, key));
	for (int k = 1; k < r->n; k++)
		if (!same_text(first, flat_text(flat[k], key)))
			return true;
	return false;
}

/* Returns the keys of all runs, in the order in which they come; the caller frees the object. */
static json_t *all_keys(const struct run_report *r, json_t *const *flat)
{
	json_t *all = json_object(), *v;
	const char *key;

	for (int k = 0; k < r->n; k++)
		json_object_foreach(flat[k], key, v)
		{
			json_object_set(all, key, v);
		}
	return all;
}

static bool has_text(const struct run_report *r, json_t *const *flat, const char *key)
{
	bool any = false;

	for (int k = 0; k < r->n; k++)
		any = any || flat_text(flat[k], key);
	return any;
}

/* A row for each key that a run has, or only for those that differ, under a heading.  Returns the number of rows. */
static int add_key_table(const struct run_report *r, struct vfm_buf *b, const char *heading, json_t *const *flat,
	const json_t *defaults, bool all)
{
	json_t *keys = all_keys(r, flat), *v;
	const char *key;
	int rows = 0;

	vfm_html_addf(b, "<div class=wide><table>\n<tr><th>%s", heading);
	vfm_buf_adds(b, defaults ? "<th>default" : "");
	for (int k = 0; k < r->n; k++) {
		vfm_buf_adds(b, "<th>");
		add_run_name(r, b, k);
	}
	json_object_foreach(keys, key, v)
	{
		if (!has_text(r, flat, key) || (!all && !differs(r, flat, defaults, key)))
			continue;
		rows++;
		vfm_html_addf(b, "\n<tr><td>%s", key);
		if (defaults)
			vfm_html_addf(b, "<td class=dim>%s", flat_text(defaults, key));
		for (int k = 0; k < r->n; k++)
			vfm_html_addf(b, "<td>%s", flat_text(flat[k], key));
	}
	vfm_buf_adds(b, "\n");
	vfm_html_table_end(b);
	json_decref(keys);
	return rows;
}

/* A table of all facts; of a run alone, the most important ones are cards. */
static void add_facts(const struct run_report *r, struct vfm_buf *b)
{
	static const char *const cards[] = {"phase", "parameters", "steps", "loss, recent mean", "held-out loss, last",
		"held-out loss, best", "tokens", "time of the steps", "tokens per second", "model TFLOP/s per rank"};

	vfm_buf_adds(b, "<div class=cards>\n");
	for (size_t i = 0; r->n == 1 && i < sizeof(cards) / sizeof(cards[0]); i++) {
		if (has_text(r, r->facts, cards[i]))
			vfm_html_card(b, cards[i], "%s", flat_text(r->facts[0], cards[i]));
		json_object_del(r->facts[0], cards[i]);
	}
	vfm_buf_adds(b, "</div>\n");
	add_key_table(r, b, "", r->facts, NULL, true);
}

static bool has_keys(const struct run_report *r, json_t *const *flat)
{
	bool any = false;

	for (int k = 0; k < r->n; k++)
		any = any || json_object_size(flat[k]);
	return any;
}

static void add_config_section(const struct run_report *r, struct vfm_buf *b)
{
	if (!has_keys(r, r->config))
		return;
	vfm_html_addf(b, "<h2>Configuration</h2>\n<p class=dim>Keys %s.</p>\n",
		r->n > 1 ? "in which the runs differ" : "that are not at their defaults");
	if (!add_key_table(r, b, "key", r->config, r->defaults, false))
		vfm_buf_adds(b, "<p>None.</p>\n");
	vfm_buf_adds(b, "<details><summary>All keys</summary>\n");
	add_key_table(r, b, "key", r->config, r->defaults, true);
	vfm_buf_adds(b, "</details>\n");
}

static void add_identity_section(const struct run_report *r, struct vfm_buf *b)
{
	if (!has_keys(r, r->identity))
		return;
	vfm_buf_adds(b, "<h2>Identity</h2>\n<p class=dim>Plan, encoders and initial weights (run.json).</p>\n");
	add_key_table(r, b, "key", r->identity, NULL, true);
}

static void add_failures(const struct run_report *r, struct vfm_buf *b)
{
	for (int k = 0; k < r->n; k++) {
		if (r->log[k].failure)
			vfm_html_addf(b, "<p class=failed><b>%s</b> ended with an error: %s</p>\n", r->name[k],
				r->log[k].failure);
		if (r->log[k].cut)
			vfm_html_addf(b,
				"<p class=dim><b>%s</b>: the last line of metrics.jsonl has no end and is left out; "
				"the run is at work, or was killed.</p>\n",
				r->name[k]);
	}
}

/* ---- curves ---- */

static bool has_curve(const struct run_report *r, int i)
{
	bool any = false;

	for (int k = 0; k < r->n; k++)
		any = any ||
			(r->log[k].trace[i].n &&
				(!(vfm_run_curves[i].flags & VFM_CURVE_IF_ANY) || r->log[k].sum[i] != 0));
	return any;
}

static void add_run_chart(const struct run_report *r, struct vfm_buf *b, int i)
{
	const struct vfm_run_curve *c = &vfm_run_curves[i];
	struct vfm_curve curves[VFM_RUN_REPORT_RUNS];
	struct vfm_chart chart = {.title = c->title,
		.note = c->note,
		.may_log = c->flags & VFM_CURVE_LOG,
		.from_zero = c->flags & VFM_CURVE_ZERO,
		.percent = c->flags & VFM_CURVE_PERCENT,
		.smooth = c->flags & VFM_CURVE_SMOOTH,
		.lo = r->log[0].first,
		.hi = r->log[0].last,
		.curves = curves,
		.n = r->n};

	for (int k = 0; k < r->n; k++) {
		chart.lo = r->log[k].first < chart.lo ? r->log[k].first : chart.lo;
		chart.hi = r->log[k].last > chart.hi ? r->log[k].last : chart.hi;
		curves[k] = (struct vfm_curve){.name = r->name[k],
			.trace = &r->log[k].trace[i],
			.marks = r->marks[k],
			.n_marks = r->n_marks[k]};
	}
	vfm_chart_html(b, &chart);
}

/* The held-out losses of the last evaluation over the noise levels, which all runs with the same eval.times share. */
static void add_level_chart(const struct run_report *r, struct vfm_buf *b)
{
	struct vfm_curve curves[VFM_RUN_REPORT_RUNS];
	struct vfm_chart chart = {.title = "Held-out loss by noise level",
		.note = "last evaluation, from little noise to much",
		.may_log = true,
		.lo = 1,
		.hi = 1,
		.curves = curves,
		.n = r->n};
	bool any = false;

	for (int k = 0; k < r->n; k++) {
		const struct vfm_trace *t = &r->log[k].levels;

		curves[k] = (struct vfm_curve){.name = r->name[k], .trace = t};
		for (int i = 0; t->n && i < VFM_TRACE_COLUMNS; i++)
			if (t->column[i].n && t->first + i * t->width > chart.hi)
				chart.hi = t->first + i * t->width;
		any = any || t->n;
	}
	if (any)
		vfm_chart_html(b, &chart);
}

static void add_curve_section(const struct run_report *r, struct vfm_buf *b)
{
	bool marks = false;

	for (int k = 0; k < r->n; k++)
		marks = marks || r->n_marks[k];
	vfm_html_addf(b,
		"<h2>Curves</h2>\n<p class=dim>Over the steps. Pale: all values, or the extremes of adjacent steps; "
		"in front of them the moving average over a fortieth of the run.%s</p>\n<div class=charts>\n",
		marks ? " Dotted lines: restarts." : "");
	for (int i = 0; i < VFM_RUN_CURVES; i++)
		if (has_curve(r, i)) {
			add_run_chart(r, b, i);
			if (i == vfm_run_curve_of("held_out_loss"))
				add_level_chart(r, b);
		}
	vfm_buf_adds(b, "</div>\n");
}

/* ---- starts ---- */

static void add_start_rows(const struct run_report *r, struct vfm_buf *b, int k)
{
	const struct vfm_run_log *l = &r->log[k];

	for (int i = 0; i < l->n_starts; i++) {
		time_t t = (time_t)fmin(fmax(l->start[i].time, 0), 1e11);
		char text[64] = "";
		struct tm tm;

		if (gmtime_r(&t, &tm))
			strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm);
		vfm_buf_adds(b, "<tr><td>");
		add_run_name(r, b, k);
		vfm_html_addf(
			b, "<td>%s<td class=num>%'lld<td>%s\n", text, (long long)l->start[i].step, l->start[i].host);
	}
}

static void add_jumps(const struct run_report *r, struct vfm_buf *b, int k)
{
	const struct vfm_run_log *l = &r->log[k];

	for (int i = 0; i < l->n_jumps && i < VFM_RUN_JUMPS; i++)
		vfm_html_addf(b, "<li>%s, line %lld: step %lld follows step %lld\n", l->metrics,
			(long long)l->jump[i].line, (long long)l->jump[i].to, (long long)l->jump[i].from);
	if (l->n_jumps > VFM_RUN_JUMPS)
		vfm_html_addf(b, "<li>and %lld more\n", (long long)(l->n_jumps - VFM_RUN_JUMPS));
}

static void add_start_section(const struct run_report *r, struct vfm_buf *b)
{
	int64_t starts = 0, jumps = 0;

	for (int k = 0; k < r->n; k++) {
		starts += r->log[k].n_starts;
		jumps += r->log[k].n_jumps;
	}
	if (!starts && !jumps)
		return;
	vfm_buf_adds(b, "<h2>Starts</h2>\n");
	if (starts) {
		vfm_html_table(b, "run|time|#first step|host");
		for (int k = 0; k < r->n; k++)
			add_start_rows(r, b, k);
		vfm_html_table_end(b);
	}
	if (jumps) {
		vfm_buf_adds(b, "<h3>Steps that do not follow the one before</h3>\n<ul>\n");
		for (int k = 0; k < r->n; k++)
			add_jumps(r, b, k);
		vfm_buf_adds(b, "</ul>\n");
	}
}

/* ---- the page ---- */

static void add_sample_section(const struct run_report *r, struct vfm_buf *b)
{
	size_t room = PICTURE_BYTES;
	struct vfm_buf all = {0};

	for (int k = 0; k < r->n; k++) {
		struct vfm_buf one = {0};

		if (vfm_run_samples_html(&one, r->log[k].dir, r->o->page_dir, &room)) {
			vfm_buf_adds(&all, "<h3>");
			add_run_name(r, &all, k);
			vfm_buf_adds(&all, "</h3>\n");
			vfm_buf_add(&all, one.data, one.len);
		}
		vfm_buf_release(&one);
	}
	if (all.len) {
		vfm_buf_adds(b, "<h2>Samples</h2>\n");
		vfm_buf_add(b, all.data, all.len);
	}
	vfm_buf_release(&all);
}

int vfm_run_report(struct vfm_buf *b, const struct vfm_run_report_opts *o, struct vfm_err *err)
{
	struct run_report r = {.o = o};
	int rc;

	if (o->n < 1 || o->n > VFM_RUN_REPORT_RUNS)
		return vfm_fail(err, VFM_EUSAGE, "expected 1 to %d runs, got %d", VFM_RUN_REPORT_RUNS, o->n);
	rc = read_runs(&r, err);
	if (rc == 0) {
		vfm_html_begin(b, r.n == 1 ? r.name[0] : "Training runs", 0);
		add_failures(&r, b);
		add_facts(&r, b);
		add_curve_section(&r, b);
		add_config_section(&r, b);
		add_start_section(&r, b);
		add_sample_section(&r, b);
		add_identity_section(&r, b);
		vfm_html_end(b);
	}
	release_runs(&r);
	return rc;
}
