/* manifest_write.c - both encodings, as a stream. */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/manifest_priv.h"

struct vfm_manifest_writer {
	FILE *f;
	enum vfm_manifest_format format;
	struct vfm_manifest_header h; /* sets: not kept */
	int64_t next, n_samples, samples_done;
	struct vfm_buf text; /* a line, or the records of a pack */
	uint8_t *packs;      /* bin: the table, written at the end */
};

static void put32(uint8_t *p, uint32_t x)
{
	x = htole32(x);
	memcpy(p, &x, 4);
}

static void put64(uint8_t *p, uint64_t x)
{
	x = htole64(x);
	memcpy(p, &x, 8);
}

static int out(struct vfm_manifest_writer *w, const void *data, size_t len, struct vfm_err *err)
{
	if (len && fwrite(data, 1, len, w->f) != len)
		return vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the manifest");
	return 0;
}

static void header_text(struct vfm_buf *b, const struct vfm_manifest_header *h)
{
	json_t *sets = json_array(),
	       *o = json_pack("{s:i,s:s,s:i,s:i,s:I,s:I,s:[iii],s:i,s:i}", "v", VFM_MANIFEST_VERSION, "type",
		       MANIFEST_TYPE, "context", h->context, "batch", h->batch, "seed", (json_int_t)h->seed, "steps",
		       (json_int_t)h->steps, "patch", h->patch[0], h->patch[1], h->patch[2], "latent_channels",
		       h->latent_channels, "text_dim", h->text_dim);

	for (int32_t i = 0; i < h->n_sets; i++) {
		const struct vfm_manifest_set *s = &h->sets[i];

		json_array_append_new(sets,
			json_pack("{s:s,s:s,s:I,s:s,s:f}", "name", s->name, "dir", s->dir_given, "records",
				(json_int_t)s->records, "index_sha256", s->index_sha256, "weight", s->weight));
	}
	if (h->cond_channels)
		json_object_set_new(o, "cond_channels", json_integer(h->cond_channels));
	if (h->image_len) {
		json_object_set_new(o, "image_len", json_integer(h->image_len));
		json_object_set_new(o, "image_dim", json_integer(h->image_dim));
	}
	json_object_set_new(o, "sets", sets);
	if (h->makers.tokenizer.name[0] || h->makers.text.name[0] || h->makers.image.name[0])
		json_object_set_new(o, "encoders", vfm_makers_json(&h->makers));
	if (h->side != VFM_SIDE_ALL)
		json_object_set_new(o, "held_out",
			json_pack("{s:f,s:s}", "fraction", h->held_out, "part",
				h->side == VFM_SIDE_TRAIN ? "train" : "held-out"));
	if (h->forced)
		json_object_set_new(o, "forced", json_deep_copy(h->forced));
	vfm_json_text(b, o, 0);
	json_decref(o);
}

static uint64_t align_up(uint64_t x)
{
	return (x + BIN_ALIGN - 1) / BIN_ALIGN * BIN_ALIGN;
}

static int bin_begin(struct vfm_manifest_writer *w, struct vfm_err *err)
{
	uint64_t n_packs = (uint64_t)w->h.steps * (uint64_t)w->h.batch, n = (uint64_t)w->n_samples;
	uint64_t samples_off = align_up(BIN_FIXED + w->text.len), packs_off = samples_off + n * BIN_SAMPLE;
	uint8_t fixed[BIN_FIXED] = {0};

	memcpy(fixed, BIN_MAGIC, 8);
	put32(fixed + 8, (uint32_t)w->text.len);
	put32(fixed + 12, vfm_crc32c(0, w->text.data, w->text.len));
	put64(fixed + 16, n_packs);
	put64(fixed + 24, n);
	put64(fixed + 32, samples_off);
	put64(fixed + 40, packs_off);
	put64(fixed + 48, packs_off + n_packs * BIN_PACK);
	put32(fixed + 60, vfm_crc32c(0, fixed, BIN_FIXED - 4));
	w->packs = vfm_big_alloc(n_packs * BIN_PACK, "the table of packs", err);
	if (!w->packs)
		return VFM_EENV;
	TRY(out(w, fixed, BIN_FIXED, err));
	TRY(out(w, w->text.data, w->text.len, err));
	memset(fixed, 0, BIN_ALIGN);
	return out(w, fixed, samples_off - BIN_FIXED - w->text.len, err);
}

static void writer_free(struct vfm_manifest_writer *w)
{
	vfm_big_free(w->packs, (size_t)w->h.steps * (size_t)w->h.batch * BIN_PACK);
	vfm_buf_release(&w->text);
	free(w);
}

struct vfm_manifest_writer *vfm_manifest_writer_new(FILE *f, enum vfm_manifest_format format,
	const struct vfm_manifest_header *h, int64_t n_samples, struct vfm_err *err)
{
	struct vfm_manifest_writer *w = vfm_calloc(1, sizeof(*w));
	int rc;

	*w = (struct vfm_manifest_writer){.f = f, .format = format, .h = *h, .n_samples = n_samples};
	header_text(&w->text, h);
	if (format == VFM_MANIFEST_BIN) {
		rc = bin_begin(w, err);
	} else {
		vfm_buf_adds(&w->text, "\n");
		rc = out(w, w->text.data, w->text.len, err);
	}
	if (rc < 0) {
		writer_free(w);
		return NULL;
	}
	return w;
}

static void pack_text(struct vfm_buf *b, const struct vfm_manifest_pack *p)
{
	vfm_buf_addf(b, "{\"step\":%" PRId64 ",\"pack\":%d,\"tokens\":%" PRId64 ",\"cost\":%.9g,\"samples\":[", p->step,
		p->pack, p->tokens, p->cost);
	for (int32_t i = 0; i < p->n_samples; i++) {
		const struct vfm_manifest_sample *s = &p->samples[i];

		vfm_buf_addf(b, "%s[%d,%d,%" PRId64 ",%d]", i ? "," : "", s->set, s->shard, s->index, s->tokens);
	}
	vfm_buf_adds(b, "]}\n");
}

static int pack_bin(struct vfm_manifest_writer *w, const struct vfm_manifest_pack *p, struct vfm_err *err)
{
	uint8_t *r = w->packs + w->next * BIN_PACK, rec[BIN_SAMPLE];
	uint64_t bits;

	for (int32_t i = 0; i < p->n_samples; i++) {
		const struct vfm_manifest_sample *s = &p->samples[i];

		if (s->index > UINT32_MAX)
			return vfm_fail(
				err, VFM_EUSAGE, "sample index %" PRId64 " does not fit a binary manifest", s->index);
		put32(rec, (uint32_t)s->set);
		put32(rec + 4, (uint32_t)s->shard);
		put32(rec + 8, (uint32_t)s->index);
		put32(rec + 12, (uint32_t)s->tokens);
		vfm_buf_add(&w->text, rec, BIN_SAMPLE);
	}
	memcpy(&bits, &p->cost, 8);
	put64(r, (uint64_t)w->samples_done);
	put32(r + 8, (uint32_t)p->n_samples);
	put32(r + 12, 0);
	put64(r + 16, (uint64_t)p->tokens);
	put64(r + 24, bits);
	put32(r + 12, vfm_crc32c(vfm_crc32c(0, r, BIN_PACK), w->text.data, w->text.len));
	return 0;
}

int vfm_manifest_writer_pack(struct vfm_manifest_writer *w, const struct vfm_manifest_pack *p, struct vfm_err *err)
{
	if (p->step * w->h.batch + p->pack != w->next || p->step >= w->h.steps || p->n_samples < 1)
		return vfm_fail(
			err, VFM_EUSAGE, "step %" PRId64 ", pack %d is out of order or empty", p->step, p->pack);
	vfm_buf_clear(&w->text);
	if (w->format == VFM_MANIFEST_BIN)
		TRY(pack_bin(w, p, err));
	else
		pack_text(&w->text, p);
	w->next++;
	w->samples_done += p->n_samples;
	return out(w, w->text.data, w->text.len, err);
}

int vfm_manifest_writer_end(struct vfm_manifest_writer *w, struct vfm_err *err)
{
	int64_t n_packs = w->h.steps * w->h.batch;
	int rc = 0;

	if (w->next != n_packs)
		rc = vfm_fail(
			err, VFM_EUSAGE, "%" PRId64 " packs were written, %" PRId64 " promised", w->next, n_packs);
	else if (w->format == VFM_MANIFEST_BIN && w->samples_done != w->n_samples)
		rc = vfm_fail(err, VFM_EUSAGE, "%" PRId64 " samples were written, %" PRId64 " promised",
			w->samples_done, w->n_samples);
	else if (w->format == VFM_MANIFEST_BIN)
		rc = out(w, w->packs, (size_t)n_packs * BIN_PACK, err);
	if (rc == 0 && fflush(w->f))
		rc = vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the manifest");
	writer_free(w);
	return rc;
}
