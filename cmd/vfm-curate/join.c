/* join - adds columns of a table to the records. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "curate/table/join.h"
#include "data/record/record.h"
#include "data/record/stage_link.h"

static int join_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker;
	return vfm_join_record(ctx, rec, err);
}

int curate_parse_sep(const char *text, char *sep, struct vfm_err *err)
{
	*sep = 0;
	if (!text)
		return 0;
	*sep = !strcmp(text, "tab") ? '\t' : text[0];
	if (!*sep || (*sep != '\t' && text[1]) || strchr("\"\r\n", *sep) || *sep & 0x80)
		return vfm_fail(err, VFM_EUSAGE, "--sep: expected an ASCII character or 'tab', got '%s'", text);
	return 0;
}

/* The rows without a record are known only if this process has seen all records. */
static void report_rows(const struct vfm_join *j, const struct vfm_stage_counts *c)
{
	const struct vfm_stage_link *link = vfm_stage_link();
	bool is_all = !c->copied && !c->other_shares && (!link || !link->skip);
	const struct vfm_table_join_stats *s = vfm_join_stats(j);

	vfm_info("table: %lld rows = %lld joined + %lld not joined%s; %lld records had no row", (long long)s->rows,
		(long long)s->used, (long long)(s->rows - s->used), is_all ? "" : " to the records of this run",
		(long long)s->without_row);
	if (s->without_key)
		vfm_info("%lld rows of the table have no key", (long long)s->without_key);
	if (s->same)
		vfm_info("%lld rows of the table repeat a key", (long long)s->same);
}

/* In a continued run: the records so far must be of the same table.  The last entry of their header is this stage's. */
static int check_resumed(const struct vfm_join *j, const char *table, struct vfm_err *err)
{
	const struct vfm_stage_link *link = vfm_stage_link();
	struct vfm_jsonl lines = {0};
	struct vfm_stage_progress at;
	const json_t *chain, *own;
	json_t *header = NULL;
	int rc = 0;

	if (!link)
		return 0;
	vfm_progress_stage_read(&link->progress->stage[link->index], &at);
	if (!at.inputs)
		return 0;
	TRY(vfm_jsonl_open(&lines, link->out_path, err));
	if (vfm_jsonl_next(&lines, &header, NULL) == 1) {
		chain = json_object_get(header, "provenance");
		own = json_array_get(chain, json_array_size(chain) - 1);
		if (own && strcmp(vfm_rec_str(own, "options", ""), vfm_join_settings(j)) != 0)
			rc = vfm_fail(err, VFM_EUSAGE,
				"'%s' has changed since the run joined records to it: --update joins them again",
				table);
		json_decref(header);
	}
	vfm_jsonl_close(&lines);
	return rc;
}

static int run_join(struct vfm_join_opts *o, struct vfm_stage *stage, struct vfm_err *err)
{
	struct vfm_stage_counts counts;
	struct vfm_join *j;
	int rc;

	TRY(vfm_join_open(&j, o, err));
	stage->ctx = j;
	stage->options = vfm_join_settings(j);
	rc = check_resumed(j, o->table, err);
	if (rc == 0)
		rc = vfm_stage_run(stage, &counts, err);
	if (rc == 0 || (rc == VFM_EINPUT && !err->msg[0]))
		report_rows(j, &counts);
	vfm_join_close(j);
	return rc;
}

int curate_join(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_stage stage = {.name = "join",
		.version = 1, /* 0: reasons had the key of the record */
		.fn = join_record};
	struct vfm_join_opts o = {0};
	const char *sep = NULL;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 0, "with", "TABLE", "JSON Lines, a JSON array or CSV", &o.table, .required = true},
		{VFM_OPT_STR, 0, "on", "KEY=COLUMN", "the key of records that equals a column (default id=id)", &o.on},
		{VFM_OPT_LIST, 0, "take", "COLUMN=KEY", "columns to add, with commas; may be repeated (default all)",
			&o.take},
		{VFM_OPT_LIST, 0, "numbers", "COLUMN", "columns whose texts are numbers; may be repeated", &o.numbers},
		{VFM_OPT_NAME, 0, "missing", "keep|drop|error", "records without a row (default keep)", &o.missing},
		{VFM_OPT_FLAG, 0, "first", NULL, "of rows with equal keys take the first", &o.first},
		{VFM_OPT_FLAG, 0, "overwrite", NULL, "replace values that records have", &o.overwrite},
		{VFM_OPT_STR, 0, "sep", "CHAR", "the separator of CSV, or tab (default: found in the first line)",
			&sep},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate join",
		.synopsis = "--with TABLE [OPTION ...] [FILE ...]",
		.summary = "add columns of a table to records",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		goto out;
	TRY_OUT(curate_parse_sep(sep, &o.sep, err));
	if (!strcmp(o.table, "-") && !stage.n_files)
		TRY_OUT(vfm_fail(err, VFM_EUSAGE, "--with -: the records come from standard input; name their files"));
	rc = run_join(&o, &stage, err);
out:
	vfm_strlist_release(&o.take);
	vfm_strlist_release(&o.numbers);
	return rc;
}
