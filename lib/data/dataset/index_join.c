/* index_join.c - finds each sample in all parts, and writes an index whose arrays lie in their shards. */
#include "data/dataset/index_join.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/dataset/index_impl.h"
#include "data/record/sample_set.h"
#include "io/file.h"

enum join_kind { JOIN_TEXT, JOIN_EXTRA, JOIN_KINDS = JOIN_EXTRA + VFM_EXTRAS };

struct join_part {
	const char *dir;
	struct vfm_index *ix;
	uint32_t first_shard;      /* of its shards in the join */
	uint64_t next;             /* the record after the last one that was found */
	bool differs;              /* it does not have the order of the first part */
	struct vfm_sample_set ids; /* then: of its records, which are the places */
	bool has_sample;
	struct vfm_index_record found; /* its record of the current sample, if it has that */
};

struct joining {
	const struct vfm_join_how *how;
	struct join_part *parts; /* [how->n] */
	int from[JOIN_KINDS];    /* the part with such arrays */
	struct vfm_index_join_stats *stats;
	struct vfm_index_writer *w;
};

/* ---- the parts ---- */

/* Sets has[kind] of the arrays in a dataset.  Any sample may be the first with extra arrays. */
static int find_kinds(const struct vfm_index *ix, bool has[JOIN_KINDS], struct vfm_err *err)
{
	struct vfm_index_record r;

	memset(has, 0, JOIN_KINDS * sizeof(*has));
	has[JOIN_TEXT] = vfm_index_info(ix)->n_names > 0;
	for (uint64_t i = 0; i < vfm_index_info(ix)->n_records; i++) {
		TRY(vfm_index_at(ix, i, &r, err));
		for (int e = 0; e < VFM_EXTRAS; e++)
			has[JOIN_EXTRA + e] |= vfm_record_has_extra(&r, (enum vfm_extra)e);
	}
	return 0;
}

static int choose_join_parts(struct joining *j, struct vfm_err *err)
{
	static const char *const names[JOIN_KINDS] = {"texts", "conditions", "image rows", "second texts"};

	for (int i = 1; i < j->how->n; i++) {
		bool has[JOIN_KINDS], any = false;

		TRY(find_kinds(j->parts[i].ix, has, err));
		for (int kind = 0; kind < JOIN_KINDS; kind++) {
			if (has[kind] && j->from[kind])
				return vfm_fail(err, VFM_EUSAGE, "'%s' and '%s' both have %s",
					j->parts[j->from[kind]].dir, j->parts[i].dir, names[kind]);
			j->from[kind] = has[kind] ? i : j->from[kind];
			any |= has[kind];
		}
		if (!any)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s' has no texts, conditions, image rows or second texts to join", j->parts[i].dir);
	}
	return 0;
}

static int open_join_part(struct join_part *p, const char *dir, struct vfm_err *err)
{
	struct stat st;

	p->dir = dir;
	TRY(vfm_index_open(&p->ix, dir, err));
	if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
		return vfm_fail(err, VFM_EUSAGE, "'%s' is not a folder", dir);
	if (vfm_index_info(p->ix)->n_parts)
		return vfm_fail(err, VFM_EUSAGE, "'%s' is a join: name its datasets", dir);
	if (vfm_index_info(p->ix)->columns)
		return vfm_fail(err, VFM_EUSAGE, "'%s' has shards of MosaicML Streaming, which cannot be joined", dir);
	if (vfm_index_info(p->ix)->n_records == 0)
		return vfm_fail(err, VFM_EUSAGE, "'%s' has no samples", dir);
	return 0;
}

/* ---- finding a sample ---- */

/* Gathers the ids of all records. */
static int load_ids(const struct joining *j, struct join_part *p, struct vfm_err *err)
{
	struct vfm_index_record r;

	p->differs = true;
	p->ids.dir = j->how->dir;
	p->ids.max_slots = j->how->max_slots;
	for (uint64_t i = 0; i < vfm_index_info(p->ix)->n_records; i++) {
		struct vfm_sample_seen s = {.place = (int64_t)i}, first;
		int found;

		TRY(vfm_index_at(p->ix, i, &r, err));
		s.hash[0] = s.hash[1] = r.id;
		found = vfm_sample_set_add(&p->ids, &s, &first, err);
		TRY(found);
		if (found == 1)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s': samples %" PRId64 " and %" PRIu64 " have the id %016" PRIx64, p->dir,
				first.place, i, r.id);
	}
	return 0;
}

/* Finds the sample of this id: the next one, while the part has the order of the first.  Returns 1, 0 or an error. */
static int find_sample(const struct joining *j, struct join_part *p, uint64_t id, struct vfm_err *err)
{
	struct vfm_sample_seen seen;
	int found;

	if (!p->differs && p->next < vfm_index_info(p->ix)->n_records) {
		TRY(vfm_index_at(p->ix, p->next, &p->found, err));
		if (p->found.id == id) {
			p->next++;
			return 1;
		}
	}
	if (!p->differs)
		TRY(load_ids(j, p, err));
	found = vfm_sample_set_find(&p->ids, (uint64_t[2]){id, id}, &seen, err);
	if (found == 1)
		TRY(vfm_index_at(p->ix, (uint64_t)seen.place, &p->found, err));
	return found;
}

/* ---- a sample of the join ---- */

/* An array of part p, as the join has it. */
static struct vfm_index_text place_array(const struct join_part *p, const struct vfm_index_text *t)
{
	struct vfm_index_text out = *t;

	out.shard = p->first_shard + p->found.shard + 1;
	return out;
}

/* Sets the texts of *r and their arrays. */
static int take_texts(const struct join_part *p, struct vfm_index_record *r, struct vfm_index_text *arrays,
	const char **names, struct vfm_err *err)
{
	struct vfm_index_text t;

	r->n_texts = p->has_sample ? p->found.n_texts : 0;
	r->text_dim = r->n_texts ? p->found.text_dim : 0;
	for (uint32_t i = 0; i < r->n_texts; i++) {
		TRY(vfm_index_text(p->ix, &p->found, i, &t, err));
		names[i] = vfm_index_info(p->ix)->names[t.name];
		arrays[i] = place_array(p, &t);
	}
	return 0;
}

/* Returns 1 and the extra array, or 0 if the sample has none. */
static int take_joined_extra(const struct joining *j, enum vfm_extra e, struct vfm_index_record *r,
	struct vfm_index_text *array, struct vfm_err *err)
{
	const struct join_part *p = &j->parts[j->from[JOIN_EXTRA + e]];
	struct vfm_index_text t;

	r->flags &= (uint16_t)~vfm_extra_kinds[e].flag;
	if (!p->has_sample || !vfm_record_has_extra(&p->found, e))
		return 0;
	if (e == VFM_EXTRA_COND && (r->t != p->found.t || r->h != p->found.h || r->w != p->found.w))
		return vfm_fail(err, VFM_EUSAGE,
			"'%s': sample %u of shard %u: the condition is %ux%ux%u, the latents in '%s' are %ux%ux%u",
			p->dir, p->found.index, p->found.shard, p->found.t, p->found.h, p->found.w, j->parts[0].dir,
			r->t, r->h, r->w);
	TRY(vfm_index_extra(p->ix, &p->found, e, &t, err));
	r->flags |= (uint16_t)vfm_extra_kinds[e].flag;
	*array = place_array(p, &t);
	return 1;
}

/* Adds the sample of parts[i].found.  An array without checksum is 0 there, so that the others can still be checked. */
static int add_joined(struct joining *j, struct vfm_err *err)
{
	struct vfm_index_text arrays[VFM_TEXTS_MAX + VFM_EXTRAS];
	const char *names[VFM_TEXTS_MAX];
	struct vfm_index_record r = j->parts[0].found;
	uint32_t n;

	TRY(take_texts(&j->parts[j->from[JOIN_TEXT]], &r, arrays, names, err));
	n = r.n_texts;
	for (int e = 0; e < VFM_EXTRAS; e++) {
		int has = take_joined_extra(j, (enum vfm_extra)e, &r, &arrays[n], err);

		TRY(has);
		n += (uint32_t)has;
	}
	for (int i = 1; i < j->how->n; i++)
		if (j->parts[i].has_sample)
			r.flags |= j->parts[i].found.flags & VFM_REC_UNCHECKED;
	return vfm_index_writer_add(j->w, &r, arrays, names, err);
}

/* Finds parts[0].found in the other parts.  Returns 0 if the sample is left out, else 1. */
static int find_in_all(struct joining *j, struct vfm_err *err)
{
	const struct vfm_index_record *r = &j->parts[0].found;
	bool is_partial = false;

	if (r->flags & VFM_REC_NO_LATENT)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s': sample %u of shard %u has no latents: the first dataset needs them", j->parts[0].dir,
			r->index, r->shard);
	j->parts[0].has_sample = true;
	for (int i = 1; i < j->how->n; i++) {
		int found = find_sample(j, &j->parts[i], r->id, err);

		TRY(found);
		j->parts[i].has_sample = found;
		if (!found && j->how->nonmatch == VFM_NONMATCH_SKIP)
			return 0;
		if (!found && j->how->nonmatch == VFM_NONMATCH_ERROR)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s' lacks sample %u of shard %u of '%s' (--nonmatch skip leaves such samples out)",
				j->parts[i].dir, r->index, r->shard, j->parts[0].dir);
		is_partial |= !found;
	}
	j->stats->partial += is_partial;
	return 1;
}

/* ---- the whole join ---- */

static int join_shard(struct joining *j, uint32_t shard, struct vfm_err *err)
{
	struct join_part *a = &j->parts[0];
	struct vfm_index_shard s;

	TRY(vfm_index_shard(a->ix, shard, &s, err));
	TRY(vfm_index_writer_shard(j->w, s.name, s.bytes, err));
	for (uint32_t i = 0; i < s.count; i++) {
		int found;

		TRY(vfm_index_get(a->ix, shard, i, &a->found, err));
		found = find_in_all(j, err);
		TRY(found);
		if (found)
			TRY(add_joined(j, err));
		j->stats->samples += found;
		j->stats->left += !found;
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
static int add_join_part(struct joining *j, const struct join_part *p, struct vfm_err *err)
{
	char from[PATH_MAX], to[PATH_MAX], *path;
	int rc;

	if (!realpath(j->how->dir, from) || !realpath(p->dir, to))
		return vfm_fail_errno(err, VFM_EENV, "cannot find '%s' or '%s'", j->how->dir, p->dir);
	path = p->dir[0] == '/' ? vfm_strdup(to) : relative_path(from, to);
	rc = vfm_index_writer_part(j->w, path, vfm_index_info(p->ix)->sha256, err);
	free(path);
	return rc;
}

/* Sets the encoders of the join.  A condition is made by the tokenizer of the latents. */
static int find_join_encoder_ids(const struct joining *j, struct vfm_encoder_ids *encoder_ids, struct vfm_err *err)
{
	const struct join_part *a = &j->parts[0], *cond = &j->parts[j->from[JOIN_EXTRA + VFM_EXTRA_COND]];
	const struct vfm_encoder_ids of_cond = vfm_index_info(cond->ix)->encoder_ids;
	char *cond_owner = vfm_strfmt("'%s'", cond->dir), *owner = vfm_strfmt("'%s'", a->dir);
	int rc;

	*encoder_ids = vfm_index_info(a->ix)->encoder_ids;
	encoder_ids->text = vfm_index_info(j->parts[j->from[JOIN_TEXT]].ix)->encoder_ids.text;
	encoder_ids->image = vfm_index_info(j->parts[j->from[JOIN_EXTRA + VFM_EXTRA_IMAGE]].ix)->encoder_ids.image;
	encoder_ids->text2 = vfm_index_info(j->parts[j->from[JOIN_EXTRA + VFM_EXTRA_TEXT2]].ix)->encoder_ids.text2;
	rc = vfm_encoder_id_check(
		VFM_ENCODER_TOKENIZER, &of_cond.tokenizer, cond_owner, &encoder_ids->tokenizer, owner, err);
	free(cond_owner);
	free(owner);
	return rc;
}

static int write_join(struct joining *j, struct vfm_err *err)
{
	struct vfm_encoder_ids encoder_ids;
	int rc;

	TRY(find_join_encoder_ids(j, &encoder_ids, err));
	for (int i = 1; i < j->how->n; i++)
		j->parts[i].first_shard = j->parts[i - 1].first_shard + vfm_index_info(j->parts[i - 1].ix)->n_shards;
	for (int i = 0; i < j->how->n; i++) {
		TRY(add_join_part(j, &j->parts[i], err));
		for (uint32_t k = 0; k < vfm_index_info(j->parts[i].ix)->n_shards; k++) {
			struct vfm_index_shard s;

			if (i == 0) {
				TRY(join_shard(j, k, err));
				continue;
			}
			TRY(vfm_index_shard(j->parts[i].ix, k, &s, err));
			TRY(vfm_index_writer_shard(j->w, s.name, s.bytes, err));
		}
	}
	if (j->stats->samples == 0)
		return vfm_fail(err, VFM_EUSAGE, "the datasets have no sample in common");
	rc = vfm_index_writer_commit(j->w, &encoder_ids, err);
	j->w = NULL;
	return rc;
}

/* The index of a dataset, which a folder of tars cannot do without, is not replaced by a join. */
static int check_join_dir(const char *dir, const char *path, struct vfm_err *err)
{
	struct vfm_index *ix;
	uint32_t n;

	TRY(vfm_mkdir_p(dir, err));
	if (access(path, F_OK) != 0)
		return 0;
	TRY(vfm_index_open(&ix, path, err));
	n = vfm_index_info(ix)->n_parts;
	vfm_index_close(ix);
	return n ? 0
		 : vfm_fail(err, VFM_EUSAGE, "'%s' is the index of shards there: a join needs another folder", path);
}

int vfm_index_join(const struct vfm_join_how *how, struct vfm_index_join_stats *stats, struct vfm_err *err)
{
	struct joining j = {.how = how, .parts = vfm_calloc((size_t)how->n, sizeof(*j.parts)), .stats = stats};
	char *path = vfm_strfmt("%s/" VFM_INDEX_NAME, how->dir);
	int rc;

	*stats = (struct vfm_index_join_stats){0};
	TRY_OUT(check_join_dir(how->dir, path, err));
	for (int i = 0; i < how->n; i++)
		TRY_OUT(open_join_part(&j.parts[i], how->parts[i], err));
	TRY_OUT(choose_join_parts(&j, err));
	TRY_OUT(vfm_index_writer_open(&j.w, path, err));
	rc = write_join(&j, err);
out:
	vfm_index_writer_abort(j.w);
	for (int i = 0; i < how->n; i++) {
		vfm_sample_set_release(&j.parts[i].ids);
		vfm_index_close(j.parts[i].ix);
	}
	free(j.parts);
	free(path);
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

/* ---- a join that is read ---- */

int vfm_join_check_part(const struct vfm_index *ix, uint32_t i, struct vfm_err *err)
{
	const char *dir = vfm_index_info(ix)->parts[i].dir;
	char *path = vfm_strfmt("%s/" VFM_INDEX_NAME, dir);
	bool is_there = access(path, F_OK) == 0;
	struct vfm_index *part = NULL;
	int rc = is_there;

	free(path);
	if (!is_there)
		return 0;
	TRY_OUT(vfm_index_open(&part, dir, err));
	rc = strcmp(vfm_index_info(part)->sha256, vfm_index_info(ix)->parts[i].sha256) == 0
		? 1
		: vfm_fail(err, VFM_EUSAGE,
			  "'%s' has another index than it had when it was joined: join the datasets of '%s' again", dir,
			  vfm_index_info(ix)->dir);
out:
	vfm_index_close(part);
	return rc;
}

int vfm_join_check_parts(const struct vfm_index *ix, struct vfm_err *err)
{
	for (uint32_t i = 0; i < vfm_index_info(ix)->n_parts; i++)
		TRY(vfm_join_check_part(ix, i, err));
	return 0;
}
