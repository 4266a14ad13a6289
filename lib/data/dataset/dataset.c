/* dataset.c - writes samples to shards, resumes after complete shards, and commits index and provenance. */
#include "data/dataset/dataset_impl.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/record/binding.h"
#include "data/record/caption.h"
#include "data/record/provenance.h"
#include "data/record/sample_key.h"
#include "data/record/stage.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/input.h"
#include "io/json.h"
#include "io/npy.h"

#define MAX_NPY    ((uint64_t)1 << 31)
#define MAX_SHARDS 1000000 /* six digits */

/* ---- complete shards ---- */

static void shard_name(char name[32], uint32_t shard)
{
	snprintf(name, 32, "%06u.tar", shard);
}

static bool is_shard(const char *name)
{
	for (int i = 0; i < 6; i++)
		if (!isdigit((unsigned char)name[i]))
			return false;
	return strcmp(name + 6, ".tar") == 0;
}

/* Counts the shards: 000000.tar up to the first gap.  Fails on shards after a gap. */
static int count_shards(struct vfm_dataset *d, uint32_t *n, struct vfm_err *err)
{
	DIR *dir = opendir(d->dir);
	struct dirent *e;
	uint32_t found = 0, last = 0;

	if (!dir)
		return vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", d->dir);
	while ((e = readdir(dir)))
		if (is_shard(e->d_name)) {
			uint32_t k = (uint32_t)strtoul(e->d_name, NULL, 10);

			found++;
			last = k > last ? k : last;
		}
	closedir(dir);
	if (found && found != last + 1)
		return vfm_fail(err, VFM_EUSAGE, "'%s' has %u shards, the last of them %06u.tar: some are missing",
			d->dir, found, last);
	*n = found;
	return 0;
}

static int remove_indexes(struct vfm_dataset *d, struct vfm_err *err)
{
	static const char *const names[] = {VFM_INDEX_NAME, ".nv-meta/.info.json", ".nv-meta/index.sqlite",
		".nv-meta/index.uuid", ".nv-meta/split.yaml", ".nv-meta/" VFM_ENERGON_ENCODERS};
	int rc = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char *path = vfm_strfmt("%s/%s", d->dir, names[i]);

		if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
			rc = vfm_fail_errno(err, VFM_EENV, "cannot remove '%s'", path);
		free(path);
	}
	return rc;
}

int vfm_dataset_lock(struct vfm_dataset *d, struct vfm_err *err)
{
	TRY(vfm_mkdir_p(d->dir, err));
	d->lock = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->lock < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", d->dir);
	if (!vfm_lock(d->lock, NULL))
		return vfm_fail(err, VFM_EUSAGE, "'%s': another run is writing shards there", d->dir);
	return 0;
}

/* ---- provenance ---- */

/* Reads the chain of earlier runs.  Without a file, that of their shards is unknown, except for this stage. */
static int load_chain(struct vfm_dataset *d, struct vfm_err *err)
{
	int rc = vfm_provenance_load(d->chain, d->dir, err);

	if (rc < 0)
		return vfm_err_context(err, "remove the file to continue without the history of the shards");
	if (rc == 0)
		json_array_append_new(d->chain, json_pack("{s:s}", "tool", "vfm-curate shard"));
	return 0;
}

int vfm_dataset_set_chain(struct vfm_dataset *d, const json_t *chain, struct vfm_err *err)
{
	int rc = vfm_provenance_merge(d->chain, chain, err);

	if (rc < 0)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s/" VFM_PROVENANCE_NAME "' would hold more than %d stages or %d bytes", d->dir,
			VFM_PROVENANCE_ENTRIES, VFM_PROVENANCE_BYTES);
	d->has_chain = true;
	d->chain_changed |= rc == 1;
	return 0;
}

/* Precedes the shards that the chain describes. */
static int store_chain(struct vfm_dataset *d, struct vfm_err *err)
{
	json_t *all;
	int rc;

	if (!d->has_chain || !d->chain_changed)
		return 0;
	d->chain_changed = false;
	all = json_copy(d->chain);
	vfm_provenance_note_all(all, d->marked);
	rc = vfm_provenance_store(all, d->dir, err);
	json_decref(all);
	return rc;
}

/* ---- opening ---- */

struct vfm_dataset *vfm_dataset_new(const struct vfm_dataset_opts *o)
{
	struct vfm_dataset *d = vfm_calloc(1, sizeof(*d));

	d->o = *o;
	d->lock = -1;
	if (d->o.max_bytes <= 0)
		d->o.max_bytes = VFM_DATASET_MAX_BYTES;
	d->chain = json_array();
	d->marked = json_array();
	d->dir = vfm_strdup(o->dir);
	d->known.dir = d->dir;
	d->index_path = vfm_strfmt("%s/" VFM_INDEX_NAME, o->dir);
	return d;
}

int vfm_dataset_open_indexes(struct vfm_dataset *d, struct vfm_err *err)
{
	TRY(vfm_index_writer_open(&d->index, d->index_path, err));
	return vfm_energon_open(&d->energon, d->dir, err);
}

int vfm_dataset_open(struct vfm_dataset **out, const struct vfm_dataset_opts *o, struct vfm_err *err)
{
	struct vfm_dataset *d = vfm_dataset_new(o);
	uint32_t there = 0;
	char name[32];
	int rc;

	TRY_OUT(vfm_dataset_lock(d, err));
	vfm_temp_sweep(d->dir);
	TRY_OUT(count_shards(d, &there, err));
	if (there && !o->resume) {
		rc = vfm_fail(
			err, VFM_EUSAGE, "'%s' holds %u shards already (--resume appends to them)", d->dir, there);
		goto out;
	}
	if (there)
		TRY_OUT(load_chain(d, err));
	TRY_OUT(vfm_dataset_open_indexes(d, err));
	for (uint32_t i = 0; i < there; i++) {
		shard_name(name, i);
		rc = vfm_dataset_register(d, name, true, err);
		if (rc == VFM_EINPUT)
			rc = VFM_EUSAGE;
		if (rc < 0)
			goto out;
	}
	*out = d;
	return 0;
out:
	vfm_dataset_abort(d);
	return rc;
}

/* ---- adding ---- */

static int finish_shard(struct vfm_dataset *d, struct vfm_err *err)
{
	char name[32];

	if (!d->open)
		return 0;
	shard_name(name, d->n_shards);
	TRY(vfm_tar_finish(&d->tar, err));
	TRY(remove_indexes(d, err));
	TRY(store_chain(d, err));
	d->open = false;
	TRY(vfm_atomic_commit(&d->file, err));
	/* This program wrote the shard: the error is not the record's and ends the run. */
	return vfm_dataset_register(d, name, false, err) < 0 ? VFM_EENV : 0;
}

static int begin_shard(struct vfm_dataset *d, struct vfm_err *err)
{
	char name[32], *path;
	int rc;

	if (d->n_shards == MAX_SHARDS)
		return vfm_fail(err, VFM_EUSAGE, "more than %d shards: make them larger (--max-bytes)", MAX_SHARDS);
	shard_name(name, d->n_shards);
	path = vfm_strfmt("%s/%s", d->dir, name);
	rc = vfm_atomic_open(&d->file, path, err);
	free(path);
	if (rc < 0)
		return rc;
	vfm_tar_writer_init(&d->tar, d->file.f, d->file.path);
	d->n_in_shard = 0;
	d->open = true;
	return 0;
}

struct array { /* a file, and what its header says */
	struct vfm_buf file;
	struct vfm_npy npy;
};

struct sample { /* the contents of all members of one sample */
	const char *key, *media;
	struct array latent, texts[VFM_CAPTIONS_MAX], extra[VFM_EXTRAS]; /* extra: file.data NULL: none */
	struct vfm_captions names;                                       /* of the texts */
	struct vfm_buf json;
	char media_part[12];
	FILE *media_file;
	uint64_t media_bytes;
};

static void sample_release(struct sample *s)
{
	vfm_buf_release(&s->latent.file);
	for (int e = 0; e < VFM_EXTRAS; e++)
		vfm_buf_release(&s->extra[e].file);
	for (int i = 0; i < s->names.n; i++)
		vfm_buf_release(&s->texts[i].file);
	vfm_buf_release(&s->json);
	if (s->media_file)
		fclose(s->media_file);
}

/* Reads the file of the entry `part` of a record and checks its contents and its digest `sha256`. */
static int read_encoded(
	struct array *a, const json_t *part, const char *what, int ndim, const char *sha256, struct vfm_err *err)
{
	struct vfm_buf *b = &a->file;
	struct vfm_npy *n = &a->npy;
	const char *path = vfm_rec_str(part, "path", NULL);

	if (!path)
		return vfm_fail(err, VFM_EINPUT, "%s.path is missing: run encode before", what);
	TRY(vfm_read_regular(path, MAX_NPY, &b->data, &b->len, err));
	b->cap = b->len + 1;
	TRY(vfm_binding_check(sha256, b->data, b->len, path, err));
	TRY(vfm_npy_parse(n, b->data, b->len, b->len, path, err));
	return vfm_sample_array_check(n, ndim, b->data + n->header_bytes, path, err);
}

/* Reads all texts of the record, which have the same width. */
static int read_texts(struct sample *s, const json_t *rec, const struct vfm_binding *b, struct vfm_err *err)
{
	char what[64];

	TRY(vfm_texts_of(&s->names, rec, err));
	for (int i = 0; i < s->names.n; i++) {
		const char *name = s->names.list[i].name;

		snprintf(what, sizeof(what), "%s%s", *name ? "text.captions." : "text", name);
		TRY(read_encoded(&s->texts[i], s->names.list[i].value, what, 2, b->texts[i].sha256, err));
		if (s->texts[i].npy.shape[1] != s->texts[0].npy.shape[1])
			return vfm_fail(err, VFM_EINPUT,
				"%s has width %" PRId64 ", another text of the sample has %" PRId64, what,
				s->texts[i].npy.shape[1], s->texts[0].npy.shape[1]);
	}
	return 0;
}

/* Reads the extra arrays that the record names.  A condition has the size of the latents. */
static int read_extras(struct sample *s, const json_t *rec, const struct vfm_binding *b, struct vfm_err *err)
{
	const int64_t *latent = s->latent.npy.shape, *cond = s->extra[VFM_EXTRA_COND].npy.shape;

	for (int e = 0; e < VFM_EXTRAS; e++) {
		const struct vfm_extra_kind *k = &vfm_extra_kinds[e];
		const json_t *part = json_object_get(rec, k->key);

		if (json_is_object(part))
			TRY(read_encoded(&s->extra[e], part, k->key, k->ndim, b->extra[e], err));
	}
	if (s->extra[VFM_EXTRA_COND].file.data && memcmp(cond + 1, latent + 1, 3 * sizeof(*cond)) != 0)
		return vfm_fail(err, VFM_EINPUT,
			"cond is %" PRId64 "x%" PRId64 "x%" PRId64 ", the latents are %" PRId64 "x%" PRId64 "x%" PRId64,
			cond[1], cond[2], cond[3], latent[1], latent[2], latent[3]);
	return 0;
}

/* Sets the widths of the extra arrays with rows, and compares the arrays with the identities of their encoders. */
static int check_extra_rows(const struct sample *s, struct vfm_dataset_common *common, struct vfm_err *err)
{
	for (int e = 0; e < VFM_EXTRAS; e++) {
		const enum vfm_encoder_kind of = vfm_extra_kinds[e].encoder;
		const int64_t *shape = s->extra[e].npy.shape;

		if (!s->extra[e].file.data || vfm_extra_kinds[e].ndim != 2)
			continue;
		common->width[e] = shape[1];
		TRY(vfm_encoder_id_check_rows(of, &common->encoder_ids.of[of], shape[0], shape[1], err));
	}
	return 0;
}

/* Returns the record for the shard, without local paths. */
static void dump_json(struct vfm_buf *b, const json_t *rec)
{
	json_t *copy = json_deep_copy(rec);
	struct vfm_captions texts;

	json_object_del(json_object_get(copy, "latent"), "path");
	for (int e = 0; e < VFM_EXTRAS; e++)
		json_object_del(json_object_get(copy, vfm_extra_kinds[e].key), "path");
	if (vfm_texts_of(&texts, copy, NULL) >= 0)
		for (int i = 0; i < texts.n; i++)
			json_object_del((json_t *)texts.list[i].value, "path");
	json_object_del(copy, "part");
	vfm_json_text(b, copy, 0);
	json_decref(copy);
}

static int open_media(struct sample *s, const json_t *rec, struct vfm_err *err)
{
	const char *src = vfm_rec_str(rec, "src", NULL), *base = src ? strrchr(src, '/') : NULL,
		   *dot = src ? strrchr(base ? base : src, '.') : NULL;
	struct vfm_input in;
	size_t n = 0;

	if (!src)
		return vfm_fail(err, VFM_EINPUT, "src is missing");
	if (json_object_get(rec, "start_frame"))
		return vfm_fail(
			err, VFM_EINPUT, "the clip has no file of its own: run clip before, or leave out --with-media");
	for (const char *p = dot ? dot + 1 : ""; *p && n < 8; p++)
		if (isalnum((unsigned char)*p))
			s->media_part[n++] = (char)tolower((unsigned char)*p);
	if (n == 0 || strcmp(s->media_part, "json") == 0 || strcmp(s->media_part, "npy") == 0)
		strcpy(s->media_part, "media");
	s->media = src;
	TRY(vfm_input_open(&in, src, err));
	s->media_bytes = in.size;
	s->media_file = fdopen(in.fd, "rb");
	if (!s->media_file) {
		close(in.fd);
		return vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", src);
	}
	if (fseeko(s->media_file, (off_t)in.at, SEEK_SET) != 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", src);
	return 0;
}

static uint64_t member_bytes(uint64_t n)
{
	return n ? 512 + (n + 511) / 512 * 512 : 0;
}

static int add_member(
	struct vfm_dataset *d, const struct sample *s, const char *part, const struct vfm_buf *b, struct vfm_err *err)
{
	char *name = vfm_strfmt("%s.%s", s->key, part);
	int rc = vfm_tar_add(&d->tar, name, b->data, b->len, NULL, err);

	free(name);
	return rc;
}

static int add_media(struct vfm_dataset *d, const struct sample *s, struct vfm_err *err)
{
	char *name = vfm_strfmt("%s.%s", s->key, s->media_part), block[65536];
	uint64_t left = s->media_bytes;
	int rc = vfm_tar_begin(&d->tar, name, left, NULL, err);

	free(name);
	while (rc >= 0 && left > 0) {
		size_t n = fread(block, 1, left < sizeof(block) ? (size_t)left : sizeof(block), s->media_file);

		if (n == 0)
			return vfm_fail(err, VFM_EENV, "'%s' became shorter while it was read", s->media);
		rc = vfm_tar_write(&d->tar, block, n, err);
		left -= n;
	}
	return rc < 0 ? rc : vfm_tar_end(&d->tar, err);
}

static int write_sample(struct vfm_dataset *d, const struct sample *s, struct vfm_err *err)
{
	uint64_t bytes = member_bytes(s->latent.file.len) + member_bytes(s->json.len) + member_bytes(s->media_bytes);
	char part[VFM_TEXT_PART];

	for (int i = 0; i < s->names.n; i++)
		bytes += member_bytes(s->texts[i].file.len);
	for (int e = 0; e < VFM_EXTRAS; e++)
		bytes += member_bytes(s->extra[e].file.len);
	if (d->open && d->n_in_shard &&
		(d->tar.pos + bytes + 1024 > (uint64_t)d->o.max_bytes ||
			(d->o.max_samples && d->n_in_shard >= (uint64_t)d->o.max_samples)))
		TRY(finish_shard(d, err));
	if (!d->open)
		TRY(begin_shard(d, err));
	TRY(add_member(d, s, "latent.npy", &s->latent.file, err));
	for (int i = 0; i < s->names.n; i++)
		TRY(add_member(d, s, vfm_text_part(part, s->names.list[i].name), &s->texts[i].file, err));
	for (int e = 0; e < VFM_EXTRAS; e++)
		if (s->extra[e].file.data)
			TRY(add_member(d, s, vfm_extra_kinds[e].part, &s->extra[e].file, err));
	TRY(add_member(d, s, "json", &s->json, err));
	return s->media_file ? add_media(d, s, err) : 0;
}

static void set_place(json_t *rec, uint32_t shard, uint32_t index)
{
	json_object_set_new(rec, "shard", json_integer(shard));
	json_object_set_new(rec, "index", json_integer(index));
}

/* The record of a sample that the dataset has: good once, if an earlier run wrote it from the same files. */
static int keep_known(
	struct vfm_dataset *d, struct vfm_sample_seen *k, json_t *rec, const struct vfm_binding *b, struct vfm_err *err)
{
	uint64_t files = vfm_binding_number(b);
	const char *key = vfm_rec_str(rec, "id", "");
	struct vfm_dataset_place p = vfm_dataset_place_of(k->place);

	if (!p.before)
		return vfm_fail(
			err, VFM_EINPUT, "a sample '%s' is in shard %u already, at index %u", key, p.shard, p.index);
	if (k->content && files && k->content != files)
		return vfm_fail(err, VFM_EINPUT,
			"the sample '%s' is in shard %u with other latents or text: write a new dataset", key, p.shard);
	p.before = false;
	k->place = vfm_dataset_pack_place(p);
	TRY(vfm_sample_set_put(&d->known, k, true, err));
	set_place(rec, p.shard, p.index);
	return 0;
}

int vfm_dataset_add(struct vfm_dataset *d, json_t *rec, struct vfm_err *err)
{
	struct sample s = {.key = vfm_rec_str(rec, "id", NULL)};
	struct vfm_binding binding;
	struct vfm_dataset_common common = {0};
	struct vfm_sample_seen seen;
	uint64_t hash[2];
	int rc;

	TRY(vfm_sample_key_check(s.key, err));
	vfm_sample_hash(s.key, hash);
	TRY(vfm_binding_of(&binding, rec, err));
	rc = vfm_sample_set_find(&d->known, hash, &seen, err);
	if (rc != 0)
		return rc < 0 ? rc : keep_known(d, &seen, rec, &binding, err);
	TRY_OUT(read_encoded(&s.latent, json_object_get(rec, "latent"), "latent", 4, binding.latent, err));
	common.channels = s.latent.npy.shape[0];
	TRY_OUT(read_texts(&s, rec, &binding, err));
	TRY_OUT(read_extras(&s, rec, &binding, err));
	common.text_dim = s.names.n ? s.texts[0].npy.shape[1] : 0;
	TRY_OUT(vfm_encoder_ids_from_record(&common.encoder_ids, rec, err));
	TRY_OUT(vfm_encoder_id_check_latent(&common.encoder_ids.tokenizer, common.channels, err));
	TRY_OUT(check_extra_rows(&s, &common, err));
	for (int i = 0; i < s.names.n; i++)
		TRY_OUT(vfm_encoder_id_check_rows(
			VFM_ENCODER_TEXT, &common.encoder_ids.text, s.texts[i].npy.shape[0], common.text_dim, err));
	dump_json(&s.json, rec);
	if (d->o.with_media)
		TRY_OUT(open_media(&s, rec, err));
	TRY_OUT(vfm_dataset_check_common(d, &common, err));
	rc = write_sample(d, &s, err);
	if (rc < 0) { /* the tar may end in a partial sample: the run must stop */
		rc = VFM_EENV;
		goto out;
	}
	vfm_dataset_note_common(d, &common);
	d->chain_changed |= d->has_chain && vfm_provenance_note(d->marked, rec);
	d->stats.unbound += !vfm_binding_is_whole(&binding, s.names.n);
	seen = (struct vfm_sample_seen){{hash[0], hash[1]},
		vfm_dataset_pack_place((struct vfm_dataset_place){d->n_shards, d->n_in_shard, false}),
		vfm_binding_number(&binding)};
	TRY_OUT(vfm_sample_set_put(&d->known, &seen, false, err));
	set_place(rec, d->n_shards, d->n_in_shard++);
out:
	sample_release(&s);
	return rc;
}

/* ---- the end ---- */

/* Of the index that was written. */
static int read_identity(const struct vfm_dataset *d, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	struct vfm_index *ix;

	TRY(vfm_index_open(&ix, d->index_path, err));
	strcpy(hex, vfm_index_info(ix)->sha256);
	vfm_index_close(ix);
	return 0;
}

int vfm_dataset_commit(struct vfm_dataset *d, struct vfm_dataset_stats *stats, struct vfm_err *err)
{
	char hex[VFM_SHA256_HEX];
	int rc;

	TRY_OUT(finish_shard(d, err));
	if (d->n_shards == 0) {
		rc = vfm_fail(err, VFM_EINPUT, "there is no sample to write");
		goto out;
	}
	rc = vfm_index_writer_commit(d->index, &d->encoder_ids, err);
	d->index = NULL;
	if (rc < 0)
		goto out;
	TRY_OUT(read_identity(d, hex, err));
	if (d->energon)
		rc = vfm_energon_commit(d->energon, hex, &d->encoder_ids, err);
	d->energon = NULL;
	d->stats.shards = d->n_shards;
	if (stats)
		*stats = d->stats;
out:
	vfm_dataset_abort(d);
	return rc;
}

void vfm_dataset_abort(struct vfm_dataset *d)
{
	if (!d)
		return;
	if (d->open)
		vfm_atomic_abort(&d->file);
	vfm_index_writer_abort(d->index);
	vfm_energon_abort(d->energon);
	if (d->lock >= 0)
		close(d->lock);
	json_decref(d->chain);
	json_decref(d->marked);
	vfm_sample_set_release(&d->known);
	free(d->dir);
	free(d->index_path);
	free(d);
}
