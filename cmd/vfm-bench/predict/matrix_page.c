/* matrix_page.c - writes the HTML page: the table, bars of the rates, and a section for each predicted row. */
#include "predict/matrix_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"
#include "media/draw/html.h"
#include "train/predict/dry_run_page.h"

/* ---- the table ---- */

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

/* Adds a cell; of row -1, a heading. */
static void add_matrix_cell(struct vfm_buf *b, const struct vfm_table *t, int row, int col, bool number)
{
	bool ignore;
	char *text = vfm_table_cell(t, row, col, &ignore);

	vfm_html_addf(b, "<%s%s>%s", row < 0 ? "th" : "td", number ? " class=num" : "", text);
	free(text);
}

/* A row with sections is linked with them. */
static void add_matrix_table(struct vfm_buf *b, const struct vfm_table *t, const struct matrix_page_row *rows)
{
	size_t notes;
	const char *const *note = vfm_table_notes(t, &notes);

	vfm_buf_adds(b, "<div class='wide full'><table class=rows>\n<tr><th class=num>row");
	for (int r = -1; r < vfm_table_rows(t); r++) {
		if (r >= 0 && rows[r].out->run)
			vfm_html_row(b, "#<a href='#row-%d'>%d</a>", r + 1, r + 1);
		else if (r >= 0)
			vfm_html_row(b, "#%d", r + 1);
		for (int c = 0; c < vfm_table_cols(t); c++) {
			bool number;

			if (look_at_texts(t, c, &number))
				add_matrix_cell(b, t, r, c, number);
		}
	}
	vfm_html_table_end(b);
	for (size_t i = 0; i < notes; i++)
		vfm_html_addf(b, "<p class='dim small'>%s</p>\n", note[i]);
}

/* ---- the bars ---- */

static double tflops_of(const struct matrix_page_row *r)
{
	double s = r->machine ? r->out->s[VFM_MID] : r->out->r.step_s.median;

	return r->out->fits && s > 0 ? r->out->r.flops / s / 1e12 / r->row->ranks : 0;
}

/* "3: dit-7b, 8192 tokens, 64 GPUs, tp=4 dp=16", with the configuration after it. */
static void add_row_name(struct vfm_buf *b, const struct matrix_page_row *r, int number)
{
	vfm_buf_addf(b, "%d: %s, %lld tokens, %d %s%s", number, r->row->model, (long long)r->row->tokens, r->row->ranks,
		r->machine ? "GPU" : "rank", r->row->ranks > 1 ? "s" : "");
	if (*r->out->layout)
		vfm_buf_addf(b, ", %s", r->out->layout);
	if (*r->row->label)
		vfm_buf_addf(b, ", %s", r->row->label);
}

/* Returns the published rate of a row; 0: there is none for this machine. */
static double published_of(const struct matrix_page_row *r)
{
	return r->row->elsewhere ? 0 : r->row->tflops_gpu;
}

static void add_rate_bars(struct vfm_buf *b, const struct matrix_page_row *rows, int n)
{
	double most = 1e-9;

	for (int i = 0; i < n; i++)
		most = fmax(most, fmax(tflops_of(&rows[i]), published_of(&rows[i])));
	vfm_html_addf(b, "<h2>TFLOP/s of a GPU</h2>\n<p class=dim>%s</p>\n",
		n && rows[0].machine ? "At the middle rates." : "Of a rank, measured.");
	vfm_html_table(b, "row|#TFLOP/s|");
	for (int i = 0; i < n; i++) {
		double tflops = tflops_of(&rows[i]), published = published_of(&rows[i]);
		struct vfm_buf name = {0};

		add_row_name(&name, &rows[i], i + 1);
		if (rows[i].out->fits)
			vfm_html_row(b, "%s|#%.4g|=%f", name.data, tflops, tflops / most);
		else
			vfm_html_row(b, "%s|does not fit: %.1f GiB|", name.data, rows[i].out->need / 0x1p30);
		if (published > 0)
			vfm_html_row(b, "published|#%.4g|=%f", published, published / most);
		vfm_buf_release(&name);
	}
	vfm_html_table_end(b);
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
	vfm_html_addf(b, "<h2 id=row-%d>Row %s</h2>\n", number, name.data);
	vfm_dry_run_section(b, &page);
	vfm_buf_release(&name);
	return 0;
}

int matrix_write_page(
	const char *path, const struct vfm_table *t, const struct matrix_page_row *rows, int n, struct vfm_err *err)
{
	bool predicted = n > 0 && rows[0].machine;
	struct vfm_buf b = {0};
	int rc = 0;

	vfm_html_begin(&b, predicted ? "Predicted training steps" : "Measured training steps", 0);
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
