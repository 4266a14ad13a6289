#include "train/predict/memory_chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "media/draw/html.h"
#include "media/draw/plot_axis.h"

/* A column has two units of width. */
enum { COLUMNS = 500, LEFT = 150, WIDTH = 1000, TOP = 16, BOTTOM = 186, HEIGHT = 204, SHOWN = 9 };

static const char *const owner_colours[SHOWN] = {
	"#2f6fde", "#e0662b", "#2b9a5b", "#a24fd0", "#a3811d", "#1a9fb3", "#d6396f", "#6f8f2f", "#5b5fc7"};
static const char other_colour[] = "#7b8794", context_colour[] = "#b4bac4";

static double gib(int64_t bytes)
{
	return (double)bytes / 0x1p30;
}

/* ---- text ---- */

/* How many owners have at least a hundredth of the peak each, at most SHOWN. */
static int count_large(const struct vfm_sim_memory *m)
{
	int n = 0;

	while (n < m->owners && n < SHOWN && m->owner[n].at_peak * 100 >= m->peak && m->owner[n].at_peak > 0)
		n++;
	return n;
}

void vfm_memory_json(struct vfm_buf *b, const struct vfm_sim_memory *m)
{
	json_t *o = json_object();

	for (int i = 0; i < m->owners; i++)
		if (m->owner[i].at_peak > 0)
			json_object_set_new(o, m->owner[i].name, json_integer(m->owner[i].at_peak));
	vfm_json_text(b, o, 0);
	json_decref(o);
}

void vfm_memory_sentence(struct vfm_buf *b, const struct vfm_sim_memory *m)
{
	int n = count_large(m);
	int64_t rest = m->peak;

	for (int i = 0; i < n; i++) {
		vfm_buf_addf(b, "%s%s %.2f GiB", i ? ", " : "", m->owner[i].name, gib(m->owner[i].at_peak));
		rest -= m->owner[i].at_peak;
	}
	if (rest > 0)
		vfm_buf_addf(b, "%sother %.2f GiB", n ? ", " : "", gib(rest));
}

void vfm_memory_trace(FILE *f, const struct vfm_sim_memory *m, int rank)
{
	int n = count_large(m);

	for (int i = 0; i < m->points; i++) {
		const int64_t *bytes = m->bytes + (size_t)i * (size_t)m->owners;
		int64_t rest = m->point[i].used;

		fprintf(f, ",\n{\"ph\":\"C\",\"name\":\"memory, MiB\",\"pid\":%d,\"ts\":%.3f,\"args\":{", rank,
			m->point[i].s * 1e6);
		for (int k = 0; k < n; k++) {
			fprintf(f, "\"%s\":%.3f,", m->owner[k].name, (double)bytes[k] / 0x1p20);
			rest -= bytes[k];
		}
		fprintf(f, "\"other\":%.3f}}", (double)rest / 0x1p20);
	}
}

/* ---- the ranks and owners that are shown ---- */

struct shown {
	const struct vfm_dry_run_rank **rank; /* [ranks] by pp stage */
	int ranks;
	char owner[SHOWN][sizeof(((struct vfm_sim_owner *)NULL)->name)];
	int owners;
};

static int find_owner(const struct vfm_sim_memory *m, const char *name)
{
	int i = 0;

	while (i < m->owners && strcmp(m->owner[i].name, name) != 0)
		i++;
	return i < m->owners ? i : -1;
}

static int64_t at_peak(const struct vfm_sim_memory *m, const char *name)
{
	int i = find_owner(m, name);

	return i < 0 ? 0 : m->owner[i].at_peak;
}

static void choose_rank_of_stages(struct shown *s, const struct vfm_dry_run *d)
{
	s->rank = vfm_calloc((size_t)d->n + 1, sizeof(struct vfm_dry_run_rank *));
	for (int stage = 0, left = d->n; left > 0; stage++) {
		const struct vfm_dry_run_rank *best = NULL;

		for (int i = 0; i < d->n; i++) {
			const struct vfm_dry_run_rank *r = &d->rank[i];

			if (r->stage != stage)
				continue;
			left--;
			if (r->memory.owners && (!best || r->memory.peak > best->memory.peak))
				best = r;
		}
		if (best)
			s->rank[s->ranks++] = best;
	}
}

/* The largest owners at the peaks of all ranks, so that each has one colour. */
static void choose_owners(struct shown *s)
{
	for (; s->owners < SHOWN; s->owners++) {
		const struct vfm_sim_owner *best = NULL;

		for (int r = 0; r < s->ranks; r++)
			for (int i = 0; i < count_large(&s->rank[r]->memory); i++) {
				const struct vfm_sim_owner *o = &s->rank[r]->memory.owner[i];
				bool chosen = false;

				for (int k = 0; k < s->owners; k++)
					chosen = chosen || !strcmp(s->owner[k], o->name);
				if (!chosen && (!best || o->at_peak > best->at_peak))
					best = o;
			}
		if (!best)
			break;
		memcpy(s->owner[s->owners], best->name, sizeof(best->name));
	}
}

/* ---- a chart ---- */

struct memory_plot {
	const struct shown *s;
	const struct vfm_dry_run_rank *r;
	const struct vfm_machine *machine;
	double top; /* bytes at the upper end */
	int id[SHOWN];
	const int64_t *column[COLUMNS]; /* bytes by owner of the state with the largest sum; NULL: none */
	int64_t used[COLUMNS];
};

static double memory_y(const struct memory_plot *p, double bytes)
{
	return BOTTOM - (BOTTOM - TOP) * bytes / p->top;
}

static double memory_x(const struct memory_plot *p, double s)
{
	return LEFT + WIDTH * fmin(fmax(s / p->r->memory_s, 0), 1);
}

static void fill_column(struct memory_plot *p, int c, int point)
{
	const struct vfm_sim_memory *m = &p->r->memory;

	if (p->column[c] && p->used[c] >= m->point[point].used)
		return;
	p->column[c] = m->bytes + (size_t)point * (size_t)m->owners;
	p->used[c] = m->point[point].used;
}

static void fill_columns(struct memory_plot *p)
{
	const struct vfm_sim_memory *m = &p->r->memory;

	for (int i = 0; i < m->points; i++) {
		double next = i + 1 < m->points ? m->point[i + 1].s : p->r->memory_s;
		int from = (int)(m->point[i].s / p->r->memory_s * COLUMNS), to;

		if (m->point[i].s >= p->r->memory_s && i > 0)
			break; /* after the step */
		from = from < 0 ? 0 : from >= COLUMNS ? COLUMNS - 1 : from;
		to = (int)ceil(next / p->r->memory_s * COLUMNS);
		to = to > COLUMNS ? COLUMNS : to <= from ? from + 1 : to;
		for (int c = from; c < to; c++)
			fill_column(p, c, i);
	}
}

/* Returns the bytes of a column below the upper edge of layer k: the context, other owners, and those shown from the
 * last on.  k = owners: the edge of the other ones. */
static double edge_of(const struct memory_plot *p, int c, int k)
{
	int64_t above = 0;

	for (int i = 0; i < k && i < p->s->owners; i++)
		above += p->id[i] >= 0 && p->column[c] ? p->column[c][p->id[i]] : 0;
	return (double)(p->r->mem_beside + p->used[c] - above);
}

/* An area from the axis to the edge of a layer; those below are drawn over it. */
static void add_layer(struct vfm_buf *b, const struct memory_plot *p, int k, const char *colour)
{
	double y = memory_y(p, edge_of(p, 0, k)), next;
	int n = 0;

	vfm_buf_addf(b, "<path style=\"fill:%s;stroke:none\" d=\"M%d %dV%.1f", colour, LEFT, BOTTOM, y);
	for (int c = 1; c < COLUMNS; c++) {
		next = memory_y(p, edge_of(p, c, k));
		n++;
		if (fabs(next - y) < 0.05)
			continue;
		vfm_buf_addf(b, "h%dV%.1f", 2 * n, next);
		y = next;
		n = 0;
	}
	vfm_buf_addf(b, "H%dV%dz\"/>\n", LEFT + WIDTH, BOTTOM);
}

static void add_memory_axes(struct vfm_buf *b, const struct memory_plot *p)
{
	struct vfm_plot_axis y = {.lo = 0, .hi = p->top / 0x1p30}, x = {.lo = 0, .hi = p->r->memory_s * 1e3};
	char text[VFM_PLOT_LABEL];

	vfm_plot_axis_finish(&y, 4, 0);
	vfm_plot_axis_finish(&x, 10, 0);
	for (int i = 0; i < y.n_ticks; i++) {
		double at = memory_y(p, y.tick[i] * 0x1p30);

		if (at < TOP - 0.5)
			continue;
		vfm_plot_axis_label(&y, y.tick[i], text);
		vfm_buf_addf(b,
			"<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
			"text-anchor=\"end\">%s GiB</text>",
			LEFT, at, LEFT + WIDTH, at, LEFT - 6, at + 3.5, text);
	}
	for (int i = 0; i < x.n_ticks; i++) {
		double at = LEFT + WIDTH * x.tick[i] / x.hi;

		vfm_plot_axis_label(&x, x.tick[i], text);
		vfm_buf_addf(b,
			"<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" "
			"text-anchor=\"%s\">%s ms</text>",
			at, BOTTOM, at, BOTTOM + 4, at, HEIGHT - 4,
			at > LEFT + WIDTH - 20   ? "end"
				: at < LEFT + 20 ? "start"
						 : "middle",
			text);
	}
}

/* A capacity far above all peaks is not drawn. */
static void add_capacity(struct vfm_buf *b, const struct memory_plot *p)
{
	double y = memory_y(p, (double)p->machine->capacity);

	if (y < 0) {
		vfm_buf_addf(b,
			"<text x=\"%d\" y=\"%d\" text-anchor=\"end\">capacity %.1f GiB, above this chart</text>\n",
			LEFT + WIDTH - 5, TOP - 5, gib(p->machine->capacity));
		return;
	}
	vfm_buf_addf(b,
		"<path style=\"stroke:var(--soft);stroke-width:3.5;opacity:.8\" d=\"M%d %.1fH%d\"/><path "
		"class=\"dashed\" "
		"style=\"stroke:var(--red);stroke-width:2\" d=\"M%d %.1fH%d\"/><rect x=\"%d\" y=\"%.1f\" width=\"96\" "
		"height=\"12\" rx=\"2\" style=\"fill:var(--soft);opacity:.9\"/><text x=\"%d\" y=\"%.1f\" "
		"text-anchor=\"end\" style=\"fill:var(--red)\">capacity %.1f GiB</text>\n",
		LEFT, y, LEFT + WIDTH, LEFT, y, LEFT + WIDTH, LEFT + WIDTH - 98, y - 14, LEFT + WIDTH - 5, y - 4.5,
		gib(p->machine->capacity));
}

static void add_peak_mark(struct vfm_buf *b, const struct memory_plot *p)
{
	double top;

	if (p->r->memory.peak_s < 0)
		return;
	top = memory_y(p, (double)(p->r->mem_beside + p->r->memory.peak));
	vfm_buf_addf(b,
		"<path style=\"stroke:var(--ink);stroke-dasharray:2 3;stroke-width:1\" d=\"M%.1f %dV%.1f\"/><circle "
		"cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" style=\"fill:var(--ink)\"/>",
		memory_x(p, p->r->memory.peak_s), BOTTOM, top, memory_x(p, p->r->memory.peak_s), top);
}

static void add_memory_heading(struct vfm_buf *b, const struct memory_plot *p)
{
	const struct vfm_sim_memory *m = &p->r->memory;
	double all = gib(m->peak + p->r->mem_beside), capacity = gib(p->machine->capacity);

	vfm_buf_addf(b,
		"<h3>Rank %d, pp stage %d <span class=\"dim\" style=\"font-weight:400\">peak %.2f GiB, with %.1f GiB "
		"of "
		"the driver, libraries and unused parts of pool chunks %.2f GiB",
		p->r->rank, p->r->stage, gib(m->peak), gib(p->r->mem_beside), all);
	if (m->peak_s < 0)
		vfm_buf_adds(b, ", before the simulated step");
	else
		vfm_buf_addf(b, ", at %.1f ms", m->peak_s * 1e3);
	if (all <= capacity)
		vfm_buf_addf(b, "; %.1f GiB are left", capacity - all);
	else
		vfm_buf_addf(b, "; <span class=\"failed\">%.1f GiB more than the capacity</span>", all - capacity);
	vfm_buf_adds(b, "</span></h3>\n");
}

static void add_memory_plot(
	struct vfm_buf *b, const struct shown *s, int rank, const struct vfm_machine *machine, double top)
{
	struct memory_plot p = {.s = s, .r = s->rank[rank], .machine = machine, .top = top};

	for (int k = 0; k < s->owners; k++)
		p.id[k] = find_owner(&p.r->memory, s->owner[k]);
	fill_columns(&p);
	vfm_buf_adds(b, "<div class=\"box\" style=\"margin-bottom:10px\">");
	add_memory_heading(b, &p);
	vfm_buf_addf(b, "<svg class=\"memory\" viewBox=\"0 0 %d %d\" role=\"img\">", LEFT + WIDTH, HEIGHT);
	add_memory_axes(b, &p);
	for (int k = 0; k < s->owners; k++)
		add_layer(b, &p, k, owner_colours[k]);
	add_layer(b, &p, s->owners, other_colour);
	vfm_buf_addf(b, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" style=\"fill:%s\"/>", LEFT,
		memory_y(&p, (double)p.r->mem_beside), WIDTH, BOTTOM - memory_y(&p, (double)p.r->mem_beside),
		context_colour);
	add_capacity(b, &p);
	add_peak_mark(b, &p);
	vfm_buf_adds(b, "</svg></div>\n");
}

/* ---- the section ---- */

static void add_owner_legend(struct vfm_buf *b, const struct shown *s)
{
	vfm_buf_adds(b, "<p class=\"legend\">");
	for (int k = 0; k <= s->owners + 1; k++) {
		vfm_buf_adds(b, "<span style=\"white-space:nowrap\">");
		vfm_html_area_swatch(b,
			k < s->owners            ? owner_colours[k]
				: k == s->owners ? other_colour
						 : context_colour);
		vfm_html_text(b,
			k < s->owners            ? s->owner[k]
				: k == s->owners ? "other"
						 : "driver, libraries, unused parts of pool chunks");
		vfm_buf_adds(b, "</span> ");
	}
	vfm_buf_adds(b, "</p>\n");
}

static void add_owner_row(
	struct vfm_buf *b, const struct shown *s, const char *name, const char *colour, const int64_t *bytes)
{
	vfm_buf_adds(b, "<tr><td>");
	if (colour)
		vfm_html_area_swatch(b, colour);
	vfm_html_text(b, name);
	vfm_buf_adds(b, "</td>");
	for (int r = 0; r < s->ranks; r++) {
		int64_t peak = s->rank[r]->memory.peak;

		vfm_buf_addf(b, "<td class=\"num\">%.2f <span class=\"dim\">%.0f %%</span></td>", gib(bytes[r]),
			peak ? 100 * (double)bytes[r] / (double)peak : 0);
	}
	vfm_buf_adds(b, "</tr>\n");
}

static void add_owner_table(struct vfm_buf *b, const struct shown *s)
{
	int64_t *bytes = vfm_calloc((size_t)s->ranks + 1, sizeof(*bytes)),
		*rest = vfm_calloc((size_t)s->ranks + 1, sizeof(*rest));

	vfm_buf_adds(b, "<div class=\"wide\"><table>\n<tr><th>GiB at the peak</th>");
	for (int r = 0; r < s->ranks; r++) {
		vfm_buf_addf(b, "<th class=\"num\">pp stage %d</th>", s->rank[r]->stage);
		rest[r] = s->rank[r]->memory.peak;
	}
	vfm_buf_adds(b, "</tr>\n");
	for (int k = 0; k < s->owners; k++) {
		for (int r = 0; r < s->ranks; r++) {
			bytes[r] = at_peak(&s->rank[r]->memory, s->owner[k]);
			rest[r] -= bytes[r];
		}
		add_owner_row(b, s, s->owner[k], owner_colours[k], bytes);
	}
	add_owner_row(b, s, "other", other_colour, rest);
	for (int r = 0; r < s->ranks; r++)
		bytes[r] = s->rank[r]->memory.peak;
	add_owner_row(b, s, "all", NULL, bytes);
	vfm_buf_adds(b, "</table></div>\n");
	free(bytes);
	free(rest);
}

void vfm_memory_section(
	struct vfm_buf *b, const struct vfm_dry_run *d, const struct vfm_machine *machine, const char *heading)
{
	struct shown s = {0};
	int64_t top = 0;

	choose_rank_of_stages(&s, d);
	choose_owners(&s);
	for (int r = 0; r < s.ranks; r++)
		if (s.rank[r]->memory.peak + s.rank[r]->mem_beside > top)
			top = s.rank[r]->memory.peak + s.rank[r]->mem_beside;
	top = 3 * top < machine->capacity ? top + top / 8 : top < machine->capacity ? machine->capacity : top;
	if (s.ranks) {
		vfm_buf_addf(b,
			"<%s>Memory by owner</%s>\n<p class=\"dim\">Of each pp stage the simulated rank with the "
			"highest "
			"peak, "
			"in a step of %.1f ms%s. The host allocates ahead of the device: memory counts from when the "
			"compute stream begins the work that is enqueued behind the allocation. The dot is the "
			"peak.</p>\n",
			heading, heading, s.rank[0]->memory_s * 1e3,
			d->steps ? ": of the plan, the one that needs the most memory" : "");
		add_owner_legend(b, &s);
	}
	for (int r = 0; r < s.ranks; r++)
		add_memory_plot(b, &s, r, machine, 1.04 * (double)top);
	if (s.ranks)
		add_owner_table(b, &s);
	free(s.rank);
}
