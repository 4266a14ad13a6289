/* table - the rows of tables as records. */
#include <stdlib.h>
#include <string.h>

#include "io/opt.h"
#include "curate.h"
#include "curate/table/table_records.h"

/* The source has done all. */
static int table_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)rec, (void)out, (void)ctx, (void)worker, (void)err;
	return 0;
}

int curate_table(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_table_records_opts o = {0};
	struct vfm_stage stage = {.name = "table", .fn = table_record, .next = vfm_table_records_next};
	struct vfm_table_records *t = NULL;
	const char *sep = NULL;
	char *options = NULL;
	struct vfm_opt opts[] = {
		{VFM_OPT_LIST, 0, "take", "COLUMN=KEY", "columns to read, with commas; may be repeated (default all)",
			&o.take},
		{VFM_OPT_LIST, 0, "numbers", "COLUMN", "columns whose texts are numbers; may be repeated", &o.numbers},
		{VFM_OPT_STR, 0, "sep", "CHAR", "the separator of CSV, or tab (default: found in the first line)",
			&sep},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate table",
		.synopsis = "[OPTION ...] [TABLE ...]",
		.summary = "read the rows of CSV and JSON tables as records",
		.opts = opts,
	};
	int rc = vfm_opt_parse(&cmd, argc, argv, &o.n_files, err);

	if (rc != 0)
		goto out;
	TRY_OUT(curate_parse_sep(sep, &o.sep, err));
	o.files = argv + 1;
	TRY_OUT(vfm_table_records_open(&t, &o, err));
	stage.source = t;
	stage.options = options = vfm_table_records_settings(&o);
	rc = vfm_stage_run(&stage, NULL, err);
out:
	vfm_table_records_close(t);
	free(options);
	vfm_strlist_release(&o.take);
	vfm_strlist_release(&o.numbers);
	return rc;
}
