/* sample_set.c - a hash table that spills sorted runs to files, with a filter for each run. */
#include "data/record/sample_set.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"

#define MAX_SLOTS  ((size_t)1 << 21)
#define FAN_IN     16
#define PAGE       128 /* entries: 4096 bytes */
#define FILTER_LOG 9   /* bits of a block of the filter: 512, a cache line */
#define PROBES     7

struct vfm_sample_run {
	FILE *f;
	uint64_t n;
	int level;       /* made of 16^level tables */
	uint64_t *first; /* [pages]: hash[0] of the first entry of each page */
	uint64_t *filter, n_blocks;
	/* while it is written or merged */
	struct vfm_sample_seen page[PAGE];
	size_t in_page, at;
	uint64_t n_read;
};

static bool is_same_hash(const uint64_t a[2], const uint64_t b[2])
{
	return a[0] == b[0] && a[1] == b[1];
}

static bool is_free(const struct vfm_sample_seen *s)
{
	return !s->hash[0] && !s->hash[1];
}

static int compare_seen(const void *a, const void *b)
{
	const uint64_t *x = ((const struct vfm_sample_seen *)a)->hash, *y = ((const struct vfm_sample_seen *)b)->hash;

	return x[0] != y[0] ? (x[0] < y[0] ? -1 : 1) : x[1] != y[1] ? (x[1] < y[1] ? -1 : 1) : 0;
}

/* ---- the table ---- */

static struct vfm_sample_seen *table_slot(const struct vfm_sample_set *s, const uint64_t hash[2])
{
	size_t i = (size_t)(hash[0] * 0x9E3779B97F4A7C15u >> 20) & (s->cap - 1);

	while (!is_free(&s->slots[i]) && !is_same_hash(s->slots[i].hash, hash))
		i = (i + 1) & (s->cap - 1);
	return &s->slots[i];
}

static void grow_seen_table(struct vfm_sample_set *s)
{
	struct vfm_sample_set old = *s;

	s->cap = s->cap ? s->cap * 2 : 1024;
	s->slots = vfm_calloc(s->cap, sizeof(*s->slots));
	for (size_t i = 0; i < old.cap; i++)
		if (!is_free(&old.slots[i]))
			*table_slot(s, old.slots[i].hash) = old.slots[i];
	free(old.slots);
}

/* ---- filters ---- */

/* The block and the bits come from hash[1]: the entries are sorted by hash[0]. */
static uint64_t *filter_block(const struct vfm_sample_run *r, const uint64_t hash[2])
{
	return r->filter + ((hash[1] >> 32) * r->n_blocks >> 32) * 8;
}

static bool filter_has(const struct vfm_sample_run *r, const uint64_t hash[2])
{
	const uint64_t *block = filter_block(r, hash);
	uint64_t bits = hash[1] * 0x9E3779B97F4A7C15u ^ hash[0];

	for (int i = 0; i < PROBES; i++, bits >>= FILTER_LOG)
		if (!(block[bits % 512 / 64] >> bits % 64 & 1))
			return false;
	return true;
}

static void filter_put(struct vfm_sample_run *r, const uint64_t hash[2])
{
	uint64_t *block = filter_block(r, hash);
	uint64_t bits = hash[1] * 0x9E3779B97F4A7C15u ^ hash[0];

	for (int i = 0; i < PROBES; i++, bits >>= FILTER_LOG)
		block[bits % 512 / 64] |= (uint64_t)1 << bits % 64;
}

/* ---- runs ---- */

static int fail_run(const char *what, struct vfm_err *err)
{
	return vfm_fail_errno(err, VFM_EENV, "cannot %s the temporary file of keys", what);
}

static void release_sample_run(struct vfm_sample_run *r)
{
	if (r->f)
		fclose(r->f);
	free(r->first);
	free(r->filter);
	*r = (struct vfm_sample_run){0};
}

/* n: at least the entries that will be added. */
static int open_sample_run(struct vfm_sample_run *r, const char *dir, int level, uint64_t n, struct vfm_err *err)
{
	/* 20 bits a key let 0.1 % of new keys through, 12 bits 0.7 %: the few large runs need most of the memory */
	uint64_t bits = n * (level < 2 ? 20 : 12);

	*r = (struct vfm_sample_run){.level = level, .n_blocks = (bits >> FILTER_LOG) + 1};
	r->filter = calloc(r->n_blocks, 64);
	r->first = malloc((n / PAGE + 1) * sizeof(*r->first));
	if (!r->filter || !r->first)
		return vfm_fail(err, VFM_EENV, "no memory for %llu keys", (unsigned long long)n);
	return dir ? vfm_unlinked_in(dir, &r->f, err) : vfm_unlinked_temp(&r->f, err);
}

/* Entries in ascending order. */
static int append_entry(struct vfm_sample_run *r, const struct vfm_sample_seen *s, struct vfm_err *err)
{
	if (r->n % PAGE == 0)
		r->first[r->n / PAGE] = s->hash[0];
	filter_put(r, s->hash);
	r->n++;
	return fwrite(s, sizeof(*s), 1, r->f) == 1 ? 0 : fail_run("write", err);
}

/* Reads page p of a run into r->page. */
static int read_run_page(struct vfm_sample_run *r, uint64_t p, struct vfm_err *err)
{
	uint64_t left = r->n - p * PAGE;
	size_t bytes;

	r->in_page = left < PAGE ? (size_t)left : PAGE;
	bytes = r->in_page * sizeof(r->page[0]);
	if (pread(fileno(r->f), r->page, bytes, (off_t)(p * sizeof(r->page))) != (ssize_t)bytes)
		return fail_run("read", err);
	return 0;
}

/* Returns 1 and the entry, or 0.  Entries of one hash[0] may continue on the next page. */
static int find_in_run(
	struct vfm_sample_run *r, const uint64_t hash[2], struct vfm_sample_seen *out, struct vfm_err *err)
{
	uint64_t pages = (r->n + PAGE - 1) / PAGE, lo = 0, hi = pages;

	if (!filter_has(r, hash))
		return 0;
	while (lo < hi) { /* the first page that begins at hash[0] or beyond it */
		uint64_t mid = lo + (hi - lo) / 2;

		if (r->first[mid] < hash[0])
			lo = mid + 1;
		else
			hi = mid;
	}
	for (uint64_t p = lo ? lo - 1 : 0; p < pages && r->first[p] <= hash[0]; p++) {
		TRY(read_run_page(r, p, err));
		for (size_t i = 0; i < r->in_page; i++)
			if (is_same_hash(r->page[i].hash, hash)) {
				*out = r->page[i];
				return 1;
			}
	}
	return 0;
}

/* ---- merging ---- */

/* Returns the next entry of a run that is read in order, or NULL at its end (*rc: 0, or the error). */
static const struct vfm_sample_seen *peek_entry(struct vfm_sample_run *r, int *rc, struct vfm_err *err)
{
	if (r->at == r->in_page) {
		if (r->n_read == r->n)
			return NULL;
		*rc = read_run_page(r, r->n_read / PAGE, err);
		if (*rc < 0)
			return NULL;
		r->n_read += r->in_page;
		r->at = 0;
	}
	return &r->page[r->at];
}

/* Merges the runs in[0..n) into out.  Among equal hashes the entry of the last run counts: it is the newest. */
static int merge_runs(struct vfm_sample_run *in, size_t n, struct vfm_sample_run *out, struct vfm_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		in[i].at = in[i].in_page = in[i].n_read = 0;
	for (;;) {
		const struct vfm_sample_seen *least = NULL;
		struct vfm_sample_seen s;

		for (size_t i = 0; i < n; i++) {
			const struct vfm_sample_seen *e = peek_entry(&in[i], &rc, err);

			if (rc < 0)
				return rc;
			if (e && (!least || compare_seen(e, least) <= 0))
				least = e;
		}
		if (!least)
			return 0;
		s = *least;
		TRY(append_entry(out, &s, err));
		for (size_t i = 0; i < n; i++) {
			const struct vfm_sample_seen *e = in[i].at < in[i].in_page ? &in[i].page[in[i].at] : NULL;

			in[i].at += e && is_same_hash(e->hash, s.hash);
		}
	}
}

static bool is_merge_due(const struct vfm_sample_set *s)
{
	if (s->n_runs < FAN_IN)
		return false;
	return s->runs[s->n_runs - FAN_IN].level == s->runs[s->n_runs - 1].level;
}

static int finish_run(struct vfm_sample_set *s, struct vfm_sample_run *r, struct vfm_err *err)
{
	if (fflush(r->f) != 0)
		return fail_run("write", err);
	vfm_grow(&s->runs, &s->cap_runs, s->n_runs + 1, sizeof(*s->runs));
	s->runs[s->n_runs++] = *r;
	return 0;
}

static int merge_last(struct vfm_sample_set *s, struct vfm_err *err)
{
	struct vfm_sample_run *in = &s->runs[s->n_runs - FAN_IN], out;
	uint64_t n = 0;
	int rc;

	for (int i = 0; i < FAN_IN; i++)
		n += in[i].n;
	rc = open_sample_run(&out, s->dir, in[0].level + 1, n, err);
	if (rc >= 0)
		rc = merge_runs(in, FAN_IN, &out, err);
	if (rc >= 0) {
		for (int i = 0; i < FAN_IN; i++)
			release_sample_run(&in[i]);
		s->n_runs -= FAN_IN;
		rc = finish_run(s, &out, err);
	}
	if (rc < 0)
		release_sample_run(&out);
	return rc;
}

/* Makes a run of the table. */
static int flush_table(struct vfm_sample_set *s, struct vfm_err *err)
{
	struct vfm_sample_run r;
	size_t n = 0;
	int rc = open_sample_run(&r, s->dir, 0, s->used, err);

	if (rc >= 0) {
		for (size_t i = 0; i < s->cap; i++)
			if (!is_free(&s->slots[i]))
				s->slots[n++] = s->slots[i];
		qsort(s->slots, n, sizeof(*s->slots), compare_seen);
		for (size_t i = 0; rc >= 0 && i < n; i++)
			rc = append_entry(&r, &s->slots[i], err);
		memset(s->slots, 0, s->cap * sizeof(*s->slots));
		s->used = 0;
	}
	if (rc >= 0)
		rc = finish_run(s, &r, err);
	if (rc < 0)
		release_sample_run(&r);
	while (rc >= 0 && is_merge_due(s))
		rc = merge_last(s, err);
	return rc;
}

/* ---- the set ---- */

static void make_valid(uint64_t to[2], const uint64_t hash[2])
{
	to[0] = hash[0];
	to[1] = hash[0] || hash[1] ? hash[1] : 1;
}

int vfm_sample_set_find(
	struct vfm_sample_set *set, const uint64_t hash[2], struct vfm_sample_seen *out, struct vfm_err *err)
{
	uint64_t h[2];

	make_valid(h, hash);
	if (set->cap) {
		const struct vfm_sample_seen *slot = table_slot(set, h);

		*out = *slot;
		if (!is_free(slot))
			return 1;
	}
	for (size_t i = set->n_runs; i-- > 0;) {
		int rc = find_in_run(&set->runs[i], h, out, err);

		if (rc != 0)
			return rc;
	}
	return 0;
}

int vfm_sample_set_put(struct vfm_sample_set *set, const struct vfm_sample_seen *s, bool is_known, struct vfm_err *err)
{
	struct vfm_sample_seen copy = *s, *slot;

	if (set->used * 4 >= set->cap * 3) {
		if (set->cap < (set->max_slots ? set->max_slots : MAX_SLOTS))
			grow_seen_table(set);
		else
			TRY(flush_table(set, err));
	}
	make_valid(copy.hash, s->hash);
	slot = table_slot(set, copy.hash);
	set->used += is_free(slot);
	set->n += !is_known;
	*slot = copy;
	return 0;
}

int vfm_sample_set_add(
	struct vfm_sample_set *set, const struct vfm_sample_seen *s, struct vfm_sample_seen *first, struct vfm_err *err)
{
	int rc = vfm_sample_set_find(set, s->hash, first, err);

	return rc != 0 ? rc : vfm_sample_set_put(set, s, false, err);
}

void vfm_sample_set_release(struct vfm_sample_set *s)
{
	for (size_t i = 0; i < s->n_runs; i++)
		release_sample_run(&s->runs[i]);
	free(s->runs);
	free(s->slots);
	*s = (struct vfm_sample_set){0};
}
