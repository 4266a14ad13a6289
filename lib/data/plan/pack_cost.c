/* pack_cost.c - the cost of samples, by coefficients or by a measured table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/pack.h"
#include "io/document.h"
#include "io/json.h"

enum { MAX_POINTS = 4096 };

struct vfm_pack_cost vfm_pack_cost_default(void)
{
	return (struct vfm_pack_cost){.a = 1, .b = 1.0 / (7 * 1152)};
}

void vfm_pack_cost_release(struct vfm_pack_cost *cost)
{
	free(cost->points);
	*cost = (struct vfm_pack_cost){0};
}

static int parse_points(struct vfm_pack_cost *c, const json_t *table, struct vfm_err *err)
{
	size_t n = json_array_size(table);

	if (!json_is_array(table) || n < 2 || n > MAX_POINTS)
		return vfm_fail(err, VFM_EUSAGE, "table: expected 2 to %d points [tokens, cost]", MAX_POINTS);
	c->points = vfm_calloc(n, sizeof(*c->points));
	c->n_points = (int32_t)n;
	for (size_t i = 0; i < n; i++) {
		const json_t *p = json_array_get(table, i), *tokens = json_array_get(p, 0),
			     *cost = json_array_get(p, 1);
		struct vfm_cost_point last = i ? c->points[i - 1] : (struct vfm_cost_point){0};

		c->points[i] = (struct vfm_cost_point){json_number_value(tokens), json_number_value(cost)};
		if (json_array_size(p) != 2 || !json_is_number(tokens) || !json_is_number(cost) ||
			!(c->points[i].tokens > last.tokens) || !(c->points[i].cost >= last.cost) ||
			!(c->points[i].cost > 0))
			return vfm_fail(err, VFM_EUSAGE,
				"table[%zu]: expected [tokens, cost], both > 0, more tokens than the point before and "
				"no smaller cost",
				i);
	}
	return 0;
}

static int parse_cost_file(struct vfm_pack_cost *c, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "type", "a", "b", "c", "table", "unit", "note", NULL};
	const json_t *table = json_object_get(o, "table");
	const char *type = "";

	TRY(vfm_json_str(o, "", "type", true, &type, err));
	if (strcmp(type, "vfm-cost"))
		return vfm_fail(err, VFM_EUSAGE, "type: expected 'vfm-cost', got '%.40s'", type);
	TRY(vfm_json_only_keys(o, "", keys, err));
	TRY(vfm_json_f64(o, "", "a", !table, &c->a, err));
	TRY(vfm_json_f64(o, "", "b", !table, &c->b, err));
	TRY(vfm_json_f64(o, "", "c", false, &c->c, err));
	if (table && (json_object_get(o, "a") || json_object_get(o, "b")))
		return vfm_fail(err, VFM_EUSAGE, "give either a and b or a table, not both");
	if (!(c->a >= 0 && c->b >= 0 && c->c >= 0 && (table || c->a + c->b > 0)))
		return vfm_fail(err, VFM_EUSAGE, "a, b and c must be >= 0, and not both a and b 0");
	return table ? parse_points(c, table, err) : 0;
}

int vfm_pack_cost_load(const char *path, struct vfm_pack_cost *cost, struct vfm_err *err)
{
	struct vfm_pack_cost c = {0};
	json_t *o = vfm_document_load(path, 1 << 20, err);
	int rc;

	if (!o)
		return err ? err->code : VFM_EUSAGE;
	rc = parse_cost_file(&c, o, err);
	json_decref(o);
	if (rc < 0) {
		vfm_pack_cost_release(&c);
		return vfm_err_context(err, "'%s'", path);
	}
	*cost = c;
	return 0;
}

/* Beyond the table: a s + b s^2 through its last two points, or without curvature in them a s. */
static double extrapolate(const struct vfm_pack_cost *c, double s)
{
	struct vfm_cost_point p = c->points[c->n_points - 2], q = c->points[c->n_points - 1];
	double b = (q.cost / q.tokens - p.cost / p.tokens) / (q.tokens - p.tokens);

	b = b > 0 ? b : 0;
	return s * (q.cost / q.tokens + b * (s - q.tokens));
}

double vfm_pack_cost_of(const struct vfm_pack_cost *c, int32_t tokens)
{
	double s = tokens;
	struct vfm_cost_point lo = {0}, hi;
	int32_t a = 0, b = c->n_points - 1;

	if (c->n_points == 0)
		return c->a * s + c->b * s * s;
	if (s > c->points[b].tokens)
		return extrapolate(c, s);
	while (a < b) { /* the first point with at least s tokens */
		int32_t mid = a + (b - a) / 2;

		if (c->points[mid].tokens < s)
			a = mid + 1;
		else
			b = mid;
	}
	hi = c->points[a];
	if (a > 0)
		lo = c->points[a - 1];
	return lo.cost + (hi.cost - lo.cost) * (s - lo.tokens) / (hi.tokens - lo.tokens);
}
