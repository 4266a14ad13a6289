/* plan.c - the reader: header, and packs of the jsonl encoding.
 *
 * jsonl is a header line, then one line a pack; bin is the same header, then tables with O(1) access to a step.  The
 * reader maps the file and stores nothing per pack; it finds a step of a jsonl plan by binary search.
 */
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/plan/plan_impl.h"
#include "io/json.h"

/* ---- header ---- */

static int parse_schedule(const json_t *o, const char *where, struct vfm_mix_weights *w, struct vfm_err *err)
{
	const json_t *list = json_object_get(o, "schedule"), *point;
	size_t i;

	if (list && !json_is_array(list))
		return vfm_fail(err, VFM_EUSAGE, "%s.schedule: expected an array", where);
	json_array_foreach(list, i, point)
	{
		const json_t *step = json_array_get(point, 0), *weight = json_array_get(point, 1);

		if (!json_is_integer(step) || !json_is_number(weight) || json_array_size(point) != 2)
			return vfm_fail(err, VFM_EUSAGE, "%s.schedule[%zu]: expected [step, weight]", where, i);
		if (vfm_weights_add(w, json_integer_value(step), json_number_value(weight), err) < 0)
			return vfm_err_context(err, "%s.schedule[%zu]", where, i);
	}
	return 0;
}

static int parse_set(
	struct vfm_plan *m, const json_t *o, const char *where, struct vfm_plan_set *s, struct vfm_err *err)
{
	const char *name, *dir, *sha, *slash = strrchr(m->path, '/');

	TRY(vfm_json_str(o, where, "name", true, &name, err));
	TRY(vfm_json_str(o, where, "dir", true, &dir, err));
	TRY(vfm_json_i64(o, where, "records", true, 1, INT64_MAX, &s->records, err));
	TRY(vfm_json_str(o, where, "index_sha256", true, &sha, err));
	TRY(vfm_json_f64(o, where, "weight", true, &s->weight, err));
	s->selected = s->records;
	TRY(vfm_json_i64(o, where, "selected", false, 1, s->records, &s->selected, err));
	TRY(vfm_json_f64(o, where, "passes", false, &s->passes, err));
	TRY(parse_schedule(o, where, &s->schedule, err));
	if (strlen(sha) != VFM_SHA256_HEX - 1 || strspn(sha, "0123456789abcdef") != VFM_SHA256_HEX - 1)
		return vfm_fail(err, VFM_EUSAGE, "%s.index_sha256: expected 64 hex digits", where);
	if (!*name || !*dir || strlen(dir) >= PATH_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: name or dir is empty or too long", where);
	if (!(s->weight >= 0 && s->weight <= 1))
		return vfm_fail(err, VFM_EUSAGE, "%s.weight: expected a number from 0 to 1", where);
	if (!(s->passes >= 0))
		return vfm_fail(err, VFM_EUSAGE, "%s.passes: expected a number >= 0", where);
	memcpy(s->index_sha256, sha, VFM_SHA256_HEX);
	s->name = vfm_arena_strdup(&m->arena, name);
	s->dir_given = vfm_arena_strdup(&m->arena, dir);
	s->dir = s->dir_given;
	if (dir[0] != '/' && slash) {
		char *full = vfm_strfmt("%.*s/%s", (int)(slash - m->path), m->path, dir);

		s->dir = vfm_arena_strdup(&m->arena, full);
		free(full);
	}
	return 0;
}

static int parse_header_sets(struct vfm_plan *m, const json_t *root, struct vfm_err *err)
{
	const json_t *sets = json_object_get(root, "sets");
	size_t n = json_array_size(sets);

	if (!json_is_array(sets) || n < 1 || n > VFM_PLAN_MAX_SETS)
		return vfm_fail(err, VFM_EUSAGE, "sets: expected an array of 1 to %d sets", VFM_PLAN_MAX_SETS);
	m->h.sets = vfm_arena_alloc(&m->arena, n * sizeof(*m->h.sets));
	m->h.n_sets = (int32_t)n;
	for (size_t i = 0; i < n; i++) {
		char where[32];

		snprintf(where, sizeof(where), "sets[%zu]", i);
		TRY(parse_set(m, json_array_get(sets, i), where, &m->h.sets[i], err));
	}
	return 0;
}

static int parse_forced_entry(struct vfm_plan *m, const json_t *o, const char *where, struct vfm_err *err)
{
	const char *encoder = "", *text;
	struct vfm_encoder_id expected, *used;
	enum vfm_encoder_kind e = 0;
	char path[48];
	int64_t set = 0;

	TRY(vfm_json_i64(o, where, "set", true, 0, m->h.n_sets - 1, &set, err));
	TRY(vfm_json_str(o, where, "tool", true, &text, err));
	TRY(vfm_json_str(o, where, "file", true, &text, err));
	TRY(vfm_json_str(o, where, "encoder", true, &encoder, err));
	while (e < VFM_ENCODER_KINDS && strcmp(vfm_encoder_kinds[e].key, encoder) != 0)
		e++;
	if (e == VFM_ENCODER_KINDS)
		return vfm_fail(err, VFM_EUSAGE, "%s.encoder: expected tokenizer or text", where);
	used = &m->h.sets[set].forced.of[e];
	if (used->name[0])
		return vfm_fail(err, VFM_EUSAGE, "%s: set %lld is listed twice for one encoder", where, (long long)set);
	snprintf(path, sizeof(path), "%s.expected", where);
	TRY(vfm_encoder_id_from_json(&expected, json_object_get(o, "expected"), path, err));
	snprintf(path, sizeof(path), "%s.used", where);
	return vfm_encoder_id_from_json(used, json_object_get(o, "used"), path, err);
}

static int parse_forced(struct vfm_plan *m, const json_t *root, struct vfm_err *err)
{
	const json_t *forced = json_object_get(root, "forced");

	if (forced && !json_is_array(forced))
		return vfm_fail(err, VFM_EUSAGE, "forced: expected an array");
	for (size_t i = 0; i < json_array_size(forced); i++) {
		char where[32];

		snprintf(where, sizeof(where), "forced[%zu]", i);
		TRY(parse_forced_entry(m, json_array_get(forced, i), where, err));
	}
	if (forced)
		m->h.forced = m->forced = json_deep_copy(forced);
	return 0;
}

static int parse_split(struct vfm_plan_header *h, const json_t *root, struct vfm_err *err)
{
	const json_t *o = json_object_get(root, "held_out");
	const char *part = "";

	if (!o)
		return 0;
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "held_out: expected an object");
	TRY(vfm_json_f64(o, "held_out", "fraction", true, &h->held_out, err));
	TRY(vfm_json_str(o, "held_out", "part", true, &part, err));
	if (!(h->held_out > 0 && h->held_out < 1))
		return vfm_fail(err, VFM_EUSAGE, "held_out.fraction: expected a number between 0 and 1");
	if (strcmp(part, "train") && strcmp(part, "held-out"))
		return vfm_fail(err, VFM_EUSAGE, "held_out.part: expected train or held-out");
	h->side = strcmp(part, "train") ? VFM_SIDE_HELD_OUT : VFM_SIDE_TRAIN;
	return 0;
}

static int parse_cp(struct vfm_plan_header *h, const json_t *root, struct vfm_err *err)
{
	TRY(vfm_json_i32(root, "", "cp", false, 2, VFM_PLAN_MAX_CP, &h->cp, err));
	if (h->cp & (h->cp - 1))
		return vfm_fail(err, VFM_EUSAGE, "cp: expected a power of two");
	if (h->cp && (h->batch % h->cp || (int64_t)h->cp * h->context > VFM_PLAN_MAX_CONTEXT))
		return vfm_fail(err, VFM_EUSAGE, "cp: expected a divisor of batch, and at most 2^24 tokens a pack");
	return 0;
}

static int parse_fields(struct vfm_plan *m, const json_t *root, struct vfm_err *err)
{
	struct vfm_plan_header *h = &m->h;
	const json_t *patch = json_object_get(root, "patch");
	const char *type = "";
	int64_t v = 0, seed = 0;

	TRY(vfm_json_str(root, "", "type", false, &type, err));
	if (strcmp(type, PLAN_TYPE))
		return vfm_fail(err, VFM_EUSAGE, "no plan of vfm-pack (its type is '%.40s')", type);
	TRY(vfm_json_i64(root, "", "v", true, 1, INT_MAX, &v, err));
	if (v != VFM_PLAN_VERSION)
		return vfm_fail(err, VFM_EUSAGE,
			"version %lld is not supported (this program reads %d): make the plan anew with vfm-pack",
			(long long)v, VFM_PLAN_VERSION);
	TRY(vfm_json_i32(root, "", "context", true, 1, VFM_PLAN_MAX_CONTEXT, &h->context, err));
	TRY(vfm_json_i32(root, "", "batch", true, 1, VFM_PLAN_MAX_BATCH, &h->batch, err));
	TRY(parse_cp(h, root, err));
	TRY(vfm_json_i64(root, "", "steps", true, 1, INT64_MAX / VFM_PLAN_MAX_BATCH, &h->steps, err));
	TRY(vfm_json_i64(root, "", "seed", true, 0, INT64_MAX, &seed, err));
	h->seed = (uint64_t)seed;
	TRY(vfm_json_i32(root, "", "latent_channels", true, 1, 4096, &h->latent_channels, err));
	TRY(vfm_json_i32(root, "", "text_dim", true, 0, 1 << 20, &h->text_dim, err));
	TRY(vfm_json_i32(root, "", "cond_channels", false, 0, UINT16_MAX, &h->cond_channels, err));
	TRY(vfm_json_i32(root, "", "image_len", false, 0, UINT16_MAX, &h->image_len, err));
	TRY(vfm_json_i32(root, "", "image_dim", false, 0, UINT16_MAX, &h->image_dim, err));
	TRY(vfm_json_i32(root, "", "text2_dim", false, 0, UINT16_MAX, &h->text2_dim, err));
	if (!h->image_len != !h->image_dim)
		return vfm_fail(err, VFM_EUSAGE, "image_len, image_dim: expected both or none");
	if (!json_is_array(patch) || json_array_size(patch) != 3)
		return vfm_fail(err, VFM_EUSAGE, "patch: expected an array of 3 integers");
	for (size_t i = 0; i < 3; i++) {
		json_int_t p = json_integer_value(json_array_get(patch, i));

		if (p < 1 || p > 64)
			return vfm_fail(err, VFM_EUSAGE, "patch[%zu]: expected an integer from 1 to 64", i);
		h->patch[i] = (int32_t)p;
	}
	TRY(vfm_encoder_ids_from_json(&h->encoder_ids, json_object_get(root, "encoders"), "encoders", err));
	TRY(parse_header_sets(m, root, err));
	TRY(parse_split(h, root, err));
	return parse_forced(m, root, err);
}

int vfm_plan_parse_header(struct vfm_plan *m, const char *text, size_t len, struct vfm_err *err)
{
	json_t *root = vfm_json_parse(text, len, "header", err);
	int rc;

	if (!root)
		return vfm_fail(err, VFM_EUSAGE, "not a plan: the header is not a JSON object");
	rc = json_is_object(root) ? parse_fields(m, root, err)
				  : vfm_fail(err, VFM_EUSAGE, "not a plan: the header is not a JSON object");
	json_decref(root);
	return rc;
}

/* ---- checks that both encodings share ---- */

static int check_plan_sample(const struct vfm_plan *m, const struct vfm_plan_sample *s, struct vfm_err *err)
{
	int32_t most = m->h.context * (m->h.cp ? m->h.cp : 1);

	if (s->set < 0 || s->set >= m->h.n_sets)
		return vfm_fail(err, VFM_EUSAGE, "set %d of a sample: there are %d sets", s->set, m->h.n_sets);
	if (s->shard < 0)
		return vfm_fail(err, VFM_EUSAGE, "shard of a sample is out of range");
	if (s->index < 0 || s->index >= m->h.sets[s->set].records)
		return vfm_fail(err, VFM_EUSAGE, "sample index %lld: set '%s' has %lld records", (long long)s->index,
			m->h.sets[s->set].name, (long long)m->h.sets[s->set].records);
	if (s->tokens < 1 || s->tokens > most)
		return vfm_fail(err, VFM_EUSAGE, "%d tokens of a sample: expected 1 to %d", s->tokens, most);
	return 0;
}

int vfm_plan_check_cp(const struct vfm_plan *m, int32_t pack, int64_t cp, struct vfm_err *err)
{
	int32_t most = m->h.cp ? m->h.cp : 1;

	if (cp < 1 || cp > most || (cp & (cp - 1)) || pack % cp)
		return vfm_fail(err, VFM_EUSAGE,
			"cp %lld of pack %d: expected a power of two, at most %d, that divides %d", (long long)cp, pack,
			most, pack);
	return 0;
}

int vfm_plan_check_pack(const struct vfm_plan *m, const struct vfm_plan_pack *p, const struct vfm_plan_sample *samples,
	struct vfm_err *err)
{
	const int32_t most = m->h.context * p->cp;
	int64_t sum = 0;

	if (p->n_samples < 1)
		return vfm_fail(err, VFM_EUSAGE, "the pack is empty");
	for (int32_t i = 0; i < p->n_samples; i++) {
		TRY(check_plan_sample(m, &samples[i], err));
		sum += samples[i].tokens;
		if (sum > most)
			return vfm_fail(err, VFM_EUSAGE, "the samples exceed the context of %d tokens", most);
	}
	if (sum != p->tokens)
		return vfm_fail(err, VFM_EUSAGE, "tokens %lld, but the samples have %lld", (long long)p->tokens,
			(long long)sum);
	if (!(p->cost >= 0) || isinf(p->cost))
		return vfm_fail(err, VFM_EUSAGE, "cost: expected a number >= 0");
	return 0;
}

/* ---- a line of the jsonl encoding ---- */

struct plan_line {
	size_t off, end; /* of the text, without the newline */
};

/* The line that contains byte `at`, which does not begin before `lo`. */
static int line_around(const struct vfm_plan *m, size_t lo, size_t at, struct plan_line *l, struct vfm_err *err)
{
	const char *d = (const char *)m->map.data, *nl = memrchr(d + lo, '\n', at - lo), *end;

	l->off = nl ? (size_t)(nl - d) + 1 : lo;
	end = memchr(d + at, '\n', m->map.size - at);
	l->end = end ? (size_t)(end - d) : m->map.size;
	if (!end)
		return vfm_fail(err, VFM_EUSAGE, "truncated: the last line has no end");
	if (l->end - l->off > PLAN_MAX_LINE)
		return vfm_fail(err, VFM_EUSAGE, "a line of %zu bytes is too long", l->end - l->off);
	return 0;
}

static json_t *parse_plan_line(const struct vfm_plan *m, const struct plan_line *l, struct vfm_err *err)
{
	json_t *o = vfm_json_parse((const char *)m->map.data + l->off, l->end - l->off, "a pack", err);

	if (o && !json_is_object(o)) {
		json_decref(o);
		o = NULL;
	}
	if (!o)
		vfm_fail(err, VFM_EUSAGE, "not a JSON object");
	return o;
}

/* Where a pack stands: (step, pack) as one number, counted in parts. */
struct line_key {
	int64_t part;
	int32_t cp;
};

static int read_line_key(const struct vfm_plan *m, const json_t *o, struct line_key *key, struct vfm_err *err)
{
	int64_t step = 0, pack = 0, cp = 1;

	TRY(vfm_json_i64(o, "", "step", true, 0, m->h.steps - 1, &step, err));
	TRY(vfm_json_i64(o, "", "pack", true, 0, m->h.batch - 1, &pack, err));
	if (m->h.cp)
		TRY(vfm_json_i64(o, "", "cp", true, 1, m->h.cp, &cp, err));
	TRY(vfm_plan_check_cp(m, (int32_t)pack, cp, err));
	*key = (struct line_key){step * m->h.batch + pack, (int32_t)cp};
	return 0;
}

static int read_line_key_at(
	const struct vfm_plan *m, const struct plan_line *l, struct line_key *key, struct vfm_err *err)
{
	json_t *o = parse_plan_line(m, l, err);
	int rc = o ? read_line_key(m, o, key, err) : VFM_EUSAGE;

	json_decref(o);
	if (rc < 0)
		return vfm_err_context(err, "at byte %zu", l->off);
	return 0;
}

static int parse_sample(const json_t *a, struct vfm_plan_sample *s)
{
	json_int_t v[4];

	if (!json_is_array(a) || json_array_size(a) != 4)
		return -1;
	for (size_t i = 0; i < 4; i++) {
		const json_t *e = json_array_get(a, i);

		v[i] = json_integer_value(e);
		if (!json_is_integer(e) || v[i] < 0 || (i != 2 && v[i] > INT32_MAX))
			return -1;
	}
	s->set = (int32_t)v[0];
	s->shard = (int32_t)v[1];
	s->index = v[2];
	s->tokens = (int32_t)v[3];
	return 0;
}

/* Appends one pack to out->samples, at *n_used. */
static int parse_pack(const struct vfm_plan *m, const json_t *o, struct vfm_plan_step *out, size_t *n_used,
	struct vfm_plan_pack *p, struct vfm_err *err)
{
	const json_t *list = json_object_get(o, "samples");
	size_t n = json_array_size(list), most = (size_t)m->h.context * (size_t)p->cp;

	TRY(vfm_json_i64(o, "", "tokens", true, 1, (int64_t)most, &p->tokens, err));
	TRY(vfm_json_f64(o, "", "cost", true, &p->cost, err));
	if (!json_is_array(list) || n > most)
		return vfm_fail(err, VFM_EUSAGE, "samples: expected an array of at most %zu samples", most);
	vfm_grow(&out->samples, &out->cap_samples, *n_used + n, sizeof(*out->samples));
	for (size_t i = 0; i < n; i++)
		if (parse_sample(json_array_get(list, i), &out->samples[*n_used + i]) < 0)
			return vfm_fail(err, VFM_EUSAGE, "samples[%zu]: expected [set, shard, index, tokens]", i);
	p->n_samples = (int32_t)n;
	TRY(vfm_plan_check_pack(m, p, out->samples + *n_used, err));
	*n_used += n;
	return 0;
}

/* ---- finding and reading a step ---- */

static int find_line(const struct vfm_plan *m, int64_t want, size_t *off, struct vfm_err *err)
{
	size_t lo = m->body, hi = m->map.size;

	while (lo < hi) {
		struct line_key key = {0};
		struct plan_line l;

		TRY(line_around(m, lo, lo + (hi - lo) / 2, &l, err));
		TRY(read_line_key_at(m, &l, &key, err));
		if (key.part == want) {
			*off = l.off;
			return 0;
		}
		if (key.part < want)
			lo = l.end + 1;
		else
			hi = l.off;
	}
	return vfm_fail(err, VFM_EUSAGE, "step %lld, pack %lld is missing or out of order",
		(long long)(want / m->h.batch), (long long)(want % m->h.batch));
}

/* Reads the pack whose line begins at *off, and moves *off on. */
static int read_plan_line(const struct vfm_plan *m, int64_t want, size_t *off, struct vfm_plan_step *out,
	size_t *n_used, struct vfm_plan_pack *p, struct vfm_err *err)
{
	struct line_key key = {0};
	struct plan_line l;
	json_t *o;
	int rc;

	if (*off >= m->map.size)
		return vfm_fail(err, VFM_EUSAGE, "truncated: the line is missing");
	TRY(line_around(m, *off, *off, &l, err));
	o = parse_plan_line(m, &l, err);
	if (!o)
		return VFM_EUSAGE;
	TRY_OUT(read_line_key(m, o, &key, err));
	if (key.part != want) {
		rc = vfm_fail(err, VFM_EUSAGE, "expected step %lld, pack %lld, got step %lld, pack %lld",
			(long long)(want / m->h.batch), (long long)(want % m->h.batch),
			(long long)(key.part / m->h.batch), (long long)(key.part % m->h.batch));
		goto out;
	}
	p->cp = key.cp;
	TRY_OUT(parse_pack(m, o, out, n_used, p, err));
	*off = l.end + 1;
out:
	json_decref(o);
	return rc;
}

static int jsonl_step(const struct vfm_plan *m, int64_t step, struct vfm_plan_step *out, struct vfm_err *err)
{
	int64_t first = step * m->h.batch;
	size_t off = step == 0 ? m->body : 0, used = 0;

	if (step > 0 && out->n_packs && out->serial == m->serial && out->step == step - 1)
		off = out->next_off;
	if (!off)
		TRY(find_line(m, first, &off, err));
	out->n_packs = 0;
	for (int32_t i = 0, end = 0; i < m->h.batch; i++) {
		struct vfm_plan_pack *p;

		vfm_grow(&out->packs, &out->cap_packs, (size_t)i + 1, sizeof(*out->packs));
		p = &out->packs[i];
		*p = (struct vfm_plan_pack){.step = step, .pack = i};
		if (i < end)
			continue;
		if (read_plan_line(m, first + i, &off, out, &used, p, err) < 0)
			return m->h.cp ? vfm_err_context(err, "step %lld, pack %d", (long long)step, i)
				       : vfm_err_context(err, "line %lld", (long long)(first + i + 2));
		end = i + p->cp;
	}
	out->next_off = off;
	out->serial = m->serial;
	return 0;
}

int vfm_plan_step(const struct vfm_plan *m, int64_t step, struct vfm_plan_step *out, struct vfm_err *err)
{
	const struct vfm_plan_sample *s;
	int rc;

	if (step < 0 || step >= m->h.steps)
		return vfm_fail(err, VFM_EUSAGE, "plan '%s': step %lld: there are %lld steps", m->path, (long long)step,
			(long long)m->h.steps);
	rc = m->bin ? vfm_plan_bin_step(m, step, out, err) : jsonl_step(m, step, out, err);
	if (rc < 0) {
		out->n_packs = 0;
		vfm_err_context(err, "plan '%s'", m->path);
		return rc;
	}
	out->step = step;
	out->n_packs = m->h.batch;
	out->tokens = 0;
	s = out->samples;
	for (int32_t i = 0; i < out->n_packs; i++) {
		out->packs[i].samples = s;
		out->tokens += out->packs[i].tokens;
		s += out->packs[i].n_samples;
	}
	return 0;
}

const struct vfm_plan_pack *vfm_plan_pack_of(const struct vfm_plan_step *s, int64_t part)
{
	const struct vfm_plan_pack *p = &s->packs[part];

	while (p->cp == 0)
		p--;
	return p;
}

void vfm_plan_step_release(struct vfm_plan_step *s)
{
	if (!s)
		return;
	free(s->packs);
	free(s->samples);
	*s = (struct vfm_plan_step){0};
}

/* ---- open ---- */

static int jsonl_open(struct vfm_plan *m, struct vfm_err *err)
{
	const char *d = (const char *)m->map.data, *nl;
	size_t max = m->map.size < PLAN_MAX_HEADER ? m->map.size : PLAN_MAX_HEADER;
	struct line_key key = {0};
	struct plan_line l;

	nl = memchr(d, '\n', max);
	if (!nl)
		return vfm_fail(err, VFM_EUSAGE, "not a plan: no header line");
	TRY(vfm_plan_parse_header(m, d, (size_t)(nl - d), err));
	m->body = (size_t)(nl - d) + 1;
	if (m->body == m->map.size)
		return vfm_fail(err, VFM_EUSAGE, "truncated: there is nothing after the header");
	if (d[m->map.size - 1] != '\n')
		return vfm_fail(err, VFM_EUSAGE, "truncated: the last line has no end");
	TRY(line_around(m, m->body, m->map.size - 1, &l, err));
	TRY(read_line_key_at(m, &l, &key, err));
	if (key.part + key.cp != m->h.steps * m->h.batch)
		return vfm_fail(err, VFM_EUSAGE,
			"truncated: it ends with step %lld, pack %lld of %lld steps of %d packs",
			(long long)(key.part / m->h.batch), (long long)(key.part % m->h.batch), (long long)m->h.steps,
			m->h.batch);
	return 0;
}

struct vfm_plan *vfm_plan_open(const char *path, struct vfm_err *err)
{
	static atomic_uint_fast64_t opened;
	struct vfm_plan *m = vfm_calloc(1, sizeof(*m));
	struct stat st;
	int rc;

	m->serial = atomic_fetch_add(&opened, 1) + 1;
	m->path = vfm_strdup(path);
	if (vfm_map_open(&m->map, path, err) < 0) {
		if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
			vfm_fail(err, VFM_EINPUT, "'%s' is a folder, not a plan (vfm-pack '%s' makes one of a dataset)",
				path, path);
		if (err && err->code == VFM_EINPUT)
			err->code = VFM_EUSAGE; /* without it nothing can be done */
		goto fail;
	}
	m->bin = m->map.size >= 8 && !memcmp(m->map.data, BIN_MAGIC, 8);
	if (m->map.size == 0)
		rc = vfm_fail(err, VFM_EUSAGE, "the file is empty");
	else
		rc = m->bin ? vfm_plan_bin_open(m, err) : jsonl_open(m, err);
	if (rc == 0)
		return m;
	vfm_err_context(err, "plan '%s'", path);
fail:
	vfm_plan_close(m);
	return NULL;
}

void vfm_plan_close(struct vfm_plan *m)
{
	if (!m)
		return;
	vfm_map_close(&m->map);
	for (int32_t i = 0; i < m->h.n_sets; i++)
		vfm_weights_release(&m->h.sets[i].schedule);
	vfm_arena_release(&m->arena);
	json_decref(m->forced);
	free(m->path);
	free(m);
}

const struct vfm_plan_header *vfm_plan_header(const struct vfm_plan *m)
{
	return &m->h;
}

const char *vfm_plan_path(const struct vfm_plan *m)
{
	return m->path;
}
