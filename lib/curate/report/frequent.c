#include "curate/report/frequent.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/hash.h"

#define WORD_BYTES 64 /* longer words are cut */

struct counter {
	char word[WORD_BYTES];
	int64_t n, excess;
	int next;  /* of its chain, -1: none */
	int place; /* in the heap */
};

struct vfm_frequent {
	struct counter *c; /* [n] */
	int *heap;         /* [n] counters; the least frequent one first */
	int *chain;        /* [n_chains] first counter of a hash, -1: none */
	int n, most, n_chains;
	int64_t total;
};

struct vfm_frequent *vfm_frequent_new(int words)
{
	struct vfm_frequent *f = vfm_calloc(1, sizeof(*f));

	f->most = words;
	f->n_chains = 2 * words;
	f->c = vfm_calloc((size_t)words, sizeof(f->c[0]));
	f->heap = vfm_calloc((size_t)words, sizeof(f->heap[0]));
	f->chain = vfm_calloc((size_t)f->n_chains, sizeof(f->chain[0]));
	for (int i = 0; i < f->n_chains; i++)
		f->chain[i] = -1;
	return f;
}

void vfm_frequent_free(struct vfm_frequent *f)
{
	if (!f)
		return;
	free(f->c);
	free(f->heap);
	free(f->chain);
	free(f);
}

static int *chain_of(struct vfm_frequent *f, const char *word)
{
	return &f->chain[vfm_fnv64(word, strlen(word)) % (uint64_t)f->n_chains];
}

static void place_counter(struct vfm_frequent *f, int at, int counter)
{
	f->heap[at] = counter;
	f->c[counter].place = at;
}

/* Moves a counter that has grown towards the end of the heap. */
static void sink_counter(struct vfm_frequent *f, int at)
{
	int moved = f->heap[at], child;

	while ((child = 2 * at + 1) < f->n) {
		if (child + 1 < f->n && f->c[f->heap[child + 1]].n < f->c[f->heap[child]].n)
			child++;
		if (f->c[f->heap[child]].n >= f->c[moved].n)
			break;
		place_counter(f, at, f->heap[child]);
		at = child;
	}
	place_counter(f, at, moved);
}

static void raise_counter(struct vfm_frequent *f, int at)
{
	int moved = f->heap[at];

	while (at > 0 && f->c[f->heap[(at - 1) / 2]].n > f->c[moved].n) {
		place_counter(f, at, f->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	place_counter(f, at, moved);
}

static void unchain(struct vfm_frequent *f, int counter)
{
	int *link = chain_of(f, f->c[counter].word);

	while (*link != counter)
		link = &f->c[*link].next;
	*link = f->c[counter].next;
}

void vfm_frequent_add(struct vfm_frequent *f, const char *word, size_t len)
{
	char text[WORD_BYTES];
	int *link, i;

	len = len < WORD_BYTES ? len : WORD_BYTES - 1;
	memcpy(text, word, len);
	text[len] = 0;
	f->total++;
	for (i = *chain_of(f, text); i >= 0 && strcmp(f->c[i].word, text) != 0;)
		i = f->c[i].next;
	if (i >= 0) {
		f->c[i].n++;
		sink_counter(f, f->c[i].place);
		return;
	}
	if (f->n < f->most) {
		i = f->n++;
		f->c[i].n = 1;
		place_counter(f, i, i);
		raise_counter(f, i);
	} else { /* takes the counter of the least frequent word, with its count */
		i = f->heap[0];
		unchain(f, i);
		f->c[i].excess = f->c[i].n++;
		sink_counter(f, 0);
	}
	memcpy(f->c[i].word, text, len + 1);
	link = chain_of(f, text);
	f->c[i].next = *link;
	*link = i;
}

int64_t vfm_frequent_total(const struct vfm_frequent *f)
{
	return f->total;
}

static int compare_frequent(const void *a, const void *b)
{
	const struct vfm_frequent_word *x = a, *y = b;

	return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->word, y->word);
}

int vfm_frequent_top(const struct vfm_frequent *f, struct vfm_frequent_word *top, int most)
{
	struct vfm_frequent_word *all = vfm_calloc((size_t)f->n + 1, sizeof(*all));

	for (int i = 0; i < f->n; i++)
		all[i] = (struct vfm_frequent_word){f->c[i].word, f->c[i].n, f->c[i].excess};
	qsort(all, (size_t)f->n, sizeof(*all), compare_frequent);
	most = most < f->n ? most : f->n;
	memcpy(top, all, (size_t)most * sizeof(*all));
	free(all);
	return most;
}
