#include "predict/matrix_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"
#include "media/draw/chart.h"
#include "media/draw/html.h"
#include "train/predict/dry_run_page.h"

/* ---- the table ---- */

enum { LONG_CELL = 24 }; /* bytes of a text that may break within words */

/* Returns whether a column has any text; *number: whether it has numbers. */
static bool look_at_texts(const struct vfm_table *t, int col, bool *number)
{
	bool any = false;

	*number = false;
	for (int r = 0; r < vfm_table_rows(t) && !any; r++) {
		char *text = vfm_table_cell(t, r, col, number);

		any = *text;
		free(text);
	}
	return any;
}

/* Adds the heading of a column, which may break behind a slash: "token/s/GPU". */
static void add_heading(struct vfm_buf *b, const struct vfm_table *t, int col, bool number)
{
	bool ignore;
	char *text = vfm_table_cell(t, -1, col, &ignore), *s = text;

	vfm_buf_adds(b, number ? "<th class=num>" : "<th>");
	for (size_t n; s[n = strcspn(s, "/")]; s += n + 1)
		vfm_html_addf(b, "%.*s/<wbr>", (int)n, s);
	vfm_html_addf(b, "%s", s);
	free(text);
}

static void add_matrix_cell(struct vfm_buf *b, const struct vfm_table *t, int row, int col)
{
	bool number;
	char *text = vfm_table_cell(t, row, col, &number);

	vfm_buf_adds(b, number ? "<td class=num>" : strlen(text) > LONG_CELL ? "<td class=long>" : "<td>");
	vfm_html_addf(b, "%s", text);
	free(text);
}

/* A row with sections is linked with them. */
static void add_matrix_table(struct vfm_buf *b, const struct vfm_table *t, const struct matrix_page_row *rows)
{
	int cols = vfm_table_cols(t);
	size_t notes;
	bool *shown = vfm_calloc((size_t)cols + 1, sizeof(*shown));
	const char *const *note = vfm_table_notes(t, &notes);

	vfm_buf_adds(b, "<div class='wide full'><table class=rows>\n<tr><th class=num>row");
	for (int c = 0; c < cols; c++) {
		bool number;

		shown[c] = look_at_texts(t, c, &number);
		if (shown[c])
			add_heading(b, t, c, number);
	}
	for (int r = 0; r < vfm_table_rows(t); r++) {
		if (rows[r].out->run)
			vfm_html_addf(b, "\n<tr><td class=num><a href='#row-%d'>%d</a>", r + 1, r + 1);
		else
			vfm_html_addf(b, "\n<tr><td class=num>%d", r + 1);
		for (int c = 0; c < cols; c++)
			if (shown[c])
				add_matrix_cell(b, t, r, c);
	}
	vfm_buf_adds(b, "\n");
	vfm_html_table_end(b);
	for (size_t i = 0; i < notes; i++)
		vfm_html_addf(b, "<p class='dim small'>%s</p>\n", note[i]);
	free(shown);
}

/* ---- the bars ---- */

enum { NAME = 400, BARS = 620, VALUE = 130, BAR = 22, AXIS = 20, NAME_MOST = 64 };

static double tflops_of(const struct matrix_page_row *r, double s)
{
	return r->out->fits && s > 0 ? r->out->r.flops / s / 1e12 / r->row->ranks : 0;
}

static double seconds_of(const struct matrix_page_row *r)
{
	return r->machine ? r->out->s[VFM_MID] : r->out->r.step_s.median;
}

/* "3: dit-7b, 8192 tokens, 64 GPUs, tp=4 dp=16", with the configuration behind it. */
static void add_row_name(struct vfm_buf *b, const struct matrix_page_row *r, int number)
{
	vfm_buf_addf(b, "%d: %s, %lld tokens, %d %s", number, r->row->model, (long long)r->row->tokens, r->row->ranks,
		r->machine                   ? r->row->ranks == 1 ? "GPU" : "GPUs"
			: r->row->ranks == 1 ? "rank"
					     : "ranks");
	if (*r->out->layout)
		vfm_buf_addf(b, ", %s", r->out->layout);
	if (*r->row->label)
		vfm_buf_addf(b, ", %s", r->row->label);
}

static void add_bar_name(struct vfm_buf *b, const struct matrix_page_row *r, int number, double y)
{
	struct vfm_buf name = {0};
	size_t n = NAME_MOST;

	add_row_name(&name, r, number);
	if (name.len <= n)
		n = name.len;
	while (n < name.len && n > 0 && (name.data[n] & 0xc0) == 0x80) /* not within a character */
		n--;
	vfm_html_addf(b, "<text x='%d' y='%.1f' text-anchor='end'>%.*s%s</text>", NAME - 8, y + 14, (int)n, name.data,
		n < name.len ? "…" : "");
	vfm_buf_release(&name);
}

/* Returns the published rate of a row; 0: there is none for this machine. */
static double published_of(const struct matrix_page_row *r)
{
	return r->row->elsewhere ? 0 : r->row->tflops_gpu;
}

/* The rate of a row at the end of its bar, which says what it is if there is a published one, too. */
static void add_rate_text(struct vfm_buf *b, const struct matrix_page_row *r, double x, double y)
{
	double tflops = tflops_of(r, seconds_of(r)), published = published_of(r);

	if (r->out->fits)
		vfm_html_addf(b, "<text x='%.1f' y='%.1f'>%.*f", x, y, tflops < 10 ? 3 : 0, tflops);
	else
		vfm_html_addf(
			b, "<text class='red' x='%.1f' y='%.1f'>does not fit: %.1f GiB", x, y, r->out->need / 0x1p30);
	if (published > 0)
		vfm_html_addf(b, "<tspan class='red'>, published %.*f</tspan>", published < 10 ? 3 : 0, published);
	vfm_buf_adds(b, "</text>\n");
}

/* The largest rate that the bar of a row shows. */
static double highest_rate(const struct matrix_page_row *r)
{
	return fmax(fmax(tflops_of(r, seconds_of(r)), tflops_of(r, r->out->s[VFM_HIGH])), published_of(r));
}

/* The bar of a row; a line from the low to the high rates; a mark at the published rate. */
static void add_rate_bar(
	struct vfm_buf *b, const struct matrix_page_row *r, int number, double y, const struct vfm_chart_axis *a)
{
	double low = vfm_chart_axis_at(a, tflops_of(r, r->out->s[VFM_LOW])),
	       high = vfm_chart_axis_at(a, tflops_of(r, r->out->s[VFM_HIGH]));

	add_bar_name(b, r, number, y);
	vfm_html_addf(b, "<rect x='%d' y='%.1f' width='%.1f' height='%d'/>", NAME, y + 4,
		vfm_chart_axis_at(a, tflops_of(r, seconds_of(r))) - NAME, BAR - 8);
	if (r->machine && low > NAME)
		vfm_html_addf(b,
			"<path style='stroke:var(--ink);stroke-width:1.2' d='M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f "
			"%.1fv6'/>",
			low, y + 11, high, low, y + 8, high, y + 8);
	if (published_of(r) > 0)
		vfm_html_addf(b, "<path style='stroke:var(--red);stroke-width:3' d='M%.1f %.1fv%d'/>",
			vfm_chart_axis_at(a, published_of(r)), y + 3, BAR - 6);
	add_rate_text(b, r, vfm_chart_axis_at(a, highest_rate(r)) + 6, y + 14);
}

static void add_rate_bars(struct vfm_buf *b, const struct matrix_page_row *rows, int n)
{
	struct vfm_chart_axis axis = {.from = NAME, .to = NAME + BARS};
	bool published = false;

	for (int i = 0; i < n; i++) {
		vfm_chart_axis_extend(&axis, highest_rate(&rows[i]));
		published |= published_of(&rows[i]) > 0;
	}
	vfm_chart_axis_extend(&axis, axis.hi > 0 ? 0 : 1);
	vfm_chart_axis_place_ticks(&axis, 6, 0);
	vfm_html_addf(b, "<h2>TFLOP/s of a GPU</h2>\n<p class=dim>%s%s</p>\n<div class=box><svg viewBox='0 0 %d %d'>\n",
		n && rows[0].machine
			? "A bar ends at the middle rates; its line reaches from the low to the high rates."
			: "Of a rank, measured.",
		published ? " The red marks are the published figures." : "", NAME + BARS + VALUE, n * BAR + AXIS);
	vfm_chart_x_axis(b, &axis, 0, n * BAR);
	for (int i = 0; i < n; i++)
		add_rate_bar(b, &rows[i], i + 1, i * BAR, &axis);
	vfm_buf_adds(b, "</svg></div>\n");
}

/* ---- the sections of a row ---- */

static int add_row_sections(struct vfm_buf *b, const struct matrix_page_row *r, int number, struct vfm_err *err)
{
	struct vfm_dry_run_opts o = matrix_dry_opts(r->row, &r->asked);
	const struct vfm_dry_run *d = r->out->run;
	struct vfm_scaled_run scaled[VFM_SCALED_MOST];
	struct vfm_dry_run_page page = {.o = &o, .d = d, .scaled = scaled};
	struct vfm_machine machine;
	struct vfm_buf name = {0};

	TRY(vfm_machine_load(&machine, r->machine, err));
	o.machine = &machine;
	if (d->launches <= MATRIX_PAGE_LAUNCHES && !o.plan)
		TRY(vfm_scale_run(&o, d, scaled, &page.n_scaled, err));
	add_row_name(&name, r, number);
	vfm_html_addf(b, "<h2 id=row-%d>Row %s</h2>\n<div class=sections>\n", number, name.data);
	vfm_dry_run_sections(b, &page, "h3");
	if (!page.n_scaled && !o.plan)
		vfm_html_addf(b,
			"<p class=dim>More GPUs are simulated of rows with at most %d launches of the simulated ranks "
			"in a "
			"step; here are %lld.</p>\n",
			MATRIX_PAGE_LAUNCHES, (long long)d->launches);
	vfm_buf_adds(b, "</div>\n");
	vfm_buf_release(&name);
	return 0;
}

int matrix_write_page(
	const char *path, const struct vfm_table *t, const struct matrix_page_row *rows, int n, struct vfm_err *err)
{
	bool predicted = n > 0 && rows[0].machine;
	int linked = 0, rc = 0;
	struct vfm_buf b = {0};

	for (int i = 0; i < n; i++)
		linked += rows[i].out->run != NULL;
	vfm_html_begin(&b, predicted ? "Predicted training steps" : "Measured training steps", 0);
	if (linked < n && predicted)
		vfm_html_addf(&b, "<p class=dim>%d of %d rows have sections of their own below.</p>\n", linked, n);
	add_matrix_table(&b, t, rows);
	add_rate_bars(&b, rows, n);
	for (int i = 0; i < n && rc == 0; i++)
		if (rows[i].out->run)
			rc = add_row_sections(&b, &rows[i], i + 1, err);
	vfm_html_end(&b);
	if (rc == 0)
		rc = vfm_write_file(path, b.data, b.len, err);
	vfm_buf_release(&b);
	return rc;
}
