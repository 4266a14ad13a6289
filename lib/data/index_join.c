#include "data/index_join.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/index_impl.h"

enum join_kind { JOIN_TEXT, JOIN_EXTRA, JOIN_KINDS = JOIN_EXTRA + VFM_EXTRAS };

struct numbered_id {
	uint64_t id, record;
};

struct join_part {
	const char *dir;
	struct vfm_index *ix;
	char sha256[VFM_SHA256_HEX];
	uint32_t first_shard;    /* of its shards in the join */
	uint64_t next;           /* the record behind the last one that was found */
	struct numbered_id *ids; /* [records] sorted; NULL: not needed yet */
	bool is_used;
	struct vfm_record found; /* its record of the current sample */
};

struct joining {
	struct join_part *parts; /* [n] */
	int n;
	int from[JOIN_KINDS]; /* the part with such arrays */
	struct vfm_index_writer *w;
};

/* ---- the parts ---- */

/* Whether a dataset has arrays of a kind; of extra arrays, its first sample tells. */
static int has_kind(const struct join_part *p, int kind, struct vfm_err *err)
{
	struct vfm_record r;

	if (kind == JOIN_TEXT)
		return vfm_index_n_names(p->ix) > 0;
	TRY(vfm_index_at(p->ix, 0, &r, err));
	return vfm_record_has_extra(&r, (enum vfm_extra)(kind - JOIN_EXTRA));
}

static int choose_join_parts(struct joining *j, struct vfm_err *err)
{
	static const char *const names[JOIN_KINDS] = {"texts", "conditions", "image rows"};

	for (int kind = 0; kind < JOIN_KINDS; kind++) {
		for (int i = 1; i < j->n; i++) {
			int has = has_kind(&j->parts[i], kind, err);

			TRY(has);
			if (has && j->from[kind])
				return vfm_fail(err, VFM_EUSAGE, "'%s' and '%s' both have %s",
					j->parts[j->from[kind]].dir, j->parts[i].dir, names[kind]);
			j->from[kind] = has ? i : j->from[kind];
		}
		j->parts[j->from[kind]].is_used = true;
	}
	for (int i = 1; i < j->n; i++)
		if (!j->parts[i].is_used)
			return vfm_fail(err, VFM_EUSAGE, "'%s' has no texts, conditions or image rows to join",
				j->parts[i].dir);
	return 0;
}

static int open_join_part(struct join_part *p, const char *dir, struct vfm_err *err)
{
	p->dir = dir;
	TRY(vfm_index_open(&p->ix, dir, err));
	if (vfm_index_n_parts(p->ix))
		return vfm_fail(err, VFM_EUSAGE, "'%s' is a join: name its datasets", dir);
	if (vfm_index_columns(p->ix))
		return vfm_fail(err, VFM_EUSAGE, "'%s' has shards of MosaicML Streaming, which cannot be joined", dir);
	if (vfm_index_n_records(p->ix) == 0)
		return vfm_fail(err, VFM_EUSAGE, "'%s' has no samples", dir);
	return vfm_index_sha256(p->ix, p->sha256, err);
}

/* ---- finding a sample ---- */

static int by_id(const void *a, const void *b)
{
	uint64_t x = ((const struct numbered_id *)a)->id, y = ((const struct numbered_id *)b)->id;

	return (x > y) - (x < y);
}

static int sort_part_ids(struct join_part *p, struct vfm_err *err)
{
	uint64_t n = vfm_index_n_records(p->ix);

	p->ids = vfm_big_alloc(n * sizeof(*p->ids), "the ids of a dataset", err);
	if (!p->ids)
		return VFM_EENV;
	for (uint64_t i = 0; i < n; i++) {
		struct vfm_record r;

		TRY(vfm_index_at(p->ix, i, &r, err));
		p->ids[i] = (struct numbered_id){r.id, i};
	}
	qsort(p->ids, n, sizeof(*p->ids), by_id);
	for (uint64_t i = 1; i < n; i++)
		if (p->ids[i].id == p->ids[i - 1].id)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s': samples %" PRIu64 " and %" PRIu64 " have the id %016" PRIx64, p->dir,
				p->ids[i - 1].record, p->ids[i].record, p->ids[i].id);
	return 0;
}

/* Finds the sample of this id.  Returns 1, 0 or an error. */
static int find_sample(struct join_part *p, uint64_t id, struct vfm_err *err)
{
	const struct numbered_id want = {.id = id}, *x;

	if (p->next < vfm_index_n_records(p->ix)) {
		TRY(vfm_index_at(p->ix, p->next, &p->found, err));
		if (p->found.id == id) {
			p->next++;
			return 1;
		}
	}
	if (!p->ids)
		TRY(sort_part_ids(p, err));
	x = bsearch(&want, p->ids, vfm_index_n_records(p->ix), sizeof(*p->ids), by_id);
	if (!x)
		return 0;
	TRY(vfm_index_at(p->ix, x->record, &p->found, err));
	p->next = x->record + 1;
	return 1;
}

/* ---- a sample of the join ---- */

/* An array of part p, as the join has it. */
static struct vfm_index_text place_array(const struct join_part *p, const struct vfm_index_text *t)
{
	struct vfm_index_text out = *t;

	out.shard = p->first_shard + p->found.shard + 1;
	return out;
}

/* Adds the sample of parts[i].found. */
static int add_joined(struct joining *j, struct vfm_err *err)
{
	struct vfm_index_text arrays[VFM_TEXTS_MAX + VFM_EXTRAS], t;
	const char *names[VFM_TEXTS_MAX];
	struct vfm_record r = j->parts[0].found;
	const struct join_part *p = &j->parts[j->from[JOIN_TEXT]];
	uint32_t n = p->found.n_texts;

	r.n_texts = n;
	r.text_dim = p->found.text_dim;
	for (uint32_t i = 0; i < n; i++) {
		TRY(vfm_index_text(p->ix, &p->found, i, &t, err));
		names[i] = vfm_index_name(p->ix, t.name);
		arrays[i] = place_array(p, &t);
	}
	for (int e = 0; e < VFM_EXTRAS; e++) {
		p = &j->parts[j->from[JOIN_EXTRA + e]];
		r.flags &= (uint16_t)~vfm_extra_kinds[e].flag;
		if (!vfm_record_has_extra(&p->found, (enum vfm_extra)e))
			continue;
		TRY(vfm_index_extra(p->ix, &p->found, (enum vfm_extra)e, &t, err));
		r.flags |= (uint16_t)vfm_extra_kinds[e].flag;
		arrays[n++] = place_array(p, &t);
	}
	for (int i = 1; i < j->n; i++)
		r.flags |= j->parts[i].found.flags & VFM_REC_UNCHECKED;
	return vfm_index_writer_add(j->w, &r, arrays, names, err);
}

/* Returns 1 if all datasets have the sample of parts[0].found, else 0. */
static int find_in_all(struct joining *j, bool skip, struct vfm_err *err)
{
	const struct vfm_record *r = &j->parts[0].found;

	if (r->flags & VFM_REC_NO_LATENT)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s': sample %u of shard %u has no latents: the first dataset needs them", j->parts[0].dir,
			r->index, r->shard);
	for (int i = 1; i < j->n; i++) {
		int found = find_sample(&j->parts[i], r->id, err);

		TRY(found);
		if (!found && skip)
			return 0;
		if (!found)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s' lacks sample %u of shard %u of '%s' (--nonmatch skip leaves such samples out)",
				j->parts[i].dir, r->index, r->shard, j->parts[0].dir);
	}
	return 1;
}

/* ---- the whole join ---- */

static int join_shard(struct joining *j, uint32_t shard, bool skip, struct vfm_join_stats *stats, struct vfm_err *err)
{
	struct join_part *a = &j->parts[0];
	struct vfm_index_shard s;

	TRY(vfm_index_shard(a->ix, shard, &s, err));
	TRY(vfm_index_writer_shard(j->w, s.name, s.bytes, err));
	for (uint32_t i = 0; i < s.count; i++) {
		int found;

		TRY(vfm_index_get(a->ix, shard, i, &a->found, err));
		found = find_in_all(j, skip, err);
		TRY(found);
		if (found)
			TRY(add_joined(j, err));
		stats->samples += found;
		stats->left += !found;
	}
	return 0;
}

/* Returns the path from folder `from` to folder `to`, both absolute. */
static char *relative_path(const char *from, const char *to)
{
	struct vfm_buf b = {0};
	size_t same = 0, i = 0;
	char *path;

	while (from[i] && from[i] == to[i]) {
		i++;
		if ((from[i] == '/' || !from[i]) && (to[i] == '/' || !to[i]))
			same = i;
	}
	for (const char *p = from + same; *p; p++)
		if (*p == '/' && p[1])
			vfm_buf_adds(&b, b.len ? "/.." : "..");
	if (to[same])
		vfm_buf_addf(&b, "%s%s", b.len ? "/" : "", to + same + (to[same] == '/'));
	path = vfm_strdup(b.len ? b.data : ".");
	vfm_buf_release(&b);
	return path;
}

/* Names the folder of a part relative to that of the join, so that both may move. */
static int add_join_part(struct joining *j, const char *dir, const struct join_part *p, struct vfm_err *err)
{
	char from[PATH_MAX], to[PATH_MAX], *path;
	int rc;

	if (!realpath(dir, from) || !realpath(p->dir, to))
		return vfm_fail_errno(err, VFM_EENV, "cannot find '%s' or '%s'", dir, p->dir);
	path = p->dir[0] == '/' ? vfm_strdup(to) : relative_path(from, to);
	rc = vfm_index_writer_part(j->w, path, p->sha256, err);
	free(path);
	return rc;
}

static int write_join(struct joining *j, const char *dir, bool skip, struct vfm_join_stats *stats, struct vfm_err *err)
{
	struct vfm_makers makers = vfm_index_makers(j->parts[0].ix);
	int rc;

	for (int i = 1; i < j->n; i++)
		j->parts[i].first_shard = j->parts[i - 1].first_shard + vfm_index_n_shards(j->parts[i - 1].ix);
	for (int i = 0; i < j->n; i++) {
		TRY(add_join_part(j, dir, &j->parts[i], err));
		for (uint32_t k = 0; k < vfm_index_n_shards(j->parts[i].ix); k++) {
			struct vfm_index_shard s;

			if (i == 0) {
				TRY(join_shard(j, k, skip, stats, err));
				continue;
			}
			TRY(vfm_index_shard(j->parts[i].ix, k, &s, err));
			TRY(vfm_index_writer_shard(j->w, s.name, s.bytes, err));
		}
	}
	if (stats->samples == 0)
		return vfm_fail(err, VFM_EUSAGE, "the datasets have no sample in common");
	makers.text = vfm_index_makers(j->parts[j->from[JOIN_TEXT]].ix).text;
	makers.image = vfm_index_makers(j->parts[j->from[JOIN_EXTRA + VFM_EXTRA_IMAGE]].ix).image;
	rc = vfm_index_writer_commit(j->w, &makers, err);
	j->w = NULL;
	return rc;
}

int vfm_index_join(
	const char *dir, const char *const *parts, int n, bool skip, struct vfm_join_stats *stats, struct vfm_err *err)
{
	struct joining j = {.parts = vfm_calloc((size_t)n, sizeof(*j.parts)), .n = n};
	char *path = vfm_strfmt("%s/" VFM_INDEX_NAME, dir);
	int rc;

	*stats = (struct vfm_join_stats){0};
	for (int i = 0; i < n; i++)
		TRY_OUT(open_join_part(&j.parts[i], parts[i], err));
	TRY_OUT(choose_join_parts(&j, err));
	TRY_OUT(vfm_mkdir_p(dir, err));
	TRY_OUT(vfm_index_writer_open(&j.w, path, err));
	rc = write_join(&j, dir, skip, stats, err);
out:
	vfm_index_writer_abort(j.w);
	for (int i = 0; i < n; i++) {
		vfm_big_free(j.parts[i].ids,
			j.parts[i].ids ? vfm_index_n_records(j.parts[i].ix) * sizeof(struct numbered_id) : 0);
		vfm_index_close(j.parts[i].ix);
	}
	free(j.parts);
	free(path);
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}
