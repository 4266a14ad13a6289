/* verify.c - scans all shards again, and reports samples, indexes and digests that differ. */
#include "data/dataset/verify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/dataset/energon.h"
#include "data/dataset/index.h"
#include "data/dataset/index_join.h"
#include "data/dataset/scan.h"
#include "data/record/caption.h"
#include "data/record/provenance.h"
#include "data/record/sample_key.h"

struct verify {
	const char *dir;
	struct vfm_index *ix;
	void (*tell)(const struct vfm_fault *f, void *ctx);
	void *ctx;
	struct vfm_verify_counts *counts;
	struct vfm_encoder_ids encoder_ids; /* of the index */
	struct vfm_mds mds;                 /* of a dataset of MosaicML Streaming */
};

static void tell(struct verify *v, const char *shard, int64_t index, const char *key, const char *what)
{
	struct vfm_fault f = {v->dir, shard, index, key, what};

	v->counts->faults++;
	v->tell(&f, v->ctx);
}

/* Returns the first field that differs between the index's record `r` and the file's `m`, or NULL. */
static const char *difference(const struct vfm_index_record *r, const struct vfm_index_record *m)
{
	struct vfm_index_record own;

	if (r->id != m->id)
		return "another sample than the index says";
	if (r->sample_offset != m->sample_offset || r->sample_bytes != m->sample_bytes)
		return "another place than the index says";
	if (r->latent_offset != m->latent_offset || r->latent_bytes != m->latent_bytes || r->n_texts != m->n_texts ||
		r->json_offset != m->json_offset || r->json_bytes != m->json_bytes ||
		r->media_offset != m->media_offset || r->media_bytes != m->media_bytes)
		return "other parts than the index says";
	if (!(r->flags & VFM_REC_UNCHECKED) && r->latent_crc != m->latent_crc)
		return "latent.npy: wrong checksum";
	if (r->json_crc != m->json_crc)
		return "json: wrong checksum";
	/* shard, index, crc, and whether checksums are known, are the index's own */
	own = *r;
	own.flags &= (uint16_t)~VFM_REC_UNCHECKED;
	if (memcmp(&own.c, &m->c, offsetof(struct vfm_index_record, crc) - offsetof(struct vfm_index_record, c)) != 0)
		return "another shape than the index says";
	return NULL;
}

/* Compares a sample with the others: NULL, or the fault in err. */
static const char *conflict(
	struct verify *v, uint32_t shard, uint32_t index, const struct vfm_scan_sample *m, struct vfm_err *err)
{
	struct vfm_sample_seen first,
		s = {.place = (int64_t)((uint64_t)shard << 32 | index), .content = (uint64_t)v->counts->datasets};
	int found;

	vfm_sample_hash(m->key, s.hash);
	found = vfm_sample_set_add(&v->counts->ids, &s, &first, err);
	if (found == 1 && first.content == s.content)
		vfm_fail(err, VFM_EINPUT, "sample %u of shard %u has this key, too", (uint32_t)first.place,
			(uint32_t)(first.place >> 32));
	if (found < 0 || (found == 1 && first.content == s.content))
		return err->msg;
	v->counts->shared += found;
	if (vfm_encoder_ids_check(m->encoder_ids, "the sample", &v->encoder_ids, "the index", err) < 0 ||
		vfm_encoder_id_check_named(
			VFM_ENCODER_TOKENIZER, &m->encoder_ids->tokenizer, &v->encoder_ids.tokenizer, err) < 0)
		return err->msg;
	if (m->rec.n_texts &&
		vfm_encoder_id_check_named(VFM_ENCODER_TEXT, &m->encoder_ids->text, &v->encoder_ids.text, err) < 0)
		return err->msg;
	for (int e = 0; e < VFM_EXTRAS; e++) {
		const enum vfm_encoder_kind of = vfm_extra_kinds[e].encoder;

		if (vfm_record_has_extra(&m->rec, (enum vfm_extra)e) &&
			vfm_encoder_id_check_named(of, &m->encoder_ids->of[of], &v->encoder_ids.of[of], err) < 0)
			return err->msg;
	}
	return NULL;
}

/* Compares the texts of the index with those of the file: NULL, or the fault in err. */
static const char *text_difference(
	const struct verify *v, const struct vfm_index_record *r, const struct vfm_scan_sample *m, struct vfm_err *err)
{
	struct vfm_index_text t;

	for (uint32_t i = 0; i < r->n_texts; i++) {
		const struct vfm_index_text *f = &m->texts[i];
		const char *name = m->text_names[i], *why = NULL;
		char part[VFM_TEXT_PART];

		if (vfm_index_text(v->ix, r, i, &t, err) < 0)
			return err->msg;
		if (t.offset != f->offset || t.bytes != f->bytes ||
			strcmp(vfm_index_info(v->ix)->names[t.name], name) != 0)
			return "other parts than the index says";
		if (!(r->flags & VFM_REC_UNCHECKED) && t.data_crc != f->data_crc)
			why = "wrong checksum";
		else if (t.header != f->header || t.rows != f->rows || t.dtype != f->dtype)
			why = "another shape than the index says";
		if (why) {
			vfm_fail(err, VFM_EINPUT, "%s: %s", vfm_text_part(part, name), why);
			return err->msg;
		}
	}
	return NULL;
}

/* The same of the extra arrays, which follow the texts. */
static const char *extra_difference(
	const struct verify *v, const struct vfm_index_record *r, const struct vfm_scan_sample *m, struct vfm_err *err)
{
	const struct vfm_index_text *f = m->texts + m->rec.n_texts;
	struct vfm_index_text t;

	for (int e = 0; e < VFM_EXTRAS; e++) {
		if (!vfm_record_has_extra(r, (enum vfm_extra)e))
			continue;
		if (vfm_index_extra(v->ix, r, (enum vfm_extra)e, &t, err) < 0)
			return err->msg;
		if (t.offset != f->offset || t.bytes != f->bytes || t.header != f->header || t.rows != f->rows ||
			t.width != f->width || t.dtype != f->dtype ||
			(!(r->flags & VFM_REC_UNCHECKED) && t.data_crc != f->data_crc)) {
			vfm_fail(err, VFM_EINPUT, "%s: not as the index says", vfm_extra_kinds[e].part);
			return err->msg;
		}
		f++;
	}
	return NULL;
}

static void check_samples(struct verify *v, const struct vfm_index_shard *sh, uint32_t shard, const struct vfm_scan *s)
{
	struct vfm_err err = {0};
	struct vfm_index_record r;

	for (uint32_t i = 0; i < sh->count && i < s->n; i++) {
		const struct vfm_scan_sample *m = &s->samples[i];
		const char *what = m->fault;

		v->counts->samples++;
		v->counts->unbound += !m->fault && !m->is_bound;
		if (!what && vfm_index_get(v->ix, shard, i, &r, &err) < 0)
			what = err.msg;
		else if (!what)
			what = difference(&r, &m->rec);
		if (!what)
			what = text_difference(v, &r, m, &err);
		if (!what)
			what = extra_difference(v, &r, m, &err);
		if (!what)
			what = m->mismatch;
		if (!what)
			what = conflict(v, shard, i, m, &err);
		if (what)
			tell(v, sh->name, i, m->key, what);
	}
	if (sh->count != s->n) {
		snprintf(err.msg, sizeof(err.msg), "%zu samples where the index says %u", s->n, sh->count);
		tell(v, sh->name, -1, NULL, err.msg);
	}
}

/* Reports a fault of the shard, or of the dataset if it is NULL.  A failure of the machine is none: it ends the
 * verification. */
static int check_part(struct verify *v, const char *shard, int rc, const struct vfm_err *e, struct vfm_err *err)
{
	if (rc == VFM_EENV)
		return vfm_fail(err, rc, "%s", e->msg);
	if (rc < 0)
		tell(v, shard, -1, NULL, e->msg);
	return 0;
}

static int scan_shard(const struct verify *v, const struct vfm_index_shard *sh, uint32_t shard, struct vfm_scan *s,
	const char *path, struct vfm_err *err)
{
	const struct vfm_mds_shard *mds = shard < v->mds.n ? &v->mds.shards[shard] : NULL;

	if (!vfm_index_info(v->ix)->columns)
		return vfm_scan_tar(s, path, err);
	if (!mds || strcmp(mds->file, sh->name) != 0)
		return vfm_fail(err, VFM_EINPUT, "index.json does not have this shard in this place");
	s->check_hashes = true;
	return vfm_scan_mds(s, mds, path, err);
}

static int check_files(
	struct verify *v, const struct vfm_index_shard *sh, uint32_t shard, struct vfm_scan *s, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", v->dir, sh->name);
	struct vfm_err e = {0};
	struct vfm_index_record first;
	int scanned;

	s->for_join = vfm_index_get(v->ix, shard, 0, &first, NULL) == 0 && first.flags & VFM_REC_NO_LATENT;
	scanned = scan_shard(v, sh, shard, s, path, &e);

	free(path);
	v->counts->shards++;
	v->counts->bytes += (int64_t)s->bytes;
	TRY(check_part(v, sh->name, scanned, &e, err));
	if (s->unchecked_hash && v->counts->unhashed++ == 0)
		snprintf(v->counts->hash, sizeof(v->counts->hash), "%s", s->unchecked_hash);
	if (scanned >= 0 && s->bytes != sh->bytes)
		tell(v, sh->name, -1, NULL, "another size than the index says");
	check_samples(v, sh, shard, s);
	if (scanned < 0 || s->is_mds)
		return 0;
	TRY(check_part(v, sh->name, vfm_energon_check_idx(v->dir, sh->name, s, &e), &e, err));
	return check_part(v, sh->name, vfm_energon_check_meta(v->dir, sh->name, shard, s, &e), &e, err);
}

static int check_shard(struct verify *v, uint32_t shard, struct vfm_err *err)
{
	struct vfm_index_shard sh;
	struct vfm_err e = {0};
	struct vfm_scan s = {0};
	char number[32];
	int rc;

	if (vfm_index_shard(v->ix, shard, &sh, &e) < 0) {
		snprintf(number, sizeof(number), "shard %u", shard);
		tell(v, number, -1, NULL, e.msg);
		return 0;
	}
	rc = check_files(v, &sh, shard, &s, err);
	vfm_scan_release(&s);
	return rc;
}

/* Opens index.json of MosaicML Streaming, and looks for shards that it got since. */
static int open_mds(struct verify *v, uint32_t n_shards, struct vfm_err *err)
{
	struct vfm_err e = {0};
	int rc = vfm_mds_open(&v->mds, v->dir, vfm_index_info(v->ix)->columns, false, &e);

	if (rc == 0 && v->mds.n > n_shards)
		rc = vfm_fail(&e, VFM_EINPUT, "%zu shards where the index says %u", v->mds.n, n_shards);
	return check_part(v, "index.json", rc, &e, err);
}

/* For a join, checks that its datasets are the ones that were joined.  Their shards are verified with them. */
static int check_parts_of(struct verify *v, struct vfm_err *err)
{
	for (uint32_t i = 0; i < vfm_index_info(v->ix)->n_parts; i++) {
		struct vfm_err e = {0};
		int rc = vfm_join_check_part(v->ix, i, &e);

		if (rc == 0)
			rc = vfm_fail(&e, VFM_EINPUT, "'%s' has no index", vfm_index_info(v->ix)->parts[i].dir);
		TRY(check_part(v, VFM_INDEX_NAME, rc, &e, err));
	}
	return 0;
}

/* A dataset of another program has no provenance.json. */
static int check_chain(struct verify *v, struct vfm_err *err)
{
	json_t *chain = json_array();
	struct vfm_err e = {0};
	int rc = vfm_provenance_load(chain, v->dir, &e);

	json_decref(chain);
	v->counts->without_chain += rc == 0;
	return check_part(v, NULL, rc, &e, err);
}

int vfm_verify(const char *dir, void (*tell_fn)(const struct vfm_fault *f, void *ctx), void *ctx,
	struct vfm_verify_counts *counts, struct vfm_err *err)
{
	struct verify v = {.dir = dir, .tell = tell_fn, .ctx = ctx, .counts = counts};
	struct vfm_err e = {0};
	uint32_t n;
	char *extra;
	int rc;

	TRY(vfm_index_open(&v.ix, dir, err));
	v.dir = vfm_index_info(v.ix)->dir;
	v.encoder_ids = vfm_index_info(v.ix)->encoder_ids;
	counts->datasets++;
	n = vfm_index_info(v.ix)->n_parts ? 0 : vfm_index_info(v.ix)->n_shards;
	rc = check_part(&v, VFM_INDEX_NAME, vfm_index_check_all(v.ix, &e), &e, err);
	if (rc == 0 && vfm_index_info(v.ix)->n_parts)
		rc = check_parts_of(&v, err);
	else if (rc == 0 && vfm_index_info(v.ix)->columns)
		rc = open_mds(&v, n, err);
	else if (rc == 0)
		rc = check_part(&v, ".nv-meta", vfm_energon_check_encoders(v.dir, &v.encoder_ids, &e), &e, err);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = check_shard(&v, i, err);
	if (rc == 0)
		rc = check_chain(&v, err);
	extra = vfm_strfmt("%s/%06u.tar", v.dir, n);
	if (!vfm_index_info(v.ix)->n_parts && access(extra, F_OK) == 0)
		tell(&v, strrchr(extra, '/') + 1, -1, NULL, "the index does not know this shard");
	free(extra);
	vfm_mds_release(&v.mds);
	vfm_index_close(v.ix);
	return rc;
}

void vfm_verify_release(struct vfm_verify_counts *counts)
{
	vfm_sample_set_release(&counts->ids);
}
