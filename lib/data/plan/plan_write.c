/* plan_write.c - both encodings, as a stream: the header, which has the number of steps, is written last. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/plan/plan_impl.h"
#include "base/le.h"
#include "io/file.h"
#include "io/json.h"

#define MAX_STEPS (INT64_MAX / VFM_PLAN_MAX_BATCH)

struct vfm_plan_writer {
	FILE *f;     /* of the caller */
	FILE *body;  /* f, or a temporary file if f is no regular file */
	FILE *table; /* bin: the records of the packs, which follow the samples */
	enum vfm_plan_format format;
	int32_t batch, cp; /* of the header */
	json_t *header;    /* without steps */
	off_t start;       /* where the plan begins in body */
	size_t front;      /* bytes of the header, which is written at the end */
	int64_t next, samples_done;
	struct vfm_buf text; /* the header, or bin: the records of a pack */
	char *line;          /* jsonl: a pack */
	size_t len_line, cap_line;
};

static int fail_writing(struct vfm_err *err)
{
	return vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the plan");
}

static int out(FILE *f, const void *data, size_t len, struct vfm_err *err)
{
	return len && fwrite(data, 1, len, f) != len ? fail_writing(err) : 0;
}

/* Appends what `from`, a temporary file, holds. */
static int append_file(FILE *to, FILE *from, struct vfm_err *err)
{
	static const size_t block = 1 << 20;
	char *buf = vfm_malloc(block);
	size_t n;
	int rc = 0;

	if (fflush(from) || fseeko(from, 0, SEEK_SET))
		rc = fail_writing(err);
	while (rc == 0 && (n = fread(buf, 1, block, from)) > 0)
		rc = out(to, buf, n, err);
	if (rc == 0 && ferror(from))
		rc = vfm_fail_errno(err, VFM_EENV, "cannot read a temporary file");
	free(buf);
	return rc;
}

static json_t *set_json(const struct vfm_plan_set *s)
{
	json_t *o = json_pack("{s:s,s:s,s:I,s:s,s:f}", "name", s->name, "dir", s->dir_given, "records",
		       (json_int_t)s->records, "index_sha256", s->index_sha256, "weight", s->weight),
	       *schedule = json_array();

	if (s->selected && s->selected != s->records)
		json_object_set_new(o, "selected", json_integer(s->selected));
	if (s->passes > 0)
		json_object_set_new(o, "passes", json_real(s->passes));
	for (int32_t i = 0; i < s->schedule.n; i++)
		json_array_append_new(
			schedule, json_pack("[I,f]", (json_int_t)s->schedule.v[i].step, s->schedule.v[i].weight));
	if (s->schedule.n)
		json_object_set(o, "schedule", schedule);
	json_decref(schedule);
	return o;
}

static json_t *header_json(const struct vfm_plan_header *h)
{
	json_t *encoders, *sets = json_array(),
			  *o = json_pack("{s:i,s:s,s:i,s:i,s:I,s:I,s:[iii],s:i,s:i}", "v", VFM_PLAN_VERSION, "type",
				  PLAN_TYPE, "context", h->context, "batch", h->batch, "seed", (json_int_t)h->seed,
				  "steps", (json_int_t)MAX_STEPS, "patch", h->patch[0], h->patch[1], h->patch[2],
				  "latent_channels", h->latent_channels, "text_dim", h->text_dim);

	for (int32_t i = 0; i < h->n_sets; i++)
		json_array_append_new(sets, set_json(&h->sets[i]));
	if (h->cp)
		json_object_set_new(o, "cp", json_integer(h->cp));
	if (h->cond_channels)
		json_object_set_new(o, "cond_channels", json_integer(h->cond_channels));
	if (h->image_len) {
		json_object_set_new(o, "image_len", json_integer(h->image_len));
		json_object_set_new(o, "image_dim", json_integer(h->image_dim));
	}
	if (h->text2_dim)
		json_object_set_new(o, "text2_dim", json_integer(h->text2_dim));
	json_object_set_new(o, "sets", sets);
	encoders = vfm_encoder_ids_json(&h->encoder_ids);
	if (json_object_size(encoders))
		json_object_set(o, "encoders", encoders);
	json_decref(encoders);
	if (h->side != VFM_SIDE_ALL)
		json_object_set_new(o, "held_out",
			json_pack("{s:f,s:s}", "fraction", h->held_out, "part",
				h->side == VFM_SIDE_TRAIN ? "train" : "held-out"));
	if (h->forced)
		json_object_set_new(o, "forced", json_deep_copy(h->forced));
	return o;
}

/* Returns the length. */
static size_t header_text(struct vfm_plan_writer *w, int64_t steps)
{
	json_object_set_new(w->header, "steps", json_integer(steps));
	vfm_buf_clear(&w->text);
	vfm_json_text(&w->text, w->header, 0);
	return w->text.len;
}

static size_t align_up(size_t x)
{
	return (x + BIN_ALIGN - 1) / BIN_ALIGN * BIN_ALIGN;
}

/* Returns whether bytes written to f can be replaced later. */
static bool can_rewrite(FILE *f)
{
	struct stat st;
	int fd = fileno(f), flags = fcntl(fd, F_GETFL);

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flags >= 0 && !(flags & O_APPEND);
}

/* Leaves room for the header, which no reader takes for one. */
static int reserve_front(struct vfm_plan_writer *w, struct vfm_err *err)
{
	const bool bin = w->format == VFM_PLAN_BIN;
	size_t len = header_text(w, MAX_STEPS);
	char *blank;
	int rc;

	w->front = bin ? align_up(BIN_FIXED + len) : len + 1;
	blank = vfm_malloc(w->front);
	memset(blank, bin ? 0 : ' ', w->front);
	blank[w->front - 1] = bin ? 0 : '\n';
	w->start = ftello(w->body);
	rc = w->start < 0 ? fail_writing(err) : out(w->body, blank, w->front, err);
	free(blank);
	return rc;
}

static void writer_free(struct vfm_plan_writer *w)
{
	if (w->body && w->body != w->f)
		fclose(w->body);
	if (w->table)
		fclose(w->table);
	json_decref(w->header);
	vfm_buf_release(&w->text);
	free(w->line);
	free(w);
}

void vfm_plan_writer_abort(struct vfm_plan_writer *w)
{
	if (!w)
		return;
	if (w->body && w->body == w->f) { /* without effect on a full disk: the rest then does not open */
		(void)fflush(w->f);
		if (ftruncate(fileno(w->f), w->start) == 0)
			(void)fseeko(w->f, w->start, SEEK_SET);
	}
	writer_free(w);
}

struct vfm_plan_writer *vfm_plan_writer_new(
	FILE *f, enum vfm_plan_format format, const struct vfm_plan_header *h, struct vfm_err *err)
{
	struct vfm_plan_writer *w = vfm_calloc(1, sizeof(*w));
	int rc = 0;

	*w = (struct vfm_plan_writer){
		.f = f, .format = format, .batch = h->batch, .cp = h->cp, .header = header_json(h)};
	if (can_rewrite(f))
		w->body = f;
	else
		rc = vfm_unlinked_temp(&w->body, err);
	if (rc == 0 && format == VFM_PLAN_BIN)
		rc = vfm_unlinked_temp(&w->table, err);
	if (rc == 0)
		rc = reserve_front(w, err);
	if (rc == 0)
		return w;
	writer_free(w);
	return NULL;
}

/* Writes x in decimal at p; returns the end. */
static char *put_decimal(char *p, uint64_t x)
{
	char digits[20];
	int n = 0;

	do
		digits[n++] = (char)('0' + x % 10);
	while ((x /= 10) > 0);
	while (n > 0)
		*p++ = digits[--n];
	return p;
}

/* Writes x with nine significant digits, as "%.9g"; printf would take as long as all the rest of a line. */
static char *put_cost(char *p, double x)
{
	uint64_t whole, part, unit = 1;

	if (!(x >= 1 && x < 1e8))
		return p + sprintf(p, "%.9g", x);
	while (x * (double)unit < 1e8)
		unit *= 10;
	whole = (uint64_t)(x * (double)unit + 0.5);
	part = whole % unit;
	p = put_decimal(p, whole / unit);
	if (part)
		*p++ = '.';
	while (part) {
		unit /= 10;
		*p++ = (char)('0' + part / unit);
		part %= unit;
	}
	return p;
}

static char *put_text(char *p, const char *text)
{
	size_t n = strlen(text);

	memcpy(p, text, n);
	return p + n;
}

enum { PACK_TEXT = 256, SAMPLE_TEXT = 4 * 20 + 8 }; /* more than the characters of a pack, and of each sample */

static void pack_text(struct vfm_plan_writer *w, const struct vfm_plan_pack *p)
{
	char *at;

	vfm_grow(&w->line, &w->cap_line, PACK_TEXT + (size_t)p->n_samples * SAMPLE_TEXT, 1);
	at = put_decimal(put_text(w->line, "{\"step\":"), (uint64_t)p->step);
	at = put_decimal(put_text(at, ",\"pack\":"), (uint64_t)p->pack);
	if (w->cp)
		at = put_decimal(put_text(at, ",\"cp\":"), (uint64_t)p->cp);
	at = put_decimal(put_text(at, ",\"tokens\":"), (uint64_t)p->tokens);
	at = put_text(put_cost(put_text(at, ",\"cost\":"), p->cost), ",\"samples\":[");
	for (int32_t i = 0; i < p->n_samples; i++) {
		const struct vfm_plan_sample *s = &p->samples[i];

		at = put_decimal(put_text(at, i ? ",[" : "["), (uint64_t)s->set);
		*at++ = ',';
		at = put_decimal(at, (uint64_t)s->shard);
		*at++ = ',';
		at = put_decimal(at, (uint64_t)s->index);
		*at++ = ',';
		at = put_decimal(at, (uint64_t)s->tokens);
		*at++ = ']';
	}
	at = put_text(at, "]}\n");
	w->len_line = (size_t)(at - w->line);
}

static int pack_bin(struct vfm_plan_writer *w, const struct vfm_plan_pack *p, struct vfm_err *err)
{
	uint8_t r[BIN_PACK] = {0}, rec[BIN_SAMPLE];
	uint64_t bits;

	for (int32_t i = 0; i < p->n_samples; i++) {
		const struct vfm_plan_sample *s = &p->samples[i];

		if (s->index > UINT32_MAX)
			return vfm_fail(
				err, VFM_EUSAGE, "sample index %" PRId64 " does not fit a binary plan", s->index);
		vfm_write_le(rec, (uint32_t)s->set, 4);
		vfm_write_le(rec + 4, (uint32_t)s->shard, 4);
		vfm_write_le(rec + 8, (uint32_t)s->index, 4);
		vfm_write_le(rec + 12, (uint32_t)s->tokens, 4);
		vfm_buf_add(&w->text, rec, BIN_SAMPLE);
	}
	memcpy(&bits, &p->cost, 8);
	vfm_write_le(r, (uint64_t)w->samples_done, 8);
	vfm_write_le(r + 8, (uint32_t)p->n_samples, 4);
	vfm_write_le(r + 16, (uint32_t)p->tokens, 4);
	vfm_write_le(r + 20, w->cp ? (uint32_t)p->cp : 0, 4);
	vfm_write_le(r + 24, bits, 8);
	vfm_write_le(r + 12, vfm_crc32c(vfm_crc32c(0, r, BIN_PACK), w->text.data, w->text.len), 4);
	TRY(out(w->table, r, BIN_PACK, err));
	for (int32_t i = 1; i < p->cp; i++) { /* the other parts */
		memset(r, 0, sizeof(r));
		vfm_write_le(r, (uint64_t)(w->samples_done + p->n_samples), 8);
		vfm_write_le(r + 12, vfm_crc32c(0, r, BIN_PACK), 4);
		TRY(out(w->table, r, BIN_PACK, err));
	}
	return 0;
}

int vfm_plan_writer_pack(struct vfm_plan_writer *w, const struct vfm_plan_pack *p, struct vfm_err *err)
{
	if (p->step * w->batch + p->pack != w->next || p->pack >= w->batch || p->n_samples < 1 || p->cp < 1 ||
		p->cp > (w->cp ? w->cp : 1) || p->pack % p->cp)
		return vfm_fail(
			err, VFM_EUSAGE, "step %" PRId64 ", pack %d is out of order or empty", p->step, p->pack);
	vfm_buf_clear(&w->text);
	if (w->format == VFM_PLAN_BIN)
		TRY(pack_bin(w, p, err));
	else
		pack_text(w, p);
	w->next += p->cp;
	w->samples_done += p->n_samples;
	return w->format == VFM_PLAN_BIN ? out(w->body, w->text.data, w->text.len, err)
					 : out(w->body, w->line, w->len_line, err);
}

/* The header of a binary plan and its text, up to the table of samples. */
static int write_bin_front(struct vfm_plan_writer *w, int64_t steps, struct vfm_err *err)
{
	uint64_t n_packs = (uint64_t)w->next, packs_off = w->front + (uint64_t)w->samples_done * BIN_SAMPLE;
	uint8_t fixed[BIN_FIXED] = {0};

	header_text(w, steps);
	memcpy(fixed, BIN_MAGIC, 8);
	vfm_write_le(fixed + 8, (uint32_t)w->text.len, 4);
	vfm_write_le(fixed + 12, vfm_crc32c(0, w->text.data, w->text.len), 4);
	vfm_write_le(fixed + 16, n_packs, 8);
	vfm_write_le(fixed + 24, (uint64_t)w->samples_done, 8);
	vfm_write_le(fixed + 32, w->front, 8);
	vfm_write_le(fixed + 40, packs_off, 8);
	vfm_write_le(fixed + 48, packs_off + n_packs * BIN_PACK, 8);
	vfm_write_le(fixed + 60, vfm_crc32c(0, fixed, BIN_FIXED - 4), 4);
	TRY(out(w->body, fixed, BIN_FIXED, err));
	return out(w->body, w->text.data, w->text.len, err);
}

/* The header line.  Blanks at its end fill the reserved bytes. */
static int write_header_line(struct vfm_plan_writer *w, int64_t steps, struct vfm_err *err)
{
	for (size_t len = header_text(w, steps); len + 1 < w->front; len++)
		vfm_buf_adds(&w->text, " ");
	return out(w->body, w->text.data, w->text.len, err);
}

static int write_end(struct vfm_plan_writer *w, int64_t steps, struct vfm_err *err)
{
	if (steps < 1 || steps > MAX_STEPS || w->next != steps * w->batch)
		return vfm_fail(err, VFM_EUSAGE, "%" PRId64 " packs were written, %" PRId64 " promised", w->next,
			steps * w->batch);
	if (w->table)
		TRY(append_file(w->body, w->table, err));
	/* All packs first: a full disk must not leave a file that opens. */
	if (fflush(w->body) || fseeko(w->body, w->start, SEEK_SET))
		return fail_writing(err);
	TRY(w->format == VFM_PLAN_BIN ? write_bin_front(w, steps, err) : write_header_line(w, steps, err));
	if (w->body != w->f)
		TRY(append_file(w->f, w->body, err));
	return fflush(w->f) || (w->body == w->f && fseeko(w->f, 0, SEEK_END)) ? fail_writing(err) : 0;
}

int vfm_plan_writer_end(struct vfm_plan_writer *w, int64_t steps, struct vfm_err *err)
{
	int rc = write_end(w, steps, err);

	if (rc < 0)
		vfm_plan_writer_abort(w);
	else
		writer_free(w);
	return rc;
}
