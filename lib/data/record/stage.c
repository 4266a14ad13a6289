/* stage.c - the loop of a stage.  One thread reads (stage_input.c), `jobs` threads work (stage_work.c), one writes; a
 * ring of slots between them keeps the order and bounds the memory.  With one job (or a serial stage) all three are the
 * calling thread. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "data/record/provenance.h"
#include "data/record/share.h"
#include "data/record/stage_impl.h"
#include "io/file.h"

#define MAX_JOBS      256
#define SLOTS_PER_JOB 4

enum stage_slot_state { SLOT_FREE, SLOT_READ, SLOT_TAKEN, SLOT_DONE };

struct stage_slot {
	enum stage_slot_state state;
	struct vfm_stage_record r;
};

struct vfm_stage_loop {
	const struct vfm_stage *s;
	FILE *out;
	struct vfm_stage_input in;
	struct vfm_stage_work work;
	struct vfm_stage_counts counts; /* of the writing thread */
	struct vfm_reasons reasons;     /* of this stage; likewise */
	char *first_error;              /* of this stage */
	struct vfm_progress progress;

	pthread_mutex_t lock;
	pthread_cond_t readable, writable, room; /* a record to work on; a slot that is done; a free slot */
	struct stage_slot *slots;
	int n_slots;
	int64_t n_read, n_taken, n_written;
	bool at_end, stop, taking; /* taking: a worker gathers its records */
	int rc;
	struct vfm_err err;
};

/* ---- writing ---- */

static void counts_add(struct vfm_stage_counts *a, const struct vfm_stage_counts *b)
{
	a->in += b->in;
	a->out += b->out;
	a->dropped += b->dropped;
	a->failed += b->failed;
	a->dropped_here += b->dropped_here;
	a->failed_here += b->failed_here;
	a->copied += b->copied;
	a->stale += b->stale;
	a->written += b->written;
	a->kept += b->kept;
	a->untimed += b->untimed;
	a->in_s += b->in_s;
	a->kept_s += b->kept_s;
	a->dropped_s += b->dropped_s;
	a->missing_s += b->missing_s;
	a->work_s += b->work_s;
	a->in_bytes += b->in_bytes;
}

/* Adds the reasons of a record of this stage, and keeps the first error. */
static void note_reasons(struct vfm_stage_loop *l, const struct vfm_stage_record *r)
{
	const char *error = r->rec && !r->is_passed ? vfm_rec_str(r->rec, "error", NULL) : NULL;

	if (r->reasons)
		vfm_reasons_merge(&l->reasons, r->reasons);
	if (error && !l->first_error)
		l->first_error = vfm_strdup(error);
}

static int write_failed(struct vfm_stage_loop *l)
{
	return vfm_fail_errno(&l->err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the records");
}

/* Tells the run what became of the input of a slot.  Returns whether the output must be flushed. */
static bool note_written(struct vfm_stage_loop *l, const struct stage_slot *slot)
{
	const struct vfm_stage_written w = {.inputs = slot->r.place,
		.hash = slot->r.hash,
		.bytes = (int64_t)slot->r.text.len,
		.lines = slot->r.is_header ? 1 : slot->r.counts.written};

	return vfm_stage_link_wrote(l->work.link, &w);
}

static void release_record(struct vfm_stage_record *r)
{
	json_decref(r->rec);
	vfm_buf_release(&r->text);
	free(r->reasons);
}

static int write_slot(struct vfm_stage_loop *l, struct stage_slot *slot, bool flush)
{
	int rc = slot->r.rc;

	if (rc < 0)
		l->err = slot->r.err;
	else if (slot->r.text.len && fwrite(slot->r.text.data, 1, slot->r.text.len, l->out) != slot->r.text.len)
		rc = write_failed(l);
	if (rc >= 0) {
		counts_add(&l->counts, &slot->r.counts);
		note_reasons(l, &slot->r);
		vfm_progress_step(&l->progress, slot->r.is_header ? 0 : 1);
		flush |= l->work.link && note_written(l, slot);
	}
	if (rc >= 0 && flush) {
		if (fflush(l->out) != 0)
			rc = write_failed(l);
		else if (l->work.link)
			vfm_stage_link_publish(l->work.link, &l->counts, &l->reasons);
	}
	release_record(&slot->r);
	*slot = (struct stage_slot){0};
	return rc;
}

/* Does the inputs, or the line that was given. */
static int run_serial(struct vfm_stage_loop *l, bool flush)
{
	struct stage_slot slot = {0};
	struct vfm_stage_record *record = &slot.r;
	int rc;

	while ((rc = vfm_stage_input_next(&l->in, &slot.r, &l->err)) == 1) {
		vfm_stage_work_on(&l->work, &record, 1, 0);
		rc = write_slot(l, &slot, flush);
		if (rc < 0)
			return rc;
	}
	return rc;
}

struct worker {
	struct vfm_stage_loop *l;
	int index;
	pthread_t thread;
};

/* Returns whether the record of `slot` may join a batch that begins with `first`. */
static bool joins_batch(const struct vfm_stage_loop *l, const struct stage_slot *first, const struct stage_slot *slot)
{
	const char *a = first->r.is_header ? NULL : vfm_rec_str(first->r.rec, l->s->batch_key, NULL);
	const char *b = slot->r.is_header ? NULL : vfm_rec_str(slot->r.rec, l->s->batch_key, NULL);

	return a && b && !strcmp(a, b);
}

static int most_taken(const struct vfm_stage_loop *l)
{
	return l->s->batch ? l->s->max_batch : 1;
}

/* Takes the next record, and those after it that join its batch; waits for these unless the ring is full.  Returns how
 * many, with the number of the first; 0 at the end.  One thread at a time takes records. */
static int take_slots(struct vfm_stage_loop *l, int64_t *first)
{
	int most = most_taken(l), n = 0;

	while (l->taking && !l->stop)
		pthread_cond_wait(&l->readable, &l->lock);
	l->taking = true;
	*first = l->n_taken;
	while (!l->stop && n < most) {
		if (l->n_taken == l->n_read) {
			if (l->at_end || (n > 0 && l->n_read - l->n_written >= l->n_slots))
				break;
			pthread_cond_wait(&l->readable, &l->lock);
			continue;
		}
		if (n > 0 && !joins_batch(l, &l->slots[*first % l->n_slots], &l->slots[l->n_taken % l->n_slots]))
			break;
		l->slots[l->n_taken++ % l->n_slots].state = SLOT_TAKEN;
		n++;
	}
	l->taking = false;
	pthread_cond_broadcast(&l->readable);
	return l->stop ? 0 : n;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct vfm_stage_loop *l = w->l;
	struct vfm_stage_record **records = vfm_calloc((size_t)most_taken(l), sizeof(records[0]));
	int64_t first;
	int n;

	pthread_mutex_lock(&l->lock);
	while ((n = take_slots(l, &first)) > 0) {
		pthread_mutex_unlock(&l->lock);
		for (int i = 0; i < n; i++)
			records[i] = &l->slots[(first + i) % l->n_slots].r;
		vfm_stage_work_on(&l->work, records, n, w->index);
		pthread_mutex_lock(&l->lock);
		for (int i = 0; i < n; i++)
			l->slots[(first + i) % l->n_slots].state = SLOT_DONE;
		if (first == l->n_written)
			pthread_cond_signal(&l->writable);
	}
	pthread_mutex_unlock(&l->lock);
	free(records);
	return NULL;
}

static void *writer_main(void *arg)
{
	struct vfm_stage_loop *l = arg;
	struct stage_slot *slot;
	bool flush;
	int rc;

	pthread_mutex_lock(&l->lock);
	for (;;) {
		slot = &l->slots[l->n_written % l->n_slots];
		while (slot->state != SLOT_DONE && !l->stop && !(l->at_end && l->n_written == l->n_read))
			pthread_cond_wait(&l->writable, &l->lock);
		if (slot->state != SLOT_DONE)
			break;
		flush = l->slots[(l->n_written + 1) % l->n_slots].state != SLOT_DONE;
		pthread_mutex_unlock(&l->lock);
		rc = write_slot(l, slot, flush);
		pthread_mutex_lock(&l->lock);
		l->n_written++;
		if (rc < 0) {
			l->rc = rc;
			l->stop = true;
			pthread_cond_broadcast(&l->readable);
		}
		pthread_cond_signal(&l->room);
		if (rc < 0)
			break;
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* The calling thread reads. */
static void feed(struct vfm_stage_loop *l)
{
	struct stage_slot *slot, filled;
	struct vfm_err err = {0};
	bool stop;
	int rc = 0;

	for (;;) {
		pthread_mutex_lock(&l->lock);
		while (!l->stop && l->n_read - l->n_written >= l->n_slots)
			pthread_cond_wait(&l->room, &l->lock);
		stop = l->stop;
		pthread_mutex_unlock(&l->lock);
		if (stop)
			break;
		filled = (struct stage_slot){0};
		rc = vfm_stage_input_next(&l->in, &filled.r, &err);
		if (rc <= 0)
			break;
		pthread_mutex_lock(&l->lock);
		slot = &l->slots[l->n_read++ % l->n_slots];
		*slot = filled;
		slot->state = SLOT_READ;
		pthread_cond_broadcast(&l->readable);
		pthread_mutex_unlock(&l->lock);
	}
	pthread_mutex_lock(&l->lock);
	l->at_end = true;
	pthread_cond_broadcast(&l->readable);
	pthread_cond_signal(&l->writable);
	pthread_mutex_unlock(&l->lock);
	if (rc < 0) { /* the records read before are still processed and written */
		pthread_mutex_lock(&l->lock);
		while (!l->stop && l->n_written < l->n_read)
			pthread_cond_wait(&l->room, &l->lock);
		if (!l->rc) {
			l->rc = rc;
			l->err = err;
		}
		pthread_mutex_unlock(&l->lock);
	}
}

static int run_threads(struct vfm_stage_loop *l, int jobs, struct vfm_err *err)
{
	struct worker *workers = vfm_calloc((size_t)jobs, sizeof(*workers));
	int started = 0, batch = most_taken(l);
	pthread_t writer;

	l->n_slots = jobs * (batch > SLOTS_PER_JOB ? batch : SLOTS_PER_JOB) + 1;
	l->slots = vfm_calloc((size_t)l->n_slots, sizeof(l->slots[0]));
	if (pthread_create(&writer, NULL, writer_main, l) != 0) {
		free(workers);
		return vfm_fail(err, VFM_EENV, "cannot start a thread");
	}
	for (; started < jobs; started++) {
		workers[started].l = l;
		workers[started].index = started;
		if (pthread_create(&workers[started].thread, NULL, worker_main, &workers[started]) != 0)
			break;
	}
	if (started) {
		feed(l);
	} else {
		pthread_mutex_lock(&l->lock);
		l->at_end = true;
		l->rc = vfm_fail(&l->err, VFM_EENV, "cannot start a thread");
		pthread_cond_signal(&l->writable);
		pthread_mutex_unlock(&l->lock);
	}
	for (int i = 0; i < started; i++)
		pthread_join(workers[i].thread, NULL);
	pthread_join(writer, NULL);
	for (int i = 0; i < l->n_slots; i++)
		release_record(&l->slots[i].r);
	free(l->slots);
	free(workers);
	return l->rc;
}

/* ---- lines that the stage reads ---- */

const char *const vfm_stage_source_keys[] = {"v", "by", "part", "src", "origin", VFM_AHEAD_KEY, NULL};
const char *const vfm_stage_uncovered_keys[] = {"v", "by", "part", VFM_AHEAD_KEY, NULL};

char *vfm_stage_fingerprint_head(const struct vfm_stage *s, const char *settings, const char *clip)
{
	return vfm_strfmt("%s %d\n%s\n%s", s->name, s->version, settings, clip ? clip : "");
}

static void count_finished(struct vfm_stage_loop *l, const struct vfm_stage_output *o)
{
	struct vfm_stage_counts *c = &l->counts;

	*(o->failed ? &c->failed : o->dropped ? &c->dropped : &c->out) += 1;
	c->in++;
	c->written++;
	if (o->is_passed)
		return;
	c->in_s += o->duration_s;
	if (!o->dropped) {
		c->kept++;
		c->kept_s += o->duration_s;
		c->untimed += o->duration_s <= 0 && !o->is_image;
		return;
	}
	c->dropped_here++;
	c->dropped_s += o->duration_s;
	vfm_reasons_add(&l->reasons, o->reason, false, 1, o->duration_s);
}

/* Writes the first outputs of o [n] that can be written now, and sets *bytes.  Returns their number, or a code. */
static int64_t write_outputs(
	struct vfm_stage_loop *l, const struct vfm_stage_output *o, size_t n, const char *text, size_t *bytes)
{
	size_t i;

	*bytes = 0;
	for (i = 0; i < n && o[i].len && vfm_stage_input_accept(&l->in, &o[i]); i++) {
		count_finished(l, &o[i]);
		*bytes += o[i].len;
	}
	vfm_progress_step(&l->progress, (int64_t)i);
	return *bytes && fwrite(text, 1, *bytes, l->out) != *bytes ? write_failed(l) : (int64_t)i;
}

int vfm_stage_take(struct vfm_stage_loop *l, const struct vfm_jsonl_block *b, const struct vfm_stage_output *o,
	const char *text, struct vfm_err *err)
{
	int64_t rc = 0;
	size_t bytes;

	for (size_t i = 0; i < b->n && rc >= 0; i++) {
		rc = write_outputs(l, o + i, b->n - i, text, &bytes);
		if (rc < 0)
			break;
		text += bytes;
		i += (size_t)rc;
		if (i == b->n)
			break;
		text += o[i].len;
		vfm_stage_input_give(&l->in, b, i);
		rc = run_serial(l, false);
	}
	if (rc < 0)
		*err = l->err;
	return rc < 0 ? (int)rc : 0;
}

static int run_lines(struct vfm_stage_loop *l)
{
	struct vfm_err err = {0};
	int rc = l->s->lines(l, l->s, &err);

	if (rc < 0) {
		l->err = err;
		return rc;
	}
	vfm_stage_input_give(&l->in, NULL, 0); /* a header may be due */
	return run_serial(l, false);
}

/* ---- the whole ---- */

/* Reports what this stage dropped, a line for each reason. */
static void report_drops(const struct vfm_stage_loop *l)
{
	char seconds[VFM_DURATION_TEXT];

	for (int i = 0; i < VFM_REASONS && l->reasons.v[i].n; i++) {
		const struct vfm_reason *r = &l->reasons.v[i];

		if (!r->is_error && r->s > 0)
			vfm_info("dropped %lld, %s: %s", (long long)r->n, vfm_duration_text(seconds, r->s), r->text);
		else if (!r->is_error)
			vfm_info("dropped %lld: %s", (long long)r->n, r->text);
	}
}

/* Appends the seconds that are kept of the inputs, as far as they are known. */
static void add_seconds(struct vfm_buf *b, const struct vfm_stage *s, const struct vfm_stage_counts *c)
{
	char kept[VFM_DURATION_TEXT], in[VFM_DURATION_TEXT];

	if (s->one_to_many)
		vfm_buf_addf(b, "; kept %lld of %lld records written", (long long)c->kept,
			(long long)(c->written - (c->dropped - c->dropped_here) - (c->failed - c->failed_here)));
	if (c->in_s <= 0 && c->kept_s <= 0)
		return;
	vfm_buf_adds(b, s->one_to_many ? ", " : "; kept ");
	vfm_buf_adds(b, vfm_duration_text(kept, c->kept_s));
	if (fabs(c->in_s - c->kept_s) >= 0.05 && c->in_s > 0)
		vfm_buf_addf(b, " of %s", vfm_duration_text(in, c->in_s));
	if (c->untimed)
		vfm_buf_addf(b, " (without %lld of unknown duration)", (long long)c->untimed);
	if (c->missing_s >= 0.05)
		vfm_buf_addf(b, "; %s without frames", vfm_duration_text(in, c->missing_s));
}

static void report_counts(const struct vfm_stage_loop *l)
{
	const struct vfm_stage_counts *c = &l->counts;
	struct vfm_buf b = {0};

	report_drops(l);
	vfm_buf_addf(&b, "%lld in = %lld out + %lld dropped + %lld failed", (long long)c->in, (long long)c->out,
		(long long)c->dropped, (long long)c->failed);
	add_seconds(&b, l->s, c);
	if (c->dropped != c->dropped_here)
		vfm_buf_addf(&b, "; %lld dropped in an earlier stage", (long long)(c->dropped - c->dropped_here));
	if (c->failed != c->failed_here)
		vfm_buf_addf(&b, "; %lld failed in an earlier stage", (long long)(c->failed - c->failed_here));
	if (c->copied)
		vfm_buf_addf(&b, "; %lld were done already", (long long)c->copied);
	if (c->stale)
		vfm_buf_addf(&b, "; %lld were done otherwise and are done again", (long long)c->stale);
	if (l->in.n_shares > 1)
		vfm_buf_addf(&b, "; share %s, %lld left to other shares", l->in.share_text, (long long)c->other_shares);
	if (l->first_error)
		vfm_buf_addf(&b, "; first error: %s", l->first_error);
	vfm_info("%s", b.data);
	vfm_buf_release(&b);
}

/* Opens the file of --done, whose name may have the number of the share. */
static int open_done(struct vfm_stage_loop *l, struct vfm_err *err)
{
	const struct vfm_stage *s = l->s;
	const struct vfm_done_opts o = {s->name, s->one_to_many ? "parent" : s->key, s->outputs};
	char *path;
	int rc;

	if (vfm_share_file(&path, s->opts.done, l->in.share, err) < 0)
		return vfm_err_context(err, "--done");
	rc = vfm_done_open(&l->work.done, path, &o, err);
	free(path);
	return rc;
}

/* Opens the first input, and in a run the output. */
static int open_sources(struct vfm_stage_loop *l, struct vfm_err *err)
{
	if (l->work.link && l->work.link->index > 0 && l->s->next)
		return vfm_fail(err, VFM_EUSAGE, "%s reads no records: it can only be the first stage", l->s->name);
	if (l->work.link && l->s->silent)
		return vfm_fail(err, VFM_EUSAGE, "%s writes no records: it cannot be a stage of a run", l->s->name);
	if (l->work.link) {
		TRY(vfm_stage_link_begin(l->work.link, &l->in.linked, &l->counts, &l->reasons, err));
		l->out = l->work.link->out;
	}
	return vfm_stage_input_open(&l->in, err);
}

int vfm_stage_run(const struct vfm_stage *s, struct vfm_stage_counts *counts, struct vfm_err *err)
{
	struct vfm_stage_loop l = {.s = s,
		.out = s->out ? s->out : stdout,
		.work = {.stage = s, .link = vfm_stage_link(), .is_last = vfm_ahead_ends_here()}};
	int64_t jobs = s->opts.jobs ? s->opts.jobs : 1;
	int rc;

	l.in.s = s;
	l.in.link = l.work.link;
	if (jobs < 1 || jobs > MAX_JOBS)
		return vfm_fail(err, VFM_EUSAGE, "-j: expected 1 to %d, got %lld", MAX_JOBS, (long long)jobs);
	TRY(vfm_share_parse(s->opts.share, &l.in.share, &l.in.n_shares, err));
	snprintf(
		l.in.share_text, sizeof(l.in.share_text), "%lld/%lld", (long long)l.in.share, (long long)l.in.n_shares);
	l.work.share = l.in.n_shares > 1 ? l.in.share_text : NULL;
	if (s->opts.done && s->silent)
		return vfm_fail(err, VFM_EUSAGE, "--done: %s writes no records", s->name);
	if (s->opts.done)
		TRY(open_done(&l, err));
	l.in.is_given = s->lines && !l.work.link;
	l.work.settings = vfm_provenance_settings(s->options, s->models);
	l.in.own = vfm_stage_own_entries(s, l.work.done);
	pthread_mutex_init(&l.lock, NULL);
	pthread_cond_init(&l.readable, NULL);
	pthread_cond_init(&l.writable, NULL);
	pthread_cond_init(&l.room, NULL);
	vfm_progress_start(&l.progress, "records", 0);

	rc = open_sources(&l, &l.err);
	if (s->threads)
		jobs = s->threads;
	if (rc >= 0)
		rc = l.in.is_given                              ? run_lines(&l)
			: s->serial || (jobs == 1 && !s->batch) ? run_serial(&l, true)
								: run_threads(&l, (int)jobs, &l.err);
	if (l.work.link) {
		int end = vfm_stage_link_close(l.work.link, rc == 0, rc == 0 ? &l.err : NULL);

		rc = rc < 0 ? rc : end;
	}

	vfm_progress_end(&l.progress);
	l.counts.other_shares = l.in.other_shares;
	vfm_stage_input_close(&l.in);
	free(l.work.settings);
	vfm_done_close(l.work.done);
	pthread_mutex_destroy(&l.lock);
	pthread_cond_destroy(&l.readable);
	pthread_cond_destroy(&l.writable);
	pthread_cond_destroy(&l.room);
	if (counts)
		*counts = l.counts;
	if (rc >= 0)
		report_counts(&l);
	else if (err)
		*err = l.err;
	free(l.first_error);
	return rc < 0 ? rc : l.counts.failed_here ? VFM_EINPUT : 0;
}
