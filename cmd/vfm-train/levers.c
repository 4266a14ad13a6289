/* levers.c - the table of --dry-run --levers: settings that save memory, and what they cost. */
#include <math.h>
#include <stdio.h>

#include "dry_run.h"
#include "io/version.h"
#include "train/predict/levers.h"

static const struct vfm_table_column columns[] = {{"set", "settings", VFM_TABLE_STRINGS}, {"gpus", "GPUs", 0},
	{"fits", "fits", 0}, {"gib", "GiB", 1}, {"host_gib", "host GiB", 1}, {"step_ms", "step ms", 0},
	{"speed", "speed", 2}, {"values", "values", 0}, {0}};

static void add_lever(struct vfm_table *t, const struct vfm_lever_row *x)
{
	vfm_table_row(t);
	vfm_table_str(t, "set", *x->set ? x->set : "as given");
	vfm_table_i64(t, "gpus", x->ranks);
	vfm_table_str(t, "fits", x->refused ? "refused" : x->fits ? "yes" : "no");
	vfm_table_str(t, "values", x->rounds ? "rounded" : "same");
	if (x->refused) {
		vfm_table_note(t, "%s", x->why);
		return;
	}
	vfm_table_f64(t, "gib", (double)x->bytes / 0x1p30);
	vfm_table_f64(t, "host_gib", x->host / 0x1p30);
	vfm_table_f64(t, "step_ms", x->s * 1e3);
	if (isfinite(x->speed))
		vfm_table_f64(t, "speed", x->speed);
}

int check_levers(const struct vfm_table_opts *table, struct vfm_err *err)
{
	return vfm_table_check(columns, table, err);
}

int print_levers(
	const struct vfm_dry_run_opts *o, const char *machine, const struct vfm_table_opts *table, struct vfm_err *err)
{
	struct vfm_levers l;
	struct vfm_table *t;
	int rc;

	vfm_levers_find(o, &l);
	t = vfm_table_new(columns);
	for (int i = 0; i < l.n; i++)
		add_lever(t, &l.v[i]);
	vfm_table_note(t, "each %s has %.1f GiB; speed: per GPU, relative to one with memory for everything",
		o->machine->name, (double)o->machine->capacity / 0x1p30);
	vfm_table_note(t, "predicted for the machine %s, not measured; vfm %s", machine, vfm_version());
	rc = vfm_table_print(t, table, stdout, err);
	vfm_table_free(t);
	vfm_levers_release(&l);
	return rc;
}
