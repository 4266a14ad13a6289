#include "data/dataset/index_match.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"

enum { TABLE_IDS = 1 << 23, PARTITIONS_MAX = 64 };

struct id_entry { /* in a table and in its file; in a table, record + 1, so that 0 is a free slot */
	uint64_t id, record;
};

struct match_entry {
	uint64_t a, b; /* record numbers */
};

struct partition {
	FILE *a, *b;             /* entries of both indexes; NULL: not open */
	FILE *matches;           /* by ascending record of a */
	struct match_entry next; /* that was read and not asked for yet */
	uint64_t n_b, n_matches, n_read;
};

struct vfm_index_match {
	int bits;                /* of an id that number its partition */
	struct partition *parts; /* [1 << bits] */
	struct id_entry *table;  /* [slots] */
	uint64_t slots;          /* a power of two, at least twice the ids of a partition */
};

static struct partition *partition_of(const struct vfm_index_match *m, uint64_t id)
{
	return &m->parts[m->bits ? id >> (64 - m->bits) : 0];
}

static int write_match_file(FILE *f, const void *entry, struct vfm_err *err)
{
	_Static_assert(sizeof(struct id_entry) == 16 && sizeof(struct match_entry) == 16, "of one size");
	return fwrite(entry, 16, 1, f) == 1 ? 0
					    : vfm_fail_errno(err, VFM_EENV, "cannot write a temporary file of a join");
}

static int read_match_file(FILE *f, void *entry, struct vfm_err *err)
{
	return fread(entry, 16, 1, f) == 1 ? 0
					   : vfm_fail_errno(err, VFM_EENV, "cannot read a temporary file of a join");
}

static int rewind_file(FILE *f, struct vfm_err *err)
{
	return fseeko(f, 0, SEEK_SET) == 0 /* flushes */
		? 0
		: vfm_fail_errno(err, VFM_EENV, "cannot write a temporary file of a join");
}

static void close_file(FILE **f)
{
	if (*f)
		fclose(*f);
	*f = NULL;
}

/* Divides the records of an index from number `from` on.  of_b: into the files b, else a. */
static int divide_ids(
	struct vfm_index_match *m, const struct vfm_index *ix, uint64_t from, bool of_b, struct vfm_err *err)
{
	for (uint64_t i = from; i < vfm_index_n_records(ix); i++) {
		struct partition *p;
		struct id_entry e;
		struct vfm_index_record r;

		TRY(vfm_index_at(ix, i, &r, err));
		p = partition_of(m, r.id);
		p->n_b += of_b;
		e = (struct id_entry){r.id, i};
		TRY(write_match_file(of_b ? p->b : p->a, &e, err));
	}
	return 0;
}

/* The slot of an id: its entry, or the free one where it belongs.  The low bits are not those of the partition. */
static struct id_entry *id_slot(const struct vfm_index_match *m, uint64_t id)
{
	uint64_t i = id & (m->slots - 1);

	while (m->table[i].record && m->table[i].id != id)
		i = (i + 1) & (m->slots - 1);
	return &m->table[i];
}

static int fill_id_table(struct vfm_index_match *m, struct partition *p, const struct vfm_index *b, struct vfm_err *err)
{
	memset(m->table, 0, m->slots * sizeof(*m->table));
	TRY(rewind_file(p->b, err));
	for (uint64_t i = 0; i < p->n_b; i++) {
		struct id_entry e, *slot;

		TRY(read_match_file(p->b, &e, err));
		slot = id_slot(m, e.id);
		if (slot->record)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s': samples %" PRIu64 " and %" PRIu64 " have the id %016" PRIx64, vfm_index_dir(b),
				slot->record - 1, e.record, e.id);
		*slot = (struct id_entry){e.id, e.record + 1};
	}
	close_file(&p->b);
	return 0;
}

static int write_matches(struct vfm_index_match *m, struct partition *p, const char *dir, struct vfm_err *err)
{
	struct id_entry e;

	TRY(vfm_unlinked_in(dir, &p->matches, err));
	TRY(rewind_file(p->a, err));
	while (fread(&e, sizeof(e), 1, p->a) == 1) {
		const struct id_entry *slot = id_slot(m, e.id);
		const struct match_entry x = {e.record, slot->record - 1};

		if (!slot->record)
			continue;
		TRY(write_match_file(p->matches, &x, err));
		p->n_matches++;
	}
	if (ferror(p->a))
		return vfm_fail_errno(err, VFM_EENV, "cannot read a temporary file of a join");
	close_file(&p->a);
	return rewind_file(p->matches, err);
}

/* Divides n ids so that a partition has about `table`. */
static int make_partitions(struct vfm_index_match *m, uint64_t n, const char *dir, size_t table, struct vfm_err *err)
{
	while (n >> m->bits > table && 1 << m->bits < PARTITIONS_MAX)
		m->bits++;
	m->parts = vfm_calloc((size_t)1 << m->bits, sizeof(*m->parts));
	for (int i = 0; i < 1 << m->bits; i++) {
		TRY(vfm_unlinked_in(dir, &m->parts[i].a, err));
		TRY(vfm_unlinked_in(dir, &m->parts[i].b, err));
	}
	return 0;
}

static int make_id_table(struct vfm_index_match *m, struct vfm_err *err)
{
	uint64_t most = 1;

	for (int i = 0; i < 1 << m->bits; i++)
		most = m->parts[i].n_b > most ? m->parts[i].n_b : most;
	m->slots = 2;
	while (m->slots < 2 * most)
		m->slots *= 2;
	m->table = vfm_big_alloc(m->slots * sizeof(*m->table), "a hash table of ids", err);
	return m->table ? 0 : VFM_EENV;
}

static void free_id_table(struct vfm_index_match *m)
{
	if (m->table)
		vfm_big_free(m->table, m->slots * sizeof(*m->table));
	m->table = NULL;
}

int vfm_index_match_open(struct vfm_index_match **out, const struct vfm_index *a, uint64_t from,
	const struct vfm_index *b, const char *dir, size_t table, struct vfm_err *err)
{
	struct vfm_index_match *m = vfm_calloc(1, sizeof(*m));
	int rc;

	TRY_OUT(make_partitions(m, vfm_index_n_records(b), dir, table ? table : TABLE_IDS, err));
	TRY_OUT(divide_ids(m, b, 0, true, err));
	TRY_OUT(divide_ids(m, a, from, false, err));
	TRY_OUT(make_id_table(m, err));
	for (int i = 0; i < 1 << m->bits; i++) {
		TRY_OUT(fill_id_table(m, &m->parts[i], b, err));
		TRY_OUT(write_matches(m, &m->parts[i], dir, err));
	}
	free_id_table(m);
	*out = m;
	return 0;
out:
	vfm_index_match_close(m);
	return rc;
}

void vfm_index_match_close(struct vfm_index_match *m)
{
	if (!m)
		return;
	for (int i = 0; m->parts && i < 1 << m->bits; i++) {
		close_file(&m->parts[i].a);
		close_file(&m->parts[i].b);
		close_file(&m->parts[i].matches);
	}
	free_id_table(m);
	free(m->parts);
	free(m);
}

int vfm_index_match_find(struct vfm_index_match *m, uint64_t n, uint64_t id, uint64_t *record, struct vfm_err *err)
{
	struct partition *p = partition_of(m, id);

	while (p->n_read < p->n_matches && (p->n_read == 0 || p->next.a < n)) {
		TRY(read_match_file(p->matches, &p->next, err));
		p->n_read++;
	}
	if (p->n_read == 0 || p->next.a != n)
		return 0;
	*record = p->next.b;
	return 1;
}
