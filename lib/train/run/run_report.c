/* run_report.c - the sections of the HTML page: facts, curves, starts, samples, configuration. */
#include "train/run/run_report.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/par.h"
#include "data/record/clip_reader.h"
#include "media/draw/chart.h"
#include "media/draw/html.h"
#include "spec/model/linears.h"
#include "spec/model/model.h"
#include "train/job/config.h"
#include "train/run/run_log.h"

enum { SHOWN_STEPS = 6, SHOWN_SAMPLES = 8, FRAME_W = 240, FRAME_H = 180, DECODE_S = 20 };

struct run_report {
	const struct vfm_run_report_opts *o;
	int n;
	struct vfm_run_log log[VFM_RUN_REPORT_RUNS];
	char *name[VFM_RUN_REPORT_RUNS];
	/* flat objects of texts, {"train.lr": "0.001"} */
	json_t *facts[VFM_RUN_REPORT_RUNS], *config[VFM_RUN_REPORT_RUNS], *identity[VFM_RUN_REPORT_RUNS];
	json_t *defaults; /* of the configuration */
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

static void set_fact(json_t *facts, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void set_fact(json_t *facts, const char *name, const char *format, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	json_object_set_new(facts, name, json_string(text));
}

/* Leaves out a number that is not finite. */
static void set_number(json_t *facts, const char *name, double x)
{
	char text[VFM_NUMBER_TEXT];

	if (vfm_html_number(text, x))
		set_fact(facts, name, "%s", text);
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

static json_t *list_facts(const struct vfm_run_log *l, const json_t *config, const json_t *identity)
{
	const char *arch = flat_text(config, "model.arch"), *steps = flat_text(config, "train.steps");
	double ms = l->sum[vfm_run_curve_of("step_ms")], best = INFINITY, worst = -INFINITY;
	json_t *f = json_object();

	if (!steps || !strcmp(steps, "0"))
		steps = flat_text(identity, "plan.steps");
	vfm_trace_extend_range(&l->trace[vfm_run_curve_of("held_out_loss")], &best, &worst);
	if (l->phase)
		set_fact(f, "phase", "%s", l->phase);
	if (arch)
		set_fact(f, "model", "%s, %s × %s", arch, flat_text(config, "model.layers"),
			flat_text(config, "model.hidden"));
	set_number(f, "parameters", count_parameters(l->config));
	set_fact(f, "steps", "%lld to %lld%s%s", (long long)l->first, (long long)l->last, steps ? " of " : "",
		steps ? steps : "");
	set_number(f, "loss, recent mean", vfm_trace_recent(&l->trace[vfm_run_curve_of("loss")]));
	set_number(f, "held-out loss, best", best);
	set_number(f, "tokens", l->tokens);
	set_number(f, "samples", l->samples);
	set_number(f, "time of the steps, s", ms / 1e3);
	set_number(f, "tokens per second", l->tokens / ms * 1e3);
	set_number(f, "model TFLOP/s per rank", l->tflop / ms * 1e3);
	for (int i = 0; i < VFM_RUN_CURVES; i++)
		if (vfm_run_curves[i].of && l->trace[i].n)
			set_fact(f, vfm_run_curves[i].title, "%.1f %%", 100 * l->sum[i] / ms);
	set_number(f, "steps that were not finite", (double)l->not_finite);
	set_number(f, "replaced samples", l->replaced);
	set_number(f, "starts", l->n_starts);
	if (l->checkpoint >= 0)
		set_fact(f, "newest checkpoint", "%lld", (long long)l->checkpoint);
	return f;
}

/* ---- reading ---- */

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
		r->facts[k] = list_facts(&r->log[k], r->config[k], r->identity[k]);
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
		free(r->name[k]);
	}
	json_decref(r->defaults);
}

/* ---- tables with a column for each run ---- */

static void add_run_name(const struct run_report *r, struct vfm_buf *b, int k)
{
	vfm_html_swatch(b, 'c', k);
	vfm_html_addf(b, "%s", r->name[k]);
}

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

/* Returns whether the runs differ in a key; a run alone is compared with the defaults. */
static bool differs(const struct run_report *r, json_t *const *flat, const json_t *defaults, const char *key)
{
	const char *first = flat_text(r->n == 1 ? defaults : flat[0], key);
	bool any = false;

	for (int k = 0; k < r->n; k++)
		any = any || !same_text(first, flat_text(flat[k], key));
	return any;
}

/* Adds a heading and a row for each key that a run has, or only for the keys that differ. */
static void add_key_table(const struct run_report *r, struct vfm_buf *b, const char *heading, json_t *const *flat,
	const json_t *defaults, bool all)
{
	json_t *keys = json_object(), *v;
	const char *key;

	for (int k = 0; k < r->n; k++)
		json_object_update_missing(keys, flat[k]);
	vfm_html_table(b, "%s", heading);
	vfm_buf_adds(b, defaults ? "<th>default" : "");
	for (int k = 0; k < r->n; k++) {
		vfm_buf_adds(b, "<th>");
		add_run_name(r, b, k);
	}
	json_object_foreach(keys, key, v)
	{
		if (!all && !differs(r, flat, defaults, key))
			continue;
		vfm_html_row(b, "%s", key);
		if (defaults)
			vfm_html_cells(b, "%s", flat_text(defaults, key));
		for (int k = 0; k < r->n; k++)
			vfm_html_cells(b, "%s", flat_text(flat[k], key));
	}
	vfm_html_table_end(b);
	json_decref(keys);
}

static void add_config_section(const struct run_report *r, struct vfm_buf *b)
{
	vfm_html_addf(b, "<h2>Configuration</h2>\n<p class=dim>Keys %s.</p>\n",
		r->n > 1 ? "in which the runs differ" : "that are not at their defaults");
	add_key_table(r, b, "key", r->config, r->defaults, false);
	vfm_buf_adds(b, "<details><summary>All keys</summary>\n");
	add_key_table(r, b, "key", r->config, r->defaults, true);
	vfm_buf_adds(b,
		"</details>\n<h2>Identity</h2>\n"
		"<p class=dim>Plan, encoders and initial weights (run.json).</p>\n");
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
	bool levels = c->flags & VFM_CURVE_LEVELS;
	struct vfm_curve curves[VFM_RUN_REPORT_RUNS];
	struct vfm_chart chart = {.title = c->title,
		.note = c->note,
		.may_log = c->flags & VFM_CURVE_LOG,
		.from_zero = c->flags & VFM_CURVE_ZERO,
		.percent = c->flags & VFM_CURVE_PERCENT,
		.smooth = c->flags & VFM_CURVE_SMOOTH,
		.lo = INT64_MAX,
		.curves = curves,
		.n = r->n};

	for (int k = 0; k < r->n; k++) {
		const struct vfm_run_log *l = &r->log[k];
		int64_t first = levels ? 1 : l->first, last = levels ? l->levels : l->last;

		chart.lo = first < chart.lo ? first : chart.lo;
		chart.hi = last > chart.hi ? last : chart.hi;
		curves[k] = (struct vfm_curve){.name = r->name[k],
			.trace = &l->trace[i],
			.marks = l->mark,
			.n_marks = levels ? 0 : l->n_marks};
	}
	vfm_chart_html(b, &chart);
}

static void add_curve_section(const struct run_report *r, struct vfm_buf *b)
{
	vfm_buf_adds(b,
		"<h2>Curves</h2>\n<p class=dim>Over the steps. Pale: all values, or the extremes of adjacent "
		"steps; in front of them the moving average over a fortieth of the run. Dotted lines: "
		"restarts.</p>\n<div class=charts>\n");
	for (int i = 0; i < VFM_RUN_CURVES; i++)
		if (has_curve(r, i))
			add_run_chart(r, b, i);
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
		vfm_html_row(b, "%s|%s|#%'lld|%s", r->name[k], text, (long long)l->start[i].step, l->start[i].host);
	}
	for (int i = 0; i < l->n_jumps && i < VFM_RUN_JUMPS; i++)
		vfm_html_row(b, "%s|%s, line %lld: step %lld follows step %lld|#%'lld|", r->name[k], l->metrics,
			(long long)l->jump[i].line, (long long)l->jump[i].to, (long long)l->jump[i].from,
			(long long)l->jump[i].to);
	if (l->n_jumps > VFM_RUN_JUMPS)
		vfm_html_row(b, "%s|and %lld more||", r->name[k], (long long)(l->n_jumps - VFM_RUN_JUMPS));
}

static void add_start_section(const struct run_report *r, struct vfm_buf *b)
{
	vfm_buf_adds(b, "<h2>Starts</h2>\n<p class=dim>And steps that do not follow the one before.</p>\n");
	vfm_html_table(b, "run|time|#first step|host");
	for (int k = 0; k < r->n; k++)
		add_start_rows(r, b, k);
	vfm_html_table_end(b);
}

/* ---- samples (preview.h) ---- */

static int is_sample(const struct dirent *e)
{
	static const char *const suffixes[] = {".png", ".jpg", ".jpeg", ".mp4"};
	const char *dot = strrchr(e->d_name, '.');
	bool is = false;

	for (size_t i = 0; dot && i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
		is = is || !strcmp(dot, suffixes[i]);
	return is;
}

/* The sample `name` of an evaluation, if its folder has it: its middle frame, scaled down, with a link to it. */
static void add_sample_figure(struct vfm_buf *b, const char *folder, const char *name, const char *page_dir)
{
	char *path = vfm_strfmt("%s/%s", folder, name);
	json_t *rec = json_pack("{s:s}", "src", path);
	struct vfm_thumbnails t = {0};

	if (rec && access(path, R_OK) == 0) {
		vfm_buf_adds(b, "<figure>");
		if (vfm_thumbnails(&t, rec, 1, FRAME_W, FRAME_H, DECODE_S, vfm_par_threads(), NULL) < 0 ||
			vfm_html_picture(b, t.rgb, t.width, t.height, name, NULL) < 0)
			vfm_buf_adds(b, "<p class='none dim'>no picture</p>");
		vfm_buf_adds(b, "<figcaption><a href='");
		vfm_html_relative_url(b, page_dir, path);
		vfm_html_addf(b, "'>step %lld</a></figcaption></figure>\n",
			atoll(strrchr(folder, '/') + sizeof("/step-") - 1));
	}
	free(t.rgb);
	json_decref(rec);
	free(path);
}

static int is_step_folder(const struct dirent *e)
{
	return !strncmp(e->d_name, "step-", 5) && isdigit((unsigned char)e->d_name[5]);
}

static void free_entries(struct dirent **list, int n)
{
	for (int i = 0; i < n; i++)
		free(list[i]);
	if (n >= 0)
		free(list);
}

/* Adds the prompt of a record to the object ctx, by the name of its file. */
static int take_sample_prompt(void *ctx, const json_t *rec, struct vfm_err *err)
{
	const char *src = json_string_value(json_object_get(rec, "src")), *slash = src ? strrchr(src, '/') : NULL;
	json_t *caption = json_object_get(rec, "caption");

	(void)err;
	if (src && json_is_string(caption))
		json_object_set(ctx, slash ? slash + 1 : src, caption);
	return 0;
}

/* Returns the prompts of a folder by file; the caller owns it.  Without records it is empty. */
static json_t *read_sample_prompts(const char *folder)
{
	char *path = vfm_strfmt("%s/samples.jsonl", folder);
	json_t *prompts = json_object();
	struct vfm_err ignore;

	vfm_jsonl_each(path, take_sample_prompt, prompts, &ignore);
	free(path);
	return prompts;
}

/* A row for each of the first samples of the newest evaluation. */
static void add_sample_rows(struct vfm_buf *b, char **folders, int n, const char *page_dir)
{
	struct dirent **list = NULL;
	int found = scandir(folders[n - 1], &list, is_sample, alphasort);
	json_t *prompts = read_sample_prompts(folders[n - 1]);

	for (int i = 0; i < found && i < SHOWN_SAMPLES; i++) {
		const char *name = list[i]->d_name, *prompt = json_string_value(json_object_get(prompts, name));

		vfm_html_addf(b,
			"<p class='dim small'>%s</p>\n<div class=shots "
			"style='grid-template-columns:repeat(%d,minmax(0,1fr))'>\n",
			prompt ? prompt : name, SHOWN_STEPS);
		for (int k = 0; k < n; k++)
			add_sample_figure(b, folders[k], name, page_dir);
		vfm_buf_adds(b, "</div>\n");
	}
	json_decref(prompts);
	free_entries(list, found);
}

/* The samples in RUN/samples: up to six evaluations, the first and the last among them. */
static void add_sample_section(struct vfm_buf *b, const char *name, const char *run_dir, const char *page_dir)
{
	char *given = vfm_strfmt("%s/samples", run_dir), *dir = realpath(given, NULL), *page = realpath(page_dir, NULL);
	char *folders[SHOWN_STEPS];
	struct dirent **list = NULL;
	int n = dir && page ? scandir(dir, &list, is_step_folder, alphasort) : -1;
	int shown = n < SHOWN_STEPS ? n : SHOWN_STEPS;

	for (int i = 0; i < shown; i++)
		folders[i] = vfm_strfmt("%s/%s", dir, list[shown > 1 ? i * (n - 1) / (shown - 1) : 0]->d_name);
	if (shown > 0) {
		vfm_html_addf(b, "<h2>Samples of %s</h2>\n", name);
		add_sample_rows(b, folders, shown, page);
	}
	for (int i = 0; i < shown; i++)
		free(folders[i]);
	free_entries(list, n);
	free(given);
	free(dir);
	free(page);
}

/* ---- the page ---- */

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
		add_key_table(&r, b, "", r.facts, NULL, true);
		add_curve_section(&r, b);
		for (int k = 0; k < r.n; k++)
			add_sample_section(b, r.name[k], r.log[k].dir, o->page_dir);
		add_config_section(&r, b);
		add_start_section(&r, b);
		vfm_html_end(b);
	}
	release_runs(&r);
	return rc;
}
