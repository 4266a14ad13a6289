#include "train/run/run_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "media/draw/html.h"
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
	json_t *config[VFM_RUN_REPORT_RUNS], *identity[VFM_RUN_REPORT_RUNS]; /* flat: {"train.lr": "0.001"} */
	json_t *defaults;                                                    /* of the configuration, flat */
	int64_t *marks[VFM_RUN_REPORT_RUNS];                                 /* steps of restarts */
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
		json_decref(r->config[k]);
		json_decref(r->identity[k]);
		free(r->marks[k]);
		free(r->name[k]);
	}
	json_decref(r->defaults);
}

/* ---- tables with a column for each run ---- */

static void add_run_head(const struct run_report *r, struct vfm_buf *b, const char *first, const char *second)
{
	vfm_buf_addf(b, "<div class=\"wide\"><table>\n<tr><th>%s</th>", first);
	if (second)
		vfm_buf_addf(b, "<th>%s</th>", second);
	for (int k = 0; k < r->n; k++) {
		vfm_buf_adds(b, "<th>");
		vfm_html_swatch(b, k);
		vfm_buf_adds(b, " ");
		vfm_html_text(b, r->name[k]);
		vfm_buf_adds(b, "</th>");
	}
	vfm_buf_adds(b, "</tr>\n");
}

static void add_cell(struct vfm_buf *b, const char *text, const char *kind)
{
	vfm_buf_addf(b, "<td%s>", kind);
	vfm_html_text(b, text ? text : "\xe2\x80\x93");
	vfm_buf_adds(b, "</td>");
}

static void add_key_row(
	const struct run_report *r, struct vfm_buf *b, json_t *const *flat, const json_t *defaults, const char *key)
{
	vfm_buf_adds(b, "<tr>");
	add_cell(b, key, "");
	if (defaults)
		add_cell(b, flat_text(defaults, key), " class=\"dim\"");
	for (int k = 0; k < r->n; k++)
		add_cell(b, flat_text(flat[k], key), "");
	vfm_buf_adds(b, "</tr>\n");
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

/* Returns the number of rows. */
static int add_key_table(
	const struct run_report *r, struct vfm_buf *b, json_t *const *flat, const json_t *defaults, bool all)
{
	json_t *keys = all_keys(r, flat), *v;
	const char *key;
	int rows = 0;

	json_object_foreach(keys, key, v)
	{
		if (!all && !differs(r, flat, defaults, key))
			continue;
		if (!rows++)
			add_run_head(r, b, "key", defaults ? "default" : NULL);
		add_key_row(r, b, flat, defaults, key);
	}
	vfm_buf_adds(b, rows ? "</table></div>\n" : "");
	json_decref(keys);
	return rows;
}

static void add_config_section(const struct run_report *r, struct vfm_buf *b)
{
	bool any = false;

	for (int k = 0; k < r->n; k++)
		any = any || r->log[k].config;
	if (!any)
		return;
	vfm_buf_adds(b, "<h2>Configuration</h2>\n");
	vfm_buf_adds(b,
		r->n > 1 ? "<p class=\"dim\">Keys in which the runs differ.</p>\n"
			 : "<p class=\"dim\">Keys that are not at their defaults.</p>\n");
	if (!add_key_table(r, b, r->config, r->defaults, false))
		vfm_buf_adds(b, "<p>None.</p>\n");
	vfm_buf_adds(b, "<details><summary>All keys</summary>\n");
	add_key_table(r, b, r->config, r->defaults, true);
	vfm_buf_adds(b, "</details>\n");
}

static void add_identity_section(const struct run_report *r, struct vfm_buf *b)
{
	bool any = false;

	for (int k = 0; k < r->n; k++)
		any = any || r->log[k].identity;
	if (!any)
		return;
	vfm_buf_adds(b, "<h2>Identity</h2>\n<p class=\"dim\">Plan, encoders and initial weights (run.json).</p>\n");
	add_key_table(r, b, r->identity, NULL, true);
}

/* ---- facts ---- */

/* Writes a fact about a run; false: there is none. */
typedef bool (*run_fact)(struct vfm_buf *b, const struct run_report *r, int k);

static double curve_sum(const struct vfm_run_log *l, const char *key)
{
	return l->sum[vfm_run_curve_of(key)];
}

static const struct vfm_trace *curve_trace(const struct vfm_run_log *l, const char *key)
{
	return &l->trace[vfm_run_curve_of(key)];
}

static bool fact_number(struct vfm_buf *b, double x)
{
	if (isfinite(x))
		vfm_html_number(b, x);
	return isfinite(x);
}

static bool fact_steps(struct vfm_buf *b, const struct run_report *r, int k)
{
	const json_t *plan = json_object_get(r->log[k].identity, "plan");
	int64_t planned = json_integer_value(json_object_get(plan, "steps"));
	int64_t asked = json_integer_value(json_object_get(json_object_get(r->log[k].config, "train"), "steps"));
	int64_t total = asked ? asked : planned;

	vfm_html_count(b, r->log[k].last);
	if (total) {
		vfm_buf_adds(b, " of ");
		vfm_html_count(b, total);
	}
	return true;
}

static bool fact_first(struct vfm_buf *b, const struct run_report *r, int k)
{
	if (r->log[k].first > 1)
		vfm_html_count(b, r->log[k].first);
	return r->log[k].first > 1;
}

static bool fact_model(struct vfm_buf *b, const struct run_report *r, int k)
{
	const char *arch = flat_text(r->config[k], "model.arch"), *layers = flat_text(r->config[k], "model.layers"),
		   *hidden = flat_text(r->config[k], "model.hidden");

	if (!arch || !layers || !hidden)
		return false;
	vfm_html_text(b, arch);
	vfm_buf_adds(b, ", ");
	vfm_html_text(b, layers);
	vfm_buf_adds(b, " &times; ");
	vfm_html_text(b, hidden);
	return true;
}

static bool fact_params(struct vfm_buf *b, const struct run_report *r, int k)
{
	struct vfm_err ignore = {0};
	struct vfm_config c;

	vfm_config_defaults(&c);
	if (!r->log[k].config || vfm_config_saved(&c, r->log[k].config, &ignore) < 0 ||
		vfm_config_check(&c, &ignore) < 0)
		return false;
	return fact_number(b, (double)vfm_model_params(&c.model));
}

static bool fact_phase(struct vfm_buf *b, const struct run_report *r, int k)
{
	if (r->log[k].phase)
		vfm_html_text(b, r->log[k].phase);
	return r->log[k].phase != NULL;
}

static bool fact_loss(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_number(b, vfm_trace_recent(curve_trace(&r->log[k], "loss")));
}

static bool fact_held_out(struct vfm_buf *b, const struct run_report *r, int k)
{
	const struct vfm_trace *t = curve_trace(&r->log[k], "held_out_loss");

	return t->n && fact_number(b, t->last);
}

static bool fact_best(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_number(b, vfm_trace_min(curve_trace(&r->log[k], "held_out_loss")));
}

static bool fact_time(struct vfm_buf *b, const struct run_report *r, int k)
{
	int64_t s = (int64_t)fmin(curve_sum(&r->log[k], "step_ms") / 1e3, 1e12);

	if (s < 600)
		vfm_buf_addf(b, "%.3g s", curve_sum(&r->log[k], "step_ms") / 1e3);
	else
		vfm_buf_addf(b, "%lld:%02lld h", (long long)(s / 3600), (long long)(s / 60 % 60));
	return true;
}

static bool fact_tokens(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_number(b, r->log[k].tokens);
}

static bool fact_samples(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_number(b, r->log[k].samples);
}

static bool fact_speed(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_number(b, r->log[k].tokens / curve_sum(&r->log[k], "step_ms") * 1e3);
}

static bool fact_tflops(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_number(b, r->log[k].tflop / curve_sum(&r->log[k], "step_ms") * 1e3);
}

static bool fact_share(struct vfm_buf *b, const struct vfm_run_log *l, const char *key)
{
	double share = curve_sum(l, key) / curve_sum(l, "step_ms");

	if (!curve_trace(l, key)->n || !isfinite(share))
		return false;
	vfm_buf_addf(b, "%.1f %%", 100 * share);
	return true;
}

static bool fact_data_wait(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_share(b, &r->log[k], "data_wait_ms");
}

static bool fact_comm(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_share(b, &r->log[k], "comm_ms");
}

static bool fact_bubble(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_share(b, &r->log[k], "bubble_ms");
}

static bool fact_copy(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_share(b, &r->log[k], "copy_ms");
}

static bool fact_host(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_share(b, &r->log[k], "host_ms");
}

static bool fact_not_finite(struct vfm_buf *b, const struct run_report *r, int k)
{
	vfm_html_count(b, r->log[k].not_finite);
	return true;
}

static bool fact_replaced(struct vfm_buf *b, const struct run_report *r, int k)
{
	return fact_number(b, r->log[k].replaced);
}

static bool fact_starts(struct vfm_buf *b, const struct run_report *r, int k)
{
	if (r->log[k].n_starts)
		vfm_html_count(b, r->log[k].n_starts);
	return r->log[k].n_starts > 0;
}

static bool fact_checkpoint(struct vfm_buf *b, const struct run_report *r, int k)
{
	if (r->log[k].checkpoint >= 0)
		vfm_html_count(b, r->log[k].checkpoint);
	return r->log[k].checkpoint >= 0;
}

static const struct {
	const char *name;
	run_fact write;
	bool card; /* among the cards of a run alone */
} facts[] = {
	{"phase", fact_phase, true},
	{"model", fact_model, false},
	{"parameters", fact_params, true},
	{"steps", fact_steps, true},
	{"first step", fact_first, false},
	{"loss, recent mean", fact_loss, true},
	{"held-out loss, last", fact_held_out, true},
	{"held-out loss, best", fact_best, true},
	{"tokens", fact_tokens, true},
	{"samples", fact_samples, false},
	{"time of the steps", fact_time, true},
	{"tokens per second", fact_speed, true},
	{"model TFLOP/s per rank", fact_tflops, true},
	{"wait for data, of the time", fact_data_wait, false},
	{"exposed communication", fact_comm, false},
	{"pipeline bubble", fact_bubble, false},
	{"stalls for copies", fact_copy, false},
	{"host", fact_host, false},
	{"steps that were not finite", fact_not_finite, false},
	{"replaced samples", fact_replaced, false},
	{"starts", fact_starts, false},
	{"newest checkpoint", fact_checkpoint, false},
};
enum { FACTS = sizeof(facts) / sizeof(facts[0]) };

static void add_fact_cards(const struct run_report *r, struct vfm_buf *b)
{
	vfm_buf_adds(b, "<div class=\"cards\">\n");
	for (int i = 0; i < FACTS; i++) {
		struct vfm_buf text = {0};

		if (facts[i].card && facts[i].write(&text, r, 0))
			vfm_buf_addf(b, "<div class=\"card\"><span class=\"dim\">%s</span><b>%s</b></div>\n",
				facts[i].name, text.data);
		vfm_buf_release(&text);
	}
	vfm_buf_adds(b, "</div>\n");
}

/* A row for each fact that a run has. */
static void add_fact_table(const struct run_report *r, struct vfm_buf *b)
{
	add_run_head(r, b, "", NULL);
	for (int i = 0; i < FACTS; i++) {
		struct vfm_buf row = {0};
		bool any = false;

		for (int k = 0; k < r->n; k++) {
			bool has;

			vfm_buf_adds(&row, "<td>");
			has = facts[i].write(&row, r, k);
			vfm_buf_adds(&row, has ? "</td>" : "&ndash;</td>");
			any = any || has;
		}
		if (any && !(r->n == 1 && facts[i].card))
			vfm_buf_addf(b, "<tr><td>%s</td>%s</tr>\n", facts[i].name, row.data);
		vfm_buf_release(&row);
	}
	vfm_buf_adds(b, "</table></div>\n");
}

static void add_failures(const struct run_report *r, struct vfm_buf *b)
{
	for (int k = 0; k < r->n; k++) {
		if (r->log[k].failure) {
			vfm_buf_adds(b, "<p class=\"failed\"><b>");
			vfm_html_text(b, r->name[k]);
			vfm_buf_adds(b, "</b> ended with an error: ");
			vfm_html_text(b, r->log[k].failure);
			vfm_buf_adds(b, "</p>\n");
		}
		if (r->log[k].cut) {
			vfm_buf_adds(b, "<p class=\"dim\"><b>");
			vfm_html_text(b, r->name[k]);
			vfm_buf_adds(b,
				"</b>: the last line of metrics.jsonl has no end and is left out; the run is at "
				"work, or was killed.</p>\n");
		}
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
	struct vfm_html_curve curves[VFM_RUN_REPORT_RUNS];
	struct vfm_html_chart chart = {.title = c->title,
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
		curves[k] = (struct vfm_html_curve){.name = r->name[k],
			.trace = &r->log[k].trace[i],
			.marks = r->marks[k],
			.n_marks = r->n_marks[k],
			.colour = k};
	}
	vfm_html_chart(b, &chart);
}

/* The held-out losses of the last evaluation over the noise levels, which all runs with the same eval.times share. */
static void add_level_chart(const struct run_report *r, struct vfm_buf *b)
{
	struct vfm_html_curve curves[VFM_RUN_REPORT_RUNS];
	struct vfm_html_chart chart = {.title = "Held-out loss by noise level",
		.note = "last evaluation, from little noise to much",
		.may_log = true,
		.lo = 1,
		.hi = 1,
		.curves = curves,
		.n = r->n};
	bool any = false;

	for (int k = 0; k < r->n; k++) {
		const struct vfm_trace *t = &r->log[k].levels;

		curves[k] = (struct vfm_html_curve){.name = r->name[k], .trace = t, .colour = k};
		for (int i = 0; t->n && i < VFM_TRACE_COLUMNS; i++)
			if (t->column[i].n && t->first + i * t->width > chart.hi)
				chart.hi = t->first + i * t->width;
		any = any || t->n;
	}
	if (any)
		vfm_html_chart(b, &chart);
}

static void add_curve_section(const struct run_report *r, struct vfm_buf *b)
{
	bool marks = false;

	for (int k = 0; k < r->n; k++)
		marks = marks || r->n_marks[k];
	vfm_buf_addf(b,
		"<h2>Curves</h2>\n<p class=\"dim\">Over the steps. Pale: all values, or the extremes of adjacent "
		"steps; "
		"in front of them the moving average over a fortieth of the run.%s</p>\n<div class=\"charts\">\n",
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
		vfm_html_swatch(b, k);
		vfm_buf_adds(b, " ");
		vfm_html_text(b, r->name[k]);
		vfm_buf_addf(b, "</td><td>%s</td><td class=\"num\">", text);
		vfm_html_count(b, l->start[i].step);
		vfm_buf_adds(b, "</td><td>");
		vfm_html_text(b, l->start[i].host);
		vfm_buf_adds(b, "</td></tr>\n");
	}
}

static void add_jumps(const struct run_report *r, struct vfm_buf *b, int k)
{
	const struct vfm_run_log *l = &r->log[k];

	for (int i = 0; i < l->n_jumps && i < VFM_RUN_JUMPS; i++) {
		vfm_buf_adds(b, "<li>");
		vfm_html_text(b, l->metrics);
		vfm_buf_addf(b, ", line %lld: step %lld follows step %lld</li>\n", (long long)l->jump[i].line,
			(long long)l->jump[i].to, (long long)l->jump[i].from);
	}
	if (l->n_jumps > VFM_RUN_JUMPS)
		vfm_buf_addf(b, "<li>and %lld more</li>\n", (long long)(l->n_jumps - VFM_RUN_JUMPS));
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
		vfm_buf_adds(b,
			"<div class=\"wide\"><table>\n<tr><th>run</th><th>time</th><th class=\"num\">first "
			"step</th><th>host</th></tr>\n");
		for (int k = 0; k < r->n; k++)
			add_start_rows(r, b, k);
		vfm_buf_adds(b, "</table></div>\n");
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
			vfm_buf_adds(&all, "<h3 class=\"run\">");
			vfm_html_swatch(&all, k);
			vfm_buf_adds(&all, " ");
			vfm_html_text(&all, r->name[k]);
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
		if (r.n == 1)
			add_fact_cards(&r, b);
		add_fact_table(&r, b);
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
