/* provenance - prints the stages that made a dataset or a file of records. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "io/opt.h"
#include "io/table.h"
#include "curate.h"
#include "data/record/provenance.h"
#include "data/record/record.h"

static int read_chain(json_t *chain, const char *path, struct vfm_err *err)
{
	struct stat st;
	int rc;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		rc = vfm_provenance_load(chain, path, err);
		if (rc == 0)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s' has no " VFM_PROVENANCE_NAME ": it is no dataset, or one of another program",
				path);
	} else {
		rc = vfm_provenance_of_records(chain, path, err);
	}
	if (rc >= 0 && json_array_size(chain) == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' has no header, and no record has fingerprints of stages", path);
	return rc < 0 ? rc : 0;
}

/* A line break in an option would break the table. */
static void set_cell(struct vfm_table *t, const char *key, const char *value, enum vfm_table_format format)
{
	char *text = value ? vfm_strdup(value) : NULL;

	for (char *s = text; s && *s && (format == VFM_TABLE_TEXT || format == VFM_TABLE_MD); s++)
		if ((unsigned char)*s < ' ' || *s == 0x7f)
			*s = ' ';
	vfm_table_str(t, key, text);
	free(text);
}

static int add_chain_rows(struct vfm_table *t, const char *path, enum vfm_table_format format, struct vfm_err *err)
{
	json_t *chain = json_array(), *entry;
	int rc = read_chain(chain, path, err);
	int64_t unknown = 0;
	size_t i;

	if (rc == 0)
		json_array_foreach(chain, i, entry)
		{
			char *models = vfm_provenance_models_text(json_object_get(entry, "maker"));

			vfm_table_row(t);
			set_cell(t, "data", path, format);
			set_cell(t, "tool", vfm_rec_str(entry, "tool", NULL), format);
			set_cell(t, "version", vfm_rec_str(entry, "version", NULL), format);
			set_cell(t, "maker", models, format);
			set_cell(t, "options", vfm_rec_str(entry, "options", NULL), format);
			unknown += !json_object_get(entry, "version");
			free(models);
		}
	if (unknown)
		vfm_table_note(t, "%s: %lld stages without a version are known from fingerprints of records alone",
			path, (long long)unknown);
	json_decref(chain);
	return rc;
}

int curate_provenance(int argc, char **argv, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"data", "data", 0}, {"tool", "tool", 0},
		{"version", "version", 0}, {"maker", "maker", 0}, {"options", "options", 0}, {0}};
	struct vfm_table_opts table = {0};
	struct vfm_opt opts[] = {
		VFM_TABLE_OPTS(&table),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate provenance",
		.synopsis = "[OPTION ...] DIR|FILE ...",
		.summary = "print the stages, options and models that made a dataset",
		.opts = opts,
	};
	struct vfm_table *t;
	int n = 0, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc)
		return rc;
	if (n == 0)
		return vfm_fail(err, VFM_EUSAGE, "DIR is missing: a dataset, or a file of records ('-': stdin)");
	t = vfm_table_new(columns);
	for (int i = 1; i <= n && rc == 0; i++)
		rc = add_chain_rows(t, argv[i], table.format, err);
	if (rc == 0)
		rc = vfm_table_print(t, &table, stdout, err);
	vfm_table_free(t);
	return rc;
}
