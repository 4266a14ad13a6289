#include "predict/matrix_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"
#include "media/draw/html.h"
#include "media/draw/plot_axis.h"
#include "train/predict/dry_run_page.h"

/* ---- the table ---- */

enum { LONG_CELL = 24 }; /* bytes of a text that may break within words */

static bool is_column_empty(const struct vfm_table *t, int col)
{
	bool number, empty = true;

	for (int r = 0; r < vfm_table_rows(t) && empty; r++) {
		char *text = vfm_table_cell(t, r, col, &number);

		empty = !*text;
		free(text);
	}
	return empty;
}

/* Adds a heading, which may break behind a slash: "token/s/GPU". */
static void add_heading(struct vfm_buf *b, char *text)
{
	for (char *slash; (slash = strchr(text, '/')); text = slash + 1) {
		*slash = '\0';
		vfm_html_text(b, text);
		vfm_buf_adds(b, "/<wbr>");
	}
	vfm_html_text(b, text);
}

/* Returns whether a column has numbers. */
static bool is_number_column(const struct vfm_table *t, int col)
{
	bool number = false;

	for (int r = 0; r < vfm_table_rows(t) && !number; r++)
		free(vfm_table_cell(t, r, col, &number));
	return number;
}

static void add_matrix_cell(struct vfm_buf *b, const struct vfm_table *t, int row, int col)
{
	bool number;
	char *text = vfm_table_cell(t, row, col, &number);

	if (row < 0) {
		vfm_buf_addf(b, "<th%s>", is_number_column(t, col) ? " class=\"num\"" : "");
		add_heading(b, text);
		vfm_buf_adds(b, "</th>");
	} else {
		vfm_buf_addf(b, "<td%s>",
			number                             ? " class=\"num\""
				: strlen(text) > LONG_CELL ? " class=\"long\""
							   : "");
		vfm_html_text(b, text);
		vfm_buf_adds(b, "</td>");
	}
	free(text);
}

/* A row with sections is linked with them. */
static void add_matrix_table(struct vfm_buf *b, const struct vfm_table *t, const struct matrix_page_row *rows)
{
	int cols = vfm_table_cols(t);
	size_t notes;
	bool *shown = vfm_calloc((size_t)cols + 1, sizeof(*shown));
	const char *const *note;

	for (int c = 0; c < cols; c++)
		shown[c] = !is_column_empty(t, c);
	vfm_buf_adds(b, "<div class=\"wide full\"><table class=\"rows\">\n");
	for (int r = -1; r < vfm_table_rows(t); r++) {
		vfm_buf_adds(b, r < 0 ? "<tr><th class=\"num\">row</th>" : "<tr>");
		if (r >= 0 && rows[r].out->run)
			vfm_buf_addf(b, "<td class=\"num\"><a href=\"#row-%d\">%d</a></td>", r + 1, r + 1);
		else if (r >= 0)
			vfm_buf_addf(b, "<td class=\"num\">%d</td>", r + 1);
		for (int c = 0; c < cols; c++)
			if (shown[c])
				add_matrix_cell(b, t, r, c);
		vfm_buf_adds(b, "</tr>\n");
	}
	vfm_buf_adds(b, "</table></div>\n");
	note = vfm_table_notes(t, &notes);
	for (size_t i = 0; i < notes; i++) {
		vfm_buf_adds(b, "<p class=\"dim\" style=\"margin:6px 0;font-size:12px\">");
		vfm_html_text(b, note[i]);
		vfm_buf_adds(b, "</p>\n");
	}
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
	vfm_buf_addf(b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", NAME - 8, y + 14);
	if (name.len > n) {
		while (n > 0 && (name.data[n] & 0xc0) == 0x80) /* not within a character */
			n--;
		name.data[n] = '\0';
	}
	vfm_html_text(b, name.data);
	vfm_buf_adds(b, name.len > n ? "…</text>" : "</text>");
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
		vfm_buf_addf(b, "<text x=\"%.1f\" y=\"%.1f\">%.*f", x, y, tflops < 10 ? 3 : 0, tflops);
	else
		vfm_buf_addf(b, "<text x=\"%.1f\" y=\"%.1f\" style=\"fill:var(--red)\">does not fit: %.1f GiB", x, y,
			r->out->need / 0x1p30);
	if (published > 0)
		vfm_buf_addf(b, "<tspan style=\"fill:var(--red)\">, published %.*f</tspan>", published < 10 ? 3 : 0,
			published);
	vfm_buf_adds(b, "</text>\n");
}

/* The bar of a row; a line from the low to the high rates; a mark at the published rate. */
static void add_rate_bar(struct vfm_buf *b, const struct matrix_page_row *r, int number, double y, double scale)
{
	double tflops = tflops_of(r, seconds_of(r)), low = tflops_of(r, r->out->s[VFM_LOW]),
	       high = tflops_of(r, r->out->s[VFM_HIGH]), end = fmax(tflops, fmax(high, published_of(r)));

	add_bar_name(b, r, number, y);
	vfm_buf_addf(
		b, "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>", NAME, y + 4, tflops * scale, BAR - 8);
	if (r->machine && low > 0)
		vfm_buf_addf(b,
			"<path style=\"stroke:var(--ink);stroke-width:1.2\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f "
			"%.1fv6\"/>",
			NAME + low * scale, y + 11, NAME + high * scale, NAME + low * scale, y + 8, NAME + high * scale,
			y + 8);
	if (published_of(r) > 0)
		vfm_buf_addf(b, "<path style=\"stroke:var(--red);stroke-width:3\" d=\"M%.1f %.1fv%d\"/>",
			NAME + published_of(r) * scale, y + 3, BAR - 6);
	add_rate_text(b, r, NAME + end * scale + 6, y + 14);
}

static void add_rate_bars(struct vfm_buf *b, const struct matrix_page_row *rows, int n)
{
	struct vfm_plot_axis axis = {.lo = 0, .hi = 0};
	char text[VFM_PLOT_LABEL];
	bool published = false;

	for (int i = 0; i < n; i++) {
		axis.hi = fmax(axis.hi, tflops_of(&rows[i], seconds_of(&rows[i])));
		axis.hi = fmax(axis.hi, fmax(tflops_of(&rows[i], rows[i].out->s[VFM_HIGH]), published_of(&rows[i])));
		published |= published_of(&rows[i]) > 0;
	}
	axis.hi = axis.hi > 0 ? axis.hi : 1;
	vfm_plot_axis_finish(&axis, 6, 0);
	vfm_buf_addf(b,
		"<h2>TFLOP/s of a GPU</h2>\n<p class=\"dim\">%s%s</p>\n<div class=\"box\"><svg viewBox=\"0 0 %d "
		"%d\">\n",
		n && rows[0].machine
			? "A bar ends at the middle rates; its line reaches from the low to the high rates."
			: "Of a rank, measured.",
		published ? " The red marks are the published figures." : "", NAME + BARS + VALUE, n * BAR + AXIS);
	for (int i = 0; i < axis.n_ticks; i++) {
		double x = NAME + BARS * axis.tick[i] / axis.hi;

		vfm_plot_axis_label(&axis, axis.tick[i], text);
		vfm_buf_addf(b,
			"<line x1=\"%.1f\" y1=\"0\" x2=\"%.1f\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" "
			"text-anchor=\"middle\">%s</text>",
			x, x, n * BAR, x, n * BAR + 14, text);
	}
	for (int i = 0; i < n; i++)
		add_rate_bar(b, &rows[i], i + 1, i * BAR, BARS / axis.hi);
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
	vfm_buf_addf(b, "<h2 id=\"row-%d\">Row ", number);
	vfm_html_text(b, name.data);
	vfm_buf_adds(b, "</h2>\n<div class=\"sections\">\n");
	vfm_dry_run_sections(b, &page, "h3");
	if (!page.n_scaled && !o.plan)
		vfm_buf_addf(b,
			"<p class=\"dim\">More GPUs are simulated of rows with at most %d launches of the simulated "
			"ranks "
			"in a step; here are %lld.</p>\n",
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
		vfm_buf_addf(&b, "<p class=\"dim\">%d of %d rows have sections of their own below.</p>\n", linked, n);
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
