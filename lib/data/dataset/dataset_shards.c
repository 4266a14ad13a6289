/* Complete shards: their samples join the index, Energon's files, and the keys that are known. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "data/dataset/dataset_impl.h"
#include "data/dataset/scan.h"
#include "data/record/sample_key.h"
#include "io/file.h"

int64_t vfm_dataset_pack_place(struct vfm_dataset_place p)
{
	return (int64_t)p.before << 62 | (int64_t)p.shard << 32 | p.index; /* MAX_SHARDS < 2^30 */
}

struct vfm_dataset_place vfm_dataset_place_of(int64_t p)
{
	return (struct vfm_dataset_place){(uint32_t)(p >> 32) & 0x3fffffff, (uint32_t)p, p >> 62 & 1};
}

/* Extra arrays with rows, of the samples that have them. */
static int check_common_rows(const struct vfm_dataset *d, const struct vfm_dataset_common *c, struct vfm_err *err)
{
	for (int e = 0; e < VFM_EXTRAS; e++) {
		const enum vfm_encoder_kind of = vfm_extra_kinds[e].encoder;

		if (!d->width[e] || !c->width[e])
			continue;
		TRY(vfm_encoder_id_check_named(of, &c->encoder_ids.of[of], &d->encoder_ids.of[of], err));
		if (d->width[e] != c->width[e])
			return vfm_fail(err, VFM_EINPUT,
				"the sample has %s of width %" PRId64 ", the dataset has %" PRId64,
				vfm_extra_kinds[e].name, c->width[e], d->width[e]);
	}
	return 0;
}

/* All samples of a dataset have the same encoders, and arrays of the same width. */
int vfm_dataset_check_common(const struct vfm_dataset *d, const struct vfm_dataset_common *c, struct vfm_err *err)
{
	const struct vfm_encoder_ids *m = &c->encoder_ids;
	const int64_t channels = c->channels, text_dim = c->text_dim;
	char *dataset = vfm_strfmt("the dataset '%s'", d->dir);
	int rc = vfm_encoder_ids_check(m, "the sample", &d->encoder_ids, dataset, err);

	free(dataset);
	TRY(rc < 0 ? VFM_EINPUT : 0);
	if (d->n_latents && channels)
		TRY(vfm_encoder_id_check_named(VFM_ENCODER_TOKENIZER, &m->tokenizer, &d->encoder_ids.tokenizer, err));
	if (d->n_texts && text_dim)
		TRY(vfm_encoder_id_check_named(VFM_ENCODER_TEXT, &m->text, &d->encoder_ids.text, err));
	if (channels && d->channels && channels != d->channels)
		return vfm_fail(err, VFM_EINPUT, "the sample has %" PRId64 " latent channels, the dataset has %" PRId64,
			channels, d->channels);
	if (d->n_texts && text_dim && text_dim != d->text_dim)
		return vfm_fail(err, VFM_EINPUT, "the sample has a text of width %" PRId64 ", the dataset has %" PRId64,
			text_dim, d->text_dim);
	return check_common_rows(d, c, err);
}

void vfm_dataset_note_common(struct vfm_dataset *d, const struct vfm_dataset_common *c)
{
	struct vfm_encoder_ids of = c->encoder_ids;

	if (!c->text_dim)
		of.text = (struct vfm_encoder_id){0};
	for (int e = 0; e < VFM_EXTRAS; e++) {
		if (vfm_extra_kinds[e].ndim == 2 && !c->width[e])
			of.of[vfm_extra_kinds[e].encoder] = (struct vfm_encoder_id){0};
		d->width[e] = c->width[e] ? c->width[e] : d->width[e];
	}
	vfm_encoder_ids_fill(&d->encoder_ids, &of);
	d->channels = c->channels ? c->channels : d->channels;
	d->n_latents += c->channels > 0;
	if (c->text_dim) {
		d->text_dim = c->text_dim;
		d->n_texts++;
	}
}

static struct vfm_dataset_common common_of(const struct vfm_scan_sample *m)
{
	struct vfm_dataset_common c = {*m->encoder_ids, m->rec.c, m->rec.text_dim, {0}};
	uint32_t at = m->rec.n_texts;

	for (int e = 0; e < VFM_EXTRAS && !m->fault; e++)
		if (vfm_record_has_extra(&m->rec, (enum vfm_extra)e))
			c.width[e] = m->texts[at++].width;
	return c;
}

/* Adds sample i of a shard of an earlier run to the known ones. */
static int remember_scanned(
	struct vfm_dataset *d, const char *path, const struct vfm_scan_sample *m, uint32_t i, struct vfm_err *err)
{
	struct vfm_sample_seen first,
		s = {.place = vfm_dataset_pack_place((struct vfm_dataset_place){d->n_shards, i, true}),
			.content = m->files};
	struct vfm_dataset_place p;
	int rc;

	vfm_sample_hash(m->key, s.hash);
	rc = vfm_sample_set_add(&d->known, &s, &first, err);
	if (rc <= 0)
		return rc;
	p = vfm_dataset_place_of(first.place);
	return vfm_fail(err, VFM_EINPUT, "'%s': sample %u ('%s'): the key is also that of sample %u of shard %u", path,
		i, m->key, p.index, p.shard);
}

/* Reads a complete shard, new or of an earlier run, and adds it to the indexes. */
static int register_scan(struct vfm_dataset *d, const char *name, const char *path, const struct vfm_scan *s,
	bool before, struct vfm_err *err)
{
	if (s->n == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' holds no sample", path);
	TRY(vfm_index_writer_shard(d->index, name, s->bytes, err));
	for (size_t i = 0; i < s->n; i++) {
		const struct vfm_scan_sample *m = &s->samples[i];
		const struct vfm_dataset_common common = common_of(m);
		const char *why = m->fault ? m->fault : m->mismatch;

		if (why)
			return vfm_fail(err, VFM_EINPUT, "'%s': sample %zu ('%.200s'): %s", path, i, m->key, why);
		if (vfm_dataset_check_common(d, &common, err) < 0)
			return vfm_err_context(err, "'%s': sample %zu ('%s')", path, i, m->key);
		if (before) {
			vfm_dataset_note_common(d, &common);
			TRY(remember_scanned(d, path, m, (uint32_t)i, err));
		}
		TRY(vfm_index_writer_add(d->index, &m->rec, m->texts, m->text_names, err));
	}
	if (d->energon)
		TRY(vfm_energon_add(d->energon, name, s, err));
	d->n_shards++;
	d->stats.bytes += (int64_t)s->bytes;
	d->stats.samples += (int64_t)s->n;
	d->stats.kept += before ? (int64_t)s->n : 0;
	return 0;
}

int vfm_dataset_register(struct vfm_dataset *d, const char *name, bool before, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", d->dir, name);
	struct vfm_scan s = {0};
	int rc = vfm_scan_tar(&s, path, err);

	if (rc >= 0)
		rc = register_scan(d, name, path, &s, before, err);
	vfm_scan_release(&s);
	free(path);
	return rc;
}

/* ---- shards of other programs ---- */

struct indexing { /* a shard; the compute threads scan several at once */
	char *path;
	const char *name;
	const struct vfm_mds_shard *mds; /* NULL: a tar */
	struct vfm_scan scan;
	struct vfm_err err;
	int rc;
};

static void scan_some(int64_t i0, int64_t i1, void *ctx)
{
	struct indexing *x = ctx;

	for (int64_t i = i0; i < i1; i++)
		x[i].rc = x[i].mds ? vfm_scan_mds(&x[i].scan, x[i].mds, x[i].path, &x[i].err)
				   : vfm_scan_tar(&x[i].scan, x[i].path, &x[i].err);
}

static int is_tar_entry(const struct dirent *e)
{
	return e->d_name[0] != '.' && vfm_tar_is_name(e->d_name);
}

/* In the order of bytes, whatever the locale. */
static int compare_tars(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* Scans n shards at once, with name and mds set, and registers them in their order. */
static int index_some_shards(
	struct vfm_dataset *d, struct indexing *x, int n, const struct vfm_dataset_how *how, struct vfm_err *err)
{
	int rc = 0;

	for (int i = 0; i < n; i++) {
		x[i].path = vfm_strfmt("%s/%s", d->dir, x[i].name);
		x[i].scan.headers_only = how->headers_only;
		x[i].scan.for_join = how->for_join;
	}
	vfm_par_for(n, 1, scan_some, x);
	for (int i = 0; i < n; i++) {
		if (rc >= 0 && x[i].rc < 0) {
			rc = x[i].rc;
			*err = x[i].err;
		}
		if (rc >= 0)
			rc = register_scan(d, x[i].name, x[i].path, &x[i].scan, true, err);
		vfm_scan_release(&x[i].scan);
		free(x[i].path);
	}
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

/* Indexes the n shards of m or, if it is NULL, the tars of these names, as many at once as there are threads. */
static int index_shards_of(struct vfm_dataset *d, const struct vfm_mds *m, struct dirent *const *tars, size_t n,
	const struct vfm_dataset_how *how, struct vfm_err *err)
{
	size_t at_once = (size_t)vfm_par_threads();
	struct indexing *x = vfm_calloc(at_once, sizeof(*x));
	int rc = 0;

	for (size_t i = 0, some; i < n && rc == 0; i += some) {
		some = n - i < at_once ? n - i : at_once;
		for (size_t k = 0; k < some; k++)
			x[k] = (struct indexing){.name = m ? m->shards[i + k].file : tars[i + k]->d_name,
				.mds = m ? &m->shards[i + k] : NULL};
		rc = index_some_shards(d, x, (int)some, how, err);
	}
	free(x);
	return rc;
}

/* Columns often have the name of a part by accident: "text" mostly holds the caption itself. */
static void report_unfit(const char *dir, const struct vfm_mds_shard *s)
{
	for (int k = 0; k < s->n_columns; k++)
		if (s->columns[k].unfit)
			vfm_info("%s: column '%s' (%s) is ignored: it cannot be %s", dir, s->columns[k].name,
				s->columns[k].encoding, s->columns[k].unfit);
}

static int index_mds(struct vfm_dataset *d, const struct vfm_dataset_how *how, struct vfm_err *err)
{
	struct vfm_mds m = {0};
	int rc;

	TRY_OUT(vfm_mds_open(&m, d->dir, how->columns, !how->for_join, err));
	report_unfit(d->dir, &m.shards[0]);
	TRY_OUT(vfm_dataset_lock(d, err));
	TRY_OUT(vfm_index_writer_open(&d->index, d->index_path, err));
	vfm_index_writer_set_columns(d->index, how->columns ? how->columns : "");
	rc = index_shards_of(d, &m, NULL, m.n, how, err);
out:
	vfm_mds_release(&m);
	return rc;
}

static int index_tars(
	struct vfm_dataset *d, struct dirent **names, int n, const struct vfm_dataset_how *how, struct vfm_err *err)
{
	for (int i = 0; i < n; i++)
		if (!vfm_name_ends(names[i]->d_name, ".tar"))
			return vfm_fail(err, VFM_EUSAGE,
				"'%s/%s' is compressed: no member of it can be read alone; decompress it first", d->dir,
				names[i]->d_name);
	TRY(vfm_dataset_lock(d, err));
	TRY(vfm_dataset_open_indexes(d, err));
	return index_shards_of(d, NULL, names, (size_t)n, how, err);
}

/* Splits of MosaicML Streaming are folders. */
static int fail_no_shards(const char *dir, struct vfm_err *err)
{
	struct dirent **names = NULL;
	char *below = NULL;
	int n = scandir(dir, &names, NULL, alphasort);

	for (int i = 0; i < n; i++) {
		char *path = vfm_strfmt("%s/%s", dir, names[i]->d_name);

		if (!below && names[i]->d_name[0] != '.' && vfm_mds_exists(path))
			below = vfm_strdup(path);
		free(path);
		free(names[i]);
	}
	free(names);
	vfm_fail(err, VFM_EUSAGE, "'%s' has no tar, and no index.json of MosaicML Streaming%s%s%s", dir,
		below ? "; name a folder below that has one, as '" : "", below ? below : "", below ? "'" : "");
	free(below);
	return VFM_EUSAGE;
}

int vfm_dataset_index(
	const char *dir, const struct vfm_dataset_how *how, struct vfm_dataset_stats *stats, struct vfm_err *err)
{
	struct vfm_dataset *d = vfm_dataset_new(&(struct vfm_dataset_opts){.dir = dir});
	struct dirent **names = NULL;
	int n = scandir(dir, &names, is_tar_entry, compare_tars), rc;

	if (n < 0)
		rc = vfm_fail_errno(err, VFM_EUSAGE, "cannot read '%s'", dir);
	else if (n == 0 && vfm_mds_exists(dir))
		rc = index_mds(d, how, err);
	else if (n == 0)
		rc = fail_no_shards(dir, err);
	else if (how->columns)
		rc = vfm_fail(err, VFM_EUSAGE, "--columns: '%s' has tars", dir);
	else
		rc = index_tars(d, names, n, how, err);
	if (rc == 0) {
		rc = vfm_dataset_commit(d, stats, err);
		d = NULL;
	}
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	vfm_dataset_abort(d);
	return rc;
}
