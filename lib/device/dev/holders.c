/* holders.c - sums device memory by owner, and formats the out-of-memory message. */
#include "device/dev/holders.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Replaces each run of digits by one 'N'. */
static void normalize_name(const char *what, char *name, size_t len)
{
	size_t n = 0;

	for (; *what && n + 1 < len; what++) {
		bool digit = isdigit((unsigned char)*what);

		if (!digit || n == 0 || name[n - 1] != 'N')
			name[n++] = digit ? 'N' : *what;
	}
	name[n] = '\0';
}

uint32_t vfm_holders_add(struct vfm_holders *h, const char *what, uint64_t bytes)
{
	char name[sizeof(h->v->name)];
	int64_t id;

	normalize_name(what ? what : "", name, sizeof(name));
	id = vfm_names_find(&h->names, name);
	if (id < 0) {
		id = vfm_names_add(&h->names, name);
		vfm_grow(&h->v, &h->cap, h->n + 1, sizeof(*h->v));
		memcpy(h->v[h->n].name, name, sizeof(name));
		h->v[h->n++].bytes = 0;
	}
	h->v[id].bytes += bytes;
	return (uint32_t)id;
}

void vfm_holders_sub(struct vfm_holders *h, uint32_t id, uint64_t bytes)
{
	h->v[id].bytes -= bytes;
}

void vfm_holders_release(struct vfm_holders *h)
{
	free(h->v);
	vfm_names_release(&h->names);
	*h = (struct vfm_holders){0};
}

/* ---- the message ---- */

enum { SHOWN = 4 };
static const double GIB = 1024.0 * 1024.0 * 1024.0;

static void add_size(struct vfm_buf *b, uint64_t bytes)
{
	if (bytes >= 10 << 20)
		vfm_buf_addf(b, "%.2f GiB", (double)bytes / GIB);
	else
		vfm_buf_addf(b, "%llu bytes", (unsigned long long)bytes);
}

/* Orders by descending bytes; savings that need more ranks come last. */
static int by_bytes(const void *a, const void *b)
{
	const struct vfm_dev_saving *x = a, *y = b;

	if (x->more_ranks != y->more_ranks)
		return x->more_ranks ? 1 : -1;
	return x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1) : strcmp(x->how, y->how);
}

enum { SAVINGS = 24, NAMED = 8 };

void vfm_oom_add_hints(const struct vfm_dev_oom_hints *a, uint64_t total, struct vfm_buf *b)
{
	struct vfm_dev_saving v[SAVINGS];
	int n = a && a->savings ? a->savings(a->ctx, v, SAVINGS) : 0, named[2] = {0, 0};
	static const char *const begin[2] = {"; approximate savings:", "; with twice the ranks:"};

	if (n > 1)
		qsort(v, (size_t)n, sizeof(*v), by_bytes);
	for (int i = 0; i < n; i++) {
		int *k = &named[v[i].more_ranks];

		if (v[i].bytes <= 0 || (uint64_t)v[i].bytes < total / 200 || *k == NAMED)
			continue;
		vfm_buf_addf(b, "%s %s (", *k ? "," : begin[v[i].more_ranks], v[i].how);
		add_size(b, (uint64_t)v[i].bytes);
		vfm_buf_adds(b, ")");
		++*k;
	}
	if (named[0] + named[1] == 0)
		vfm_buf_adds(b, "; to make room: smaller packs or a smaller model");
	if (a && a->plan)
		vfm_buf_addf(b, "; train.recompute=auto planned: %s", a->plan);
}

void vfm_oom_sentence(const struct vfm_oom *o, char *buf, size_t len)
{
	const struct vfm_holders *h = o->holders;
	const struct vfm_holder *top[SHOWN] = {NULL};
	struct vfm_buf b = {0};
	int n = 0;

	for (size_t i = 0; h && i < h->n; i++) {
		const struct vfm_holder *x = &h->v[i];

		if (!x->bytes)
			continue;
		for (int k = 0; k < SHOWN; k++)
			if (!top[k] || x->bytes > top[k]->bytes) {
				const struct vfm_holder *y = top[k];

				top[k] = x;
				x = y;
				if (!x)
					break;
			}
	}
	vfm_buf_addf(&b, "out of memory on %s: ", o->device);
	add_size(&b, o->bytes);
	vfm_buf_addf(&b, " for %s do not fit in addition to the ", o->what);
	add_size(&b, o->in_use);
	vfm_buf_adds(&b, " in use, of ");
	add_size(&b, o->total);
	for (; n < SHOWN && top[n]; n++) {
		vfm_buf_addf(&b, "%s%s ", n ? ", " : " (", top[n]->name);
		add_size(&b, top[n]->bytes);
	}
	if (n)
		vfm_buf_adds(&b, ")");
	if (o->others > o->total / 20) {
		vfm_buf_adds(&b, "; others hold ");
		add_size(&b, o->others);
		vfm_buf_adds(&b, " of the device");
	}
	vfm_oom_add_hints(o->oom_hints, o->total, &b);
	snprintf(buf, len, "%s", b.data);
	vfm_buf_release(&b);
}
