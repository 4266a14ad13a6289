#include "train/predict/memory_chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "media/draw/chart.h"
#include "media/draw/html.h"

/* A column has two units of width. */
enum { COLUMNS = 500, LEFT = 150, RIGHT = LEFT + 2 * COLUMNS, TOP = 16, BOTTOM = 186, HEIGHT = 204, SHOWN = 9 };

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

/* The areas of a chart from above: the owners, other ones, and what is not the program's. */
static const char *area_name(const struct shown *s, int k)
{
	return k < s->owners     ? s->owner[k]
		: k == s->owners ? "other"
				 : "driver, libraries, unused parts of pool chunks";
}

static int area_colour(const struct shown *s, int k)
{
	return k < s->owners ? k : k == s->owners ? VFM_COLOUR_GREY : VFM_COLOUR_PALE_GREY;
}

/* ---- a chart ---- */

struct memory_plot {
	const struct shown *s;
	const struct vfm_dry_run_rank *r;
	struct vfm_chart_axis x, y; /* ms, GiB */
	int id[SHOWN];
	const int64_t *column[COLUMNS]; /* bytes by owner of the state with the largest sum; NULL: none */
	int64_t used[COLUMNS];
};

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

/* Returns the y of the upper edge of area k in a column; below it are the areas from k on. */
static double edge_of(const struct memory_plot *p, int c, int k)
{
	int64_t bytes = p->r->mem_beside;

	if (k <= p->s->owners)
		bytes += p->used[c];
	for (int i = 0; i < k && k <= p->s->owners; i++)
		bytes -= p->id[i] >= 0 && p->column[c] ? p->column[c][p->id[i]] : 0;
	return vfm_chart_axis_at(&p->y, gib(bytes));
}

/* Area k, drawn down to the axis; those below are drawn over it. */
static void add_owner_area(struct vfm_buf *b, const struct memory_plot *p, int k)
{
	double y = edge_of(p, 0, k), next;

	vfm_html_addf(b, "<path class='a%d' d='M%d %dV%.1f", area_colour(p->s, k), LEFT, BOTTOM, y);
	for (int c = 1; c < COLUMNS; c++) {
		next = edge_of(p, c, k);
		if (fabs(next - y) < 0.05)
			continue;
		vfm_html_addf(b, "H%dV%.1f", LEFT + 2 * c, next);
		y = next;
	}
	vfm_html_addf(b, "H%dV%dz'/>\n", RIGHT, BOTTOM);
}

/* A capacity far above all peaks is not drawn. */
static void add_capacity(struct vfm_buf *b, const struct memory_plot *p, double capacity)
{
	double y = vfm_chart_axis_at(&p->y, capacity);

	if (y < 0)
		vfm_html_addf(b, "<text x='%d' y='%d' text-anchor='end'>capacity %.1f GiB, above this chart</text>\n",
			RIGHT - 5, TOP - 5, capacity);
	else
		vfm_html_addf(b,
			"<path style='stroke:var(--soft);stroke-width:3.5;opacity:.8' d='M%d %.1fH%d'/>"
			"<path class='dashed' style='stroke:var(--red);stroke-width:2' d='M%d %.1fH%d'/>"
			"<rect x='%d' y='%.1f' width='96' height='12' rx='2' style='fill:var(--soft);opacity:.9'/>"
			"<text class='red' x='%d' y='%.1f' text-anchor='end'>capacity %.1f GiB</text>\n",
			LEFT, y, RIGHT, LEFT, y, RIGHT, RIGHT - 98, y - 14, RIGHT - 5, y - 4.5, capacity);
}

static void add_peak_mark(struct vfm_buf *b, const struct memory_plot *p)
{
	double x = vfm_chart_axis_at(&p->x, fmin(p->r->memory.peak_s, p->r->memory_s) * 1e3),
	       y = vfm_chart_axis_at(&p->y, gib(p->r->mem_beside + p->r->memory.peak));

	if (p->r->memory.peak_s >= 0)
		vfm_html_addf(b,
			"<path style='stroke:var(--ink);stroke-dasharray:2 3;stroke-width:1' d='M%.1f %dV%.1f'/>"
			"<circle cx='%.1f' cy='%.1f' r='3.5' style='fill:var(--ink)'/>",
			x, BOTTOM, y, x, y);
}

static void add_memory_heading(struct vfm_buf *b, const struct vfm_dry_run_rank *r, double capacity)
{
	const struct vfm_sim_memory *m = &r->memory;
	double all = gib(m->peak + r->mem_beside);

	vfm_html_addf(b,
		"<h3>Rank %d, pp stage %d <span class=dim>peak %.2f GiB, with %.1f GiB of the driver, libraries and "
		"unused parts of pool chunks %.2f GiB",
		r->rank, r->stage, gib(m->peak), gib(r->mem_beside), all);
	if (m->peak_s < 0)
		vfm_buf_adds(b, ", before the simulated step");
	else
		vfm_html_addf(b, ", at %.1f ms", m->peak_s * 1e3);
	if (all <= capacity)
		vfm_html_addf(b, "; %.1f GiB are left", capacity - all);
	else
		vfm_html_addf(b, "; <span class=failed>%.1f GiB more than the capacity</span>", all - capacity);
	vfm_buf_adds(b, "</span></h3>\n");
}

/* top, capacity: GiB at the upper end, and of the machine. */
static void add_memory_plot(struct vfm_buf *b, const struct shown *s, int rank, double top, double capacity)
{
	struct memory_plot p = {.s = s, .r = s->rank[rank]};

	p.x = (struct vfm_chart_axis){.hi = p.r->memory_s * 1e3, .from = LEFT, .to = RIGHT, .unit = " ms"};
	p.y = (struct vfm_chart_axis){.hi = top, .from = BOTTOM, .to = TOP, .unit = " GiB"};
	vfm_chart_axis_place_ticks(&p.x, 10, 0);
	vfm_chart_axis_place_ticks(&p.y, 4, 0);
	for (int k = 0; k < s->owners; k++)
		p.id[k] = find_owner(&p.r->memory, s->owner[k]);
	fill_columns(&p);
	vfm_buf_adds(b, "<div class=box style='margin-bottom:10px'>");
	add_memory_heading(b, p.r, capacity);
	vfm_html_addf(b, "<svg viewBox='0 0 %d %d' role=img>", RIGHT + 20, HEIGHT);
	vfm_chart_y_axis(b, &p.y, LEFT, RIGHT);
	vfm_chart_x_axis(b, &p.x, BOTTOM, BOTTOM);
	for (int k = 0; k <= s->owners + 1; k++)
		add_owner_area(b, &p, k);
	add_capacity(b, &p, capacity);
	add_peak_mark(b, &p);
	vfm_buf_adds(b, "</svg></div>\n");
}

/* ---- the section ---- */

static void add_owner_legend(struct vfm_buf *b, const struct shown *s)
{
	vfm_buf_adds(b, "<p class=legend>");
	for (int k = 0; k <= s->owners + 1; k++) {
		vfm_buf_adds(b, "<span>");
		vfm_html_area_swatch(b, area_colour(s, k));
		vfm_html_addf(b, "%s</span> ", area_name(s, k));
	}
	vfm_buf_adds(b, "</p>\n");
}

/* Returns the bytes of area k at the peak of a rank. */
static int64_t bytes_at_peak(const struct shown *s, const struct vfm_sim_memory *m, int k)
{
	int64_t rest = m->peak;
	int i;

	if (k < s->owners)
		return (i = find_owner(m, s->owner[k])) < 0 ? 0 : m->owner[i].at_peak;
	for (k = 0; k < s->owners; k++)
		rest -= bytes_at_peak(s, m, k);
	return rest;
}

static void add_owner_table(struct vfm_buf *b, const struct shown *s)
{
	vfm_buf_adds(b, "<div class=wide><table>\n<tr><th>GiB at the peak");
	for (int r = 0; r < s->ranks; r++)
		vfm_html_addf(b, "<th class=num>pp stage %d", s->rank[r]->stage);
	for (int k = 0; k <= s->owners; k++) {
		vfm_buf_adds(b, "\n<tr><td>");
		vfm_html_area_swatch(b, area_colour(s, k));
		vfm_html_addf(b, "%s", area_name(s, k));
		for (int r = 0; r < s->ranks; r++) {
			const struct vfm_sim_memory *m = &s->rank[r]->memory;
			int64_t bytes = bytes_at_peak(s, m, k);

			vfm_html_addf(b, "<td class=num>%.2f <span class=dim>%.0f %%</span>", gib(bytes),
				m->peak ? 100 * (double)bytes / (double)m->peak : 0);
		}
	}
	vfm_buf_adds(b, "\n<tr><td>all");
	for (int r = 0; r < s->ranks; r++)
		vfm_html_addf(b, "<td class=num>%.2f <span class=dim>100 %%</span>", gib(s->rank[r]->memory.peak));
	vfm_buf_adds(b, "\n");
	vfm_html_table_end(b);
}

void vfm_memory_section(
	struct vfm_buf *b, const struct vfm_dry_run *d, const struct vfm_machine *machine, const char *heading)
{
	struct shown s = {0};
	double top = 0, capacity = gib(machine->capacity);

	choose_rank_of_stages(&s, d);
	choose_owners(&s);
	for (int r = 0; r < s.ranks; r++)
		top = fmax(top, gib(s.rank[r]->memory.peak + s.rank[r]->mem_beside));
	top = 3 * top < capacity ? 1.125 * top : fmax(top, capacity);
	if (s.ranks) {
		vfm_html_addf(b,
			"<%s>Memory by owner</%s>\n<p class=dim>Of each pp stage the simulated rank with the highest "
			"peak, "
			"in a step of %.1f ms%s. The host allocates ahead of the device: memory counts from when the "
			"compute stream begins the work that is enqueued behind the allocation. The dot is the "
			"peak.</p>\n",
			heading, heading, s.rank[0]->memory_s * 1e3,
			d->steps ? ": of the plan, the one that needs the most memory" : "");
		add_owner_legend(b, &s);
	}
	for (int r = 0; r < s.ranks; r++)
		add_memory_plot(b, &s, r, 1.04 * top, capacity);
	if (s.ranks)
		add_owner_table(b, &s);
	free(s.rank);
}
